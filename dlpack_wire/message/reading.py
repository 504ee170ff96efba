"""Reading a serialized `DLTensor` around its payload.

This is done field by field rather than by a generated class: the payload must not pass through one, and the verdict on
odd input must not depend on which protobuf back end is installed.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from ..errors import DecodeError, LimitError
from ..tensor import dtype as dtypes
from ..tensor import layout
from ..tensor.device import Device
from ..tensor.dtype import ByteOrder, DType
from ..tensor.header import Header, checked
from ..tensor.memory import Buffer
from ..v1 import dlpack_pb2
from .wire import LEN, VARINT, field_cut, fixed_size, read_field, read_minimal_varint, read_tag, read_varint
from .writing import ORDER_FIELDS, SUM_TAG, fixed_fields

MAX_HEADER_BYTES = 64 * 1024
"""Most bytes of all fields except padding and data: room for 64 dimensions a hundred times over."""

MAX_PADDING_BYTES = 16384
"""Most padding: four pages of the largest alignment that a file may have."""

_T = TypeVar("_T")


class Parsed(NamedTuple):
    """What `read` found.

    Attributes:
        header: The header, without its checksum.
        checksum: The checksum, if there is one.
        data_begin: Where the payload begins.
        data_end: Where it ends.
        sum_begin: Where the checksum's 8 bytes begin.
    """

    header: Header
    checksum: int | None
    data_begin: int
    data_end: int
    sum_begin: int


def read(buffer: Buffer, pos: int, end: int) -> Parsed:
    """Read a serialized `DLTensor` in `buffer[pos:end]`, in any field order, as every standard parser would.

    The payload may be missing, whatever the header says: its positions are then `end`, as is that of a missing sum.

    Raises:
        TruncatedError: It ends inside a field.
        DecodeError: A rule of the contract is broken.
    """
    begin = pos
    header_bytes = 0
    data_begin = data_end = padding_begin = padding_end = sum_begin = end
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
            if tag == 0x7A:
                data_begin, data_end = content, after
                pos = after
                continue
            if tag == 0x72:
                padding_begin, padding_end = content, after
                pos = after
                continue
            if size > MAX_HEADER_BYTES:
                raise header_too_large(size, pos)
            if tag == 0x2A:
                _read_packed(buffer, content, after, shape)
            elif tag == 0x22:
                dtype_parts.append(bytes(buffer[content:after]))
            elif tag == 0x32:
                _read_packed(buffer, content, after, strides)
            elif tag == 0x1A:
                device_parts.append(bytes(buffer[content:after]))
            elif tag == 0x0A:
                version_parts.append(bytes(buffer[content:after]))
        elif wire_type == VARINT:
            value = buffer[content] if content < end else 0x80
            if value < 0x80:
                after = content + 1
            else:
                value, after = read_varint(buffer, content, end)
            if tag == 0x40:
                byte_order = _int32(value)
            elif tag == 0x10:
                flags = value
            elif tag == 0x38:
                byte_offset = value
            elif tag == 0x28:
                shape.append(_int64(value))
            elif tag == 0x30:
                strides.append(_int64(value))
        else:
            after = content + fixed_size(tag, pos)
            if after > end:
                raise field_cut(tag >> 3, after - content, end - content, pos)
            if tag == 0x49:
                sum_begin = content
                checksum = int.from_bytes(buffer[content:after], "little")
        header_bytes += after - pos
        if header_bytes > MAX_HEADER_BYTES:
            raise header_too_large(header_bytes, pos)
        pos = after
    if not dtype_parts:
        raise DecodeError("missing", field="dtype", offset=begin)
    if padding_end > padding_begin:
        check_padding(buffer[padding_begin : min(padding_end, padding_begin + MAX_PADDING_BYTES + 1)])
    dtype = _DTYPES.get(dtype_parts[0]) if len(dtype_parts) == 1 else None
    if dtype is None:
        dtype = _remember(_DTYPES, dtype_parts, _dtype_of(dtype_parts))
    device = None
    if device_parts:
        device = _DEVICES.get(device_parts[0]) if len(device_parts) == 1 else None
        if device is None:
            device = _remember(_DEVICES, device_parts, _device_of(device_parts))
    version = _version_of(version_parts) if version_parts else None
    extents = tuple(shape)
    header = checked(dtype, extents, tuple(strides) or None, byte_offset, byte_order, device, flags, version)
    return Parsed(header, checksum, data_begin, data_end, sum_begin)


def read_plain(buffer: Buffer, length: int) -> Parsed | None:
    """The short way to read what our own writer makes of most tensors: compact, in this machine's order, with a sum.

    It says what `read` would say of the same message, or None, whereupon `read` has to look.

    Args:
        buffer: A whole message.
        length: Its size.
    """
    try:
        if buffer[0] != 0x1A:
            return None
        pos = buffer[1] + 2
        if buffer[pos] != 0x22:
            return None
        pos += buffer[pos + 1] + 2
        opening = _OPENINGS.get(bytes(buffer[:pos]))
        if opening is None:
            return None
        device, dtype, order, middle = opening
        shape: tuple[int, ...] = ()
        if buffer[pos] == 0x2A:
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
        if buffer[begin] == 0x72:
            size = buffer[begin + 1]
            begin += 2 + size
            if buffer[begin - size : begin] != _PADDINGS.get(size):
                return None
        if buffer[begin] != 0x7A:
            return None
        size = buffer[begin + 1]
        begin += 2
        if size >= 0x80:
            size, begin = read_minimal_varint(buffer, begin - 1, length)
        if begin + size != length or layout.check_layout(dtype, False, shape, None, 0) != size:
            return None
    except (IndexError, DecodeError):
        return None
    header = Header(dtype, shape, None, 0, order, device, False, None, None, size)
    return Parsed(header, int.from_bytes(buffer[sum_begin : sum_begin + 8], "little"), begin, length, sum_begin)


# Fields 3 and 4 of plain messages that `read` has understood, and what stands between shape and sum with them.
_OPENINGS: dict[bytes, tuple[Device | None, DType, ByteOrder, bytes]] = {}
_PADDINGS = {size: bytes(size) for size in range(1, 17)}


def remember_plain(header: Header) -> None:
    """Let `read_plain` know the device and element type of a compact message in this machine's order."""
    if header.device is None or header.padded or header.version is not None:
        return
    if len(_OPENINGS) >= _REMEMBERED_COUNT:
        _OPENINGS.clear()
    opening = fixed_fields(None, False, header.device, header.dtype)
    middle = ORDER_FIELDS[header.byte_order] + SUM_TAG
    _OPENINGS[opening] = (header.device, header.dtype, header.byte_order, middle)


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
    """The varint fields of a sub-message that came in parts, each whole by itself; the last one of a number wins."""
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
_DTYPES: dict[bytes, DType] = {}
_DEVICES: dict[bytes, Device] = {}
_REMEMBERED_BYTES = 24
_REMEMBERED_COUNT = 1024


