"""Compares the library's verdicts with those of the C++ reader, which shares no code with it.

    python tests/interop/compare.py PROGRAM [--messages N] [--files N] [--seed S]

Messages are the vectors, mutated. Files are the vectors too, mutated between their sums, which are then made right
again, so that the rules behind the sums are reached. The readers must agree whether an input is good, and in a file at
which step it is refused: open, read or verify. If an input breaks two rules, either class of error will do; how often
the classes differ is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from hand_built_files import END, MAGIC, xxh3  # noqa: E402
from message_vectors import INVALID, VALID, wire_of  # noqa: E402

import dlpack_wire as dw  # noqa: E402
from dlpack_wire.file import entry  # noqa: E402
from dlpack_wire.file.reader import contents_of  # noqa: E402
from dlpack_wire.message.wire import read_field  # noqa: E402
from dlpack_wire.tensor.checksum import check_contents  # noqa: E402

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
    folder = ROOT / "tests" / "data" / "files"
    listed = json.loads((folder / "files.json").read_text())
    whole = {name: (folder / name).read_bytes() for name, said in listed.items() if "sparse" not in said}
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


def answers(program: str, command: str, lines: list[str]) -> list[str]:
    done = subprocess.run(
        [program, command], input="".join(line + "\n" for line in lines), capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def outcome(verdict: str) -> str:
    """A verdict without the class of its error."""
    return verdict if verdict.startswith("ok") else verdict[:-1] or "refused"


def compare(what: str, theirs: list[str], ours: list[str], show: Callable[[int], str]) -> int:
    assert len(theirs) == len(ours)
    different = [i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if outcome(a) != outcome(b)]
    classes = Counter((a, b) for a, b in zip(theirs, ours, strict=True) if a != b and outcome(a) == outcome(b))
    good = sum(verdict.startswith("ok") for verdict in ours)
    print(
        f"{what}: {len(ours)} inputs, {good} good, {len(different)} verdicts differ, {classes.total()} classes differ"
    )
    for (a, b), count in classes.most_common(8):
        print(f"  {count} times {a} in C++, {b} here")
    for i in different[:20]:
        print(f"  C++ {theirs[i]!r}, here {ours[i]!r}: {show(i)}")
    return len(different)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    made = list(messages(options.messages, chance))
    theirs = [" ".join(line.split(" ")[:5]) for line in answers(options.program, "messages", [m.hex() for m in made])]
    different = compare("messages", theirs, list(map(message_verdict, made)), lambda i: made[i].hex()[:400])
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, content in enumerate(files(options.files, chance)):
            path = Path(folder, f"{i}.dlpw")
            path.write_bytes(content)
            paths.append(path)
        found = answers(options.program, "files", list(map(str, paths)))
        kept = Path(tempfile.gettempdir(), "interop-differences")

        def show(i: int) -> str:
            kept.mkdir(exist_ok=True)
            (kept / paths[i].name).write_bytes(paths[i].read_bytes())
            return str(kept / paths[i].name)

        different += compare("files", found, list(map(file_verdict, paths)), show)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
