"""Protobuf's wire format, as far as payloads are written and read around the generated classes.

Source: https://protobuf.dev/programming-guides/encoding/. Readers here are stricter than that page in two
points, because implementations disagree about them: tags and lengths are minimal varints, and groups are refused.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import DecodeError, TruncatedError
from ..tensor.memory import Buffer

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5
MAX_MESSAGE_BYTES = 2**31 - 1
"""Protobuf's limit on one serialized message."""


def varint(value: int) -> bytes:
    """Return the minimal varint of an unsigned number."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_size(value: int) -> int:
    """Return the size of the minimal varint of an unsigned number."""
    return (value.bit_length() + 6) // 7 or 1


def length_delimited(number: int, content: bytes) -> bytes:
    """Return one length-delimited field."""
    if number < 16 and len(content) < 0x80:
        return b"%c%c%b" % (number << 3 | LEN, len(content), content)
    return varint(number << 3 | LEN) + varint(len(content)) + content


def read_varint(buffer: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read a varint, minimal or not; return it and the position after it.

    Bits above 64 are dropped, as every parser does.

    Raises:
        TruncatedError: The varint does not end before `end`.
        DecodeError: More than 10 bytes.
    """
    value = shift = 0
    while True:
        if pos >= end:
            raise TruncatedError("ends inside a varint", needed=pos + 1, available=end, offset=pos)
        byte = buffer[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise DecodeError("varint of more than 10 bytes", offset=pos)
    return value & 0xFFFFFFFFFFFFFFFF, pos


def read_minimal_varint(buffer: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read a minimal varint; return it and the position after it.

    Raises:
        DecodeError: Cut off, longer than needed, or over 64 bits.
    """
    value, after = read_varint(buffer, pos, end)
    if after - pos > 1 and buffer[after - 1] == 0:
        raise DecodeError("varint longer than it needs to be", offset=pos)
    if after - pos == 10 and buffer[after - 1] > 1:
        raise DecodeError("tag or length of more than 64 bits", offset=pos)
    return value, after


class Field(NamedTuple):
    """One field of a serialized message: [start, end) with its content at [content, end)."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def read_tag(buffer: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read a field's tag and check its number; return the tag and the position after it.

    Raises:
        DecodeError: The tag is malformed, or its number out of range.
    """
    tag, after = read_minimal_varint(buffer, pos, end)
    # Fields have 29 bits for their number.
    if not 0 < tag >> 3 < 1 << 29:
        raise DecodeError(f"field number {tag >> 3} is not from 1 to 2^29-1", offset=pos)
    return tag, after


def fixed_size(tag: int, pos: int) -> int:
    """Return the size of a field that is neither a varint nor length-delimited.

    Raises:
        DecodeError: The field is a group, or of a wire type that does not exist.
    """
    wire_type = tag & 7
    if wire_type == FIXED64:
        return 8
    if wire_type == FIXED32:
        return 4
    raise DecodeError(f"field {tag >> 3} has wire type {wire_type}; groups are not allowed", offset=pos)


def field_cut(number: int, needed: int, available: int, pos: int) -> TruncatedError:
    """Return the error for a field that does not end within its message."""
    return TruncatedError(
        f"field {number} needs {needed} bytes, has {available}", needed=needed, available=available, offset=pos
    )


def read_field(buffer: Buffer, pos: int, end: int) -> Field:
    """Read the field that starts at `pos` of a message ending at `end`.

    Raises:
        TruncatedError: The field does not end within the message.
        DecodeError: Parsers disagree about the tag or the length.
    """
    tag, content = read_tag(buffer, pos, end)
    number, wire_type = tag >> 3, tag & 7
    if wire_type == VARINT:
        return Field(number, VARINT, pos, content, read_varint(buffer, content, end)[1])
    if wire_type == LEN:
        size, content = read_minimal_varint(buffer, content, end)
    else:
        size = fixed_size(tag, pos)
    if size > end - content:
        raise field_cut(number, size, end - content, pos)
    return Field(number, wire_type, pos, content, content + size)
