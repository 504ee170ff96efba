"""What is queued for whom, what is dropped, and how much memory that takes; without a network."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dlpack_wire_server import frame_queue
from dlpack_wire_server.auth import Caller
from dlpack_wire_server.budget import Budget
from dlpack_wire_server.frame_queue import MAX_FRAME_BYTES, MAX_QUEUE_FRAMES, QUEUE_FRAMES, FrameQueue
from dlpack_wire_server.hub import Hub, overhead
from dlpack_wire_server.kept_frame import KeptFrame
from dlpack_wire_server.status import Refusal

import dlpack_wire as dw
from dlpack_wire.errors import ChecksumError, WireError
from dlpack_wire.message.reading import from_message
from dlpack_wire.service.frames import FrameHead, frame_arrival, parse_frame
from dlpack_wire.service.messages import Chunk
from dlpack_wire.tensor.checksum import block_sums, payload_sum
from dlpack_wire.v1 import tensor_service_pb2 as pb

LOOP = asyncio.new_event_loop()
run = LOOP.run_until_complete
ANYBODY = Caller("anybody", ("",), ("",))
LATEST, DROP_OLDEST, RELIABLE = 1, 2, 3
KIB = 1 << 10


def head_of(x: np.ndarray[Any, Any], topic: str = "t") -> FrameHead:
    return FrameHead(topic, 0, 5, {}, 0, from_message(dw.to_proto(x)))


def publish(hub: Hub, topic: str = "t", size: int = 1000, value: int = 0, part: int = 1 << 20) -> int:
    """Publish bytes in chunks; returns the sequence."""
    x = np.full(size, value, np.uint8)
    intake = hub.intake(head_of(x, topic), b"", "me")
    try:
        run(hub.reserve(intake, overhead(topic, b""), "me"))
        for begin in range(0, size, part):
            data = memoryview(x[begin : begin + part])
            piece = Chunk(0, begin, block_sums(data), data)
            run(hub.reserve(intake, len(piece.data), "me"))
            intake.take(piece)
        return hub.publish(intake, "me")[0]
    finally:
        hub.drop(intake, "me")


def publish_whole(hub: Hub, topic: str = "t") -> None:
    """Publish an empty frame, which needs no room."""
    hub.publish(hub.intake(head_of(np.empty(0, np.uint8), topic), b"", "me"), "me")


def subscribe(hub: Hub, *patterns: str, policy: int = DROP_OLDEST, caller: Caller = ANYBODY, **more: Any) -> FrameQueue:
    return hub.subscribe(pb.SubscribeRequest(patterns=patterns or ("*",), policy=policy, **more), caller, lambda: None)


def queued(subscription: FrameQueue) -> list[tuple[str, int, int] | None]:
    """Topic, sequence and dropped count of all that is there to be sent; None where it caught up."""

    async def drain() -> list[tuple[str, int, int] | None]:
        found: list[tuple[str, int, int] | None] = []
        while True:
            try:
                frame, dropped = await asyncio.wait_for(subscription.next(), 0.02)
            except asyncio.TimeoutError:
                return found
            found.append(None if frame is None else (frame.topic, frame.sequence, dropped))

    return run(drain())


@pytest.fixture(scope="module", autouse=True)
def _closed_loop() -> Iterator[None]:
    yield
    LOOP.close()


@pytest.fixture
def hub() -> Hub:
    return Hub(1 << 30, 100)


# --- policies ---------------------------------------------------------------------------------------------------------


def test_latest_keeps_one_frame_of_each_topic(hub: Hub) -> None:
    s = subscribe(hub, policy=LATEST)
    for topic in "abab":
        publish(hub, topic)
    publish(hub, "a")
    assert queued(s) == [None, ("a", 3, 2), ("b", 2, 1)]
    publish(hub, "a")
    assert queued(s) == [("a", 4, 0)]
    assert hub.dropped_count == 3


def test_latest_has_room_for_many_topics(hub: Hub) -> None:
    s = subscribe(hub, policy=0)
    for i in range(QUEUE_FRAMES * 3):
        publish(hub, f"{i}", 10)
    assert len(queued(s)) == QUEUE_FRAMES * 3 + 1


def test_drop_oldest_keeps_the_newest_and_counts_the_others_by_topic(hub: Hub) -> None:
    s = subscribe(hub, queue_frame_count=3)
    for topic in "ababbb":
        publish(hub, topic)
    assert queued(s) == [None, ("b", 2, 1), ("b", 3, 0), ("b", 4, 0)]
    publish(hub, "a")
    assert queued(s) == [("a", 3, 2)]


def test_queues_are_bounded_in_bytes_too(hub: Hub) -> None:
    for policy in (LATEST, DROP_OLDEST):
        s = subscribe(hub, "x*", policy=policy, queue_bytes=100 * KIB, skip_retained=True)
        for i in range(10):
            publish(hub, f"x{i}", 30 * KIB)
            assert s.queued_bytes <= 100 * KIB
        assert len(queued(s)) == 4
        publish(hub, "x", 500 * KIB)
        publish(hub, "x0", 500 * KIB)  # a single frame may be larger than the queue
        assert [f and f[0] for f in queued(s)] == ["x0"]
        assert s.queued_bytes == 0
        hub.unsubscribe(s)


def test_reliable_gets_everything_or_an_error(hub: Hub) -> None:
    s = subscribe(hub, policy=RELIABLE, queue_frame_count=3)
    for _ in range(3):
        publish(hub)
    assert queued(s) == [None, ("t", 1, 0), ("t", 2, 0), ("t", 3, 0)]
    for _ in range(5):
        publish(hub)
    # What came before the first frame that is lost is still sent.
    assert [run(s.next())[0].sequence for _ in range(3)] == [4, 5, 6]  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(
            Refusal, match=r"3 frames .* are queued and one more came; queue_frame_count is 3"
        ) as caught:
            queued(s)
        assert caught.value.reason == "SUBSCRIBER_TOO_SLOW"
    assert (s.queued_bytes, hub.dropped_count) == (0, 1)


def test_one_slow_subscriber_takes_nothing_from_another(hub: Hub) -> None:
    slow, quick = subscribe(hub, queue_frame_count=2), subscribe(hub, queue_frame_count=100)
    for _ in range(50):
        publish(hub)
    assert [f and f[1:] for f in queued(slow)] == [None, (49, 48), (50, 0)]
    assert [f and f[1:] for f in queued(quick)] == [None, *((i, 0) for i in range(1, 51))]


def test_bounds_in_force(hub: Hub) -> None:
    assert subscribe(hub).bounds == (QUEUE_FRAMES, 64 << 20)
    assert subscribe(hub, policy=LATEST).bounds == (MAX_QUEUE_FRAMES, 64 << 20)
    assert subscribe(hub, queue_frame_count=1 << 40, queue_bytes=1 << 60).bounds == (MAX_QUEUE_FRAMES, MAX_FRAME_BYTES)
    assert subscribe(hub, queue_frame_count=1, queue_bytes=1).bounds == (1, 1)


# --- which topics -----------------------------------------------------------------------------------------------------


def test_patterns(hub: Hub) -> None:
    wanted = {
        ("cam/left",): {"cam/left"},
        ("cam/*",): {"cam/left", "cam/x/y", "cam/"},
        ("*",): {"cam/left", "cam/x/y", "cam/", "map"},
        ("cam/x/y", "map"): {"cam/x/y", "map"},
        ("cam/*", "cam/left", "c*"): {"cam/left", "cam/x/y", "cam/"},
        ("other",): set(),
    }
    before = {patterns: subscribe(hub, *patterns) for patterns in wanted}
    for topic in ("cam/left", "cam/x/y", "cam/", "map"):
        publish(hub, topic)
    after = {patterns: subscribe(hub, *patterns) for patterns in wanted}
    for subscriptions in (before, after):
        for patterns, topics in wanted.items():
            found = [f[0] for f in queued(subscriptions[patterns]) if f is not None]
            assert (len(found), set(found)) == (len(topics), topics)


def test_only_what_the_caller_may_read(hub: Hub) -> None:
    robot = Caller("robot", ("cam/",), ())
    publish(hub, "secret")
    s = subscribe(hub, "*", "c*", caller=robot)
    for topic in ("cam/left", "camera", "secret"):
        publish(hub, topic)
    assert queued(s) == [None, ("cam/left", 1, 0)]
    for pattern in ("secret", "model/*", "cap*"):  # none of whose topics may be read
        with pytest.raises(Refusal) as caught:
            subscribe(hub, "*", pattern, caller=robot)
        assert caught.value.reason == "PERMISSION_DENIED"
    for pattern in ("*", "c*", "cam/*", "cam/left/*"):
        subscribe(hub, pattern, caller=robot)


def test_retained_frames_come_first_unless_replaced_or_not_wanted(hub: Hub) -> None:
    publish(hub, "a")
    for _ in range(3):
        publish(hub, "b")
    s, skipping = subscribe(hub), subscribe(hub, skip_retained=True)
    publish(hub, "b")
    assert queued(s) == [("a", 1, 0), None, ("b", 4, 0)]
    assert queued(skipping) == [None, ("b", 4, 0)]


@pytest.mark.parametrize("patterns", [[], [""], ["a\0"], ["*a"], ["a**"], ["cam/*/x"], ["a"] * 1001, ["x" * 4097]])
def test_patterns_that_are_none(hub: Hub, patterns: list[str]) -> None:
    with pytest.raises(WireError):
        hub.subscribe(pb.SubscribeRequest(patterns=patterns), ANYBODY, lambda: None)
    assert len(hub.subscriptions) == 0


def test_topics_that_are_none(hub: Hub) -> None:
    for topic in ("cam/*", "*", "a*b"):
        with pytest.raises(dw.DecodeError, match="contains `"):
            publish(hub, topic)
    head = head_of(np.empty(0, np.uint8))
    head = head._replace(header=head.header._replace(shape=(MAX_FRAME_BYTES + 1,), payload_bytes=MAX_FRAME_BYTES + 1))
    with pytest.raises(Refusal, match="--max-topic-bytes") as caught:
        hub.intake(head, b"", "me")
    assert caught.value.reason == "OBJECT_TOO_LARGE"


# --- memory -----------------------------------------------------------------------------------------------------------


def test_all_space_is_given_back(hub: Hub) -> None:
    s = subscribe(hub, policy=LATEST)
    for i in range(10):
        publish(hub, "t", 300 * KIB, i)
    assert 300 * KIB < hub.budget.used < 310 * KIB  # the newest one, kept once
    queued(s)
    publish(hub, "t", 10)
    gc.collect()
    assert hub.budget.used < 2 * KIB

    x = np.zeros(100 * KIB, np.uint8)
    intake = hub.intake(head_of(x), b"", "me")
    run(hub.reserve(intake, 1000, "me"))
    with pytest.raises(ChecksumError):
        intake.take(Chunk(0, 0, bytes(8), memoryview(x)))
    assert hub.budget.used >= 2000
    hub.drop(intake, "me")
    hub.drop(intake, "me")
    assert hub.budget.used < 2 * KIB
    damaged = head_of(np.empty(0, np.uint8))
    with pytest.raises(ChecksumError):
        hub.intake(damaged._replace(header=damaged.header._replace(checksum=1)), b"", "me")


def test_short_of_memory_those_who_are_behind_give_up_what_they_have_not_got() -> None:
    hub = Hub(1000 * KIB, 10)
    slow = [subscribe(hub) for _ in range(3)]
    reliable = subscribe(hub, policy=RELIABLE)
    quick = subscribe(hub)
    for i in range(30):
        publish(hub, "t", 90 * KIB)
        assert queued(quick)[-1] == ("t", i + 1, 0)
        assert hub.budget.used <= 1000 * KIB
    for s in slow:
        found = [f for f in queued(s) if f is not None]
        assert found[-1][1] == 30
        assert len(found) + sum(f[2] for f in found) == 30
    with pytest.raises(Refusal, match="memory for frames is full"):
        queued(reliable)
    for i in range(30):  # the frames that were kept for later subscribers go before a publisher is refused
        publish(hub, f"kept {i}", 90 * KIB)
        assert hub.budget.used <= 1000 * KIB
    late = subscribe(hub)
    assert [f[0] for f in queued(late) if f is not None] == [f"kept {i}" for i in range(20, 30)]


def test_what_is_being_sent_cannot_be_given_up_but_those_who_do_not_take_it_can() -> None:
    hub = Hub(1000 * KIB, 10)
    ended: list[int] = []
    held: list[Any] = []
    for i in range(10):
        s = hub.subscribe(pb.SubscribeRequest(patterns=["t"], policy=DROP_OLDEST), ANYBODY, lambda i=i: ended.append(i))
        publish(hub, "t", 90 * KIB)
        if i == 0:
            run(s.next())
        frame, _ = run(s.next())
        held.append((s, frame if frame is not None else run(s.next())[0], s.writing()))
        held[-1][2].__enter__()
    with pytest.raises(Refusal, match="--max-topic-bytes") as caught:
        publish(hub, "t", 90 * KIB)  # nobody lets go
    assert caught.value.reason == "STORE_FULL"
    assert len(ended) == 10
    assert not hub.subscriptions
    del frame, s
    held.clear()
    assert publish(hub, "t", 90 * KIB) == 11


def test_a_large_frame_may_follow_another() -> None:
    hub = Hub(1000 * KIB, 10)
    slow = subscribe(hub)
    for i in range(3):
        assert publish(hub, "t", 600 * KIB) == i + 1
    assert queued(slow) == [None, ("t", 3, 2)]
    with pytest.raises(Refusal, match="--max-topic-bytes") as caught:
        publish(hub, "t", 1001 * KIB)
    assert caught.value.reason == "OBJECT_TOO_LARGE"


def test_unfinished_frames_of_one_caller_take_half_of_the_space_at_most() -> None:
    hub = Hub(1000 * KIB, 10)
    kept = subscribe(hub)
    publish(hub, "t", 100 * KIB)
    intakes = [hub.intake(head_of(np.zeros(400 * KIB, np.uint8), str(i)), b"", "me") for i in range(2)]
    run(hub.reserve(intakes[0], 400 * KIB, "greedy"))
    with pytest.raises(Refusal, match="unfinished frames of greedy") as caught:
        run(hub.reserve(intakes[1], 200 * KIB, "greedy"))
    assert caught.value.reason == "TOO_MANY_REQUESTS"
    run(hub.reserve(intakes[1], 200 * KIB, "other"))
    assert queued(kept) == [None, ("t", 1, 0)]
    hub.drop(intakes[0], "greedy")
    run(hub.reserve(intakes[0], 400 * KIB, "greedy"))


def test_bytes_that_are_freed_at_the_last_moment_are_reserved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may release bytes between a refusal and the moment when the hub gives up waiting."""
    hub = Hub(10_000, 10)
    hub.budget.reserve(9000)
    refused = []

    def reserve(size: int, true: Any = hub.budget.reserve) -> None:
        try:
            true(size)
        except Refusal:
            refused.append(size)
            hub.budget.release(9000)  # as if the garbage collector ran now
            raise

    monkeypatch.setattr(hub.budget, "reserve", reserve)
    monkeypatch.setattr("dlpack_wire_server.hub.SHORT_STALL_S", -1)  # patience is over at once
    intake = hub.intake(head_of(np.zeros(100, np.uint8)), b"", "me")
    with contextlib.suppress(Refusal):
        run(hub.reserve(intake, 4000, "me"))
    hub.drop(intake, "me")
    assert refused
    assert hub.budget.used == 0


