"""The interface between a client's operations and the network.

An operation is a script (see `operations`). A driver runs a script and makes its calls through a transport. A second
way to reach a server is another pair of classes with these methods, chosen by `connection.py`.

Every method raises `RemoteError` for a status of the server and for a connection that cannot be made or is lost.
Timeouts are in seconds; None waits for as long as the connection lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

REASON_KEY = "dlpack-wire-reason"
"""Trailing metadata in which a server states an `ErrorReason`."""


class Stream(Protocol):
    """A running call with a stream of responses, and a stream of requests if it was opened without one."""

    def send(self, message: bytes, timeout: float | None) -> None:
        """Send a request. Do nothing if the call has ended: `next` tells why."""

    def next(self, timeout: float | None) -> bytes | None:
        """Return the next response, or None after the last one."""

    def is_open(self) -> bool:
        """Return True while another request can be sent."""

    def finish(self, timeout: float) -> None:
        """Send the end of the requests and wait for the server's end. Errors are ignored."""

    def cancel(self) -> None:
        """End the call at once. May be called from any thread, and more than once."""


class Transport(Protocol):
    """Makes the calls of a blocking client. Used by several threads at the same time."""

    def unary(self, method: str, request: bytes, timeout: float | None) -> bytes:
        """Make a call and return its response."""

    def send_all(self, method: str, requests: Iterator[bytes], timeout: float | None) -> bytes:
        """Make a call with a stream of requests and return its response.

        The iterator may be consumed in another thread, and not to its end if the call ends before.
        """

    def open(self, method: str, request: bytes | None, timeout: float | None) -> Stream:
        """Start a call with a stream of responses."""

    def notify(self, method: str, request: bytes) -> None:
        """Make a call, and do not wait for the answer."""

    def close(self) -> None:
        """Wait a moment for calls made by `notify`, then end all calls."""


class AsyncStream(Protocol):
    """As `Stream`, for one event loop."""

    async def send(self, message: bytes, timeout: float | None) -> None:
        """Send a request. Do nothing if the call has ended: `next` tells why."""

    async def next(self, timeout: float | None) -> bytes | None:
        """Return the next response, or None after the last one. After a cancelled wait, return the same response."""

    def is_open(self) -> bool:
        """Return True while another request can be sent."""

    async def finish(self, timeout: float) -> None:
        """Send the end of the requests and wait for the server's end. Errors are ignored."""

    def cancel(self) -> None:
        """End the call at once."""


class AsyncTransport(Protocol):
    """As `Transport`, for one event loop."""

    async def unary(self, method: str, request: bytes, timeout: float | None) -> bytes:
        """Make a call and return its response."""

    async def send_all(self, method: str, requests: Iterator[bytes], timeout: float | None) -> bytes:
        """Make a call with a stream of requests and return its response. The iterator is consumed outside the loop."""

    async def open(self, method: str, request: bytes | None, timeout: float | None) -> AsyncStream:
        """Start a call with a stream of responses."""

    def notify(self, method: str, request: bytes) -> None:
        """Make a call, and do not wait for the answer."""

    async def close(self) -> None:
        """Wait a moment for calls made by `notify`, then end all calls."""
