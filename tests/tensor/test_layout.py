"""Sizes and strides, against brute force over all index tuples."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlpack_wire as dw
from dlpack_wire.tensor.layout import (
    MAX_NDIM,
    canonical_strides,
    check_layout,
    compact_bytes,
    is_dense,
    is_packed,
    overlap,
    row_major,
    span,
)

F4, U1, I4 = dw.DType("float32"), dw.DType("uint8"), dw.DType("int4")

small = st.lists(st.tuples(st.integers(1, 4), st.integers(-14, 14)), max_size=4).map(
    lambda axes: (tuple(n for n, _ in axes), tuple(s for _, s in axes))
)


def positions(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*map(range, shape))]


@given(st.lists(st.integers(0, 4), max_size=5).map(tuple))
def test_row_major_is_numpys(shape: tuple[int, ...]) -> None:
    if 0 not in shape:
        assert row_major(shape) == np.empty(shape, "u1").strides
    assert canonical_strides(shape, row_major(shape)) is None


@given(small)
def test_span_is_the_reach_of_all_indices(axes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    found = positions(*axes)
    assert span(*axes) == (min(found), max(found))


@given(small)
def test_strides_that_pass_reach_no_element_twice(axes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    if overlap(*axes) is None:
        found = positions(*axes)
        assert len(set(found)) == len(found)


@given(small)
def test_overlap_is_what_the_rule_says(axes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    reach, fits = 0, True
    for stride, extent in sorted((abs(s), n) for n, s in zip(*axes, strict=True) if n > 1):
        fits &= stride > reach
        reach += (extent - 1) * stride
    assert (overlap(*axes) is None) == fits


@given(small)
def test_dense_is_a_block_without_gaps_from_zero_up(axes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    found = positions(*axes)
    if is_dense(*axes):
        assert sorted(found) == list(range(len(found)))


@given(st.permutations(range(4)), st.tuples(*[st.integers(1, 4)] * 4))
def test_every_order_of_axes_is_dense(order: list[int], shape: tuple[int, ...]) -> None:
    a = np.empty(shape, "u1").transpose(order)
    assert is_dense(a.shape, a.strides)
    assert overlap(a.shape, a.strides) is None
    assert (canonical_strides(a.shape, a.strides) is None) == a.flags.c_contiguous


@given(small)
def test_canonical_strides_change_no_position(axes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, strides = axes
    canonical = canonical_strides(shape, strides)
    if canonical is None:
        assert positions(shape, strides) == list(range(len(positions(shape, strides))))
    else:
        assert positions(shape, canonical) == positions(shape, strides)
        assert all(s == 1 for n, s in zip(shape, canonical, strict=True) if n == 1)
        assert canonical_strides(shape, canonical) == canonical


@pytest.mark.parametrize(
    ("shape", "strides", "canonical"),
    [
        ((), (), None),
        ((5,), (1,), None),
        ((1,), (77,), None),
        ((1, 77), (0, 1), None),
        ((1024, 1), (1, -5), None),
        ((0, 3), (9, 9), None),
        ((3, 0), (0, 0), None),
        ((2, 3), (1, 2), (1, 2)),
        ((2, 1, 3), (1, 99, 2), (1, 1, 2)),
        ((2,), (-1,), (-1,)),
    ],
)
def test_canonical_strides(shape: tuple[int, ...], strides: tuple[int, ...], canonical: object) -> None:
    assert canonical_strides(shape, strides) == canonical


@given(small, st.sampled_from([U1, F4, dw.DType("complex128"), dw.DType("float4_e2m1fnx2"), dw.DType("code200_24bit")]))
def test_the_payload_goes_from_the_lowest_to_the_highest_byte(
    axes: tuple[tuple[int, ...], tuple[int, ...]], dtype: dw.DType
) -> None:
    shape, strides = axes
    found = positions(shape, strides)
    offset = -min(found) * dtype.itemsize
    if overlap(shape, strides) is not None:
        with pytest.raises(dw.DecodeError, match="strides"):
            check_layout(dtype, shape, strides, offset)
        return
    size = (max(found) - min(found) + 1) * dtype.itemsize
    assert check_layout(dtype, shape, strides, offset) == size
    for wrong in (offset + 1, offset - 1, offset + dtype.itemsize):
        with pytest.raises(dw.DecodeError, match="byte_offset"):
            check_layout(dtype, shape, strides, wrong)


@pytest.mark.parametrize(
    ("dtype", "padded", "shape", "size"),
    [
        ("float32", False, (), 4),
        ("float32", False, (2, 3), 24),
        ("float32", False, (2, 0, 3), 0),
        ("int4", False, (5,), 3),
        ("int4", True, (5,), 5),
        ("int1", False, (9,), 2),
        ("float6_e2m3fn", False, (3,), 3),
        ("float6_e2m3fn", False, (4,), 3),
        ("uint7", False, (8,), 7),
        ("int4x3", False, (3,), 5),
        ("float4_e2m1fnx2", False, (3,), 3),
        ("boolx4", False, (3,), 12),
        ("code200_5bit", False, (3,), 2),
    ],
)
def test_compact_sizes(dtype: str, padded: bool, shape: tuple[int, ...], size: int) -> None:
    d = dw.DType(dtype)
    assert check_layout(d, shape, padded=padded) == size
    assert compact_bytes(d, padded, int(np.prod(shape, dtype=int))) == size


def test_strides_of_axes_of_size_1_do_not_make_a_block_less_dense() -> None:
    for odd in (0, 1, -7, 99):
        assert is_dense((2, 1, 3), (3, odd, 1))
        assert is_dense((3, 1), (1, odd))


def test_an_overlap_says_how_far_a_stride_has_to_step() -> None:
    assert overlap((3, 4), (3, 1)) == "a stride of 3 elements does not step over the 4 that smaller strides reach"
    assert overlap((2,), (0,)) == "a stride of 0 elements does not step over the 1 that smaller strides reach"
    assert overlap((3, 4), (-4, 1)) is None


def test_strides_of_empty_tensors_reach_nothing() -> None:
    for strides in ((0, 0), (-5, 7), (2**63, 1)):
        assert check_layout(U1, (0, 3), strides) == 0


def test_padded_elements_take_a_byte_each_with_strides_too() -> None:
    assert check_layout(I4, (3, 2), (1, 3), padded=True) == 6
    assert check_layout(I4, (3, 2), (-1, 3), 2, padded=True) == 6


def test_packed_is_what_shares_bytes() -> None:
    assert is_packed(I4, False)
    assert not is_packed(I4, True)
    assert not is_packed(dw.DType("float4_e2m1fnx2"), False)
    assert is_packed(dw.DType("int4x3"), False)
    assert not is_packed(F4, False)


@pytest.mark.parametrize("error", [dw.DecodeError, dw.EncodeError])
@pytest.mark.parametrize(
    ("dtype", "padded", "shape", "strides", "offset", "field"),
    [
        ("uint8", False, (1,) * (MAX_NDIM + 1), None, 0, "shape"),
        ("uint8", False, (-1,), None, 0, "shape"),
        ("uint8", False, (0, -1), None, 0, "shape"),
        ("uint8", False, (2**63,), None, 0, "shape"),
        ("uint8", False, (2**32, 2**31), None, 0, "shape"),
        ("float32", False, (2**61,), None, 0, "shape"),
        ("float32", False, (0, 2**61), None, 0, "shape"),
        ("int4", True, (2**63,), None, 0, "shape"),
        ("uint8", True, (1,), None, 0, "flags"),
        ("float4_e2m1fnx2", True, (1,), None, 0, "flags"),
        ("uint8", False, (2, 3), (1,), 0, "strides"),
        ("uint8", False, (0,), (1, 1), 0, "strides"),
        ("uint8", False, (2,), (0,), 0, "strides"),
        ("uint8", False, (2, 2), (1, 1), 0, "strides"),
        ("uint8", False, (2, 2), (2**62, 2**62 - 1), 0, "strides"),
        ("int4", False, (2, 2), (1, 2), 0, "strides"),
        ("uint8", False, (2,), None, 1, "byte_offset"),
        ("uint8", False, (0,), None, 1, "byte_offset"),
    ],
)
def test_every_rule_names_its_field(
    dtype: str,
    padded: bool,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    offset: int,
    field: str,
    error: type[dw.WireError],
) -> None:
    with pytest.raises(error) as caught:
        check_layout(dw.DType(dtype), shape, strides, offset, padded=padded, error=error)
    assert caught.value.field == field


def test_the_widest_element_fills_a_message() -> None:
    widest = 8 * (2**31 - 1)
    assert check_layout(dw.DType(200, widest), (1,)) == 2**31 - 1
    with pytest.raises(dw.DecodeError, match="bytes") as caught:
        check_layout(dw.DType(200, widest + 8), (0,))
    assert caught.value.field == "dtype"


def test_the_most_dimensions() -> None:
    assert MAX_NDIM == 64
    assert check_layout(U1, (1,) * MAX_NDIM) == 1


def test_the_farthest_strides_are_exact() -> None:
    assert check_layout(U1, (2,), (2**63 - 2,)) == 2**63 - 1
    with pytest.raises(dw.DecodeError, match="spans"):
        check_layout(U1, (2,), (2**63 - 1,))


def test_the_largest_sizes_are_exact() -> None:
    assert check_layout(U1, (2**63 - 1,)) == 2**63 - 1
    assert check_layout(F4, (2**61 - 1,)) == 2**63 - 4
    # Packed elements count a byte for each lane: they must be addressable when they are unpacked.
    assert check_layout(I4, (2**63 - 1,)) == 2**62
    with pytest.raises(dw.DecodeError):
        check_layout(I4, (2**63,))
    lanes = dw.DType("int4x3")
    assert check_layout(lanes, (2**61,)) == 3 * 2**60
    with pytest.raises(dw.DecodeError):
        check_layout(lanes, (2**62,))
    assert check_layout(U1, (2, 2), (2**63 - 3, 1)) == 2**63 - 1
