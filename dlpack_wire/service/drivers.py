"""The two drivers of scripts: one blocks its thread, the other runs in an event loop.

Both do what the commands of a script ask for, within the script's time, and hand the answer or the error back to it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import RemoteError
from .script import Cancel, Command, IsOpen, Next, Notify, Open, Pause, RestartClock, Script, Send, SendAll, Unary
from .transport import AsyncStream, AsyncTransport, Stream, Transport

_T = TypeVar("_T")

LONG_STEP_BYTES = 256 << 10
"""Responses from this size on are taken in by a thread, outside the event loop: hashing and copying one of 1 MiB takes
about 0.2 ms, handing it to a thread and back about 0.1 ms."""

FAREWELL_S = 2.0
"""Seconds that `close` waits for calls whose answers are not used: a few round trips on a slow network."""


class Clock:
    """The time that an operation has left."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = time.monotonic() + timeout if timeout is not None else None

    def left(self) -> float | None:
        """Return the seconds until the deadline, or None if there is no deadline.

        Raises:
            RemoteError: The deadline has passed (DEADLINE_EXCEEDED).
        """
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RemoteError("the operation took longer than its timeout", code="DEADLINE_EXCEEDED")
        return left

    def cut(self, seconds: float) -> float:
        """Return a time to wait that does not go beyond the deadline."""
        left = self.left()
        return seconds if left is None else min(seconds, left)


def cancelled() -> RemoteError:
    """Return the error of a call that this side has cancelled."""
    return RemoteError("the call was cancelled", code="CANCELLED")


class Driver:
    """Runs scripts in the calling thread. A stream that a script leaves open stays open for the next script."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stream: Stream | None = None
        self._stream_ends = False  # True if the open call has its own deadline
        self._stopped = threading.Event()

    def run(self, script: Script[_T], timeout: float | None) -> _T:
        """Run a script to its end.

        Args:
            script: The operation.
            timeout: Seconds that it may take, waits for frames apart.
        """
        clock = Clock(timeout)
        try:
            command = next(script)
            while True:
                try:
                    if isinstance(command, RestartClock):
                        clock, answer = Clock(timeout), None
                    else:
                        answer = self._do(command, clock)
                except BaseException as error:
                    command = script.throw(error)
                else:
                    command = script.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result

    def _do(self, command: Command, clock: Clock) -> Any:
        if isinstance(command, Unary):
            return self._transport.unary(command.method, command.request, clock.left())
        if isinstance(command, Next):
            return self._running().next(None if command.endless or self._stream_ends else clock.left())
        if isinstance(command, SendAll):
            return self._transport.send_all(command.method, command.requests, clock.left())
        if isinstance(command, Send):
            return self._running().send(command.message, clock.left())
        if isinstance(command, Open):
            self.end()
            self._stream_ends = command.ends
            self._stream = self._transport.open(command.method, command.request, clock.left() if command.ends else None)
            if self._stopped.is_set():  # by another thread, which cancelled the stream before this one
                self._stream.cancel()
            return None
        if isinstance(command, Pause):
            if self._stopped.wait(clock.cut(command.seconds)):
                raise cancelled()
            return None
        if isinstance(command, Notify):
            return self._transport.notify(command.method, command.request)
        if isinstance(command, IsOpen):
            return self._stream is not None and self._stream.is_open()
        assert isinstance(command, Cancel)
        return self.end()

    def _running(self) -> Stream:
        if self._stream is None:
            raise cancelled()
        return self._stream

    def finish(self) -> None:
        """End the open stream in good order."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.finish(FAREWELL_S)

    def end(self) -> None:
        """Cancel the open stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def stop(self) -> None:
        """Make a script that another thread runs fail with CANCELLED, and every later one too."""
        self._stopped.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()


class AsyncDriver:
    """Runs scripts in an event loop. A stream that a script leaves open stays open for the next script.

    Attributes:
        unclaimed: Results of scripts that ended just as their caller was cancelled.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self.unclaimed: list[Any] = []
        self._transport = transport
        self._stream: AsyncStream | None = None
        self._stream_ends = False  # True if the open call has its own deadline

    async def run(self, script: Script[_T], timeout: float | None) -> _T:
        """Run a script to its end; see `Driver.run`. When cancelled, the script may still send a farewell."""
        clock = Clock(timeout)
        resume: Callable[[Any], Command] = script.send
        value: Any = None
        while True:
            try:
                done, outcome = await self._step(resume, value)
            except asyncio.CancelledError as error:
                done, outcome = _resumed(script.throw, error)
            if done:
                result: _T = outcome
                return result
            try:
                if isinstance(outcome, RestartClock):
                    clock, value = Clock(timeout), None
                else:
                    value = await self._do(outcome, clock)
                resume = script.send
            except BaseException as error:
                resume, value = script.throw, error

    async def _step(self, resume: Callable[[Any], Command], value: Any) -> tuple[bool, Any]:
        """Resume a script with an answer; return (True, its result) at its end, else (False, its next command)."""
        if not isinstance(value, bytes) or len(value) < LONG_STEP_BYTES:
            return _resumed(resume, value)
        future = asyncio.get_running_loop().run_in_executor(None, _resumed, resume, value)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])  # the script can be thrown into between its steps only
            if future.exception() is None and future.result()[0]:
                self.unclaimed.append(future.result()[1])
            raise

    async def _do(self, command: Command, clock: Clock) -> Any:
        if isinstance(command, Unary):
            return await self._transport.unary(command.method, command.request, clock.left())
        if isinstance(command, Next):
            return await self._running().next(None if command.endless or self._stream_ends else clock.left())
        if isinstance(command, SendAll):
            return await self._transport.send_all(command.method, command.requests, clock.left())
        if isinstance(command, Send):
            return await self._running().send(command.message, clock.left())
        if isinstance(command, Open):
            self.end()
            self._stream_ends = command.ends
            left = clock.left() if command.ends else None
            self._stream = await self._transport.open(command.method, command.request, left)
            return None
        if isinstance(command, Pause):
            return await asyncio.sleep(clock.cut(command.seconds))
        if isinstance(command, Notify):
            return self._transport.notify(command.method, command.request)
        if isinstance(command, IsOpen):
            return self._stream is not None and self._stream.is_open()
        assert isinstance(command, Cancel)
        return self.end()

    def _running(self) -> AsyncStream:
        if self._stream is None:
            raise cancelled()
        return self._stream

    async def finish(self) -> None:
        """End the open stream in good order."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.finish(FAREWELL_S)

    def end(self) -> None:
        """Cancel the open stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()


def _resumed(resume: Callable[[Any], Command], value: Any) -> tuple[bool, Any]:
    try:
        return False, resume(value)
    except StopIteration as done:  # which no future can carry
        return True, done.value
