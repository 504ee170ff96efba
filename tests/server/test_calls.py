"""What stands around every call: limits per caller, answers, and an event loop that stays free."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import numpy as np
from dlpack_wire_server.auth import Authorizer, Caller
from dlpack_wire_server.hub import Hub
from dlpack_wire_server.metrics import Metrics
from dlpack_wire_server.service import Limits, TensorService
from dlpack_wire_server.store import MemoryStore
from dlpack_wire_server.unfinished import UnfinishedPuts
from server_process import ServerProcess

from dlpack_wire.service.async_client import AsyncClient

MIB = 1 << 20


class Context:
    """As much of a call's context as stands around it."""

    code = grpc.StatusCode.OK
    details = ""
    trailers: Any = ()

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def peer_identities(self) -> None:
        return None

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailers: Any) -> None:
        self.trailers = trailers


def service(**limits: int) -> TensorService:
    store = MemoryStore(1 << 30, 10**9)
    return TensorService(
        store, UnfinishedPuts(10**9, 1 << 30), Hub(1 << 30, 100), Authorizer(), Metrics(), "0" * 32, Limits(**limits)
    )


def test_one_caller_cannot_run_every_call() -> None:
    async def work() -> None:
        limited = service(caller_calls=2)
        go_on = asyncio.Event()

        async def wait(caller: Caller) -> str:
            await go_on.wait()
            return "done"

        contexts: list[Any] = [Context() for _ in range(3)]
        running = [asyncio.create_task(limited._answer("Get", context, wait)) for context in contexts]
        assert await running[2] is None
        assert contexts[2].code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(contexts[2].trailers) == {"dlpack-wire-reason": "TOO_MANY_REQUESTS"}
        go_on.set()
        assert await asyncio.gather(*running[:2]) == ["done", "done"]
        later: Any = Context()
        assert await limited._answer("Get", later, wait) == "done"
        limited.close()

    asyncio.run(work())


def test_a_fault_is_told_without_its_details(caplog: Any) -> None:
    async def work() -> None:
        faulty = service()
        context: Any = Context()

        async def fail(caller: Caller) -> None:
            raise ZeroDivisionError("secret")

        await faulty._answer("Get", context, fail)
        assert (context.code, "secret" in context.details) == (grpc.StatusCode.INTERNAL, False)
        faulty.close()

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
