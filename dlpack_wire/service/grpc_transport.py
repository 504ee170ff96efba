"""gRPC as a transport. Only this module imports grpc.

Both transports use grpc's blocking channel, the asynchronous one through the callbacks of its futures. `grpc.aio` is
not used on this side: when a server refuses an upload early, its stub may replace the server's status by INTERNAL,
because a write that failed afterwards sets one of its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from ..errors import NotFoundError, RemoteError
from ..v1 import tensor_service_pb2
from .drivers import FAREWELL_S, Clock, cancelled
from .tls import Tls
from .transport import REASON_KEY

SERVICE = tensor_service_pb2.DESCRIPTOR.services_by_name["TensorService"]

KEEPALIVE_OPTIONS: list[tuple[str, int]] = [
    # A peer that vanished is noticed after 30 + 10 s. The server permits a ping every 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # newer versions of gRPC go by this one
]

CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.http2.bdp_probe", 0),  # the window is stated below; probing for one costs a tenth of a large transfer
    # gRPC would send loopback addresses too through the proxy of `http_proxy`, which sees tokens and payloads.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # clients of one process do not share a connection
    ("grpc.enable_retries", 0),  # gRPC's own would keep a copy of what was sent
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 2000),
    *KEEPALIVE_OPTIONS,
]

LOOKAHEAD_BYTES = 8 << 20
"""Bytes of a stream to receive ahead of its reader: several chunks, so that the network stays busy."""

FRAMES_LOOKAHEAD_BYTES = 64 << 10
"""The same for subscriptions, small because a frame that was received ahead cannot be dropped any more."""

_OUTBOX_MESSAGES = 2
"""Requests that wait to be sent: one being sent and one ready."""

_OUTBOX_LOOK_S = 0.1
"""Seconds between checks, while the outbox is full, whether the call has ended."""

_KINDS = {
    (False, False): "unary_unary",
    (True, False): "stream_unary",
    (False, True): "unary_stream",
    (True, True): "stream_stream",
}


class GrpcTransport:
    """Makes calls over gRPC for a blocking client."""

    def __init__(
        self,
        address: str,
        target: str,
        tls: Tls | None,
        token: str | None,
    ) -> None:
        """Make a transport; its connection is made by the first call.

        Args:
            address: The server's address as the user gave it, for errors.
            target: The same as gRPC has it.
            tls: Settings of TLS, or None for plain text.
            token: Bearer token that goes with every call, or None.

        Raises:
            OSError: A file that `tls` names cannot be read.
        """
        self._address = address
        self._target = target
        self._credentials = None if tls is None else _credentials(tls)
        self._options = [*CHANNEL_OPTIONS]
        if tls is not None and tls.server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", tls.server_name))
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel = self._connect(LOOKAHEAD_BYTES)
        self._frames_channel: grpc.Channel | None = None
        self._making = threading.Lock()
        self._callables: dict[str, Any] = {}
        self._farewells: list[Any] = []
        self._answered = False

    def _connect(self, lookahead_bytes: int) -> grpc.Channel:
        options = [*self._options, ("grpc.http2.lookahead_bytes", lookahead_bytes)]
        if self._credentials is None:
            return grpc.insecure_channel(self._target, options)
        return grpc.secure_channel(self._target, self._credentials, options)

    def callable(self, method: str) -> Any:
        """Return the channel's callable for a method; bytes go in and out."""
        made = self._callables.get(method)
        if made is None:
            descriptor = SERVICE.methods_by_name[method]
            kind = _KINDS[descriptor.client_streaming, descriptor.server_streaming]
            channel = self._channel if method != "Subscribe" else self._channel_for_frames()
            made = self._callables[method] = getattr(channel, kind)(f"/{SERVICE.full_name}/{method}")
        return made

    def _channel_for_frames(self) -> grpc.Channel:
        with self._making:
            if self._frames_channel is None:
                self._frames_channel = self._connect(FRAMES_LOOKAHEAD_BYTES)
            return self._frames_channel

    def unary(self, method: str, request: bytes, timeout: float | None) -> bytes:
        """Make a call and return its response."""
        try:
            response: bytes = self.callable(method)(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self.error(error) from None
        self._answered = True
        return response

    def send_all(self, method: str, requests: Iterator[bytes], timeout: float | None) -> bytes:
        """Make a call with a stream of requests, which a thread of gRPC's consumes, and return its response."""
        call = self.start(method, requests, timeout)
        try:
            response: bytes = call.result()
        except grpc.FutureCancelledError:
            raise cancelled() from None
        except grpc.RpcError as error:
            raise self.error(error) from None
        finally:
            call.cancel()  # does nothing to a call that has ended; after Ctrl-C it must not go on
        return response

    def start(self, method: str, request: Any, timeout: float | None) -> Any:
        """Start a call with one response, and return its future."""
        return self.callable(method).future(request, timeout=timeout, metadata=self._metadata)

    def open(self, method: str, request: bytes | None, timeout: float | None) -> GrpcStream:
        """Start a call with a stream of responses."""
        return GrpcStream(self, method, request, timeout)

    def begin(self, method: str, request: Any, timeout: float | None) -> Any:
        """Start a call with a stream of responses, and return gRPC's object for it."""
        return self.callable(method)(request, timeout=timeout, metadata=self._metadata)

    def notify(self, method: str, request: bytes) -> None:
        """Make a call; `close` waits for it a little."""
        self._farewells = [other for other in self._farewells if not other.done()]
        self._farewells.append(self.start(method, request, FAREWELL_S))

    def close(self) -> None:
        """Wait a moment for calls made by `notify`, then end all calls."""
        for farewell in self._farewells:
            with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
                farewell.exception(timeout=FAREWELL_S)
        self._channel.close()
        if self._frames_channel is not None:
            self._frames_channel.close()

    def error(self, error: Any) -> RemoteError:
        """Return the error of this package for one of gRPC's."""
        code = error.code().name
        reason = next((value for key, value in error.trailing_metadata() or () if key == REASON_KEY), "")
        text = error.details() or code
        if code == "UNAVAILABLE" and not reason:  # gRPC's own: there was no server to say anything
            text = f"{self._address}: {text}"
            if not self._answered:
                text += " (nothing has answered there as a tensor server; `dlpack-wire serve` starts one)"
        return (NotFoundError if code == "NOT_FOUND" else RemoteError)(text, code=code, reason=reason)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as f:
        return f.read()


class GrpcStream:
    """A running call with a stream of responses.

    Requests are handed to gRPC's thread one by one: gRPC takes them out of an iterator, and would not tell when.
    """

    def __init__(self, transport: GrpcTransport, method: str, request: bytes | None, timeout: float | None) -> None:
        self._transport = transport
        self._outbox: queue.Queue[bytes | None] | None = None
        if request is not None:
            self._call = transport.begin(method, request, timeout)
            return
        self._outbox = outbox = queue.Queue[bytes | None](_OUTBOX_MESSAGES)
        self._call = transport.begin(method, iter(outbox.get, None), timeout)

        def wake() -> None:
            # gRPC's thread that waits for requests does not notice by itself that the call has ended.
            with suppress(queue.Full):  # then it is not waiting
                outbox.put_nowait(None)

        if not self._call.add_callback(wake):
            wake()

    def send(self, message: bytes, timeout: float | None) -> None:
        """Hand a request over, also when nobody takes it any more: `next` then tells why."""
        assert self._outbox is not None
        clock = Clock(timeout)
        while True:
            try:
                self._outbox.put(message, timeout=clock.cut(_OUTBOX_LOOK_S))
                return
            except queue.Full:
                if not self._call.is_active():
                    return

    def next(self, timeout: float | None) -> bytes | None:
        """Return the next response, or None after the last one."""
        clock = Clock(timeout)
        with _cancelled_after(timeout, self._call):
            try:
                response: bytes | None = next(self._call, None)
            except grpc.RpcError as error:
                clock.left()
                raise self._transport.error(error) from None
        return response

    def is_open(self) -> bool:
        """Return True while another request can be sent."""
        return bool(self._call.is_active())

    def finish(self, timeout: float) -> None:
        """Send the end of the requests and wait for the server's end."""
        assert self._outbox is not None
        with suppress(queue.Full, grpc.RpcError), _cancelled_after(timeout, self._call):
            self._outbox.put(None, timeout=timeout)
            next(self._call, None)

    def cancel(self) -> None:
        """End the call at once."""
        self._call.cancel()


@contextmanager
def _cancelled_after(seconds: float | None, call: Any) -> Iterator[None]:
    """Cancel a call whose response takes longer: gRPC knows deadlines of whole calls only."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, call.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class AsyncGrpcTransport:
    """Makes calls over gRPC for a client in an event loop."""

    def __init__(self, transport: GrpcTransport) -> None:
        """Use the channels of a blocking transport, which is closed with this one."""
        self._transport = transport

    async def unary(self, method: str, request: bytes, timeout: float | None) -> bytes:
        """Make a call and return its response."""
        return await self._result(self._transport.start(method, request, timeout))

    async def send_all(self, method: str, requests: Iterator[bytes], timeout: float | None) -> bytes:
        """Make a call with a stream of requests, which a thread of gRPC's consumes, and return its response."""
        return await self._result(self._transport.start(method, requests, timeout))

    async def _result(self, call: Any) -> bytes:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        call.add_done_callback(lambda _: _call_soon(loop, _set_result, ended, None))
        try:
            await ended
        finally:
            call.cancel()  # does nothing to a call that has ended
        try:
            response: bytes = call.result()
        except grpc.FutureCancelledError:
            raise cancelled() from None
        except grpc.RpcError as error:
            raise self._transport.error(error) from None
        return response

    async def open(self, method: str, request: bytes | None, timeout: float | None) -> AsyncGrpcStream:
        """Start a call with a stream of responses."""
        return AsyncGrpcStream(self._transport.open(method, request, timeout))

    def notify(self, method: str, request: bytes) -> None:
        """Make a call; `close` waits for it a little."""
        self._transport.notify(method, request)

    async def close(self) -> None:
        """Wait a moment for calls made by `notify`, then end all calls."""
        await asyncio.to_thread(self._transport.close)


class AsyncGrpcStream:
    """A running call with a stream of responses, read by a thread of its own.

    The interpreter does not wait for that thread at its end: it may wait for a frame that never comes.
    """

    def __init__(self, stream: GrpcStream) -> None:
        self._stream = stream
        self._wanted: queue.SimpleQueue[tuple[asyncio.Future[bytes | None], float | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Kept when a wait for it is cancelled, so that no response is lost.
        self._next: asyncio.Future[bytes | None] | None = None

    async def send(self, message: bytes, timeout: float | None) -> None:
        """Hand a request over; in a thread, because it waits while the network is slower than its maker."""
        await asyncio.to_thread(self._stream.send, message, timeout)

    async def next(self, timeout: float | None) -> bytes | None:
        """Return the next response, or None after the last one. After a cancelled wait, return the same response."""
        if self._thread is None:
            self._thread = threading.Thread(target=_read_on, args=(self._stream, self._wanted), daemon=True)
            self._thread.start()
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(_retrieve)
            self._wanted.put((self._next, timeout))
        try:
            response = await asyncio.shield(self._next)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._next = None
            raise
        self._next = None
        return response

    def is_open(self) -> bool:
        """Return True while another request can be sent."""
        return self._stream.is_open()

    async def finish(self, timeout: float) -> None:
        """Send the end of the requests and wait for the server's end."""
        self._wanted.put(None)
        await asyncio.to_thread(self._stream.finish, timeout)

    def cancel(self) -> None:
        """End the call at once."""
        self._stream.cancel()
        self._wanted.put(None)

    def __del__(self) -> None:
        self._wanted.put(None)


def _read_on(
    stream: GrpcStream, wanted: queue.SimpleQueue[tuple[asyncio.Future[bytes | None], float | None] | None]
) -> None:
    """Read one response for each future that is wanted, until None is."""
    while (want := wanted.get()) is not None:
        future, timeout = want
        loop = future.get_loop()
        try:
            response = stream.next(timeout)
        except BaseException as error:
            _call_soon(loop, _set_exception, future, error)
        else:
            _call_soon(loop, _set_result, future, response)
            del response
        del want, future  # not kept while waiting for the next one


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):  # the loop has been closed meanwhile
        loop.call_soon_threadsafe(function, *args)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Ask for the error of a future, so that asyncio does not report it as never retrieved."""
    if not future.cancelled():
        future.exception()
