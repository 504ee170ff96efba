"""Writing a log against a buffered raw file and against the mcap package on ready bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mcap.writer import CompressionType, Writer

import dlpack_wire as dw

from .measure import Row, interleaved, rate_row


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _large(Path(folder))
        yield from _small(Path(folder))


def _large(folder: Path) -> Iterator[Row]:
    random = np.random.default_rng(0)
    tensors = [random.integers(0, 255, (1 + i % 6) << 20, dtype=np.uint8) for i in range(48)]

    def ours() -> None:
        with dw.LogWriter(folder / "ours.mcap", overwrite=True) as log:
            for i, x in enumerate(tensors):
                log.write("camera", x, time_ns=i)

    def raw() -> None:
        with open(folder / "raw", "wb") as f:
            for x in tensors:
                f.write(x.data)

    took = interleaved({"ours": ours, "raw": raw}, rounds=5)
    yield rate_row("log 48 tensors of 1 to 6 MiB", took["ours"], "buffered raw file write", took["raw"], 0.9)


def _small(folder: Path) -> Iterator[Row]:
    x = np.arange(250, dtype=np.float32)
    message = dw.encode(x)
    count = 20_000

    def ours() -> None:
        with dw.LogWriter(folder / "ours.mcap", overwrite=True) as log:
            for i in range(count):
                log.write("joint", x, time_ns=i)

    def theirs() -> None:
        with open(folder / "theirs.mcap", "wb") as f:
            writer = Writer(f, compression=CompressionType.NONE)
            writer.start()
            schema = writer.register_schema("dlpack_wire.v1.DLTensor", "protobuf", b"")
            channel = writer.register_channel("joint", "protobuf", schema)
            for i in range(count):
                writer.add_message(channel, log_time=i, publish_time=i, data=message)
            writer.finish()

    took = interleaved({"ours": ours, "theirs": theirs}, rounds=7)
    yield rate_row("log 20 000 tensors of 1 kB", took["ours"], "mcap Writer on ready bytes", took["theirs"], 0.8)
