"""The index of a tensor file: writing a generation's index and trailer, and finding the live one.

index   = 0x1a length { entry* · file metadata · base index }
entry   = 0x0a length { names and metadata (fields 1 to 3) · 0x22 length header · three fixed64 offsets }
trailer = 0x21 index_offset · 0x29 sum of [index_offset, end - 18) · 0x31 "DLPWIREE"
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import header as headers
from .checksum import check_sum, xxh3
from .errors import DecodeError, LimitError, TruncatedError
from .header import Header
from .metadata import MAX_ALIASES, MAX_FILE_METADATA_BYTES, MAX_RECORD_BYTES, Value, decode_map, decode_name
from .record import MAX_HEAD_BYTES, RECORD_ALIGNMENT
from .wire import LEN, Buffer, read_field, read_minimal_varint, varint

MAGIC = b"\x09DLPWIRE1"
TRAILER_BYTES = 27
MAX_CHAIN = 64
"""Most indexes that build on each other: a reader walks all of them."""

INDEX_TAG = b"\x1a"
_END = b"\x31DLPWIREE"
_TRAILER = struct.Struct("<BQBQ9s")
_OFFSETS = struct.Struct("<BQBQBQ")
_OFFSETS_BYTES = 27
_MIN_ENTRY_BYTES = 2 + 4 + _OFFSETS_BYTES  # tag, length, a header of two bytes with tag and length
_ROWS = 1 << 14


class Entry(NamedTuple):
    """One line of an index.

    Attributes:
        names: Fields 1 to 3: names that denote the record, and its metadata.
        header: The tensor's header fields with the payload's sum.
        record_offset: Position of the record's tag in the file.
        data_offset: Position of the payload.
        data_bytes: Size of the payload.
    """

    names: bytes
    header: bytes
    record_offset: int
    data_offset: int
    data_bytes: int

    @property
    def end(self) -> int:
        """Position after the record."""
        return self.data_offset + self.data_bytes


def entry_bytes(names: bytes, header: Header, payload_sum: int, record_offset: int, data_offset: int) -> bytes:
    """One line of an index, serialized."""
    tag, fields = _header_field(header)
    size = len(names) + len(tag) + len(fields) + 8 + _OFFSETS_BYTES
    offsets = _OFFSETS.pack(0x29, record_offset, 0x31, data_offset, 0x39, header.payload_bytes)
    return b"".join((b"\x0a", varint(size), names, tag, fields, payload_sum.to_bytes(8, "little"), offsets))


@lru_cache(maxsize=4096)
def _header_field(header: Header) -> tuple[bytes, bytes]:
    """Tag and length of an entry's header, and its bytes without the sum's value."""
    fields = headers.fields(header) + headers.SUM_TAG
    return b"\x22" + varint(len(fields) + 8), fields


def index_bytes(
    entries: Sequence[bytes], metadata: bytes, offset: int, base: tuple[int, int] | None = None
) -> list[bytes]:
    """An index that begins at `offset`, and its trailer: what ends a generation.

    Args:
        entries: Lines made by `entry_bytes`, in writing order.
        metadata: The file's, as map fields of number 2.
        offset: Position in the file at which these bytes will stand.
        base: (index_offset, index_xxh3_64) of the index that this one extends.
    """
    ending = metadata
    if base is not None:
        ending += b"\x19" + base[0].to_bytes(8, "little") + b"\x21" + base[1].to_bytes(8, "little")
    size = sum(map(len, entries)) + len(ending)
    parts = [INDEX_TAG + varint(size), *entries, ending, b"\x21" + offset.to_bytes(8, "little")]
    index = b"".join(parts)
    return [index, b"\x29" + xxh3(index).to_bytes(8, "little") + _END]


class Trailer(NamedTuple):
    """The last 27 bytes of a generation."""

    index_offset: int
    index_sum: int


def read_trailer(tail: Buffer) -> Trailer | None:
    """The trailer in 27 bytes, or None if they are none."""
    if len(tail) != TRAILER_BYTES:
        return None
    first, offset, second, index_sum, end = _TRAILER.unpack(tail)
    if first != 0x21 or second != 0x29 or end != _END:
        return None
    return Trailer(offset, index_sum)


class Index:
    """One parsed index.

    Attributes:
        names: Every name and the ordinal of its entry, in writing order.
        offsets: Of all entries, an array of shape (entries, 3): record_offset, data_offset, data_bytes.
        metadata: The file metadata that this index states.
        base: (index_offset, index_xxh3_64) of the index it extends, or None.
    """

    def __init__(self, content: bytes, limit: int) -> None:
        """Parse an index.

        Args:
            content: The bytes of the TensorFileIndex message; its sum has been checked.
            limit: Position of the index in the file: no record reaches beyond it.

        Raises:
            DecodeError: A rule for indexes is broken.
        """
        self._content = content
        self._bounds: np.ndarray[Any, np.dtype[np.int64]]
        self.names: dict[str, int]
        pos = self._walk_entries()
        self._check_offsets(limit)
        self.metadata: dict[str, Value] = {}
        self.base: tuple[int, int] | None = None
        self._read_ending(pos)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _walk_entries(self) -> int:
        """Collect names and bounds of all entries; a line is not looked into further before it is asked for."""
        content = self._content
        end = len(content)
        pos = 0
        bounds = [0]
        encoded: list[bytes] = []
        owners: list[int] | None = None  # kept only once there are more names than entries
        add_bound, add_name = bounds.append, encoded.append
        # The tightest loop of opening a file. What does not steer it is checked afterwards, for all lines at once.
        try:
            while pos < end and content[pos] == 0x0A:
                size = content[pos + 1]
                body = pos + 2
                if size >= 0x80:
                    size, body = read_minimal_varint(content, pos + 1, end)
                stop = body + size
                name = b""
                if content[body] == 0x0A:
                    size = content[body + 1]
                    begin = body + 2
                    if size >= 0x80:
                        size, begin = read_minimal_varint(content, body + 1, end)
                    body = begin + size
                    if not size or body > stop:
                        raise DecodeError("name of an index entry is empty or cut off", offset=pos)
                    name = content[begin:body]
                add_name(name)
                if owners is not None:
                    owners.append(len(bounds) - 1)
                if content[body] == 0x12:
                    if owners is None:
                        owners = list(range(len(encoded)))
                    aliases = self._read_aliases(body, min(stop, end))
                    encoded += aliases
                    owners += [len(bounds) - 1] * len(aliases)
                add_bound(stop)
                pos = stop
        except IndexError:
            pos = end + 1
        if pos > end:
            raise TruncatedError("index entry is cut off", needed=pos, available=end, field="entries")
        self._bounds = np.array(bounds, np.int64)
        if len(bounds) > 1 and int(np.diff(self._bounds).min()) < _MIN_ENTRY_BYTES:
            raise DecodeError("index entry without header and offsets", field="entries")
        self.names = _names(encoded, owners)
        return pos

    def _read_aliases(self, pos: int, stop: int) -> list[bytes]:
        aliases = []
        while pos < stop and self._content[pos] == 0x12:
            field = read_field(self._content, pos, stop)
            if field.content == field.end:
                raise DecodeError("empty alias in an index entry", offset=pos)
            aliases.append(self._content[field.content : field.end])
            pos = field.end
        if len(aliases) > MAX_ALIASES:
            raise LimitError(f"{len(aliases)} aliases", declared=len(aliases), limit=MAX_ALIASES, field="aliases")
        return aliases

    def _check_offsets(self, limit: int) -> None:
        """Check the extents of all entries at once."""
        ends = self._bounds[1:]
        raw = np.frombuffer(self._content, np.uint8)
        tails = np.empty((len(ends), _OFFSETS_BYTES), np.uint8)
        for part in range(0, len(ends), _ROWS):  # the positions take 8 bytes for each byte looked at
            rows = slice(part, part + _ROWS)
            tails[rows] = raw[ends[rows, None] + np.arange(-_OFFSETS_BYTES, 0)]
        if not ((tails[:, 0] == 0x29) & (tails[:, 9] == 0x31) & (tails[:, 18] == 0x39)).all():
            raise DecodeError("index entry without its three offsets")
        columns = [tails[:, at : at + 8].copy().view("<u8")[:, 0] for at in (1, 10, 19)]
        record, data, size = columns
        self.offsets = np.stack(columns, axis=1)
        if not len(record):
            return
        top = np.uint64(limit)
        if not ((record < data) & (data <= top) & (size <= top - data) & (record >= len(MAGIC))).all():
            raise DecodeError(f"an index entry points outside the records, [{len(MAGIC)}, {limit})")
        if (data - record).max() > MAX_HEAD_BYTES:
            longest = int((data - record).max())
            raise LimitError(
                f"a record's payload begins {longest} bytes after it", declared=longest, limit=MAX_HEAD_BYTES
            )
        if ((data % RECORD_ALIGNMENT != 0) & (size != 0)).any():
            raise DecodeError(f"a payload does not begin at a multiple of {RECORD_ALIGNMENT}", field="data_offset")

    def _read_ending(self, pos: int) -> None:
        content = self._content
        end = len(content)
        metadata_begin = pos
        last = 2
        base_offset = base_sum = 0
        metadata_end = pos
        while pos < end:
            field = read_field(content, pos, end)
            if field.number < last or (field.number == last != 2):
                raise DecodeError(f"field {field.number} after field {last} of the index", offset=pos)
            last = field.number
            if field.number == 2 and field.wire_type == LEN:
                metadata_end = field.end
            elif field.number in (3, 4):
                if field.end - field.content != 8 or field.wire_type == LEN:
                    raise DecodeError(f"field {field.number} has wire type {field.wire_type}", offset=pos)
                number = int.from_bytes(content[field.content : field.end], "little")
                if field.number == 3:
                    base_offset = number
                else:
                    base_sum = number
            pos = field.end
        self.metadata = decode_map(content[metadata_begin:metadata_end], MAX_FILE_METADATA_BYTES)
        if base_offset:
            self.base = (base_offset, base_sum)
        elif base_sum:
            raise DecodeError("a base index's sum without its offset", field="base_index_xxh3_64")

    def entry(self, ordinal: int) -> Entry:
        """The line of that ordinal.

        Raises:
            DecodeError: It breaks a rule.
        """
        content = self._content
        begin, stop = int(self._bounds[ordinal]), int(self._bounds[ordinal + 1])
        _, pos = read_minimal_varint(content, begin + 1, stop)
        names_begin = pos
        offsets_begin = stop - _OFFSETS_BYTES
        last = 0
        while pos < offsets_begin:
            field = read_field(content, pos, offsets_begin)
            if field.wire_type != LEN or field.number < last or (field.number == last and last not in (2, 3)):
                raise DecodeError(f"field {field.number} after field {last} of an index entry", offset=pos)
            last = field.number
            if last == 4:
                break
            if field.end - names_begin > MAX_RECORD_BYTES:
                raise LimitError(
                    "names and metadata of an index entry",
                    declared=field.end - names_begin,
                    limit=MAX_RECORD_BYTES,
                    offset=pos,
                )
            pos = field.end
        if last != 4 or field.end != offsets_begin:
            raise DecodeError("an index entry must end with header and offsets", offset=pos)
        record, data, size = map(int, self.offsets[ordinal])
        return Entry(content[names_begin:pos], content[field.content : field.end], record, data, size)


def _names(encoded: list[bytes], owners: list[int] | None) -> dict[str, int]:
    """The names as text, each with its entry's ordinal; all of them are checked in one go."""
    if not encoded:
        return {}
    joined = b"\0".join(encoded)
    try:
        names = joined.decode().split("\0")
    except UnicodeDecodeError:
        names = []
    if len(names) != len(encoded) or max(map(len, encoded)) > 4096:
        names = [decode_name(name) for name in encoded]
    found = dict(zip(names, owners if owners is not None else range(len(names)), strict=True))
    if len(found) != len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise DecodeError(f"duplicate name {name!r} in the index", field="name")
            seen.add(name)
    if len(names) > 1 and "" in found:
        raise DecodeError("the empty name is reserved for a file's only tensor", field="name")
    return found


def check_index(region: Buffer, index_offset: int, index_sum: int) -> bytes:
    """The content of the index at the start of `region`, which ends with the index_offset field.

    Raises:
        ChecksumError: The index was damaged.
        DecodeError: It does not fill the region.
    """
    check_sum(index_sum, xxh3(region), "index")
    end = len(region) - 9
    if region[:1] != INDEX_TAG:
        raise DecodeError("no index stands where the trailer says", offset=index_offset)
    size, pos = read_minimal_varint(region, 1, end)
    if pos + size != end:
        raise DecodeError(f"index of {size} bytes does not end at its trailer", offset=index_offset)
    return bytes(region[pos:end])
