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

from dlpack_wire.errors import ChecksumError, DecodeError, LimitError, TruncatedError
from dlpack_wire.message import reading, writing
from dlpack_wire.message.codec import encode
from dlpack_wire.message.names import names_block
from dlpack_wire.message.wire import varint
from dlpack_wire.service import messages as chunks
from dlpack_wire.service.arrival import Arrival, Stage, check_distinct_names
from dlpack_wire.service.messages import (
    QUICK_BYTES,
    Chunk,
    Record,
    chunk_parts,
    only_chunk,
    parse,
    parses_quickly,
    pieces,
    record_parts,
    sum_until,
)
from dlpack_wire.tensor.checksum import EMPTY, Running, xxh3
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
    st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.none() | st.integers(0, 2**64 - 1), st.binary(min_size=1)
)
def test_chunk_is_what_its_class_writes(index: int, offset: int, running: int | None, data: bytes) -> None:
    ours = join(chunk_parts(Chunk(index, offset, running, data)))
    chunk = pb.Chunk(tensor_index=index, offset=offset, running_xxh3_64=running, data=data)
    assert ours == pb.PutRequest(chunk=chunk).SerializeToString()
    _, _, (piece,) = parse(pb.PutRequest, ours)
    assert piece == Chunk(index, offset, running, data)


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
    serialized = join(chunk_parts(Chunk(0, 0, None, bytes(1000))))
    _, _, (piece,) = parse(pb.GetResponse, serialized)
    assert isinstance(piece.data, memoryview)
    assert piece.data.obj is serialized


def fields_of(message: Any) -> list[bytes]:
    """The serialized top-level fields of a message, one by one."""
    return [type(message)(**{d.name: v}).SerializeToString() for d, v in message.ListFields() if d.name != "metadata"]


def test_fields_in_any_order_and_unknown_ones_give_the_same() -> None:
    chunk = pb.Chunk(tensor_index=3, offset=70, running_xxh3_64=5, data=b"payload")
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
        assert piece == Chunk(3, 70, 5, b"payload")
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
    chunk = join(chunk_parts(Chunk(0, 0, 1, payload)))
    few, many = pb.StoreRequest(name="n"), pb.StoreRequest(name="n")
    for i in range(20_000):
        many.metadata[f"{i}"].int_value = i
    assert parses_quickly(few.SerializeToString() + store, 3)
    assert parses_quickly(b"\x18\x01" + chunk, 2)
    assert parses_quickly(chunk, 2)
    assert parses_quickly(b"", 2)
    assert parses_quickly(bytes(QUICK_BYTES), 2)
    assert not parses_quickly(many.SerializeToString() + store, 3)
    assert not parses_quickly(store + many.SerializeToString(), 3)
    assert not parses_quickly(store * 2, 3)
    assert not parses_quickly(bytes(QUICK_BYTES + 1), 2)
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


def test_two_chunks_in_one_message_are_one_too_many() -> None:
    piece = Chunk(0, 0, None, b"x")
    assert only_chunk([]) is None
    assert only_chunk([piece]) is piece
    with pytest.raises(DecodeError, match="2 chunks"):
        only_chunk([piece, piece])


# --- payloads in pieces -----------------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": np.arange(1000, dtype=np.int32),
    "sliced": np.arange(4000, dtype=np.int32)[::4],
    "negative": np.arange(1000, dtype=np.int32)[::-1],
    "gathered rows": np.arange(2000, dtype=np.int32).reshape(40, 50)[:, ::2],
}


@pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("begin", [0, 1, 999, 4000])
def test_pieces_from_anywhere_make_the_rest_of_the_payload(x: Any, size: int, begin: int) -> None:
    whole = np.ascontiguousarray(x).tobytes()
    with Source(x) as source:
        running = sum_until(source, begin)
        assert running.intdigest() == xxh3(whole[:begin])
        position = begin
        for piece in pieces(source, 2, size, running, begin):
            assert (piece.tensor_index, piece.offset) == (2, position)
            position += len(piece.data)
            assert bytes(piece.data) == whole[piece.offset : position]
            assert piece.running_sum == xxh3(whole[:position])
        assert position == len(whole)


# --- arriving ---------------------------------------------------------------------------------------------------------


def arrival_of(*records: Record, sums_required: bool = True) -> Arrival:
    arrival = Arrival(sums_required)
    arrival.begin(len(records), sum(record.header.payload_bytes for record in records))
    for record in records:
        arrival.record(record)
    return arrival


def chunk(index: int, payload: bytes, begin: int, end: int) -> Chunk:
    return Chunk(index, begin, xxh3(payload[:end]), payload[begin:end])


A, B = FLOATS.tobytes(), np.arange(5, dtype=np.uint8).tobytes()


def two_tensors() -> tuple[Arrival, list[Chunk]]:
    records = record_of(FLOATS, "a", checksum=xxh3(A)), record_of(np.arange(5, dtype=np.uint8), "b")
    return arrival_of(*records), [chunk(0, A, 0, 20), chunk(0, A, 20, 32), chunk(1, B, 0, 5)]


