"""The header of a tensor: a checked value, from and to the fields of a serialized `DLTensor`.

Reading is done here field by field rather than by a generated class: the payload must not pass through one, and the
verdict on odd input must not depend on which protobuf back end is installed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeVar

from . import dtype as dtypes
from . import layout
from .device import Device
from .dtype import ByteOrder, DType
from .errors import DecodeError, LimitError, TruncatedError
from .v1 import dlpack_pb2
from .wire import (
    LEN,
    VARINT,
    Buffer,
    field_cut,
    fixed_size,
    read_field,
    read_minimal_varint,
    read_tag,
    read_varint,
    varint,
)

MAX_HEADER_BYTES = 64 * 1024
"""Most bytes of all fields except padding and data: room for 64 dimensions a hundred times over."""

MAX_PADDING_BYTES = 16384
"""Most padding: four pages of the largest alignment that a file may have."""

SUM_TAG = b"\x49"
PADDING_TAG = b"\x72"
DATA_TAG = b"\x7a"


_T = TypeVar("_T")


class Header(NamedTuple):
    """All of a tensor but its bytes. Every instance describes a possible tensor.

    Attributes:
        dtype: Element type.
        shape: Extents in elements, outermost first.
        strides: In elements, one per dimension; None if compact row-major. Canonical (1 for axes of size 1).
        byte_offset: Bytes from the start of the payload to element [0, ..., 0].
        byte_order: Of the payload as recorded.
        device: Where the tensor lived when it was encoded, or None.
        padded: Whether elements of fewer than 8 bits fill a byte each.
        version: DLPack version of the producer, or None.
        checksum: XXH3-64 of the payload, or None.
        payload_bytes: Exact size of the payload.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    byte_offset: int
    byte_order: ByteOrder
    device: Device | None
    padded: bool
    version: tuple[int, int] | None
    checksum: int | None
    payload_bytes: int

    @property
    def flags(self) -> int:
        """DLPack's flag mask as recorded: 4 if padded."""
        return layout.FLAG_SUBBYTE_PADDED if self.padded else 0

    @property
    def is_packed(self) -> bool:
        """Whether elements share bytes with their neighbours."""
        return layout.is_packed(self.dtype, self.padded)


def checked(
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    byte_offset: int,
    byte_order: int,
    device: Device | None,
    flags: int,
    version: tuple[int, int] | None,
) -> Header:
    """A header out of what arrived: the one door from untrusted numbers to a `Header`.

    Raises:
        DecodeError: A rule of the contract is broken.
    """
    padded = bool(flags & layout.FLAG_SUBBYTE_PADDED)
    size = layout.payload_bytes(dtype, padded, shape, strides, byte_offset)
    if not 0 <= byte_order <= 2:
        raise DecodeError(f"{byte_order} is neither unspecified (0), little (1) nor big endian (2)", field="byte_order")
    if dtype.part_bytes == 1:
        byte_order = 0
    elif byte_order == 0:
        raise DecodeError(f"not stated, but {dtype.name} has parts of {dtype.part_bytes} bytes", field="byte_order")
    if strides is not None:
        strides = layout.canonical_strides(shape, strides)
    order = _ORDERS[byte_order]
    return Header(dtype, shape, strides, byte_offset, order, device, padded, version, None, size)


_ORDERS = tuple(ByteOrder)


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


class Located(NamedTuple):
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


def read(buffer: Buffer, pos: int, end: int) -> Located:
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
    return Located(header, checksum, data_begin, data_end, sum_begin)


def read_plain(buffer: Buffer, length: int) -> Located | None:
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
        if begin + size != length or layout.payload_bytes(dtype, False, shape, None, 0) != size:
            return None
    except (IndexError, DecodeError):
        return None
    header = Header(dtype, shape, None, 0, order, device, False, None, None, size)
    return Located(header, int.from_bytes(buffer[sum_begin : sum_begin + 8], "little"), begin, length, sum_begin)


# Fields 3 and 4 of plain messages that `read` has understood, and what stands between shape and sum with them.
_OPENINGS: dict[bytes, tuple[Device | None, DType, ByteOrder, bytes]] = {}
_PADDINGS = {size: bytes(size) for size in range(1, 17)}


