"""A transport without a network: a client's scripts against the server's state machine, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from dlpack_wire_server.auth import Authorizer, Credentials
from dlpack_wire_server.calls import CallerGoneError, CallLimits
from dlpack_wire_server.hub import Hub
from dlpack_wire_server.memory_store import MemoryStore
from dlpack_wire_server.metrics import Metrics
from dlpack_wire_server.puts import ObjectLimits
from dlpack_wire_server.service import TensorService
from dlpack_wire_server.status import Status
from dlpack_wire_server.unfinished import UnfinishedPuts

from dlpack_wire.errors import NotFoundError, RemoteError

LOST = RemoteError("the connection is lost", code="UNAVAILABLE")


def new_service(instance: str = "0" * 32, **limits: int) -> TensorService:
    """A server without a transport."""
    store = MemoryStore(1 << 30, 10**12)
    unfinished = UnfinishedPuts(10**12, 1 << 30)
    hub = Hub(1 << 28, 100)
    return TensorService(
        store, unfinished, hub, Authorizer(), Metrics(), instance, ObjectLimits(**limits), CallLimits()
    )


class MemoryCall:
    """The server's side of one call."""

    credentials = Credentials(None, "memory", None)

    def __init__(self, requests: Callable[[], object], lose_after: int | None) -> None:
        self.responses: asyncio.Queue[bytes] = asyncio.Queue(2)
        self._requests = requests
        self._left = lose_after

    async def read(self) -> bytes | None:
        """The next request; after so many the caller is gone."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise CallerGoneError
        await asyncio.sleep(0)
        request = self._requests()
        if isinstance(request, asyncio.Future):
            request = await request
        assert request is None or isinstance(request, bytes)
        return request

    async def write(self, message: bytes) -> None:
        await self.responses.put(message)


class MemoryStream:
    """The client's side of a call with a stream of responses."""

    def __init__(self, service: TensorService, method: str, request: bytes | None, lose_after: int | None) -> None:
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._lose_after = lose_after
        if request is not None:
            self._outbox.put_nowait(request)
        self._call = MemoryCall(lambda: asyncio.ensure_future(self._outbox.get()), None)
        self._answer = asyncio.ensure_future(service.answer(method, self._call))

    async def send(self, message: bytes, timeout: float | None) -> None:
        await self._outbox.put(message)

    async def next(self, timeout: float | None) -> bytes | None:
        if self._lose_after is not None:
            self._lose_after -= 1
            if self._lose_after < 0:
                self.cancel()
                raise LOST
        response = asyncio.ensure_future(self._call.responses.get())
        await asyncio.wait([response, self._answer], return_when=asyncio.FIRST_COMPLETED)
        if response.done():
            return response.result()
        response.cancel()
        if self._answer.cancelled():
            raise RemoteError("cancelled", code="CANCELLED")
        raise_status(self._answer.result().status)
        return None

    def is_open(self) -> bool:
        return not self._answer.done()

    async def finish(self, timeout: float) -> None:
        await self._outbox.put(None)
        await asyncio.wait([self._answer])

    def cancel(self) -> None:
        self._answer.cancel()


class MemoryTransport:
    """The client's side of all calls.

    Attributes:
        service: The server.
        calls: Names of the methods called so far, in order.
        losses: For each coming call that takes or gives a stream: after how many messages it is lost; None: never.
    """

    def __init__(self, service: TensorService) -> None:
        self.service = service
        self.calls: list[str] = []
        self.losses: list[int | None] = []

    def _next_loss(self) -> int | None:
        return self.losses.pop(0) if self.losses else None

    async def unary(self, method: str, request: bytes, timeout: float | None) -> bytes:
        self.calls.append(method)
        answer = await self.service.answer(method, MemoryCall(lambda: request, None))
        raise_status(answer.status)
        return answer.response

    async def send_all(self, method: str, requests: Iterator[bytes], timeout: float | None) -> bytes:
        self.calls.append(method)
        loss = self._next_loss()
        answer = await self.service.answer(method, MemoryCall(lambda: next(requests, None), loss))
        raise_status(answer.status)
        if loss is not None and not answer.response:
            raise LOST
        return answer.response

    async def open(self, method: str, request: bytes | None, timeout: float | None) -> MemoryStream:
        self.calls.append(method)
        return MemoryStream(self.service, method, request, self._next_loss())

    def notify(self, method: str, request: bytes) -> None:
        self.calls.append(f"notify {method}")
        self._notified = asyncio.ensure_future(self.service.answer(method, MemoryCall(lambda: request, None)))

    async def close(self) -> None:
        self.service.close()


def raise_status(status: Status | None) -> None:
    if status is not None:
        kind = NotFoundError if status.code == "NOT_FOUND" else RemoteError
        raise kind(status.text, code=status.code, reason=status.reason)
