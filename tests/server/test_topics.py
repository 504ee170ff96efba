"""Frames published on topics and received by subscribers, through a real server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting
from hand_built_files import payload_sum_of, sums_of_blocks
from server_process import ROOT, ServerProcess, eventually, running
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.service.async_client import AsyncClient
from dlpack_wire.service.client import Client, Subscription, connect
from dlpack_wire.service.grpc_transport import SERVICE
from dlpack_wire.service.topics import Frame
from dlpack_wire.v1 import dlpack_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
LARGE = np.random.default_rng(0).integers(0, 255, 9 * MIB, np.uint8)
Rounds = Callable[[int, int], int]


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(dw.RemoteError) as caught:
        call()
    return caught.value.code, caught.value.reason


# --- whole and in order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(1.5),
        np.empty((0, 3), np.int16),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(5, dtype=">i4"),
        np.arange(100)[::-3],
        np.array([True, False]),
        LARGE.view(np.float32).reshape(2, -1)[:, ::2],
        LARGE,
    ],
    ids=lambda x: f"{x.dtype.str}{x.shape}",
)
def test_a_frame_arrives_bit_for_bit(client: Client, name: str, x: Any) -> None:
    with client.subscribe(name) as frames, client.publisher(name) as publisher:
        assert publisher.send(x, metadata={"k": 1.5, "s": b"\0"}, time_ns=-7) == 1
        assert publisher.subscriber_count == 1
        frame = next(frames)
    assert frame[:6] == (name, 1, -7, {"k": 1.5, "s": b"\0"}, 0, False)
    t = frame.tensor
    assert t.dtype == dw.DType(x.dtype)
    assert t.shape == x.shape
    assert t.numpy().tobytes() == x.astype(x.dtype.newbyteorder("=")).tobytes()
    assert t.header.checksum is not None


def test_frames_are_numbered_and_dated(client: Client, name: str) -> None:
    with client.subscribe(name, policy="reliable") as frames, client.publisher(name) as first:
        begin = time.time_ns()
        assert [first.send(np.arange(i)) for i in range(3)] == [1, 2, 3]
        with client.publisher(name) as second:
            assert second.send(np.arange(3)) == 4
        found = [next(frames) for _ in range(4)]
        assert [f.sequence for f in found] == [1, 2, 3, 4]
        assert [f.tensor.shape for f in found] == [(0,), (1,), (2,), (3,)]
        assert all(begin <= f.time_ns <= time.time_ns() for f in found)


def test_topics_are_apart_from_stored_names(client: Client, name: str) -> None:
    client.put(name, np.arange(3))
    with client.publisher(name) as publisher:
        assert publisher.send(np.arange(5)) == 1
        assert client.get(name).shape == (3,)
        client.delete(name)
        with client.subscribe(name) as frames:
            assert next(frames).tensor.shape == (5,)


def test_the_newest_frame_waits_for_those_who_come_later(client: Client, name: str) -> None:
    with client.publisher(name) as publisher:
        for i in range(3):
            publisher.send(np.array(i))
        with client.subscribe(name) as frames, client.subscribe([name], skip_retained=True) as live:
            frame = next(frames)
            assert (frame.sequence, frame.is_retained, frame.dropped_count) == (3, True, 0)
            publisher.send(np.array(3))
            for found in (next(frames), next(live)):
                assert (found.sequence, found.is_retained) == (4, False)


def test_patterns(client: Client, name: str) -> None:
    with (
        client.subscribe(f"{name}/cam/*", policy="reliable") as cams,
        client.subscribe([f"{name}/cam/*", f"{name}/map"], policy="reliable") as both,
    ):
        for topic in ("cam/left", "map", "cam/right", "other"):
            with client.publisher(f"{name}/{topic}") as publisher:
                publisher.send(np.zeros(2))
        assert [next(cams).topic for _ in range(2)] == [f"{name}/cam/left", f"{name}/cam/right"]
        assert [next(both).topic for _ in range(3)] == [f"{name}/cam/left", f"{name}/map", f"{name}/cam/right"]


# --- slow subscribers -------------------------------------------------------------------------------------------------


def test_a_slow_subscriber_gets_the_newest(client: Client, name: str) -> None:
    with client.subscribe(name, policy="latest") as frames, client.publisher(name) as publisher:
        for i in range(60):
            publisher.send(np.full(MIB, i, np.uint8))
        assert next(frames).sequence == 1
        time.sleep(0.3)  # it is the slow one: what is queued meanwhile is what it finds
        newest, dropped, taken = 1, 0, 1
        while newest < 60:
            frame = next(frames)
            assert frame.tensor.numpy()[-1] == frame.sequence - 1
            newest, dropped, taken = frame.sequence, dropped + frame.dropped_count, taken + 1
        assert taken + dropped == 60
        assert taken <= 6  # no more than what was on its way


def test_drop_oldest_drops_as_much_as_it_must_and_counts(client: Client, name: str) -> None:
    with (
        client.subscribe(name, policy="drop_oldest", queue_frame_count=5) as frames,
        client.publisher(name) as publisher,
    ):
        for i in range(40):
            publisher.send(np.full(MIB, i, np.uint8))
        found = [next(frames)]
        while found[-1].sequence < 40:
            found.append(next(frames))
        assert [f.sequence for f in found[-5:]] == [36, 37, 38, 39, 40]
        assert len(found) + sum(f.dropped_count for f in found) == 40


def test_reliable_ends_with_an_error_when_behind(client: Client, name: str) -> None:
    with (
        client.subscribe(name, policy="reliable", queue_frame_count=5) as slow,
        client.subscribe(name, policy="reliable") as quick,
        client.publisher(name) as publisher,
    ):
        for i in range(40):
            assert publisher.send(np.full(MIB, i, np.uint8)) == i + 1
            assert next(quick).sequence == i + 1

        def read() -> None:
            for frame in slow:
                found.append(frame.sequence)

        found: list[int] = []
        for _ in range(2):  # it does not look like a good end to who asks again
            assert error_of(read) == ("RESOURCE_EXHAUSTED", "SUBSCRIBER_TOO_SLOW")
        assert found == list(range(1, len(found) + 1))
        assert 5 <= len(found) < 40  # those that were queued, and those on their way


IDLE = """
import sys
from dlpack_wire.service.client import connect
with connect(sys.argv[1]) as client:
    frames = [client.subscribe("cam/*", policy=policy) for policy in ("latest", "drop_oldest", "reliable")]
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def idle_subscribers(server: ServerProcess) -> Iterator[subprocess.Popen[str]]:
    """A process that subscribes to cam/* by every policy and does not read."""
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_frozen_subscribers_hold_little_and_slow_nobody(rounds: Rounds) -> None:
    """Neither the memory of a server nor its other callers feel those who do not read."""
    with running() as server, connect(server.address, timeout=60) as client:
        with idle_subscribers(server) as frozen:
            frozen.send_signal(signal.SIGSTOP)
            with client.publisher("cam/left") as publisher, client.subscribe("cam/left", policy="reliable") as quick:
                publisher.send(LARGE)
                next(quick)
                before = server.private_bytes()
                for _ in range(rounds(30, 300)):
                    publisher.send(LARGE)
                    assert np.array_equal(next(quick).tensor.numpy()[::4096], LARGE[::4096])
                    assert server.private_bytes() - before < 200 * MIB  # one queue of 64 MiB, and what is on its way
            frozen.kill()
        eventually(lambda: is_alone(client))


