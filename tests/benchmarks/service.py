"""put, get, store and fetch over loopback TCP against gRPC that passes ready bytes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from server_process import ROOT, running

from dlpack_wire.service.client import connect
from dlpack_wire.service.grpc_transport import CHANNEL_OPTIONS, LOOKAHEAD_BYTES

from .grpc_peer import CHUNK_BYTES, SERVICE
from .measure import Row, Work, interleaved, rate_row, time_row

LARGE_BYTES = int(os.environ.get("DLPACK_WIRE_BENCH_BYTES", 1 << 30))
SMALL_BYTES = 4096


class Peer:
    """A client of the peer."""

    def __init__(self, address: str) -> None:
        options = [*CHANNEL_OPTIONS, ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES)]
        self._channel = grpc.insecure_channel(address, options)
        self._put = self._channel.stream_unary(f"/{SERVICE}/Put")
        self._get = self._channel.unary_stream(f"/{SERVICE}/Get")
        self._echo = self._channel.unary_unary(f"/{SERVICE}/Echo")
        self._chunk = bytes(CHUNK_BYTES)
        self._small = bytes(SMALL_BYTES)

    def put(self) -> None:
        self._put(self._chunk for _ in range(LARGE_BYTES // CHUNK_BYTES))

    def get(self) -> None:
        """Receive into one array."""
        array = np.empty(LARGE_BYTES, np.uint8)
        offset = 0
        for message in self._get(LARGE_BYTES.to_bytes(8, "little")):
            array[offset : offset + len(message)] = np.frombuffer(message, np.uint8)
            offset += len(message)

    def echo(self) -> None:
        self._echo(self._small)

    def close(self) -> None:
        self._channel.close()


@contextmanager
def peer() -> Iterator[Peer]:
    """A peer's client and server, the latter in a process of its own."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.grpc_peer"],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    client = Peer(f"127.0.0.1:{int(process.stdout.readline())}")
    try:
        yield client
    finally:
        client.close()
        process.communicate(timeout=10)


def rows() -> Iterator[Row]:
    with running("--max-store-bytes", "8GiB") as server, connect(server.address) as client, peer() as identity:
        large: Any = np.zeros(LARGE_BYTES, np.uint8)
        large[::4096] = 1  # pages of its own, not the one of zeros
        small = np.arange(SMALL_BYTES, dtype=np.uint8)
        client.put("large", large)
        client.put("small", small)

        def put() -> None:
            client.put("large", large)

        # Apart, because what a put leaves of free memory decides how fast the get behind it finds fresh pages.
        put_took = interleaved({"ours": put, "peer": identity.put}, rounds=5)
        get_took = interleaved({"ours": lambda: client.get("large"), "peer": identity.get}, rounds=5)
        size = f"{LARGE_BYTES >> 20} MiB"
        yield rate_row(f"put {size} over TCP", put_took["ours"], "identity stream into a memfd", put_took["peer"], 0.85)
        yield rate_row(
            f"get {size} over TCP", get_took["ours"], "identity stream into one array", get_took["peer"], 0.85
        )
        took = interleaved(
            {
                "put": lambda: client.put("small", small),
                "get": lambda: client.get("small"),
                "peer": identity.echo,
            },
            rounds=15,
            loops=100,
        )
        yield time_row("put 4 KiB over TCP", took["put"], "identity unary call", took["peer"], 1.3)
        yield time_row("get 4 KiB over TCP", took["get"], "identity unary call", took["peer"], 1.3)
        for callers in (8, 64):
            took = interleaved(
                {
                    "get": lambda callers=callers: together(callers, lambda: client.get("small")),
                    "peer": lambda callers=callers: together(callers, identity.echo),
                },
                rounds=7,
            )
            yield time_row(
                f"get 4 KiB, {callers} callers, 512 calls", took["get"], "identity unary call", took["peer"], 1.3
            )


def together(callers: int, work: Work) -> None:
    """512 calls by so many threads."""

    def share() -> None:
        for _ in range(512 // callers):
            work()

    threads = [threading.Thread(target=share) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
