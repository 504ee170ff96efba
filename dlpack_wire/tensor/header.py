"""The header of a tensor: a checked value, and the fields of a serialized `DLTensor` that hold it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..errors import DecodeError, LimitError, TruncatedError
from ..message.wire import (
    Buffer,
    varint,
)
from ..v1 import dlpack_pb2
from . import dtype as dtypes
from . import layout
from .device import Device
from .dtype import ByteOrder, DType

MAX_HEADER_BYTES = 64 * 1024
"""Most bytes of all fields except padding and data: room for 64 dimensions a hundred times over."""

MAX_PADDING_BYTES = 16384
"""Most padding: four pages of the largest alignment that a file may have."""

SUM_TAG = b"\x49"
PADDING_TAG = b"\x72"
DATA_TAG = b"\x7a"


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

    def with_checksum(self, checksum: int | None) -> Header:
        """The same with another checksum. `_replace` takes several times as long."""
        return tuple.__new__(Header, (*self[:8], checksum, self[9]))

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


def fields(header: Header) -> bytes:
    """Serialized fields 1 to 8 of a header, in order; its checksum is left out."""
    dtype, shape, strides, byte_offset, byte_order, device, padded, version, _, _ = header
    serialized = fixed_fields(version, padded, device, dtype)
    if shape:
        serialized += _packed_field(b"\x2a", shape)
    if strides is not None:
        serialized += _packed_field(b"\x32", strides)
        if byte_offset:
            serialized += b"\x38" + varint(byte_offset)
    return serialized + ORDER_FIELDS[byte_order]


ORDER_FIELDS = (b"", b"\x40\x01", b"\x40\x02")


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
def fixed_fields(version: tuple[int, int] | None, padded: bool, device: Device | None, dtype: DType) -> bytes:
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
