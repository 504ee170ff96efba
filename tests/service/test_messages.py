"""Framing around payloads reads what any protobuf parser reads, and an object arrives in one order only."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays

from dlpack_wire.errors import ChecksumError, DecodeError, LimitError, TruncatedError, UnsupportedVersionError
from dlpack_wire.message import reading, writing
from dlpack_wire.message.codec import encode
from dlpack_wire.message.names import names_block
from dlpack_wire.message.wire import varint
from dlpack_wire.service import messages as chunks
from dlpack_wire.service.arrival import Arrival, IncompleteError, OutOfOrderError, Stage, check_distinct_names
from dlpack_wire.service.messages import (
    MAX_CHUNK_BYTES,
    MAX_FIELDS,
    QUICK_PARSE_BYTES,
    Chunk,
    Record,
    chunk_parts,
    chunks_of,
    only_chunk,
    parse,
    parses_quickly,
    record_parts,
    walk_fields,
)
from dlpack_wire.tensor.checksum import BLOCK_BYTES, EMPTY, block_sums, payload_sum, xxh3
from dlpack_wire.tensor.source import Source
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

FLOATS = np.arange(8, dtype=np.float32)


def record_of(x: Any, *names: str, checksum: int | None = None) -> Record:
    with Source(x) as source:
        return Record(names or ("",), {}, source.header._replace(checksum=checksum), b"")


def join(parts: list[Any]) -> bytes:
    return b"".join(parts)


# --- framing ----------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3),
    st.binary(min_size=1),
)
def test_chunk_is_what_its_class_writes(index: int, offset: int, sums: list[int], data: bytes) -> None:
    packed = b"".join(s.to_bytes(8, "little") for s in sums)
    ours = join(chunk_parts(Chunk(index, offset, packed, data)))
    chunk = pb.Chunk(tensor_index=index, offset=offset, block_sums=sums, data=data)
    assert ours == pb.PutRequest(chunk=chunk).SerializeToString()
    _, _, (piece,) = parse(pb.PutRequest, ours)
    assert piece == Chunk(index, offset, packed, data)


def test_sums_may_come_one_by_one_as_every_parser_takes_them() -> None:
    content = b"\x19" + (5).to_bytes(8, "little") + b"\x19" + (6).to_bytes(8, "little") + b"\x7a\x01x"
    serialized = b"\x7a" + varint(len(content)) + content
    _, _, (piece,) = parse(pb.PutRequest, serialized)
    assert list(pb.PutRequest.FromString(serialized).chunk.block_sums) == [5, 6]
    assert piece.sums == (5).to_bytes(8, "little") + (6).to_bytes(8, "little")


@given(arrays(), st.booleans())
def test_record_is_read_back_by_us_and_by_its_class(x: Any, with_payload: bool) -> None:
    with Source(x) as source:
        payload = b"".join(map(bytes, source.pieces(1 << 20))) if with_payload else b""
        header = source.header._replace(checksum=source.checksum())
    block = names_block("w", ("v",), {"k": 1.5})
    serialized = join(record_parts(15, block, header, payload))
    _, (record,), _ = parse(pb.StoreRequest, serialized)
    assert (record.names, record.metadata, record.header, bytes(record.payload)) == (
        ("w", "v"),
        {"k": 1.5},
        header,
        payload,
    )
    assert record.block == block
    (message,) = pb.StoreRequest.FromString(serialized).records
    assert (message.name, list(message.aliases), message.tensor.data) == ("w", ["v"], payload)
    assert reading.from_message(message.tensor) == header._replace(checksum=None)


def test_payload_is_a_view_of_the_message() -> None:
    serialized = join(chunk_parts(Chunk(0, 0, bytes(8), bytes(1000))))
    _, _, (piece,) = parse(pb.GetResponse, serialized)
    assert isinstance(piece.data, memoryview)
    assert piece.data.obj is serialized


def fields_of(message: Any) -> list[bytes]:
    """The serialized top-level fields of a message, one by one."""
    return [type(message)(**{d.name: v}).SerializeToString() for d, v in message.ListFields() if d.name != "metadata"]


def test_records_without_payload_do_not_keep_their_message() -> None:
    record = record_of(FLOATS, "a")
    head = join(record_parts(2, record.block, record.header))
    data = bytes(MAX_CHUNK_BYTES)
    chunk = Chunk(0, 0, block_sums(data), data)
    for _ in range(2):  # the second time it is remembered
        message = bytearray(head + join(chunk_parts(chunk)))
        _, records, pieces = parse(pb.PutRequest, message)
        assert len(records) == len(pieces) == 1
        del pieces
        message.clear()  # which a view of it would not allow


def test_fields_in_any_order_and_unknown_ones_give_the_same() -> None:
    chunk = pb.Chunk(tensor_index=3, offset=70, block_sums=[5], data=b"payload")
    chunk_fields = [pb.Chunk(**{d.name: v}).SerializeToString() for d, v in chunk.ListFields()]
    tensor = dlpack_pb2.DLTensor.FromString(encode(FLOATS))
    tensor.ClearField("data")
    record = tensor_file_pb2.TensorRecord(name="w", tensor=tensor)
    fields = [
        pb.PutRequest(start=pb.PutStart(name="n", record_count=2)).SerializeToString(),
        pb.PutRequest(records=[record]).SerializeToString(),
        pb.PutRequest(finish=True).SerializeToString(),
        b"\xa0\x06\x07",  # field 100, a varint
        b"\xaa\x06\x03abc",  # field 101, bytes
    ]
    order = random.Random(0)
    for _ in range(50):
        order.shuffle(chunk_fields)
        content = b"".join([*chunk_fields, b"\xa0\x06\x07"])
        shuffled = [*fields, b"\x7a" + varint(len(content)) + content]
        order.shuffle(shuffled)
        serialized = b"".join(shuffled)
        message, (found,), (piece,) = parse(pb.PutRequest, serialized)
        assert (message.start.name, message.start.record_count, message.finish) == ("n", 2, True)
        assert found.names == ("w",)
        assert piece == Chunk(3, 70, (5).to_bytes(8, "little"), b"payload")
        standard = pb.PutRequest.FromString(serialized)
        assert (standard.chunk.tensor_index, standard.chunk.data) == (piece.tensor_index, bytes(piece.data))


def test_tensor_given_in_two_parts_is_merged_as_parsers_do() -> None:
    message = encode(FLOATS, checksum=False)
    located = reading.read(message, 0, len(message))
    header_bytes = writing.header_fields(located.header)
    halves = [header_bytes, message[len(header_bytes) :]]
    content = b"\x0a\x01w" + b"".join(b"\x7a" + varint(len(h)) + h for h in halves)
    serialized = b"\x7a" + varint(len(content)) + content
    _, (record,), _ = parse(pb.StoreRequest, serialized)
    (standard,) = pb.StoreRequest.FromString(serialized).records
    assert bytes(record.payload) == standard.tensor.data == FLOATS.tobytes()
    assert record.header == located.header


@pytest.mark.parametrize(
    ("serialized", "error"),
    [
        (b"\x7a", DecodeError),
        (b"\x7a\x05\x7a", TruncatedError),
        (b"\x7a\x02\x7a\x05", TruncatedError),
        (b"\x12\x00", DecodeError),  # a record without a tensor
        (b"\x12\x02\x7a\x00", DecodeError),  # a tensor without a dtype
        (b"\x12\x04\x0a\x02\xff\xfe", DecodeError),  # a name that is not UTF-8
        (b"\x0a\x03\x0a\x01\xff", DecodeError),  # the same in the start
        (b"\x7b\x7c", DecodeError),  # a group
    ],
)
def test_what_is_no_message(serialized: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse(pb.PutRequest, serialized)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_decode_error(noise: bytes) -> None:
    for kind in (pb.PutRequest, pb.StoreRequest, pb.GetResponse, pb.FetchResponse, pb.StatResponse, pb.ListRequest):
        with suppress(DecodeError):
            parse(kind, noise)


def test_what_parses_quickly() -> None:
    payload = bytes(1 << 20)
    record = record_of(np.zeros(len(payload), np.uint8), "name")
    store = join(record_parts(15, record.block, record.header, payload))
    chunk = join(chunk_parts(Chunk(0, 0, bytes(8), payload)))
    few, many = pb.StoreRequest(name="n"), pb.StoreRequest(name="n")
    for i in range(20_000):
        many.metadata[f"{i}"].int_value = i
    assert parses_quickly(few.SerializeToString() + store, 3)
    assert parses_quickly(b"\x18\x01" + chunk, 2)
    assert parses_quickly(chunk, 2)
    assert parses_quickly(b"", 2)
    assert parses_quickly(bytes(QUICK_PARSE_BYTES), 2)
    assert not parses_quickly(many.SerializeToString() + store, 3)
    assert not parses_quickly(store + many.SerializeToString(), 3)
    assert not parses_quickly(store * 2, 3)
    assert not parses_quickly(bytes(QUICK_PARSE_BYTES + 1), 2)
    inside = many.SerializeToString()
    assert not parses_quickly(b"\x7a" + varint(len(inside)) + inside, 2)
    assert not parses_quickly(b"\x7a" + varint(len(chunk) + len(inside)) + inside + chunk, 2)
    assert not parses_quickly(store[:-1], 3)


def verdict(message: bytes) -> Any:
    """What a message says, or the error."""
    try:
        request, records, _ = parse(pb.StoreRequest, message)
    except DecodeError as error:
        return type(error), str(error)
    return request, [record._replace(payload=bytes(record.payload)) for record in records]


@pytest.mark.parametrize("with_payload", [True, False])
@pytest.mark.parametrize("names", [(), ("a name of its own", "alias")])
def test_a_record_that_was_read_before_changes_no_verdict(with_payload: bool, names: tuple[str, ...]) -> None:
    record = record_of(FLOATS, *names, checksum=xxh3(FLOATS))
    message = join(record_parts(15, record.block, record.header, FLOATS.tobytes() if with_payload else b""))
    chance = random.Random(0)
    for _ in range(3000):
        mutant = bytearray(message)
        for _ in range(chance.choice((1, 1, 2))):
            mutant[chance.randrange(len(mutant))] = chance.choice((0, 1, 9, 0x7A, 0x49, 0xFF, chance.randrange(256)))
        chunks._KNOWN.clear()
        fresh = verdict(bytes(mutant))
        chunks._KNOWN.clear()
        assert verdict(message)[1] == [record._replace(payload=FLOATS.tobytes() if with_payload else b"")]
        assert chunks._KNOWN
        assert verdict(bytes(mutant)) == fresh
        assert verdict(bytes(mutant)) == fresh


def test_what_is_remembered_of_records_is_bounded() -> None:
    for i in range(3 * chunks._KNOWN.limit):
        record = record_of(FLOATS, f"{i} with a long name", checksum=i)
        parse(pb.StoreRequest, join(record_parts(15, record.block, record.header, FLOATS.tobytes())))
        assert len(chunks._KNOWN) <= chunks._KNOWN.limit
    chunks._KNOWN.clear()
    record = record_of(FLOATS, "n" * 1000, checksum=1)
    parse(pb.StoreRequest, join(record_parts(15, record.block, record.header, FLOATS.tobytes())))
    assert not chunks._KNOWN


def test_records_are_counted_before_they_are_parsed() -> None:
    many = join(record_parts(2, b"", record_of(FLOATS).header)) * 5
    assert len(parse(pb.PutRequest, many, 5)[1]) == 5
    with pytest.raises(LimitError, match="more than 4 records"):
        parse(pb.PutRequest, many, 4)


def test_names_must_tell_tensors_apart() -> None:
    a, b = record_of(FLOATS, "a"), record_of(FLOATS, "b", "a")
    check_distinct_names([a])
    check_distinct_names([record_of(FLOATS)])
    with pytest.raises(DecodeError, match="duplicate name 'a'"):
        check_distinct_names([a, b])
    with pytest.raises(DecodeError, match="empty name"):
        check_distinct_names([a, record_of(FLOATS)])


@pytest.mark.parametrize("number", range(4, 14))
def test_fields_that_a_later_record_may_have(number: int) -> None:
    record = record_of(FLOATS, "a")
    (serialized, _) = record_parts(2, record.block + bytes([number << 3, 1]), record.header)
    if number < 9:
        with pytest.raises(UnsupportedVersionError):
            parse(pb.PutRequest, serialized)
    else:
        _, (found,), _ = parse(pb.PutRequest, serialized)
        assert found.names == ("a",)


def test_two_chunks_in_one_message_are_one_too_many() -> None:
    piece = Chunk(0, 0, bytes(8), b"x")
    assert only_chunk([]) is None
    assert only_chunk([piece]) is piece
    with pytest.raises(DecodeError, match="2 chunks"):
        only_chunk([piece, piece])


# --- payloads in pieces -----------------------------------------------------------------------------------------------

COUNT = 3 * BLOCK_BYTES // 4 + 5

LAYOUTS = {
    "contiguous": np.arange(COUNT, dtype=np.int32),
    "sliced": np.arange(2 * COUNT, dtype=np.int32)[::2],
    "negative": np.arange(COUNT, dtype=np.int32)[::-1],
    "gathered rows": np.arange(1000 * 2000, dtype=np.int32).reshape(1000, 2000)[:, ::2],
    "small": np.arange(1000, dtype=np.int32)[::-1],
}


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", [BLOCK_BYTES, 2 * BLOCK_BYTES + 1, 1 << 24])
@pytest.mark.parametrize("begin", [0, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_chunks_from_any_block_on_make_the_rest_of_the_payload(x: Any, size: int, begin: int) -> None:
    whole = np.ascontiguousarray(x).tobytes()
    position = begin
    with Source(x) as source:
        for piece in chunks_of(source, 2, size, begin):
            assert (piece.tensor_index, piece.offset) == (2, position)
            position += len(piece.data)
            assert bytes(piece.data) == whole[piece.offset : position]
            assert piece.sums == block_sums(whole[piece.offset : position])
            assert len(piece.data) <= size
            assert len(piece.data) % BLOCK_BYTES == 0 or position == len(whole)
    assert position == max(len(whole), begin)


# --- arriving ---------------------------------------------------------------------------------------------------------


def arrival_of(*records: Record) -> Arrival:
    arrival = Arrival()
    arrival.begin(len(records), sum(record.header.payload_bytes for record in records))
    for record in records:
        arrival.record(record)
    return arrival


def chunk(index: int, payload: bytes, begin: int, end: int) -> Chunk:
    return Chunk(index, begin, block_sums(payload[begin:end]), payload[begin:end])


LARGE = np.arange(BLOCK_BYTES // 4 + 3, dtype=np.float32)
L, A, B = LARGE.tobytes(), FLOATS.tobytes(), np.arange(5, dtype=np.uint8).tobytes()
SIZE = len(L)


def two_tensors() -> tuple[Arrival, list[Chunk]]:
    records = record_of(LARGE, "a", checksum=payload_sum(L)), record_of(np.arange(5, dtype=np.uint8), "b")
    return arrival_of(*records), [chunk(0, L, 0, BLOCK_BYTES), chunk(0, L, BLOCK_BYTES, SIZE), chunk(1, B, 0, 5)]


def test_everything_in_order() -> None:
    arrival, chunks = two_tensors()
    seen = []
    held = []
    for piece in chunks:
        assert arrival.stage is Stage.CHUNKS
        arrival.chunk(piece)
        seen.append((arrival.tensor_index, arrival.offset, arrival.received_bytes))
        held.append(arrival.held_sum)
    assert seen == [(0, BLOCK_BYTES, BLOCK_BYTES), (1, 0, SIZE), (2, 0, SIZE + 5)]
    assert held == [xxh3(xxh3(L[:BLOCK_BYTES]).to_bytes(8, "little")), EMPTY, EMPTY]
    assert arrival.sums == [block_sums(L), block_sums(B)]
    arrival.end()
    assert arrival.stage is Stage.ENDED


def test_empty_tensors_need_no_chunk() -> None:
    empty = np.empty((0, 3), np.float32)
    arrival = arrival_of(record_of(empty, "x"), record_of(FLOATS, "y"), record_of(empty, "z", checksum=EMPTY))
    arrival.chunk(chunk(1, A, 0, 32))
    arrival.end()
    assert arrival.sums == [b"", block_sums(A), b""]
    alone = arrival_of(record_of(empty))
    alone.end()
    with pytest.raises(ChecksumError):
        arrival_of(record_of(empty, checksum=1))


def refused(arrival: Arrival, piece: Chunk, error: type[DecodeError] = DecodeError) -> DecodeError:
    """The error for a chunk; nothing may have changed."""
    before = (arrival.stage, arrival.tensor_index, arrival.offset, arrival.held_sum, arrival.received_bytes)
    with pytest.raises(error) as caught:
        arrival.chunk(piece)
    assert before == (arrival.stage, arrival.tensor_index, arrival.offset, arrival.held_sum, arrival.received_bytes)
    return caught.value


def test_chunks_out_of_order_are_refused_and_the_right_one_is_still_taken() -> None:
    arrival, (first, second, third) = two_tensors()
    for wrong in (second, third, first._replace(tensor_index=1), first._replace(offset=1)):
        refused(arrival, wrong, OutOfOrderError)
    arrival.chunk(first)
    refused(arrival, first, OutOfOrderError)
    refused(arrival, third, OutOfOrderError)
    arrival.chunk(second)
    arrival.chunk(third)
    refused(arrival, third, OutOfOrderError)
    arrival.end()


def test_chunks_of_no_or_too_many_bytes() -> None:
    arrival, _ = two_tensors()
    refused(arrival, Chunk(0, 0, b"", b""), OutOfOrderError)
    refused(arrival, chunk(0, L + b"x", 0, SIZE + 1), OutOfOrderError)


@pytest.mark.parametrize("size", [1, BLOCK_BYTES - 1, BLOCK_BYTES + 1, SIZE - 1])
def test_chunks_that_are_not_whole_blocks(size: int) -> None:
    arrival, _ = two_tensors()
    assert "whole blocks" in str(refused(arrival, chunk(0, L, 0, size)))


def test_every_block_has_one_sum_which_is_checked_as_it_comes() -> None:
    arrival, (first, second, _) = two_tensors()
    refused(arrival, first._replace(sums=bytes(8)), ChecksumError)
    for sums in (b"", first.sums * 2, first.sums[:-1]):
        assert refused(arrival, first._replace(sums=sums)).field == "block_sums"
    arrival.chunk(first)
    refused(arrival, second._replace(data=b"x" * 12), ChecksumError)
    arrival.chunk(second)


def test_a_record_of_another_checksum_than_its_bytes() -> None:
    arrival = arrival_of(record_of(FLOATS, checksum=1))
    error = refused(arrival, chunk(0, A, 0, 32), ChecksumError)
    assert error.tensor == ""


def test_contents_are_checked_with_the_bytes() -> None:
    arrival = arrival_of(record_of(np.ones(4, bool)))
    error = refused(arrival, chunk(0, b"\x00\x01\x02\x01", 0, 4))
    assert "bool" in str(error)


def test_the_end_before_all_bytes_came() -> None:
    arrival, (first, _, _) = two_tensors()
    arrival.chunk(first)
    with pytest.raises(IncompleteError, match=f"{BLOCK_BYTES} of {SIZE + 5}") as caught:
        arrival.end()
    assert (caught.value.needed, caught.value.available) == (SIZE + 5, BLOCK_BYTES)


def test_parts_where_they_do_not_belong() -> None:
    arrival = Arrival()
    for part in (lambda: arrival.record(record_of(FLOATS)), lambda: arrival.chunk(chunk(0, A, 0, 1)), arrival.end):
        with pytest.raises(DecodeError):
            part()
    with pytest.raises(DecodeError, match="at least one tensor"):
        arrival.begin(0)
    arrival.begin(1, 32)
    for part in (lambda: arrival.begin(1, 32), lambda: arrival.chunk(chunk(0, A, 0, 1)), arrival.end):
        with pytest.raises(DecodeError):
            part()
    arrival.record(record_of(FLOATS))
    for part in (lambda: arrival.begin(1, 32), lambda: arrival.record(record_of(FLOATS)), arrival.end):
        with pytest.raises(DecodeError):
            part()


@pytest.mark.parametrize("announced", [0, 31, 33])
def test_sizes_must_add_up_to_what_was_announced(announced: int) -> None:
    arrival = Arrival()
    arrival.begin(1, announced)
    with pytest.raises(DecodeError, match="add up"):
        arrival.record(record_of(FLOATS))


def test_a_record_of_a_stream_has_no_payload() -> None:
    arrival = Arrival()
    arrival.begin(1)
    with pytest.raises(DecodeError, match="no payload"):
        arrival.record(record_of(FLOATS)._replace(payload=A))


def test_a_chunk_has_at_most_the_stated_size() -> None:
    largest = Chunk(0, 0, b"", bytes(MAX_CHUNK_BYTES))
    assert only_chunk([largest]) is largest
    with pytest.raises(LimitError, match=f"at most {MAX_CHUNK_BYTES}"):
        only_chunk([largest._replace(data=bytes(MAX_CHUNK_BYTES + 1))])


def test_as_many_fields_as_are_allowed() -> None:
    assert len(list(walk_fields(b"\x08\x00" * MAX_FIELDS, 0, 2 * MAX_FIELDS))) == MAX_FIELDS
    with pytest.raises(LimitError):
        list(walk_fields(b"\x08\x00" * (MAX_FIELDS + 1), 0, 2 * MAX_FIELDS + 2))
