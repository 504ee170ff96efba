"""The kept corpus: one input a line, in hex, sorted; small on purpose."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import dlpack_wire

from .properties import TARGETS

HERE = Path(__file__).parent
_DATA = HERE.parent / "data"
_LIBRARY = str(Path(dlpack_wire.__file__).parent)
MAX_INPUT_BYTES = 1024


_SHARES = (8, 2, 1)
"""Of the targets in mutants: a file takes as long as ten messages."""


def path(target: str) -> Path:
    return HERE / "corpus" / f"{target}.txt"


def read(target: str) -> list[bytes]:
    """The inputs kept for a target."""
    return [bytes.fromhex(line) for line in path(target).read_text().splitlines()]


def write(target: str, inputs: Iterable[bytes]) -> None:
    path(target).parent.mkdir(exist_ok=True)
    lines = sorted({content.hex() for content in inputs if len(content) <= MAX_INPUT_BYTES}, key=lambda h: (len(h), h))
    path(target).write_text("".join(line + "\n" for line in lines))


# What broke a property once, and must not do so again even if a smaller corpus covers as much.
_BROKE_THE_LAW = (
    "100818012a0818fad5f97f01000208012204100418012a06d3380580062d",  # an empty packed tensor too large for numpy
)


def seeds(target: str) -> list[bytes]:
    """What a corpus begins with: the golden vectors and files, a few short choices as layouts."""
    if target == "layout":
        return [Random(n).randbytes(16) for n in range(16)]
    if target == "file":
        files = [file.read_bytes() for file in sorted((_DATA / "files").glob("*.dlpw"))]
        return [content for content in files if len(content) <= MAX_INPUT_BYTES]
    cases = [
        case for name in ("valid", "invalid") for case in json.loads((_DATA / "vectors" / f"{name}.json").read_text())
    ]
    wires = [bytes.fromhex(case["wire"]) if isinstance(case["wire"], str) else _joined(case["wire"]) for case in cases]
    return [wire for wire in wires if len(wire) <= MAX_INPUT_BYTES] + list(map(bytes.fromhex, _BROKE_THE_LAW))


def distil(target: str, inputs: Iterable[bytes]) -> list[bytes]:
    """The shortest inputs that take every step from line to line of the library that all of them take."""
    kept: list[bytes] = []
    seen: set[tuple[object, ...]] = set()
    for content in sorted(set(inputs), key=lambda content: (len(content), content)):
        steps: set[tuple[object, ...]] = set()
        sys.settrace(_tracer(steps))
        try:
            verdict = TARGETS[target](content)
        finally:
            sys.settrace(None)
        steps.add((verdict.split()[0],))
        if not steps <= seen:
            seen |= steps
            kept.append(content)
    return kept


def _tracer(steps: set[tuple[object, ...]]) -> Callable[..., Any]:
    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if _LIBRARY not in frame.f_code.co_filename:
            return None
        before = 0

        def step(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal before
            steps.add((frame.f_code, before, frame.f_lineno))
            before = frame.f_lineno
            return step

        return step

    return enter


def _joined(parts: list[tuple[str, int]]) -> bytes:
    return b"".join(bytes.fromhex(part) * times for part, times in parts)


def mutants(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """The same (target, input) pairs in every run: kept inputs with a few bytes changed, put in, taken out, crossed."""
    chance = Random(seed)
    kept = {target: read(target) for target in TARGETS}
    for _ in range(count):
        (target,) = chance.choices(tuple(kept), _SHARES)
        content = bytearray(chance.choice(kept[target]))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(content) + 1)
            match chance.randrange(5):
                case 0 if at < len(content):
                    content[at] ^= 1 << chance.randrange(8)
                case 1 if at < len(content):
                    content[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                case 2:
                    content[at:at] = chance.randbytes(chance.randint(1, 3))
                case 3:
                    del content[at : at + chance.randint(1, 3)]
                case 4:
                    content[at:] = chance.choice(kept[target])[at:]
        yield target, bytes(content)
