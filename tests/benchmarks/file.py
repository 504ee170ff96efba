"""save, load and open against safetensors, numpy and torch. Page cache warm, checksums on, bytes really touched."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch

import dlpack_wire as dw

from .measure import Row, Work, interleaved, rate_row, time_row


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _save(Path(folder), "1 x 512 MiB", _tensors(1, 512 << 20), 0.95, rounds=5)
        yield from _load(Path(folder))
        yield from _save(Path(folder), "512 x 1 MiB", _tensors(512, 1 << 20), 0.95, rounds=5)
        yield from _save(Path(folder), "20 000 x 4 KiB", _tensors(20_000, 4096), 0.9, rounds=9)
        yield from _open_one(Path(folder), "20 000", "layer.7777.weight", 0.6, rounds=21)
    with tempfile.TemporaryDirectory() as folder:
        yield from _others(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        tiny = np.arange(4, dtype="i4")
        tensors = dict.fromkeys((f"tensor.{i}" for i in range(1_000_000)), tiny)
        dw.save(Path(folder) / "ours.dlpw", iter(tensors.items()), durable=False)
        safetensors.numpy.save_file(tensors, Path(folder) / "theirs.safetensors")
        yield from _open_one(Path(folder), "1 000 000", "tensor.777777", 1, rounds=3)


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


def _open_one(folder: Path, count: str, name: str, bound: float, rounds: int) -> Iterator[Row]:
    ours, theirs = folder / "ours.dlpw", folder / "theirs.safetensors"

    def open_ours() -> int:
        with dw.open(ours) as f:
            return int(f[name].numpy().sum())

    def open_theirs() -> int:
        with safetensors.safe_open(theirs, "np") as f:
            return int(f.get_tensor(name).sum())

    assert open_ours() == open_theirs()
    took = interleaved({"ours": open_ours, "theirs": open_theirs}, rounds)
    yield time_row(f"open and read one of {count}", took["ours"], "safetensors safe_open", took["theirs"], bound)


def _others(folder: Path) -> Iterator[Row]:
    """The same 512 MiB with numpy and torch, which have no checksums (a zip's CRC apart)."""
    tensors = _tensors(16, 32 << 20)
    as_torch = {name: torch.from_numpy(x.view(np.int32)) for name, x in tensors.items()}
    ours, npz, pt = folder / "ours.dlpw", folder / "theirs.npz", folder / "theirs.pt"
    saves = {
        "ours": _fresh(ours, lambda: dw.save(ours, tensors, durable=False)),
        "numpy savez": _fresh(npz, lambda: np.savez(npz, **tensors)),
        "torch save": _fresh(pt, lambda: torch.save(as_torch, pt)),
    }

    def load_npz() -> int:
        with np.load(npz) as f:
            return _touched(dict(f.items()))

    took = interleaved(saves, rounds=3)
    for peer in ("numpy savez", "torch save"):
        yield rate_row("save 16 x 32 MiB", took["ours"], peer, took[peer], 1)
    loads = {
        "ours": lambda: _touched({name: t.numpy() for name, t in dw.load_dict(ours).items()}),
        "numpy load": load_npz,
        "torch load": lambda: _touched({name: t.numpy() for name, t in torch.load(pt).items()}),
    }
    took = interleaved(loads, rounds=3)
    for peer in ("numpy load", "torch load"):
        yield rate_row("load, verify and touch 16 x 32 MiB", took["ours"], peer, took[peer], 1)
