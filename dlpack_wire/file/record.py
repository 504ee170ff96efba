"""A record of a tensor file: planning its bytes around a payload, and reading its head back.

record = 0x12 length { names and metadata (fields 1 to 3) · 0x71 header sum · 0x7a length tensor }
tensor = header fields · 0x49 payload sum · padding · 0x7a length payload
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..errors import DecodeError, EncodeError, LimitError, TruncatedError
from ..message.names import MAX_ALIASES, MAX_RECORD_BYTES, Metadata, decode_name, encode_map, encode_name
from ..message.wire import FIXED64, LEN, Buffer, length_delimited, read_field, read_minimal_varint, varint, varint_size
from ..tensor import header as headers
from ..tensor.checksum import check_sum, xxh3
from ..tensor.header import Header

RECORD_TAG = b"\x12"
RECORD_ALIGNMENT = 64
"""Every payload in a file starts at a multiple of this."""

MAX_ALIGNMENT = 4096
MAX_HEAD_BYTES = MAX_RECORD_BYTES + headers.MAX_HEADER_BYTES + headers.MAX_PADDING_BYTES + 64
"""Most bytes from a record's tag to its payload: the sum of its parts' caps, and the tags and lengths around them."""

MAX_NAMES_BYTES = MAX_RECORD_BYTES - 9
"""Most bytes of a record's names and metadata: its cap without the header sum's field."""

_SUM_TAG = b"\x71"
_TENSOR_TAG = b"\x7a"
_ZEROS = bytes(8)


def names_block(
    name: str, aliases: Sequence[str] = (), metadata: Metadata | None = None, *, allow_empty: bool = False
) -> bytes:
    """Fields 1 to 3 of a record, the same in its line of the index.

    Raises:
        EncodeError: A name breaks a rule, names repeat, or the block exceeds a cap.
    """
    encoded = encode_name(name, allow_empty=allow_empty)
    block = length_delimited(1, encoded) if encoded else b""
    if not aliases and not metadata:
        return block
    if len(aliases) > MAX_ALIASES:
        raise EncodeError(f"{len(aliases)} aliases; at most {MAX_ALIASES} are allowed", tensor=name)
    names = {name}
    for alias in aliases:
        if alias in names:
            raise EncodeError(f"duplicate name {alias!r}", tensor=name)
        names.add(alias)
        block += length_delimited(2, encode_name(alias))
    try:
        block += encode_map(3, metadata, MAX_NAMES_BYTES)
    except EncodeError as error:
        raise error.at(tensor=name) from None
    if len(block) > MAX_NAMES_BYTES:
        raise EncodeError(
            f"names and metadata take {len(block)} bytes; at most {MAX_NAMES_BYTES} are allowed", tensor=name
        )
    return block


def split_names(block: Buffer) -> tuple[list[str], bytes]:
    """The names in a block made by `names_block`, and its metadata's bytes.

    Raises:
        DecodeError: A name breaks a rule, or is there twice.
    """
    names: list[str] = []
    pos, end = 0, len(block)
    while pos < end:
        field = read_field(block, pos, end)
        if field.number == 3:
            break
        if field.content == field.end:
            raise DecodeError("an empty name must be left out", field="name", offset=pos)
        if field.number == 2 and not names:
            names.append("")
        names.append(decode_name(bytes(block[field.content : field.end])))
        pos = field.end
    names = names or [""]
    if len(names) > MAX_ALIASES + 1:
        raise LimitError(f"{len(names) - 1} aliases", declared=len(names) - 1, limit=MAX_ALIASES, field="aliases")
    if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
        raise DecodeError(f"duplicate or empty names: {names}", field="name")
    return names, bytes(block[pos:])


class Plan(NamedTuple):
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


@lru_cache(maxsize=4096)
def plan(header: Header, names_bytes: int, offset: int, alignment: int) -> Plan:
    """Plan a record that begins at a position that is `offset` modulo `alignment`.

    The padding is the smallest that brings the payload to a multiple of `alignment`; each size is tried, because
    padding changes the lengths written before it.
    """
    fields = headers.fields(header)
    data_tag = headers.data_tag(header.payload_bytes)
    # Of the tensor, without padding; of the record, without the tensor and its length.
    tensor_bytes = len(fields) + 9 + len(data_tag) + header.payload_bytes
    record_bytes = names_bytes + 9 + 1

    def prefix_bytes(padding_bytes: int) -> int:
        tensor = tensor_bytes + padding_bytes
        record = record_bytes + varint_size(tensor) + tensor
        return 1 + varint_size(record) + record - header.payload_bytes

    padding = b""
    if header.payload_bytes:
        size = 0
        while (offset + prefix_bytes(len(padding))) % alignment:
            # Padding costs its tag and length too, 2 bytes, and makes up to 3 lengths a byte longer: nothing smaller
            # than 5 bytes below the gap can fit. Serializers do not write an empty padding field, so 1 is the least.
            size = size + 1 if size else max((-offset - prefix_bytes(0)) % alignment - 5, 1)
            padding = headers.padding_field(size)
        assert len(padding) < 4 * alignment
    tensor = tensor_bytes + len(padding)
    record = record_bytes + varint_size(tensor) + tensor
    head = RECORD_TAG + varint(record)
    middle = _TENSOR_TAG + varint(tensor) + fields + headers.SUM_TAG
    begin = prefix_bytes(len(padding))
    return Plan(head, middle, padding + data_tag, begin, begin + header.payload_bytes)


def prefix(plan: Plan, names: bytes, payload_sum: int) -> bytes:
    """A record's bytes up to its payload, with both sums."""
    end = plan.middle + payload_sum.to_bytes(8, "little") + plan.tail
    start = plan.head + names + _SUM_TAG
    header_sum = xxh3(start + _ZEROS + end)
    return start + header_sum.to_bytes(8, "little") + end


