"""What all calls have in common: authentication, limits, statuses and threads.

A transport hands a call over as a `Call` and gets an `Answer`. Nothing here depends on the transport or on tensors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from dlpack_wire.errors import DecodeError

from .auth import Authorizer, Caller, Credentials
from .metrics import Metrics
from .status import Refusal, StalledError, Status, status_of

_LONG = ("Publish", "Subscribe")
"""Calls that go on until either side ends them."""

STALL_S = 60.0
"""Seconds that a caller may take to send the rest of what it began, or to take a message: a phone may lose its network
for half a minute."""

SHORT_STALL_S = 1.0
"""The same when memory is short: what holds memory must then move."""

REQUEST_S = 10.0
"""Seconds that a request has to come in whole: 4 MiB over 4 Mbit/s."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Call(Protocol):
    """One call, as a transport hands it over.

    Attributes:
        credentials: What the caller has shown.
    """

    @property
    def credentials(self) -> Credentials:
        """What the caller has shown."""

    async def read(self) -> bytes | None:
        """Return the next request of a stream, or None after the last one.

        Raises:
            CallerGoneError: The connection is lost.
        """

    async def write(self, message: bytes) -> None:
        """Send a response of a stream; wait while the caller does not read.

        Raises:
            CallerGoneError: The connection is lost.
        """


class CallerGoneError(Exception):
    """The caller has cancelled the call or is gone: nobody waits for an answer."""


class Answer(NamedTuple):
    """How a call ended.

    Attributes:
        response: The response of a call that has one; else empty.
        status: What went wrong, or None.
    """

    response: bytes
    status: Status | None


class CallLimits(NamedTuple):
    """How many calls one caller may run at the same time.

    Attributes:
        calls: Calls other than Publish and Subscribe; and, counted apart, as many of Publish.
        subscriptions: Subscriptions.
    """

    calls: int = 1000
    subscriptions: int = 10_000


class _Wait:
    """One wait of a call for its caller.

    Attributes:
        since_s: Monotonic time at which it began.
        seconds: How long it may last.
        is_over: True once it was ended because it lasted too long.
    """

    __slots__ = ("is_over", "seconds", "since_s")

    def __init__(self, seconds: float) -> None:
        self.since_s = time.monotonic()
        self.seconds = seconds
        self.is_over = False

    def end(self, task: asyncio.Task[Any]) -> None:
        """End it, by an error in the task that waits."""
        self.is_over = True
        task.cancel()


