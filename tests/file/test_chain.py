"""Folding: chains stay short, and entries are not written again too often, whatever the pattern of flushes."""

from __future__ import annotations

import random

import pytest

from dlpack_wire.file.chain import MAX_CHAIN, MAX_FOLDED_BYTES, RADIX, folded

LINE_BYTES = 75


class Chain:
    """The links of a file and how many bytes of entries were written for them, under the rule of folding."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.added = self.written = self.longest = 0

    def flush(self, entries: int) -> None:
        size = entries * LINE_BYTES
        count = folded(self.sizes, size)
        assert 0 <= count <= len(self.sizes)
        total = size + sum(self.sizes[len(self.sizes) - count :])
        del self.sizes[len(self.sizes) - count :]
        self.sizes.append(total)
        self.added += size
        self.written += total
        self.longest = max(self.longest, len(self.sizes))
        assert self.longest < MAX_CHAIN
        assert sum(self.sizes) == self.added


def test_single_appends_fold_like_the_digits_of_a_number() -> None:
    chain = Chain()
    for _ in range(100_000):
        chain.flush(1)
    assert chain.longest <= (RADIX - 1) * 6
    assert chain.written <= chain.added * 6.5


@pytest.mark.parametrize("seed", range(5))
def test_any_pattern_of_flushes_stays_within_the_readers_cap(seed: int) -> None:
    pick = random.Random(seed)
    chain = Chain()
    for _ in range(5000):
        chain.flush(pick.choice((0, 1, 1, 2, 7, 8, 9, 63, 64, 65, 1000, pick.randrange(10 ** pick.randrange(1, 5)))))


@pytest.mark.parametrize("start", [5, 10, 15])
def test_ever_smaller_flushes_stay_within_the_readers_cap(start: int) -> None:
    chain = Chain()
    for bits in range(start, -1, -1):
        for _ in range(100):
            chain.flush(1 << bits)


def test_the_longest_chain_is_folded_whole_as_long_as_that_is_one_message() -> None:
    assert folded([1 << 24, *[1 << 20, 1 << 12] * 31], 0) == MAX_CHAIN - 1
    assert folded([1 << 29, 1 << 29, *[1 << 12] * 3], LINE_BYTES) == 0
    assert folded([1 << 29] * (MAX_CHAIN - 1), 1 << 29) == 0


def test_no_link_grows_beyond_one_message() -> None:
    chain = Chain()
    for _ in range(100):
        chain.flush(1_000_000)
    assert max(chain.sizes) <= MAX_FOLDED_BYTES
