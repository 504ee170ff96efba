"""Clients of a tensor server: a blocking one, made by `connect`, and an asynchronous one.

Both only do what the generators of `exchange` ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, overload

import grpc
from grpc import aio

from .errors import NotFoundError, RemoteError
from .exchange import Exchange, Farewell, Next, ObjectInfo, Open, Pause, Script, SendAll, ServerInfo, Unary
from .metadata import Metadata
from .tensor import Tensor
from .upload import Progress
from .v1 import tensor_service_pb2

SERVICE = tensor_service_pb2.DESCRIPTOR.services_by_name["TensorService"].full_name

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),  # clients of one process do not share a connection
    ("grpc.enable_retries", 0),  # gRPC's own would keep a copy of what was sent
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A server that is gone without a word is noticed after 40 s; the server allows a ping every 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]

_REASON_KEY = "dlpack-wire-reason"
_FAREWELL_S = 2.0

_T = TypeVar("_T")


class Tls(NamedTuple):
    """How to speak TLS.

    Attributes:
        ca: PEM file of the authorities to trust; None: the system's.
        cert: PEM file of the client's own certificate chain, or None.
        key: PEM file of its private key, or None.
        server_name: Name to expect in the server's certificate, if not the address's.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None


def connect(address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None) -> Client:
    """Make a client of a tensor server. The connection itself is made by the first operation.

    Args:
        address: `host:port`, `unix:/path`, or a URL: `grpc://host:port`, or `grpcs://host:port` for TLS.
        token: Bearer token, if the server wants one.
        tls: Speak TLS; `Tls()` trusts the system's authorities.
        timeout: Most seconds that one operation may take; None: as long as the server answers at all.

    Raises:
        ValueError: The address is in none of these forms.
        OSError: A file of `tls` cannot be read.
    """
    return Client(address, token=token, tls=tls, timeout=timeout)


class _Connection:
    """What both clients have: where the server is, how to speak to it, and for how long."""

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None
    ) -> None:
        """See `connect`."""
        self.address = address
        self._target, secure = _target(address)
        self._credentials = _credentials(Tls() if tls is None and secure else tls)
        self._options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
        if tls is not None and tls.server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", tls.server_name))
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        self._timeout = timeout
        self._exchange = Exchange()
        self._process = _claim_process()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this client was made before a fork: make a new one in the child process")


