"""Which tensors of a mapping are the same memory."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dlpack_wire as dw
from dlpack_wire.message.aliases import stored_once, tied
from dlpack_wire.message.names import MAX_ALIASES

W = np.arange(12, dtype="f4").reshape(3, 4)


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (W, W),
        (W.view(), W[:]),
        (W.T, W.T),
        (W[1:], W[1:3]),
        (memoryview(W).cast("B"), None),
    ],
    ids=range(5),
)
def test_equal_memory_is_stored_once(same: Any, other: Any) -> None:
    same = np.asarray(same)
    other = same.view() if other is None else other
    assert tied({"a": same, "b": other}) == {"a": ["b"]}


@pytest.mark.parametrize(
    "other",
    [
        W.T,
        W[1:],
        W[:, :2],
        W[:, ::-1],
        W.reshape(4, 3),
        W.view("i4"),
        W.view(">f4"),
        W.astype("f4"),
        W.reshape(1, 3, 4),
    ],
    ids=range(9),
)
def test_other_views_of_the_memory_are_not_the_same(other: Any) -> None:
    assert not any((tied({"a": W, "b": other}) or {}).values())


def test_types_that_numpy_names_alike_are_not_the_same() -> None:
    a = np.zeros(4, "u1")
    assert not any((tied({"a": a.view(ml_dtypes.float8_e5m2), "b": a.view(ml_dtypes.float8_e4m3fn)}) or {}).values())


def test_our_own_tensors_are_compared_by_memory_and_header() -> None:
    message = dw.encode(W)
    t = dw.decode(message)
    assert tied({"a": t, "b": t[:]}) == {"a": [], "b": []}  # another header: only one has a checksum
    assert tied({"a": t, "b": dw.decode(message)}) == {"a": ["b"]}
    assert tied({"a": t[:], "b": t[:]}) == {"a": ["b"]}


def test_empty_tensors_are_the_same_only_as_one_object() -> None:
    empty = np.zeros((0, 3))
    assert tied({"a": empty, "b": empty.view()}) == {"a": [], "b": []}
    assert tied({"a": empty, "b": empty}) == {"a": ["b"]}


def test_no_ties_are_told_by_none() -> None:
    assert tied({}) is tied({"a": W}) is tied({"a": W, "b": W.copy()}) is None


def test_only_dicts_are_looked_at() -> None:
    assert tied(MappingProxyType({"a": W, "b": W})) is None
    assert [(name, further) for name, _, further in stored_once(MappingProxyType({"a": W, "b": W}))] == [
        ("a", []),
        ("b", []),
    ]


def test_as_many_names_as_a_record_can_have() -> None:
    first, *names, last, also_last = (f"w{i}" for i in range(MAX_ALIASES + 3))
    tensors = dict.fromkeys((first, *names, last, also_last), W)
    assert tied(tensors) == {first: names, last: [also_last]}
    assert [(name, further) for name, _, further in stored_once(tensors)] == [(first, names), (last, [also_last])]


def test_torch_tensors_are_compared_by_memory() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    assert tied({"a": x, "b": x.view(3, 4), "c": x.T}) == {"a": ["b"], "c": []}
    z = torch.ones(3, dtype=torch.complex64)
    assert not any((tied({"a": z, "b": z.conj()}) or {}).values())
