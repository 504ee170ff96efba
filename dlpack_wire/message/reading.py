"""Reading a serialized `DLTensor` around its payload.

This is done field by field rather than by a generated class: the payload must not pass through one, and the verdict on
odd input must not depend on which protobuf back end is installed.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.unknown_fields import UnknownFieldSet

from ..errors import DecodeError, LimitError, UnsupportedVersionError
from ..tensor import dtype as dtypes
from ..tensor import layout
from ..tensor.device import Device
from ..tensor.dtype import ByteOrder, DType
from ..tensor.header import Header, checked
from ..tensor.memo import Memo
from ..tensor.memory import Buffer
from ..v1 import dlpack_pb2
from . import tags
from .wire import LEN, VARINT, field_cut, fixed_size, read_field, read_minimal_varint, read_tag, read_varint
from .writing import ORDER_FIELDS, SUM_TAG, fixed_fields

MAX_HEADER_BYTES = 64 * 1024
"""Maximum bytes of all fields except padding and data: fifty times those of 64 dimensions with strides."""

MAX_PADDING_BYTES = 16384
"""Maximum size of padding: four times the largest alignment of a file, the most that a writer ever needs."""

# Names of this module are looked up faster than attributes of another: `read` compares with up to 13 of them a field.
_VERSION, _FLAGS, _DEVICE, _DTYPE = tags.VERSION, tags.FLAGS, tags.DEVICE, tags.DTYPE
_SHAPE, _SHAPE_EXTENT, _STRIDES, _STRIDES_STRIDE = tags.SHAPE, tags.SHAPE_EXTENT, tags.STRIDES, tags.STRIDES_STRIDE
_BYTE_OFFSET, _BYTE_ORDER = tags.BYTE_OFFSET, tags.BYTE_ORDER
_DATA_SUM, _PADDING, _DATA = tags.DATA_SUM, tags.PADDING, tags.DATA

_REMEMBERED_COUNT = 1024
"""Sub-messages remembered: pairs of dtype and device in one program, with much to spare."""

_REMEMBERED_BYTES = 24
"""Longest sub-message remembered: a dtype with large lanes takes 16 bytes."""

_T = TypeVar("_T")


class Parsed(NamedTuple):
    """A parsed `DLTensor`: its header, and the positions of the rest in its buffer.

    Attributes:
        header: The header, without its checksum.
        checksum: The checksum, if there is one.
        data_begin: Position of the payload.
        data_end: Position of its end.
        sum_begin: Position of the checksum's 8 bytes.
    """

    header: Header
    checksum: int | None
    data_begin: int
    data_end: int
    sum_begin: int


def read(buffer: Buffer, pos: int, end: int) -> Parsed:
    """Read a serialized `DLTensor` in `buffer[pos:end]`, in any field order; stricter than protobuf, see `wire`.

    The payload may be missing, whatever the header says: its positions are then `end`, as is that of a missing sum.

    Raises:
        TruncatedError: The message ends inside a field.
        DecodeError: The header breaks a rule of the contract.
    """
    begin = pos
    header_bytes = 0
    data_begin = data_end = padding_begin = padding_end = sum_begin = end
    # Parsers merge a sub-message that stands several times, but each part must be whole by itself.
    dtype_parts: list[bytes] = []
    device_parts: list[bytes] = []
    version_parts: list[bytes] = []
    shape: list[int] = []
    strides: list[int] = []
    flags = byte_offset = byte_order = 0
    checksum: int | None = None
    while pos < end:
        # Nearly every tag and length is one byte; anything else goes through the strict reader.
        tag = buffer[pos]
        content = pos + 1
        if tag >= 0x80 or tag < 8 or content >= end:
            tag, content = read_tag(buffer, pos, end)
        wire_type = tag & 7
        if wire_type == LEN:
            size = buffer[content] if content < end else 0x80
            if size < 0x80:
                content += 1
            else:
                size, content = read_minimal_varint(buffer, content, end)
            after = content + size
            if after > end:
                raise field_cut(tag >> 3, size, end - content, pos)
            # Payload and padding are only located, and do not count towards the header's cap. The last of each wins.
            if tag == _DATA:
                data_begin, data_end = content, after
                pos = after
                continue
            if tag == _PADDING:
                padding_begin, padding_end = content, after
                pos = after
                continue
            if size > MAX_HEADER_BYTES:
                raise header_too_large(size, pos)  # before anything of it is copied or parsed
            if tag == _SHAPE:
                _read_packed(buffer, content, after, shape)
            elif tag == _DTYPE:
                dtype_parts.append(bytes(buffer[content:after]))
            elif tag == _STRIDES:
                _read_packed(buffer, content, after, strides)
            elif tag == _DEVICE:
                device_parts.append(bytes(buffer[content:after]))
            elif tag == _VERSION:
                version_parts.append(bytes(buffer[content:after]))
        elif wire_type == VARINT:
            value = buffer[content] if content < end else 0x80
            if value < 0x80:
                after = content + 1
            else:
                value, after = read_varint(buffer, content, end)
            if tag == _BYTE_ORDER:
                byte_order = _int32(value)
            elif tag == _FLAGS:
                flags = value
            elif tag == _BYTE_OFFSET:
                byte_offset = value
            elif tag == _SHAPE_EXTENT:
                shape.append(_int64(value))
            elif tag == _STRIDES_STRIDE:
                strides.append(_int64(value))
        else:
            after = content + fixed_size(tag, pos)
            if after > end:
                raise field_cut(tag >> 3, after - content, end - content, pos)
            if tag == _DATA_SUM:
                sum_begin = content
                checksum = int.from_bytes(buffer[content:after], "little")
        if tag in CRITICAL_TAGS:
            refuse_critical(tag >> 3, pos)
        header_bytes += after - pos
        if header_bytes > MAX_HEADER_BYTES:
            raise header_too_large(header_bytes, pos)
        pos = after
    if not dtype_parts:
        raise DecodeError("missing", field="dtype", offset=begin)
    if padding_end > padding_begin:
        # Measured before it is copied: padding may take the whole message.
        if padding_end - padding_begin > MAX_PADDING_BYTES:
            raise _padding_too_long(padding_end - padding_begin)
        check_padding(buffer[padding_begin:padding_end])
    dtype = _DTYPES.get(dtype_parts[0]) if len(dtype_parts) == 1 else None
    if dtype is None:
        dtype = _remember(_DTYPES, dtype_parts, _dtype_of(dtype_parts))
    device = None
    if device_parts:
        device = _DEVICES.get(device_parts[0]) if len(device_parts) == 1 else None
        if device is None:
            device = _remember(_DEVICES, device_parts, _device_of(device_parts))
    version = _version_of(version_parts) if version_parts else None
    header = checked(
        dtype=dtype,
        shape=tuple(shape),
        strides=tuple(strides) or None,
        byte_offset=byte_offset,
        byte_order=byte_order,
        device=device,
        flags=flags,
        version=version,
    )
    return Parsed(header, checksum, data_begin, data_end, sum_begin)


def read_plain(buffer: Buffer, length: int) -> Parsed | None:
    """Read a message as our own writer makes most of them: compact, in this machine's order, with a device and a sum.

    It returns the result of `read`, or None for a message that `read` must look at. A program's messages differ in
    shape and payload, seldom in dtype and device, so the fields before and behind the shape are compared whole with
    those of an earlier message instead of being parsed: that is twice as fast as `read`.

    Args:
        buffer: A whole message.
        length: Its size.
    """
    try:
        if buffer[0] != _DEVICE:
            return None
        pos = buffer[1] + 2
        if buffer[pos] != _DTYPE:
            return None
        pos += buffer[pos + 1] + 2
        opening = _OPENINGS.get(bytes(buffer[:pos]))
        if opening is None:
            return None
        device, dtype, order, middle = opening
        shape: tuple[int, ...] = ()
        if buffer[pos] == _SHAPE:
            size = buffer[pos + 1]
            if size >= 0x80:
                return None
            pos += 2 + size
            content = bytes(buffer[pos - size : pos])
            if content.isascii():
                shape = tuple(content)
            else:
                extents: list[int] = []
                _read_packed(content, 0, size, extents)
                shape = tuple(extents)
        sum_begin = pos + len(middle)
        if buffer[pos:sum_begin] != middle:
            return None
        begin = sum_begin + 8
        if buffer[begin] == _PADDING:
            size = buffer[begin + 1]
            begin += 2 + size
            if buffer[begin - size : begin] != _PADDINGS.get(size):
                return None
        if buffer[begin] != _DATA:
            return None
        size = buffer[begin + 1]
        begin += 2
        if size >= 0x80:
            size, begin = read_minimal_varint(buffer, begin - 1, length)
        if begin + size != length or layout.check_layout(dtype, shape) != size:
            return None
    except (IndexError, DecodeError):
        return None
    header = Header(dtype, shape, size, order, device)
    return Parsed(header, int.from_bytes(buffer[sum_begin : sum_begin + 8], "little"), begin, length, sum_begin)


# By fields 3 and 4 of plain messages that `read` has accepted: their meaning, and the bytes between shape and sum.
_OPENINGS: Memo[bytes, tuple[Device | None, DType, ByteOrder, bytes]] = Memo(_REMEMBERED_COUNT)
_PADDINGS = {size: bytes(size) for size in range(1, 17)}


def remember_plain(header: Header) -> None:
    """Let `read_plain` know the device and element type of a compact message in this machine's order."""
    if header.device is None or header.padded or header.version is not None:
        return
    opening = fixed_fields(header.version, header.padded, header.device, header.dtype)
    middle = ORDER_FIELDS[header.byte_order] + SUM_TAG
    _OPENINGS.keep(opening, (header.device, header.dtype, header.byte_order, middle))


