"""Clients of a tensor server: `connect` for a blocking one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, overload

import grpc

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


class Client:
    """A tensor server's objects. May be used by several threads; not by a child process after a fork.

    Every operation raises `RemoteError` with the server's status, or `NotFoundError`. A lost connection is mended: the
    operation goes on where it was, for as long as the server comes back within seconds.
    """

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None
    ) -> None:
        """See `connect`."""
        target, secure = _target(address)
        if secure and tls is None:
            tls = Tls()
        self.address = address
        self._timeout = timeout
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        self._channel = _channel(target, tls)
        self._exchange = Exchange()
        self._calls: dict[tuple[str, str], Any] = {}
        self._farewells: list[Any] = []
        self._process = os.getpid()

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
            _wait(farewell)
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- driving ------------------------------------------------------------------------------------------------------

    def _run(self, script: Script[_T]) -> _T:
        if self._process != os.getpid():
            raise RuntimeError("this client was made before a fork: connect again in the child process")
        drive = _Drive(self, self._timeout)
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

    def __init__(self, client: Client, timeout: float | None) -> None:
        self._client = client
        self._deadline = time.monotonic() + timeout if timeout is not None else None
        self._stream: Any = None

    def do(self, command: Any) -> Any:
        client = self._client
        try:
            if isinstance(command, Unary):
                call = client._call("unary_unary", command.method)
                return call(command.request, timeout=self._left(), metadata=client._metadata)
            if isinstance(command, Next):
                return next(self._stream, None)
            if isinstance(command, SendAll):
                call = client._call("stream_unary", command.method)
                sending = call.future(command.requests, timeout=self._left(), metadata=client._metadata)
                try:
                    return sending.result()
                except BaseException:
                    sending.cancel()  # if this is an interrupt, it is still going on
                    raise
            if isinstance(command, Open):
                self.close()
                call = client._call("unary_stream", command.method)
                self._stream = call(command.request, timeout=self._left(), metadata=client._metadata)
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
        left = self._left()
        time.sleep(command.seconds if left is None else min(command.seconds, left))
        return None

    def _left(self) -> float | None:
        """Seconds until the deadline."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RemoteError("the operation's time is over", code="DEADLINE_EXCEEDED")
        return left

    def close(self) -> None:
        """End a stream that is still open."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


def _wait(farewell: Any) -> None:
    with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
        farewell.exception(timeout=_FAREWELL_S)


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


def _channel(target: str, tls: Tls | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(target, CHANNEL_OPTIONS)
    options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    ca, key, cert = (_read(path) for path in (tls.ca, tls.key, tls.cert))
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options)


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as f:
        return f.read()
