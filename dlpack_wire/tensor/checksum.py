"""XXH3-64 sums, and the checks of payload contents made in the same pass."""

from __future__ import annotations

from math import prod

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from ..errors import ChecksumError, DecodeError
from .dtype import BOOL
from .header import Header
from .memory import Buffer

PASS_BYTES = 1 << 18
"""Piece that is hashed, then checked or copied while it is still in the cache: half of a small L2 cache."""

xxh3 = xxh3_64_intdigest
"""XXH3-64 with seed 0 of a contiguous buffer. Lets go of the GIL on large ones."""

Running = xxh3_64
"""A running XXH3-64 with seed 0: `update(buffer)`, `intdigest()`."""

EMPTY = xxh3(b"")
"""Sum of an empty payload."""


def check_sum(expected: int, actual: int, what: str) -> None:
    """Raise ChecksumError unless both sums are equal."""
    if expected != actual:
        raise ChecksumError(
            f"{what} does not match its checksum: stored {expected:016x}, computed {actual:016x}",
            expected=expected,
            actual=actual,
        )


def check_contents(header: Header, expected: int | None, payload: Buffer) -> None:
    """Check a payload of the right size: its sum (unless None is expected), bool values, spare bits.

    Raises:
        ChecksumError: The sum is wrong.
        DecodeError: A bool byte is neither 0 nor 1, or the spare bits of packed elements are not zero.
    """
    if header.dtype.code == BOOL and header.payload_bytes:
        _check_bools(payload, expected)
        return
    if expected is not None:
        check_sum(expected, xxh3(payload), "payload")
    if header.is_packed and header.payload_bytes:
        check_spare_bits(header, payload)


def check_spare_bits(header: Header, payload: Buffer) -> None:
    """Raise DecodeError if bits after the last packed element are set."""
    spare = spare_bits(header)
    if spare and payload[len(payload) - 1] >> (8 - spare):
        raise DecodeError(f"spare bits after the last {header.dtype.name} are not zero", field="data")


def spare_bits(header: Header) -> int:
    """Return the number of bits in a packed payload's last byte that hold no element."""
    return header.payload_bytes * 8 - prod(header.shape) * header.dtype.element_bits


def _check_bools(payload: Buffer, expected: int | None) -> None:
    values = np.frombuffer(payload, np.uint8)
    running = Running()
    for begin in range(0, len(values), PASS_BYTES):
        piece = values[begin : begin + PASS_BYTES]
        if expected is not None:
            running.update(piece.data)
        if piece.max() > 1:
            at = begin + int(np.argmax(piece > 1))
            raise DecodeError(f"bool byte {at} is {values[at]}, neither 0 nor 1", field="data")
    if expected is not None:
        check_sum(expected, running.intdigest(), "payload")
