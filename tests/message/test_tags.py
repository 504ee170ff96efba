"""Tags are those that protobuf itself writes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from dlpack_wire.message import tags
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2

DLTensor, DLDataType = dlpack_pb2.DLTensor, dlpack_pb2.DLDataType

FIELDS: dict[str, tuple[int, Message]] = {
    "VERSION": (tags.VERSION, DLTensor(version={"major": 1})),
    "FLAGS": (tags.FLAGS, DLTensor(flags=1)),
    "DEVICE": (tags.DEVICE, DLTensor(device={"device_id": 1})),
    "DTYPE": (tags.DTYPE, DLTensor(dtype={"bits": 1})),
    "SHAPE": (tags.SHAPE, DLTensor(shape=[1])),
    "STRIDES": (tags.STRIDES, DLTensor(strides=[1])),
    "BYTE_OFFSET": (tags.BYTE_OFFSET, DLTensor(byte_offset=1)),
    "BYTE_ORDER": (tags.BYTE_ORDER, DLTensor(byte_order=1)),
    "DATA_SUM": (tags.DATA_SUM, DLTensor(data_sum=0)),
    "PADDING": (tags.PADDING, DLTensor(padding=b"\0")),
    "DATA": (tags.DATA, DLTensor(data=b"\0")),
}


@pytest.mark.parametrize(("tag", "message"), FIELDS.values(), ids=FIELDS.keys())
def test_tags_are_protobufs(tag: int, message: Message) -> None:
    assert message.SerializeToString()[:1] == tags.byte(tag)


def test_every_tag_of_the_table_is_looked_at() -> None:
    constants = {name for name, value in vars(tags).items() if name.isupper() and type(value) is int}
    wire_types = {"VARINT", "FIXED64", "LEN"}
    assert constants - wire_types == {*FIELDS, "SHAPE_EXTENT", "STRIDES_STRIDE", "SUM_FIELD_BYTES"}


@pytest.mark.parametrize(
    ("tag", "field"), [(tags.SHAPE_EXTENT, "shape"), (tags.STRIDES_STRIDE, "strides")], ids=["shape", "strides"]
)
def test_tags_of_unpacked_values_are_read_by_protobuf(tag: int, field: str) -> None:
    message = DLTensor.FromString(bytes((tag, 7, tag, 8)))
    assert list(getattr(message, field)) == [7, 8]


def test_a_sum_takes_as_many_bytes_as_protobuf_writes() -> None:
    assert len(DLTensor(data_sum=2**64 - 1).SerializeToString()) == tags.SUM_FIELD_BYTES


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (DLDataType, "code", 1),
        (DLDataType, "bits", 1),
        (tensor_file_pb2.TensorRecord, "name", "x"),
        (tensor_file_pb2.TensorRecord, "header_xxh3_64", 1),
        (tensor_file_pb2.MetadataValue, "string_value", "x"),
        (tensor_file_pb2.MetadataValue, "int_value", 1),
        (tensor_file_pb2.MetadataValue, "bool_value", True),
        (tensor_file_pb2.MetadataValue, "bytes_value", b"x"),
    ],
    ids=str,
)
def test_tags_of_other_messages(message: Any, field: str, value: Any) -> None:
    assert message(**{field: value}).SerializeToString()[0] == tags.tag(message.DESCRIPTOR, field)


def test_tags_follow_the_schema_where_one_is_missing() -> None:
    with pytest.raises(KeyError):
        tags.tag(DLTensor.DESCRIPTOR, "no such field")
