"""Sinks of a tensor file's bytes: a file of our own, or anything with `write`."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from typing import Any, Protocol

from ..tensor.checksum import BLOCK_BYTES, Summing, total
from .record import RecordPlan, prefix

_BUFFER_BYTES = 4 << 20
"""Small records are gathered up to this size, so that a thousand of 4 KiB cost one system call."""

_BUFFER_PARTS = 1000  # the kernel takes 1024 parts at once


class Payload(Protocol):
    """A payload about to be written."""

    @property
    def lasting(self) -> bool:
        """True if pieces stay valid indefinitely; False if a piece is valid only until the next one is requested."""

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the payload in order, in contiguous pieces of at most `size` bytes."""

    def block_sums(self) -> bytes:
        """Return the sums of the payload's blocks, 8 bytes each."""


class Sink(Protocol):
    """Takes a file's bytes in order.

    Attributes:
        position: Position of the next byte in the file.
    """

    position: int

    def append(self, *parts: Any) -> None:
        """Append small parts."""

    def append_record(self, record: RecordPlan, names: bytes, payload: Payload) -> bytes:
        """Append a record with its payload; return the sums of the payload's blocks, 8 bytes each."""

    def flush(self) -> None:
        """Write buffered bytes."""

    def close(self) -> None:
        """Refuse all further writes: the file or stream is closed, and its descriptor's number may be reused."""


class StreamSink:
    """Anything with `write`. A sum stands before the bytes it covers, so payloads are hashed first: two passes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._closed = False
        self.position = 0

    def append(self, *parts: Any) -> None:
        """Write small parts at once."""
        self._write(b"".join(parts))

    def append_record(self, record: RecordPlan, names: bytes, payload: Payload) -> bytes:
        """Hash a payload, then write its record; return the sums of its blocks."""
        sums = payload.block_sums()
        self._write(prefix(record, names, total(sums)))
        for piece in payload.pieces(4 * BLOCK_BYTES):
            # The stream may keep the buffer it is given.
            self._write(piece if payload.lasting else bytes(piece))
        return sums

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Refuse all further writes."""
        self._closed = True

    def _write(self, content: Any) -> None:
        if self._closed:
            raise ValueError("the file is closed")
        view = memoryview(content)
        while len(view):
            count = self._stream.write(view)
            if count is None:
                if isinstance(self._stream, io.RawIOBase):
                    raise BlockingIOError(errno.EAGAIN, "the stream takes nothing without waiting")
                count = len(view)  # many file-like objects return None and have written all
            if not 0 < count <= len(view):
                raise OSError(f"write() of {type(self._stream).__name__} took {count} of {len(view)} bytes")
            self.position += count
            view = view[count:]


class FileSink:
    """A file of our own. Hashes and writes in turn while a piece is in the cache, then writes the prefix before it."""

    def __init__(self, fd: int, position: int = 0) -> None:
        self._fd = fd
        self.position = position
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def append(self, *parts: Any) -> None:
        """Buffer small parts."""
        joined = b"".join(parts)
        self._pending.append(joined)
        self._pending_bytes += len(joined)
        self.position += len(joined)
        if self._pending_bytes > _BUFFER_BYTES or len(self._pending) >= _BUFFER_PARTS:
            self.flush()

    def append_record(self, record: RecordPlan, names: bytes, payload: Payload) -> bytes:
        """Hash and write a payload block by block, then write the record's head before it; return the blocks' sums."""
        self._check_open()
        self.flush()
        summing = Summing()
        at = self.position + record.prefix_bytes
        try:
            for piece in payload.pieces(BLOCK_BYTES):
                summing.update(piece)
                self._write_at(at, piece)
                at += len(piece)
            sums = summing.finish()
            self._write_at(self.position, memoryview(prefix(record, names, total(sums))))
        except BaseException:
            os.ftruncate(self._fd, self.position)  # else half a record would stand behind a finished file
            raise
        self.position += record.record_bytes
        return sums

    def flush(self) -> None:
        """Write buffered bytes with one system call."""
        if not self._pending:
            return
        self._check_open()
        begin = self.position - self._pending_bytes
        count = os.pwritev(self._fd, self._pending, begin)
        if count < self._pending_bytes:  # a disk that fills up: go on until the error comes, or it all fits
            self._write_at(begin + count, memoryview(b"".join(self._pending))[count:])
        self._pending.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        """Drop buffered bytes and refuse all further writes: the descriptor's number may soon be another file's."""
        self._pending.clear()
        self._pending_bytes = 0
        self._fd = -1

    def _check_open(self) -> None:
        if self._fd < 0:
            raise ValueError("the file is closed")

    def _write_at(self, position: int, content: memoryview) -> None:
        self._check_open()
        # One call writes at most about 2 GiB, and less on a disk that fills up.
        while len(content):
            count = os.pwrite(self._fd, content, position)
            position += count
            content = content[count:]
