"""Sums, and the checks of payload contents made in the same pass."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from headers import header_of

import dlpack_wire as dw
from dlpack_wire.tensor.checksum import (
    BLOCK_BYTES,
    EMPTY,
    PARALLEL_BYTES,
    Summing,
    block_count,
    block_sums,
    check_block_sums,
    check_blocks,
    check_contents,
    check_sum,
    payload_sum,
    sums_in,
    total,
    xxh3,
)

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, PARALLEL_BYTES - 1, PARALLEL_BYTES + 5]


def test_the_sum_is_xxh3_of_64_bits_with_seed_0() -> None:
    """Values of the reference implementation."""
    assert xxh3(b"") == EMPTY == 0x2D06800538D394C2
    assert xxh3(b"a") == 0xE6C632B61E964E1F
    assert xxh3(bytes(1000)) == xxhash.xxh3_64_intdigest(bytes(1000), seed=0)


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_blocks_are_those_of_the_contract(size: int) -> None:
    """Computed here by another library call, block after block."""
    content = np.random.default_rng(size).bytes(size)
    expected = [
        xxhash.xxh3_64(content[at : at + (1 << 20)]).digest()[::-1] for at in range(0, size, 1 << 20)
    ]  # `digest` is big endian
    assert block_sums(content) == b"".join(expected)
    assert block_count(size) == len(expected)
    of_all = xxhash.xxh3_64_intdigest(content if len(expected) < 2 else b"".join(expected))
    assert payload_sum(content) == total(block_sums(content)) == of_all


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [77_777, BLOCK_BYTES // 4, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_pieces_of_any_size_give_the_same_sums(size: int, step: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    summing = Summing()
    for begin in range(0, size, step):
        summing.update(content[begin : begin + step])
    assert summing.finish() == block_sums(content)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_the_damaged_block_is_named(damaged: int) -> None:
    content = bytearray(2 * BLOCK_BYTES + 5)
    sums = block_sums(content)
    check_blocks(sums, 0, 3, content)
    content[damaged * BLOCK_BYTES + 3] = 1
    with pytest.raises(dw.ChecksumError, match=f"block {damaged} of 3 .bytes from {damaged << 20} on"):
        check_blocks(sums, 0, 3, content)
    for block in range(3):
        piece = content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        if block == damaged:
            with pytest.raises(dw.ChecksumError, match=f"block {damaged} of 3"):
                check_blocks(sums_in(sums, block << 20, len(piece)), block, 3, piece)
        else:
            check_blocks(sums_in(sums, block << 20, len(piece)), block, 3, piece)


def test_a_list_of_sums_is_held_against_the_sum_of_the_payload() -> None:
    content = bytes(2 * BLOCK_BYTES + 5)
    header = header_of(dtype=dw.DType("uint8"), shape=(len(content),))
    sums = block_sums(content)
    check_block_sums(header, payload_sum(content), sums)
    with pytest.raises(dw.ChecksumError):
        check_block_sums(header, payload_sum(content), sums[8:] + sums[:8])
    for wrong in (b"", sums[:-8], sums + bytes(8)):
        with pytest.raises(dw.DecodeError, match="sums for 3 blocks"):
            check_block_sums(header, payload_sum(content), wrong)


def test_unequal_sums_are_told_with_both_values() -> None:
    check_sum(5, 5, "it")
    with pytest.raises(dw.ChecksumError, match=r"^it does not match.*0000000000000005.*0000000000000006") as caught:
        check_sum(5, 6, "it")
    assert (caught.value.expected, caught.value.actual) == (5, 6)


@pytest.mark.parametrize(
    "size", [1, BLOCK_BYTES // 4 - 1, BLOCK_BYTES // 4, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5]
)
def test_bools_are_checked_in_every_piece(size: int) -> None:
    header = header_of(dtype=dw.DType("bool"), shape=(size,))
    payload = bytearray(np.random.default_rng(1).integers(0, 2, size, np.uint8).tobytes())
    check_contents(header, payload_sum(payload), payload)
    check_contents(header, None, payload)
    with pytest.raises(dw.ChecksumError):
        check_contents(header, payload_sum(payload) ^ 1, payload)
    for position in {0, size // 2, size - 1}:
        for value in (2, 255):
            damaged = bytearray(payload)
            damaged[position] = value
            for expected in (None, payload_sum(damaged)):
                with pytest.raises(dw.DecodeError, match=rf"bool byte {position} is {value}"):
                    check_contents(header, expected, damaged)


@pytest.mark.parametrize("bits", range(1, 8))
def test_every_spare_bit_is_checked(bits: int) -> None:
    for count in range(1, 10):
        header = header_of(dtype=dw.DType(f"uint{bits}"), shape=(count,))
        full = (1 << count * bits) - 1
        payload = full.to_bytes(header.payload_bytes, "little")
        check_contents(header, payload_sum(payload), payload)
        for spare in range(count * bits, header.payload_bytes * 8):
            damaged = (full | 1 << spare).to_bytes(header.payload_bytes, "little")
            with pytest.raises(dw.DecodeError, match="spare"):
                check_contents(header, None, damaged)


def test_upper_bits_of_padded_elements_are_ignored() -> None:
    check_contents(header_of(dtype=dw.DType("int4"), flags=4, shape=(2,)), None, b"\xff\xf0")


def test_the_sum_of_nothing_is_checked_too() -> None:
    for dtype in ("float32", "bool", "int4"):
        header = header_of(dtype=dw.DType(dtype), shape=(0,))
        check_contents(header, EMPTY, b"")
        with pytest.raises(dw.ChecksumError):
            check_contents(header, 0, b"")