class Calls:
    """The calls that are running.

    Attributes:
        stalled_count: Calls that were ended because a message did not come, or was not taken.
    """

    def __init__(self, authorizer: Authorizer, metrics: Metrics, limits: CallLimits, on_disk: bool) -> None:
        """Begin without any.

        Args:
            authorizer: Tells who calls.
            metrics: Counts calls.
            limits: How many calls one caller may run.
            on_disk: True if quick work may wait for a disk.
        """
        self.stalled_count = 0
        self._on_disk = on_disk
        self._authorizer = authorizer
        self._metrics = metrics
        self._limits = limits
        self._running: Counter[tuple[str, str]] = Counter()
        self._reading: dict[asyncio.Task[Any], _Wait] = {}
        self._sending: dict[asyncio.Task[Any], _Wait] = {}
        self._brief_count = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._threads = ThreadPoolExecutor(thread_name_prefix="dlpack-wire")
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="dlpack-wire-parser")

    async def answer(self, method: str, call: Call, run: Callable[[Caller], Awaitable[bytes | None]]) -> Answer:
        """Let the caller in, run the call, and turn what it raises into a status."""
        owner = ""
        counted: tuple[str, str] | None = None
        code = "CANCELLED"
        begun = self._metrics.begin(method)
        brief = method not in _LONG
        if brief:
            self._brief_count += 1
            self._quiet.clear()
        try:
            caller = self._authorizer.caller(call)
            owner = caller.owner
            counted = self._count(method, owner)
            response = await run(caller)
            code = "OK"
            return Answer(response or b"", None)
        except CallerGoneError:
            return Answer(b"", None)
        except Exception as error:
            status = status_of(error)
            code = status.code
            if status.reason == "INTERNAL":
                _log.exception("%s of %s failed", method, owner)
            else:
                _log.debug("%s of %s: %s: %s", method, owner, status.reason, status.text)
            return Answer(b"", status)
        finally:
            self._metrics.end(method, begun, code)
            if brief:
                self._brief_count -= 1
                if not self._brief_count:
                    self._quiet.set()
            if counted is not None:
                self._running[counted] -= 1
                if not self._running[counted]:
                    del self._running[counted]

    def _count(self, method: str, owner: str) -> tuple[str, str]:
        """Count one more call of a caller; long ones apart, so that they do not keep others out.

        Raises:
            Refusal: TOO_MANY_REQUESTS, if the caller has as many calls as it may.
        """
        brief = method not in _LONG
        key = owner, "" if brief else method
        limit = self._limits.subscriptions if method == "Subscribe" else self._limits.calls
        if self._running[key] >= limit:
            what = "calls" if brief else f"calls of {method}"
            raise Refusal("TOO_MANY_REQUESTS", f"{limit} {what} by {owner} run already")
        self._running[key] += 1
        return key

    async def request(self, call: Call) -> bytes:
        """Read the request of a call that has one.

        Raises:
            DecodeError: The stream ends without one.
            Refusal: UPLOAD_INCOMPLETE, if it does not come in time.
        """
        request = await self.read(call, REQUEST_S)
        if request is None:
            raise DecodeError("a call without a request")
        return request

    async def read(self, call: Call, seconds: float) -> bytes | None:
        """Return the next request of a stream, or None after the last one.

        Raises:
            Refusal: UPLOAD_INCOMPLETE, if it does not come in time.
        """
        task = asyncio.current_task()
        assert task is not None
        # Not `wait_for`, which makes a task for each message: that takes as long as the rest of a small call.
        wait = self._reading[task] = _Wait(seconds)
        try:
            return await call.read()
        except asyncio.CancelledError:
            if not wait.is_over:
                raise
        finally:
            del self._reading[task]
        raise Refusal("UPLOAD_INCOMPLETE", f"nothing more came for {seconds:g} s")

    async def write(self, call: Call, message: bytes) -> None:
        """Send a response of a stream.

        Raises:
            StalledError: The caller does not take it in time. gRPC sends the status behind the message: without one,
                a caller that reads again would wait for ever.
        """
        task = asyncio.current_task()
        assert task is not None
        wait = self._sending[task] = _Wait(STALL_S)
        try:
            await call.write(message)
            return
        except asyncio.CancelledError:
            if not wait.is_over:
                raise
        finally:
            del self._sending[task]
        raise StalledError(f"a message was not taken for {time.monotonic() - wait.since_s:.0f} s")

    def sweep(self) -> None:
        """End the calls that have waited too long for their callers."""
        now = time.monotonic()
        for task, wait in self._reading.items():
            if now - wait.since_s > wait.seconds and not wait.is_over:
                wait.end(task)
                self.stalled_count += 1
        self.end_stalled(STALL_S)

    def end_stalled(self, seconds: float) -> int:
        """End the calls whose message has not been taken for so many seconds, and return their number."""
        late = time.monotonic() - seconds
        stalled = [task for task, wait in self._sending.items() if wait.since_s < late and not wait.is_over]
        for task in stalled:
            self._sending[task].end(task)
        self.stalled_count += len(stalled)
        return len(stalled)

    def watch(self, caller: Caller, call: Call) -> PermissionWatch:
        """Return a watch of the permissions that a caller has now."""
        return PermissionWatch(self._authorizer, caller, call)

    async def run(self, quick: bool, work: Callable[..., _T], *args: Any) -> _T:
        """Do work: in the event loop if it is quick and waits for no disk, else in a thread."""
        if quick and not self._on_disk:
            return work(*args)
        return await self.in_thread(work, *args)

    async def parse(self, quick: bool, work: Callable[..., _T], *args: Any) -> _T:
        """Do work of Python alone: in the event loop if it is quick, else in the one thread for such work.

        A thread that runs Python holds up the event loop until its turn is over. With several, it waits for all of
        them.
        """
        return work(*args) if quick else await self._in(self._parser, work, *args)

    async def in_thread(self, work: Callable[..., _T], *args: Any) -> _T:
        """Do work in a thread. When cancelled, first wait for the thread to let go of what it works on."""
        return await self._in(self._threads, work, *args)

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[..., _T], *args: Any) -> _T:
        future = asyncio.get_running_loop().run_in_executor(threads, work, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        finally:
            del future  # break the cycle future -> exception -> traceback -> this frame, which would keep `args` alive

    async def quiet(self, seconds: float) -> None:
        """Wait until no brief call is running, for at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)

    def close(self) -> None:
        """Wait for the threads."""
        self._threads.shutdown()
        self._parser.shutdown()


class PermissionWatch:
    """Ends a long call when its caller's permissions do."""

    def __init__(self, authorizer: Authorizer, caller: Caller, call: Call) -> None:
        """Watch the permissions that a caller has now."""
        self._caller = caller
        self._authorizer = authorizer
        self._call = call
        self._version = authorizer.version

    def check(self) -> Caller:
        """Return the caller, whose permissions have not changed.

        Raises:
            Refusal: UNAUTHENTICATED: they have.
        """
        if self._authorizer.version != self._version:
            self._version = self._authorizer.version
            if self._authorizer.still(self._call) != self._caller:
                raise Refusal("UNAUTHENTICATED", "the permissions of this token have changed: call again")
        return self._caller


async def finished(task: asyncio.Future[Any]) -> None:
    """Wait for the end of a task, whatever its result."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio does not report it as never retrieved
