"""The client of a tensor server for asyncio: the same scripts, run by a driver that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from ..errors import RemoteError
from ..message.names import Metadata
from ..tensor.tensor import Tensor
from .connection import Connected, Connection
from .drivers import AsyncDriver
from .operations import ObjectInfo, ServerInfo
from .retry import RECONNECT_S
from .script import Script
from .tls import Tls
from .topics import Frame, Policy, Publishing, Subscribing
from .transport import AsyncTransport
from .upload import Progress

_T = TypeVar("_T")


class AsyncClient(Connected):
    """The objects and topics of a tensor server, for asyncio. Operations may run at the same time.

    Arguments, results and errors of each method are those of `Client`'s. A cancelled operation ends its call, and what
    a put had sent is dropped.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        reconnect_s: float | None = RECONNECT_S,
        max_operations: int = 64,
    ) -> None:
        """Make a client; see `connect`.

        Args:
            address: As for `connect`.
            token: As for `connect`.
            tls: As for `connect`.
            timeout: As for `connect`.
            reconnect_s: As for `connect`.
            max_operations: Maximum number of operations at the same time; further ones wait.
        """
        self._connection = Connection(address, token=token, tls=tls, timeout=timeout, reconnect_s=reconnect_s)
        self._transport = self._connection.async_transport()
        self._free = asyncio.Semaphore(max_operations)

    async def put(
        self,
        name: str,
        x: Any,
        *,
        metadata: Metadata | None = None,
        if_generation: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Put a tensor, or a mapping of tensors, under a name; see `Client.put`.

        `progress` is called in another thread.
        """
        return await self._run(self._connection.operations.put(name, x, metadata, if_generation, progress))

    @overload
    async def get(
        self,
        name: str,
        *,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor | dict[str, Tensor]: ...

    @overload
    async def get(
        self,
        name: str,
        *,
        index: Any,
        tensors: Sequence[str] = (),
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor: ...

    @overload
    async def get(
        self,
        name: str,
        *,
        tensors: Sequence[str],
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Tensor]: ...

    @overload
    async def get(
        self,
        name: str,
        *,
        out: _T,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> _T: ...

    async def get(
        self,
        name: str,
        *,
        out: Any = None,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Get what was put under a name, or a part of it; see `Client.get`.

        `progress` may be called in another thread.
        """
        return await self._run(self._connection.operations.get(name, tensors, generation, index, out, progress))

    async def stat(self, name: str) -> ObjectInfo:
        """Describe an object and its tensors without their payloads; see `Client.stat`."""
        return await self._run(self._connection.operations.stat(name))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose names begin with a prefix; see `Client.list`."""
        token = ""
        while True:
            page, token = await self._run(self._connection.operations.list_page(prefix, token))
            for info in page:
                yield info
            if not token:
                return

    async def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """Remove an object and return the generation it had; see `Client.delete`."""
        return await self._run(self._connection.operations.delete(name, if_generation))

    async def server_info(self) -> ServerInfo:
        """Return version, limits and identity of the server; see `Client.server_info`."""
        return await self._run(self._connection.operations.server_info())

    def publisher(self, topic: str) -> AsyncPublisher:
        """Return a sender of frames onto a topic; see `Client.publisher`."""
        return AsyncPublisher(self._connection, self._transport, topic)

    def subscribe(
        self,
        patterns: str | Sequence[str],
        *,
        policy: Policy = "latest",
        queue_frame_count: int = 0,
        queue_bytes: int = 0,
        skip_retained: bool = False,
    ) -> AsyncSubscription:
        """Subscribe to topics: `async with client.subscribe("cam/*") as frames: async for frame in frames: ...`.

        Frames are queued from the moment when the subscription is entered or awaited, or first asked for a frame.
        Arguments and errors are those of `Client.subscribe`.
        """
        subscribing = Subscribing(
            patterns, policy, queue_frame_count, queue_bytes, skip_retained, self._connection.operations.reconnect_s
        )
        return AsyncSubscription(self._connection, self._transport, subscribing)

    async def close(self) -> None:
        """End the connection. Tensors stay usable."""
        if self._connection.is_inherited:
            return
        self._connection.closed = True
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, script: Script[_T]) -> _T:
        self._connection.check_usable()
        async with self._free:
            driver = AsyncDriver(self._transport)
            try:
                return await driver.run(script, self._connection.timeout)
            finally:
                driver.end()


class AsyncPublisher:
    """Sends frames onto one topic, for asyncio; see `Publisher`."""

    def __init__(self, connection: Connection, transport: AsyncTransport, topic: str) -> None:
        """See `AsyncClient.publisher`."""
        self._publishing = Publishing(connection.operations, topic)
        self._connection = connection
        self._driver = AsyncDriver(transport)
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def topic(self) -> str:
        """The topic."""
        return self._publishing.topic

    @property
    def subscriber_count(self) -> int:
        """Number of subscribers that will get the frame that was sent last."""
        return self._publishing.subscriber_count

    def __repr__(self) -> str:
        return f"<AsyncPublisher on {self.topic!r} of {self._connection!r}>"

    async def send(self, x: Any, *, metadata: Metadata | None = None, time_ns: int | None = None) -> int:
        """Send a tensor, and wait until the server has it; see `Publisher.send`. Cancelled, it still sends the frame.

        The tensor must not be changed before the frame was sent, also after a cancellation.
        """
        sending = asyncio.ensure_future(self._send(x, metadata, time_ns))
        sending.add_done_callback(_retrieve)
        return await asyncio.shield(sending)

    async def _send(self, x: Any, metadata: Metadata | None, time_ns: int | None) -> int:
        async with self._turn:
            self._connection.check_usable()
            if self._closed:
                raise ValueError("this publisher is closed")
            return await self._driver.run(self._publishing.send(x, metadata, time_ns), self._connection.timeout)

    async def close(self) -> None:
        """End the call. Every frame whose `send` returned is with the server."""
        async with self._turn:
            self._closed = True
            await self._driver.finish()

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSubscription:
    """Frames of topics, for asyncio; see `Subscription`.

    A wait for a frame may be cancelled: the next one gets the same frame.
    """

    def __init__(self, connection: Connection, transport: AsyncTransport, subscribing: Subscribing) -> None:
        """See `AsyncClient.subscribe`."""
        self._connection = connection
        self._subscribing = subscribing
        self._driver = AsyncDriver(transport)
        self._turn = asyncio.Lock()
        self._begun = False
        self._closed = False
        self._failure: Exception | None = None

    @property
    def instance_id(self) -> str:
        """32 hex digits that identify the running server; empty before the subscription has begun."""
        return self._subscribing.instance_id

    def __repr__(self) -> str:
        return f"<AsyncSubscription of {self._connection!r}{', closed' if self._closed else ''}>"

    async def _begin(self) -> AsyncSubscription:
        async with self._turn:
            if not self._begun and not self._closed:
                self._connection.check_usable()
                await self._driver.run(self._subscribing.open(), self._connection.timeout)
                self._begun = True
        return self

    def __await__(self) -> Generator[Any, None, AsyncSubscription]:
        return self._begin().__await__()

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> Frame:
        """Wait for the next frame; see `Subscription.__next__`."""
        await self._begin()
        async with self._turn:
            if self._failure is not None and not self._closed:
                raise self._failure
            frame: Frame | None = None
            try:
                if self._driver.unclaimed:
                    frame = self._driver.unclaimed.pop(0)
                elif not self._closed:
                    frame = await self._driver.run(self._subscribing.next(), self._connection.timeout)
            except Exception as error:
                self._driver.end()
                if isinstance(error, RemoteError) and (self._closed or self._connection.closed):
                    raise StopAsyncIteration from None
                if not self._subscribing.may_go_on:
                    self._failure = error
                raise
            if frame is None:
                raise StopAsyncIteration
            return frame

    async def close(self) -> None:
        """End the subscription."""
        self._closed = True
        self._driver.end()

    async def __aenter__(self) -> AsyncSubscription:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Ask for the error of a future, so that asyncio does not report it as never retrieved."""
    if not future.cancelled():
        future.exception()