class Client(_Connection):
    """A tensor server's objects. May be used by several threads; not by a child process after a fork.

    Every operation raises `RemoteError` with the server's status, or `NotFoundError`. A lost connection is mended: the
    operation goes on where it was, as long as the server comes back within seconds.
    """

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None
    ) -> None:
        """See `connect`."""
        super().__init__(address, token=token, tls=tls, timeout=timeout)
        if self._credentials is None:
            self._channel = grpc.insecure_channel(self._target, self._options)
        else:
            self._channel = grpc.secure_channel(self._target, self._credentials, self._options)
        self._calls: dict[tuple[str, str], Any] = {}
        self._farewells: list[Any] = []

    # --- operations ---------------------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        x: Any,
        *,
        metadata: Metadata | None = None,
        if_generation: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Put a tensor, or a mapping of tensors that are replaced as one, under a name.

        Args:
            name: 1 to 4096 bytes of UTF-8 without NUL.
            x: Anything that `encode` takes, or a mapping from names to such.
            metadata: User metadata of the object.
            if_generation: Only if the name is at this generation; 0: only if it does not exist.
            progress: Called with payload bytes sent and their total, possibly from another thread.

        Returns:
            The generation that the name has now.

        Raises:
            EncodeError: A tensor or name cannot go on the wire.
            RemoteError: The server refused, or was lost. The name then keeps its old value.

        Memory:
            No copy of a dense payload beyond the chunk being sent. Holds `x` during the call.
        """
        return self._run(self._exchange.put(name, x, metadata, if_generation, progress))

    @overload
    def get(
        self,
        name: str,
        *,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor | dict[str, Tensor]: ...

    @overload
    def get(
        self,
        name: str,
        *,
        out: _T,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> _T: ...

    def get(
        self,
        name: str,
        *,
        out: Any = None,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Get what was put under a name: a tensor, or a dict of tensors.

        Args:
            name: The object's name.
            out: A writable array of the same type and shape, of numpy or one that numpy can view, to receive into and
                to return. After an error its contents are undefined.
            tensors: Only these tensors of the object; a dict is returned.
            index: Only this part of the one tensor asked for, selected by the server: integers, slices, `...` and
                None, as numpy does it (`np.s_[0:10, ...]`). A tensor is returned.
            generation: Only this generation.
            progress: Called with payload bytes received and their total.

        Raises:
            NotFoundError: There is no such object or tensor (also a KeyError).
            IndexError: `index` lies outside of the tensor.
            ValueError: `out` does not fit.
            ChecksumError: Bytes were damaged on the way.

        Memory:
            Received straight into fresh memory aligned to 64 bytes, or into `out`.
        """
        return self._run(self._exchange.get(name, tensors, generation, index, out, progress))

    def stat(self, name: str) -> ObjectInfo:
        """Describe an object and its tensors without their payloads."""
        return self._run(self._exchange.stat(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with a prefix, in the byte order of their names."""
        token = ""
        while True:
            page, token = self._run(self._exchange.list_page(prefix, token))
            yield from page
            if not token:
                return

    def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """Remove an object, if it is at that generation, and return the generation it had."""
        return self._run(self._exchange.delete(name, if_generation))

    def server_info(self) -> ServerInfo:
        """Version, limits and identity of the server."""
        return self._run(self._exchange.server_info())

    # --- ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection. Tensors stay usable."""
        if self._process != os.getpid():
            return  # the parent's connection; the library would wait here for threads that a child does not have
        for farewell in self._farewells:
            with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
                farewell.exception(timeout=_FAREWELL_S)
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- driving ------------------------------------------------------------------------------------------------------

    def _run(self, script: Script[_T]) -> _T:
        self._check_process()
        drive = _Drive(self)
        try:
            command = next(script)
            while True:
                try:
                    answer = drive.do(command)
                except BaseException as error:
                    command = script.throw(error)
                else:
                    command = script.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:
            drive.close()

    def _call(self, kind: str, method: str) -> Any:
        """The channel's callable for a method; bytes go in and out."""
        call = self._calls.get((kind, method))
        if call is None:
            call = self._calls[kind, method] = getattr(self._channel, kind)(f"/{SERVICE}/{method}")
        return call


class _Drive:
    """Does what one script asks for, within its time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._clock = _Clock(client._timeout)
        self._stream: Any = None

    def do(self, command: Any) -> Any:
        client = self._client
        try:
            if isinstance(command, Unary):
                call = client._call("unary_unary", command.method)
                return call(command.request, timeout=self._clock.left(), metadata=client._metadata)
            if isinstance(command, Next):
                return next(self._stream, None)
            if isinstance(command, SendAll):
                call = client._call("stream_unary", command.method)
                sending = call.future(command.requests, timeout=self._clock.left(), metadata=client._metadata)
                try:
                    return sending.result()
                except BaseException:
                    sending.cancel()  # if this is an interrupt, it is still going on
                    raise
            if isinstance(command, Open):
                self.close()
                call = client._call("unary_stream", command.method)
                self._stream = call(command.request, timeout=self._clock.left(), metadata=client._metadata)
                return None
        except grpc.RpcError as error:
            raise remote_error(error) from None
        if isinstance(command, Farewell):
            call = client._call("stream_unary", command.method)
            client._farewells = [f for f in client._farewells if not f.done()]
            client._farewells.append(
                call.future(iter((command.request,)), timeout=_FAREWELL_S, metadata=client._metadata)
            )
            return None
        assert isinstance(command, Pause)
        time.sleep(self._clock.cut(command.seconds))
        return None

    def close(self) -> None:
        """End a stream that is still open."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


class AsyncClient(_Connection):
    """A tensor server's objects, for asyncio. Operations are those of `Client`; they may run at the same time.

    Payloads are hashed and copied chunk by chunk in the event loop.
    """

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None
    ) -> None:
        """See `connect`. Must be made inside of a running event loop."""
        super().__init__(address, token=token, tls=tls, timeout=timeout)
        if self._credentials is None:
            self._channel = aio.insecure_channel(self._target, self._options)
        else:
            self._channel = aio.secure_channel(self._target, self._credentials, self._options)
        self._farewells: set[asyncio.Task[None]] = set()

    async def put(
        self,
        name: str,
        x: Any,
        *,
        metadata: Metadata | None = None,
        if_generation: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """As `Client.put`."""
        return await self._run(self._exchange.put(name, x, metadata, if_generation, progress))

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
        """As `Client.get`."""
        return await self._run(self._exchange.get(name, tensors, generation, index, out, progress))

    async def stat(self, name: str) -> ObjectInfo:
        """As `Client.stat`."""
        return await self._run(self._exchange.stat(name))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """As `Client.list`."""
        token = ""
        while True:
            page, token = await self._run(self._exchange.list_page(prefix, token))
            for info in page:
                yield info
            if not token:
                return

    async def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """As `Client.delete`."""
        return await self._run(self._exchange.delete(name, if_generation))

    async def server_info(self) -> ServerInfo:
        """As `Client.server_info`."""
        return await self._run(self._exchange.server_info())

    async def close(self) -> None:
        """End the connection. Tensors stay usable."""
        if self._farewells:
            await asyncio.wait(self._farewells)
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, script: Script[_T]) -> _T:
        self._check_process()
        drive = _AsyncDrive(self)
        try:
            command = next(script)
            while True:
                try:
                    answer = await drive.do(command)
                except BaseException as error:
                    command = script.throw(error)
                else:
                    command = script.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:
            drive.close()

    def _call(self, kind: str, method: str) -> Any:
        return getattr(self._channel, kind)(f"/{SERVICE}/{method}")

    def _say_farewell(self, command: Farewell) -> None:
        async def say() -> None:
            call = self._call("stream_unary", command.method)
            with contextlib.suppress(grpc.RpcError):
                await call(iter((command.request,)), timeout=_FAREWELL_S, metadata=self._metadata)

        task = asyncio.create_task(say())
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)


