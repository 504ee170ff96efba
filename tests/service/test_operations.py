"""Operations are scripts: driven here without a network, step by step and against the server's own state machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from memory_transport import LOST, MemoryTransport, new_service

import dlpack_wire as dw
from dlpack_wire.service.drivers import AsyncDriver, Clock
from dlpack_wire.service.operations import Operations
from dlpack_wire.service.retry import Backoff
from dlpack_wire.service.script import Cancel, IsOpen, Next, Notify, Open, Pause, Script, Send, SendAll, Unary
from dlpack_wire.service.topics import Frame, Publishing, Subscribing
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
BIG = np.random.default_rng(0).integers(0, 255, 9 * MIB, np.uint8)
INFO = pb.GetServerInfoResponse(
    inline_payload_bytes=MIB, max_chunk_bytes=MIB, instance_id="0" * 32, server_version="1"
).SerializeToString()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "_SCALE", 0.0)


def together(work: Callable[[MemoryTransport, Operations], Awaitable[Any]], **limits: int) -> Any:
    """Run a client and a server in one event loop."""

    async def main() -> Any:
        transport = MemoryTransport(new_service(**limits))
        try:
            return await work(transport, Operations())
        finally:
            transport.service.drain()
            await transport.close()

    return asyncio.run(main())


async def run(transport: MemoryTransport, script: Script[Any]) -> Any:
    driver = AsyncDriver(transport)
    try:
        return await driver.run(script, None)
    finally:
        driver.end()


# --- step by step -----------------------------------------------------------------------------------------------------


def test_a_small_put_is_one_call_after_the_server_is_known() -> None:
    operations = Operations()
    for known in (False, True):
        script = operations.put("a", np.arange(3), None, None, None)
        command = next(script)
        if not known:
            assert command == Unary("GetServerInfo", b"")
            command = script.send(INFO)
        assert isinstance(command, Unary)
        assert command.method == "Store"
        with pytest.raises(StopIteration) as done:
            script.send(pb.StoreResponse(generation=7).SerializeToString())
        assert done.value.value == 7


def test_a_small_put_is_repeated_with_the_same_id_after_a_lost_connection() -> None:
    operations = Operations()
    script = operations.put("a", np.arange(3), None, None, None)
    next(script)
    first = script.send(INFO)
    assert isinstance(script.throw(LOST), Pause)
    assert script.send(None) == first


def test_a_refusal_is_raised_at_once() -> None:
    script = Operations().put("a", np.arange(3), None, None, None)
    next(script)
    script.send(INFO)
    with pytest.raises(dw.RemoteError) as caught:
        script.throw(dw.RemoteError("full", code="RESOURCE_EXHAUSTED", reason="STORE_FULL"))
    assert caught.value.reason == "STORE_FULL"


def test_a_lost_put_asks_how_far_it_came_and_a_failed_one_says_farewell() -> None:
    script = Operations().put("a", BIG, None, None, None)
    next(script)
    command = script.send(INFO)
    assert isinstance(command, SendAll)
    assert isinstance(script.throw(LOST), Pause)
    command = script.send(None)
    assert isinstance(command, Unary)
    assert command.method == "GetUploadStatus"
    committed = pb.GetUploadStatusResponse(state=pb.GetUploadStatusResponse.COMMITTED, generation=9)
    with pytest.raises(StopIteration) as done:
        script.send(committed.SerializeToString())
    assert done.value.value == 9

    script = Operations().put("a", BIG, None, None, None)
    next(script)
    script.send(INFO)
    command = script.throw(KeyboardInterrupt())
    assert isinstance(command, Notify)
    with pytest.raises(KeyboardInterrupt):
        script.send(None)


def test_a_delete_is_not_repeated() -> None:
    operations = Operations()
    script = operations.delete("a", None)
    next(script)
    script.send(INFO)
    with pytest.raises(dw.RemoteError):
        script.throw(LOST)


# --- against the server's state machine -------------------------------------------------------------------------------


def test_everything_that_is_put_comes_back() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        objects: dict[str, Any] = {
            "small": np.arange(5.0),
            "empty": np.zeros((0, 3)),
            "set": {"a": np.arange(3), "b": np.arange(4)},
            "large": BIG,
            "strided": BIG.reshape(-1, 4)[:, 1:3],
            "large set": {"a": BIG[: 3 * MIB], "b": BIG[::-1][: 3 * MIB]},
        }
        generations = {}
        for name, x in objects.items():
            generations[name] = await run(transport, operations.put(name, x, {"k": name}, None, None))
        for name, x in objects.items():
            got = await run(transport, operations.get(name, (), None, None, None, None))
            info = await run(transport, operations.stat(name))
            assert (info.generation, info.metadata) == (generations[name], {"k": name})
            if isinstance(x, dict):
                assert {k: t.numpy().tobytes() for k, t in got.items()} == {k: v.tobytes() for k, v in x.items()}
            else:
                assert (got.shape, got.numpy().tobytes()) == (x.shape, x.tobytes())
        page, token = await run(transport, operations.list_page("s", ""))
        assert ([info.name for info in page], token) == (["set", "small", "strided"], "")
        assert await run(transport, operations.delete("set", generations["set"])) == generations["set"]
        with pytest.raises(dw.NotFoundError):
            await run(transport, operations.get("set", (), None, None, None, None))

    together(work)


@pytest.mark.parametrize("lost_after", [0, 1, 2, 5, 8])
def test_a_put_goes_on_where_it_was_lost(lost_after: int) -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        sent: list[int] = []
        transport.losses = [lost_after, 1]
        x = {"a": BIG[: 5 * MIB], "b": BIG[5 * MIB :]}
        await run(transport, operations.put("x", x, None, None, lambda done, _: sent.append(done)))
        assert transport.calls.count("Put") == transport.calls.count("GetUploadStatus") + 1 > 1
        got = await run(transport, operations.get("x", (), None, None, None, None))
        assert np.array_equal(np.concatenate([got["a"].numpy(), got["b"].numpy()]), BIG)
        assert len(sent) <= 9 + 2  # continued, not begun anew: a chunk on its way may be lost each time

    together(work)


@pytest.mark.parametrize("lost_after", [0, 1, 3])
def test_a_get_goes_on_where_it_was_lost(lost_after: int) -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        await run(transport, operations.put("x", BIG, None, None, None))
        received: list[int] = []
        transport.losses = [lost_after, 1, lost_after]
        got = await run(transport, operations.get("x", (), None, None, None, lambda done, _: received.append(done)))
        assert np.array_equal(got.numpy(), BIG)
        assert received == sorted(received)
        part = await run(transport, operations.get("x", (), None, np.s_[5 : 5 * MIB : 2], None, None))
        assert np.array_equal(part.numpy(), BIG[5 : 5 * MIB : 2])

    together(work)


def test_an_object_replaced_between_two_calls_is_read_as_one() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        await run(transport, operations.put("x", BIG, None, None, None))
        script = operations.get("x", (), None, None, None, None)
        driver = AsyncDriver(transport)
        command: Any = next(script)
        while not (isinstance(command, Unary) and command.method == "Fetch"):
            command = script.send(await driver._do(command, Clock(None)))
        answer = await driver._do(command, Clock(None))
        await run(transport, operations.put("x", BIG[::-1].copy(), None, None, None))
        await run(transport, operations.delete("x", None))
        await run(transport, operations.put("x", BIG[: 2 * MIB], None, None, None))
        try:
            command = script.send(answer)
            while True:
                try:
                    answer = await driver._do(command, Clock(None))
                except dw.RemoteError as error:
                    command = script.throw(error)
                else:
                    command = script.send(answer)
        except StopIteration as done:
            got = done.value
        assert np.array_equal(got.numpy(), BIG[: 2 * MIB])
        driver.end()

    together(work)


def test_a_failing_progress_ends_the_put_with_its_own_error() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        def fail(done: int, total: int) -> None:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await run(transport, operations.put("x", BIG, None, None, fail))
        await asyncio.sleep(0)
        with pytest.raises(dw.NotFoundError):
            await run(transport, operations.stat("x"))
        assert transport.calls[-2] == "notify DiscardUpload"

    together(work)


def test_a_cancelled_put_says_farewell() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        begun = asyncio.Event()
        task = asyncio.ensure_future(run(transport, operations.put("x", BIG, None, None, lambda done, _: begun.set())))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.calls[-1] == "notify DiscardUpload"

    together(work)


def test_frames_go_from_publisher_to_subscriber() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        publishing = Publishing(operations, "cam/left")
        sender, receiver = AsyncDriver(transport), AsyncDriver(transport)
        subscribing = Subscribing("cam/*", "reliable", 0, 0, False)
        await receiver.run(subscribing.open(), None)
        for i, size in enumerate((0, 10, MIB, 5 * MIB)):
            sequence = await sender.run(publishing.send(BIG[:size], {"i": i}, None), None)
            frame: Frame | None = await receiver.run(subscribing.next(), None)
            assert frame is not None
            assert (frame.sequence, frame.metadata, frame.dropped_count) == (sequence, {"i": i}, 0)
            assert np.array_equal(frame.tensor.numpy(), BIG[:size])
            assert publishing.subscriber_count == 1
        assert transport.calls.count("Publish") == 1  # one call for all frames
        await sender.finish()
        receiver.end()

    together(work)


def test_a_subscription_goes_on_after_a_lost_connection_and_counts_what_it_missed() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        publishing = Publishing(operations, "t")
        sender, receiver = AsyncDriver(transport), AsyncDriver(transport)
        subscribing = Subscribing("t", "latest", 0, 0, False)
        transport.losses = [3]
        await receiver.run(subscribing.open(), None)
        await sender.run(publishing.send(BIG[:10], None, None), None)
        first = await receiver.run(subscribing.next(), None)
        assert first is not None
        assert first.sequence == 1
        for _ in range(3):
            await sender.run(publishing.send(BIG[:10], None, None), None)
        frames = []
        while not frames or frames[-1].sequence < 4:
            frame = await receiver.run(subscribing.next(), None)
            assert frame is not None
            frames.append(frame)
        assert transport.calls.count("Subscribe") == 2
        assert sum(1 + frame.dropped_count for frame in frames) == 3
        sender.end()
        receiver.end()

    together(work)


@pytest.mark.parametrize(("before", "during"), [(1, 0), (0, 0), (1, 1), (1, 3), (0, 2)])
def test_a_reliable_subscription_goes_on_if_nothing_was_missed(before: int, during: int) -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        publishing = Publishing(operations, "t")
        sender, receiver = AsyncDriver(transport), AsyncDriver(transport)
        subscribing = Subscribing("t", "reliable", 0, 0, False)
        transport.losses = [2 + before]  # start, caught up, and the frames
        await receiver.run(subscribing.open(), None)
        for i in range(before):
            await sender.run(publishing.send(BIG[:10], None, None), None)
            frame: Frame | None = await receiver.run(subscribing.next(), None)
            assert frame is not None
            assert frame.sequence == i + 1
        for _ in range(during):
            await sender.run(publishing.send(BIG[:10], None, None), None)
        if during > 1:
            with pytest.raises(
                dw.RemoteError, match=f"frames {before + 1} to {before + during - 1} were lost"
            ) as caught:
                await receiver.run(subscribing.next(), None)
            assert caught.value.code == "DATA_LOSS"
            assert not subscribing.may_go_on
        else:
            waiting = asyncio.ensure_future(receiver.run(subscribing.next(), None))
            if not during:
                while transport.calls.count("Subscribe") < 2:
                    await asyncio.sleep(0)
                for _ in range(10):
                    await asyncio.sleep(0)
                await sender.run(publishing.send(BIG[:10], None, None), None)
            frame = await waiting
            assert frame is not None
            assert frame.sequence == before + 1
        sender.end()
        receiver.end()

    together(work)


def test_a_reliable_subscription_ends_with_the_server_that_it_was_made_at() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        receiver = AsyncDriver(transport)
        transport.losses = [1]
        subscribing = Subscribing("t", "reliable", 0, 0, False)
        await receiver.run(subscribing.open(), None)
        transport.service = new_service("1" * 32)
        with pytest.raises(dw.RemoteError, match="restarted") as caught:
            await receiver.run(subscribing.next(), None)
        assert caught.value.code == "DATA_LOSS"

    together(work)


def test_a_subscription_that_gave_up_tries_again_when_it_is_asked_again() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        receiver, sender = AsyncDriver(transport), AsyncDriver(transport)
        transport.losses = [2]
        subscribing = Subscribing("t", "latest", 0, 0, False, reconnect_s=1)
        await receiver.run(subscribing.open(), None)
        transport.losses = [2] + [0] * 100
        for _ in range(2):
            with pytest.raises(dw.RemoteError) as caught:
                await receiver.run(subscribing.next(), None)
            assert caught.value.code == "UNAVAILABLE"
            assert subscribing.may_go_on
        # The first; one that was lost again; 4 until the time was over, and 5 when it was asked again.
        assert transport.calls.count("Subscribe") == 11
        transport.losses = []
        await sender.run(Publishing(operations, "t").send(BIG[:10], None, None), None)
        frame = await receiver.run(subscribing.next(), None)
        assert frame is not None
        assert not subscribing.may_go_on
        sender.end()
        receiver.end()

    together(work)


@pytest.mark.parametrize(("reconnect_s", "pauses"), [(0, 0), (0.01, 1), (1, 4), (4, 6), (60, 34)])
def test_how_long_a_lost_server_is_waited_for(monkeypatch: pytest.MonkeyPatch, reconnect_s: float, pauses: int) -> None:
    monkeypatch.setattr(Backoff, "_SCALE", 1.0)
    lost = dw.RemoteError("lost", code="UNAVAILABLE")
    backoff = Backoff(reconnect_s)
    for _ in range(2):
        waited: list[float] = []
        with pytest.raises(dw.RemoteError):
            while True:
                waited.append(backoff.pause(lost).seconds)
        assert len(waited) == pauses
        assert sum(waited) == pytest.approx(reconnect_s)
        backoff.progress()
    forever = Backoff(None)
    assert [forever.pause(lost).seconds for _ in range(1000)][-1] == 2.0
    with pytest.raises(dw.RemoteError):
        forever.pause(dw.RemoteError("no", code="PERMISSION_DENIED"))


def test_a_refused_frame_leaves_the_publisher_usable() -> None:
    async def work(transport: MemoryTransport, operations: Operations) -> None:
        publishing = Publishing(operations, "t")
        sender = AsyncDriver(transport)
        with pytest.raises(dw.RemoteError) as caught:
            await sender.run(publishing.send(np.broadcast_to(np.uint8(0), (1 << 29,)), None, None), None)
        assert caught.value.reason == "OBJECT_TOO_LARGE"
        assert await sender.run(publishing.send(BIG[:3], None, None), None) == 1
        sender.end()

    together(work)


def test_a_frame_that_is_refused_is_not_sent_to_its_end() -> None:
    script = Publishing(Operations(), "t").send(np.zeros(64 << 20, np.uint8), None, None)
    assert isinstance(next(script), IsOpen)
    assert isinstance(script.send(False), Open)
    assert isinstance(script.send(None), Send)
    assert isinstance(script.send(None), IsOpen)
    assert isinstance(script.send(False), Next)
    assert isinstance(script.throw(dw.RemoteError("refused", code="PERMISSION_DENIED")), Cancel)
    with pytest.raises(dw.RemoteError, match="refused"):
        script.send(None)
