"""A client of a tensor server for asyncio.

The blocking client does the work in threads: payloads are hashed and copied outside of the event loop, and a refused
upload keeps the server's own status, which `grpc.aio` may replace by one of a failed write.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from ..message.names import Metadata
from .client import Client, Drive
from .connection import Tls
from .operations import ObjectInfo, Script, ServerInfo
from .topics import Frame, Policy, Publisher, Subscription
from .upload import Progress

_T = TypeVar("_T")


class AsyncClient:
    """A tensor server's objects, for asyncio. Operations are those of `Client`; they may run at the same time.

    A cancelled operation ends its call, and what a put had sent is dropped.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        max_operations: int = 64,
    ) -> None:
        """See `connect`.

        Args:
            max_operations: Most operations at the same time, each in a thread; further ones wait.
        """
        self._client = Client(address, token=token, tls=tls, timeout=timeout)
        self._threads = ThreadPoolExecutor(max_operations, thread_name_prefix="dlpack-wire-client")

    async def put(
        self,
        name: str,
        x: Any,
        *,
        metadata: Metadata | None = None,
        if_generation: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """As `Client.put`. `progress` is called in another thread."""
        return await self._run(self._client.exchange.put(name, x, metadata, if_generation, progress))

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
        """As `Client.get`. `progress` is called in another thread."""
        return await self._run(self._client.exchange.get(name, tensors, generation, index, out, progress))

    async def stat(self, name: str) -> ObjectInfo:
        """As `Client.stat`."""
        return await self._run(self._client.exchange.stat(name))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """As `Client.list`."""
        token = ""
        while True:
            page, token = await self._run(self._client.exchange.list_page(prefix, token))
            for info in page:
                yield info
            if not token:
                return

    async def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """As `Client.delete`."""
        return await self._run(self._client.exchange.delete(name, if_generation))

    async def server_info(self) -> ServerInfo:
        """As `Client.server_info`."""
        return await self._run(self._client.exchange.server_info())

    def publisher(self, topic: str) -> AsyncPublisher:
        """As `Client.publisher`, with a `send` to be awaited."""
        return AsyncPublisher(self._client.publisher(topic), self._threads)

    def subscribe(
        self,
        patterns: str | Sequence[str],
        *,
        policy: Policy = "latest",
        queue_frame_count: int = 0,
        queue_bytes: int = 0,
        skip_retained: bool = False,
    ) -> AsyncSubscription:
        """As `Client.subscribe`: `async with client.subscribe("cam/*") as frames: async for frame in frames: ...`.

        Frames are queued from the moment when the subscription is entered or awaited, or first asked for a frame.
        """
        subscribe = functools.partial(
            self._client.subscribe,
            patterns,
            policy=policy,
            queue_frame_count=queue_frame_count,
            queue_bytes=queue_bytes,
            skip_retained=skip_retained,
        )
        return AsyncSubscription(lambda: _in_thread(self._threads, subscribe))

    async def close(self) -> None:
        """End the connection. Tensors stay usable."""
        await asyncio.to_thread(self._client.close)
        self._threads.shutdown()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, script: Script[_T]) -> _T:
        drive = Drive(self._client, cancellable=True)
        future = asyncio.get_running_loop().run_in_executor(self._threads, drive.run, script)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            drive.cancel()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # asked for, so that asyncio does not report it as forgotten
            raise


class AsyncPublisher:
    """As `Publisher`, for asyncio.

    Attributes:
        topic: The topic.
    """

    def __init__(self, publisher: Publisher, threads: ThreadPoolExecutor) -> None:
        self.topic = publisher.topic
        self._publisher = publisher
        self._threads = threads

    @property
    def subscriber_count(self) -> int:
        """How many will get the frame that was sent last."""
        return self._publisher.subscriber_count

    async def send(self, x: Any, *, metadata: Metadata | None = None, time_ns: int | None = None) -> int:
        """As `Publisher.send`. Cancelled, it still sends the frame."""
        sending = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: self._publisher.send(x, metadata=metadata, time_ns=time_ns)
        )
        sending.add_done_callback(_forgive)
        return await asyncio.shield(sending)

    async def close(self) -> None:
        """As `Publisher.close`."""
        await asyncio.to_thread(self._publisher.close)

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSubscription:
    """As `Subscription`, for asyncio. A wait for a frame may be cancelled: the next one gets the same frame."""

    def __init__(self, subscribe: Callable[[], Awaitable[Subscription]]) -> None:
        """See `AsyncClient.subscribe`."""
        self._subscribe = subscribe
        self._subscription: Subscription | None = None
        self._closed = False
        self._turn = asyncio.Lock()
        self._next: asyncio.Future[Frame | None] | None = None
        self._wanted: SimpleQueue[asyncio.Future[Frame | None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def _begun(self) -> AsyncSubscription:
        async with self._turn:
            if self._subscription is None and not self._closed:
                self._subscription = await self._subscribe()
                # A thread of its own that the interpreter does not wait for: it may wait for a frame that never comes.
                arguments = self._subscription, self._wanted
                self._thread = threading.Thread(target=_serve, args=arguments, daemon=True)
                self._thread.start()
        return self

    def __await__(self) -> Generator[Any, None, AsyncSubscription]:
        return self._begun().__await__()

    @property
    def instance_id(self) -> str:
        """As `Subscription.instance_id`; empty before it has begun."""
        return self._subscription.instance_id if self._subscription is not None else ""

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> Frame:
        """As `Subscription.__next__`."""
        await self._begun()
        async with self._turn:
            if self._closed:
                raise StopAsyncIteration
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                self._next.add_done_callback(_forgive)
                self._wanted.put(self._next)
            try:
                frame = await asyncio.shield(self._next)
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._next = None
                raise
            if frame is None:
                raise StopAsyncIteration  # and again, if it is asked again
            self._next = None
            return frame

    async def close(self) -> None:
        """As `Subscription.close`."""
        self._end()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _end(self) -> None:
        self._closed = True
        if self._subscription is not None:
            self._subscription.close()
        self._wanted.put(None)

    def __del__(self) -> None:
        self._end()

    async def __aenter__(self) -> AsyncSubscription:
        return await self._begun()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


def _serve(subscription: Subscription, wanted: SimpleQueue[asyncio.Future[Frame | None] | None]) -> None:
    """Get one frame for each future, until there is a None."""
    while (future := wanted.get()) is not None:
        _serve_one(subscription, future)
        del future  # not kept while waiting for the next one


def _serve_one(subscription: Subscription, future: asyncio.Future[Frame | None]) -> None:
    frame: Frame | None = None
    error: BaseException | None = None
    try:
        frame = next(subscription, None)
    except BaseException as caught:
        error = caught
    with suppress(RuntimeError):  # the loop has ended meanwhile
        future.get_loop().call_soon_threadsafe(_settle, future, frame, error)


def _settle(future: asyncio.Future[Frame | None], frame: Frame | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(frame)


def _forgive(future: asyncio.Future[Any]) -> None:
    """Ask for the error of a future, so that asyncio does not report it as forgotten."""
    if not future.cancelled():
        future.exception()


async def _in_thread(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
