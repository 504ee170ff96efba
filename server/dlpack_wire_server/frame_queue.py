"""The queue of one subscriber: frames, their bounds, and what is dropped when it does not keep up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from dlpack_wire.v1 import tensor_service_pb2 as pb

from .auth import Caller
from .kept_frame import KeptFrame
from .status import Refusal

MAX_FRAME_BYTES = 256 << 20
"""Maximum payload bytes of a frame: an 8K image in float32 with four channels fits."""

QUEUE_FRAMES, MAX_QUEUE_FRAMES = 64, 4096
"""Default and maximum queue length, in frames."""

QUEUE_BYTES, MAX_QUEUE_BYTES = 64 << 20, MAX_FRAME_BYTES
"""Default and maximum queue size, in bytes."""

_PATIENCE_S = 2.0
"""Seconds that a failed subscriber has to read the message being sent, and then the reason of its failure."""

_LATEST = (pb.DELIVERY_POLICY_UNSPECIFIED, pb.DELIVERY_POLICY_LATEST)


class Bounds(NamedTuple):
    """The bounds of one queue. A single frame may be larger.

    Attributes:
        frame_count: Frames.
        queue_bytes: Bytes of them.
    """

    frame_count: int
    queue_bytes: int


def bounds(request: pb.SubscribeRequest) -> Bounds:
    """Return the bounds in force for a request. LATEST keeps one frame a topic, so it may keep many topics."""
    usual = MAX_QUEUE_FRAMES if request.policy in _LATEST else QUEUE_FRAMES
    return Bounds(
        min(request.queue_frame_count or usual, MAX_QUEUE_FRAMES),
        min(request.queue_bytes or QUEUE_BYTES, MAX_QUEUE_BYTES),
    )


class Retained(Protocol):
    """A topic's newest frame.

    Attributes:
        newest: The frame, or None if it was given up.
    """

    newest: KeptFrame | None


_SLICE_TOPICS = 256
"""Topics passed over before other calls have their turn."""


class FrameQueue:
    """The queue of one subscriber.

        policy        queue                      when it is full
        LATEST        a topic's newest frame     the frame of the topic that waits longest is dropped
        DROP_OLDEST   frames in order            the oldest is dropped
        RELIABLE      frames in order            the subscription ends

    Attributes:
        caller: Who subscribed.
        bounds: Of the queue.
        queued_bytes: Of the frames in it.
        exact: Topics subscribed to.
        prefixes: Prefixes of topics subscribed to.
        writing_since_s: Monotonic time since which the message being sent waits to be taken; None if none is.
    """

    def __init__(
        self, request: pb.SubscribeRequest, caller: Caller, end: Callable[[], object], dropped: Callable[[int], None]
    ) -> None:
        """Begin with an empty queue.

        Args:
            request: The subscription's request.
            caller: Who subscribes.
            end: Called to end the call, also when it is stuck.
            dropped: Called with the number of frames that were dropped.
        """
        self.caller = caller
        self.bounds = bounds(request)
        self.queued_bytes = 0
        self.exact = {p for p in request.patterns if not p.endswith("*")}
        self.prefixes = {p[:-1] for p in request.patterns if p.endswith("*")}
        self.writing_since_s: float | None = None
        self._latest = request.policy in _LATEST
        self._reliable = request.policy == pb.DELIVERY_POLICY_RELIABLE
        self._end = end
        self._tell_dropped = dropped
        self._queue: OrderedDict[object, KeptFrame] = OrderedDict()
        self._dropped: Counter[str] = Counter()
        self._retained: Iterator[Retained] = iter(())
        self._last_serial = 0
        self._caught_up = False
        self._failure: tuple[str, str] | None = None
        self._ready = asyncio.Event()

    def begin_with(self, retained: Iterator[Retained], last_serial: int) -> None:
        """Send the newest frames of these topics first, those that the caller may read.

        Args:
            retained: The topics, found as they are asked for.
            last_serial: Serial of the newest frame of all.
        """
        self._retained = retained
        self._last_serial = last_serial

    def offer(self, frame: KeptFrame) -> None:
        """Queue a new frame."""
        if self._failure is not None:
            return
        key: object = frame.topic if self._latest else frame
        replaced = self._queue.get(key)
        if replaced is not None:
            self.queued_bytes -= replaced.size
            self._drop(replaced)
        self._queue[key] = frame
        self.queued_bytes += frame.size
        if self._reliable and self._is_over():
            # This frame is the first that is lost: what came before it is still sent, and then the error.
            self._queue.popitem()
            self.queued_bytes -= frame.size
            self._tell_dropped(1)
            held = f"{len(self._queue)} frames of {self.queued_bytes} bytes are queued and one more came"
            count, size = self.bounds
            self._failure = (
                "SUBSCRIBER_TOO_SLOW",
                f"a RELIABLE subscriber fell behind: {held}; queue_frame_count is {count}, queue_bytes {size}",
            )
        while self._is_over():
            self._drop_oldest()
        self._ready.set()

    def _is_over(self) -> bool:
        count = len(self._queue)
        return count > self.bounds.frame_count or (count > 1 and self.queued_bytes > self.bounds.queue_bytes)

    def _drop_oldest(self) -> None:
        _, frame = self._queue.popitem(last=False)
        self.queued_bytes -= frame.size
        self._drop(frame)

    def _drop(self, frame: KeptFrame) -> None:
        self._dropped[frame.topic] += 1
        self._tell_dropped(1)

    def shed(self) -> bool:
        """Free memory: drop the older half of the queue, or end a RELIABLE subscription; True if there were frames."""
        count = (len(self._queue) + 1) // 2
        if count and self._reliable:
            self.fail("SUBSCRIBER_TOO_SLOW", f"{len(self._queue)} frames are queued, and memory for frames is full")
        else:
            for _ in range(count):
                self._drop_oldest()
        return count > 0

    @property
    def failed(self) -> bool:
        """True if no frame will be queued any more."""
        return self._failure is not None

    def require_open(self) -> None:
        """Raise the refusal by which the subscription has ended, if it has."""
        if self._failure is not None:
            raise Refusal(*self._failure)

    def fail(self, reason: str, text: str, at_once: bool = False) -> None:
        """End the subscription with a refusal. Queued frames are not sent any more.

        Args:
            reason: Reason of the refusal.
            text: Its text.
            at_once: Do not wait for the message being sent. Otherwise that is given up only if the client does not read
                it soon. Either way a client that reads again gets the refusal.
        """
        if self._failure is None:
            self._failure = reason, text
        self._tell_dropped(len(self._queue))
        self._queue.clear()
        self._retained = iter(())
        self.queued_bytes = 0
        self._ready.set()
        if at_once:
            self._cut()
        elif self.writing_since_s is not None:
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._cut)

    def _cut(self) -> None:
        if self.writing_since_s is not None:
            self._end()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Note the time at which the sending of a message begins and ends."""
        self.writing_since_s = time.monotonic()
        try:
            yield
        finally:
            self.writing_since_s = None

    async def next(self) -> tuple[KeptFrame | None, int]:
        """Wait for the next frame; returns it and how many of its topic were dropped right before it.

        The frame is None once, after the retained frames: those that follow were published after the subscription.

        Raises:
            Refusal: The subscription has ended.
        """
        while True:
            for passed, topic in enumerate(self._retained, 1):
                frame = topic.newest
                # Otherwise a newer one is queued by now, or it was given up.
                if frame is not None and frame.serial <= self._last_serial and self.caller.may_read(frame.topic):
                    return frame, 0
                if passed % _SLICE_TOPICS == 0:
                    await asyncio.sleep(0)
            if not self._caught_up and self._failure is None:
                self._caught_up = True
                return None, 0
            if self._queue:
                _, frame = self._queue.popitem(last=False)
                self.queued_bytes -= frame.size
                return frame, self._dropped.pop(frame.topic, 0)
            self.require_open()
            self._ready.clear()
            await self._ready.wait()