def names_too_large(size: int, offset: int) -> LimitError:
    """The error for names and metadata over their cap."""
    return LimitError(
        f"names and metadata take {size} bytes or more; at most {MAX_NAMES_BYTES} are allowed",
        declared=size,
        limit=MAX_NAMES_BYTES,
        offset=offset,
    )


class RecordHead(NamedTuple):
    """What stands before a record's payload.

    Attributes:
        names: Fields 1 to 3: names and metadata.
        header: The tensor's header fields with the payload's sum, without padding.
        data_offset: Where the payload begins.
        end: Where the record ends.
    """

    names: bytes
    header: bytes
    data_offset: int
    end: int


def read_head(buffer: Buffer, pos: int, available: int, origin: int = 0) -> RecordHead:
    """Read a record strictly, up to its payload.

    Args:
        buffer: Bytes that hold the record's head; the payload may be missing.
        pos: Where the record's tag stands in `buffer`.
        available: Size of the whole file, for the record's end.
        origin: Position of the buffer's first byte in the file; all positions returned count from the file's.

    Raises:
        DecodeError: A rule for records is broken.
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
    last = 0
    while True:
        tag, content = read_minimal_varint(buffer, pos, min(end, limit))
        number = tag >> 3
        if number < last or (number == last and number not in (2, 3)):
            raise DecodeError(f"field {number} after field {last}: must be ascending", offset=origin + pos)
        last = number
        if number == 15:
            break
        field = read_field(buffer, pos, min(end, limit))
        if number <= 3:
            if field.wire_type != LEN:
                raise DecodeError(f"field {number} has wire type {field.wire_type}", offset=origin + pos)
            names_end = field.end
        elif number == 14:
            if field.wire_type != FIXED64:
                raise DecodeError(f"field 14 has wire type {field.wire_type}", offset=origin + pos)
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
    if tag != 0x7A:
        raise DecodeError(f"the tensor has wire type {tag & 7}", offset=origin + pos)
    size, header_begin = read_minimal_varint(buffer, content, min(end, limit))
    if header_begin + size != end:
        raise DecodeError("the tensor does not end its record", offset=origin + pos)
    header_end, data_begin = _read_tensor(buffer, header_begin, end, limit, origin)
    found = bytes(buffer[begin:data_begin])
    at = sum_begin - begin
    expected = int.from_bytes(found[at : at + 8], "little")
    check_sum(expected, xxh3(found[:at] + _ZEROS + found[at + 8 :]), "record header")
    return RecordHead(
        bytes(buffer[names_begin:names_end]), bytes(buffer[header_begin:header_end]), origin + data_begin, origin + end
    )


def _read_tensor(buffer: Buffer, pos: int, end: int, limit: int, origin: int) -> tuple[int, int]:
    """(end of the header fields, beginning of the payload) of a record's tensor, strictly."""
    last = 0
    header_end = pos
    begin = pos
    while pos < end:
        tag, content = read_minimal_varint(buffer, pos, min(end, limit))
        number = tag >> 3
        if number <= last:
            raise DecodeError(f"field {number} after field {last} of the tensor", offset=origin + pos)
        last = number
        if number == 15:
            if tag != 0x7A:
                raise DecodeError(f"the payload has wire type {tag & 7}", offset=origin + pos)
            size, data_begin = read_minimal_varint(buffer, content, min(end, limit))
            if data_begin + size != end or not size:
                raise DecodeError("the payload does not end its record", offset=origin + pos)
            return header_end, data_begin
        field = read_field(buffer, pos, min(end, limit))
        if number == 14:
            headers.check_padding(buffer[field.content : field.end] if field.wire_type == LEN else b"")
        else:
            header_end = field.end
            if header_end - begin > headers.MAX_HEADER_BYTES:
                raise headers.header_too_large(header_end - begin, origin + pos)
        pos = field.end
    return header_end, end
