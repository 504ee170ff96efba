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
        dlpack_pb2.DLTensor(data=bytes(24), data_sum=5).SerializeToString(),
    ]
    wire = b"".join(parts[i] for i in order)
    found = reading.read(wire, 0, len(wire))
    assert found.header == header_of(shape=(2, 3), strides=(1, 2), device=dw.Device(2, 0))
    assert found.checksum == 5
    assert found.data_end - found.data_begin == 24


def test_a_sum_follows_the_other_fields_as_a_standard_serializer_writes_it() -> None:
    header = header_of(shape=(2, 3), strides=(1, 2))
    assert writing.summed_fields(header) == writing.header_fields(header)
    for checksum in (0, 1, 2**64 - 1):
        written = writing.summed_fields(header.with_checksum(checksum))
        message = dlpack_pb2.DLTensor.FromString(writing.header_fields(header))
        message.data_sum = checksum
        assert written == message.SerializeToString()


def test_another_checksum_changes_nothing_else() -> None:
    for header in HEADERS:
        summed = header.with_checksum(5)
        assert summed == header._replace(checksum=5)
        assert type(summed) is dw.Header
        assert summed.with_checksum(None) == header


def test_plain_headers_are_those_of_compact_tensors() -> None:
    for shape in ((), (2, 3), (0, 4)):
        plain = dw.Header.plain(dw.DType("float32"), shape, dw.ByteOrder.BIG, dw.Device(3, 1))
        assert plain == header_of(shape=shape, byte_order=2, device=dw.Device(3, 1))
    with pytest.raises(dw.EncodeError, match="shape"):
        dw.Header.plain(dw.DType("float32"), (2**61,), dw.ByteOrder.LITTLE, dw.Device(1, 0))


@pytest.mark.parametrize(
    ("shape", "strides", "canonical"),
    [
        ((2, 3), (3, 1), None),
        ((1, 3), (99, 1), None),
        ((2, 1, 3), (1, 99, 2), (1, 1, 2)),
        ((3, 0), (0, 99), None),
        ((2, 3), (1, 2), (1, 2)),
    ],
)
def test_strides_that_arrive_are_made_canonical(shape: Any, strides: Any, canonical: Any) -> None:
    message = dlpack_pb2.DLTensor(dtype={"code": 2, "bits": 32, "lanes": 1}, byte_order=1, shape=shape, strides=strides)
    wire = message.SerializeToString()
    for header in (reading.from_message(message), reading.read(wire, 0, len(wire)).header):
        assert header.strides == canonical


def test_flags_are_written_for_padded_elements_only() -> None:
    for header, flags in ((header_of(), 0), (header_of(dtype=dw.DType("int4"), flags=4), 4)):
        assert dlpack_pb2.DLTensor.FromString(writing.header_fields(header)).flags == flags


@pytest.mark.parametrize("shape", [(127,), (128,), (127, 128), (1,) * 64, (2**40,)], ids=str)
def test_shapes_around_a_varint_of_two_bytes(shape: tuple[int, ...]) -> None:
    header = header_of(dtype=dw.DType("uint8"), shape=shape, byte_order=0)
    wire = writing.header_fields(header)
    assert dlpack_pb2.DLTensor.FromString(wire).SerializeToString() == wire
    assert reading.read(wire, 0, len(wire)).header == header


@pytest.mark.parametrize("size", [1, 126, 127, 128, 16384])
def test_padding_is_written_as_a_standard_serializer_writes_it(size: int) -> None:
    assert writing.padding_field(size) == dlpack_pb2.DLTensor(padding=bytes(size)).SerializeToString()


def test_a_header_without_a_type_is_refused_by_both_readers() -> None:
    message = dlpack_pb2.DLTensor(shape=[3])
    wire = b"\0" + message.SerializeToString()
    with pytest.raises(dw.DecodeError, match="missing") as caught:
        reading.from_message(message)
    assert caught.value.field == "dtype"
    with pytest.raises(dw.DecodeError, match="missing") as caught:
        reading.read(wire, 1, len(wire))
    assert (caught.value.field, caught.value.offset) == ("dtype", 1)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ({"code": 2, "lanes": 1}, "bits 0"),
        ({"code": 0, "lanes": 1}, "bits 0"),
        ({"code": 0, "bits": 8}, "lanes 0"),
        ({}, "bits 0, lanes 0"),
    ],
    ids=str,
)
def test_numbers_of_a_type_that_are_left_out_are_zero(dtype: Any, said: str) -> None:
    message = dlpack_pb2.DLTensor(dtype=dtype)
    wire = message.SerializeToString()
    for read in (lambda: reading.from_message(message), lambda: reading.read(wire, 0, len(wire))):
        with pytest.raises(dw.DecodeError, match=said):
            read()


