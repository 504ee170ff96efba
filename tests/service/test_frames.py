"""Frames in messages: framing them around payloads is what a standard parser makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hand_built_files import sums_of_blocks

import dlpack_wire as dw
from dlpack_wire.message.wire import length_delimited
from dlpack_wire.service.frames import (
    delivered,
    frame_arrival,
    frame_fields,
    frame_metadata,
    parse_frame,
    publish_messages,
)
from dlpack_wire.tensor.source import Source
from dlpack_wire.v1 import dlpack_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20


def messages(x: Any, size: int = MIB, metadata: dict[str, Any] | None = None, topic: str = "cam") -> list[bytes]:
    with Source(x) as source:
        fields = frame_fields(topic, 0, -5, frame_metadata(metadata), source.header)
        return list(publish_messages(fields, source, size))


def test_messages_are_those_of_the_schema() -> None:
    x = np.arange(300_000.0)
    found = messages(x, metadata={"k": "v", "b": 2})
    parsed = [pb.PublishRequest.FromString(message) for message in found]
    assert len(parsed) == 3
    frame = parsed[0].frame
    assert (frame.topic, frame.sequence, frame.time_ns, frame.dropped_count) == ("cam", 0, -5, 0)
    assert {k: v.WhichOneof("value") for k, v in frame.metadata.items()} == {"k": "string_value", "b": "int_value"}
    assert b"".join(message.chunk.data for message in parsed) == x.tobytes()
    expected = dw.to_proto(x)
    for field in ("data", "data_sum", "padding"):
        expected.ClearField(field)
    assert frame.header == expected
    sums = [s for message in parsed for s in message.chunk.block_sums]
    assert sums == sums_of_blocks(x.tobytes())
    assert not any(message.HasField("frame") for message in parsed[1:])


def test_what_a_standard_serializer_makes_is_read() -> None:
    header = dw.to_proto(np.zeros(3, np.int16))
    header.ClearField("data")
    frame = pb.Frame(topic="t", sequence=7, time_ns=-9, dropped_count=3, header=header)
    frame.metadata["x"].int_value = -1
    response = pb.SubscribeResponse(caught_up=True, frame=frame, chunk=pb.Chunk(offset=4, data=b"ab"))
    message, head, chunk = parse_frame(pb.SubscribeResponse, response.SerializeToString())
    assert message == pb.SubscribeResponse(caught_up=True)
    assert head is not None
    assert head[:5] == ("t", 7, -9, {"x": -1}, 3)
    assert head.header.shape == (3,)
    assert head.header.checksum == header.data_sum
    assert chunk is not None
    assert (chunk.offset, bytes(chunk.data)) == (4, b"ab")


def test_what_was_delivered_is_read() -> None:
    with Source(np.arange(4)) as source:
        fields = frame_fields("t", 3, 1, b"", source.header._replace(checksum=9))
    for dropped_count in (0, 1, 1 << 63):
        message, head, chunk = parse_frame(pb.SubscribeResponse, delivered(fields, dropped_count))
        assert message == pb.SubscribeResponse()
        assert head is not None
        assert chunk is None
        assert (head.sequence, head.dropped_count, head.header.checksum) == (3, dropped_count, 9)
        assert pb.SubscribeResponse.FromString(delivered(fields, dropped_count)).frame.dropped_count == dropped_count


def test_fields_may_come_in_any_order_and_pieces() -> None:
    header = dw.to_proto(np.zeros(3, np.int16))
    header.ClearField("data")
    shape, rest = dlpack_pb2.DLTensor(shape=header.shape), header
    rest.ClearField("shape")
    serialized = length_delimited(
        1,
        b"".join(
            [
                length_delimited(6, rest.SerializeToString()),
                length_delimited(1, b"first"),
                length_delimited(99, b"from the future"),
                length_delimited(6, shape.SerializeToString()),
                length_delimited(1, b"last"),
            ]
        ),
    )
    _, head, _ = parse_frame(pb.PublishRequest, serialized)
    assert head is not None
    assert (head.topic, head.header.shape) == ("last", (3,))
    assert pb.PublishRequest.FromString(serialized).frame.topic == "last"


HEADER = length_delimited(
    6, dlpack_pb2.DLTensor(dtype=dlpack_pb2.DLDataType(code=1, bits=8, lanes=1)).SerializeToString()
)


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (length_delimited(1, b"t"), "header: missing"),
        (length_delimited(1, b"t") + HEADER + length_delimited(6, b"\x7a\x01x"), "no payload"),
        (length_delimited(1, b"t\0") + HEADER, "NUL"),
        (length_delimited(1, b"t" * 4097) + HEADER, "4096"),
        (length_delimited(1, b"\xff") + HEADER, "not a Frame"),
        (HEADER + length_delimited(4, length_delimited(1, b"k" * (MIB + 5000))), "topic and metadata take"),
        (length_delimited(6, b"\x0b\x0c"), "group"),
        (b"\x08", "varint"),
    ],
)
def test_frames_that_are_none(frame: bytes, match: str) -> None:
    with pytest.raises(dw.DecodeError, match=match):
        parse_frame(pb.PublishRequest, length_delimited(1, frame))


def test_two_frames_or_two_chunks_in_one_message_are_refused() -> None:
    frame = length_delimited(1, length_delimited(1, b"t") + HEADER)
    with pytest.raises(dw.DecodeError, match="several frames"):
        parse_frame(pb.PublishRequest, frame + frame)
    with pytest.raises(dw.DecodeError, match="2 chunks"):
        parse_frame(pb.PublishRequest, length_delimited(15, b"") * 2)


def test_any_cut_is_a_value_or_a_decode_error() -> None:
    (message,) = messages(np.arange(5), metadata={"k": 1.5})
    for end in range(len(message)):
        try:
            parse_frame(pb.PublishRequest, message[:end])
        except dw.DecodeError:
            continue


def test_an_arrival_is_whole_only_with_all_bytes() -> None:
    found = messages(np.arange(300_000.0))
    _, head, chunk = parse_frame(pb.PublishRequest, found[0])
    assert head is not None
    arrival = frame_arrival(head)
    assert chunk is not None
    arrival.chunk(chunk)
    with pytest.raises(dw.TruncatedError):
        arrival.end()


def test_metadata_has_a_limit() -> None:
    with pytest.raises(dw.EncodeError, match="at most"):
        frame_metadata({"k": bytes(MIB)})
    large = messages(np.zeros(MIB * 4, np.uint8), size=4 * MIB - (64 << 10), metadata={"k": bytes(MIB - 100)})
    assert all(len(message) <= 4 * MIB for message in large)
    assert len(large) == 2
