"""The table of element types: names, codes, widths and numpy types."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import dlpack_wire as dw
from dlpack_wire.tensor.dtype import byte_order_of, from_numpy, from_wire, table

# Written out here a second time, from dlpack.h.
CODES = {
    **{f"int{b}": (0, b) for b in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)},
    **{f"uint{b}": (1, b) for b in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)},
    **{f"float{b}": (2, b) for b in (16, 32, 64)},
    **{f"complex{b}": (5, b) for b in (32, 64, 128)},
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
    "bcomplex32": (18, 32),
}
NAMES = pytest.mark.parametrize("name", CODES)


def test_the_table_is_complete() -> None:
    assert {d.name: (d.code, d.bits) for d in table()} == CODES
    assert all(d.lanes == 1 and d.known for d in table())


@NAMES
def test_every_spelling_names_one_object(name: str) -> None:
    d = dw.DType(name)
    code, bits = CODES[name]
    assert (d.code, d.bits, d.lanes, d.name, str(d)) == (code, bits, 1, name, name)
    assert dw.DType(code, bits) is dw.DType(code, bits, 1) is dw.DType(d) is from_wire(code, bits, 1) is d
    assert repr(d) == f"DType('{name}')"
    if d.numpy_or_none is not None:
        assert dw.DType(d.numpy) is from_numpy(d.numpy) is d
        assert dw.DType(d.numpy.type) is d
        assert d.numpy.name == name


@NAMES
def test_numpy_types_are_those_of_that_name(name: str) -> None:
    d = dw.DType(name)
    extension = getattr(ml_dtypes, name, None)
    if hasattr(np, name) and not (extension and name.startswith("float8")):
        assert d.numpy == np.dtype(name)
    elif extension is not None:
        assert d.numpy == np.dtype(extension)
    else:
        assert d.numpy_or_none is None
        with pytest.raises(dw.UnsupportedTensorError, match=rf"{name}.*payload"):
            _ = d.numpy


@NAMES
def test_a_type_equals_its_names_and_nothing_else(name: str) -> None:
    d = dw.DType(name)
    assert (d == name, name == d, d != name) == (True, True, False)
    others = [other for other in CODES if other != name]
    assert not any(d == other for other in others)
    assert not any(d == dw.DType(other) for other in others)
    for other in (None, 1, "", f"{name}x2", object, [], dw.DType(f"{name}x2")):
        assert d != other, other
    if d.numpy_or_none is not None:
        assert d == d.numpy == d
        assert d == d.numpy.type
        if d.numpy.itemsize > 1:
            assert d != d.numpy.newbyteorder("S")
    theirs = getattr(torch, name, None)
    if isinstance(theirs, torch.dtype):
        assert d == theirs
        assert not any(d == getattr(torch, o) for o in others if isinstance(getattr(torch, o, None), torch.dtype))


@pytest.mark.parametrize(
    "name", ["code9" + "9" * 5000 + "_8bit", "float32x" + "9" * 5000, "code\u0663_8bit", "int8x\u0663"]
)
def test_names_with_other_or_endless_digits_are_none(name: str) -> None:
    with pytest.raises(dw.EncodeError, match="unknown dtype") as caught:
        dw.DType(name)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("numbers", [(2.0, 32), (2, 32.0), (2, 32, 1.5), ("2", 32), (2, "32"), (2, 32, None)])
def test_numbers_are_integers(numbers: Any) -> None:
    with pytest.raises(TypeError):
        dw.DType(*numbers)


@NAMES
def test_lanes(name: str) -> None:
    code, bits = CODES[name]
    d = dw.DType(f"{name}x4")
    assert d is dw.DType(code, bits, 4) is not dw.DType(name)
    assert (d.name, d.lanes, d.element_bits) == (f"{name}x4", 4, 4 * bits)
    assert d.numpy_or_none is None
    with pytest.raises(dw.UnsupportedTensorError, match=rf"code {code}, bits {bits}, lanes 4"):
        _ = d.numpy


def test_names_that_end_in_an_x_and_a_number_are_told_apart() -> None:
    assert dw.DType("float4_e2m1fnx2").lanes == 2
    assert dw.DType("float4_e2m1fnx2").name == dw.DType(17, 4, 2).name == "float4_e2m1fnx2"
    assert dw.DType("boolx3") is dw.DType(6, 8, 3)
    assert dw.DType("int8x16") is dw.DType(0, 8, 16)
    assert dw.DType("float32x1") is dw.DType("float32")


@pytest.mark.parametrize("triple", [(19, 8, 1), (200, 16, 1), (255, 5, 1), (77, 24, 3), (2**31 - 1, 2048, 70000)])
def test_unknown_codes_are_opaque_types(triple: tuple[int, int, int]) -> None:
    d = dw.DType(*triple)
    assert (d.code, d.bits, d.lanes) == triple
    assert not d.known
    assert dw.DType(d.name) is from_wire(*triple) is d
    with pytest.raises(dw.UnsupportedTensorError, match=r"code.*\.payload"):
        _ = d.numpy


BAD = [
    (0, 0, 1),
    (0, -8, 1),
    (2, 32, 0),
    (2, 32, -1),
    (3, 64, 1),
    (-1, 8, 1),
    (200, 0, 1),
    (200, -8, 1),
    (200, 8, 0),
    (200, 12, 1),
    (200, 9, 1),
    *((0, 24, 1), (1, 128, 1), (2, 8, 1), (2, 24, 1), (4, 32, 1), (5, 16, 1), (6, 1, 1), (6, 16, 1)),
    *((10, 16, 1), (15, 8, 1), (17, 8, 1), (18, 64, 1)),
]


@pytest.mark.parametrize("triple", BAD)
def test_impossible_types_are_refused_with_their_numbers(triple: tuple[int, int, int]) -> None:
    code, bits, lanes = triple
    with pytest.raises(dw.EncodeError) as mine:
        dw.DType(code, bits, lanes)
    with pytest.raises(dw.DecodeError) as theirs:
        from_wire(code, bits, lanes)
    for error in (mine.value, theirs.value):
        assert f"code {code}, bits {bits}, lanes {lanes}" in str(error)
        assert error.field == "dtype"


@pytest.mark.parametrize(
    "name", ["", "float", "float128", "int9", "x4", "float32x", "float32x0", "handle", "code3_64bit", "f4x2"]
)
def test_names_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(dw.EncodeError):
        dw.DType(name)


@NAMES
def test_parts_and_alignment(name: str) -> None:
    d = dw.DType(name)
    halves = 2 if "complex" in name else 1
    assert d.part_bytes == max(d.bits // halves // 8, 1)
    assert d.itemsize == max(d.bits // 8, 1)
    assert d.alignment in (1, 2, 4, 8, 16)
    assert d.alignment >= d.part_bytes
    assert dw.DType(f"{name}x3").part_bytes == d.part_bytes
    assert dw.DType("code200_24bit").alignment == 1


@pytest.mark.parametrize(
    ("name", "alignment"),
    [
        *(("int1", 1), ("uint4", 1), ("bool", 1), ("float8_e5m2", 1), ("bfloat16", 2), ("float32", 4)),
        *(("int64", 8), ("complex64", 8), ("complex128", 16), ("bcomplex32", 4), ("float32x4", 4), ("int4x8", 1)),
        *(("code200_24bit", 1), ("code200_48bit", 2), ("code200_256bit", 16), ("code200_2048bit", 16)),
    ],
)
def test_alignment_is_one_lane(name: str, alignment: int) -> None:
    assert dw.DType(name).alignment == alignment


@NAMES
def test_payloads_need_a_check_only_where_a_bit_may_be_wrong(name: str) -> None:
    for lanes in (1, 3):
        d = dw.DType(*CODES[name], lanes)
        assert d.any_bytes == (d.bits >= 8 and name != "bool")
        numpy_fits = d.numpy_or_none is not None and d.numpy_or_none.alignment >= d.alignment
        assert d.plain_numpy is (d.numpy_or_none if d.any_bytes and numpy_fits else None)
    assert dw.DType("float32").plain_numpy == np.dtype("f4")
    assert dw.DType("code200_8bit").any_bytes


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("code200_16bit", "does not know the code"),
        ("code200_16bitx2", "does not know the code"),
        ("float32x2", "last axis of size lanes"),
        ("int7", "a newer one may"),
    ],
)
def test_types_without_numpy_name_the_remedy(name: str, remedy: str) -> None:
    with pytest.raises(dw.UnsupportedTensorError, match=remedy) as caught:
        _ = dw.DType(name).numpy
    assert caught.value.field == "dtype"


@pytest.mark.parametrize(("name", "size"), [("int4", 1), ("float32", 4), ("complex128", 16), ("float32x3", 12)])
def test_elements_are_moved_by_a_type_of_their_size(name: str, size: int) -> None:
    d = dw.DType(name)
    assert d.element.itemsize == d.itemsize == size
    assert d.numpy_or_none is None or d.element is d.numpy_or_none


def test_a_type_is_immutable_and_is_itself_after_pickling() -> None:
    d = dw.DType("float32x4")
    with pytest.raises(AttributeError):
        d.bits = 16
    with pytest.raises(AttributeError):
        d.anything = 1  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(d)) is d
    assert copy.copy(d) is copy.deepcopy(d) is d
    assert {d: 1}[dw.DType(2, 32, 4)] == 1


@pytest.mark.parametrize("name", ["u1", "<f4", ">f4", "=i8", ">c16", "?", ">i2"])
def test_byte_order_of_numpy_types(name: str) -> None:
    dtype = np.dtype(name)
    expected = {"|": 0, "<": 1, "=": 1, ">": 2}[dtype.str[0]]
    assert byte_order_of(dtype) == expected
    assert from_numpy(dtype) is dw.DType(dtype.newbyteorder("="))


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        ("longdouble", "float64"),
        ("clongdouble", "complex128"),
        ("datetime64[ns]", "int64"),
        ("timedelta64[s]", "int64"),
        ("O", "numeric"),
        ("U3", "numeric"),
        ("S3", "numeric"),
        ([("a", "i4")], "fields"),
        ("V3", "view"),
    ],
)
def test_numpy_types_without_a_counterpart_name_the_remedy(dtype: Any, remedy: str) -> None:
    with pytest.raises(dw.UnsupportedTensorError, match=remedy):
        dw.DType(np.dtype(dtype))


def test_hostile_types_are_not_kept() -> None:
    """Input may name billions of opaque types."""
    import gc

    from dlpack_wire.tensor import dtype as dtypes

    before = len(dtypes._INTERNED)
    for lanes in range(2, 5000):
        from_wire(201, 8, lanes)
    gc.collect()
    assert len(dtypes._INTERNED) < before + 10
