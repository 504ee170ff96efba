"""The header is read as every standard parser reads it, and written as every standard serializer writes it."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

import numpy as np
import pytest
from headers import header_of
from hypothesis import given
from hypothesis import strategies as st

import dlpack_wire as dw
from dlpack_wire.message import reading, writing
from dlpack_wire.message.wire import length_delimited, varint
from dlpack_wire.tensor import header as headers
from dlpack_wire.tensor.dtype import table
from dlpack_wire.tensor.layout import row_major
from dlpack_wire.tensor.source import Source
from dlpack_wire.v1 import dlpack_pb2

HEADERS = [
    header_of(),
    header_of(shape=()),
    header_of(shape=(2, 3), strides=(1, 2)),
    header_of(shape=(2, 3), strides=(-3, -1), byte_offset=20),
    header_of(shape=(3, 0), strides=(0, 99)),
    header_of(shape=(128, 2**40), device=dw.Device(2, 7)),
    header_of(device=dw.Device(0, 0), version=(0, 0)),
    header_of(device=dw.Device(-5, -1), version=(1, 2**32 - 1)),
    header_of(dtype=dw.DType("int4"), flags=4),
    header_of(dtype=dw.DType("code300_16bitx70000"), byte_order=2),
    header_of(shape=(1,) * 64),
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_fields_are_a_standard_serializers_bytes_and_read_back(header: dw.Header) -> None:
    written = writing.header_fields(header)
    message = dlpack_pb2.DLTensor.FromString(written)
    assert message.SerializeToString(deterministic=True) == written
    assert reading.from_message(message) == header
    for buffer in (written, bytearray(written), memoryview(written)):
        found = reading.read(buffer, 0, len(buffer))
        assert found == (header, None, len(written), len(written), len(written))


@pytest.mark.parametrize("dtype", table(), ids=str)
def test_every_type_is_written_and_read_back(dtype: dw.DType) -> None:
    for lanes in (1, 2, 300):
        header = header_of(dtype=dw.DType(dtype.code, dtype.bits, lanes))
        assert reading.from_message(dlpack_pb2.DLTensor.FromString(writing.header_fields(header))) == header


@given(
    shape=st.lists(st.integers(0, 300), max_size=5).map(tuple),
    order=st.permutations(range(5)),
    device=st.none() | st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
    version=st.none() | st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    byte_order=st.integers(1, 2),
)
def test_any_header_is_written_and_read_back(shape: tuple[int, ...], order: list[int], **fields: Any) -> None:
    axes = [a for a in order if a < len(shape)]
    strides = row_major(shape)
    device = fields.pop("device")
    header = header_of(
        shape=tuple(shape[a] for a in axes),
        strides=tuple(strides[a] for a in axes) or None,
        device=None if device is None else dw.Device(*device),
        **fields,
    )
    written = writing.header_fields(header)
    message = dlpack_pb2.DLTensor.FromString(written)
    assert message.SerializeToString() == written
    assert reading.read(written, 0, len(written)).header == reading.from_message(message) == header


def test_a_header_is_read_inside_a_larger_buffer() -> None:
    message = dw.encode(np.arange(6, dtype="f4"))
    buffer = b"\xff" * 5 + message + b"\xff" * 5
    found = reading.read(buffer, 5, 5 + len(message))
    alone = reading.read(message, 0, len(message))
    assert found.header == alone.header
    assert found.checksum == alone.checksum
    assert buffer[found.data_begin : found.data_end] == np.arange(6, dtype="f4").tobytes()
    assert int.from_bytes(buffer[found.sum_begin : found.sum_begin + 8], "little") == found.checksum


@given(st.permutations(range(6)))
def test_any_order_of_fields_means_the_same(order: list[int]) -> None:
    parts = [
        dlpack_pb2.DLTensor(dtype={"code": 2, "bits": 32, "lanes": 1}).SerializeToString(),
        dlpack_pb2.DLTensor(shape=[2, 3]).SerializeToString(),
        dlpack_pb2.DLTensor(strides=[1, 2]).SerializeToString(),
        dlpack_pb2.DLTensor(device={"device_type": 2}).SerializeToString(),
        dlpack_pb2.DLTensor(byte_order=1).SerializeToString(),
        dlpack_pb2.DLTensor(data=bytes(24), data_xxh3_64=5).SerializeToString(),
    ]
    wire = b"".join(parts[i] for i in order)
    found = reading.read(wire, 0, len(wire))
    assert found.header == header_of(shape=(2, 3), strides=(1, 2), device=dw.Device(2, 0))
    assert found.checksum == 5
    assert found.data_end - found.data_begin == 24


def test_flags_that_are_not_the_tensors_are_dropped() -> None:
    assert header_of(flags=3 | 1 << 60).flags == 0
    assert header_of(dtype=dw.DType("int4"), flags=7).flags == 4


def test_a_header_says_how_many_bytes_its_payload_has() -> None:
    header = header_of(shape=(2, 3), strides=(5, 1))
    assert header.payload_bytes == 8 * 4
    headers.check_payload_size(header, 32)
    with pytest.raises(dw.TruncatedError, match="needs 32 bytes, has 31") as caught:
        headers.check_payload_size(header, 31)
    assert (caught.value.needed, caught.value.available, caught.value.field) == (32, 31, "data")
    with pytest.raises(dw.DecodeError, match="1 too many"):
        headers.check_payload_size(header, 33)


@pytest.mark.parametrize("size", [0, 1, 16, 16384])
def test_padding_of_zeros_is_ignored(size: int) -> None:
    wire = writing.header_fields(header_of()) + writing.padding_field(size)
    assert reading.read(wire, 0, len(wire)).header == header_of()


def test_padding_that_is_too_long_is_measured_not_read() -> None:
    wire = writing.header_fields(header_of()) + length_delimited(14, bytes(16385))
    with pytest.raises(dw.LimitError) as caught:
        reading.read(wire, 0, len(wire))
    assert caught.value.limit == 16384
    assert caught.value.declared == 16385


def test_the_cap_on_headers_counts_neither_padding_nor_data() -> None:
    plain = writing.header_fields(header_of())
    rest = writing.padding_field(16384) + length_delimited(15, bytes(100_000))
    left = 65536 - len(plain)
    filler = length_delimited(1000, bytes(left - 5))
    assert len(plain + filler) == 65536
    wire = plain + filler + rest
    assert reading.read(wire, 0, len(wire)).header == header_of()
    for more in (b"\x08\x00", length_delimited(1000, b"")):
        wire = plain + filler + more + rest
        with pytest.raises(dw.LimitError) as caught:
            reading.read(wire, 0, len(wire))
        assert caught.value.limit == 65536


def test_the_last_padding_and_data_count() -> None:
    wire = writing.header_fields(header_of()) + length_delimited(14, b"\1") + writing.padding_field(3)
    wire += length_delimited(15, bytes(100)) + length_delimited(15, bytes(24))
    found = reading.read(wire, 0, len(wire))
    assert found.data_end - found.data_begin == 24


def test_a_sub_message_must_be_whole_by_itself() -> None:
    """Pieces are merged after they were parsed, not before."""
    dtype = dlpack_pb2.DLDataType(code=2, bits=32, lanes=1).SerializeToString()  # type: ignore[arg-type]
    for field, content in ((4, dtype), (3, b"\x08\x02\x10\x01"), (1, b"\x08\x01\x10\x03")):
        for cut in range(1, len(content)):
            wire = writing.header_fields(header_of()) + b"".join(
                length_delimited(field, c) for c in (content[:cut], content[cut:])
            )
            try:
                dlpack_pb2.DLTensor.FromString(wire)
            except Exception:
                with pytest.raises(dw.DecodeError):
                    reading.read(wire, 0, len(wire))
            else:
                reading.read(wire, 0, len(wire))


@pytest.mark.parametrize(
    "piece", ["1a020801", "2200", "22020802", "0a020801", "2801", "2a0101", "c23e00", "4801", "7200", "7a00"]
)
def test_the_largest_header_of_the_smallest_pieces_takes_no_time(piece: str) -> None:
    """Linear in the input: anything quadratic would take minutes here."""
    plain = writing.header_fields(header_of())
    fill = bytes.fromhex(piece)
    wire = fill * ((65536 - len(plain)) // len(fill)) + plain
    began = time.process_time()
    with contextlib.suppress(dw.DecodeError):
        reading.read(wire, 0, len(wire))
    assert time.process_time() - began < 2


def test_remembered_parts_do_not_mix() -> None:
    """Thousands of different devices and types, in between the same again."""
    for number in range(3000):
        for code, device_type in itertools.product((0, 1), (number % 7, 1)):
            message = dlpack_pb2.DLTensor(
                dtype={"bits": 8, "lanes": 1 + number % 90}, device={"device_type": 1, "device_id": number}
            )
            message.dtype.code, message.device.device_type = code, device_type  # type: ignore[assignment]
            wire = message.SerializeToString()
            header = reading.read(wire, 0, len(wire)).header
            assert header.dtype is dw.DType(code, 8, 1 + number % 90)
            assert header.device == (device_type, number)


def test_writers_and_readers_agree_on_every_tensor_of_one_program() -> None:
    for device, padded in itertools.product(((1, 0), (3, 2)), (True, False)):
        header = header_of(dtype=dw.DType("int4"), device=dw.Device(*device), flags=4 * padded)
        assert reading.read(writing.header_fields(header), 0, len(writing.header_fields(header))).header == header
    with Source(np.arange(6, dtype=">f4")) as source:
        assert source.header == header_of(byte_order=2, device=dw.Device(1, 0))


def test_tags() -> None:
    assert writing.data_tag(0) == b""
    assert writing.data_tag(300) == b"\x7a" + varint(300)
    assert writing.padding_field(0) == b""
    assert writing.padding_field(2) == b"\x72\x02\0\0"
