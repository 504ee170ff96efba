"""One file for every rule that a file can break, and the first step that must refuse it."""

from __future__ import annotations

from crafts import (
    HEADER,
    HUGE,
    PAYLOAD,
    A,
    based,
    chain_of,
    doubled_data,
    doubled_tensor,
    flipped,
    hidden,
    invalid,
    lying,
    reshaped,
    simple,
    two_tensors,
    with_lines,
    with_record,
)
from hand_built_files import (
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
    record_head,
    removal,
    removal_entry,
    text,
    varint,
    with_sum,
    with_trailer,
    xxh3,
)


def make_invalid() -> None:
    two_blocks = bytes(BLOCK) + PAYLOAD
    # Magic, trailer, generations.
    invalid("empty", b"", "open")
    invalid("only-magic", MAGIC, "open")
    invalid("another-format", b"\x93NUMPY\x01\x00" + bytes(120), "open")
    invalid("version-2", b"\x09DLPWIRE2" + simple()[9:], "open", "unsupported")
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
    invalid("index-flipped", flipped(simple(), len(simple()) - 40), "open", "checksum error")
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

    content = based(None)
    first_index = len(two_tensors().content)
    invalid("base-flipped", flipped(content, first_index + 4), "open", "checksum error")
    invalid("trailer-of-the-base-flipped", flipped(content, len(simple()) - 12), "open")
    f = two_tensors()
    lines = list(f.lines)
    f.finish()
    f.add("c")
    f.lines = [*lines, f.lines[0]]
    content = f.finish()
    invalid("dead-index-flipped", flipped(content, first_index + 4), "verify", "checksum error")
    f = two_tensors()
    f.finish()
    f.add("a", b"\5\6\7\x08")
    content = f.finish(base=f.trailer)
    invalid("dead-payload-flipped", flipped(content, 64), "verify", "checksum error")
    f = two_tensors()
    lines = list(f.lines)
    f.finish()
    base = f.trailer
    f.lines = lines
    invalid("entry-of-the-base-repeated", f.finish(base=base), "open")

    # Index entries against each other and the file.
    lines = two_tensors().lines
    invalid("name-twice", with_lines(lines[0], lines[1].replace(names_of("b"), A)), "open")
    invalid("alias-is-anothers-name", with_lines(entry(names_of("x", ["b"]), HEADER, 9, 64, 4), lines[1]), "open")
    invalid("empty-name-beside-another", with_lines(entry(b"", HEADER, 9, 64, 4), lines[1]), "open")
    invalid("empty-name-written-out", with_lines(entry(field(1, b""), HEADER, 9, 64, 4)), "open")
    invalid("name-with-nul", lying(names_of("a\0b")), "open")
    invalid("name-of-4097-bytes", lying(names_of("a" * 4097)), "open", "limit error")
    invalid("name-is-no-utf-8", lying(field(1, b"\xff")), "open")
    invalid("name-is-a-surrogate", lying(field(1, b"\xed\xa0\x80")), "open")
    invalid("65-aliases", lying(names_of("a", [str(i) for i in range(65)])), "open", "limit error")
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
    invalid("critical-field-in-a-record", reshaped(field(4, b"later")), "read", "unsupported")
    invalid(
        "critical-field-in-an-entry",
        with_lines(entry(A, HEADER, 9, 64, 4, field(6, b"later")), two_tensors().lines[1]),
        "read",
        "unsupported",
    )
    invalid("critical-field-in-a-header", lying(header=HEADER + number(10, 1)), "read", "unsupported")
    invalid("sums-of-one-block", with_lines(entry(A, HEADER, 9, 64, 4, listed(bytes(8)))), "read")
    header = header_of([len(two_blocks)], payload_sum=payload_sum_of(two_blocks))
    sums = block_sums(two_blocks)
    for name, wrong, error in (
        ("sums-missing", b"", "decode error"),
        ("sums-of-three-blocks", sums + bytes(8), "decode error"),
        ("sums-of-other-blocks", sums[8:] + sums[:8], "checksum error"),
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
    invalid("payload-flipped", flipped(simple(), 65), "verify", "checksum error")
    invalid("record-sum-flipped", flipped(simple(), simple().index(b"\x71") + 1), "read", "checksum error")
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
    invalid("payload-too-short", lying(header=header_of([5], payload_sum=xxh3(PAYLOAD))), "read", "truncated")
    invalid("shape-of-terabytes", lying(header=header_of([HUGE], payload_sum=0)), "read", "truncated")
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
    f = two_tensors()
    f.content += field(3, b"")
    f.add("c")
    invalid("index-without-trailer-in-a-gap", f.finish(), "read")

    make_where_two_readings_were_possible()


def make_where_two_readings_were_possible() -> None:
    """One file for every sentence of the contract that was once read in two ways."""
    gaps = b"\1\7\0"
    header = header_of([2], 6, strides=[2], payload_sum=xxh3(gaps))
    invalid("bool-of-7-in-a-gap", lying(header=header, payload=gaps), "verify")
    for field_number in (1, 4, 5, 6):
        f = CraftedFile()
        f.content += field(field_number, b"zz")
        f.add("a")
        invalid(f"length-delimited-field-{field_number}", f.finish(), "read")
    f = two_tensors()
    lines = list(f.lines)
    f.content += field(3, b"".join(lines)) + fixed(4, 9) + fixed(5, 0) + END
    f.lines = []
    f.add("c")
    f.lines = [*lines, *f.lines]
    invalid("trailer-with-another-position", f.finish(), "read")
    invalid("base-entry-behind-its-own-index", entry_behind_its_own_index(), "open")
    invalid("index-field-2-as-a-number", with_lines(*lines, ending=number(2, 7)), "open")
    invalid("index-field-3-as-a-number", with_lines(*lines, ending=number(3, 7)), "open")
    f = CraftedFile()
    empty = header_of([0], payload_sum=xxh3(b""))
    head = record_head(A, empty + field(15, b""), 0, 9)
    f.content += head
    f.lines = [entry(A, empty, 9, 9 + len(head), 0)]
    invalid("empty-data-in-a-file", f.finish(), "read")
    f = CraftedFile()
    f.add("a", b"", header=empty)
    f.lines = [f.lines[0].replace(field(4, empty), b"")]
    f.lines = [field(1, f.lines[0][2:])]
    invalid("empty-tensor-without-header", f.finish(), "verify")
    first = CraftedFile()
    second = two_tensors().finish()
    offset = len(two_tensors().content)
    first.content += field(7, bytes(offset - len(CraftedFile().finish()) - 2))
    joined = first.finish()
    assert len(joined) == offset
    invalid("two-files-joined-at-the-index-offset", joined + second, "open")
    for name, extra, error in (
        ("critical-field-in-a-removal-entry", number(6, 1), "unsupported"),
        ("header-as-a-number-in-a-removal-entry", number(4, 1), "decode error"),
    ):
        f = two_tensors()
        f.finish()
        base = f.trailer
        f.remove("a")
        line = f.lines[0]
        f.lines = [field(1, line[2:-27] + extra + line[-27:])]
        invalid(name, f.finish(base=base), "read", error)
    names = names_of("a", ["b"])
    # Two bytes of the offsets, 69 09, would be text at the end of a name.
    reaching = lines[0][-27:]
    invalid("name-reaches-into-the-offsets", with_lines(field(1, b"\x0a\x03a" + reaching), lines[1]), "open")
    alias = A + b"\x12\x03x"
    invalid("alias-reaches-into-the-offsets", with_lines(field(1, alias + reaching), lines[1]), "open")
    invalid("entry-with-an-alias-alone", lying(names, line_names=field(2, b"b")), "open")
    invalid("entry-with-an-alias-first", lying(names, line_names=field(2, b"b") + field(1, b"a")), "open")
    invalid("entry-with-a-name-twice", lying(line_names=A + A), "read")
    invalid(
        "entry-with-a-longer-tag",
        with_lines(entry(A, HEADER, 9, 64, 4, b"\xca\x00\x01"), two_tensors().lines[1]),
        "read",
    )
    key = field(1, b"k")
    for name, value in (("text-is-no-utf-8", field(1, b"\xff")), ("value-is-cut", b"\x0a\x05")):
        invalid(f"metadata-{name}", lying(names_of("a", [], [key + field(2, value)])), "read")
    invalid("metadata-without-a-value", lying(names_of("a", [], [key])), "read")
    f = two_tensors()
    lines = list(f.lines)
    f.finish()
    base = (f.trailer[0], f.trailer[1] ^ 1)
    f.finish(base=base)
    f.lines = lines
    invalid("dead-index-with-another-base-sum", f.finish(), "verify")
    f = two_tensors()
    lines = list(f.lines)
    f.finish()
    f.lines = [lines[0], lines[0]]
    f.finish()
    f.lines = lines
    invalid("dead-index-with-a-name-twice", f.finish(), "verify")
    f = CraftedFile()
    f.add("a", PAYLOAD)
    f.finish()
    f.content += number(9, 1)
    begin = len(f.content)
    written, data_at = next(
        (head + PAYLOAD, len(head))
        for padding in range(1, 99)
        if (begin + len(head := record_head(A, HEADER, 4, begin - padding))) % 64
    )
    f.content += written
    f.lines = [entry(A, HEADER, begin, begin + data_at, 4)]
    invalid("misaligned-behind-a-fault", f.finish(), "verify")


def entry_behind_its_own_index() -> bytes:
    """Two generations, the first of which has an entry for the record of the second one."""
    f = two_tensors()
    names = names_of("c")
    # The size of an entry does not depend on its offsets.
    ending, _ = with_trailer(field(3, b"".join([*f.lines, entry(names, HEADER, 0, 0, 4)])), 0)
    begin = len(f.content) + len(ending)
    written, data_at = record(names, HEADER, PAYLOAD, begin)
    f.lines.append(entry(names, HEADER, begin, begin + data_at, 4))
    f.finish()
    assert len(f.content) == begin
    f.content += written
    return f.finish(base=f.trailer)
