"""A log of tensors: (topic, time, tensor) appended to an MCAP file, which existing tools open.

Every message is a serialized `DLTensor`; its schema stands in the file. Needs the extra `dlpack-wire[log]`. Source of
the format: https://mcap.dev/spec.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import operator
import os
import struct
import time
from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from ..errors import DecodeError, EncodeError, WireError
from ..file.sink import StreamSink
from ..file.storage import PositionedBytes
from ..message.codec import decode, encode
from ..message.names import encode_name
from ..tensor.memory import Buffer
from ..tensor.source import Layout
from ..tensor.tensor import Tensor
from ..v1 import dlpack_pb2
from .mcap import MAX_CHUNK_BYTES, Chunks, check_crc, message_at, messages

try:
    from mcap.exceptions import McapError
    from mcap.opcode import Opcode
    from mcap.records import Channel, ChunkIndex, Schema, Statistics
    from mcap.stream_reader import StreamReader
    from mcap.writer import CompressionType, Writer
except ImportError as error:
    raise ImportError("logs need the extra: pip install 'dlpack-wire[log]'", name=error.name) from error

SCHEMA_NAME = dlpack_pb2.DLTensor.DESCRIPTOR.full_name
ENCODING = "protobuf"

CHUNK_BYTES = 1 << 20
"""Messages are gathered into chunks of about this size; what one `flush` or a crash can concern."""

Compression = Literal["none", "lz4", "zstd"]

_MAX_TOPICS = 65535  # channels are numbered with 16 bits, from 1

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER = struct.Struct("<BQQQI")
_NO_INDEX = "the log's messages have no index: they were not written in chunks"


class LogWriter:
    """A log being written. Closing, also by an exception inside the `with` block, finalises the file.

    Memory:
        One chunk, and the `mcap` package's copies of it while it is written out.
    """

    def __init__(
        self,
        target: Any,
        *,
        compression: Compression = "none",
        chunk_bytes: int = CHUNK_BYTES,
        overwrite: bool = False,
    ) -> None:
        """Begin a log.

        Args:
            target: A path, or an object with `write`, which is not closed with the log.
            compression: Of whole chunks. Most tensors hardly shrink.
            chunk_bytes: Size at which a chunk is written out.
            overwrite: Replace an existing file instead of refusing to.

        Raises:
            FileExistsError: The file exists and `overwrite` is not set: a recording cannot be made again.
        """
        if compression not in _COMPRESSIONS:
            raise EncodeError(f"must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}", field="compression")
        self._file = None if hasattr(target, "write") else io.FileIO(target, "w" if overwrite else "x")
        self._output = _Output(target if self._file is None else self._file)
        self._writer = Writer(self._output, chunk_bytes, _COMPRESSIONS[compression])  # type: ignore[arg-type]
        # The number and the sequences of each topic's channel.
        self._channels: dict[str, tuple[int, Iterator[int]]] = {}
        self._closed = False
        # Set while something is written: whatever is interrupted then has left half a record.
        self._broken = True
        try:
            self._writer.start(library="dlpack-wire")
            self._schema = self._writer.register_schema(SCHEMA_NAME, ENCODING, _file_descriptor_set())
        except BaseException:
            self._drop()
            raise
        self._broken = False

    def write(self, topic: str, x: Any, time_ns: int | None = None, *, layout: Layout = "keep") -> None:
        """Append one tensor. It is in the file once `flush` or `close` has returned.

        Args:
            topic: What the tensor belongs to: 1 to 4096 bytes of UTF-8 without NUL.
            x: Anything that `encode` takes.
            time_ns: When it was made, in nanoseconds since 1970-01-01 UTC; now, if not given. Times need not ascend.
            layout: As for `encode`.

        Raises:
            EncodeError: `x`, its topic or time has no place in a log; over 2^31-1 bytes, use `save()`. The log stays
                usable.
            OSError: Writing failed. The log takes no more and cannot be finalised.
        """
        self._check_usable()
        log_time = time.time_ns() if time_ns is None else operator.index(time_ns)
        if not 0 <= log_time < 1 << 64:
            raise EncodeError(f"{log_time} does not fit 64 bits without a sign", tensor=topic, field="time_ns")
        known = self._channels.get(topic)
        if known is None:
            encode_name(topic)
            if len(self._channels) == _MAX_TOPICS:
                raise EncodeError(f"a log has at most {_MAX_TOPICS} topics", tensor=topic, field="topic")
        try:
            message = encode(x, layout=layout)
        except WireError as error:
            error.at(tensor=topic)
            raise
        self._broken = True
        if known is None:
            known = self._writer.register_channel(topic, ENCODING, self._schema), itertools.count(1)
            self._channels[topic] = known
        channel, sequences = known
        self._writer.add_message(channel, log_time, message, log_time, next(sequences) & 0xFFFFFFFF)
        self._broken = False

    def flush(self) -> None:
        """Hand everything to the operating system: it survives the end of this process, whatever ends it.

        Raises:
            OSError: It could not be written. The log takes no more and cannot be finalised.
        """
        self._check_usable()
        self._broken = True
        self._writer.flush()  # type: ignore[no-untyped-call]
        self._broken = False

    def close(self) -> None:
        """Finalise the log: write the index that readers need.

        Raises:
            OSError: It could not be written, now or before.
        """
        if self._closed:
            return
        try:
            if self._broken:
                raise OSError("the log is not finalised: writing to it failed before")
            self._writer.finish()  # type: ignore[no-untyped-call]
            self._output.flush()
        finally:
            self._drop()

    def _drop(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise ValueError("the log is closed")
        if self._broken:
            raise OSError("writing to this log failed before")

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and self._broken:
            self._drop()  # what broke the log is on its way out already; a second error would hide it
        else:
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


_COMPRESSIONS = {"none": CompressionType.NONE, "lz4": CompressionType.LZ4, "zstd": CompressionType.ZSTD}


class _Output:
    """What mcap's writer asks of a stream, over anything with `write`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sink = StreamSink(stream)

    def write(self, content: bytes) -> None:
        self._sink.append(content)

    def tell(self) -> int:
        return self._sink.position

    def flush(self) -> None:
        flush = getattr(self._stream, "flush", None)
        if flush is not None:
            flush()


