"""The law of conversions: what the source's own library gives arrives, or is named, or nothing is written."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import foreign_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import any_bits, shapes

import dlpack_wire as dw
from dlpack_wire.cli import main as cli
from dlpack_wire.formats.convert import convert

SUFFIXES = tuple(foreign_files.TYPES)

# Names that make trouble somewhere: separators, suffixes, other scripts, reserved words, and each other.
NAMES = st.one_of(
    st.sampled_from(
        ["a", "b", "a.b", "a/b", "a/", "a.npy", "b.npy", "__metadata__", "0", " ", "ä", "名", "\U0001f600"]
    ),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    st.integers(1, 3).map(lambda n: "x" * 4095 + "y" * (n - 1)),
)


@st.composite
def contents(draw: st.DrawFn, suffix: str) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Draw what the library of a format can write into a file of it."""
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    if suffix == ".npz":  # numpy has arguments of these names, and reads back other names than these
        names = [
            n for n in names if n not in ("file", "allow_pickle") and "\0" not in n and not n.endswith((".npy", "/"))
        ]
    elif suffix == ".npy":
        names = ["a"]
    elif suffix in (".onnx", ".dlpw"):
        names = [n for n in names if n and "\0" not in n and len(n.encode()) <= 4096]
    elif suffix == ".safetensors":
        names = [n for n in names if n != "__metadata__"]
    tensors = {}
    for seed, name in enumerate(names):
        kind = draw(st.sampled_from(foreign_files.TYPES[suffix[1:]]))
        tensors[name] = any_bits(foreign_files.dtype_of(kind), draw(shapes(3, 3)), seed)
    values: st.SearchStrategy[Any] = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
    if suffix in (".pt", ".dlpw"):
        values = st.one_of(values, st.integers(-(2**65), 2**65) if suffix == ".pt" else st.just(3), st.booleans())
        values = st.one_of(values, st.floats(allow_nan=False), st.none() if suffix == ".pt" else st.just(b"b"))
    if suffix in (".npy", ".npz"):
        return tensors, {}
    keys = st.sampled_from(["k", "l", "a", "a.b", ""]) if suffix == ".pt" else st.sampled_from(["k", "l", "ä", ""])
    return tensors, draw(st.dictionaries(keys, values, max_size=2))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(SUFFIXES, SUFFIXES)))
def test_what_a_library_reads_arrives_or_is_named_or_nothing_is_written(source: str, target: str) -> None:
    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
    @given(contents(f".{source}"))
    def check(drawn: tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            before, after = Path(folder) / f"x.{source}", Path(folder) / f"y.{target}"
            foreign_files.write(before, *drawn)
            tensors, metadata = foreign_files.read(before)
            try:
                done = convert(before, after, durable=False)
            except dw.WireError:
                assert not after.exists()
                return
            found, kept = foreign_files.read(after)
            named = [said.rpartition(": ")[0] for said in done.skipped]
            assert {k: v for k, v in tensors.items() if k not in found} == {}
            assert {k: found[k] for k in tensors} == tensors
            assert {
                k: v for k, v in metadata.items() if (k, v) not in kept.items() and (k or "(root)") not in named
            } == {}
            assert cli.main(["convert", str(before), str(after)]) == (1 if done.skipped else 0)
            assert cli.main(["convert", str(before), str(after), "--drop"]) == 0

    check()
