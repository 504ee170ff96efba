"""Publishing frames on topics and subscribing to them, over the calls of a blocking client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, get_args

import grpc
import numpy as np

from ..errors import DecodeError, EncodeError, RemoteError
from ..message.codec import source_of
from ..message.names import Metadata, Value, encode_name
from ..tensor.memory import empty_aligned
from ..tensor.tensor import Tensor, from_payload
from ..v1 import tensor_service_pb2 as pb
from .arrival import Stage
from .connection import FAREWELL_S, Clock
from .frames import FrameHead, frame_arrival, frame_fields, frame_metadata, parse_frame, publish_messages
from .messages import Chunk, parse
from .operations import CHUNK_BYTES, Patience

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


class Frame(NamedTuple):
    """One tensor at one moment on a topic.

    Attributes:
        topic: Where it was published.
        sequence: Its number on the topic, from 1; numbers start anew when the server does.
        time_ns: When it was made, nanoseconds since 1970-01-01 UTC.
        metadata: Its user metadata.
        dropped_count: Frames of the topic that were dropped for this subscriber right before this one.
        is_retained: Whether it is from before the subscription: the topic's newest at that time.
        tensor: The tensor.
    """

    topic: str
    sequence: int
    time_ns: int
    metadata: dict[str, Value]
    dropped_count: int
    is_retained: bool
    tensor: Tensor


class Caller(Protocol):
    """What is needed of a client.

    Attributes:
        timeout: Most seconds of an operation, or None.
        closed: Whether it was closed.
        metadata: What is sent along with every call.
    """

    timeout: float | None
    closed: bool
    metadata: tuple[tuple[str, str], ...]

    def call(self, kind: str, method: str) -> Any:
        """The channel's callable for a method."""

    def check_usable(self) -> None:
        """Refuse to work after `close` and in another process."""

    def check_process(self) -> None:
        """Refuse to work in another process."""

    def await_server(self) -> None:
        """Wait until the server answers, as long as it is waited for after a lost connection."""

    def error(self, error: Any) -> RemoteError:
        """What this package raises for an error of gRPC's."""


