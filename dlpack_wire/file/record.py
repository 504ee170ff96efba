"""A record of a tensor file: planning its bytes around a payload, and reading its head back.

record = 0x12 length { names and metadata (fields 1 to 3) · 0x71 header sum · 0x7a length tensor }
tensor = header fields · 0x49 payload sum · padding · 0x7a length payload
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..errors import DecodeError, LimitError, TruncatedError
from ..message import reading, writing
from ..message import tags as message_tags
from ..message.names import MAX_RECORD_BYTES
from ..message.reading import refuse_critical
from ..message.tags import RECORD_CRITICAL_NUMBERS, SUM_FIELD_BYTES, byte
from ..message.wire import FIXED64, LEN, read_field, read_minimal_varint, varint, varint_size
from ..tensor.checksum import check_sum, xxh3
from ..tensor.header import Header
from ..tensor.memory import Buffer
from . import tags

RECORD_TAG = byte(tags.RECORD)
RECORD_ALIGNMENT = 64
"""Every payload in a file starts at a multiple of this: a cache line, and every vector register."""

MAX_ALIGNMENT = 4096
"""Largest alignment that a writer may choose: a page, so that a payload can be mapped by itself."""

MAX_HEAD_BYTES = MAX_RECORD_BYTES + reading.MAX_HEADER_BYTES + reading.MAX_PADDING_BYTES + 64
"""Maximum bytes from a record's tag to its payload: the sum of its parts' caps, their tags and their lengths."""

_SUM_TAG = byte(tags.HEADER_SUM)
_TENSOR_TAG = byte(tags.TENSOR)
_SUM_NUMBER, _TENSOR_NUMBER = tags.HEADER_SUM >> 3, tags.TENSOR >> 3
_PADDING_NUMBER, _DATA_NUMBER = message_tags.PADDING >> 3, message_tags.DATA >> 3
_ZEROS = bytes(8)


class RecordPlan(NamedTuple):
    """A record's bytes without its names, sums and payload, and its sizes.

    Attributes:
        head: The record's tag and length, before the names.
        middle: From the tensor's tag, after the header sum, to the payload sum's tag.
        tail: Padding, and the payload's tag and length, after the payload sum.
        prefix_bytes: From the record's tag to its payload.
        record_bytes: From the record's tag to its end.
    """

    head: bytes
    middle: bytes
    tail: bytes
    prefix_bytes: int
    record_bytes: int


# More than the combinations of header, length of names and position modulo the alignment that a file of many small
# tensors has. An lru_cache, not a Memo: its C code makes hits cheapest.
@lru_cache(maxsize=4096)
def plan_record(header: Header, names_bytes: int, offset: int, alignment: int) -> RecordPlan:
    """Plan a record that begins at a position that is `offset` modulo `alignment`.

    The padding is the smallest that brings the payload to a multiple of `alignment`; it is found by trying, because
    padding changes the lengths written before it.
    """
    fields = writing.header_fields(header)
    data_tag = writing.data_tag(header.payload_bytes)
    # Of the tensor, without padding; of the record, without the tensor and its length.
    tensor_bytes = len(fields) + SUM_FIELD_BYTES + len(data_tag) + header.payload_bytes
    record_bytes = names_bytes + SUM_FIELD_BYTES + len(_TENSOR_TAG)

    def prefix_bytes(padding_bytes: int) -> int:
        tensor = tensor_bytes + padding_bytes
        record = record_bytes + varint_size(tensor) + tensor
        return 1 + varint_size(record) + record - header.payload_bytes

    padding = b""
    if header.payload_bytes:
        size = 0
        while (offset + prefix_bytes(len(padding))) % alignment:
            # Try sizes upwards. The padding field adds a tag and a length, 2 bytes, and may lengthen that length and
            # the two around it by a byte each, so a padding smaller than the gap less 5 bytes cannot fit: start there.
            # Serializers do not write an empty padding field, so 1 is the least.
            size = size + 1 if size else max((-offset - prefix_bytes(0)) % alignment - 5, 1)
            padding = writing.padding_field(size)
        assert len(padding) < 4 * alignment
    tensor = tensor_bytes + len(padding)
    record = record_bytes + varint_size(tensor) + tensor
    head = RECORD_TAG + varint(record)
    middle = _TENSOR_TAG + varint(tensor) + fields + writing.SUM_TAG
    begin = prefix_bytes(len(padding))
    return RecordPlan(head, middle, padding + data_tag, begin, begin + header.payload_bytes)


def prefix(plan: RecordPlan, names: bytes, payload_sum: int) -> bytes:
    """Return a record's bytes up to its payload, with both sums."""
    end = plan.middle + payload_sum.to_bytes(8, "little") + plan.tail
    start = plan.head + names + _SUM_TAG
    header_sum = xxh3(start + _ZEROS + end)
    return start + header_sum.to_bytes(8, "little") + end


def removal(names: bytes) -> bytes:
    """Return a record that removes names.

    Args:
        names: The names, as `names_block` makes them.
    """
    start = RECORD_TAG + varint(len(names) + SUM_FIELD_BYTES) + names + _SUM_TAG
    return start + xxh3(start + _ZEROS).to_bytes(8, "little")