def test_space_is_given_back_from_anywhere() -> None:
    """A finalizer may release bytes in the very moment when they are being counted."""
    budget = Budget(100)

    class Released(deque[int]):
        left = 3

        def __bool__(self) -> bool:
            if self.left:
                self.left -= 1
                budget.release(1)  # as if the garbage collector ran now, with the lock held
            return len(self) > 0

    budget._released = Released()
    budget.reserve(60)
    with pytest.raises(Refusal, match=r"\(--max-store-bytes\)"):
        budget.reserve(90)
    assert budget.used == 57


def test_a_frame_is_sent_in_the_chunks_that_it_came_in() -> None:
    hub = Hub(8 << 20, max_subscribers=2)
    s = subscribe(hub)
    size = (2 << 20) + 5
    publish(hub, "t", size, 7)

    async def first() -> KeptFrame:
        await s.next()
        frame, _ = await s.next()
        assert frame is not None
        return frame

    messages = list(run(first()).messages(2))
    assert len(messages) == 4  # the first chunk is too large to be joined with the frame's head
    _, head, _ = parse_frame(pb.SubscribeResponse, messages[0])
    assert head is not None
    assert (head.topic, head.sequence, head.time_ns, head.dropped_count) == ("t", 1, 5, 2)
    arrival = frame_arrival(head)
    received = b""
    for message in messages:
        _, _, chunk = parse_frame(pb.SubscribeResponse, message)
        if chunk is not None:
            arrival.chunk(chunk)
            received += chunk.data
    arrival.end()
    assert received == bytes([7]) * size
    assert head.header.checksum == payload_sum(received)


