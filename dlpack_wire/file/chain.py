"""Chains of indexes that build on each other: reading them, and deciding when a writer folds them into one.

A generation's index may hold only its own entries and name an earlier index that it extends. If every flush only added
a link, opening would cost one read per flush. If every flush rewrote the whole index, the file would be mostly index.
So links are merged like carries in base 8: at most seven of a size stand in a row, and an entry is written again once
for every eightfold growth of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DecodeError, LimitError
from ..message.wire import read_minimal_varint
from .index import MAGIC, TRAILER_BYTES, UNSUMMED_BYTES, Index, Trailer, check_index, read_trailer
from .storage import Storage

MAX_CHAIN = 64
"""Maximum number of indexes that build on each other: a reader walks all of them."""

MAX_FOLDED_BYTES = 1 << 30
"""Links are not folded into an index larger than this: one of 2^31 bytes would be no message any more."""

RADIX = 8
"""Links of one size that are folded into one of the next. A larger radix writes less and opens slower."""

_TAG_AND_LENGTH_BYTES = 1 + 10  # at most: a varint has 10 bytes


@dataclass(frozen=True)
class Link:
    """One index of a chain.

    Attributes:
        trailer: Its position and sum.
        index: Its content.
        end: Position of its trailer's end.
    """

    trailer: Trailer
    index: Index
    end: int


def trailer_at(source: Storage, end: int) -> Trailer | None:
    """Return the trailer that ends at a position, or None if other bytes do."""
    begin = end - TRAILER_BYTES
    return read_trailer(source.read(begin, end)) if begin >= len(MAGIC) else None


def read_chain(source: Storage, trailer: Trailer, end: int) -> list[Link]:
    """Return the indexes that a generation builds on, and its own last.

    Args:
        source: The file.
        trailer: The generation's trailer.
        end: Position of the trailer's end.

    Raises:
        LimitError: More than `MAX_CHAIN` indexes build on each other.
        DecodeError: An index of the chain is damaged or malformed.
    """
    chain: list[Link] = []
    while True:
        index = read_index(source, trailer, end)
        chain.append(Link(trailer, index, end))
        if index.base is None:
            chain.reverse()
            return chain
        if len(chain) >= MAX_CHAIN:
            raise LimitError(
                f"more than {MAX_CHAIN} indexes build on each other",
                declared=len(chain) + 1,
                limit=MAX_CHAIN,
                field="base_index_offset",
            )
        trailer = Trailer(*index.base)
        end = _base_end(source, trailer, chain[-1].trailer.index_offset)


def read_index(source: Storage, trailer: Trailer, end: int) -> Index:
    """Read the index that a trailer names.

    Args:
        source: The file.
        trailer: The trailer.
        end: Position of its end.

    Raises:
        DecodeError: The index is damaged or malformed, or lies outside of the file.
    """
    offset, index_sum = trailer
    if not len(MAGIC) <= offset < end - TRAILER_BYTES:
        raise DecodeError(f"index at {offset}, outside the file's {end} bytes", field="index_offset")
    region = source.read(offset, end - UNSUMMED_BYTES)
    return Index(check_index(region, offset, index_sum), offset)


def _base_end(source: Storage, base: Trailer, before: int) -> int:
    """Return the end of a base index's generation.

    Raises:
        DecodeError: No complete generation lies there before its successor.
    """
    offset = base.index_offset
    if not len(MAGIC) <= offset < before - TRAILER_BYTES:
        raise DecodeError(f"base index at {offset}, not before its successor", offset=before)
    start = source.read(offset, min(offset + _TAG_AND_LENGTH_BYTES, before))
    try:
        size, pos = read_minimal_varint(start, 1, len(start))
    except DecodeError as error:
        error.args = (f"base index without a length: {error.args[0]}",)
        error.offset = offset  # it counted from the index's begin
        raise
    end = offset + pos + size + TRAILER_BYTES
    if end > before or trailer_at(source, end) != base:
        raise DecodeError("base index without its trailer", offset=offset)
    return end


def folded(sizes: Sequence[int], added: int) -> int:
    """Return the number of links at the end of a chain that a new one replaces.

    Args:
        sizes: Bytes of the entries of each link, oldest first.
        added: Bytes of the entries that are new.
    """
    count = 0
    total = added
    while True:
        same = count
        while same < len(sizes) and _level(sizes[-1 - same]) <= _level(total):
            same += 1
        merged = total + sum(sizes[len(sizes) - same : len(sizes) - count])
        if same - count < RADIX - 1 or merged > MAX_FOLDED_BYTES:
            break
        count, total = same, merged
    if len(sizes) - count >= MAX_CHAIN - 1 and sum(sizes) + added <= MAX_FOLDED_BYTES:
        return len(sizes)
    return count


def _level(size: int) -> int:
    """Return the level of a link: level n begins at 64 * RADIX^n bytes, where 64 bytes are about one entry."""
    return max((size >> 6).bit_length() - 1, 0) // 3  # log2 of RADIX