CRITICAL_TAGS = frozenset(number << 3 | wire_type for number in tags.CRITICAL_NUMBERS for wire_type in range(8))
"""Tags of header fields that a later revision may define, and that change what the payload means."""


def refuse_critical(number: int, offset: int | None = None) -> None:
    """Raise the error for a field that must be understood and is not.

    Raises:
        UnsupportedVersionError: Always.
    """
    raise UnsupportedVersionError(
        f"field {number} is unknown and must not be ignored: a newer version is needed",
        found=number,
        supported="revision 2 of the contract",
        offset=offset,
    )


def _int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _read_packed(buffer: Buffer, pos: int, end: int, into: list[int]) -> None:
    content = bytes(buffer[pos:end])
    if content.isascii():
        into.extend(content)
        return
    pos, end = 0, len(content)
    while pos < end:
        value, pos = read_varint(content, pos, end)
        into.append(_int64(value))


def _read_numbers(parts: list[bytes]) -> dict[int, int]:
    """Read the varint fields of a sub-message in parts, each whole by itself; the last one of a number wins."""
    numbers: dict[int, int] = {}
    for part in parts:
        pos = 0
        while pos < len(part):
            field = read_field(part, pos, len(part))
            if field.wire_type == VARINT:
                numbers[field.number] = read_varint(part, field.content, field.end)[0]
            pos = field.end
    return numbers