def _file_descriptor_set() -> bytes:
    """The schema and all that it imports, each after what it imports itself."""
    files: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        files[file.name] = file

    add(dlpack_pb2.DESCRIPTOR)
    collected = descriptor_pb2.FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(collected.file.add())
    return collected.SerializeToString()


class LogRecord(NamedTuple):
    """One tensor of a log.

    Attributes:
        topic: What it belongs to.
        time_ns: When it was made, in nanoseconds; since 1970-01-01 UTC if the writer kept to that.
        sequence: Counts the writer's tensors of this topic from 1, modulo 2^32.
        tensor: The tensor, in memory of its own.
    """

    topic: str
    time_ns: int
    sequence: int
    tensor: Tensor


class LogReader:
    """A finalised log, read by topic and time. Messages of other schemas in the same file are passed over."""

    def __init__(self, path: Any, *, max_chunk_bytes: int = MAX_CHUNK_BYTES) -> None:
        """Open a log and read its index.

        Args:
            path: Where it is.
            max_chunk_bytes: Largest chunk that is decompressed: a few bytes may announce any size.

        Raises:
            DecodeError: It is no MCAP file, was not finalised or cut off, or its index is damaged.
            OSError: It could not be opened.
        """
        self._where = os.fsdecode(path)
        self._max_chunk_bytes = max_chunk_bytes
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # It owns the descriptor, so that what is being read stays open until it is done.
        self._source: PositionedBytes | None = PositionedBytes(fd, os.fstat(fd).st_size, owner=True)
        # Of every channel in the file: its topic if it carries tensors, else None.
        self._channels: dict[int, str | None] = {}
        self._chunks: list[ChunkIndex] = []
        with self._decoding() as source:
            self._read_summary(source)

    def topics(self) -> list[str]:
        """The topics that carry tensors, in the order in which they appeared."""
        return list(dict.fromkeys(topic for topic in self._channels.values() if topic is not None))

    def read(
        self, topics: Iterable[str] | str | None = None, start_ns: int | None = None, end_ns: int | None = None
    ) -> Iterator[LogRecord]:
        """The tensors of a range of time, in the order of their times; equal times in the order of writing.

        Args:
            topics: Which topics; all if not given. Those that the log does not have give nothing.
            start_ns: First time wanted.
            end_ns: The time before which to stop.

        Raises:
            DecodeError: A chunk or tensor is damaged.
            LimitError: A chunk is larger than the reader's limit.

        Memory:
            The chunk at hand and up to 64 MiB of earlier ones; 16 bytes for every wanted message of chunks that
            overlap in time. A tensor is a copy, so it holds none of it.
        """
        named = {topics} if isinstance(topics, str) else None if topics is None else set(topics)
        wanted = {
            channel: topic
            for channel, topic in self._channels.items()
            if topic is not None and (named is None or topic in named)
        }
        begin = 0 if start_ns is None else start_ns
        end = 1 << 64 if end_ns is None else end_ns
        with self._decoding() as source:
            yield from self._read(Chunks(source, self._max_chunk_bytes), wanted, begin, end)

    def _read(self, chunks: Chunks, wanted: dict[int, str], begin: int, end: int) -> Iterator[LogRecord]:
        waiting = [
            chunk
            for chunk in self._chunks
            if chunk.message_start_time < end
            and chunk.message_end_time >= begin
            and not (chunk.message_index_offsets and wanted.keys().isdisjoint(chunk.message_index_offsets))
        ]
        waiting.sort(key=lambda chunk: chunk.message_start_time, reverse=True)
        # The next message of each chunk that was begun: (time, chunk's position, its own position in it, ...).
        begun: list[tuple[int, int, int, ChunkIndex, Iterator[tuple[int, int]]]] = []

        def content(chunk: ChunkIndex) -> Buffer:
            return chunks.content(chunk.chunk_start_offset, chunk.chunk_start_offset + chunk.chunk_length)

        def advance(chunk: ChunkIndex, coming: Iterator[tuple[int, int]]) -> None:
            for time_ns, position in coming:
                heappush(begun, (time_ns, chunk.chunk_start_offset, position, chunk, coming))
                return

        while waiting or begun:
            if waiting and (not begun or waiting[-1].message_start_time <= begun[0][0]):
                chunk = waiting.pop()
                advance(chunk, self._in_order(chunk, content(chunk), wanted, begin, end))
                continue
            _, _, position, chunk, coming = heappop(begun)
            message = message_at(content(chunk), position)
            topic = wanted[message.channel]
            try:
                tensor = decode(bytearray(message.data))
            except DecodeError as error:
                error.at(tensor=topic)
                raise
            yield LogRecord(topic, message.time_ns, message.sequence, tensor)
            advance(chunk, coming)

    def _in_order(
        self, chunk: ChunkIndex, content: Buffer, wanted: dict[int, str], begin: int, end: int
    ) -> Iterator[tuple[int, int]]:
        """(time, position) of the wanted messages of a chunk, in the order of their times."""
        times, positions = array("Q"), array("Q")
        for position, channel, time_ns in messages(content):
            if channel not in self._channels:
                raise DecodeError(f"message of channel {channel}, which the index does not know")
            if not chunk.message_start_time <= time_ns <= chunk.message_end_time:
                raise DecodeError(
                    f"message of time {time_ns} in a chunk that the index puts at "
                    f"[{chunk.message_start_time}, {chunk.message_end_time}]",
                    offset=chunk.chunk_start_offset,
                )
            if channel in wanted and begin <= time_ns < end:
                times.append(time_ns)
                positions.append(position)
        return ((times[i], positions[i]) for i in np.argsort(np.asarray(times), kind="stable"))

    def _read_summary(self, source: PositionedBytes) -> None:
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
                self._channels[record.id] = record.topic if is_tensor else None
            elif isinstance(record, ChunkIndex):
                self._chunks.append(record)
            elif isinstance(record, Statistics):
                statistics = record
        if not self._chunks and (statistics is None or statistics.message_count):
            raise DecodeError(_NO_INDEX)
        self._check_chunks(summary_begin)

    def _check_chunks(self, data_end: int) -> None:
        """Chunks that shared bytes would give messages twice, and a small file any amount of them."""
        self._chunks.sort(key=lambda chunk: chunk.chunk_start_offset)
        free = len(_MAGIC)
        for chunk in self._chunks:
            if chunk.chunk_start_offset < free:
                raise DecodeError("chunks overlap", offset=chunk.chunk_start_offset)
            if not chunk.message_index_offsets.keys() <= self._channels.keys():
                raise DecodeError("chunk with channels that the index does not know", offset=chunk.chunk_start_offset)
            free = chunk.chunk_start_offset + chunk.chunk_length
        if free > data_end:
            raise DecodeError(f"a chunk ends at {free}, after the messages' {data_end}")

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[PositionedBytes]:
        """The file's bytes; every complaint about them is made a DecodeError that names it."""
        if self._source is None:
            raise ValueError(f"{self._where} is closed")
        try:
            yield self._source
        except DecodeError as error:
            error.at(path=self._where)
            raise
        except (McapError, struct.error, UnicodeDecodeError, OverflowError) as error:
            said = str(error) or type(error).__name__
            raise DecodeError(f"malformed MCAP record: {said}").at(path=self._where) from error

    def close(self) -> None:
        """Let go of the file. Tensors taken from it stay usable, and a reading that has begun goes on."""
        self._source = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
