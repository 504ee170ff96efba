"""Frames in the messages that carry them: one tensor at one moment on a topic, and the chunks of its payload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from ..errors import DecodeError, LimitError
from ..message import reading, writing
from ..message.names import MAX_NAME_BYTES, Metadata, Value, decode_name, decode_value, encode_map
from ..message.wire import LEN, length_delimited, varint
from ..tensor.header import Header
from ..tensor.memory import Buffer
from ..tensor.source import Source
from ..v1 import tensor_service_pb2 as pb
from .arrival import Arrival
from .messages import (
    MAX_METADATA_BYTES,
    Chunk,
    Record,
    Rest,
    chunk_messages,
    chunks_of,
    only_chunk,
    read_chunk,
    walk_fields,
)

_CHUNK = 15
_FRAME = {
    pb.PublishRequest: 1,
    pb.SubscribeResponse: 3,
}
_DROPPED_TAG = b"\x28"
_HEADER = 6
_M = TypeVar("_M", bound=Message)


class FrameHead(NamedTuple):
    """A frame without its payload.

    Attributes:
        topic: The topic it belongs to.
        sequence: Its number on the topic, from 1; 0 before a server gave it one.
        time_ns: When it was made, nanoseconds since 1970-01-01 UTC; 0: not stated.
        metadata: User metadata.
        dropped_count: Frames of the topic that were dropped for this receiver right before it.
        header: Header of its tensor, with the payload's checksum if that was stated.
    """

    topic: str
    sequence: int
    time_ns: int
    metadata: dict[str, Value]
    dropped_count: int
    header: Header


# --- out --------------------------------------------------------------------------------------------------------------


def frame_fields(topic: str, sequence: int, time_ns: int, metadata: bytes, header: Header) -> bytes:
    """Return the fields of a `Frame`, without its `dropped_count`.

    Args:
        topic: As in `FrameHead`.
        sequence: As in `FrameHead`.
        time_ns: As in `FrameHead`.
        metadata: User metadata, serialized by `frame_metadata`.
        header: As in `FrameHead`.
    """
    frame = pb.Frame(topic=topic, sequence=sequence, time_ns=time_ns).SerializeToString()
    return frame + metadata + length_delimited(_HEADER, writing.summed_fields(header))


def frame_metadata(metadata: Metadata | None) -> bytes:
    """Serialize user metadata as the field of a `Frame`.

    Raises:
        EncodeError: A key or value cannot go into metadata, or all of it is too large.
    """
    return encode_map(4, metadata, MAX_METADATA_BYTES)


def publish_messages(fields: bytes, source: Source, size: int) -> Iterator[bytes]:
    """Yield a frame as messages of Publish, with chunks of at most `size` bytes."""
    return chunk_messages([length_delimited(1, fields)], chunks_of(source, 0, size))


def delivered(fields: bytes, dropped_count: int) -> bytes:
    """Return a frame as the field of a message of Subscribe."""
    if dropped_count:
        fields += _DROPPED_TAG + varint(dropped_count)
    return length_delimited(3, fields)


# --- in ---------------------------------------------------------------------------------------------------------------


def parse_frame(kind: type[_M], serialized: Buffer) -> tuple[_M, FrameHead | None, Chunk | None]:
    """Parse a message of Publish or Subscribe: its own fields by its class, and the frame and the chunk around it.

    Raises:
        DecodeError: The message or the frame in it is malformed.
    """
    number = _FRAME[kind]
    heads: list[FrameHead] = []
    chunks: list[Chunk] = []
    rest = Rest(serialized, 0)
    end = len(serialized)
    for found, wire_type, begin, content, after in walk_fields(serialized, 0, end):
        if wire_type != LEN or found not in (number, _CHUNK):
            continue
        if found == _CHUNK:
            chunks.append(read_chunk(serialized, content, after))
        elif heads:
            raise DecodeError("several frames in one message", field="frame")
        else:
            heads.append(_read_head(serialized, content, after))
        rest.leave_out(begin, after)
    return rest.parse(kind, end), heads[0] if heads else None, only_chunk(chunks)


def _read_head(buffer: Buffer, pos: int, end: int) -> FrameHead:
    tensors: list[tuple[int, int]] = []
    size = end - pos
    rest = Rest(buffer, pos)
    for number, wire_type, begin, content, after in walk_fields(buffer, pos, end):
        if wire_type == LEN and number == _HEADER:
            tensors.append((content, after))
            size -= after - begin
            rest.leave_out(begin, after)
    limit = MAX_METADATA_BYTES + MAX_NAME_BYTES + 64
    if size > limit:
        raise LimitError(f"a frame's topic and metadata take {size} bytes", declared=size, limit=limit, field="frame")
    message = rest.parse(pb.Frame, end)
    topic = message.topic
    decode_name(topic.encode())
    try:
        metadata = {key: decode_value(value) for key, value in message.metadata.items()}
        if not tensors:
            raise DecodeError("missing", field="header")
        # Parsers merge what comes several times, which is what reading them as one does.
        joined = b"".join([buffer[b:e] for b, e in tensors])
        located = reading.read(joined, 0, len(joined))
        if located.data_end > located.data_begin:
            raise DecodeError("a frame's header has no payload", field="data")
    except DecodeError as error:
        error.at(topic=topic[:64])
        raise
    header = located.header.with_checksum(located.checksum)
    return FrameHead(topic, message.sequence, message.time_ns, metadata, message.dropped_count, header)


def frame_arrival(head: FrameHead) -> Arrival:
    """Return the state of a frame of which only the head has come.

    Args:
        head: The frame.
    """
    arrival = Arrival()
    arrival.begin(1)
    arrival.record(Record((head.topic,), {}, head.header, b""))
    return arrival