def test_a_subscriber_that_was_cut_off_hears_why_when_it_reads_again() -> None:
    large = np.zeros(30 * MIB, np.uint8)
    with (
        running("--max-topic-bytes", "80MiB") as server,
        grpc.insecure_channel(server.address) as channel,
        connect(server.address, timeout=60) as client,
        client.publisher("t") as publisher,
    ):
        request = pb.SubscribeRequest(patterns=["t"], policy=pb.DELIVERY_POLICY_RELIABLE).SerializeToString()
        frames = channel.unary_stream(f"/{SERVICE.full_name}/Subscribe")(request, timeout=60)
        next(frames)  # and no more: the first frame is stuck on its way
        for _ in range(3):
            publisher.send(large)
        eventually(lambda: publisher.send(np.zeros(1)) > 0 and publisher.subscriber_count == 0)
        begin = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            list(frames)
        assert dict(caught.value.trailing_metadata())["dlpack-wire-reason"] == "SUBSCRIBER_TOO_SLOW"
        assert time.monotonic() - begin < 20  # long before its own time is over


def is_alone(client: Client) -> bool:
    """Whether nobody subscribes to the topic any more."""
    with client.publisher("cam/left") as publisher:
        publisher.send(np.zeros(1))
        return publisher.subscriber_count == 0