def _dtype_of(parts: list[bytes]) -> DType:
    numbers = _read_numbers(parts)
    return dtypes.from_wire(_int32(numbers.get(1, 0)), numbers.get(2, 0) & 0xFFFFFFFF, numbers.get(3, 0) & 0xFFFFFFFF)


def _device_of(parts: list[bytes]) -> Device:
    numbers = _read_numbers(parts)
    return Device(_int32(numbers.get(1, 0)), _int32(numbers.get(2, 0)))


def _version_of(parts: list[bytes]) -> tuple[int, int]:
    numbers = _read_numbers(parts)
    return numbers.get(1, 0) & 0xFFFFFFFF, numbers.get(2, 0) & 0xFFFFFFFF


# Sub-messages are few and come again and again. Long ones are hostile and not worth remembering.
_DTYPES: Memo[bytes, DType] = Memo(_REMEMBERED_COUNT)
_DEVICES: Memo[bytes, Device] = Memo(_REMEMBERED_COUNT)


def _remember(known: Memo[bytes, _T], parts: list[bytes], value: _T) -> _T:
    if len(parts) == 1 and len(parts[0]) <= _REMEMBERED_BYTES:
        known.keep(parts[0], value)
    return value


def from_message(message: dlpack_pb2.DLTensor) -> Header:
    """Return the header in a parsed `DLTensor`, without its checksum; its payload is ignored.

    Raises:
        DecodeError: The header breaks a rule of the contract.
    """
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # its stub says neither
        if unknown.field_number in tags.CRITICAL_NUMBERS:
            refuse_critical(unknown.field_number)
    if not message.HasField("dtype"):
        raise DecodeError("missing", field="dtype")
    t = message.dtype
    device = message.device
    version = message.version
    return checked(
        dtype=dtypes.from_wire(t.code, t.bits, t.lanes),
        shape=tuple(message.shape),
        strides=tuple(message.strides) or None,
        byte_offset=message.byte_offset,
        byte_order=message.byte_order,
        device=Device(device.device_type, device.device_id) if message.HasField("device") else None,
        flags=message.flags,
        version=(version.major, version.minor) if message.HasField("version") else None,
    )


def check_padding(padding: Buffer) -> None:
    """Check padding.

    Raises:
        LimitError: Padding too long.
        DecodeError: Padding with bytes other than zero.
    """
    size = len(padding)
    if size > MAX_PADDING_BYTES:
        raise _padding_too_long(size)
    if bytes(padding).count(0) != size:
        raise DecodeError("bytes other than zero", field="padding")


def _padding_too_long(size: int) -> LimitError:
    return LimitError(
        f"{size} bytes; at most {MAX_PADDING_BYTES} are allowed",
        declared=size,
        limit=MAX_PADDING_BYTES,
        field="padding",
    )


def header_too_large(size: int, offset: int | None = None) -> LimitError:
    """Return the error for a header over its cap."""
    return LimitError(
        f"header of {size} bytes or more; at most {MAX_HEADER_BYTES} are allowed",
        declared=size,
        limit=MAX_HEADER_BYTES,
        offset=offset,
    )
