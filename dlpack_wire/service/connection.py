"""A connection to a server: its address, credentials and time limit, and the process that may use it."""

from __future__ import annotations

import os

from .grpc_transport import AsyncGrpcTransport, GrpcTransport
from .operations import Operations
from .retry import RECONNECT_S
from .tls import Tls
from .transport import AsyncTransport, Transport


class Connection:
    """A client's connection to one server.

    Attributes:
        address: The server's address, as it was given.
        timeout: Maximum seconds of an operation, or None.
        operations: The operations on its objects.
        closed: True after `close`.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        reconnect_s: float | None = RECONNECT_S,
    ) -> None:
        """See `connect`."""
        if not isinstance(address, str):
            raise TypeError(f"an address is a str such as 'localhost:7070', not {type(address).__name__}")
        if tls is not None and not isinstance(tls, Tls):
            raise TypeError(f"tls= takes dw.Tls(ca=...), not {type(tls).__name__}")
        if tls is not None and (tls.key is None) != (tls.cert is None):
            raise ValueError("Tls needs both cert= and key=, or neither")
        if token is not None and not (token and token.isascii() and token.isprintable()):
            stripped = "it ends with a line break" if token.strip() != token else "it has other characters"
            raise ValueError(f"a token must be printable ASCII: {stripped if token else 'it is empty'}")
        if reconnect_s is not None and not reconnect_s >= 0:
            raise ValueError(f"reconnect_s must be None or not negative, not {reconnect_s}")
        self.address = address
        self.timeout = timeout
        self.closed = False
        target, secure = _target(address)
        self._process = _claim_process()
        self._transport = GrpcTransport(address, target, Tls() if tls is None and secure else tls, token)
        self.operations = Operations(reconnect_s)

    @property
    def transport(self) -> Transport:
        """The transport of a blocking client."""
        return self._transport

    def async_transport(self) -> AsyncTransport:
        """Return a transport for an event loop, over the same connections."""
        return AsyncGrpcTransport(self._transport)

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process that made this connection."""
        return self._process != os.getpid()

    def check_process(self) -> None:
        """Refuse to work in a forked child: gRPC's threads do not exist there, and a call would hang."""
        if self.is_inherited:
            raise RuntimeError("this client was made before a fork: make a new one in the child process")

    def check_usable(self) -> None:
        """Refuse to work in a forked child, and after `close`."""
        self.check_process()
        if self.closed:
            raise ValueError("this client is closed")

    def __repr__(self) -> str:
        return f"{self.address!r}{', closed' if self.closed else ''}"


def _target(address: str) -> tuple[str, bool]:
    """Return the address in gRPC's form, and True if it asks for TLS."""
    port = address.rpartition(":")[2].rstrip("/")
    if port.isascii() and port.isdigit() and not 0 < int(port) <= 65535:
        raise ValueError(f"{address!r}: a port is a number from 1 to 65535")
    scheme, separator, rest = address.partition("://")
    if separator and scheme in ("grpc", "grpcs") and rest:
        return rest.rstrip("/"), scheme == "grpcs"
    if ":" not in address or (separator and scheme not in ("dns", "unix")):
        raise ValueError(f"{address!r} is neither host:port nor unix:/path, nor a grpc:// or grpcs:// URL")
    return address, False


# The process that used gRPC through this module first.
_first_process: int | None = None


def _claim_process() -> int:
    """Return this process's id.

    Raises:
        RuntimeError: The process was forked from one that used gRPC, and would hang.
    """
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


class Connected:
    """The part of a client, blocking or not, that tells of its connection."""

    _connection: Connection

    @property
    def address(self) -> str:
        """The server's address, as it was given."""
        return self._connection.address

    @property
    def timeout(self) -> float | None:
        """Maximum seconds that one operation may take, or None."""
        return self._connection.timeout

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._connection.closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._connection!r}>"
