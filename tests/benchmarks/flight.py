"""put and get over loopback TCP against Arrow Flight, and requests per second with many callers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

import dlpack_wire as dw

from .measure import Row, Work, interleaved, told_row

LARGE_BYTES = int(os.environ.get("DLPACK_WIRE_BENCH_BYTES", 1 << 30))
BATCH_BYTES = 4 << 20


class Peer:
    """A Flight client that puts and gets one column of bytes."""

    def __init__(self, port: int) -> None:
        self._client = flight.connect(f"grpc://127.0.0.1:{port}")
        self._schema = pa.schema([("x", pa.uint8())])

    def put(self, x: np.ndarray) -> None:
        writer, _ = self._client.do_put(flight.FlightDescriptor.for_path(str(x.nbytes)), self._schema)
        with writer:
            for begin in range(0, x.nbytes, BATCH_BYTES):
                column = pa.array(x[begin : begin + BATCH_BYTES])
                writer.write_batch(pa.record_batch([column], schema=self._schema))

    def get(self, size: int) -> np.ndarray:
        """Receive into one array, as our client does."""
        array = np.empty(size, np.uint8)
        offset = 0
        for chunk in self._client.do_get(flight.Ticket(str(size).encode())):
            part = chunk.data.column(0).to_numpy()
            array[offset : offset + len(part)] = part
            offset += len(part)
        assert offset == size
        return array


@contextmanager
def peer() -> Iterator[Peer]:
    command = [sys.executable, "-m", f"{__package__}.flight_peer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Peer(int(process.stdout.readline()))
        finally:
            process.kill()


@contextmanager
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "dlpack_wire_server", "--listen", "127.0.0.1:0", "--max-store-bytes", "8GiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def rows() -> Iterator[Row]:
    with peer() as theirs, server() as address, dw.connect(address) as ours:
        for size, rounds, loops in ((4096, 15, 100), (1 << 20, 15, 10), (64 << 20, 9, 1), (LARGE_BYTES, 5, 1)):
            yield from _transfers(theirs, ours, size, rounds, loops)
        yield from _callers(theirs, ours)


def _transfers(theirs: Peer, ours: dw.Client, size: int, rounds: int, loops: int) -> Iterator[Row]:
    x = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    works: dict[str, Work] = {"ours": lambda: ours.put("x", x), "theirs": lambda: theirs.put(x)}
    took = interleaved(works, rounds, loops=loops)
    said = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
    yield told_row(f"put {said} over TCP", took["ours"], "Arrow Flight do_put", took["theirs"])
    assert (ours.get("x").numpy() == x).all()
    assert (theirs.get(size) == x).all()
    took = interleaved({"ours": lambda: ours.get("x"), "theirs": lambda: theirs.get(size)}, rounds, loops=loops)
    yield told_row(f"get {said} over TCP", took["ours"], "Arrow Flight do_get", took["theirs"])


def _callers(theirs: Peer, ours: dw.Client) -> Iterator[Row]:
    x = np.zeros(4096, np.uint8)
    ours.put("small", x)
    theirs.put(x)
    for callers in (1, 8, 64):
        seconds = [_per_call(work, callers) for work in (lambda: ours.get("small"), lambda: theirs.get(4096))]
        said = f"get 4 KiB, {callers} callers: {1 / seconds[0]:.0f} a second"
        yield told_row(said, seconds[0], f"Arrow Flight: {1 / seconds[1]:.0f} a second", seconds[1])


def _per_call(work: Work, callers: int) -> float:
    """Seconds per call with that many threads calling."""
    count = 2000 // callers

    def run(_: int) -> None:
        for _ in range(count):
            work()

    with ThreadPoolExecutor(callers) as pool:
        begin = time.perf_counter()
        list(pool.map(run, range(callers)))
        return (time.perf_counter() - begin) / (count * callers)
