"""What stands around every call: limits per caller, answers, and an event loop that stays free."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
from dlpack_wire_server.auth import Authorizer, Caller, Credentials
from dlpack_wire_server.calls import CallLimits, Calls
from dlpack_wire_server.grpc_calls import trailers
from dlpack_wire_server.metrics import Metrics
from server_process import ServerProcess

from dlpack_wire.service.async_client import AsyncClient

MIB = 1 << 20


class Stranger:
    """As much of a call as stands around it."""

    credentials = Credentials(None, "ipv4:127.0.0.1", None)

    async def read(self) -> None:
        return None

    async def write(self, message: bytes) -> None:
        raise AssertionError("nothing is sent")


def calls_with(**limits: int) -> Calls:
    return Calls(Authorizer(), Metrics(), CallLimits(**limits), on_disk=False)


def test_one_caller_cannot_run_every_call() -> None:
    async def work() -> None:
        calls = calls_with(calls=2)
        go_on = asyncio.Event()

        async def wait(caller: Caller) -> bytes:
            await go_on.wait()
            return b"done"

        running = [asyncio.create_task(calls.answer("Get", Stranger(), wait)) for _ in range(3)]
        refused = (await running[2]).status
        assert refused is not None
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert dict(trailers(refused)) == {"dlpack-wire-reason": "TOO_MANY_REQUESTS"}
        go_on.set()
        assert await asyncio.gather(*running[:2]) == [(b"done", None)] * 2
        assert await calls.answer("Get", Stranger(), wait) == (b"done", None)
        calls.close()

    asyncio.run(work())


def test_a_fault_is_told_without_its_details(caplog: Any) -> None:
    async def work() -> None:
        calls = calls_with()

        async def fail(caller: Caller) -> None:
            raise ZeroDivisionError("secret")

        status = (await calls.answer("Get", Stranger(), fail)).status
        assert status is not None
        assert (status.code, "secret" in status.text) == ("INTERNAL", False)
        calls.close()

    asyncio.run(work())
    assert "secret" in caplog.text


class Hanging(Stranger):
    """A caller that sends nothing and takes nothing."""

    async def read(self) -> None:
        await asyncio.Event().wait()

    async def write(self, message: bytes) -> None:
        await asyncio.Event().wait()


def test_a_call_whose_message_does_not_come_is_ended_with_its_reason() -> None:
    async def work() -> None:
        calls = calls_with()

        async def read(caller: Caller) -> None:
            await calls.read(hanging, -1)

        hanging = Hanging()
        waiting = asyncio.create_task(calls.answer("Put", hanging, read))
        await asyncio.sleep(0)
        calls.sweep()
        calls.sweep()  # the call has not ended yet, and is ended once
        status = (await waiting).status
        assert status is not None
        assert (status.code, status.reason) == ("ABORTED", "UPLOAD_INCOMPLETE")
        assert calls.stalled_count == 1
        calls.close()

    asyncio.run(work())


def test_a_call_that_is_cancelled_while_it_reads_is_not_taken_for_one_that_is_late() -> None:
    async def work() -> None:
        calls = calls_with()

        async def read(caller: Caller) -> None:
            await calls.read(Hanging(), 60)

        waiting = asyncio.create_task(calls.answer("Put", Hanging(), read))
        await asyncio.sleep(0)
        calls.sweep()
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert calls.stalled_count == 0
        calls.close()

    asyncio.run(work())


def test_calls_that_take_nothing_are_ended_those_that_wait_longest_alone() -> None:
    async def work() -> None:
        calls = calls_with()

        async def write(caller: Caller) -> None:
            await calls.write(Hanging(), b"")

        old = asyncio.create_task(calls.answer("Get", Hanging(), write))
        await asyncio.sleep(0.2)
        new = asyncio.create_task(calls.answer("Get", Hanging(), write))
        await asyncio.sleep(0)
        assert calls.end_stalled(60) == 0
        assert calls.end_stalled(0.1) == 1
        assert calls.end_stalled(0.1) == 0  # it was told already
        status = (await old).status
        assert status is not None
        assert (status.code, status.reason, new.done()) == ("UNAVAILABLE", "", False)
        new.cancel()
        await asyncio.wait([new])
        assert new.cancelled()
        assert calls.end_stalled(-1) == 0
        calls.close()

    asyncio.run(work())


def test_a_call_without_a_request_is_an_error() -> None:
    async def work() -> None:
        calls = calls_with()

        async def read(caller: Caller) -> None:
            await calls.request(Stranger())

        status = (await calls.answer("Stat", Stranger(), read)).status
        assert status is not None
        assert (status.code, status.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        calls.close()

    asyncio.run(work())


def test_small_calls_are_answered_while_large_ones_run(server: ServerProcess, name: str) -> None:
    async def work() -> None:
        large = np.zeros(200 * MIB, np.uint8)
        async with AsyncClient(server.address, timeout=60) as busy, AsyncClient(server.address, timeout=60) as quick:
            await quick.put(f"{name}/small", np.zeros(10))
            transfers = [asyncio.create_task(busy.put(f"{name}/{i}", large)) for i in range(3)]
            slowest = 0.0
            while not all(transfer.done() for transfer in transfers):
                begin = time.monotonic()
                await quick.get(f"{name}/small")
                slowest = max(slowest, time.monotonic() - begin)
            await asyncio.gather(*transfers)
            assert slowest < 2
            for i in range(3):
                await quick.delete(f"{name}/{i}")

    asyncio.run(work())
