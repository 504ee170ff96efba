"""Files that readers must take."""

from __future__ import annotations

import struct

from crafts import (
    HEADER,
    PAYLOAD,
    A,
    based,
    chain_of,
    reshaped,
    simple,
    sparse,
    two_tensors,
    valid,
    with_lines,
)
from hand_built_files import (
    BLOCK,
    MAGIC,
    CraftedFile,
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
    text,
    two_generations,
    varint,
    with_trailer,
    xxh3,
)

OTHER = b"\5\6\7\x08"
TWO = {"a": PAYLOAD, "b": OTHER}
GENERATIONS = {"a": OTHER, "tied": b"\1\2\3", "b": b"", "c": b"\x09"}
MADE = {"made": field(1, b"by hand").hex()}
UNIT = {"tied": {"unit": field(1, b"m").hex()}}
FLOATS = struct.pack("<6f", *range(6))
NAME_OF_MOST_BYTES = "\u00e9" * 2048
KINDS = {
    "a text": field(1, "caf\u00e9".encode()),
    "b int": number(2, (1 << 64) - 5),
    "c double": b"\x19" + struct.pack("<d", -2.5),
    "d bool": number(4, 1),
    "e bytes": field(5, b"\0\xff"),
    "f unknown kind": field(9, b"later"),
    "g nothing": b"",
    "\u00e9": field(1, b""),
    "\U0001f600": number(2, 0),
}
"""A metadata value of every kind, serialized; the keys are sorted by their bytes."""


def make_valid() -> None:
    simple_files()
    tensors_of_all_kinds()
    names_and_metadata()
    places_of_payloads()
    generations()
    later_revisions()
    large_files()


def simple_files() -> None:
    valid("no-tensors", CraftedFile().finish(), {})
    valid("two-tensors", simple(), TWO)
    f = CraftedFile()
    f.add("", PAYLOAD)
    valid("one-without-a-name", f.finish(), {"": PAYLOAD})
    f = CraftedFile()
    two_blocks = bytes(BLOCK) + PAYLOAD
    f.add("two-blocks", two_blocks)
    valid("two-blocks", f.finish(), {"two-blocks": two_blocks})


def tensors_of_all_kinds() -> None:
    """Whatever a header can say, in one file. What differs from the payload is listed as elements too."""
    swapped = struct.pack(">6f", *range(6))
    transposed = struct.pack("<6f", 0, 3, 1, 4, 2, 5)
    tensors = {
        "0-d": (PAYLOAD, header_of([], bits=32, order=1)),
        "big-endian": (swapped, header_of([2, 3], 2, 32, 2)),
        "big-endian-complex": (swapped[:16], header_of([2], 5, 64, 2)),
        "big-endian-lanes": (swapped[:16], header_of([2], 2, 32, 2, lanes=2)),
        "big-endian-unknown-code": (PAYLOAD, header_of([2], 200, 16, 2)),
        "column-major": (transposed, header_of([2, 3], 2, 32, 1, strides=[1, 2])),
        "empty": (b"", header_of([0, 3], 2, 32, 1)),
        "empty-strided": (b"", header_of([0, 3], 2, 32, 1, strides=[7, -1])),
        "gaps": (bytes(range(6)), header_of([2, 2], strides=[4, 1])),
        "negative-stride": (PAYLOAD, header_of([4], strides=[-1], byte_offset=3)),
        "packed": (b"\x21\x03", header_of([3], 0, 4)),
        "packed-lanes": (b"\x21\x43\x65\x87\x09", header_of([3], 1, 4, lanes=3)),
        "padded": (b"\xf1\x02\x03", header_of([3], 0, 4, flags=4)),
        "strided-axis-of-1": (PAYLOAD, header_of([1, 4], strides=[99, 1])),
    }
    f = CraftedFile()
    for name, (payload, header) in tensors.items():
        f.add(name, payload, header=header + fixed(9, payload_sum_of(payload)))
    elements = {
        "big-endian": FLOATS,
        "big-endian-complex": FLOATS[:16],
        "big-endian-lanes": FLOATS[:16],
        "column-major": FLOATS,
        "gaps": bytes([0, 1, 4, 5]),
        "negative-stride": PAYLOAD[::-1],
        "padded": b"\1\2\3",
    }
    valid(
        "tensors-of-all-kinds",
        f.finish(),
        {name: payload for name, (payload, _) in tensors.items()},
        elements={name: content.hex() for name, content in elements.items()},
    )


