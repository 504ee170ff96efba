"""Protobuf's wire format, against protobuf's own implementation."""

from __future__ import annotations

import pytest
from google.protobuf.internal import decoder, encoder
from hypothesis import given
from hypothesis import strategies as st

from dlpack_wire.errors import DecodeError, TruncatedError
from dlpack_wire.message.wire import (
    FIXED32,
    FIXED64,
    LEN,
    MAX_MESSAGE_BYTES,
    VARINT,
    length_delimited,
    read_field,
    read_minimal_varint,
    read_varint,
    varint,
    varint_size,
)

EDGES = [
    0,
    1,
    0x7F,
    0x80,
    0x3FFF,
    0x4000,
    2**21 - 1,
    2**21,
    2**28,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


@given(st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1)))
def test_varints_are_protobufs(value: int) -> None:
    written = varint(value)
    assert written == encoder._VarintBytes(value)
    assert varint_size(value) == len(written)
    for buffer in (written, bytearray(written), memoryview(written)):
        assert read_varint(buffer, 0, len(written)) == (value, len(written))
        assert read_minimal_varint(buffer, 0, len(written)) == (value, len(written))
    assert decoder._DecodeVarint(written, 0) == (value, len(written))


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_varints_are_read_where_they_stand(value: int, before: bytes, after: bytes) -> None:
    written = varint(value)
    end = len(before) + len(written)
    assert read_varint(before + written + after, len(before), end) == (value, end)


@pytest.mark.parametrize("value", EDGES)
def test_a_cut_varint_is_truncated(value: int) -> None:
    written = varint(value)
    for size in range(len(written)):
        for content in (written[:size], written):
            with pytest.raises(TruncatedError) as caught:
                read_varint(content, 0, size)
            assert (caught.value.needed, caught.value.available) == (size + 1, size)


@pytest.mark.parametrize("written", ["8000", "808000", "ff00", "818080808000", "80" * 9 + "00"])
def test_a_varint_longer_than_it_needs_to_be_is_read_only_as_a_value(written: str) -> None:
    content = bytes.fromhex(written)
    assert read_varint(content, 0, len(content))[1] == len(content)
    with pytest.raises(DecodeError, match="longer"):
        read_minimal_varint(content, 0, len(content))


def test_a_single_zero_byte_is_minimal() -> None:
    assert read_minimal_varint(b"\0", 0, 1) == (0, 1)


def test_a_varint_of_11_bytes_is_refused() -> None:
    for last in (b"\0", b"\1"):
        with pytest.raises(DecodeError, match="10 bytes"):
            read_varint(b"\x80" * 10 + last, 0, 11)


@pytest.mark.parametrize("number", [1, 15, 16, 2**29 - 1])
@pytest.mark.parametrize("size", [0, 127, 128, 2**14 - 1, 2**14])
def test_length_delimited_fields_are_protobufs(number: int, size: int) -> None:
    content = bytes(size)
    tag = encoder.TagBytes(number, LEN)
    assert length_delimited(number, content) == tag + encoder._VarintBytes(size) + content


@given(st.integers(1, 2**29 - 1), st.binary(max_size=300))
def test_length_delimited_fields_read_back(number: int, content: bytes) -> None:
    field = b"<<" + length_delimited(number, content) + b">>"
    found = read_field(field, 2, len(field))
    assert (found.number, found.wire_type, found.start) == (number, LEN, 2)
    assert field[found.content : found.end] == content
    assert found.end == len(field) - 2


@pytest.mark.parametrize(("wire_type", "size"), [(VARINT, 1), (FIXED64, 8), (FIXED32, 4)])
def test_fields_of_fixed_size_read_back(wire_type: int, size: int) -> None:
    field = varint(5 << 3 | wire_type) + bytes(size)
    assert tuple(read_field(field, 0, len(field))) == (5, wire_type, 0, 1, 1 + size)


@pytest.mark.parametrize(
    "field",
    ["08", "0880", "09" + "00" * 7, "0d000000", "0a", "0a0561", "0a80", "80", "0affffffffffffffffff01"],
)
def test_a_cut_field_is_truncated(field: str) -> None:
    content = bytes.fromhex(field)
    with pytest.raises(TruncatedError):
        read_field(content, 0, len(content))


@pytest.mark.parametrize(
    "field",
    [
        *("0b", "0c", "0b0c", "0e00", "0f00"),  # groups and wire types without a meaning
        *("0001", "0200", "07"),  # number 0
        "808080801000",  # number 2^29
        "88000100",  # tag longer than it needs to be
        "0a8000",  # length longer than it needs to be
        "ff" * 10 + "01",
        "8a" + "80" * 8 + "02" + "00",  # tag of field 1, and a bit above the 64 that parsers keep
        "0a" + "81" + "80" * 8 + "02" + "00",  # length 1, and such a bit
    ],
)
def test_what_parsers_read_differently_is_refused(field: str) -> None:
    content = bytes.fromhex(field)
    with pytest.raises(DecodeError) as caught:
        read_field(content, 0, len(content))
    assert not isinstance(caught.value, TruncatedError)


def test_a_cut_field_says_what_it_needs_and_has() -> None:
    with pytest.raises(TruncatedError, match=r"^field 2 needs 9 bytes, has 3") as caught:
        read_field(b"\x08\x01\x12\x09abc", 2, 7)
    assert (caught.value.needed, caught.value.available, caught.value.offset) == (9, 3, 2)


@pytest.mark.parametrize(("field", "said"), [("0c00", "field 1 has wire type 4"), ("02", "field number 0")])
def test_a_refused_field_is_named(field: str, said: str) -> None:
    with pytest.raises(DecodeError, match=said) as caught:
        read_field(b"\0\0" + bytes.fromhex(field), 2, 2 + len(field) // 2)
    assert caught.value.offset == 2


def test_the_largest_message_is_protobufs() -> None:
    assert MAX_MESSAGE_BYTES == 2147483647


@given(st.binary(max_size=30))
def test_random_bytes_give_a_field_or_a_decode_error(content: bytes) -> None:
    try:
        field = read_field(content, 0, len(content))
    except DecodeError:
        return
    assert 0 < field.content <= field.end <= len(content)
    assert 0 < field.number < 2**29
