"""Sums of payloads by blocks, and the checks of payload contents made in the same pass.

A payload is cut into blocks of 1 MiB. The sum of one block is its XXH3-64 with seed 0; that of more is the XXH3-64 of
the blocks' own sums, 8 bytes little-endian each. So blocks can be hashed in any order and by several threads, and a
slice, a range or a chunk is checked by the blocks that it touches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from ..errors import ChecksumError, DecodeError
from .dtype import BOOL
from .header import Header
from .memory import Buffer

BLOCK_BYTES = 1 << 20
"""Size of a block, fixed by the contract: small enough for the cache, so large that its sum costs nothing to keep."""

SUM_BYTES = 8
"""Size of a block's sum in a list of them."""

PARALLEL_BYTES = 16 << 20
"""Payloads from this size on are hashed by several threads: starting them takes as long as hashing 1 MiB."""

xxh3 = xxh3_64_intdigest
"""XXH3-64 with seed 0 of a contiguous buffer. Lets go of the GIL on large ones."""

EMPTY = xxh3(b"")
"""Sum of an empty payload."""


def sums_in(sums: bytes, begin: int, size: int) -> bytes:
    """Return the sums of the blocks in [begin, begin + size) of a payload, where `begin` is that of a block."""
    first = begin // BLOCK_BYTES
    return sums[first * SUM_BYTES : (first + block_count(size)) * SUM_BYTES]


