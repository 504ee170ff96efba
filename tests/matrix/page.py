"""docs/matrix.md: what a run found, as tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from .expected import KINDS, LAYOUTS, Kind, Layout
from .frameworks import Framework
from .run import NOTHING_SENT, Findings, Why

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"

_HEAD = """\
# Any producer, any consumer

Written by `make matrix` from its own run; do not edit. Every producer makes a tensor of every element type in every
layout, of arbitrary bits. It is encoded, decoded and handed to every consumer, and all of it must arrive: name of the
type, shape, each bit of each element.

`no` marks a gap of the framework; `yes` with a number means yes, except for some layouts or types. The numbers are
reasons, listed at the end. A consumer's gap counts as its own only if it cannot take the same tensor out of a
hand-made DLPack capsule either.

{versions}
"""

Holes = dict[tuple[str, Kind, Layout], Why]


class Reasons:
    """Reasons by number, in the order in which they are first named."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def _versions(frameworks: Sequence[Framework]) -> str:
    """Say with which versions this ran, in lines of 120 characters that break no name from its version."""
    ran = [f"{f.distribution} {f.version}".replace(" ", "\0") for f in frameworks if f.name != "numpy, swapped"]
    return textwrap.fill(f"Ran with {', '.join(ran)}.", 120, break_on_hyphens=False).replace("\0", " ")


def render(frameworks: Sequence[Framework], found: Findings) -> str:
    """The page for a run of these frameworks."""
    reasons = Reasons()
    parts = [_HEAD.format(versions=_versions(frameworks))]
    for title, holes, names in (
        ("Producers", found.made, [f.name for f in frameworks if f.makes]),
        ("Consumers", found.taken, [f.name for f in frameworks if f.takes]),
    ):
        parts.append(f"## {title}\n")
        parts.append(_table("element type", names, [(k.name, type_row(holes, names, k)) for k in KINDS], reasons))
        parts.append(_table("layout", names, [(y.name, layout_row(holes, names, y)) for y in LAYOUTS], reasons))
    parts.append("## Reasons\n")
    parts.append("".join(f"{n}. The framework {text}.\n" for n, text in enumerate(reasons.texts, 1)))
    return "\n".join(parts)


Cell = tuple[bool, tuple[str, ...]]
"""Whether a framework can at all, and why it cannot in part."""


def type_row(holes: Holes, names: Sequence[str], kind: Kind) -> tuple[Cell, ...]:
    """One cell for every framework; layouts that it lacks for all types are left out."""
    able = {(name, layout) for (name, _, layout), why in holes.items() if why is None}
    return tuple(_cell([holes[n, kind, layout] for layout in LAYOUTS if (n, layout) in able]) for n in names)


def layout_row(holes: Holes, names: Sequence[str], layout: Layout) -> tuple[Cell, ...]:
    """One cell for every framework; types that it lacks in all layouts are left out."""
    able = {(name, kind) for (name, kind, _), why in holes.items() if why is None}
    return tuple(_cell([holes[n, kind, layout] for kind in KINDS if (n, kind) in able]) for n in names)


def _cell(whys: Sequence[Why]) -> Cell:
    reasons = tuple(dict.fromkeys(why for why in whys if why is not None and why != NOTHING_SENT))
    # Where nothing goes, the plainest case says why: the first layout is row-major.
    return (True, reasons) if None in whys else (False, reasons[:1])


def _table(corner: str, names: Sequence[str], rows: Sequence[tuple[str, tuple[Cell, ...]]], reasons: Reasons) -> str:
    """A table in which equal rows are one."""
    lines = [f"| {corner} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    together: dict[tuple[Cell, ...], list[str]] = {}
    for name, cells in rows:
        together.setdefault(cells, []).append(name)
    for cells, labels in together.items():
        numbers = [" ".join(str(reasons.number(text)) for text in why) for _, why in cells]
        texts = [
            ("yes" if can else "no") + (f" ({n})" if n else "") for (can, _), n in zip(cells, numbers, strict=True)
        ]
        lines.append(f"| {', '.join(labels)} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def read(page: str) -> dict[tuple[str, str, str], Cell]:
    """The cells of a rendered page, by title, row and framework."""
    body, _, listed = page.partition("## Reasons\n")
    reasons = dict(re.findall(r"^(\d+)\. The framework (.*)\.$", listed, re.MULTILINE))
    cells: dict[tuple[str, str, str], Cell] = {}
    title, names = "", [""]
    for line in body.splitlines():
        if line.startswith("## "):
            title = line[3:]
        elif line.startswith(("| element type |", "| layout |")):
            names = [text.strip() for text in line.split("|")[2:-1]]
        elif line.startswith("| "):
            labels, *texts = [text.strip() for text in line.split("|")[1:-1]]
            for label, (name, text) in product(labels.split(", "), zip(names, texts, strict=True)):
                numbers = re.findall(r"\d+", text)
                cells[title, label, name] = text.startswith("yes"), tuple(reasons[n] for n in numbers)
    return cells