class Publisher:
    """Sends frames onto one topic. May be used by several threads.

    Attributes:
        topic: The topic.
        subscriber_count: How many will get the frame that was sent last.

    Memory:
        Of a tensor being sent a few chunks are copied at a time. It may be changed as soon as `send` has returned.
    """

    def __init__(self, client: Caller, topic: str) -> None:
        """See `Client.publisher`."""
        encode_name(topic)
        if "*" in topic:
            raise EncodeError(f"topic {topic!r} has a `*`, as only patterns do", field="name")
        self.topic = topic
        self.subscriber_count = 0
        self._client = client
        self._lock = threading.Lock()
        self._call: _PublishCall | None = None
        self._begun = False
        self._closed = False

    def send(self, x: Any, *, metadata: Metadata | None = None, time_ns: int | None = None) -> int:
        """Send a tensor, and wait until the server has it.

        Args:
            x: Anything that `encode` takes.
            metadata: User metadata of the frame.
            time_ns: When it was made, nanoseconds since 1970-01-01 UTC; None: now, by the server's clock.

        Returns:
            The frame's sequence: its number on the topic.

        Raises:
            EncodeError: The tensor or metadata cannot go on the wire.
            RemoteError: The server refused the frame, or was lost while it was being sent: whether it was accepted is
                then unknown. The next `send` waits for the server to come back, some seconds at most.
            ValueError: This publisher or its client is closed.
        """
        self._client.check_usable()
        if self._closed:
            raise ValueError("this publisher is closed")
        serialized = frame_metadata(metadata)
        with source_of(x) as source, self._lock:
            fields = frame_fields(self.topic, 0, time_ns or 0, serialized, source.header)
            if self._call is None or not self._call.is_active():
                # A lost server may come back within seconds; nothing of this frame has been sent yet.
                if self._begun:
                    self._client.await_server()
                self._call = _PublishCall(self._client)
                self._begun = True
            try:
                response = self._call.send(publish_messages(fields, source, CHUNK_BYTES), self._client.timeout)
            except BaseException:
                call, self._call = self._call, None
                call.cancel()
                raise
        self.subscriber_count = response.subscriber_count
        return response.last_sequence

    def close(self) -> None:
        """End the call. Every frame whose `send` returned is with the server."""
        with self._lock:
            self._closed = True
            call, self._call = self._call, None
            if call is not None:
                call.end()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _PublishCall:
    """A running Publish. Its requests are handed to gRPC's thread one by one."""

    def __init__(self, client: Caller) -> None:
        self._client = client
        self._outbox = outbox = queue.Queue[bytes | None](2)
        self._call = client.call("stream_stream", "Publish")(iter(outbox.get, None), metadata=client.metadata)

        def wake() -> None:
            # gRPC's thread that waits for requests does not notice by itself that the call has ended.
            with suppress(queue.Full):  # then it is not waiting
                outbox.put_nowait(None)

        if not self._call.add_callback(wake):
            wake()

    def send(self, messages: Iterator[bytes], timeout: float | None) -> pb.PublishResponse:
        """Send one frame and wait for the answer to it."""
        clock = Clock(timeout)
        for message in messages:
            while not self._put(message, clock.cut(0.1)):
                clock.left()
        with _cancelled_after(clock.left(), self._call):
            try:
                raw = next(self._call, None)
            except grpc.RpcError as error:
                clock.left()
                raise self._client.error(error) from None
        if raw is None:
            raise RemoteError("the server ended the call without a reason", code="UNKNOWN")
        return parse(pb.PublishResponse, raw)[0]

    def _put(self, message: bytes, wait_s: float) -> bool:
        """Hand a message over; also when nobody takes it any more, since the answer will say why."""
        try:
            self._outbox.put(message, timeout=wait_s)
        except queue.Full:
            return not self._call.is_active()
        return True

    def is_active(self) -> bool:
        """Whether another frame can be sent."""
        return bool(self._call.is_active())

    def cancel(self) -> None:
        """End it at once."""
        self._call.cancel()

    def end(self) -> None:
        """End it in good order."""
        with suppress(queue.Full, grpc.RpcError), _cancelled_after(FAREWELL_S, self._call):
            self._outbox.put(None, timeout=FAREWELL_S)
            next(self._call, None)


