"""Writing the header of a tensor as the fields of a serialized `DLTensor`, and the tags around its payload."""

from __future__ import annotations

from functools import lru_cache

from ..tensor import layout
from ..tensor.device import Device
from ..tensor.dtype import DType
from ..tensor.header import Header
from ..v1 import dlpack_pb2
from .wire import varint

SUM_TAG = b"\x49"
PADDING_TAG = b"\x72"
DATA_TAG = b"\x7a"


def header_fields(header: Header) -> bytes:
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
