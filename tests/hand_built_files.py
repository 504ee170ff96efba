"""Tensor files made by hand, byte by byte: every field can be left out, doubled, or lie.

The format is written out here a second time on purpose: sharing the library's own writer would hide its mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

MAGIC = b"\x09DLPWIRE1"
END = b"\x31DLPWIREE"


def xxh3(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content)


BLOCK = 1 << 20
MASK = (1 << 64) - 1


def sums_of_blocks(payload: bytes) -> list[int]:
    """The list of a chunk: a sum for each block."""
    return [xxh3(payload[at : at + BLOCK]) for at in range(0, len(payload), BLOCK)]


def block_sums(payload: bytes) -> bytes:
    """The list of an index entry: a sum for each block if there are several, else nothing."""
    sums = sums_of_blocks(payload)
    return b"".join(s.to_bytes(8, "little") for s in sums) if len(sums) > 1 else b""


def payload_sum_of(payload: bytes) -> int:
    return xxh3(block_sums(payload) or payload)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fixed(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + (value & MASK).to_bytes(8, "little")


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def text(key: str | bytes, value: str) -> bytes:
    """One entry of a metadata map."""
    encoded = key if isinstance(key, bytes) else key.encode()
    return field(1, encoded) + field(2, field(1, value.encode()))


def header_of(
    shape: Sequence[int],
    code: int = 1,
    bits: int = 8,
    order: int = 0,
    payload_sum: int | None = None,
    *,
    lanes: int = 1,
    strides: Sequence[int] = (),
    byte_offset: int = 0,
    flags: int = 0,
) -> bytes:
    """Header fields of a row-major tensor; uint8 unless it is said otherwise."""
    dtype = (b"\x08" + varint(code) if code else b"") + b"\x10" + varint(bits) + b"\x18" + varint(lanes)
    content = number(2, flags) if flags else b""
    content += field(4, dtype) + (field(5, b"".join(map(varint, shape))) if shape else b"")
    content += field(6, b"".join(varint(s & MASK) for s in strides)) if strides else b""
    content += number(7, byte_offset) if byte_offset else b""
    content += number(8, order) if order else b""
    return content + (fixed(9, payload_sum) if payload_sum is not None else b"")


def names_of(name: str, aliases: Sequence[str] = (), metadata: Sequence[bytes] = ()) -> bytes:
    block = field(1, name.encode()) if name else b""
    return block + b"".join(field(2, a.encode()) for a in aliases) + b"".join(field(3, m) for m in metadata)


def entry(
    names: bytes, header: bytes, record_offset: int, data_offset: int, data_bytes: int, middle: bytes = b""
) -> bytes:
    """One line of an index; `middle` are the fields between header and offsets."""
    offsets = fixed(13, record_offset) + fixed(14, data_offset) + fixed(15, data_bytes)
    return field(1, names + field(4, header) + middle + offsets)


def listed(sums: bytes) -> bytes:
    """The sums of a payload's blocks as a field of its entry."""
    return field(5, sums) if sums else b""


def removal(*names: str) -> bytes:
    """A record without a tensor: it removes the names of the records before it."""
    block = names_of(names[0], names[1:])
    head = b"\x12" + varint(len(block) + 9) + block + fixed(14, 0)
    return with_sum(head, block)


def removal_entry(names: bytes, record_offset: int, end: int) -> bytes:
    """The line of an index for a record that removes names."""
    return field(1, names + fixed(13, record_offset) + fixed(14, end) + fixed(15, 0))


def record(
    names: bytes, header: bytes, payload: bytes, offset: int, *, alignment: int = 64, tail: bytes = b""
) -> tuple[bytes, int]:
    """A record that begins at `offset`, and the position of its payload in it; `tail` is put behind the payload."""
    head = record_head(names, header, len(payload), offset, alignment=alignment, tail_bytes=len(tail))
    return head + payload + tail, len(head)


def record_head(
    names: bytes,
    header: bytes,
    size: int,
    offset: int,
    *,
    alignment: int = 64,
    least_padding: int = 0,
    tail_bytes: int = 0,
) -> bytes:
    """A record up to its payload of `size` bytes."""
    for padding in range(least_padding, alignment * 4 + 1):
        middle = header + (field(14, bytes(padding)) if padding else b"")
        middle += b"\x7a" + varint(size) if size else b""
        inner = names + fixed(14, 0) + b"\x7a" + varint(len(middle) + size + tail_bytes) + middle
        head = b"\x12" + varint(len(inner) + size + tail_bytes) + inner
        if not size or (offset + len(head)) % alignment == 0:
            break
    return with_sum(head, names)


def with_sum(head: bytes, names: bytes) -> bytes:
    """A record's head with the sum of it filled in, which stands behind the names."""
    at = head.index(names + b"\x71") + len(names) + 1
    zeroed = head[:at] + bytes(8) + head[at + 8 :]
    return head[:at] + xxh3(zeroed).to_bytes(8, "little") + head[at + 8 :]


def with_trailer(index: bytes, offset: int) -> tuple[bytes, int]:
    """An index that begins at `offset`, with its trailer; and its sum."""
    covered = index + fixed(4, offset)
    return covered + fixed(5, xxh3(covered)) + END, xxh3(covered)


class CraftedFile:
    """A file in the making.

    Attributes:
        content: Its bytes so far.
        lines: Entries for the next index; change them at will.
    """

    def __init__(self) -> None:
        self.content = bytearray(MAGIC)
        self.lines: list[bytes] = []
        self.trailer = (0, 0)

    def add(
        self,
        name: str = "a",
        payload: bytes = b"\x01\x02\x03\x04",
        *,
        aliases: Sequence[str] = (),
        metadata: Sequence[bytes] = (),
        header: bytes | None = None,
        indexed: bool = True,
        alignment: int = 64,
    ) -> int:
        """Append a tensor, a uint8 vector unless a header is given, and its index entry; return the record's place."""
        begin = len(self.content)
        names = names_of(name, aliases, metadata)
        header = header_of([len(payload)], payload_sum=payload_sum_of(payload)) if header is None else header
        written, data_at = record(names, header, payload, begin, alignment=alignment)
        self.content += written
        if indexed:
            sums = listed(block_sums(payload))
            self.lines.append(entry(names, header, begin, begin + data_at, len(payload), sums))
        return begin

    def remove(self, *names: str, indexed: bool = True) -> int:
        """Append a record that removes names, and its index entry; return the record's position."""
        begin = len(self.content)
        self.content += removal(*names)
        if indexed:
            self.lines.append(removal_entry(names_of(names[0], names[1:]), begin, len(self.content)))
        return begin

    def finish(self, ending: bytes = b"", base: tuple[int, int] | None = None) -> bytes:
        """Append the index and the trailer; return the whole file."""
        if base is not None:
            ending += fixed(3, base[0]) + fixed(4, base[1])
        return self.close(field(3, b"".join(self.lines) + ending))

    def close(self, index: bytes) -> bytes:
        """Append these index bytes and a trailer that fits them."""
        begin = len(self.content)
        written, index_sum = with_trailer(index, begin)
        self.trailer = (begin, index_sum)
        self.content += written
        self.lines = []
        return bytes(self.content)


def two_generations() -> bytes:
    """A small valid file of two generations; the second one takes a name over."""
    f = CraftedFile()
    f.add("a", b"\x01\x02\x03", aliases=["tied"], metadata=[text("unit", "m")])
    f.add("b", b"")
    f.finish(field(2, text("made", "by hand")))
    base = f.trailer
    f.add("a", b"\x05\x06\x07\x08")
    f.add("c", b"\x09")
    return f.finish(base=base)