@contextmanager
def _cancelled_after(seconds: float | None, call: Any) -> Iterator[None]:
    """Cancel a call that takes longer: gRPC knows deadlines of whole calls only."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, call.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Subscription:
    """Frames of topics, one by one. Iterating ends with `close`, also when another thread calls it.

    A lost connection is mended as long as the server comes back within seconds; frames missed meanwhile are counted as
    dropped, unless the server has restarted. With "reliable" it is an error.

    Attributes:
        instance_id: 32 hex digits that identify the running server; sequences start anew with another one.
    """

    def __init__(
        self,
        client: Caller,
        patterns: str | Sequence[str],
        policy: Policy,
        queue_frame_count: int,
        queue_bytes: int,
        skip_retained: bool,
    ) -> None:
        """See `Client.subscribe`."""
        if policy not in _POLICIES:
            raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
        given = [patterns] if isinstance(patterns, str) else list(patterns)
        if not given:
            raise EncodeError("no pattern was given", field="patterns")
        for pattern in given:
            encode_name(pattern)
            if "*" in pattern[:-1]:
                raise EncodeError(f"pattern {pattern!r} has a `*` that is not its end", field="patterns")
        if queue_frame_count < 0 or queue_bytes < 0:
            raise ValueError(f"{queue_frame_count=} and {queue_bytes=}: neither may be negative")
        self.instance_id = ""
        self._client = client
        self._policy = policy
        self._request = pb.SubscribeRequest(
            patterns=given,
            policy=_POLICIES[policy],
            queue_frame_count=queue_frame_count,
            queue_bytes=queue_bytes,
            skip_retained=skip_retained,
        )
        self._patience = Patience()
        self._is_live = False
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._sequences: dict[str, int] = {}
        self._frame: _FrameDownload | None = None
        client.check_usable()
        self._open()

    def _open(self) -> None:
        """Call, and wait until frames are being queued."""
        clock = Clock(self._client.timeout)
        call = self._client.call("unary_stream", "Subscribe")
        self._call = call(self._request.SerializeToString(), metadata=self._client.metadata)
        self._frame = None
        if self._closed.is_set():  # by another thread, which cancelled the call before this one
            self._call.cancel()
        with _cancelled_after(clock.left(), self._call):
            try:
                raw = next(self._call, None)
            except grpc.RpcError as error:
                clock.left()
                raise self._client.error(error) from None
        response, _, _ = parse_frame(pb.SubscribeResponse, raw if raw is not None else b"")
        if not response.HasField("start"):
            raise DecodeError("missing from the first message", field="start")
        if response.start.instance_id != self.instance_id:
            self.instance_id = response.start.instance_id
            self._sequences.clear()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Frame:
        """Wait for the next frame.

        Raises:
            StopIteration: It was closed.
            RemoteError: The server ended it (RESOURCE_EXHAUSTED: "reliable" and too slow), or was lost; from then on
                this is raised again.
            DecodeError: What came is no frame.
        """
        self._client.check_process()
        if self._failure is not None and not self._closed.is_set():
            raise self._failure
        try:
            while not self._closed.is_set():
                try:
                    for raw in self._call:
                        frame = self._take(raw)
                        if frame is not None:
                            return frame
                    break
                except grpc.RpcError as error:
                    if self._closed.is_set() or self._client.closed:
                        break
                    self._mend(self._client.error(error))
        except BaseException as error:
            self._call.cancel()
            if isinstance(error, Exception):
                self._failure = error
            raise
        raise StopIteration

    def _mend(self, error: RemoteError) -> None:
        """Subscribe again after an error, if that may help."""
        if self._policy == "reliable":
            raise error
        while not self._closed.wait(self._patience.pause(error).seconds):
            if self._client.closed:
                self._closed.set()
                break
            try:
                self._open()
                break
            except RemoteError as another:
                error = another

    def _take(self, raw: bytes) -> Frame | None:
        """One message; returns the frame that it makes whole, if it is a new one."""
        response, head, chunk = parse_frame(pb.SubscribeResponse, raw)
        self._patience.progress()
        if response.caught_up:
            self._is_live = True
        if head is not None:
            if self._frame is not None:
                raise DecodeError("a frame came before the one before it was whole", field="frame")
            self._frame = _FrameDownload(head)
        if chunk is not None:
            if self._frame is None:
                raise DecodeError("a chunk came without a frame", field="chunk")
            self._frame.take(chunk)
        if self._frame is None or not self._frame.complete:
            return None
        done, self._frame = self._frame, None
        return self._number(done)

    def _number(self, done: _FrameDownload) -> Frame | None:
        """The frame, unless it came before the connection was lost."""
        head = done.head
        last = self._sequences.get(head.topic)
        dropped_count = head.dropped_count
        if last is not None:
            if head.sequence <= last:
                return None
            dropped_count = max(dropped_count, head.sequence - last - 1)
        elif len(self._sequences) >= _MAX_KNOWN_TOPICS:
            self._sequences.clear()
        self._sequences[head.topic] = head.sequence
        retained = not self._is_live
        return Frame(head.topic, head.sequence, head.time_ns, head.metadata, dropped_count, retained, done.tensor())

    def close(self) -> None:
        """End it."""
        self._closed.set()
        self._call.cancel()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _FrameDownload:
    """A frame being received."""

    def __init__(self, head: FrameHead) -> None:
        self.head = head
        self._arrival = frame_arrival(head, sums_required=False)
        self._array = empty_aligned(head.header.payload_bytes)

    @property
    def complete(self) -> bool:
        return self._arrival.stage is Stage.COMPLETE

    def take(self, piece: Chunk) -> None:
        self._arrival.chunk(piece)
        self._array[piece.offset : piece.offset + len(piece.data)] = np.frombuffer(piece.data, np.uint8)

    def tensor(self) -> Tensor:
        return from_payload(self.head.header, None, self._array, 0)
