"""Sums, and the checks of payload contents made in the same pass."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from headers import header_of

import dlpack_wire as dw
from dlpack_wire.tensor.checksum import EMPTY, PASS_BYTES, Running, check_contents, check_sum, xxh3


def test_the_sum_is_xxh3_of_64_bits_with_seed_0() -> None:
    """Values of the reference implementation."""
    assert xxh3(b"") == EMPTY == 0x2D06800538D394C2
    assert xxh3(b"a") == 0xE6C632B61E964E1F
    assert xxh3(bytes(1000)) == xxhash.xxh3_64_intdigest(bytes(1000), seed=0)


def test_a_running_sum_is_the_sum_of_the_whole() -> None:
    content = np.random.default_rng(0).bytes(1000)
    running = Running()
    for begin in range(0, 1000, 77):
        running.update(content[begin : begin + 77])
    assert running.intdigest() == xxh3(content)


def test_unequal_sums_are_told_with_both_values() -> None:
    check_sum(5, 5, "it")
    with pytest.raises(dw.ChecksumError, match=r"^it does not match.*0000000000000005.*0000000000000006") as caught:
        check_sum(5, 6, "it")
    assert (caught.value.expected, caught.value.actual) == (5, 6)


@pytest.mark.parametrize("size", [1, PASS_BYTES - 1, PASS_BYTES, PASS_BYTES + 1, 2 * PASS_BYTES + 5])
def test_bools_are_checked_in_every_piece(size: int) -> None:
    header = header_of(dtype=dw.DType("bool"), shape=(size,))
    payload = bytearray(np.random.default_rng(1).integers(0, 2, size, np.uint8).tobytes())
    check_contents(header, xxh3(payload), payload)
    check_contents(header, None, payload)
    with pytest.raises(dw.ChecksumError):
        check_contents(header, xxh3(payload) ^ 1, payload)
    for position in {0, size // 2, size - 1}:
        for value in (2, 255):
            damaged = bytearray(payload)
            damaged[position] = value
            for expected in (None, xxh3(damaged)):
                with pytest.raises(dw.DecodeError, match=rf"bool byte {position} is {value}"):
                    check_contents(header, expected, damaged)


@pytest.mark.parametrize("bits", range(1, 8))
def test_every_spare_bit_is_checked(bits: int) -> None:
    for count in range(1, 10):
        header = header_of(dtype=dw.DType(f"uint{bits}"), shape=(count,))
        full = (1 << count * bits) - 1
        payload = full.to_bytes(header.payload_bytes, "little")
        check_contents(header, xxh3(payload), payload)
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
