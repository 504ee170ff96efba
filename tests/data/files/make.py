"""Make the files of this folder: valid ones, and one invalid one for every rule that a file can break.

    python tests/data/files/make.py --force

Nothing here uses the library. The files are reviewed when they change and then frozen: they bind readers in every
language, so a difference is a change of the contract, not something to regenerate away.

files.json: for every file
    error       class that is raised; null for a valid file
    at          who raises it: "open", "read" (the first access to the tensor), or "verify" (which also raises whatever
                the others do)
    tensors     of a valid file, and of what an invalid one still gives: names and payloads in hex
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from hand_built_files import (  # noqa: E402
    BLOCK,
    END,
    MAGIC,
    CraftedFile,
    block_sums,
    entry,
    field,
    fixed,
    header_of,
    listed,
    names_of,
    number,
    payload_sum_of,
    record,
    removal,
    removal_entry,
    text,
    two_generations,
    varint,
    with_sum,
    xxh3,
)

PAYLOAD = b"\1\2\3\4"
HEADER = header_of([4], payload_sum=xxh3(PAYLOAD))
A = names_of("a")
HUGE = 1 << 40

VALID: dict[str, tuple[bytes, dict[str, bytes]]] = {}
INVALID: dict[str, tuple[bytes, str, str]] = {}


def valid(name: str, content: bytes, **tensors: bytes) -> None:
    VALID[name] = content, tensors


def invalid(name: str, content: bytes, at: str, error: str = "DecodeError") -> None:
    INVALID[name] = content, at, error


def two_tensors() -> CraftedFile:
    f = CraftedFile()
    f.add("a", PAYLOAD)
    f.add("b", b"\5\6\7\x08")
    return f


def simple() -> bytes:
    return two_tensors().finish()


def lying(
    names: bytes = A,
    header: bytes = HEADER,
    payload: bytes = PAYLOAD,
    *,
    line_names: bytes | None = None,
    line_header: bytes | None = None,
    record_offset: int = 9,
    data_offset: int | None = None,
    data_bytes: int | None = None,
) -> bytes:
    """A file of one record, whose index entry may say something else."""
    f = CraftedFile()
    written, data_at = record(names, header, payload, 9)
    f.content += written
    f.lines.append(
        entry(
            names if line_names is None else line_names,
            header if line_header is None else line_header,
            record_offset,
            9 + data_at if data_offset is None else data_offset,
            len(payload) if data_bytes is None else data_bytes,
        )
    )
    return f.finish()


def with_record(written: bytes, data_at: int) -> bytes:
    """A file of one record that is given, and an honest index entry."""
    f = CraftedFile()
    f.content += written
    f.lines.append(entry(A, HEADER, 9, 9 + data_at, len(PAYLOAD)))
    return f.finish()


def reshaped(
    before: bytes = b"", names: bytes = A, sum_field: bytes = fixed(14, 0), after_header: bytes = b""
) -> bytes:
    """A record with something more in it; its payload lies at a multiple of 64."""
    for padding in range(1, 200):
        middle = HEADER + after_header + field(14, bytes(padding)) + b"\x7a" + varint(len(PAYLOAD))
        inner = names + before + sum_field + b"\x7a" + varint(len(middle) + len(PAYLOAD)) + middle
        head = b"\x12" + varint(len(inner) + len(PAYLOAD)) + inner
        if (9 + len(head)) % 64 == 0:
            break
    if sum_field == fixed(14, 0):
        head = with_sum(head, names + before)
    return with_record(head + PAYLOAD, len(head))


def hidden() -> bytes:
    """The index points at a record that lies in the payload of a record which it does not name."""
    inner, _ = record(A, HEADER, PAYLOAD, 128)
    f = CraftedFile()
    f.add("a", bytes(64) + inner, indexed=False)
    content = bytes(f.content)
    assert content.index(inner) == 128
    f.lines.append(entry(A, HEADER, 128, content.index(PAYLOAD, 128), 4))
    return f.finish()


def doubled_data() -> bytes:
    """A standard parser takes the last of two `data`."""
    return with_record(*record(A, HEADER, PAYLOAD, 9, tail=field(15, b"\5\6\7\x08")))


def doubled_tensor() -> bytes:
    """A standard parser merges two `tensor`."""
    second = field(15, field(15, b"\5\6\7\x08"))
    written, data_at = record(A, HEADER, PAYLOAD, 9)
    assert written[1] + len(second) < 0x80
    return with_record(b"\x12" + bytes([written[1] + len(second)]) + written[2:] + second, data_at)


def with_lines(*lines: bytes, ending: bytes = b"") -> bytes:
    """Two honest records under an index of other lines."""
    f = two_tensors()
    f.lines = list(lines)
    return f.finish(ending)


def based(base: tuple[int, int] | None) -> bytes:
    f = two_tensors()
    f.finish()
    f.add("c")
    return f.finish(base=f.trailer if base is None else base)


def chain_of(count: int) -> bytes:
    f = CraftedFile()
    f.finish()
    for _ in range(count - 1):
        f.finish(base=f.trailer)
    return bytes(f.content)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def make() -> None:
    two_blocks = bytes(BLOCK) + PAYLOAD
    valid("no-tensors", CraftedFile().finish())
    valid("two-tensors", simple(), a=PAYLOAD, b=b"\5\6\7\x08")
    valid("two-generations", two_generations(), a=b"\5\6\7\x08", tied=b"\1\2\3", b=b"", c=b"\x09")
    f = CraftedFile()
    f.add("", PAYLOAD)
    valid("one-without-a-name", f.finish(), **{"": PAYLOAD})
    f = CraftedFile()
    f.content += field(7, b"for a later version")
    f.add("a", PAYLOAD)
    f.content += field(1 << 20, b"\x12\x00")
    valid("unknown-fields", f.finish(field(9, b"later")), a=PAYLOAD)
    valid("unknown-field-in-a-record", reshaped(field(9, b"later")), a=PAYLOAD)
    f = CraftedFile()
    f.add("two-blocks", two_blocks)
    valid("two-blocks", f.finish(), **{"two-blocks": two_blocks})
    lines = [entry(A, HEADER, 9, 64, 4, field(9, b"later")), two_tensors().lines[1]]
    valid("unknown-field-in-an-entry", with_lines(*lines), a=PAYLOAD, b=b"\5\6\7\x08")
    f = two_tensors()
    f.finish()
    base = f.trailer
    f.remove("a")
    valid("name-removed", f.finish(base=base), b=b"\5\6\7\x08")
    f = two_tensors()
    f.finish()
    base = f.trailer
    f.remove("a")
    f.finish(base=base)
    base = f.trailer
    f.add("a", b"\1")
    valid("name-removed-and-written-again", f.finish(base=base), a=b"\1", b=b"\5\6\7\x08")
    valid("chain-of-64", chain_of(64))
    valid("torn-tail", two_generations() + b"\x12\x7f half a record", a=b"\5\6\7\x08", tied=b"\1\2\3", b=b"", c=b"\x09")
    f = CraftedFile()
    f.add("nfc-\u00e9", b"\1")
    f.add("nfc-e\u0301", b"\2")
    valid("two-forms-of-a-letter", f.finish(), **{"nfc-\u00e9": b"\1", "nfc-e\u0301": b"\2"})

    # Magic, trailer, generations.
    invalid("empty", b"", "open")
    invalid("only-magic", MAGIC, "open")
    invalid("another-format", b"\x93NUMPY\x01\x00" + bytes(120), "open")
    invalid("version-2", b"\x09DLPWIRE2" + simple()[9:], "open", "UnsupportedVersionError")
    invalid("magic-twice", MAGIC + simple(), "open")
    invalid("one-byte-short", simple()[:-1], "open")
    invalid("trailing-bytes", simple() + b"\0", "verify")
    invalid("two-files-joined", simple() + simple(), "verify")
    f = CraftedFile()
    f.add("b", bytes(500))
    invalid("trailer-of-another-file", simple()[:-27] + f.finish()[-27:], "open")
    invalid("index-offset-zero", simple()[:-26] + bytes(8) + simple()[-18:], "open")
    invalid("index-offset-beyond", simple()[:-26] + HUGE.to_bytes(8, "little") + simple()[-18:], "open")
    invalid("index-offset-wraps", simple()[:-26] + b"\xff" * 8 + simple()[-18:], "open")
    invalid("index-flipped", flipped(simple(), len(simple()) - 40), "open", "ChecksumError")
    f = two_tensors()
    invalid("index-claims-terabytes", f.close(b"\x1a" + varint(HUGE)), "open")
    f = two_tensors()
    invalid(
        "index-longer-than-it-is", f.close(b"\x1a" + varint(sum(map(len, f.lines)) + 1) + b"".join(f.lines)), "open"
    )
    f = two_tensors()
    length = sum(map(len, f.lines))
    padded = varint(length)[:-1] + bytes([varint(length)[-1] | 0x80, 0])
    invalid("index-length-not-minimal", f.close(b"\x1a" + padded + b"".join(f.lines)), "open")
    valid("based", based(None), a=PAYLOAD, b=b"\5\6\7\x08", c=PAYLOAD)
    invalid("base-in-the-magic", based((1, 0)), "open")
    invalid("base-in-a-record", based((9, 0)), "open")
    invalid("base-beyond-the-file", based((HUGE, 0)), "open")
    invalid("base-wraps", based((2**64 - 1, 0)), "open")
    invalid("base-with-another-sum", based((f.trailer[0], 1)), "open")
    invalid("chain-of-65", chain_of(65), "open")
    f = CraftedFile()
    begin = len(f.content)
    invalid("base-is-itself", f.finish(base=(begin, 1)), "open")
    f = two_tensors()
    f.finish()
    invalid("index-without-trailer", bytes(f.content[:-27]) + field(2, b"") + simple()[9:], "open")

    # Index entries against each other and the file.
    lines = two_tensors().lines
    invalid("name-twice", with_lines(lines[0], lines[1].replace(names_of("b"), A)), "open")
    invalid("alias-is-anothers-name", with_lines(entry(names_of("x", ["b"]), HEADER, 9, 64, 4), lines[1]), "open")
    invalid("empty-name-beside-another", with_lines(entry(b"", HEADER, 9, 64, 4), lines[1]), "open")
    invalid("empty-name-written-out", with_lines(entry(field(1, b""), HEADER, 9, 64, 4)), "open")
    invalid("name-with-nul", lying(names_of("a\0b")), "open")
    invalid("name-of-4097-bytes", lying(names_of("a" * 4097)), "open", "LimitError")
    invalid("name-is-no-utf-8", lying(field(1, b"\xff")), "open")
    invalid("name-is-a-surrogate", lying(field(1, b"\xed\xa0\x80")), "open")
    invalid("65-aliases", lying(names_of("a", [str(i) for i in range(65)])), "open", "LimitError")
    invalid("records-overlap", with_lines(lines[0], lines[0].replace(A, names_of("c"))), "open")
    invalid("record-inside-another", with_lines(lines[0], entry(names_of("b"), HEADER, 10, 64, 4)), "open")
    invalid("record-before-the-magic-ends", lying(record_offset=8), "open")
    invalid("record-offset-zero", lying(record_offset=0), "open")
    invalid("record-offset-beyond", lying(record_offset=HUGE, data_offset=HUGE + 64), "open")
    invalid("data-offset-before-the-record", with_lines(entry(A, HEADER, 65, 64, 4)), "open")
    invalid("data-offset-beyond", lying(data_offset=HUGE), "open")
    invalid("data-offset-wraps", lying(data_offset=2**64 - 64), "open")
    invalid("data-bytes-beyond", lying(data_bytes=HUGE), "open")
    invalid("data-bytes-wrap", lying(data_bytes=2**64 - 64), "open")
    invalid("data-offset-not-aligned", with_lines(entry(A, HEADER, 9, 65, 4)), "open")
    invalid("data-offset-half-aligned", with_lines(entry(A, HEADER, 9, 96, 4)), "open")
    invalid("entry-without-offsets", with_lines(field(1, A + field(4, HEADER + bytes(40)))), "open")
    invalid("entry-cut-off", with_lines(lines[0][:-1]), "open")
    invalid("entry-behind-metadata", with_lines(field(2, text("k", "v")), lines[0]), "open")
    invalid("entry-without-header", with_lines(field(1, A + field(3, text("k", "v" * 40)) + lines[0][-27:])), "read")
    invalid("metadata-key-twice", with_lines(*lines, ending=field(2, text("k", "v")) * 2), "verify")
    invalid(
        "metadata-not-sorted", with_lines(*lines, ending=field(2, text("b", "")) + field(2, text("a", ""))), "verify"
    )

    # Removals, and what later revisions may define.
    removing = names_of("a")
    f = two_tensors()
    f.remove("a", indexed=False)
    invalid("removal-not-in-the-index", f.finish(), "verify")
    f = two_tensors()
    f.finish()
    base = f.trailer
    at = len(f.content)
    f.content += removal("a")
    f.lines = [field(1, removing + fixed(13, at) + fixed(14, at + len(removal("a")) - 1) + fixed(15, 0))]
    invalid("removal-of-another-size", f.finish(base=base), "verify")
    f = two_tensors()
    f.finish()
    base = f.trailer
    at = len(f.content)
    f.content += removal("c")
    f.lines = [removal_entry(removing, at, at + len(removal("c")))]
    invalid("index-removes-another", f.finish(base=base), "verify")
    invalid("critical-field-in-a-record", reshaped(field(4, b"later")), "read", "UnsupportedVersionError")
    invalid(
        "critical-field-in-an-entry",
        with_lines(entry(A, HEADER, 9, 64, 4, field(6, b"later")), two_tensors().lines[1]),
        "read",
        "UnsupportedVersionError",
    )
    invalid("critical-field-in-a-header", lying(header=HEADER + number(10, 1)), "read", "UnsupportedVersionError")
    invalid("sums-of-one-block", with_lines(entry(A, HEADER, 9, 64, 4, listed(bytes(8)))), "read")
    header = header_of([len(two_blocks)], payload_sum=payload_sum_of(two_blocks))
    sums = block_sums(two_blocks)
    for name, wrong, error in (
        ("sums-missing", b"", "DecodeError"),
        ("sums-of-three-blocks", sums + bytes(8), "DecodeError"),
        ("sums-of-other-blocks", sums[8:] + sums[:8], "ChecksumError"),
    ):
        f = CraftedFile()
        written, data_at = record(A, header, two_blocks, 9)
        f.content += written
        f.lines = [entry(A, header, 9, 9 + data_at, len(two_blocks), listed(wrong))]
        invalid(name, f.finish(), "read", error)

    # Index entries against their records.
    invalid("index-names-another", lying(line_names=names_of("b")), "read")
    invalid("index-adds-an-alias", lying(line_names=names_of("a", ["b"])), "read")
    invalid("index-has-other-metadata", lying(line_names=names_of("a", [], [text("k", "v")])), "read")
    invalid("index-leaves-metadata-out", lying(names_of("a", [], [text("k", "v")]), line_names=A), "read")
    invalid("index-has-another-shape", lying(line_header=header_of([2, 2], payload_sum=xxh3(PAYLOAD))), "read")
    invalid("index-has-another-type", lying(line_header=header_of([4], code=0, payload_sum=xxh3(PAYLOAD))), "read")
    invalid("index-has-another-sum", lying(line_header=header_of([4], payload_sum=1)), "read")
    invalid("index-has-no-sum", lying(line_header=header_of([4])), "read")
    invalid("index-has-padding", lying(line_header=HEADER + field(14, bytes(4))), "read")
    invalid("index-has-data", lying(line_header=HEADER + field(15, PAYLOAD)), "read")
    invalid("index-has-a-smaller-size", lying(data_bytes=3), "read")
    invalid("index-points-behind-the-tag", lying(record_offset=10), "read")
    invalid("record-hidden-in-a-payload", hidden(), "read")
    invalid("record-not-in-the-index", with_lines(lines[0]), "verify")
    f = CraftedFile()
    f.add("a")
    f.add("a", b"\5\6\7\x08", indexed=False)
    invalid("index-knows-an-older-record", f.finish(), "verify")

    # Records by themselves.
    invalid("payload-flipped", flipped(simple(), 65), "verify", "ChecksumError")
    invalid("record-sum-flipped", flipped(simple(), simple().index(b"\x71") + 1), "read", "ChecksumError")
    invalid("padding-flipped", flipped(simple(), 55), "read")
    invalid("record-sum-missing", reshaped(sum_field=b""), "read")
    invalid("record-sum-of-another-type", reshaped(sum_field=field(14, bytes(8))), "read")
    invalid("record-claims-terabytes", MAGIC + b"\x12" + varint(HUGE) + simple()[11:], "open")
    invalid("data-twice", doubled_data(), "read")
    invalid("tensor-twice", doubled_tensor(), "read")
    invalid("header-field-after-its-order", reshaped(after_header=field(5, b"\4")), "read")
    invalid("unknown-field-twice", reshaped(field(9, b"x") * 2), "read")
    invalid("record-metadata-not-sorted", lying(names_of("a", [], [text("b", ""), text("a", "")])), "read")
    invalid("payload-sum-missing", lying(header=header_of([4])), "read")
    invalid("payload-too-long", lying(header=header_of([3], payload_sum=xxh3(PAYLOAD))), "read")
    invalid("payload-too-short", lying(header=header_of([5], payload_sum=xxh3(PAYLOAD))), "read", "TruncatedError")
    invalid("shape-of-terabytes", lying(header=header_of([HUGE], payload_sum=0)), "read", "TruncatedError")
    invalid("shape-wraps", lying(header=header_of([2**32, 2**32, 4], payload_sum=0)), "read")
    invalid("65-dimensions", lying(header=header_of([1] * 64 + [4], payload_sum=xxh3(PAYLOAD))), "read")
    invalid("opaque-handles", lying(header=header_of([4], code=3, payload_sum=xxh3(PAYLOAD))), "read")
    invalid("no-bits", lying(header=header_of([4], bits=0, payload_sum=xxh3(PAYLOAD))), "read")
    two = (b"\0\1\2\3", b"\xff")
    invalid("bool-of-2", lying(header=header_of([4], code=6, payload_sum=xxh3(two[0])), payload=two[0]), "verify")
    invalid("spare-bits-set", lying(header=header_of([3], bits=2, payload_sum=xxh3(two[1])), payload=two[1]), "verify")
    padding = b"\x72" + varint(HUGE)
    head = b"\x12" + varint(100) + A + fixed(14, 0) + b"\x7a" + varint(80) + HEADER + padding
    written = with_sum(head, A)
    invalid("padding-of-2-to-the-40", with_record(written + bytes(102 - len(written)), 55), "read")

    # What stands between records.
    f = two_tensors()
    f.content += b"\x38\x01"
    f.add("c")
    invalid("number-between-records", f.finish(), "read")
    f = two_tensors()
    f.content += MAGIC
    f.add("c")
    invalid("magic-between-records", f.finish(), "read")
    f = two_tensors()
    f.content += fixed(4, 9) + fixed(5, 0) + END
    f.add("c")
    invalid("trailer-without-index", f.finish(), "read")


def files() -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Every file by its name: content, and what files.json says of it."""
    make()
    found: dict[str, tuple[bytes, dict[str, Any]]] = {}
    for name, (content, tensors) in VALID.items():
        said = {"error": None, "at": None, "tensors": {k: v.hex() for k, v in tensors.items()}}
        found[f"valid-{name}.dlpw"] = content, said
    for name, (content, at, error) in INVALID.items():
        found[f"invalid-{name}.dlpw"] = content, {"error": error, "at": at}
    return found


def main() -> int:
    made = files()
    listed = json.dumps({name: said for name, (_, said) in made.items()}, indent=1, ensure_ascii=True) + "\n"
    different = [name for name, (content, _) in made.items() if not _is(HERE / name, content)]
    different += [] if _is(HERE / "files.json", listed.encode()) else ["files.json"]
    different += [p.name for p in HERE.glob("*.dlpw") if p.name not in made]
    if "--force" in sys.argv[1:]:
        for name, (content, _) in made.items():
            (HERE / name).write_bytes(content)
        (HERE / "files.json").write_text(listed)
        return 0
    for name in different:
        print(f"differs: {name}")
    return 1 if different else 0


def _is(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


if __name__ == "__main__":
    sys.exit(main())
