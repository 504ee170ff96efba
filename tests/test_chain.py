"""Folding: chains stay short, and entries are not written again too often, whatever the pattern of flushes."""

from __future__ import annotations

import random

import pytest

from dlpack_wire.chain import MAX_CHAIN, RADIX, folded


class Chain:
    """The links of a file and how many entries were written for them, under the rule of folding."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.added = self.written = self.longest = 0

    def flush(self, entries: int) -> None:
        count = folded(self.sizes, entries)
        assert 0 <= count <= len(self.sizes)
        total = entries + sum(self.sizes[len(self.sizes) - count :])
        del self.sizes[len(self.sizes) - count :]
        self.sizes.append(total)
        self.added += entries
        self.written += total
        self.longest = max(self.longest, len(self.sizes))
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
        chain.flush(pick.choice((0, 1, 1, 2, 7, 8, 9, 63, 64, 65, 1000, pick.randrange(10 ** pick.randrange(1, 8)))))
    assert chain.longest < MAX_CHAIN


@pytest.mark.parametrize("start", [10, 20, 30])
def test_ever_smaller_flushes_stay_within_the_readers_cap(start: int) -> None:
    chain = Chain()
    for bits in range(start, -1, -1):
        for _ in range(100):
            chain.flush(1 << bits)
    assert chain.longest < MAX_CHAIN


def test_the_longest_chain_of_all_is_folded_whole() -> None:
    sizes = [1 << 200 - 3 * i for i in range(MAX_CHAIN - 1)]
    assert folded(sizes, 1) == len(sizes)
