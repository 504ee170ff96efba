"""What a server goes through that is left running: crashes, cancelled calls, frozen clients, crowds.

Counts are small in `make test` and those of the soak in `make soak`.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import ROOT, ServerProcess, eventually, running
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.service.client import Client, connect
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
Rounds = Callable[[int, int], int]


# --- crashes ----------------------------------------------------------------------------------------------------------


class Writer:
    """Puts, replaces and deletes until its server dies, and knows what must be there and what may be.

    Attributes:
        certain: What the server acknowledged last, by name; None: deleted.
        doubtful: What was asked for last without an answer.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.certain: dict[str, int | None] = {}
        self.doubtful: tuple[str, int | None] | None = None
        self._serial = seed * 1_000_000

    def work(self, address: str) -> None:
        with suppress(dw.RemoteError), connect(address, timeout=60, reconnect_s=0) as client:
            while True:
                name = f"name {self._chance.randrange(6)}"
                present = self.certain.get(name)
                if present is not None and self._chance.random() < 0.3:
                    self.doubtful = (name, None)
                    client.delete(name)
                    self.certain[name] = None
                else:
                    self._serial += 1
                    self.doubtful = (name, self._serial)
                    client.put(name, content(self._serial))
                    self.certain[name] = self._serial
                self.doubtful = None

    def check(self, client: Client) -> None:
        """Compare the server with what this writer knows, and take what it has for certain."""
        listed = {info.name for info in client.list()}
        for name, serial in list(self.certain.items()):
            allowed = {serial}
            if self.doubtful is not None and self.doubtful[0] == name:
                allowed.add(self.doubtful[1])
            found = serial_of(client.get(name)) if name in listed else None
            assert found in allowed, (name, found, allowed)
            self.certain[name] = found
        if self.doubtful is not None and self.doubtful[0] not in self.certain and self.doubtful[0] in listed:
            self.certain[self.doubtful[0]] = serial_of(client.get(self.doubtful[0]))
        assert listed == {name for name, serial in self.certain.items() if serial is not None}
        self.doubtful = None


def content(serial: int) -> dict[str, Any]:
    """A set of tensors, small or large, that all know its serial."""
    size = random.Random(serial).choice((10, 1000, 200_000, 3 * MIB))
    return {"a": np.full(size, serial, np.int32), "b": np.full(3, serial, np.int64)}


def serial_of(tensors: Any) -> int:
    serial = int(tensors["b"].numpy()[0])
    expected = content(serial)
    assert all(np.array_equal(tensors[name].numpy(), x) for name, x in expected.items())
    return serial


def test_killed_at_any_moment_every_answer_holds(tmp_path: Path, rounds: Rounds) -> None:
    writer = Writer(1)
    chance = random.Random(0)
    for _ in range(rounds(25, 2000)):
        server = ServerProcess("--dir", str(tmp_path))
        try:
            with connect(server.address, timeout=20) as client:
                writer.check(client)
            worker = threading.Thread(target=writer.work, args=(server.address,))
            worker.start()
            time.sleep(chance.uniform(0.0, 0.25))
        finally:
            server.stop(signal.SIGKILL)
        worker.join(30)
        assert not worker.is_alive()
    server = ServerProcess("--dir", str(tmp_path))
    with connect(server.address, timeout=20) as client:
        writer.check(client)
    assert server.stop()[0] == 0
    assert len(os.listdir(tmp_path / "objects")) == sum(serial is not None for serial in writer.certain.values())
    for file in (tmp_path / "objects").iterdir():
        dw.verify(file)


# --- cancelled and crowded --------------------------------------------------------------------------------------------


@contextmanager
def nothing_left_over(server: ServerProcess, slack_bytes: int = 24 * MIB) -> Iterator[None]:
    """Threads, descriptors and memory must be back to where they were."""
    before = server.thread_count(), server.descriptor_count(), server.private_bytes()
    yield
    # The pool of threads that write grows to its size once and stays.
    eventually(lambda: server.thread_count() <= before[0] + 8, 20)
    # Some versions of gRPC open one more for their second connection and keep it.
    eventually(lambda: server.descriptor_count() <= before[1] + 1, 20)
    eventually(lambda: server.private_bytes() <= before[2] + slack_bytes, 20)


def warm_up(client: Client) -> None:
    for _ in range(3):
        client.put("x", np.zeros(64 * MIB, np.uint8))
        client.get("x")


def test_cancelled_gets_and_puts(rounds: Rounds) -> None:
    with running() as server, connect(server.address, timeout=60) as client:
        warm_up(client)
        get, put = client._connection.transport.callable("Get"), np.zeros(64 * MIB, np.uint8)
        chance = random.Random(0)
        with nothing_left_over(server):
            for _ in range(rounds(20, 200)):
                call = get(pb.GetRequest(name="x").SerializeToString())
                for _ in range(chance.randrange(4)):
                    next(call)
                call.cancel()

                limit = chance.randrange(20 * MIB)

                def give_up(done: int, total: int, limit: int = limit) -> None:
                    if done > limit:
                        raise LookupError

                with pytest.raises(LookupError):
                    client.put("x", put, progress=give_up)
        assert client.get("x").shape == (64 * MIB,)


KILLED_CLIENT = """
import sys, numpy as np
from dlpack_wire.service.client import connect
with connect(sys.argv[1]) as client:
    def tell(done, total):
        if done > 8 << 20:
            print("halfway", flush=True)
            sys.stdin.read()
    if sys.argv[2] == "put":
        client.put("killed", np.zeros(200 << 20, np.uint8), progress=tell)
    else:
        client.get("x", progress=tell)
"""


@contextmanager
def halfway(server: ServerProcess, what: str) -> Iterator[subprocess.Popen[str]]:
    """A client process in the middle of a transfer."""
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED_CLIENT, server.address, what],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "halfway\n"
        yield client
    finally:
        client.kill()
        client.communicate()


