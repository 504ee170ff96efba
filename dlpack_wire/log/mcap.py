"""The chunks of an MCAP file: their contents, decompressed and checked, and the messages in them.

Source: https://mcap.dev/spec. They are read here, not by the `mcap` package: that allocates whatever a chunk announces.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import ChecksumError, DecodeError, LimitError
from ..file.storage import Storage
from ..message.wire import MAX_MESSAGE_BYTES
from ..tensor.memory import Buffer

MAX_CHUNK_BYTES = MAX_MESSAGE_BYTES + (64 << 20)
"""Largest chunk that is decompressed: one message as large as they come, and what stood before it."""

RECORD = struct.Struct("<BQ")
"""How every record begins: its opcode, and the size of what follows."""

_MESSAGE_OPCODE, _CHUNK_OPCODE = 5, 6
_CHUNK = struct.Struct("<BQQQQII")
_UINT64 = struct.Struct("<Q")
_MESSAGE = struct.Struct("<HIQQ")

_HELD_BYTES = 64 << 20  # chunks that overlap in time are read alternately, so the last few are kept
_PIECE_BYTES = 1 << 20


class Message(NamedTuple):
    """One message of a chunk.

    Attributes:
        channel: Number of its channel.
        sequence: As its writer counted.
        time_ns: When it was logged.
        data: What it says.
    """

    channel: int
    sequence: int
    time_ns: int
    data: memoryview


class Chunks:
    """The contents of a file's chunks, by where they begin. The last few are kept."""

    def __init__(self, source: Storage, limit: int) -> None:
        """Read chunks of `source`; those that decompress to more than `limit` bytes are refused."""
        self._source = source
        self._limit = limit
        self._held: dict[int, Buffer] = {}
        self._held_bytes = 0

    def content(self, begin: int, end: int) -> Buffer:
        """The messages and other records in the chunk [begin, end) of the file.

        Raises:
            DecodeError: There is no such chunk, or it is damaged.
            LimitError: It is too large.
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
        if opcode != _CHUNK_OPCODE or record_bytes != len(record) - RECORD.size:
            raise DecodeError("no chunk stands where the index says")
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


def messages(content: Buffer) -> Iterator[tuple[int, int, int]]:
    """(position, channel, time) of every message in a chunk's content."""
    position, end = 0, len(content)
    while position < end:
        opcode, size = RECORD.unpack_from(content, position)
        begin = position + RECORD.size
        if size > end - begin or (opcode == _MESSAGE_OPCODE and size < _MESSAGE.size):
            raise DecodeError(f"chunk with a record of {size} bytes in {end - begin}")
        if opcode == _MESSAGE_OPCODE:
            channel, _, time_ns, _ = _MESSAGE.unpack_from(content, begin)
            yield position, channel, time_ns
        position = begin + size


def message_at(content: Buffer, position: int) -> Message:
    """The message at a position that `messages` gave."""
    _, size = RECORD.unpack_from(content, position)
    begin = position + RECORD.size
    channel, sequence, time_ns, _ = _MESSAGE.unpack_from(content, begin)
    return Message(channel, sequence, time_ns, memoryview(content)[begin + _MESSAGE.size : begin + size])


def check_crc(what: str, expected: int, content: Buffer) -> None:
    """Compare a CRC-32; zero says that there is none.

    Raises:
        ChecksumError: They differ.
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
    """Decompress piece by piece, so that memory follows what is really there, not what is announced."""
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
