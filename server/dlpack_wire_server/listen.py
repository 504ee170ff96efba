"""Addresses to listen on: splitting, checking and claiming them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator

UNIX = "unix:"


class AddressError(Exception):
    """An address cannot be listened on."""


class NoAddressError(AddressError):
    """The address is malformed, or contradicts the other options."""


def split(address: str) -> tuple[str, int]:
    """Split `host:port` into host and port; IPv6 hosts stand in brackets.

    Raises:
        AddressError: The address has another form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise NoAddressError(f"{address!r} is neither host:port nor unix:/path")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_private(address: str) -> bool:
    """Return True if no other machine can reach an address."""
    if address.startswith(UNIX):
        return True
    host, _ = split(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_free(address: str) -> None:
    """Refuse an address that cannot be bound. gRPC itself does not tell why it failed.

    Raises:
        AddressError: The address is in use, not one of this machine's, or not allowed.
    """
    host, port = split(address)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        raise AddressError(f"cannot listen on {address}: {error.strerror or error}") from None


@contextlib.contextmanager
def claim_unix(path: str) -> Iterator[None]:
    """Hold the right to listen at a path: a dead server's socket is removed, a live one's is never taken.

    The right is a lock on a file beside the socket; it ends with the process that holds it.

    Raises:
        AddressError: Another server has the path, or it is not a socket.
    """
    try:
        lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AddressError(f"cannot listen on {path}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AddressError(f"cannot listen on {path}: {os.strerror(errno.EADDRINUSE)}") from None
        _remove_dead(path)
        yield
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.unlink(path + ".lock")
    finally:
        os.close(lock)


def _remove_dead(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"cannot listen on {path}: it exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass
    raise AddressError(f"cannot listen on {path}: {os.strerror(errno.EADDRINUSE)}")