def test_everything_in_order() -> None:
    arrival, chunks = two_tensors()
    seen = []
    for piece in chunks:
        assert arrival.stage is Stage.CHUNKS
        arrival.chunk(piece)
        seen.append((arrival.tensor_index, arrival.offset, arrival.received_bytes))
    assert seen == [(0, 20, 20), (1, 0, 32), (2, 0, 37)]
    assert arrival.sums == [xxh3(A), xxh3(B)]
    arrival.end()
    assert arrival.stage is Stage.ENDED


def test_empty_tensors_need_no_chunk() -> None:
    empty = np.empty((0, 3), np.float32)
    arrival = arrival_of(record_of(empty, "x"), record_of(FLOATS, "y"), record_of(empty, "z", checksum=EMPTY))
    arrival.chunk(chunk(1, A, 0, 32))
    arrival.end()
    assert arrival.sums == [EMPTY, xxh3(A), EMPTY]
    alone = arrival_of(record_of(empty))
    alone.end()
    with pytest.raises(ChecksumError):
        arrival_of(record_of(empty, checksum=1))


def refused(arrival: Arrival, piece: Chunk, error: type[DecodeError] = DecodeError) -> DecodeError:
    """The error for a chunk; nothing may have changed."""
    before = (arrival.stage, arrival.tensor_index, arrival.offset, arrival.running_sum, arrival.received_bytes)
    with pytest.raises(error) as caught:
        arrival.chunk(piece)
    assert before == (arrival.stage, arrival.tensor_index, arrival.offset, arrival.running_sum, arrival.received_bytes)
    return caught.value


def test_chunks_out_of_order_are_refused_and_the_right_one_is_still_taken() -> None:
    arrival, (first, second, third) = two_tensors()
    for wrong in (second, third, first._replace(tensor_index=1), first._replace(offset=1)):
        assert refused(arrival, wrong).field == "chunk"
    arrival.chunk(first)
    assert refused(arrival, first).field == "chunk"
    assert refused(arrival, third).field == "chunk"
    arrival.chunk(second)
    arrival.chunk(third)
    assert refused(arrival, third).field == "chunk"
    arrival.end()


def test_chunks_of_no_or_too_many_bytes() -> None:
    arrival, _ = two_tensors()
    assert refused(arrival, Chunk(0, 0, EMPTY, b"")).field == "chunk"
    too_long = A + b"x"
    assert refused(arrival, chunk(0, too_long, 0, 33)).field == "chunk"


def test_sums_are_checked_as_they_come() -> None:
    arrival, (first, second, _) = two_tensors()
    refused(arrival, first._replace(running_sum=1), ChecksumError)
    assert refused(arrival, first._replace(running_sum=None)).field == "running_xxh3_64"
    arrival.chunk(first)
    refused(arrival, second._replace(data=b"x" * 12), ChecksumError)
    arrival.chunk(second)


def test_a_record_of_another_checksum_than_its_bytes() -> None:
    arrival = arrival_of(record_of(FLOATS, checksum=1))
    error = refused(arrival, chunk(0, A, 0, 32), ChecksumError)
    assert error.tensor == ""


def test_downloads_may_leave_sums_out_but_the_checksum_counts() -> None:
    arrival = arrival_of(record_of(FLOATS, checksum=xxh3(A)), sums_required=False)
    arrival.chunk(Chunk(0, 0, None, A[:8]))
    refused(arrival, Chunk(0, 8, None, bytes(24)), ChecksumError)
    arrival.chunk(Chunk(0, 8, None, A[8:]))
    arrival.end()


def test_contents_are_checked_with_the_bytes() -> None:
    arrival = arrival_of(record_of(np.ones(4, bool)))
    error = refused(arrival, chunk(0, b"\x00\x01\x02\x01", 0, 4))
    assert "bool" in str(error)


def test_the_end_before_all_bytes_came() -> None:
    arrival, (first, _, _) = two_tensors()
    arrival.chunk(first)
    with pytest.raises(TruncatedError, match="20 of 37") as caught:
        arrival.end()
    assert (caught.value.needed, caught.value.available, caught.value.field) == (37, 20, "finish")


def test_parts_where_they_do_not_belong() -> None:
    arrival = Arrival(True)
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
    arrival = Arrival(True)
    arrival.begin(1, announced)
    with pytest.raises(DecodeError, match="add up"):
        arrival.record(record_of(FLOATS))


def test_a_record_of_a_stream_has_no_payload() -> None:
    arrival = Arrival(True)
    arrival.begin(1)
    with pytest.raises(DecodeError, match="no payload"):
        arrival.record(record_of(FLOATS)._replace(payload=A))


def test_running_sums_are_those_of_one_pass() -> None:
    running = Running()
    running.update(A)
    assert running.intdigest() == xxh3(A)