def test_a_crowd_of_idle_subscribers_starves_nobody(rounds: Rounds) -> None:
    count = rounds(150, 1500)
    with running("--max-subscribers", str(count)) as server, connect(server.address, timeout=60) as client:
        # gRPC ends a connection on which a thousand streams are begun at once.
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(server.address, own) for _ in range(count // 50)]
        request = pb.SubscribeRequest(patterns=["t*"]).SerializeToString()
        calls = [
            channels[i % len(channels)].unary_stream(f"/{SERVICE.full_name}/Subscribe")(request, timeout=300)
            for i in range(count)
        ]
        for call in calls:
            assert pb.SubscribeResponse.FromString(next(call)).HasField("start")
        assert error_of(lambda: client.subscribe("t")) == ("RESOURCE_EXHAUSTED", "TOO_MANY_SUBSCRIBERS")
        begin = time.monotonic()
        client.put("x", LARGE)
        assert np.array_equal(client.get("x").numpy(), LARGE)
        assert time.monotonic() - begin < 10
        with client.publisher("t1") as publisher:
            publisher.send(np.arange(3))
            assert publisher.subscriber_count == count
        for call in calls:
            found = [pb.SubscribeResponse.FromString(next(call)) for _ in range(2)]
            assert [m.frame.topic for m in found] == ["", "t1"]
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()

        def gone() -> bool:
            with client.publisher("t1") as publisher:
                publisher.send(np.arange(3))
                return publisher.subscriber_count == 0

        eventually(gone)


def test_cancelled_and_killed_subscribers_leave_nothing(rounds: Rounds) -> None:
    with running() as server, connect(server.address, timeout=60) as client, client.publisher("cam/left") as publisher:
        publisher.send(LARGE)
        for policy in ("latest", "drop_oldest", "reliable"):
            with client.subscribe("cam/*", policy=policy) as frames:  # type: ignore[arg-type]
                next(frames)
        before = server.thread_count(), server.descriptor_count(), server.private_bytes()
        call, request = client._connection.transport.callable("Subscribe"), pb.SubscribeRequest(patterns=["cam/*"])
        chance = random.Random(0)
        for i in range(rounds(20, 200)):
            frames_call = call(request.SerializeToString())
            for _ in range(chance.randrange(5)):
                next(frames_call)  # in the middle of a frame
            frames_call.cancel()
            if i % 10 == 0:
                with idle_subscribers(server) as killed:
                    publisher.send(LARGE)
                    killed.kill()
        eventually(lambda: publisher.send(LARGE) > 0 and publisher.subscriber_count == 0)
        eventually(lambda: server.thread_count() <= before[0] + 8)
        eventually(lambda: server.descriptor_count() <= before[1] + 1)
        eventually(lambda: server.private_bytes() <= before[2] + 32 * MIB, 20)
        assert client.put("x", np.zeros(3)) > 0


def test_a_frame_published_while_somebody_subscribes_is_seen_exactly_once(
    client: Client, name: str, rounds: Rounds
) -> None:
    """As the newest one there was, or as the first one after that."""
    with client.publisher(name) as publisher:
        done = threading.Event()

        def publish() -> None:
            while not done.is_set():
                publisher.send(np.zeros(1))

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            for _ in range(rounds(50, 1000)):
                with client.subscribe(name, policy="reliable") as frames:
                    found = [next(frames) for _ in range(4)]
                assert [f.sequence - found[0].sequence for f in found] == [0, 1, 2, 3]
                assert sum(f.is_retained for f in found) <= 1
                assert not any(f.dropped_count for f in found)
        finally:
            done.set()
            thread.join()


@pytest.mark.soak
def test_a_frozen_server_is_noticed_and_an_idle_subscription_lasts(client: Client, name: str) -> None:
    """The client asks after 30 s of silence and waits for 10; the server lets it ask."""
    with running() as server, connect(server.address, timeout=20) as other:
        publisher = client.publisher(name)
        assert publisher.send(np.zeros(3)) == 1
        idle = client.subscribe(name, policy="reliable", skip_retained=True)
        frames = other.subscribe("t", policy="reliable")
        server.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        try:
            assert error_of(lambda: next(frames))[0] == "UNAVAILABLE"
        finally:
            server.send_signal(signal.SIGCONT)
        assert 35 < time.monotonic() - begin < 50
        time.sleep(260)  # nine pings; by gRPC's own settings a server puts up with a few
        assert publisher.send(np.zeros(3)) == 2
        assert next(idle).sequence == 2


# --- refused ----------------------------------------------------------------------------------------------------------


def test_topics_and_patterns_that_are_none(client: Client, name: str) -> None:
    for topic in ("", "a\0b", "a" * 4097, "cam/*", "a*b"):
        with pytest.raises(dw.EncodeError):
            client.publisher(topic)
    with pytest.raises(ValueError, match="policy must be one of"):
        client.subscribe(name, policy="some")  # type: ignore[arg-type]
    for patterns in ("", ["a", "b\0"], [], "*a", "a**"):
        with pytest.raises(dw.EncodeError):
            client.subscribe(patterns)
    for wrong in ({"queue_frame_count": -1}, {"queue_bytes": -1}):
        with pytest.raises(ValueError, match="negative"):
            client.subscribe(name, **wrong)  # type: ignore[arg-type]


def test_a_publisher_goes_on_after_a_refused_frame(client: Client, name: str) -> None:
    with client.publisher(name) as publisher:
        assert publisher.send(np.arange(3)) == 1
        with pytest.raises(dw.EncodeError):
            publisher.send(object())
        with pytest.raises(dw.EncodeError):
            publisher.send(np.arange(3), metadata={"a": object()})  # type: ignore[dict-item]
        huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (300 * MIB,), (0,))
        assert error_of(lambda: publisher.send(huge)) == ("RESOURCE_EXHAUSTED", "OBJECT_TOO_LARGE")
        assert publisher.send(LARGE) == 2


