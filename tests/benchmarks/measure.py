"""Timing: interleaved rounds, medians, rows with ratios."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the result.

    Attributes:
        name: What was done.
        ours: Median seconds of ours.
        peer: What it is compared with.
        theirs: Median seconds of the peer.
        ratio: ours / theirs, or theirs / ours where the target is a rate.
        target: The bound on the ratio, such as "<= 0.5"; "" if the row is only told.
    """

    name: str
    ours: float
    peer: str
    theirs: float
    ratio: float
    target: str

    @property
    def met(self) -> bool:
        if not self.target:
            return True
        sign, bound = self.target.split()
        return self.ratio <= float(bound) if sign == "<=" else self.ratio >= float(bound)

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "met": self.met}


def time_row(name: str, ours: float, peer: str, theirs: float, bound: float) -> Row:
    """A row that bounds our time by a multiple of the peer's."""
    return Row(name, ours, peer, theirs, ours / theirs, f"<= {bound}")


def rate_row(name: str, ours: float, peer: str, theirs: float, bound: float) -> Row:
    """A row that wants at least a part of the peer's rate."""
    return Row(name, ours, peer, theirs, theirs / ours, f">= {bound}")


def told_row(name: str, ours: float, peer: str, theirs: float) -> Row:
    """A row without a target: our time as a multiple of the peer's."""
    return Row(name, ours, peer, theirs, ours / theirs, "")


def interleaved(works: dict[str, Work], rounds: int, *, loops: int = 1) -> dict[str, float]:
    """Median seconds per call of each work, run in turn so that a drifting machine is unfair to none."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, work in works.items():
                begin = time.perf_counter()
                for _ in range(loops):
                    work()
                times[name].append((time.perf_counter() - begin) / loops)
    finally:
        gc.enable()
    return {name: median(values) for name, values in times.items()}


def once_each(
    works: dict[str, tuple[Callable[[], object], Callable[[object], object], list[object]]], rounds: int
) -> dict[str, float]:
    """Median seconds per item where every item is met for the first time; `forget` runs before each round."""
    times: dict[str, list[float]] = {name: [] for name in works}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, (forget, work, items) in works.items():
                forget()
                begin = time.perf_counter()
                for item in items:
                    work(item)
                times[name].append((time.perf_counter() - begin) / len(items))
    finally:
        gc.enable()
    return {name: median(values) for name, values in times.items()}
