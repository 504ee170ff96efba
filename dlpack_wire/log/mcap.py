"""The parts of an MCAP file that a log is read from: its summary, its chunks, and the messages in them.

Source: https://mcap.dev/spec. The records of the summary are parsed by the `mcap` package. Chunks are read here: that
package allocates whatever size a chunk announces.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from mcap.opcode import Opcode
from mcap.records import Channel, ChunkIndex, Schema, Statistics
from mcap.stream_reader import StreamReader

from ..errors import ChecksumError, DecodeError, LimitError
from ..file.storage import Storage
from ..message.wire import MAX_MESSAGE_BYTES
from ..tensor.memory import Buffer
from ..v1 import dlpack_pb2

MAX_MCAP_CHUNK_BYTES = MAX_MESSAGE_BYTES + (64 << 20)
"""Largest chunk that is decompressed: one message of the largest size, and 64 MiB of messages before it in the chunk.
Writers close a chunk with the message that reaches its size, by default 1 MiB."""

SCHEMA_NAME = dlpack_pb2.DLTensor.DESCRIPTOR.full_name
ENCODING = "protobuf"
"""Encoding of messages and of their schema, as MCAP's registry names it."""

_RECORD = struct.Struct("<BQ")
"""Head of every record: its opcode, and the size of its content."""

_CHUNK = struct.Struct("<BQQQQII")
"""A chunk up to the name of its compression: head, first and last time, size uncompressed, CRC-32, size of the name."""

_UINT64 = struct.Struct("<Q")
"""Size of a chunk's compressed content, behind the name of the compression."""

_MESSAGE = struct.Struct("<HIQQ")
"""Content of a message before its data: channel, sequence, time of the log entry, time of publication."""

_FOOTER = struct.Struct("<BQQQI")
"""The last record: head, positions of the summary and of its offsets, CRC-32 of the summary up to here."""

_MAGIC = b"\x89MCAP0\r\n"
"""First and last bytes of a finished file."""

# Plain numbers: comparing with an enum's member would slow the loop over a chunk's messages.
_MESSAGE_OPCODE, _CHUNK_OPCODE = int(Opcode.MESSAGE), int(Opcode.CHUNK)

_HELD_BYTES = 64 << 20
"""Bytes of chunks that are kept, because chunks that overlap in time are read in turn: some sixty of the default size.
More serves logs in which more chunks overlap, and costs memory."""

_PIECE_BYTES = 1 << 20
"""Bytes that are decompressed at a time: bounds what an announced size can make the decompressor allocate."""

_NO_INDEX = "the log's messages have no index: they were not written in chunks"


class Message(NamedTuple):
    """One message of a chunk.

    Attributes:
        channel: Number of its channel.
        sequence: Number given by its writer.
        time_ns: Time of the log entry, in nanoseconds.
        data: Its content.
    """

    channel: int
    sequence: int
    time_ns: int
    data: memoryview


class ChunkContents:
    """The contents of a file's chunks, by position. The last few are kept."""

    def __init__(self, source: Storage, limit: int) -> None:
        """Read chunks of `source`; those that decompress to more than `limit` bytes are refused."""
        self._source = source
        self._limit = limit
        self._held: dict[int, Buffer] = {}
        self._held_bytes = 0

    def content(self, begin: int, end: int) -> Buffer:
        """Return the messages and other records in the chunk [begin, end) of the file.

        Raises:
            DecodeError: The chunk is missing or damaged.
            LimitError: The chunk is too large to be decompressed.
        """
        content = self._held.pop(begin, None)
        if content is None:
            try:
                content = self._load(begin, end)
            except DecodeError as error:
                error.at(offset=begin)
                raise
            self._held_bytes += len(content)
        self._held[begin] = content  # the latest at the end
        while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= len(self._held.pop(next(iter(self._held))))
        return content

    def _load(self, begin: int, end: int) -> Buffer:
        record = memoryview(self._source.read(begin, end))
        opcode, record_bytes, _, _, size, crc, name_bytes = _CHUNK.unpack_from(record)
        if opcode != _CHUNK_OPCODE or record_bytes != len(record) - _RECORD.size:
            raise DecodeError("the index names a chunk where the file has something else")
        at = _CHUNK.size + name_bytes
        compression = bytes(record[_CHUNK.size : at])
        (compressed_bytes,) = _UINT64.unpack_from(record, at)
        content: Buffer = record[at + _UINT64.size :]
        if len(content) != compressed_bytes:
            raise DecodeError(f"chunk holds {len(content)} bytes and announces {compressed_bytes}")
        if compression:
            if size > self._limit:
                raise LimitError(
                    f"chunk of {size} bytes; at most {self._limit} are decompressed (max_chunk_bytes)",
                    declared=size,
                    limit=self._limit,
                )
            content = _decompress(compression, content, size)
        check_crc("chunk", crc, content)
        return content


class Summary(NamedTuple):
    """The index of a log.

    Attributes:
        channels: Topic of each channel by its number, or None if the channel does not carry tensors.
        chunks: Index entries of the chunks, in the order of the file.
    """

    channels: dict[int, str | None]
    chunks: list[ChunkIndex]


