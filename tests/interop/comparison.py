"""The library's verdicts on mutated messages and files, beside those of the C++ reader, which shares no code with it.

Messages are the vectors, mutated. Files are the vectors too, mutated between their sums, which are then made right
again, so that the rules behind the sums are reached. The readers must agree whether an input is good, and in a file at
which step it is refused: open, read or verify. If an input breaks two rules, either class of error will do.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hand_built_files import END, MAGIC, xxh3
from message_vectors import INVALID, VALID, wire_of

import dlpack_wire as dw
from dlpack_wire.file import entry
from dlpack_wire.file.reader import contents_of
from dlpack_wire.message.wire import read_field
from dlpack_wire.tensor.checksum import check_contents

FILES = Path(__file__).parents[1] / "data" / "files"
LETTERS = {
    dw.DecodeError: "D",
    dw.TruncatedError: "T",
    dw.ChecksumError: "C",
    dw.LimitError: "L",
    dw.UnsupportedVersionError: "U",
}


# --- verdicts of the library ------------------------------------------------------------------------------------------


def message_verdict(message: bytes) -> str:
    try:
        t = dw.decode(message)
    except dw.DecodeError as error:
        return LETTERS[type(error)]
    shape = "x".join(map(str, t.shape)) or "-"
    return f"ok {t.dtype.code} {t.dtype.bits} {t.dtype.lanes} {shape}"


def file_verdict(path: Path) -> str:
    step = "open"
    try:
        with dw.open(path) as f:
            step = "read"
            for name in f:
                located = contents_of(f).locate(name)
                payload = entry.payload_of(contents_of(f).source, located.entry)
                check_contents(located.header, located.checksum, payload, located.sums)
            step, count = "verify", len(f)
        dw.verify(path)
    except dw.DecodeError as error:
        return f"{step} {LETTERS[type(error)]}"
    return f"ok {count}"


# --- inputs -----------------------------------------------------------------------------------------------------------


def mutated(content: bytes, chance: random.Random, begin: int = 0) -> bytes:
    """Change a byte or a few: flip, set, insert, remove, repeat, or swap two parts."""
    made = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if len(made) <= begin:
            break
        at = chance.randrange(begin, len(made))
        kind = chance.choice((0, 0, 0, 1, 1, 1, 2, 3, 4, 5))  # those that move nothing get further
        if kind == 0:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[at] = chance.choice((0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 2:
            made[at:at] = chance.choice((b"\0", b"\x80\0", bytes([chance.randrange(256)]), b"\x48\x01", b"\x58\0"))
        elif kind == 3:
            del made[at : at + chance.choice((1, 1, 2, 8))]
        elif kind == 4:
            made[at:at] = made[at : at + chance.choice((1, 2, 9, 20))]
        else:
            other = chance.randrange(begin, len(made))
            made[at], made[other] = made[other], made[at]
    return bytes(made)


def messages(count: int, chance: random.Random) -> Iterator[bytes]:
    seeds = [wire for case in (*VALID, *INVALID) if len(wire := wire_of(case)) < 4096]
    for _ in range(count):
        yield mutated(chance.choice(seeds), chance)


def files(count: int, chance: random.Random) -> Iterator[bytes]:
    listed = json.loads((FILES / "files.json").read_text())
    whole = {name: (FILES / name).read_bytes() for name, said in listed.items() if "sparse" not in said}
    small = {name: content for name, content in whole.items() if len(content) < 16_384}
    valid = [content for name, content in small.items() if name.startswith("valid")]
    for _ in range(count):
        seed = chance.choice(valid if chance.random() < 0.8 else list(small.values()))
        changed = seed if chance.random() < 0.02 else mutated(seed, chance, min(len(MAGIC), len(seed)))
        yield sealed(changed) if chance.random() < 0.95 else changed


def sealed(content: bytes) -> bytes:
    """Make the sums of records and indexes right, as far as the top-level fields can be walked."""
    made = bytearray(content)
    pos = len(MAGIC)
    try:
        while pos < len(made):
            field = read_field(bytes(made), pos, len(made))
            if field.number == 2 and field.wire_type == 2:
                _seal_record(made, pos, field.content, field.end)
            elif field.number == 3 and field.wire_type == 2:
                _seal_index(made, pos, field.end)
            pos = field.end
    except dw.DecodeError:
        pass
    return bytes(made)


def _seal_record(made: bytearray, begin: int, content: int, end: int) -> None:
    """Fill in a record's sum, and its payload's, if both have their places."""
    sum_at = data_at = payload_sum_at = -1
    pos = content
    while pos < end:
        field = read_field(bytes(made[:end]), pos, end)
        if field.number == 14 and field.wire_type == 1:
            sum_at = field.content
        if field.number == 15 and field.wire_type == 2:
            inner = field.content
            while inner < field.end:
                part = read_field(bytes(made[: field.end]), inner, field.end)
                if part.number == 9 and part.wire_type == 1:
                    payload_sum_at = part.content
                if part.number == 15 and part.wire_type == 2:
                    data_at = part.content
                inner = part.end
        pos = field.end
    if sum_at < 0:
        return
    if payload_sum_at >= 0 and data_at >= 0 and end - data_at <= 1 << 20:
        made[payload_sum_at : payload_sum_at + 8] = xxh3(bytes(made[data_at:end])).to_bytes(8, "little")
    head_end = data_at if data_at >= 0 else end
    made[sum_at : sum_at + 8] = bytes(8)
    made[sum_at : sum_at + 8] = xxh3(bytes(made[begin:head_end])).to_bytes(8, "little")


def _seal_index(made: bytearray, begin: int, end: int) -> None:
    """Make the trailer behind an index state its position and sum, if there is one."""
    if len(made) < end + 27 or made[end] != 0x21 or bytes(made[end + 18 : end + 27]) != END:
        return
    made[end + 1 : end + 9] = begin.to_bytes(8, "little")
    made[end + 10 : end + 18] = xxh3(bytes(made[begin : end + 9])).to_bytes(8, "little")


# --- comparing --------------------------------------------------------------------------------------------------------


def outcome(verdict: str) -> str:
    """A verdict without the class of its error."""
    return verdict if verdict.startswith("ok") else verdict[:-1] or "refused"


def differences(theirs: Sequence[str], ours: Sequence[str]) -> list[int]:
    """The inputs whose verdicts differ; prints the counts, and how often only the classes of errors differ."""
    pairs = list(zip(theirs, ours, strict=True))
    different = [i for i, (a, b) in enumerate(pairs) if outcome(a) != outcome(b)]
    classes = Counter((a, b) for a, b in pairs if a != b and outcome(a) == outcome(b))
    good = sum(verdict.startswith("ok") for verdict in ours)
    print(f"{len(ours)} inputs, {good} good, {len(different)} verdicts differ, {classes.total()} classes differ")
    for (a, b), count in classes.most_common(8):
        print(f"  {count} times {a} in C++, {b} here")
    return different
