"""Topics as scripts without I/O: publishing frames over one call, and receiving them by subscription."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ..errors import DecodeError, EncodeError, RemoteError
from ..message.codec import source_of
from ..message.names import Metadata, Value, encode_name
from ..tensor.memory import empty_aligned
from ..tensor.tensor import Tensor, from_payload
from ..v1 import tensor_service_pb2 as pb
from .arrival import Stage
from .frames import FrameHead, frame_arrival, frame_fields, frame_metadata, parse_frame, publish_messages
from .messages import Chunk, parse
from .operations import SENT_CHUNK_BYTES, Operations
from .retry import RECONNECT_S, Backoff, may_pass
from .script import Cancel, IsOpen, Next, Open, RestartClock, Script, Send

Policy = Literal["latest", "drop_oldest", "reliable"]
"""What happens when a subscriber does not keep up: it gets the newest frame of each topic; the oldest frames queued for
it are dropped and counted; or its subscription ends with an error."""

_POLICIES: dict[str, pb.DeliveryPolicy] = {
    "latest": pb.DELIVERY_POLICY_LATEST,
    "drop_oldest": pb.DELIVERY_POLICY_DROP_OLDEST,
    "reliable": pb.DELIVERY_POLICY_RELIABLE,
}
assert _POLICIES.keys() == set(get_args(Policy))

_MAX_KNOWN_TOPICS = 1 << 16
"""Topics whose last sequence a subscription remembers: as many as a server keeps."""


class Frame(NamedTuple):
    """One tensor at one moment on a topic.

    Attributes:
        topic: The topic it was published on.
        sequence: Its number on the topic, from 1; numbers start anew when the server does.
        time_ns: When it was made, nanoseconds since 1970-01-01 UTC.
        metadata: Its user metadata.
        dropped_count: Frames of the topic that were dropped for this subscriber right before this one.
        is_retained: True if it is from before the subscription: the topic's newest frame at that time.
        tensor: The tensor.
    """

    topic: str
    sequence: int
    time_ns: int
    metadata: dict[str, Value]
    dropped_count: int
    is_retained: bool
    tensor: Tensor


class Publishing:
    """The sending of frames onto one topic, over one call that stays open between them.

    Attributes:
        topic: The topic.
        subscriber_count: How many subscribers will get the frame that was sent last.
    """

    def __init__(self, operations: Operations, topic: str) -> None:
        """Check the topic.

        Raises:
            EncodeError: The topic is malformed: not 1 to 4096 bytes of UTF-8 without NUL and `*`.
        """
        encode_name(topic)
        if "*" in topic:
            raise EncodeError(f"topic {topic!r} contains `*`, which only patterns may", field="name")
        self.topic = topic
        self.subscriber_count = 0
        self._operations = operations
        self._begun = False

    def send(self, x: Any, metadata: Metadata | None, time_ns: int | None) -> Script[int]:
        """Send one frame and return its sequence."""
        serialized = frame_metadata(metadata)
        with source_of(x) as source:
            fields = frame_fields(self.topic, 0, time_ns or 0, serialized, source.header)
            if not (yield IsOpen()):
                # A lost server may come back within seconds; nothing of this frame has been sent yet.
                if self._begun:
                    yield from self._operations.awaited()
                yield Open("Publish", ends=False)
                self._begun = True
            try:
                for number, message in enumerate(publish_messages(fields, source, SENT_CHUNK_BYTES)):
                    if number and not (yield IsOpen()):
                        break  # refused: `Next` tells why, and the rest need not be sent
                    yield Send(message)
                raw = yield Next()
            except BaseException:
                yield Cancel()
                raise
        if raw is None:
            yield Cancel()
            raise RemoteError("the server ended the call without a reason", code="UNKNOWN")
        response, _, _ = parse(pb.PublishResponse, raw)
        self.subscriber_count = response.subscriber_count
        return response.last_sequence


class Subscribing:
    """The receiving of frames, over one call at a time.

    A lost connection is mended if the server comes back in time; frames missed meanwhile are counted as dropped, unless
    the server has restarted. With "reliable" a missed frame or a restart is an error.

    Attributes:
        instance_id: 32 hex digits that identify the running server; sequences start anew with another one.
        may_go_on: True after a lost connection that was not mended in time: `next` tries anew.
    """

    def __init__(
        self,
        patterns: str | Sequence[str],
        policy: Policy,
        queue_frame_count: int,
        queue_bytes: int,
        skip_retained: bool,
        reconnect_s: float | None = RECONNECT_S,
    ) -> None:
        """Check what is asked for; see `Client.subscribe` and `connect`.

        Raises:
            EncodeError: A pattern is malformed, or there is none.
            ValueError: The policy is unknown, or a bound of the queue is negative.
        """
        if policy not in _POLICIES:
            raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
        given = [patterns] if isinstance(patterns, str) else list(patterns)
        if not given:
            raise EncodeError("no pattern was given", field="patterns")
        for pattern in given:
            encode_name(pattern)
            if "*" in pattern[:-1]:
                raise EncodeError(f"pattern {pattern!r} contains `*` before its end", field="patterns")
        if queue_frame_count < 0 or queue_bytes < 0:
            raise ValueError(f"{queue_frame_count=} and {queue_bytes=}: neither may be negative")
        self.instance_id = ""
        self._policy = policy
        self._request = pb.SubscribeRequest(
            patterns=given,
            policy=_POLICIES[policy],
            queue_frame_count=queue_frame_count,
            queue_bytes=queue_bytes,
            skip_retained=skip_retained,
        ).SerializeToString()
        self.may_go_on = False
        self._backoff = Backoff(reconnect_s)
        self._is_live = False
        self._is_resumed = False
        self._sequences: dict[str, int] = {}
        self._frame: _ArrivingFrame | None = None

    def open(self) -> Script[None]:
        """Subscribe, and wait until frames are being queued."""
        yield Open("Subscribe", self._request, ends=False)
        self._frame = None
        raw = yield Next()
        response, _, _ = parse_frame(pb.SubscribeResponse, raw if raw is not None else b"")
        if not response.HasField("start"):
            raise DecodeError("missing from the first message", field="start")
        if response.start.instance_id != self.instance_id:
            if self._policy == "reliable" and self.instance_id:
                text = "the server has restarted and forgotten its frames: some may be lost"
                raise RemoteError(text, code="DATA_LOSS")
            self.instance_id = response.start.instance_id
            self._sequences.clear()

    def next(self) -> Script[Frame | None]:
        """Wait for the next frame and return it, or None if the server ended the subscription in good order."""
        if self.may_go_on:
            yield from self._mend(None)
        while True:
            try:
                raw = yield Next(endless=True)
            except RemoteError as error:
                yield from self._mend(error)
                continue
            if raw is None:
                return None
            frame = self._take(raw)
            if frame is not None:
                return frame

    def _mend(self, error: RemoteError | None) -> Script[None]:
        """Subscribe again after an error that may pass; None: after the last attempt was given up."""
        self.may_go_on = False
        if error is not None and error.reason == "SHUTTING_DOWN" and self._policy == "reliable":
            raise error  # it will have forgotten its frames
        while True:
            if error is not None:
                try:
                    pause = self._backoff.pause(error)
                except RemoteError:
                    self.may_go_on = may_pass(error)
                    self._backoff.progress()
                    raise
                yield pause
            yield RestartClock()
            try:
                yield from self.open()
            except RemoteError as another:
                error = another
            else:
                self._is_resumed = True
                return

    def _take(self, raw: bytes) -> Frame | None:
        """Take in one message; return the frame that it completes, if that is a new one."""
        response, head, chunk = parse_frame(pb.SubscribeResponse, raw)
        self._backoff.progress()
        if response.caught_up:
            self._is_live = True
        if head is not None:
            if self._frame is not None:
                raise DecodeError("a frame came before the one before it was whole", field="frame")
            self._frame = _ArrivingFrame(head)
        if chunk is not None:
            if self._frame is None:
                raise DecodeError("a chunk came without a frame", field="chunk")
            self._frame.take(chunk)
        if self._frame is None or not self._frame.complete:
            return None
        done, self._frame = self._frame, None
        return self._numbered(done)

    def _numbered(self, done: _ArrivingFrame) -> Frame | None:
        """Return the frame with what was missed before it; None if it was delivered before the connection was lost."""
        head = done.head
        last = self._sequences.get(head.topic)
        if self._policy == "reliable":
            # A topic that was not there before the connection was lost begins with 1.
            expected = last + 1 if last is not None else 1 if self._is_resumed else head.sequence
            if head.sequence > expected:
                text = f"frames {expected} to {head.sequence - 1} were lost with the connection"
                raise RemoteError(f"topic {head.topic!r}: {text}", code="DATA_LOSS")
        dropped_count = head.dropped_count
        if last is not None:
            if head.sequence <= last:
                return None
            dropped_count = max(dropped_count, head.sequence - last - 1)
        elif len(self._sequences) >= _MAX_KNOWN_TOPICS:
            self._sequences.clear()
        self._sequences[head.topic] = head.sequence
        return Frame(
            topic=head.topic,
            sequence=head.sequence,
            time_ns=head.time_ns,
            metadata=head.metadata,
            dropped_count=dropped_count,
            is_retained=not self._is_live,
            tensor=done.tensor(),
        )


class _ArrivingFrame:
    """A frame being received into memory of its own."""

    def __init__(self, head: FrameHead) -> None:
        self.head = head
        self._arrival = frame_arrival(head)
        self._array = empty_aligned(head.header.payload_bytes)

    @property
    def complete(self) -> bool:
        return self._arrival.stage is Stage.COMPLETE

    def take(self, chunk: Chunk) -> None:
        self._arrival.chunk(chunk)
        self._array[chunk.offset : chunk.offset + len(chunk.data)] = np.frombuffer(chunk.data, np.uint8)

    def tensor(self) -> Tensor:
        return from_payload(self.head.header, None, self._array, 0)