def read_summary(source: Storage) -> Summary:
    """Read the index at the end of a finished log.

    Raises:
        DecodeError: The file is not MCAP, was not finalised, is cut off, or its index is damaged.
        McapError, struct.error, UnicodeDecodeError, OverflowError: A record of the index is malformed.
    """
    size = source.size
    found = bytes(source.read(0, min(len(_MAGIC), size)))
    if found != _MAGIC:
        raise DecodeError(f"not an MCAP file: it begins with {found!r}")
    footer_begin = size - len(_MAGIC) - _FOOTER.size
    tail = bytes(source.read(max(footer_begin, 0), size))
    if footer_begin < len(_MAGIC) or not tail.endswith(_MAGIC) or tail[0] != Opcode.FOOTER:
        raise DecodeError(
            "the log was not finalised, or is truncated: it has no MCAP footer. "
            "`mcap recover` makes a new log of what is whole"
        )
    _, _, summary_begin, _, crc = _FOOTER.unpack_from(tail)
    if summary_begin == 0:
        raise DecodeError(_NO_INDEX)
    if not len(_MAGIC) <= summary_begin <= footer_begin:
        raise DecodeError(f"index at {summary_begin}, outside the file", offset=footer_begin)
    summary = bytes(source.read(summary_begin, size))
    # The sum covers everything up to itself.
    check_crc("index", crc, memoryview(summary)[: -len(_MAGIC) - 4])
    channels: dict[int, str | None] = {}
    chunks: list[ChunkIndex] = []
    schemas: dict[int, Schema] = {}
    statistics: Statistics | None = None
    for record in StreamReader(io.BytesIO(summary), skip_magic=True, emit_chunks=True).records:
        if isinstance(record, Schema):
            schemas[record.id] = record
        elif isinstance(record, Channel):
            schema = schemas.get(record.schema_id)
            is_tensor = (
                record.message_encoding == ENCODING
                and schema is not None
                and (schema.name, schema.encoding) == (SCHEMA_NAME, ENCODING)
            )
            channels[record.id] = record.topic if is_tensor else None
        elif isinstance(record, ChunkIndex):
            chunks.append(record)
        elif isinstance(record, Statistics):
            statistics = record
    if not chunks and (statistics is None or statistics.message_count):
        raise DecodeError(_NO_INDEX)
    _check_chunks(chunks, channels, summary_begin)
    return Summary(channels, chunks)


def _check_chunks(chunks: list[ChunkIndex], channels: dict[int, str | None], data_end: int) -> None:
    """Sort the chunks by position, and refuse chunks that share bytes: a small file could have any number of messages.

    Raises:
        DecodeError: Chunks overlap, end after `data_end`, or have channels that are not in `channels`.
    """
    chunks.sort(key=lambda chunk: chunk.chunk_start_offset)
    free = len(_MAGIC)
    for chunk in chunks:
        if chunk.chunk_start_offset < free:
            raise DecodeError("chunks overlap", offset=chunk.chunk_start_offset)
        if not chunk.message_index_offsets.keys() <= channels.keys():
            raise DecodeError("chunk with channels that the index does not know", offset=chunk.chunk_start_offset)
        free = chunk.chunk_start_offset + chunk.chunk_length
    if free > data_end:
        raise DecodeError(f"a chunk ends at {free}, after the messages' {data_end}")


def messages(content: Buffer) -> Iterator[tuple[int, int, int]]:
    """Yield (position, channel, time) of every message in a chunk's content.

    Raises:
        DecodeError: A record does not end within the chunk, or is too short to be a message.
        struct.error: The chunk ends inside the head of a record.
    """
    position, end = 0, len(content)
    while position < end:
        opcode, size = _RECORD.unpack_from(content, position)
        begin = position + _RECORD.size
        if size > end - begin or (opcode == _MESSAGE_OPCODE and size < _MESSAGE.size):
            raise DecodeError(f"chunk with a record of {size} bytes in {end - begin}")
        if opcode == _MESSAGE_OPCODE:
            channel, _, time_ns, _ = _MESSAGE.unpack_from(content, begin)
            yield position, channel, time_ns
        position = begin + size


def message_at(content: Buffer, position: int) -> Message:
    """Return the message at a position that `messages` yielded, without a copy of its data."""
    _, size = _RECORD.unpack_from(content, position)
    begin = position + _RECORD.size
    channel, sequence, time_ns, _ = _MESSAGE.unpack_from(content, begin)
    return Message(channel, sequence, time_ns, memoryview(content)[begin + _MESSAGE.size : begin + size])


def check_crc(what: str, expected: int, content: Buffer) -> None:
    """Check a CRC-32; zero means that the writer did not compute it.

    Raises:
        ChecksumError: The content does not match it.
    """
    if not expected:
        return
    actual = zlib.crc32(content)
    if actual != expected:
        raise ChecksumError(
            f"{what} does not match its checksum: stored {expected:08x}, computed {actual:08x}",
            expected=expected,
            actual=actual,
        )


def _decompress(compression: bytes, compressed: Buffer, size: int) -> Buffer:
    """Decompress piece by piece, so that memory follows the real size and not the announced one.

    Raises:
        DecodeError: The compression is unknown, or the content is damaged or of another size.
    """
    if compression not in _PIECES:
        raise DecodeError(f"unknown compression {compression[:64]!r}")
    content = bytearray()
    for piece in _PIECES[compression](compressed):
        content += piece
        if len(content) > size:
            break
    if len(content) != size:
        more = "more" if len(content) > size else "fewer"
        raise DecodeError(f"chunk has {more} bytes than the {size} that it announces")
    return content


def _zstd_pieces(compressed: Buffer) -> Iterator[bytes]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True) as reader:
        try:
            while piece := reader.read(_PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            raise DecodeError(f"chunk cannot be decompressed: {error}") from error


def _lz4_pieces(compressed: Buffer) -> Iterator[bytes]:
    import lz4.frame  # type: ignore[import-untyped]

    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        yield decompressor.decompress(compressed, _PIECE_BYTES)
        while not decompressor.eof and not decompressor.needs_input:
            yield decompressor.decompress(b"", _PIECE_BYTES)
    except RuntimeError as error:
        raise DecodeError(f"chunk cannot be decompressed: {error}") from error


_PIECES = {b"zstd": _zstd_pieces, b"lz4": _lz4_pieces}
