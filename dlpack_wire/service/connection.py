"""The way to a tensor server: its address, credentials, channel options, and what its errors become."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import grpc

from ..errors import NotFoundError, RemoteError
from ..v1 import tensor_service_pb2
from .operations import Exchange

SERVICE = tensor_service_pb2.DESCRIPTOR.services_by_name["TensorService"].full_name

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),  # clients of one process do not share a connection
    ("grpc.enable_retries", 0),  # gRPC's own would keep a copy of what was sent
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long one attempt may take
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A server that is gone without a word is noticed after 40 s; the server allows a ping every 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # newer versions of gRPC go by this one
]

LOOKAHEAD_BYTES = 8 << 20
"""How much of a stream may come before it is asked for."""

_REASON_KEY = "dlpack-wire-reason"
FAREWELL_S = 2.0


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


class Connection:
    """Where a server is, how to speak to it, and for how long.

    Attributes:
        address: The server's, as it was given.
        timeout: Most seconds of an operation, or None.
        metadata: What is sent along with every call.
        exchange: The operations.
        closed: Whether it was closed.
    """

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None
    ) -> None:
        """See `connect`."""
        if token is not None and not (token and token.isascii() and token.isprintable()):
            why = "it is empty" if not token else "it ends with a line break" if token.strip() != token else "it is not"
            raise ValueError(f"a token must be printable ASCII: {why}")
        self.address = address
        self._target, secure = _target(address)
        self._credentials = _credentials(Tls() if tls is None and secure else tls)
        self._options: list[tuple[str, int | str]] = [*CHANNEL_OPTIONS]
        if tls is not None and tls.server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", tls.server_name))
        self.metadata: tuple[tuple[str, str], ...] = ()
        if token is not None:
            self.metadata = (("authorization", f"Bearer {token}"),)
        self.timeout = timeout
        self.exchange = Exchange()
        self._process = _claim_process()
        self.closed = False

    def channel(self, lookahead_bytes: int = LOOKAHEAD_BYTES) -> grpc.Channel:
        """A new connection.

        Args:
            lookahead_bytes: How much of a stream may come before it is asked for.
        """
        options = [*self._options, ("grpc.http2.lookahead_bytes", lookahead_bytes)]
        if self._credentials is None:
            return grpc.insecure_channel(self._target, options)
        return grpc.secure_channel(self._target, self._credentials, options)

    def check_process(self) -> None:
        """Refuse to work in a child process of the one that this was made in."""
        if self._process != os.getpid():
            raise RuntimeError("this client was made before a fork: make a new one in the child process")

    def check_usable(self) -> None:
        """Refuse to work there, and after `close`."""
        self.check_process()
        if self.closed:
            raise ValueError("this client is closed")

    def error(self, error: Any) -> RemoteError:
        """What this package raises for an error of gRPC's."""
        code = error.code().name
        reason = next((value for key, value in error.trailing_metadata() or () if key == _REASON_KEY), "")
        text = error.details() or code
        if code == "UNAVAILABLE" and not reason:  # gRPC's own: there was no server to say anything
            text = f"{self.address}: {text}"
            if "failed to connect" in text:
                text += " (is a server running there? `dlpack-wire serve` starts one)"
        return (NotFoundError if code == "NOT_FOUND" else RemoteError)(text, code=code, reason=reason)


class Clock:
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


def _target(address: str) -> tuple[str, bool]:
    """The address as gRPC has it, and whether it asks for TLS."""
    port = address.rpartition(":")[2].rstrip("/")
    if port.isascii() and port.isdigit() and not 0 < int(port) <= 65535:
        raise ValueError(f"{address!r}: a port is a number from 1 to 65535")
    scheme, separator, rest = address.partition("://")
    if separator and scheme in ("grpc", "grpcs") and rest:
        return rest.rstrip("/"), scheme == "grpcs"
    if ":" not in address or (separator and scheme not in ("dns", "unix")):
        raise ValueError(f"{address!r} is neither host:port nor unix:/path, nor a grpc:// or grpcs:// URL")
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