def names_and_metadata() -> None:
    f = CraftedFile()
    f.add("nfc-\u00e9", b"\1")
    f.add("nfc-e\u0301", b"\2")
    valid("two-forms-of-a-letter", f.finish(), {"nfc-\u00e9": b"\1", "nfc-e\u0301": b"\2"})
    aliases = [f"alias {i}" for i in range(64)]
    f = CraftedFile()
    f.add("a", PAYLOAD, aliases=aliases)
    valid("64-aliases", f.finish(), dict.fromkeys(["a", *aliases], PAYLOAD))
    f = CraftedFile()
    f.add(NAME_OF_MOST_BYTES, PAYLOAD)
    valid("name-of-4096-bytes", f.finish(), {NAME_OF_MOST_BYTES: PAYLOAD})
    f = CraftedFile()
    written, data_at = record(names_of("a", ["b", "c"]), HEADER, PAYLOAD, 9)
    f.content += written
    f.lines = [entry(names_of("c", ["a", "b"]), HEADER, 9, 9 + data_at, 4)]
    valid("names-in-another-order-in-the-index", f.finish(), dict.fromkeys("abc", PAYLOAD))
    f = CraftedFile()
    entries = [field(1, key.encode()) + field(2, value) for key, value in KINDS.items()]
    f.add("a", PAYLOAD, metadata=entries)
    hexed = {key: value.hex() for key, value in KINDS.items()}
    valid(
        "metadata-of-every-kind",
        f.finish(b"".join(field(2, e) for e in entries)),
        {"a": PAYLOAD},
        metadata=hexed,
        tensor_metadata={"a": hexed},
    )


def places_of_payloads() -> None:
    """Larger alignments, and the lengths that need another byte because of the padding before them."""
    for alignment in (128, 4096):
        f = CraftedFile()
        f.add("a", PAYLOAD, alignment=alignment)
        f.add("b", OTHER, alignment=alignment)
        valid(f"aligned-to-{alignment}", f.finish(), TWO)
    f = CraftedFile()
    tensors = {}
    for size in range(40, 80):  # at one of them, padding by one byte more makes a length before it grow
        name = "n" * size
        f.add(name, bytes([size]))
        tensors[name] = bytes([size])
    valid("lengths-that-grow-with-the-padding", f.finish(), tensors)
    f = CraftedFile()
    head = record_head(A, HEADER, 4, 9, least_padding=65)
    f.content += head + PAYLOAD
    f.lines = [entry(A, HEADER, 9, 9 + len(head), 4)]
    valid("more-padding-than-needed", f.finish(), {"a": PAYLOAD})
    f = CraftedFile()
    # A name of this length puts the payload where it should be without padding; the empty field is then legal.
    for size in range(1, 64):
        names = names_of("n" * size)
        head = record_head(names, HEADER + field(14, b""), 4, 9)
        if b"\x72\x00\x7a\x04" in head and not (9 + len(head)) % 64:
            break
    f.content += head + PAYLOAD
    f.lines = [entry(names, HEADER, 9, 9 + len(head), 4)]
    valid("empty-padding", f.finish(), {"n" * size: PAYLOAD})


def generations() -> None:
    valid("two-generations", two_generations(), GENERATIONS, metadata=MADE, tensor_metadata=UNIT)
    valid("based", based(None), {**TWO, "c": PAYLOAD})
    valid("chain-of-64", chain_of(64), {})
    f = two_tensors()
    f.finish()
    base = f.trailer
    f.remove("a")
    valid("name-removed", f.finish(base=base), {"b": OTHER})
    f = two_tensors()
    f.finish()
    base = f.trailer
    f.remove("a")
    f.finish(base=base)
    base = f.trailer
    f.add("a", b"\1")
    valid("name-removed-and-written-again", f.finish(base=base), {"b": OTHER, "a": b"\1"})
    f = CraftedFile()
    f.add("a", PAYLOAD, aliases=["x", "y"])
    f.finish()
    base = f.trailer
    f.remove("x")
    f.add("y", OTHER)
    valid("aliases-removed-and-taken-over", f.finish(base=base), {"a": PAYLOAD, "y": OTHER})
    f = CraftedFile()
    f.add("a", PAYLOAD)
    f.finish(field(2, text("changed", "old")) + field(2, text("kept", "1")))
    base = f.trailer
    f.add("b", OTHER)
    values = {"added": "3", "changed": "new"}
    ending = b"".join(field(2, text(key, value)) for key, value in values.items())
    found = {"kept": "1", **values}
    metadata = {key: field(1, value.encode()).hex() for key, value in sorted(found.items())}
    valid("metadata-over-a-base", f.finish(ending, base=base), TWO, metadata=metadata)
    f = CraftedFile()
    f.add("", PAYLOAD)
    f.finish()
    f.add("", OTHER)
    valid("one-without-a-name-replaced", f.finish(), {"": OTHER})
    f = two_tensors()
    lines = list(f.lines)
    f.finish()
    f.add("c", b"\x09")
    f.lines = [*lines, f.lines[0]]
    valid("index-written-again-without-a-base", f.finish(), {**TWO, "c": b"\x09"})
    f = CraftedFile()
    f.add("a", PAYLOAD)
    f.finish()
    f.remove("a")
    f.lines = []
    f.add("", OTHER)
    valid("one-without-a-name-after-another-was-removed", f.finish(), {"": OTHER})
    torn_tails()


