"""Writing the header of a tensor as the fields of a serialized `DLTensor`, and the tags around its payload."""

from __future__ import annotations

from functools import lru_cache

from ..tensor import layout
from ..tensor.device import Device
from ..tensor.dtype import DType
from ..tensor.header import Header
from ..v1 import dlpack_pb2
from . import tags
from .wire import varint

_SHAPE_TAG = tags.byte(tags.SHAPE)
_STRIDES_TAG = tags.byte(tags.STRIDES)
_OFFSET_TAG = tags.byte(tags.BYTE_OFFSET)
SUM_TAG = tags.byte(tags.DATA_SUM)
PADDING_TAG = tags.byte(tags.PADDING)
DATA_TAG = tags.byte(tags.DATA)


def header_fields(header: Header) -> bytes:
    """Serialize fields 1 to 8 of a header in order, without its checksum."""
    serialized = fixed_fields(header.version, header.padded, header.device, header.dtype)
    if header.shape:
        serialized += _packed_field(_SHAPE_TAG, header.shape)
    if header.strides is not None:
        serialized += _packed_field(_STRIDES_TAG, header.strides)
        if header.byte_offset:
            serialized += _OFFSET_TAG + varint(header.byte_offset)
    return serialized + ORDER_FIELDS[header.byte_order]


def summed_fields(header: Header) -> bytes:
    """Serialize fields 1 to 9 of a header: as `header_fields`, then the checksum if there is one."""
    serialized = header_fields(header)
    if header.checksum is None:
        return serialized
    return serialized + SUM_TAG + header.checksum.to_bytes(8, "little")


ORDER_FIELDS = (b"", *(tags.byte(tags.BYTE_ORDER) + varint(order) for order in (1, 2)))
"""The byte_order field by its value; nothing for 0, as every serializer writes it."""


def _packed_field(tag: bytes, values: tuple[int, ...]) -> bytes:
    # Values below 128 are their own varints, so their bytes are the content: most shapes need no loop.
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


# An lru_cache, not a Memo: its arguments are few and come from live tensors, and its C code makes a hit cheapest.
@lru_cache(maxsize=1024)
def fixed_fields(version: tuple[int, int] | None, padded: bool, device: Device | None, dtype: DType) -> bytes:
    """Serialize fields 1 to 4, which most tensors of a program have in common."""
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
    """Return the padding field with `size` zero bytes; nothing for 0, as every serializer writes it."""
    if size < len(_PADDING_FIELDS):
        return _PADDING_FIELDS[size]
    return PADDING_TAG + varint(size) + bytes(size)


_PADDING_FIELDS = (b"", *(PADDING_TAG + varint(size) + bytes(size) for size in range(1, 128)))


def data_tag(payload_bytes: int) -> bytes:
    """Return tag and length of the payload; nothing for an empty one."""
    return DATA_TAG + varint(payload_bytes) if payload_bytes else b""
