"""save, load and open against safetensors. Page cache warm, checksums on, bytes really touched."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

import dlpack_wire as dw

from .measure import Row, Work, interleaved, rate_row, time_row


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _save(Path(folder), "1 x 512 MiB", _tensors(1, 512 << 20), 0.95, rounds=5)
        yield from _load(Path(folder))
        yield from _save(Path(folder), "512 x 1 MiB", _tensors(512, 1 << 20), 0.95, rounds=5)
        yield from _save(Path(folder), "20 000 x 4 KiB", _tensors(20_000, 4096), 0.9, rounds=9)
        yield from _open_one(Path(folder))


def _tensors(count: int, size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"layer.{i}.weight": random.integers(0, 255, size, dtype=np.uint8).view(np.uint32) for i in range(count)}


def _safetensors_synced(tensors: dict[str, np.ndarray], path: Path) -> None:
    safetensors.numpy.save_file(tensors, path)
    for place, flags in ((path, os.O_RDWR), (path.parent, os.O_RDONLY)):
        fd = os.open(place, flags)
        os.fsync(fd)
        os.close(fd)


def _fresh(path: Path, work: Work) -> Work:
    """Freeing an old file's pages takes as long as writing them: every save gets a new file."""

    def run() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, path.with_suffix(".old"))
        work()

    return run


def _save(folder: Path, name: str, tensors: dict[str, np.ndarray], bound: float, rounds: int) -> Iterator[Row]:
    ours, theirs = folder / "ours.dlpw", folder / "theirs.safetensors"
    works = {
        "ours": _fresh(ours, lambda: dw.save(ours, tensors, durable=False)),
        "theirs": _fresh(theirs, lambda: safetensors.numpy.save_file(tensors, theirs)),
    }
    took = interleaved(works, rounds)
    yield rate_row(f"save {name}", took["ours"], "safetensors save_file", took["theirs"], bound)
    works = {
        "ours": _fresh(ours, lambda: dw.save(ours, tensors)),
        "theirs": _fresh(theirs, lambda: _safetensors_synced(tensors, theirs)),
    }
    took = interleaved(works, 3)
    yield rate_row(f"save {name}, durable", took["ours"], "safetensors save_file + fsync", took["theirs"], 0.95)


def _touched(tensors: dict[str, np.ndarray]) -> int:
    return sum(int(x.view(np.uint64)[:: 4096 // 8].sum()) for x in tensors.values())


def _load(folder: Path) -> Iterator[Row]:
    ours, theirs = folder / "ours.dlpw", folder / "theirs.safetensors"
    took = interleaved(
        {
            # Verifying has touched every byte; the sum over pages makes both sides equal.
            "ours": lambda: _touched({name: t.numpy() for name, t in dw.load_dict(ours).items()}),
            "theirs": lambda: _touched(safetensors.numpy.load_file(theirs)),
        },
        rounds=9,
    )
    yield rate_row("load, verify and touch 512 MiB", took["ours"], "safetensors load_file", took["theirs"], 5)


def _open_one(folder: Path) -> Iterator[Row]:
    ours, theirs = folder / "ours.dlpw", folder / "theirs.safetensors"
    name = "layer.7777.weight"

    def open_ours() -> int:
        with dw.open(ours) as f:
            return int(f[name].numpy().sum())

    def open_theirs() -> int:
        with safetensors.safe_open(theirs, "np") as f:
            return int(f.get_tensor(name).sum())

    assert open_ours() == open_theirs()
    took = interleaved({"ours": open_ours, "theirs": open_theirs}, rounds=21)
    yield time_row("open and read one of 20 000", took["ours"], "safetensors safe_open", took["theirs"], 0.6)