def remember_plain(header: Header) -> None:
    """Let `read_plain` know the device and element type of a compact message in this machine's order."""
    if header.device is None or header.padded or header.version is not None:
        return
    if len(_OPENINGS) >= _REMEMBERED_COUNT:
        _OPENINGS.clear()
    opening = _fixed_fields(None, False, header.device, header.dtype)
    middle = _ORDER_FIELDS[header.byte_order] + SUM_TAG
    _OPENINGS[opening] = (header.device, header.dtype, header.byte_order, middle)


def check_padding(padding: Buffer) -> None:
    """Refuse padding that is too long or not zero."""
    size = len(padding)
    if size > MAX_PADDING_BYTES:
        raise LimitError(
            f"more than {MAX_PADDING_BYTES} bytes", declared=size, limit=MAX_PADDING_BYTES, field="padding"
        )
    if bytes(padding).count(0) != size:
        raise DecodeError("bytes other than zero", field="padding")


def check_payload_size(header: Header, size: int) -> None:
    """Refuse a payload whose size is not exactly the header's."""
    needed = header.payload_bytes
    if size < needed:
        raise TruncatedError(
            f"shape {header.shape} of {header.dtype.name} needs {needed} bytes, has {size}",
            needed=needed,
            available=size,
            field="data",
        )
    if size > needed:
        raise DecodeError(
            f"shape {header.shape} of {header.dtype.name} needs {needed} bytes, has {size}: {size - needed} too many",
            field="data",
        )


def header_too_large(size: int, offset: int | None = None) -> LimitError:
    """The error for a header over its cap."""
    return LimitError(
        f"header of {size} bytes or more; at most {MAX_HEADER_BYTES} are allowed",
        declared=size,
        limit=MAX_HEADER_BYTES,
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


def fields(header: Header) -> bytes:
    """Serialized fields 1 to 8 of a header, in order; its checksum is left out."""
    dtype, shape, strides, byte_offset, byte_order, device, padded, version, _, _ = header
    serialized = _fixed_fields(version, padded, device, dtype)
    if shape:
        serialized += _packed_field(b"\x2a", shape)
    if strides is not None:
        serialized += _packed_field(b"\x32", strides)
        if byte_offset:
            serialized += b"\x38" + varint(byte_offset)
    return serialized + _ORDER_FIELDS[byte_order]


_ORDER_FIELDS = (b"", b"\x40\x01", b"\x40\x02")


def _packed_field(tag: bytes, values: tuple[int, ...]) -> bytes:
    if len(values) < 0x80:
        try:
            content = bytes(values)
        except ValueError:
            pass
        else:
            if content.isascii():
                return b"%b%c%b" % (tag, len(content), content)
    content = b"".join([varint(v & 0xFFFFFFFFFFFFFFFF) for v in values])
    return tag + varint(len(content)) + content


@lru_cache(maxsize=1024)
def _fixed_fields(version: tuple[int, int] | None, padded: bool, device: Device | None, dtype: DType) -> bytes:
    """Fields 1 to 4: what most tensors of a program have in common."""
    message = dlpack_pb2.DLTensor(
        flags=layout.FLAG_SUBBYTE_PADDED if padded else 0,
        dtype=dlpack_pb2.DLDataType(
            code=dtype.code,  # type: ignore[arg-type]
            bits=dtype.bits,
            lanes=dtype.lanes,
        ),
    )
    if device is not None:
        message.device.SetInParent()
        message.device.device_type = device.device_type  # type: ignore[assignment]
        message.device.device_id = device.device_id
    if version is not None:
        message.version.SetInParent()
        message.version.major, message.version.minor = version
    return message.SerializeToString()


def padding_field(size: int) -> bytes:
    """The padding field with `size` zero bytes; nothing at all for 0, as every serializer does."""
    if size < len(_PADDING_FIELDS):
        return _PADDING_FIELDS[size]
    return PADDING_TAG + varint(size) + bytes(size)


_PADDING_FIELDS = (b"", *(PADDING_TAG + varint(size) + bytes(size) for size in range(1, 128)))


def data_tag(payload_bytes: int) -> bytes:
    """Tag and length of the payload; nothing at all for an empty one."""
    return DATA_TAG + varint(payload_bytes) if payload_bytes else b""