class _AsyncDrive:
    """Does what one script asks for, within its time."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._clock = _Clock(client._timeout)
        self._stream: Any = None

    async def do(self, command: Any) -> Any:
        client = self._client
        try:
            if isinstance(command, Unary):
                call = client._call("unary_unary", command.method)
                return await call(command.request, timeout=self._clock.left(), metadata=client._metadata)
            if isinstance(command, Next):
                message = await self._stream.read()
                return None if message is aio.EOF else message
            if isinstance(command, SendAll):
                call = client._call("stream_unary", command.method)
                return await call(command.requests, timeout=self._clock.left(), metadata=client._metadata)
            if isinstance(command, Open):
                self.close()
                call = client._call("unary_stream", command.method)
                self._stream = call(command.request, timeout=self._clock.left(), metadata=client._metadata)
                return None
        except grpc.RpcError as error:
            raise remote_error(error) from None
        if isinstance(command, Farewell):
            client._say_farewell(command)
            return None
        assert isinstance(command, Pause)
        await asyncio.sleep(self._clock.cut(command.seconds))
        return None

    def close(self) -> None:
        """End a stream that is still open."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


class _Clock:
    """How much time an operation has left."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = time.monotonic() + timeout if timeout is not None else None

    def left(self) -> float | None:
        """Seconds until the deadline, or None.

        Raises:
            RemoteError: It has passed.
        """
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RemoteError("the operation's time is over", code="DEADLINE_EXCEEDED")
        return left

    def cut(self, seconds: float) -> float:
        """A time to wait, not beyond the deadline."""
        left = self.left()
        return seconds if left is None else min(seconds, left)


def remote_error(error: Any) -> RemoteError:
    """What this package raises for an error of gRPC's."""
    code = error.code().name
    reason = next((value for key, value in error.trailing_metadata() or () if key == _REASON_KEY), "")
    text = error.details() or code
    return (NotFoundError if code == "NOT_FOUND" else RemoteError)(text, code=code, reason=reason)


def _target(address: str) -> tuple[str, bool]:
    """The address as gRPC has it, and whether it asks for TLS."""
    scheme, separator, rest = address.partition("://")
    if separator:
        if scheme not in ("grpc", "grpcs") or not rest:
            raise ValueError(f"{address!r} begins with neither grpc:// nor grpcs://")
        return rest.rstrip("/"), scheme == "grpcs"
    if not address or (":" not in address):
        raise ValueError(f"{address!r} is neither host:port nor unix:/path")
    return address, False


def _credentials(tls: Tls | None) -> grpc.ChannelCredentials | None:
    if tls is None:
        return None
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


# The process that used gRPC through this module first.
_first_process: int | None = None


def _claim_process() -> int:
    """This process's id, unless gRPC would hang in it."""
    global _first_process
    here = os.getpid()
    if _first_process is None:
        _first_process = here
    elif _first_process != here and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "0") in ("", "0", "false"):
        raise RuntimeError(
            "this process was forked from one that had a client, and gRPC does not survive that: start it with the "
            "'spawn' or 'forkserver' method of multiprocessing, or set GRPC_ENABLE_FORK_SUPPORT=1 before the fork"
        )
    return here


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as f:
        return f.read()