class RecordHead(NamedTuple):
    """The part of a record before its payload.

    Attributes:
        names: Fields 1 to 3: names and metadata.
        header: The tensor's header fields with the payload's sum, without padding; empty if names are removed.
        data_offset: Position of the payload.
        end: Position of the record's end.
    """

    names: bytes
    header: bytes
    data_offset: int
    end: int


def read_head(buffer: Buffer, pos: int, available: int, origin: int = 0) -> RecordHead:
    """Read a record strictly, up to its payload.

    Args:
        buffer: Bytes that hold the record's head; the payload may be missing.
        pos: Position of the record's tag in `buffer`.
        available: Size of the whole file, for the record's end.
        origin: Position of the buffer's first byte in the file; all positions returned count from the file's.

    Raises:
        TruncatedError: The record does not end within the file.
        LimitError: A part of it is over its cap.
        DecodeError: Malformed record.
        ChecksumError: The head was damaged.
    """
    limit = len(buffer)
    begin = pos
    if buffer[pos : pos + 1] != RECORD_TAG:
        raise DecodeError("no record begins here", offset=origin + pos)
    size, pos = read_minimal_varint(buffer, pos + 1, limit)
    end = pos + size
    if end + origin > available:
        raise TruncatedError(
            f"record needs {size} bytes, has {available - origin - pos}",
            needed=size,
            available=available - origin - pos,
            offset=origin + begin,
        )
    names_begin = names_end = pos
    sum_begin = 0
    last = tag = content = 0
    while pos < end:
        tag, content = read_minimal_varint(buffer, pos, min(end, limit))
        number = tag >> 3
        if number < last or (number == last and number not in tags.REPEATED_NUMBERS):
            raise DecodeError(f"field {number} after field {last}: must be ascending", offset=origin + pos)
        last = number
        if number == _TENSOR_NUMBER:
            break
        if number in RECORD_CRITICAL_NUMBERS:
            refuse_critical(number, origin + pos)
        field = read_field(buffer, pos, min(end, limit))
        if number <= tags.NAMES_END:
            if field.wire_type != LEN:
                raise DecodeError(f"field {number} has wire type {field.wire_type}", offset=origin + pos)
            names_end = field.end
        elif number == _SUM_NUMBER:
            if field.wire_type != FIXED64:
                raise DecodeError(f"field {number} has wire type {field.wire_type}", offset=origin + pos)
            sum_begin = content
        pos = field.end
        if pos - names_begin > MAX_RECORD_BYTES:
            raise LimitError(
                f"record of {pos - names_begin} bytes or more without its tensor",
                declared=pos - names_begin,
                limit=MAX_RECORD_BYTES,
                offset=origin + begin,
            )
    if not sum_begin:
        raise DecodeError("missing", field="header_xxh3_64", offset=origin + pos)
    header_begin = header_end = data_begin = end
    if last == 15:
        if tag != tags.TENSOR:
            raise DecodeError(f"the tensor has wire type {tag & 7}", offset=origin + pos)
        size, header_begin = read_minimal_varint(buffer, content, min(end, limit))
        if header_begin + size != end:
            raise DecodeError("the tensor does not end its record", offset=origin + pos)
        header_end, data_begin = _read_tensor(buffer, header_begin, end, limit, origin)
    elif names_end == names_begin:
        raise DecodeError("a record without a tensor must name what it removes", offset=origin + begin)
    found = bytes(buffer[begin:data_begin])
    at = sum_begin - begin
    expected = int.from_bytes(found[at : at + 8], "little")
    check_sum(expected, xxh3(found[:at] + _ZEROS + found[at + 8 :]), "record header")
    return RecordHead(
        bytes(buffer[names_begin:names_end]), bytes(buffer[header_begin:header_end]), origin + data_begin, origin + end
    )


def _read_tensor(buffer: Buffer, pos: int, end: int, limit: int, origin: int) -> tuple[int, int]:
    """Read a record's tensor strictly; return the end of its header fields, and the position of its payload."""
    last = 0
    header_end = pos
    begin = pos
    while pos < end:
        tag, content = read_minimal_varint(buffer, pos, min(end, limit))
        number = tag >> 3
        if number <= last:
            raise DecodeError(f"field {number} after field {last} of the tensor", offset=origin + pos)
        last = number
        if number == _DATA_NUMBER:
            if tag != message_tags.DATA:
                raise DecodeError(f"the payload has wire type {tag & 7}", offset=origin + pos)
            size, data_begin = read_minimal_varint(buffer, content, min(end, limit))
            if data_begin + size != end or not size:
                raise DecodeError("the payload does not end its record", offset=origin + pos)
            return header_end, data_begin
        field = read_field(buffer, pos, min(end, limit))
        if number == _PADDING_NUMBER:
            reading.check_padding(buffer[field.content : field.end] if field.wire_type == LEN else b"")
        else:
            header_end = field.end
            if header_end - begin > reading.MAX_HEADER_BYTES:
                raise reading.header_too_large(header_end - begin, origin + pos)
        pos = field.end
    return header_end, end