def block_count(size: int) -> int:
    """Return the number of blocks of a payload."""
    return -(-size // BLOCK_BYTES)


def total(sums: bytes) -> int:
    """Return the sum of a payload, given the sums of its blocks, 8 bytes each."""
    if len(sums) > SUM_BYTES:
        return xxh3(sums)
    return int.from_bytes(sums, "little") if sums else EMPTY


def payload_sum(payload: Buffer) -> int:
    """Return the sum of a contiguous payload."""
    size = len(payload)
    return xxh3(payload) if size <= BLOCK_BYTES else xxh3(block_sums(payload))


def block_sums(payload: Buffer) -> bytes:
    """Return the sums of a payload's blocks, 8 bytes each."""
    view = memoryview(payload)
    size = len(view)
    if size <= BLOCK_BYTES:
        return xxh3(view).to_bytes(SUM_BYTES, "little") if size else b""
    starts = range(0, size, BLOCK_BYTES)
    if size < PARALLEL_BYTES or _CORES < 2:
        return b"".join([xxh3(view[at : at + BLOCK_BYTES]).to_bytes(SUM_BYTES, "little") for at in starts])
    return b"".join(_in_threads(view, starts))


_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_threads(view: memoryview, starts: range) -> list[bytes]:
    """Hash blocks with as many threads as there are cores; each takes a contiguous share, which prefetches best."""
    from concurrent.futures import ThreadPoolExecutor

    def share(begin: int) -> bytes:
        mine = starts[begin : begin + step]
        return b"".join([xxh3(view[at : at + BLOCK_BYTES]).to_bytes(SUM_BYTES, "little") for at in mine])

    step = -(-len(starts) // _CORES)
    with ThreadPoolExecutor(_CORES - 1) as pool:
        others = [pool.submit(share, begin) for begin in range(step, len(starts), step)]
        return [share(0), *(other.result() for other in others)]


class Summing:
    """The sums of the blocks of a payload that comes in pieces of any size.

    Attributes:
        sums: Sums of the whole blocks so far, 8 bytes each; after `finish` of all blocks.
    """

    def __init__(self) -> None:
        self.sums = bytearray()
        self._running = xxh3_64()
        self._size = 0  # of the block that has begun

    def update(self, piece: Buffer) -> None:
        """Take the next piece in."""
        left = memoryview(piece)
        while len(left):
            part = left[: BLOCK_BYTES - self._size]
            left = left[len(part) :]
            if len(part) == BLOCK_BYTES:
                self._add(xxh3(part))
                continue
            self._running.update(part)
            self._size += len(part)
            if self._size == BLOCK_BYTES:
                self._end_block()

    def finish(self) -> bytes:
        """Return the sums of all blocks, 8 bytes each."""
        if self._size:
            self._end_block()
        return bytes(self.sums)

    def _end_block(self) -> None:
        self._add(self._running.intdigest())
        self._running.reset()
        self._size = 0

    def _add(self, block_sum: int) -> None:
        self.sums += block_sum.to_bytes(SUM_BYTES, "little")


def check_sum(expected: int, actual: int, what: str) -> None:
    """Raise ChecksumError unless both sums are equal."""
    if expected != actual:
        raise ChecksumError(
            f"{what} does not match its checksum: stored {expected:016x}, computed {actual:016x}",
            expected=expected,
            actual=actual,
        )


def check_block_sums(header: Header, expected: int, sums: bytes) -> None:
    """Raise unless a list of block sums is the one that a payload's sum was made of.

    Raises:
        DecodeError: The list has another number of sums.
        ChecksumError: Their sum is another one.
    """
    if len(sums) != block_count(header.payload_bytes) * SUM_BYTES:
        raise DecodeError(
            f"{len(sums) // SUM_BYTES} sums for {block_count(header.payload_bytes)} blocks", field="block_sums"
        )
    check_sum(expected, total(sums), "list of block sums")


def check_blocks(sums: bytes, first: int, count: int, blocks: Buffer) -> None:
    """Compare whole blocks with their sums.

    Args:
        sums: Sums of these blocks, 8 bytes each.
        first: Number of the first block in `blocks`, for the error.
        count: Number of blocks of the payload, for the error.
        blocks: Bytes of consecutive blocks.

    Raises:
        ChecksumError: A block is damaged; the first one is named.
    """
    actual = block_sums(blocks)
    if actual == sums:
        return
    for at in range(0, len(actual), SUM_BYTES):
        stored, computed = sums[at : at + SUM_BYTES], actual[at : at + SUM_BYTES]
        number = first + at // SUM_BYTES
        what = f"block {number} of {count} (bytes from {number * BLOCK_BYTES} on)" if count > 1 else "payload"
        check_sum(int.from_bytes(stored, "little"), int.from_bytes(computed, "little"), what)


def check_contents(header: Header, expected: int | None, payload: Buffer, sums: bytes = b"") -> None:
    """Check a payload of the right size: its sum (unless None is expected), bool values, spare bits.

    Args:
        header: The payload's header.
        expected: Its sum, or None.
        payload: The payload.
        sums: Sums of its blocks, which have been held against `expected`, so that a damaged block can be named.

    Raises:
        ChecksumError: The sum is wrong.
        DecodeError: A bool byte is neither 0 nor 1, or the spare bits of packed elements are not zero.
    """
    if expected is not None:
        if len(sums) > SUM_BYTES:
            check_blocks(sums, 0, len(sums) // SUM_BYTES, payload)
        else:
            check_sum(expected, payload_sum(payload), "payload")
    check_values(header, 0, payload)


def check_values(header: Header, begin: int, piece: Buffer) -> None:
    """Check the values in a piece of a payload, where not every bit pattern is one.

    Args:
        header: The payload's header.
        begin: Position of the piece in the payload.
        piece: The piece.

    Raises:
        DecodeError: A bool byte is neither 0 nor 1, or the spare bits of packed elements are not zero.
    """
    if header.dtype.code == BOOL:
        for at, values in _cached_pieces(piece):
            if values.max() > 1:
                wrong = at + int(np.argmax(values > 1))
                raise DecodeError(f"bool byte {begin + wrong} is {piece[wrong]}, neither 0 nor 1", field="data")
    elif header.is_packed and len(piece) and begin + len(piece) == header.payload_bytes:
        spare = spare_bits(header)
        if spare and piece[len(piece) - 1] >> (8 - spare):
            raise DecodeError(f"spare bits after the last {header.dtype.name} are not zero", field="data")


def _cached_pieces(piece: Buffer) -> Iterator[tuple[int, np.ndarray]]:
    """Yield pieces that stay in the cache between their comparison's two passes."""
    values = np.frombuffer(piece, np.uint8)
    for at in range(0, len(values), BLOCK_BYTES // 4):
        yield at, values[at : at + BLOCK_BYTES // 4]


def spare_bits(header: Header) -> int:
    """Return the number of bits in a packed payload's last byte that hold no element."""
    return header.payload_bytes * 8 - prod(header.shape) * header.dtype.element_bits
