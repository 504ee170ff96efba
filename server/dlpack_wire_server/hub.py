"""Topics: hands each frame to every subscriber of its topic, at the pace that each can keep.

Everything here happens in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from dlpack_wire.errors import DecodeError, LimitError
from dlpack_wire.message.names import encode_name
from dlpack_wire.service.frames import FrameHead
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .auth import Caller
from .budget import Budget
from .calls import SHORT_STALL_S
from .frame_queue import MAX_FRAME_BYTES, FrameQueue
from .kept_frame import OVERHEAD_BYTES, Intake
from .status import Refusal
from .topic_table import MAX_TOPICS, TopicTable

MAX_PATTERNS = 1000
"""Maximum number of patterns of a subscription: each costs a look-up in `publish`."""

MAX_PATTERN_BYTES = 64 << 10
"""Maximum bytes of all patterns of a subscription, which are kept for as long as it lasts."""

_FULL_PAUSE_S = 0.02
"""Seconds between looks for memory that somebody released: a frame of 6 MB takes about as long to send."""

_SLICE_FRAMES = 256
"""Retained frames given up at a time. With more, other calls would wait for milliseconds."""

_CLOSED = "the server is shutting down"


class Hub:
    """All topics and subscriptions.

    Attributes:
        budget: Bytes of all frames that are kept: coming in, queued, being sent, and the newest of each topic.
        frame_count: Frames published so far.
        dropped_count: Frames dropped so far, for each subscriber that did not get one.
        closed: True after `close`.
        subscriptions: All subscriptions.
    """

    def __init__(self, limit_bytes: int, max_subscribers: int, max_topics: int = MAX_TOPICS) -> None:
        """Begin without topics.

        Args:
            limit_bytes: Maximum bytes of all frames that are kept.
            max_subscribers: Maximum number of subscriptions.
            max_topics: Maximum number of topics. Past them, those that nobody uses are forgotten.
        """
        self.budget = Budget(limit_bytes, what="--max-topic-bytes")
        self.frame_count = 0
        self.dropped_count = 0
        self.closed = False
        self.subscriptions: dict[FrameQueue, None] = {}  # a set that keeps the order
        self._max_subscribers = max_subscribers
        self._topics = TopicTable(max_topics)
        self._by_topic: dict[str, dict[FrameQueue, None]] = {}
        self._by_prefix: dict[str, dict[FrameQueue, None]] = {}
        self._prefix_sizes: Counter[int] = Counter()
        self._incoming: Counter[str] = Counter()

    @property
    def topic_count(self) -> int:
        """Number of topics."""
        return len(self._topics)

    @property
    def max_frame_bytes(self) -> int:
        """Maximum payload bytes of a frame, whose head takes some more of the memory for frames."""
        return min(MAX_FRAME_BYTES, self.budget.limit)

    def require_open(self) -> None:
        """Refuse with SHUTTING_DOWN what comes after `close`."""
        if self.closed:
            raise Refusal("SHUTTING_DOWN", _CLOSED)

    def close(self) -> None:
        """End all subscriptions, and take no more frames."""
        self.closed = True
        for subscription in list(self.subscriptions):
            self.end(subscription, "SHUTTING_DOWN", _CLOSED)

    # --- memory -------------------------------------------------------------------------------------------------------

    async def reserve(self, intake: Intake, size: int, owner: str) -> None:
        """Reserve bytes for a frame that is arriving.

        Frees memory in this order: (1) the retained frame of the same topic; (2) the older half of every queue, and
        RELIABLE subscriptions that have frames queued; (3) other retained frames; (4) subscriptions whose client has
        stopped reading.

        Raises:
            Refusal: STORE_FULL, or TOO_MANY_REQUESTS if a caller has several unfinished frames that would
                together exceed half of the budget.
        """
        incoming = self._incoming[owner] + size
        if incoming > self.budget.limit // 2 and incoming > intake.size + size:
            text = (
                f"unfinished frames of {owner} would take {incoming} bytes of {self.budget.limit} (--max-topic-bytes)"
            )
            raise Refusal("TOO_MANY_REQUESTS", text)
        deadline_s = time.monotonic() + 1.5 * SHORT_STALL_S
        while True:
            try:
                self.budget.reserve(size)
                break
            except Refusal as refusal:
                full = refusal
            if self._free_memory(intake.topic, self.budget.used + size - self.budget.limit):
                await asyncio.sleep(0)
                continue
            self.end_stalled(SHORT_STALL_S)
            if time.monotonic() > deadline_s:
                raise full
            await asyncio.sleep(_FULL_PAUSE_S)
        intake.size += size
        self._incoming[owner] += size

    def _free_memory(self, name: str, missing_bytes: int) -> bool:
        """Give up some frames; return True if there were any."""
        if self._topics.give_up(name):
            return True
        shed = [self._shed(subscription) for subscription in list(self.subscriptions)]  # all of them, not the first
        return any(shed) or self._topics.give_up_oldest(_SLICE_FRAMES, missing_bytes)

    def _shed(self, subscription: FrameQueue) -> bool:
        shed = subscription.shed()
        if subscription.failed:
            self.unsubscribe(subscription)
        return shed

    def end_stalled(self, seconds: float) -> None:
        """End subscriptions that have not taken a message for so many seconds."""
        late = time.monotonic() - seconds
        for subscription in list(self.subscriptions):
            if subscription.writing_since_s is not None and subscription.writing_since_s < late:
                text = f"a message was not taken for over {seconds:g} s"
                self.end(subscription, "SUBSCRIBER_TOO_SLOW", text, at_once=True)

    # --- publishers ---------------------------------------------------------------------------------------------------

    def intake(self, head: FrameHead, metadata: bytes, owner: str) -> Intake:
        """Begin to take a frame in. Its bytes have to be reserved; `drop` returns them if it does not become whole.

        Args:
            head: The frame; its own `metadata` is ignored.
            metadata: Its metadata, serialized.
            owner: Who publishes it.

        Raises:
            DecodeError: The topic contains `*`, as only patterns may.
            Refusal: SHUTTING_DOWN, OBJECT_TOO_LARGE, or TOO_MANY_REQUESTS for one topic too many.
        """
        self.require_open()
        if "*" in head.topic:
            raise DecodeError(f"topic {head.topic[:64]!r} contains `*`, which only patterns may", field="name")
        limit = max(0, min(self.max_frame_bytes, self.budget.limit - overhead(head.topic, metadata)))
        if head.header.payload_bytes > limit:
            size = head.header.payload_bytes
            raise Refusal(
                "OBJECT_TOO_LARGE", f"{size} bytes of a frame; at most {limit} (--max-topic-bytes) are allowed"
            )
        self._topics.make_space(head.topic, owner, lambda name: next(self._wanting(name), None) is not None)
        return Intake(head, metadata)

    def drop(self, intake: Intake, owner: str) -> None:
        """Return the bytes of a frame that does not become whole."""
        self.budget.release(intake.size)
        self._no_longer_incoming(intake.size, owner)
        intake.size = 0

    def _no_longer_incoming(self, size: int, owner: str) -> None:
        self._incoming[owner] -= size
        if not self._incoming[owner]:
            del self._incoming[owner]

    def publish(self, intake: Intake, owner: str) -> tuple[int, int]:
        """Hand a whole frame to its subscribers; return its sequence and their number."""
        size = intake.size
        sequence = self._topics.next_sequence(intake.topic)
        frame = intake.finish(sequence, self.frame_count + 1, self.budget)
        self._no_longer_incoming(size, owner)
        self._topics.retain(frame, owner)
        self.frame_count += 1
        count = 0
        for subscription in list(self._wanting(intake.topic)):
            subscription.offer(frame)
            if subscription.failed:
                self._no_longer_wanting(subscription)  # what is queued is still sent
            count += 1
        return sequence, count

    def _wanting(self, name: str) -> Iterator[FrameQueue]:
        """Return the subscriptions that get the frames of a topic, each once."""
        found: dict[FrameQueue, None] = dict(self._by_topic.get(name, ()))
        for size in self._prefix_sizes:
            if size <= len(name):
                found.update(self._by_prefix.get(name[:size], ()))
        return (subscription for subscription in found if subscription.caller.may_read(name))

    # --- subscribers --------------------------------------------------------------------------------------------------

    def subscribe(self, request: pb.SubscribeRequest, caller: Caller, end: Callable[[], object]) -> FrameQueue:
        """Begin to queue frames for a subscriber; `unsubscribe` ends that.

        Args:
            request: The request.
            caller: Who subscribes. Of a prefix's topics it gets those that it may read.
            end: Called to end the call, also when it is stuck.

        Raises:
            EncodeError: A pattern is malformed.
            DecodeError: The patterns are too many, or the policy is unknown.
            Refusal: SHUTTING_DOWN, TOO_MANY_SUBSCRIBERS, or PERMISSION_DENIED for a topic named in full.
        """
        self.require_open()
        _check_patterns(request.patterns, caller)
        if request.policy not in pb.DeliveryPolicy.values():
            raise DecodeError(f"{request.policy} is an unknown delivery policy", field="policy")
        if len(self.subscriptions) >= self._max_subscribers:
            text = f"{len(self.subscriptions)} subscriptions (--max-subscribers) are open"
            raise Refusal("TOO_MANY_SUBSCRIBERS", text)
        made = FrameQueue(request, caller, end, self._count_dropped)
        self.subscriptions[made] = None
        for topic in made.exact:
            self._by_topic.setdefault(topic, {})[made] = None
        for prefix in made.prefixes:
            self._by_prefix.setdefault(prefix, {})[made] = None
            self._prefix_sizes[len(prefix)] += 1
        if not request.skip_retained:
            topics = self._topics.matching(list(made.exact), list(made.prefixes))
            made.begin_with(topics, self.frame_count)
        return made

    def _count_dropped(self, count: int) -> None:
        self.dropped_count += count

    def end(self, subscription: FrameQueue, reason: str, text: str, at_once: bool = False) -> None:
        """End a subscription by a refusal; see `FrameQueue.fail`."""
        subscription.fail(reason, text, at_once)
        self.unsubscribe(subscription)

    def unsubscribe(self, subscription: FrameQueue) -> None:
        """Stop queueing frames."""
        if subscription in self.subscriptions:
            del self.subscriptions[subscription]
            self._no_longer_wanting(subscription)

    def _no_longer_wanting(self, subscription: FrameQueue) -> None:
        """Stop delivering new frames to it."""
        for topic in subscription.exact:
            _remove(self._by_topic, topic, subscription)
        for prefix in subscription.prefixes:
            _remove(self._by_prefix, prefix, subscription)
            self._prefix_sizes[len(prefix)] -= 1
            if not self._prefix_sizes[len(prefix)]:
                del self._prefix_sizes[len(prefix)]
        subscription.exact, subscription.prefixes = set(), set()


def overhead(topic: str, metadata: bytes) -> int:
    """Return the bytes that a frame takes beyond its payload, about."""
    return OVERHEAD_BYTES + len(topic) + len(metadata)


def _remove(index: dict[str, dict[FrameQueue, None]], key: str, subscription: FrameQueue) -> None:
    del index[key][subscription]
    if not index[key]:
        del index[key]


def _check_patterns(patterns: Sequence[str], caller: Caller) -> None:
    if not 0 < len(patterns) <= MAX_PATTERNS:
        raise DecodeError(f"{len(patterns)} patterns; 1 to {MAX_PATTERNS} are allowed", field="patterns")
    size = sum(len(encode_name(pattern)) for pattern in patterns)
    if size > MAX_PATTERN_BYTES:
        text = f"{size} bytes; at most {MAX_PATTERN_BYTES} are allowed"
        raise LimitError(text, declared=size, limit=MAX_PATTERN_BYTES, field="patterns")
    for pattern in patterns:
        if "*" in pattern[:-1]:
            raise DecodeError(f"pattern {pattern[:64]!r} contains `*` before its end", field="patterns")
        caller.require_pattern(pattern)
