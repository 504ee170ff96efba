"""The commands of a script: what an operation asks its driver to do.

An operation is a generator. It yields one of these commands, is sent the answer or thrown the `RemoteError`, and
returns its result. Nothing in it knows a socket, a thread or an event loop, so that one script serves a blocking and
an asynchronous client over every transport, and a test without any network.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")


class Unary(NamedTuple):
    """Make a call. The answer is its response."""

    method: str
    request: bytes


class SendAll(NamedTuple):
    """Make a call with a stream of requests. The answer is its response."""

    method: str
    requests: Iterator[bytes]


class Open(NamedTuple):
    """Start a call with a stream of responses, in place of the one that is open.

    Attributes:
        method: The method.
        request: Its request; None if requests follow one by one (`Send`).
        ends: False if the call may go on for longer than the script's time.
    """

    method: str
    request: bytes | None = None
    ends: bool = True


class IsOpen(NamedTuple):
    """Ask whether a call is open on which `Send` can send. The answer is a bool."""


class Send(NamedTuple):
    """Send the next request of the open call."""

    message: bytes


class Next(NamedTuple):
    """Wait for the next response of the open call. The answer is the response, or None after the last one.

    Attributes:
        endless: True if the wait is not limited by the script's time: a frame may never come.
    """

    endless: bool = False


class Cancel(NamedTuple):
    """End the open call at once."""


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class RestartClock(NamedTuple):
    """Reset the deadline: what follows counts as an operation of its own."""


class Notify(NamedTuple):
    """Make a call, and do not wait for the answer."""

    method: str
    request: bytes


Command = Unary | SendAll | Open | IsOpen | Send | Next | Cancel | Pause | RestartClock | Notify
Script = Generator[Command, Any, _T]