def test_small_frames_are_one_message(hub: Hub) -> None:
    s = subscribe(hub)
    publish(hub, "t", 100)
    publish(hub, "t", 0)

    async def both() -> list[int]:
        await s.next()
        found = [(await s.next())[0] for _ in range(2)]
        return [len(list(frame.messages(0))) for frame in found if frame is not None]

    assert run(both()) == [1, 1]


# --- limits and the end -----------------------------------------------------------------------------------------------


def test_limits() -> None:
    hub = Hub(1 << 20, max_subscribers=2, max_topics=4)
    kept = [subscribe(hub), subscribe(hub)]
    with pytest.raises(Refusal, match="--max-subscribers") as caught:
        subscribe(hub)
    assert caught.value.reason == "TOO_MANY_SUBSCRIBERS"
    hub.unsubscribe(kept[0])
    hub.unsubscribe(kept[0])
    subscribe(hub)
    publish(hub, "a")
    publish(hub, "b")
    publish(hub, "a")
    with pytest.raises(Refusal, match="2 topics") as caught:
        publish(hub, "c")
    assert caught.value.reason == "TOO_MANY_REQUESTS"
    assert (hub.topic_count, len(hub.subscriptions), hub.frame_count) == (2, 2, 3)


def test_topics_that_nobody_uses_are_forgotten_but_numbers_never_repeat() -> None:
    hub = Hub(1 << 20, 10, max_topics=4)
    s = subscribe(hub, "a")
    for topic in "abbbcd":
        publish(hub, topic)
    assert hub.topic_count == 2  # a, which has a subscriber, and d
    assert publish(hub, "b") > 3
    assert publish(hub, "a") == 2
    assert queued(s) == [None, ("a", 1, 0), ("a", 2, 0)]