@pytest.mark.parametrize("byte_order", [-1, 3, 2**31 - 1])
def test_a_byte_order_that_does_not_exist_is_refused(byte_order: int) -> None:
    with pytest.raises(dw.DecodeError, match="neither") as caught:
        header_of(byte_order=byte_order)
    assert caught.value.field == "byte_order"


def test_the_byte_order_is_needed_exactly_where_a_part_has_several_bytes() -> None:
    with pytest.raises(dw.DecodeError, match="not stated") as caught:
        header_of(byte_order=0)
    assert caught.value.field == "byte_order"
    assert header_of(dtype=dw.DType("uint8"), byte_order=2).byte_order == dw.ByteOrder.UNSPECIFIED


def test_flags_that_are_not_the_tensors_are_dropped() -> None:
    assert header_of(flags=3).flags == 0
    assert header_of(dtype=dw.DType("int4"), flags=7).flags == 4


@pytest.mark.parametrize("bit", range(3, 64))
def test_flags_that_may_change_the_meaning_are_refused(bit: int) -> None:
    with pytest.raises(dw.DecodeError, match="flags"):
        header_of(flags=3 | 1 << bit)


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


def test_padding_that_is_not_zero_is_refused() -> None:
    for padding in (b"\1", b"\0" * 16383 + b"\1"):
        wire = writing.header_fields(header_of()) + length_delimited(14, padding)
        with pytest.raises(dw.DecodeError, match="zero") as caught:
            reading.read(wire, 0, len(wire))
        assert caught.value.field == "padding"


def test_a_field_longer_than_a_header_may_be_is_refused_before_it_is_read() -> None:
    plain = writing.header_fields(header_of())
    for number in (5, 1000):
        wire = plain + length_delimited(number, bytes(65537))
        with pytest.raises(dw.LimitError) as caught:
            reading.read(wire, 0, len(wire))
        assert (caught.value.declared, caught.value.limit, caught.value.offset) == (65537, 65536, len(plain))
    # With its tag and length, a field of just the cap is over it too.
    wire = plain + length_delimited(1000, bytes(65536))
    with pytest.raises(dw.LimitError) as caught:
        reading.read(wire, 0, len(wire))
    assert caught.value.declared == len(wire)


def test_cut_fields_say_what_they_need_and_have() -> None:
    for wire, number, needed, available in (
        (b"\x2a\x05abc", 5, 5, 3),
        (b"\x7a\x05", 15, 5, 0),
        (b"\x49\0\0\0", 9, 8, 3),
        (b"\x72\xac\x02\0", 14, 300, 1),
    ):
        with pytest.raises(dw.TruncatedError, match=f"field {number} needs {needed} bytes, has {available}") as caught:
            reading.read(wire, 0, len(wire))
        assert (caught.value.needed, caught.value.available, caught.value.offset) == (needed, available, 0)


def test_padding_that_is_too_long_is_measured_not_read() -> None:
    for size in (16385, 100_000):
        wire = writing.header_fields(header_of()) + length_delimited(14, bytes(size))
        with pytest.raises(dw.LimitError) as caught:
            reading.read(wire, 0, len(wire))
        assert (caught.value.declared, caught.value.limit, caught.value.field) == (size, 16384, "padding")
        with pytest.raises(dw.LimitError) as caught:
            dw.from_proto(dlpack_pb2.DLTensor.FromString(wire))
        assert caught.value.declared == size


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


def test_a_remembered_part_is_not_taken_for_the_whole() -> None:
    """Two parts of a sub-message are merged, also if one of them alone was met before."""
    parts = [
        dlpack_pb2.DLTensor(dtype={"code": 2, "bits": 32, "lanes": 1}, device={"device_type": 1, "device_id": 5}),
        dlpack_pb2.DLTensor(dtype={"bits": 64}, device={"device_type": 3}),
    ]
    alone, more = (part.SerializeToString() for part in parts)
    rest = b"\x40\x01"
    for wire, name, device in (
        (alone + rest, "float32", (1, 5)),
        (alone + more + rest, "float64", (3, 5)),
        (alone + rest, "float32", (1, 5)),
    ):
        header = reading.read(wire, 0, len(wire)).header
        assert (header.dtype.name, header.device) == (name, device)


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
