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