def _remember(known: dict[bytes, _T], parts: list[bytes], value: _T) -> _T:
    if len(parts) == 1 and len(parts[0]) <= _REMEMBERED_BYTES:
        if len(known) >= _REMEMBERED_COUNT:
            known.clear()
        known[parts[0]] = value
    return value


def from_message(message: dlpack_pb2.DLTensor) -> Header:
    """The header in a parsed `DLTensor` without its checksum, whatever its payload.

    Raises:
        DecodeError: A rule of the contract is broken.
    """
    if not message.HasField("dtype"):
        raise DecodeError("missing", field="dtype")
    t = message.dtype
    device = message.device
    version = message.version
    return checked(
        dtypes.from_wire(t.code, t.bits, t.lanes),
        tuple(message.shape),
        tuple(message.strides) or None,
        message.byte_offset,
        message.byte_order,
        Device(device.device_type, device.device_id) if message.HasField("device") else None,
        message.flags,
        (version.major, version.minor) if message.HasField("version") else None,
    )


def check_padding(padding: Buffer) -> None:
    """Refuse padding that is too long or not zero."""
    size = len(padding)
    if size > MAX_PADDING_BYTES:
        raise LimitError(
            f"more than {MAX_PADDING_BYTES} bytes", declared=size, limit=MAX_PADDING_BYTES, field="padding"
        )
    if bytes(padding).count(0) != size:
        raise DecodeError("bytes other than zero", field="padding")


def header_too_large(size: int, offset: int | None = None) -> LimitError:
    """The error for a header over its cap."""
    return LimitError(
        f"header of {size} bytes or more; at most {MAX_HEADER_BYTES} are allowed",
        declared=size,
        limit=MAX_HEADER_BYTES,
        offset=offset,
    )