def test_nothing_is_left_of_a_subscription(hub: Hub) -> None:
    publish(hub, "a")
    s = subscribe(hub, "*", "a", "b")
    publish(hub, "b")
    hub.unsubscribe(s)
    publish(hub, "a")
    assert queued(s) == [None, ("b", 1, 0)]  # what a was has been replaced; nothing new came
    assert [len(index) for index in (hub._by_topic, hub._by_prefix, hub._prefix_sizes)] == [0, 0, 0]


def test_a_failed_subscription_is_out_at_once_and_its_call_is_ended_soon(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    request = pb.SubscribeRequest(patterns=["*"], policy=RELIABLE, queue_frame_count=1)
    s = hub.subscribe(request, ANYBODY, lambda: ended.append(1))
    publish(hub)
    monkeypatch.setattr(frame_queue, "_PATIENCE_S", 0.1)

    async def send() -> None:
        with s.writing():
            hub.end(s, "SHUTTING_DOWN", "bye")
            assert ended == []  # it may still read why
            assert not hub.subscriptions
            await asyncio.sleep(0.2)  # it is still sending, for longer than the hub waits for it

    run(send())
    assert ended == [1]
    assert hub.dropped_count == 1


def test_the_end(hub: Hub) -> None:
    s = subscribe(hub)
    publish(hub)
    hub.close()
    for call in (lambda: queued(s), lambda: subscribe(hub), lambda: publish(hub)):
        with pytest.raises(Refusal) as caught:
            call()
        assert caught.value.reason == "SHUTTING_DOWN"
