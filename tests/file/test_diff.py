"""What differs between two files, by value and not by layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dlpack_wire as dw
from dlpack_wire.file.diff import Difference, diff


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    def compared(first: Any, second: Any, *metadata: Any) -> list[Difference]:
        for path, x, m in zip(("a", "b"), (first, second), metadata or (None, None), strict=True):
            dw.save(tmp_path / path, x, m, durable=False)
        return list(diff(tmp_path / "a", tmp_path / "b"))

    return compared


X = np.arange(24.0).reshape(2, 3, 4)


def test_equal_files_do_not_differ(compare: Any) -> None:
    assert compare({"x": X, "y": np.arange(3)}, {"y": np.arange(3), "x": X}) == []


@pytest.mark.parametrize(
    "other", [np.asfortranarray(X), X.astype(">f8"), X.transpose(1, 0, 2).copy().transpose(1, 0, 2)]
)
def test_layout_and_byte_order_make_no_difference(other: Any, compare: Any) -> None:
    assert compare({"x": X}, {"x": other}) == []


def test_nan_equals_itself_and_zeros_have_signs(compare: Any) -> None:
    nans = np.array([np.nan, 1.0])
    assert compare({"x": nans}, {"x": nans.astype(">f8")}) == []
    [found] = compare({"x": np.array([0.0, 0.0])}, {"x": np.array([0.0, -0.0])})
    assert found == ("x", "values", "1 of 2 elements, the first at [1]")


def test_values_are_counted_and_the_first_is_shown(compare: Any) -> None:
    y = X.copy()
    y[1, 0, 2] += 1
    y[1, 2, 3] += 1
    assert compare({"x": X}, {"x": np.asfortranarray(y)}) == [
        ("x", "values", "2 of 24 elements, the first at [1, 0, 2]")
    ]
    assert compare(np.float32(1), np.float32(2)) == [("", "values", "1 of 1 elements, the first at []")]


def test_large_tensors_are_compared_in_parts(compare: Any) -> None:
    x = np.zeros(5_000_000, np.uint8)
    y = x.copy()
    y[[1_048_576, 4_999_999]] = 1
    assert compare({"x": x}, {"x": y}) == [("x", "values", "2 of 5000000 elements, the first at [1048576]")]


def test_packed_and_odd_types_are_compared(compare: Any) -> None:
    x = np.array([1, 2, 3], ml_dtypes.int4)
    y = np.array([1, 2, 4], ml_dtypes.int4)
    assert compare({"x": x}, {"x": y}) == [("x", "values", "1 of 3 elements, the first at [2]")]
    assert compare({"x": X.astype(ml_dtypes.bfloat16)}, {"x": X.astype(ml_dtypes.bfloat16)}) == []


def test_types_shapes_names_and_metadata(compare: Any, tmp_path: Path) -> None:
    first = {"same": X, "type": X, "shape": X, "gone": X}
    second = {"same": X, "type": X.astype("f4"), "shape": X.reshape(6, 4), "new": np.arange(2)}
    assert compare(first, second, {"k": 1, "n": float("nan")}, {"k": True, "n": float("nan"), "l": "x"}) == [
        (None, "metadata", "'k': 1 and True"),
        (None, "metadata", "'l': None and 'x'"),
        ("type", "dtype", "float64 and float32"),
        ("shape", "shape", "[2, 3, 4] and [6, 4]"),
        ("gone", "only in first", "float64[2, 3, 4]"),
        ("new", "only in second", "int64[2]"),
    ]
    with dw.open(tmp_path / "a", "w") as f:
        f.write("x", X, metadata={"unit": "m"})
    dw.save(tmp_path / "b", {"x": X})
    assert list(diff(tmp_path / "a", tmp_path / "b")) == [("x", "metadata", "'unit': 'm' and None")]
