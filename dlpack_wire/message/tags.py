"""Tags of the fields that are read and written around the generated classes, by the names of the schema.

They are computed from the descriptors, so that they cannot drift from the schema. A tag is the field's number and wire
type in one varint; each of these takes one byte.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from ..v1 import dlpack_pb2
from .wire import FIXED64, LEN, VARINT

_WIRE_TYPES = {
    FieldDescriptor.TYPE_INT64: VARINT,
    FieldDescriptor.TYPE_UINT64: VARINT,
    FieldDescriptor.TYPE_INT32: VARINT,
    FieldDescriptor.TYPE_UINT32: VARINT,
    FieldDescriptor.TYPE_BOOL: VARINT,
    FieldDescriptor.TYPE_ENUM: VARINT,
    FieldDescriptor.TYPE_FIXED64: FIXED64,
    FieldDescriptor.TYPE_STRING: LEN,
    FieldDescriptor.TYPE_BYTES: LEN,
    FieldDescriptor.TYPE_MESSAGE: LEN,
}


def tag(message: Any, name: str) -> int:
    """Return the tag of a field; of a repeated number the tag of one value.

    Args:
        message: The message's descriptor.
        name: The field's name in the schema.
    """
    field = message.fields_by_name[name]
    return int(field.number) << 3 | _WIRE_TYPES[field.type]


def packed_tag(message: Any, name: str) -> int:
    """Return the tag of a repeated number whose values stand in one field."""
    return int(message.fields_by_name[name].number) << 3 | LEN


def byte(tag: int) -> bytes:
    """Return a tag of one byte as it is written."""
    return bytes((tag,))


_TENSOR = dlpack_pb2.DLTensor.DESCRIPTOR

VERSION = tag(_TENSOR, "version")
FLAGS = tag(_TENSOR, "flags")
DEVICE = tag(_TENSOR, "device")
DTYPE = tag(_TENSOR, "dtype")
SHAPE = packed_tag(_TENSOR, "shape")
SHAPE_EXTENT = tag(_TENSOR, "shape")
STRIDES = packed_tag(_TENSOR, "strides")
STRIDES_STRIDE = tag(_TENSOR, "strides")
BYTE_OFFSET = tag(_TENSOR, "byte_offset")
BYTE_ORDER = tag(_TENSOR, "byte_order")
DATA_SUM = tag(_TENSOR, "data_sum")
PADDING = tag(_TENSOR, "padding")
DATA = tag(_TENSOR, "data")

CRITICAL_NUMBERS = (10, 11)
"""Reserved header fields that a reader must understand or refuse; 12 and 13 may be ignored."""

RECORD_CRITICAL_NUMBERS = range(4, 9)
"""The same of a record, in a file and in the service; 9 to 13 may be ignored."""

SUM_FIELD_BYTES = 9
"""Size of a field that holds a sum: its tag, and 8 bytes."""
