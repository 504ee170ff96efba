"""Reading a log of tensors: merging its chunks by time."""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from mcap.exceptions import McapError
from mcap.records import ChunkIndex

from ..errors import DecodeError
from ..file.storage import Storage, open_path
from ..message.codec import decode
from ..tensor.memory import Buffer
from ..tensor.tensor import Tensor
from .mcap import MAX_MCAP_CHUNK_BYTES, ChunkContents, message_at, messages, read_summary


class LogRecord(NamedTuple):
    """One tensor of a log.

    Attributes:
        topic: Topic that it was written to.
        time_ns: Time at which it was made, in nanoseconds; since 1970-01-01 UTC if the writer kept to that.
        sequence: Number of the tensor among the writer's tensors of this topic, from 1, modulo 2^32.
        tensor: The tensor, in memory of its own.
    """

    topic: str
    time_ns: int
    sequence: int
    tensor: Tensor


class LogReader:
    """A finalised log, read by topic and time. Messages of other schemas in the same file are passed over."""

    def __init__(self, path: Any, *, max_chunk_bytes: int = MAX_MCAP_CHUNK_BYTES) -> None:
        """Open a log and read its index.

        Args:
            path: Path of the log.
            max_chunk_bytes: Largest chunk that is decompressed: a few bytes may announce any size.

        Raises:
            DecodeError: The file is not MCAP, was not finalised, is cut off, or its index is missing or damaged.
            FileNotFoundError: The file does not exist.
            OSError: The file could not be opened or read.
            TypeError: `path` is neither text, bytes nor path-like.
        """
        self._where = os.fsdecode(path)
        self._max_chunk_bytes = max_chunk_bytes
        # The descriptor is closed when nothing refers to it: an iteration that has begun goes on after `close`.
        self._source: Storage | None = open_path(self._where, mapped=False)
        with self._decoding() as source:
            self._channels, self._chunks = read_summary(source)

    def topics(self) -> list[str]:
        """Return the topics that carry tensors, in the order in which they appeared."""
        return list(dict.fromkeys(topic for topic in self._channels.values() if topic is not None))

    def read(
        self, topics: Iterable[str] | str | None = None, start_ns: int | None = None, end_ns: int | None = None
    ) -> Iterator[LogRecord]:
        """Yield the tensors of a range of time, in the order of their times; equal times in the order of writing.

        Args:
            topics: Topics to read; by default, all. A topic that the log does not have yields nothing.
            start_ns: First time to read; by default, that of the earliest tensor.
            end_ns: Time before which to stop; by default, the latest tensor is included.

        Raises:
            DecodeError: A chunk or tensor is damaged.
            LimitError: A chunk is larger than the reader's limit.
            ValueError: The log is closed.
            OSError: Reading failed.

        Memory:
            The chunk at hand and up to 64 MiB of earlier ones; 16 bytes for every selected message of chunks that
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
            yield from self._read(ChunkContents(source, self._max_chunk_bytes), wanted, begin, end)

    def _read(self, chunks: ChunkContents, wanted: dict[int, str], begin: int, end: int) -> Iterator[LogRecord]:
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
                error.at(topic=topic)
                raise
            yield LogRecord(topic, message.time_ns, message.sequence, tensor)
            advance(chunk, coming)

    def _in_order(
        self, chunk: ChunkIndex, content: Buffer, wanted: dict[int, str], begin: int, end: int
    ) -> Iterator[tuple[int, int]]:
        """Return (time, position) of the wanted messages of a chunk, in the order of their times.

        Raises:
            DecodeError: The chunk has a channel or a time that its entry in the index excludes.
        """
        times, positions = array("Q"), array("Q")
        for position, channel, time_ns in messages(content):
            if channel not in self._channels:
                raise DecodeError(f"message of channel {channel}, which the index lacks")
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

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[Storage]:
        """Return the file's bytes, and turn every error about them into a DecodeError that names the file.

        Raises:
            DecodeError: The block found the file to be malformed.
            ValueError: The log is closed.
        """
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
        """Close the file. Tensors taken from it stay usable, and an iteration that has begun goes on."""
        self._source = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
