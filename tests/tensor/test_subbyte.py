"""Packing against arithmetic on one big integer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpack_wire.tensor.subbyte import mask, pack, unpack

BITS = pytest.mark.parametrize("bits", range(1, 8))


def packed_slowly(values: list[int], bits: int) -> bytes:
    """Element i starts at bit i * bits, counted from the least significant one."""
    number = sum((v & (1 << bits) - 1) << i * bits for i, v in enumerate(values))
    return number.to_bytes((len(values) * bits + 7) // 8, "little")


@given(st.integers(1, 7), st.lists(st.integers(0, 255), max_size=40))
def test_packing_is_little_bit_endian_without_gaps(bits: int, values: list[int]) -> None:
    elements = np.array(values, np.uint8)
    packed = pack(elements, bits)
    assert packed.tobytes() == packed_slowly(values, bits)
    assert unpack(packed, bits, len(values)).tolist() == [v & mask(bits) for v in values]


@BITS
def test_sizes_around_whole_bytes(bits: int) -> None:
    for count in range(20):
        values = list(range(100, 100 + count))
        packed = pack(np.array(values, np.uint8), bits)
        assert packed.dtype == np.uint8
        assert packed.size == (count * bits + 7) // 8
        assert unpack(packed, bits, count).size == count


@BITS
def test_elements_are_taken_row_major(bits: int) -> None:
    matrix = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for view in (matrix, matrix.T, matrix[::-1], matrix[:, ::2], np.asfortranarray(matrix)):
        assert pack(view, bits).tobytes() == packed_slowly(view.reshape(-1).tolist(), bits)
    assert matrix.tolist() == [[0, 1, 2], [3, 4, 5]]


@BITS
def test_unpacked_elements_are_fresh_memory(bits: int) -> None:
    packed = pack(np.arange(8, dtype=np.uint8), bits)
    packed.flags.writeable = False
    unpacked = unpack(packed, bits, 8)
    assert not np.shares_memory(packed, unpacked)
    unpacked[:] = 0
    assert packed.tobytes() == packed_slowly(list(range(8)), bits)


def test_large_arrays_pack_and_unpack() -> None:
    values = np.random.default_rng(3).integers(0, 256, 100_001, np.uint8)
    for bits in range(1, 8):
        assert np.array_equal(unpack(pack(values, bits), bits, values.size), values & mask(bits))