def torn_tails() -> None:
    whole = two_generations()
    torn = whole + b"\x12\x7f half a record"
    valid("torn-tail", torn, GENERATIONS, metadata=MADE, tensor_metadata=UNIT)
    f = CraftedFile()
    f.add("a", PAYLOAD)
    first = f.finish()
    base = f.trailer
    at = len(f.content)
    f.add("b", bytes(range(200)))
    end = len(f.content)
    second = f.finish(base=base)
    for name, cut in {
        "a-record-head": at + 20,
        "a-payload": end - 100,
        "front-of-an-index": end,
        "an-index": end + 30,
        "front-of-a-trailer": len(second) - 27,
        "a-trailer": len(second) - 10,
    }.items():
        assert len(first) < cut < len(second)
        valid(f"torn-in-{name}", second[:cut], {"a": PAYLOAD})


def later_revisions() -> None:
    """What a later revision may add without asking older readers."""
    f = CraftedFile()
    f.content += field(7, b"for a later version")
    f.add("a", PAYLOAD)
    f.content += field(1 << 20, b"\x12\x00")
    valid("unknown-fields", f.finish(field(9, b"later")), {"a": PAYLOAD})
    valid("unknown-field-in-a-record", reshaped(field(9, b"later")), {"a": PAYLOAD})
    lines = [entry(A, HEADER, 9, 64, 4, field(9, b"later")), two_tensors().lines[1]]
    valid("unknown-field-in-an-entry", with_lines(*lines), TWO)
    header = HEADER + number(12, 7) + field(13, b"later")
    f = CraftedFile()
    f.add("a", PAYLOAD, header=header)
    valid("unknown-fields-in-a-header", f.finish(), {"a": PAYLOAD})
    empty = header_of([0], payload_sum=xxh3(b"")) + number(16, 1)
    f = CraftedFile()
    f.add("a", b"", header=empty)
    valid("unknown-field-behind-data-that-is-not-there", f.finish(), {"a": b""})
    dtype, shape = header_of([]), header_of([4])[len(header_of([])) :]
    payload_sum = fixed(9, xxh3(PAYLOAD))
    for name, header in (
        ("a-number-of-another-wire-type", fixed(2, 0) + dtype + shape + payload_sum),
        ("a-shape-that-is-not-packed", dtype + number(5, 4) + payload_sum),
    ):
        f = CraftedFile()
        f.add("a", PAYLOAD, header=header)
        valid(name, f.finish(), {"a": PAYLOAD})
    group = field(1, b"k") + field(2, b"\x33\x34")
    f = CraftedFile()
    f.add("a", PAYLOAD, metadata=[group])
    valid("group-in-a-metadata-value", f.finish(), {"a": PAYLOAD}, tensor_metadata={"a": {"k": "3334"}})


def large_files() -> None:
    """Offsets and lengths over 32 bits. The bytes between the parts are zero."""
    skipped = 1 << 32
    head = MAGIC + b"\x3a" + varint(skipped)
    begin = len(head) + skipped
    written, data_at = record(A, HEADER, PAYLOAD, begin)
    index_offset = begin + len(written)
    ending, _ = with_trailer(field(3, entry(A, HEADER, begin, begin + data_at, 4)), index_offset)
    sparse(
        "record-behind-4-gib",
        index_offset + len(ending),
        [(0, head), (begin, written + ending)],
        {"a": PAYLOAD.hex()},
    )
    size = (1 << 31) + 5
    sums = (xxh3(bytes(BLOCK)).to_bytes(8, "little")) * (size // BLOCK) + xxh3(bytes(5)).to_bytes(8, "little")
    header = header_of([size], payload_sum=xxh3(sums))
    head = record_head(A, header, size, 9)
    index_offset = 9 + len(head) + size
    ending, _ = with_trailer(field(3, entry(A, header, 9, 9 + len(head), size, listed(sums))), index_offset)
    sparse(
        "payload-over-2-gib",
        index_offset + len(ending),
        [(0, MAGIC + head), (index_offset, ending)],
        {"a": [["00", size]]},
    )