@pytest.mark.parametrize("what", ["put", "get"])
def test_killed_clients(what: str, rounds: Rounds) -> None:
    with running("--upload-retention-s", "0.2") as server, connect(server.address, timeout=60) as client:
        warm_up(client)
        with nothing_left_over(server):
            for _ in range(rounds(2, 50)):
                with halfway(server, what) as other:
                    other.kill()
        assert [info.name for info in client.list()] == ["x"]


def test_a_frozen_client_holds_little(rounds: Rounds) -> None:
    with running() as server, connect(server.address, timeout=120) as client:
        warm_up(client)
        client.put("x", np.zeros(400 * MIB, np.uint8))
        before = server.private_bytes()
        with halfway(server, "get") as frozen:
            frozen.send_signal(signal.SIGSTOP)
            for _ in range(rounds(10, 100)):
                time.sleep(0.05)
                assert server.private_bytes() - before < 64 * MIB
            client.put("y", np.zeros(20 * MIB, np.uint8))
            assert client.get("y").shape == (20 * MIB,)


def test_a_crowd(rounds: Rounds) -> None:
    with running() as server:
        with connect(server.address, timeout=60) as client:
            warm_up(client)
        failures: list[BaseException] = []
        ready = threading.Barrier(rounds(40, 500))

        def visit(i: int) -> None:
            try:
                with connect(server.address, timeout=120) as visitor:
                    ready.wait(60)
                    for size in (100, 300_000, 2 * MIB):
                        x = np.full(size, i % 256, np.uint8)
                        visitor.put(f"visitor {i}", x)
                        assert np.array_equal(visitor.get(f"visitor {i}").numpy(), x)
                    visitor.delete(f"visitor {i}")
            except BaseException as error:
                failures.append(error)

        with nothing_left_over(server, 64 * MIB):
            visitors = [threading.Thread(target=visit, args=(i,)) for i in range(ready.parties)]
            for visitor in visitors:
                visitor.start()
            for visitor in visitors:
                visitor.join(120)
            assert not failures


def test_memory_of_a_transfer(rounds: Rounds) -> None:
    size = rounds(256, 1024) * MIB
    with running() as server, connect(server.address, timeout=120) as client:
        client.put("x", np.zeros(4 * MIB, np.uint8))
        client.get("x")
        before, peak, done = server.private_bytes(), 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.002):
                peak = max(peak, server.private_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        x = np.zeros(size, np.uint8)
        client.put("x", x)
        client.get("x", out=x)
        done.set()
        watcher.join()
        assert peak - before < 64 * MIB


PEAK = """
    import numpy as np
    from dlpack_wire.service.client import connect
    def peak():
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) >> 10
    with connect({address!r}, timeout=60) as client:
        x = np.ones(256 << 20, np.uint8)
        client.put("warm", x[:8 << 20])
        client.get("warm", out=x[:8 << 20])
        before = peak()
        client.put("x", x)
        put = peak()
        client.get("x", out=x)
        print(put - before < 64, peak() - put < 64)
"""


def test_memory_of_a_client() -> None:
    with running() as server:
        assert run_python(PEAK.format(address=server.address)) == "True True\n"


@pytest.mark.soak
def test_ten_minutes_of_everything(tmp_path: Path) -> None:
    seconds = float(os.environ.get("DLPACK_WIRE_SOAK_S", "600"))
    with running("--dir", str(tmp_path), "--upload-retention-s", "5") as server:
        end = time.monotonic() + seconds
        failures: list[BaseException] = []
        counts = [0] * 4

        def load(i: int) -> None:
            chance = random.Random(i)
            try:
                with (
                    connect(server.address, timeout=60) as client,
                    client.publisher(f"load {i}") as publisher,
                    client.subscribe(f"load {i}", policy="reliable") as frames,
                    client.subscribe("load *", policy="latest"),  # never read
                ):
                    while time.monotonic() < end:
                        name = f"load {i} {chance.randrange(5)}"
                        size = chance.choice((10, 5000, 300_000, 5 * MIB, 20 * MIB))
                        x = np.full(size, chance.randrange(256), np.uint8)
                        assert publisher.send(x) == counts[i] + 1
                        assert np.array_equal(next(frames).tensor.numpy(), x)
                        client.put(name, x)
                        assert np.array_equal(client.get(name).numpy(), x)
                        with suppress(LookupError):
                            client.put(name, x, progress=lambda done, total: {}[done] if done < total else None)
                        if chance.random() < 0.3:
                            client.delete(name)
                        counts[i] += 1
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=load, args=(i,)) for i in range(4)]
        for worker in workers:
            worker.start()
        time.sleep(min(60, seconds / 4))
        descriptors = server.descriptor_count()
        samples = []  # memory goes up and down with the frames that are queued
        while any(worker.is_alive() for worker in workers) and time.monotonic() < end + 120:
            samples.append(server.private_bytes())
            time.sleep(1)
        assert not failures
        assert not any(worker.is_alive() for worker in workers)
        third = len(samples) // 3
        first, last = (statistics.median(part) / MIB for part in (samples[:third], samples[-third:]))
        with connect(server.address, timeout=60) as client:
            for i in range(4):  # the newest frame of each topic is kept: a small one
                with client.publisher(f"load {i}") as publisher:
                    publisher.send(np.zeros(1))
        time.sleep(12)  # free memory is given back every few seconds
        after = server.private_bytes() / MIB
        print(f"{sum(counts)} rounds; private memory {first:.0f} -> {last:.0f} MiB, {after:.0f} when it was over")
        assert last - first < 32
        assert after < first
        eventually(lambda: server.descriptor_count() <= descriptors)