def head(name: str, count: int = 4) -> pb.Frame:
    frame = pb.Frame(topic=name)
    frame.header.CopyFrom(dlpack_pb2.DLTensor(dtype=dlpack_pb2.DLDataType(code=1, bits=8, lanes=1), shape=[count]))
    return frame


def chunk(data: bytes, offset: int = 0) -> pb.Chunk:
    return pb.Chunk(offset=offset, data=data, block_sums=sums_of_blocks(data))


WRONG: dict[str, tuple[Callable[[str], list[pb.PublishRequest]], str, str]] = {
    "chunk alone": (lambda n: [pb.PublishRequest(chunk=chunk(b"abcd"))], "INVALID_ARGUMENT", "CHUNK_OUT_OF_ORDER"),
    "chunk too many": (
        lambda n: [pb.PublishRequest(frame=head(n), chunk=chunk(b"abcd")), pb.PublishRequest(chunk=chunk(b"x", 4))],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "chunk doubled": (
        lambda n: [
            pb.PublishRequest(frame=head(n, 2 * MIB), chunk=chunk(bytes(MIB))),
            pb.PublishRequest(chunk=chunk(bytes(MIB))),
        ],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "too long": (
        lambda n: [pb.PublishRequest(frame=head(n), chunk=chunk(b"abcde"))],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "wrong sum": (
        lambda n: [pb.PublishRequest(frame=head(n), chunk=pb.Chunk(data=b"abcd", block_sums=[1]))],
        "DATA_LOSS",
        "CHECKSUM_MISMATCH",
    ),
    "no sum": (
        lambda n: [pb.PublishRequest(frame=head(n), chunk=pb.Chunk(data=b"abcd"))],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "two frames": (
        lambda n: [pb.PublishRequest(frame=head(n)), pb.PublishRequest(frame=head(n))],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "cut short": (
        lambda n: [
            pb.PublishRequest(frame=head(n, 2 * MIB), chunk=chunk(bytes(MIB))),
        ],
        "ABORTED",
        "UPLOAD_INCOMPLETE",
    ),
    "half a block": (
        lambda n: [pb.PublishRequest(frame=head(n), chunk=chunk(b"ab"))],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "no header": (lambda n: [pb.PublishRequest(frame=pb.Frame(topic=n))], "INVALID_ARGUMENT", "INVALID_TENSOR"),
    "exabytes": (lambda n: [pb.PublishRequest(frame=head(n, 1 << 60))], "RESOURCE_EXHAUSTED", "OBJECT_TOO_LARGE"),
    "no topic": (lambda n: [pb.PublishRequest(frame=head(""))], "INVALID_ARGUMENT", "INVALID_NAME"),
    "a pattern": (lambda n: [pb.PublishRequest(frame=head("a*"))], "INVALID_ARGUMENT", "INVALID_NAME"),
}


@pytest.mark.parametrize("case", WRONG)
def test_frames_that_are_wrong_reach_nobody(stub: Any, client: Client, name: str, case: str) -> None:
    make, code, reason = WRONG[case]
    with client.subscribe(name) as frames:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Publish(iter(make(name)), timeout=20))
        trailers = dict(caught.value.trailing_metadata())
        assert (caught.value.code().name, trailers["dlpack-wire-reason"]) == (code, reason)
        with client.publisher(name) as publisher:
            publisher.send(np.arange(7))
        found = next(frames)
        if case == "chunk too many":  # the frame before it was whole
            assert found.tensor.shape == (4,)
            found = next(frames)
        assert found.tensor.shape == (7,)


def test_a_plain_client_publishes_and_subscribes(stub: Any, name: str) -> None:
    """What protoc generates, with gRPC's default options."""
    call = stub.Subscribe(pb.SubscribeRequest(patterns=[name], policy=pb.DELIVERY_POLICY_RELIABLE), timeout=60)
    first = next(call)
    assert len(first.start.instance_id) == 32
    assert next(call).caught_up
    payload = LARGE[: 5 * MIB].tobytes()
    requests = [pb.PublishRequest(frame=head(name, len(payload)))]
    for begin in range(0, len(payload), 3 * MIB):
        part = payload[begin : begin + 3 * MIB]
        requests.append(pb.PublishRequest(chunk=chunk(part, begin)))
    requests += [pb.PublishRequest(frame=head(name, 4), chunk=chunk(b"abcd")), pb.PublishRequest(frame=head(name, 0))]
    answers = list(stub.Publish(iter(requests), timeout=60))
    assert [(a.topic, a.last_sequence, a.subscriber_count) for a in answers] == [(name, i, 1) for i in (1, 2, 3)]
    frames: list[tuple[pb.Frame, bytes]] = []
    while len(frames) < 3:
        message = next(call)
        assert message.ByteSize() <= 4 * MIB
        if message.HasField("frame"):
            frames.append((message.frame, b""))
        frames[-1] = (frames[-1][0], frames[-1][1] + message.chunk.data)
        if len(frames[-1][1]) == len(payload):
            assert frames[-1][0].header.data_sum == payload_sum_of(payload)
    call.cancel()
    assert [data for _, data in frames] == [payload, b"abcd", b""]
    assert [f.sequence for f, _ in frames] == [1, 2, 3]


# --- permissions ------------------------------------------------------------------------------------------------------

TOKEN, OTHER = "robot-token-123456", "other-token-123456"


def test_permissions_hold_and_end(tmp_path: Path) -> None:
    tokens = {
        "tokens": [
            {"name": "robot", "token": TOKEN, "read": ["cam/"], "write": ["cam/left"]},
            {"name": "other", "token": OTHER, "read": [""], "write": [""]},
        ]
    }
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(tokens))
    with (
        running("--token-file", str(path)) as server,
        connect(server.address, token=TOKEN, timeout=20) as robot,
        connect(server.address, token=OTHER, timeout=20) as other,
        connect(server.address, timeout=20) as nobody,
    ):
        assert error_of(lambda: nobody.subscribe("*"))[0] == "UNAUTHENTICATED"
        assert error_of(lambda: nobody.publisher("cam/left").send(np.zeros(1)))[0] == "UNAUTHENTICATED"
        assert error_of(lambda: robot.subscribe("secret"))[0] == "PERMISSION_DENIED"
        assert error_of(lambda: robot.publisher("cam/right").send(np.zeros(1)))[0] == "PERMISSION_DENIED"
        with (
            robot.subscribe("*", policy="reliable") as frames,
            other.publisher("secret") as secret,
            other.publisher("cam/right") as right,
            robot.publisher("cam/left") as left,
        ):
            secret.send(np.zeros(1))
            right.send(np.zeros(2))
            left.send(np.zeros(3))
            assert [next(frames).topic for _ in range(2)] == ["cam/right", "cam/left"]
            tokens["tokens"].pop(0)
            path.write_text(json.dumps(tokens))
            time.sleep(2.1)  # a server looks at the token file every two seconds, and nothing outside shows when
            right.send(np.zeros(4))
            assert error_of(lambda: next(frames))[0] == "UNAUTHENTICATED"
            assert error_of(lambda: left.send(np.zeros(4)))[0] == "UNAUTHENTICATED"


def test_a_withdrawn_token_does_not_shut_its_neighbours_out(tmp_path: Path) -> None:
    tokens = {"tokens": [{"name": n, "token": t, "read": [""], "write": [""]} for n, t in (("a", TOKEN), ("b", OTHER))]}
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(tokens))
    with (
        running("--token-file", str(path)) as server,
        connect(server.address, token=OTHER, timeout=20) as other,
        connect(server.address, token=TOKEN, timeout=20) as old,
    ):
        withdrawn = [old.subscribe("t") for _ in range(30)]
        kept, publisher = other.subscribe("t"), other.publisher("t")
        publisher.send(np.zeros(1))
        tokens["tokens"].pop(0)
        path.write_text(json.dumps(tokens))
        eventually(lambda: publisher.send(np.zeros(1)) > 0 and publisher.subscriber_count == 1)
        for frames in withdrawn:
            assert error_of(lambda frames=frames: list(frames))[0] == "UNAUTHENTICATED"
        sequence = publisher.send(np.zeros(1))
        eventually(lambda: next(kept).sequence == sequence)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_closing_ends_the_wait_of_another_thread(client: Client, name: str) -> None:
    for close in (lambda s, c: s.close(), lambda s, c: c.close()):
        other = connect(client.address, timeout=20)
        frames = other.subscribe(name)
        found: list[Frame] = []
        waiting = threading.Thread(target=found.extend, args=(frames,))
        waiting.start()
        time.sleep(
            0.1
        )  # the thread waits for a frame then, in most runs; nothing shows it, and both orders must end it
        close(frames, other)
        waiting.join(10)
        assert not waiting.is_alive()
        assert found == []
        other.close()


def test_a_server_that_ends_does_not_wait_for_publishers_and_subscribers() -> None:
    server = ServerProcess("--grace-s", "20")
    with connect(server.address, timeout=20) as client:
        frames = client.subscribe("t", policy="reliable")
        publisher = client.publisher("t")
        publisher.send(np.zeros(3))
        assert next(frames).sequence == 1
        begin = time.monotonic()
        code, said = server.stop()
        assert (code, "Traceback" in said) == (0, False), said
        assert time.monotonic() - begin < 5
        assert error_of(lambda: next(frames)) == ("UNAVAILABLE", "SHUTTING_DOWN")
        assert error_of(lambda: publisher.send(np.zeros(3)))[0] == "UNAVAILABLE"


def test_timeouts_hold() -> None:
    with running() as server, connect(server.address, timeout=1) as client:
        frames = client.subscribe("t")
        publisher = client.publisher("t")
        publisher.send(np.zeros(3))
        assert next(frames).sequence == 1
        server.send_signal(signal.SIGSTOP)
        try:
            for call in (
                lambda: publisher.send(np.zeros(3)),
                lambda: publisher.send(np.zeros(60 * MIB, np.uint8)),
                lambda: client.subscribe("t"),
            ):
                begin = time.monotonic()
                assert error_of(call)[0] == "DEADLINE_EXCEEDED"
                assert time.monotonic() - begin < 4
        finally:
            server.send_signal(signal.SIGCONT)
        assert publisher.send(np.zeros(3)) > 1
        assert next(frames).sequence > 1


def test_a_lost_connection_is_mended_and_what_was_missed_is_counted(
    server: ServerProcess, client: Client, name: str
) -> None:
    with (
        cutting(server.address, 8 * MIB, 8 * MIB) as proxy,
        connect(proxy.address, timeout=60) as shaky,
        shaky.subscribe(name, policy="drop_oldest", queue_frame_count=100) as frames,
        client.publisher(name) as publisher,
    ):
        done = threading.Event()

        def publish() -> None:
            for i in range(60):
                publisher.send(np.full(MIB, i, np.uint8))
                time.sleep(0.01)  # the pace of a camera
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        found: list[Frame] = []
        while not found or found[-1].sequence < 60:
            found.append(next(frames))
            assert (found[-1].tensor.numpy() == found[-1].sequence - 1).all()
        thread.join()
        assert done.is_set()
        assert [f.sequence for f in found] == sorted({f.sequence for f in found})
        assert len(found) + sum(f.dropped_count for f in found) == 60
        assert proxy.connection_count > 1


def test_reliable_does_not_hide_lost_frames(server: ServerProcess, client: Client, name: str) -> None:
    with (
        cutting(server.address, 3 * MIB) as proxy,
        connect(proxy.address, timeout=60) as shaky,
        shaky.subscribe(name, policy="reliable") as frames,
        client.publisher(name) as publisher,
    ):
        for _ in range(6):
            publisher.send(np.zeros(MIB, np.uint8))
        assert error_of(lambda: list(frames))[0] == "DATA_LOSS"


def test_a_restarted_server_begins_anew(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/s.sock"
    server = ServerProcess(listen=listen)
    with connect(listen, timeout=30) as client:
        publisher, frames = client.publisher("t"), client.subscribe("t")
        for _ in range(3):
            publisher.send(np.zeros(3))
        eventually(lambda: next(frames).sequence == 3)
        before = frames.instance_id
        server.stop(signal.SIGKILL)
        with pytest.raises(dw.RemoteError):
            publisher.send(np.zeros(3))
        with running(listen=listen):
            waiting: list[Frame] = []
            thread = threading.Thread(target=lambda: waiting.append(next(frames)))
            thread.start()
            eventually(lambda: bool(publisher.send(np.arange(5)) and waiting), 20)
            thread.join()
            assert frames.instance_id != before
            assert waiting[0].tensor.shape == (5,)
            frames.close()
            publisher.close()


def test_refused_frames_leave_no_room_taken() -> None:
    with running("--max-topic-bytes", "20MiB") as server, connect(server.address, timeout=20) as client:
        request = pb.PublishRequest(frame=head("t", 3 * MIB), chunk=pb.Chunk(data=bytes(3 * MIB), block_sums=[1, 2, 3]))
        call = client._connection.transport.callable("Publish")
        for _ in range(30):
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([request.SerializeToString()]), timeout=20))
            assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        with client.publisher("t") as publisher:
            for i in range(5):
                assert publisher.send(np.zeros(15 * MIB, np.uint8)) == i + 1


def test_those_who_do_not_read_do_not_stop_a_publisher() -> None:
    with (
        running("--max-topic-bytes", "40MiB") as server,
        connect(server.address, timeout=60) as client,
        grpc.insecure_channel(server.address) as channel,
        client.publisher("t") as publisher,
    ):
        request = pb.SubscribeRequest(patterns=["t"]).SerializeToString()
        frozen = []
        for i in range(25):
            frozen.append(channel.unary_stream(f"/{SERVICE.full_name}/Subscribe")(request))
            next(frozen[-1])
            assert publisher.send(np.zeros(4 * MIB, np.uint8)) == i + 1
        for call in frozen:
            call.cancel()


def test_requests_that_would_be_kept_are_small(stub: Any) -> None:
    for patterns in (["x" * 4000] * 17, ["x"] * 1001, ["x" * 4000] * 1000):
        with pytest.raises(grpc.RpcError, match="allowed") as caught:
            next(stub.Subscribe(pb.SubscribeRequest(patterns=patterns), timeout=20))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_no_thread_outlives_a_client(server: ServerProcess, name: str) -> None:
    before = set(threading.enumerate())
    client = connect(server.address, timeout=20)
    publishers = [client.publisher(name) for _ in range(3)]
    frames = client.subscribe(name)
    for publisher in publishers:
        publisher.send(np.zeros(3))
    next(frames)
    publishers.pop().close()
    publishers.pop()  # forgotten
    client.close()
    del publisher
    eventually(lambda: set(threading.enumerate()) <= before)


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_the_asynchronous_client(server: ServerProcess, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(server.address, timeout=20) as client, client.publisher(name) as publisher:
            async with client.subscribe(name, policy="reliable") as frames:
                for _ in range(3):  # a wait that is given up takes no frame with it
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(anext(frames), 0.05)
                assert await publisher.send(np.arange(3), metadata={"a": 1}) == 1
                assert publisher.subscriber_count == 1
                await publisher.send(np.arange(4))
                assert (await anext(frames)).tensor.shape == (3,)
                async for frame in frames:
                    assert frame.tensor.shape == (4,)
                    break
                waiting = asyncio.ensure_future(anext(frames))
                await asyncio.sleep(0.05)  # so that it waits for a frame
            with pytest.raises(StopAsyncIteration):
                await waiting
            with pytest.raises(dw.EncodeError):
                await client.subscribe("")
            async with client.subscribe(name) as frames:
                assert (await anext(frames)).sequence == 2
            async for frame in client.subscribe([name]):
                assert frame.is_retained
                break

    asyncio.run(work())


def test_the_asynchronous_client_ends_well(server: ServerProcess, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(server.address, timeout=20, max_operations=1) as client:
            for _ in range(10):
                frames = await client.subscribe(name)
                waiting = asyncio.ensure_future(anext(frames))
                await asyncio.sleep(0.01)  # so that it waits for a frame
                await frames.close()
                with pytest.raises(StopAsyncIteration):
                    await waiting
                assert [frame async for frame in frames] == []
                await frames.close()
            publisher = client.publisher(name)
            assert await publisher.send(np.zeros(1)) == 1
            sending = [asyncio.ensure_future(publisher.send(np.zeros(1))) for _ in range(5)]
            await asyncio.sleep(0)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            assert await publisher.send(np.zeros(1)) == 7  # they were sent all the same
        await publisher.close()

    asyncio.run(work())


def test_a_process_ends_that_did_not_close_anything(server: ServerProcess, name: str) -> None:
    script = f"""
        import asyncio
        import numpy as np
        from dlpack_wire.service.async_client import AsyncClient
        async def work():
            client = AsyncClient({server.address!r}, timeout=20)
            frames = await client.subscribe({name!r})
            publisher = client.publisher({name!r})
            print(await publisher.send(np.zeros(3)), (await anext(frames)).sequence)
            try:
                await asyncio.wait_for(anext(frames), 0.1)
            except asyncio.TimeoutError:
                print("nothing came")
        asyncio.run(work())
    """
    assert run_python(script) == "1 1\nnothing came\n"


def test_what_is_dropped_without_closing_is_ended(client: Client, name: str) -> None:
    def forget() -> None:
        frames: Iterator[Frame] = client.subscribe(name)
        assert isinstance(frames, Subscription)

    forget()

    def nobody() -> bool:
        with client.publisher(name) as publisher:
            publisher.send(np.zeros(1))
            return publisher.subscriber_count == 0

    eventually(nobody)
