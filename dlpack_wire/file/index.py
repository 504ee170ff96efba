"""The index of a tensor file: writing, parsing and searching it.

index   = 0x1a length { entry* · file metadata · base index }
entry   = 0x0a length { names and metadata (fields 1 to 3) · 0x22 length header · three fixed64 offsets }
trailer = 0x21 index_offset · 0x29 sum of [index_offset, end - 18) · 0x31 "DLPWIREE"
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import DecodeError, EncodeError, LimitError, TruncatedError
from ..message import writing
from ..message.names import (
    MAX_ALIASES,
    MAX_FILE_METADATA_BYTES,
    MAX_NAMES_BYTES,
    Metadata,
    Value,
    check_encodings,
    decode_map,
    encode_map,
    names_too_large,
)
from ..message.reading import refuse_critical
from ..message.tags import SUM_FIELD_BYTES, byte
from ..message.wire import (
    FIXED64,
    LEN,
    MAX_MESSAGE_BYTES,
    length_delimited,
    read_field,
    read_minimal_varint,
    varint,
    varint_size,
)
from ..tensor.checksum import EMPTY, SUM_BYTES, block_count, check_sum, total, xxh3
from ..tensor.header import Header
from ..tensor.memory import Buffer
from . import tags
from .record import MAX_HEAD_BYTES, RECORD_ALIGNMENT

MAGIC = byte(tags.MAGIC) + b"DLPWIRE1"
INDEX_TAG = byte(tags.INDEX)
_END = byte(tags.END_MAGIC) + b"DLPWIREE"

TRAILER_BYTES = 3 * SUM_FIELD_BYTES
"""Size of a trailer: index_offset, index_xxh3_64 and end_magic, all fixed64."""

UNSUMMED_BYTES = 2 * SUM_FIELD_BYTES
"""End of a generation that its index sum does not cover: the sum itself, and the end magic."""

_ENTRY_TAG, _HEADER_TAG = byte(tags.ENTRY), byte(tags.ENTRY_HEADER)
_SUMS_TAG = byte(tags.BLOCK_SUMS)
_EMPTY_SUM = EMPTY.to_bytes(SUM_BYTES, "little")
_BASE_OFFSET_TAG, _BASE_SUM_TAG = byte(tags.BASE_OFFSET), byte(tags.BASE_SUM)
_INDEX_OFFSET_TAG, _INDEX_SUM_TAG = byte(tags.INDEX_OFFSET), byte(tags.INDEX_SUM)
_TRAILER = struct.Struct("<BQBQ9s")
_OFFSETS = struct.Struct("<BQBQBQ")
_OFFSETS_BYTES = _OFFSETS.size
_FIXED64_FIELD = np.dtype([("tag", "u1"), ("value", "<u8")])
_OFFSET_TAGS = np.array([tags.RECORD_OFFSET, tags.DATA_OFFSET, tags.DATA_BYTES], np.uint8)
_MIN_ENTRY_BYTES = 2 + 3 + _OFFSETS_BYTES  # tag, length, and a name of one byte that is removed

_ROWS = 1 << 12
"""Entries handled by one vectorised step: enough to hide numpy's cost per call, few enough to stay in the cache."""

_FEW_ROWS = 64
"""Fewest entries for a vectorised step. With some 50 of them it takes as long as parsing them one by one."""

# A key of the sorted name table: the upper half of the name's hash, and the position of the name in the index. An index
# is a message, so it is below 2^31 bytes, and a position fits the other half. A key takes 8 bytes for each name; a dict
# of strings takes some 150, and a hostile index could demand that for every 3 bytes of its own.
_HASH = np.uint64(0xFFFFFFFF00000000)
_POSITION = np.uint64(0xFFFFFFFF)

# The loop over entries compares these tags: a name of this module is looked up faster than one of another.
_ENTRY, _NAME, _ALIAS = tags.ENTRY, tags.NAME, tags.ALIAS

_HEADER_NUMBER, _SUMS_NUMBER = tags.ENTRY_HEADER >> 3, tags.BLOCK_SUMS >> 3
_LAST_IGNORED = (tags.RECORD_OFFSET >> 3) - 1
_METADATA_NUMBER, _OFFSET_NUMBER, _SUM_NUMBER = tags.FILE_METADATA >> 3, tags.BASE_OFFSET >> 3, tags.BASE_SUM >> 3

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


class Entry(NamedTuple):
    """One line of an index.

    Attributes:
        names: Fields 1 to 3: the names that denote the record, and its metadata.
        header: The tensor's header fields with the payload's sum; empty if the record removes its names.
        sums: Sums of the payload's blocks, 8 bytes each, if it has more than one; else empty.
        record_offset: Position of the record's tag in the file.
        data_offset: Position of the payload.
        data_bytes: Size of the payload.
    """

    names: bytes
    header: bytes
    sums: bytes
    record_offset: int
    data_offset: int
    data_bytes: int

    @property
    def end(self) -> int:
        """Position after the record."""
        return self.data_offset + self.data_bytes


def entry_bytes(names: bytes, header: Header, sums: bytes, record_offset: int, data_offset: int) -> bytes:
    """Serialize one line of an index.

    Args:
        names: Names and metadata, as `names_block` makes them.
        header: The tensor's header, without a checksum.
        sums: Sums of the payload's blocks, 8 bytes each.
        record_offset: Position of the record's tag.
        data_offset: Position of the payload.
    """
    tag, fields = _header_field(header)
    if len(sums) > SUM_BYTES:
        listed, data_sum = length_delimited(tags.BLOCK_SUMS >> 3, sums), total(sums).to_bytes(SUM_BYTES, "little")
    else:
        listed, data_sum = b"", sums or _EMPTY_SUM  # of one block it is the block's own
    size = len(names) + len(tag) + len(fields) + SUM_BYTES + len(listed) + _OFFSETS_BYTES
    offsets = _OFFSETS.pack(
        tags.RECORD_OFFSET, record_offset, tags.DATA_OFFSET, data_offset, tags.DATA_BYTES, header.payload_bytes
    )
    return b"".join((_ENTRY_TAG, varint(size), names, tag, fields, data_sum, listed, offsets))


def entry_size(names: bytes, header: Header) -> int:
    """Return the size of what `entry_bytes` makes, without making it: a header may claim any number of blocks."""
    tag, fields = _header_field(header)
    blocks = block_count(header.payload_bytes)
    sums = SUM_BYTES * blocks
    listed = len(_SUMS_TAG) + varint_size(sums) + sums if blocks > 1 else 0
    size = len(names) + len(tag) + len(fields) + SUM_BYTES + listed + _OFFSETS_BYTES
    return len(_ENTRY_TAG) + varint_size(size) + size


def removal_bytes(names: bytes, record_offset: int, end: int) -> bytes:
    """Serialize the line of an index for a record that removes names."""
    offsets = _OFFSETS.pack(tags.RECORD_OFFSET, record_offset, tags.DATA_OFFSET, end, tags.DATA_BYTES, 0)
    return b"".join((_ENTRY_TAG, varint(len(names) + _OFFSETS_BYTES), names, offsets))


# More than the headers in use in one file. An lru_cache, not a Memo: its C code makes hits cheapest.
@lru_cache(maxsize=4096)
def _header_field(header: Header) -> tuple[bytes, bytes]:
    """Return tag and length of an entry's header, and its bytes without the sum's value."""
    fields = writing.header_fields(header) + writing.SUM_TAG
    return _HEADER_TAG + varint(len(fields) + 8), fields


def index_bytes(
    entries: Sequence[bytes], metadata: bytes, offset: int, base: tuple[int, int] | None = None
) -> list[bytes]:
    """Serialize an index that begins at `offset`, and its trailer; together they end a generation.

    Args:
        entries: Lines made by `entry_bytes`, in writing order.
        metadata: The file's, made by `metadata_bytes`.
        offset: Position in the file at which these bytes will stand.
        base: (index_offset, index_xxh3_64) of the index that this one extends.

    Raises:
        EncodeError: The index would not be a message: over 2^31-1 bytes.
    """
    ending = metadata
    if base is not None:
        ending += _BASE_OFFSET_TAG + base[0].to_bytes(8, "little") + _BASE_SUM_TAG + base[1].to_bytes(8, "little")
    size = sum(map(len, entries)) + len(ending)
    if size > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"index of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed",
            field="entries",
            declared=size,
            limit=MAX_MESSAGE_BYTES,
        )
    parts = [INDEX_TAG + varint(size), *entries, ending, _INDEX_OFFSET_TAG + offset.to_bytes(8, "little")]
    index = b"".join(parts)
    return [index, _INDEX_SUM_TAG + xxh3(index).to_bytes(8, "little") + _END]


def metadata_bytes(metadata: Metadata | None) -> bytes:
    """Serialize the user metadata of a file, as fields of its index.

    Raises:
        EncodeError: A key or value cannot go into metadata, or all of it is too large.
    """
    return encode_map(_METADATA_NUMBER, metadata, MAX_FILE_METADATA_BYTES)


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """Split an index entry into names and metadata, and the rest."""
    _, begin = read_minimal_varint(line, 1, len(line))
    pos = begin
    while (field := read_field(line, pos, len(line))).number <= tags.NAMES_END:
        pos = field.end
    return line[begin:pos], line[pos:]


def removes(rest: bytes) -> bool:
    """Return True if the rest of an index entry is that of a removal: offsets without a header."""
    return len(rest) == _OFFSETS_BYTES


def whole_line(names: bytes, rest: bytes) -> bytes:
    """Join the two parts that `split_line` returns."""
    return length_delimited(tags.ENTRY >> 3, names + rest)


class Trailer(NamedTuple):
    """The fields that end a generation."""

    index_offset: int
    index_sum: int


def read_trailer(tail: Buffer) -> Trailer | None:
    """Parse a trailer; None if the bytes are something else."""
    if len(tail) != TRAILER_BYTES:
        return None
    first, offset, second, index_sum, end = _TRAILER.unpack(tail)
    if first != tags.INDEX_OFFSET or second != tags.INDEX_SUM or end != _END:
        return None
    return Trailer(offset, index_sum)


class Index:
    """One parsed index. Nothing in it takes much more memory than the index itself, however hostile it is.

    Attributes:
        offsets: Of all entries, an array of shape (entries, 3): record_offset, data_offset, data_bytes.
        base: (index_offset, index_xxh3_64) of the index it extends, or None.
    """

    def __init__(self, content: bytes, limit: int) -> None:
        """Parse an index.

        Args:
            content: The bytes of the TensorFileIndex message; its sum has been checked.
            limit: Position of the index in the file: no record reaches beyond it.

        Raises:
            DecodeError: The index is malformed.
        """
        self._content = content
        self._bounds: Numbers
        self._keys: Numbers
        pos = self._walk_entries()
        self._check_names()
        self.offsets = self._read_offsets(limit)
        self.base: tuple[int, int] | None = None
        self._metadata: bytes
        self._read_ending(pos)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def entries_bytes(self) -> int:
        """Size of all entries in bytes."""
        return int(self._bounds[-1])

    @property
    def name_count(self) -> int:
        """Number of names of all entries together."""
        return len(self._keys)

    # --- parsing ------------------------------------------------------------------------------------------------------

    def _walk_entries(self) -> int:
        """Find the bounds and names of all entries; return the position after them. The rest is parsed on demand."""
        content = self._content
        end = len(content)
        pos = 0
        bounds, keys = array("Q", (0,)), array("Q")
        # Hot loop of `open`. Only what decides the next position is checked here; the rest is checked later in bulk.
        batch = _FEW_ROWS
        try:
            while pos < end and content[pos] == _ENTRY:
                alike = self._lines_alike(pos, end)
                if alike is not None:
                    batch = _FEW_ROWS
                    found, positions = alike
                    check_encodings(found)
                    bounds.frombytes(positions[1:].tobytes())
                    keys.frombytes(_keys(found, positions[:-1]).tobytes())
                    pos = int(positions[-1])
                    continue
                names: list[bytes] = []
                starts: list[int] = []
                stops: list[int] = []
                add_name, add_start, add_stop = names.append, starts.append, stops.append
                for _ in range(batch):
                    if pos >= end or content[pos] != _ENTRY:
                        break
                    add_start(pos)
                    size = content[pos + 1]
                    body = pos + 2
                    if size >= 0x80:
                        size, body = read_minimal_varint(content, pos + 1, end)
                    stop = body + size
                    names_stop = stop - _OFFSETS_BYTES
                    name = b""
                    if content[body] == _NAME:
                        size = content[body + 1]
                        begin = body + 2
                        if size >= 0x80:
                            size, begin = read_minimal_varint(content, body + 1, end)
                        body = begin + size
                        if not size or body > names_stop:
                            raise DecodeError("name of an index entry is empty or cut off", offset=pos)
                        name = content[begin:body]
                    add_name(name)
                    add_stop(stop)
                    pos = stop
                    if content[body] == _ALIAS:
                        self._read_aliases(body, min(names_stop, end), names, starts)
                        if len(names) > _ROWS:
                            break
                # Back off: after each failed attempt to find lines of equal length, wait twice as long for the next.
                batch = min(2 * batch, _ROWS)
                bounds.extend(stops)
                check_encodings(names)
                keys.frombytes(_keys(names, np.array(starts, np.uint64)).tobytes())
        except IndexError:
            pos = end + 1
        if pos > end:
            raise TruncatedError("index entry is cut off", needed=pos, available=end, field="entries")
        self._bounds, self._keys = np.frombuffer(bounds, np.uint64), np.frombuffer(keys, np.uint64)
        return pos

    def _lines_alike(self, pos: int, end: int) -> tuple[list[bytes], Numbers] | None:
        """Return the names of many lines of equal length from `pos` on, and the lines' begins and the end of the last.

        Numbered names ("layer.001") give entries of equal length; such runs are parsed with one vectorised pass. None
        if the next lines have other lengths or aliases.
        """
        content = self._content
        try:
            size, body = read_minimal_varint(content, pos + 1, end)
            length, begin = read_minimal_varint(content, body + 1, end)
        except DecodeError:
            return None
        step, head = body + size - pos, begin - pos
        stop = head + length
        count = min((end - pos) // step, _ROWS)
        if content[body] != _NAME or not 0 < length <= step - head - _OFFSETS_BYTES or count < _FEW_ROWS:
            return None
        rows = np.frombuffer(content, np.uint8, count * step, pos).reshape(count, step)
        for few in (_FEW_ROWS, count):
            same = (rows[:few, :head] == rows[0, :head]).all(axis=1)
            same &= (rows[:few, stop] != _ALIAS) & (rows[:few, head:stop] != 0).all(axis=1)
            count = few if same.all() else int(same.argmin())
            if count < _FEW_ROWS:
                return None
        names = np.ascontiguousarray(rows[:count, head:stop]).view(f"S{length}")[:, 0].tolist()
        return names, np.arange(pos, pos + count * step + 1, step).astype(np.uint64)

    def _read_aliases(self, pos: int, stop: int, names: list[bytes], starts: list[int]) -> None:
        content = self._content
        count = 0
        while pos < stop and content[pos] == _ALIAS:
            size, begin = read_minimal_varint(content, pos + 1, stop)
            if not size or begin + size > stop:
                raise DecodeError("alias of an index entry is empty or cut off", offset=pos)
            names.append(content[begin : begin + size])
            starts.append(pos)
            pos = begin + size
            count += 1
        if count > MAX_ALIASES:
            raise LimitError(f"{count} aliases", declared=count, limit=MAX_ALIASES, field="aliases")

    def _check_names(self) -> None:
        """Raise DecodeError if a name occurs twice."""
        keys = self._keys
        keys.sort()
        for part in range(0, len(keys), _ROWS):
            hashes = keys[part : part + _ROWS + 1] & _HASH
            for at in np.flatnonzero(hashes[1:] == hashes[:-1]):
                name = self._name_at(int(keys[part + at] & _POSITION))
                if self._count(name) > 1:
                    raise DecodeError(f"duplicate name {name.decode()!r} in the index", field="name")
        if len(keys) > 1 and self._count(b""):
            raise DecodeError("the empty name is reserved for a file's only tensor", field="name")

    def _read_offsets(self, limit: int) -> Numbers:
        """Return the extents of all entries, checked."""
        ends = self._bounds[1:]
        raw = np.frombuffer(self._content, np.uint8)
        offsets = np.empty((len(ends), 3), np.uint64)
        top = np.uint64(limit)
        for part in range(0, len(ends), _ROWS):
            rows = slice(part, part + _ROWS)
            bounds = self._bounds[part : part + _ROWS + 1]
            if int((bounds[1:] - bounds[:-1]).min()) < _MIN_ENTRY_BYTES:
                raise DecodeError("index entry without header and offsets", field="entries")
            tails = raw[ends[rows, None].astype(np.int64) + np.arange(-_OFFSETS_BYTES, 0)]
            fields = tails.view(_FIXED64_FIELD)
            if (fields["tag"] != _OFFSET_TAGS).any():
                raise DecodeError("index entry without its three offsets", field="entries")
            offsets[rows] = fields["value"]
            record, data, size = offsets[rows].T
            if not ((record < data) & (data <= top) & (size <= top - data) & (record >= len(MAGIC))).all():
                raise DecodeError(f"an index entry points outside the records, [{len(MAGIC)}, {limit})")
            longest = int((data - record).max())
            if longest > MAX_HEAD_BYTES:
                raise LimitError(
                    f"a record's payload begins {longest} bytes after it", declared=longest, limit=MAX_HEAD_BYTES
                )
            if ((data % RECORD_ALIGNMENT != 0) & (size != 0)).any():
                raise DecodeError(f"a payload does not begin at a multiple of {RECORD_ALIGNMENT}", field="data_offset")
        return offsets

    def _read_ending(self, pos: int) -> None:
        content = self._content
        end = len(content)
        begin = pos
        last = _METADATA_NUMBER
        base_offset = base_sum = 0
        metadata_end = begin
        while pos < end:
            field = read_field(content, pos, end)
            if field.number < last or (field.number == last != _METADATA_NUMBER):
                raise DecodeError(f"field {field.number} after field {last} of the index", offset=pos)
            last = field.number
            if last <= _SUM_NUMBER and field.wire_type != (LEN if last == _METADATA_NUMBER else FIXED64):
                raise DecodeError(f"field {last} of the index has wire type {field.wire_type}", offset=pos)
            if last == _METADATA_NUMBER:
                if field.end - begin > MAX_FILE_METADATA_BYTES:
                    declared = field.end - begin
                    raise LimitError(
                        f"{declared} bytes or more", declared=declared, limit=MAX_FILE_METADATA_BYTES, field="metadata"
                    )
                metadata_end = field.end
            elif last == _OFFSET_NUMBER:
                base_offset = int.from_bytes(content[field.content : field.end], "little")
            elif last == _SUM_NUMBER:
                base_sum = int.from_bytes(content[field.content : field.end], "little")
            pos = field.end
        self._metadata = content[begin:metadata_end]
        if base_offset:
            self.base = (base_offset, base_sum)
        elif base_sum:
            raise DecodeError("a base index's sum without its offset", field="base_index_xxh3_64")

    # --- looking ------------------------------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Value]:
        """Return the file metadata that this index states.

        Raises:
            DecodeError: Malformed metadata.
        """
        return decode_map(self._metadata, MAX_FILE_METADATA_BYTES)

    def find(self, name: bytes) -> int | None:
        """Return the ordinal of the entry with a name, or None."""
        for position in self._positions(name):
            return int(np.searchsorted(self._bounds, position, "right")) - 1
        return None

    def names(self) -> Iterator[tuple[str, int]]:
        """Yield every name with the ordinal of its entry, in writing order."""
        positions = self._keys & _POSITION
        positions.sort()
        for part in range(0, len(positions), _ROWS):
            rows = positions[part : part + _ROWS]
            owners = np.searchsorted(self._bounds, rows, "right") - 1
            for position, owner in zip(rows.tolist(), owners.tolist(), strict=True):
                yield self._name_at(position).decode(), owner

    def _positions(self, name: bytes) -> Iterator[np.uint64]:
        """Yield the positions of entries and aliases that have a name."""
        hashed = np.uint64(hash(name) & int(_HASH))
        at = int(np.searchsorted(self._keys, hashed))
        while at < len(self._keys) and self._keys[at] & _HASH == hashed:
            position = self._keys[at] & _POSITION
            if self._name_at(int(position)) == name:
                yield position
            at += 1

    def _count(self, name: bytes) -> int:
        return sum(1 for _ in self._positions(name))

    def _name_at(self, position: int) -> bytes:
        """Return the name in the entry, or in the alias, that begins at a position."""
        content = self._content
        end = len(content)
        if content[position] == _ENTRY:
            position = read_minimal_varint(content, position + 1, end)[1]
            if content[position] != _NAME:
                return b""
        size, begin = read_minimal_varint(content, position + 1, end)
        return content[begin : begin + size]

    def line(self, ordinal: int) -> bytes:
        """Return an entry's bytes in the index."""
        return self._content[int(self._bounds[ordinal]) : int(self._bounds[ordinal + 1])]

    def entry(self, ordinal: int) -> Entry:
        """Parse an entry.

        Raises:
            DecodeError: Malformed entry.
        """
        content = self._content
        begin, stop = int(self._bounds[ordinal]), int(self._bounds[ordinal + 1])
        _, pos = read_minimal_varint(content, begin + 1, stop)
        names_begin = pos
        offsets_begin = stop - _OFFSETS_BYTES
        last = 0
        header = sums = b""
        names_end = pos
        while pos < offsets_begin:
            field = read_field(content, pos, offsets_begin)
            number = field.number
            if number < last or (number == last and last not in tags.REPEATED_NUMBERS):
                raise DecodeError(f"field {number} after field {last} of an index entry", offset=pos)
            last = number
            if number in tags.ENTRY_CRITICAL:
                refuse_critical(number, pos)
            if number <= _SUMS_NUMBER and field.wire_type != LEN:
                raise DecodeError(f"field {number} of an index entry has wire type {field.wire_type}", offset=pos)
            if number < _HEADER_NUMBER:
                names_end = field.end
                if names_end - names_begin > MAX_NAMES_BYTES:
                    raise names_too_large(names_end - names_begin, pos)
            elif number == _HEADER_NUMBER:
                header = content[field.content : field.end]
            elif number == _SUMS_NUMBER:
                sums = content[field.content : field.end]
            elif number > _LAST_IGNORED:
                raise DecodeError(f"field {number} of an index entry", offset=pos)
            pos = field.end
        record, data, size = map(int, self.offsets[ordinal])
        if not header and (size or sums):
            raise DecodeError("an index entry without a header must not have a payload", offset=begin)
        return Entry(content[names_begin:names_end], header, sums, record, data, size)

    @cached_property
    def removed(self) -> frozenset[int]:
        """Ordinals of the entries for records that remove their names."""
        return frozenset(i for i in np.flatnonzero(self.offsets[:, 2] == 0).tolist() if self.removes(i))

    def removes(self, ordinal: int) -> bool:
        """Return True if an entry stands for a record that removes its names."""
        return not self.offsets[ordinal, 2] and not self.entry(ordinal).header


def _keys(names: Sequence[bytes], positions: Numbers) -> Numbers:
    """Return the keys of names. Python salts the hashes, so nobody can choose names whose keys collide."""
    hashes = np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)
    keys: Numbers = hashes & _HASH | positions
    return keys


def check_index(region: Buffer, index_offset: int, index_sum: int) -> bytes:
    """Return the content of the index at the start of `region`, which ends with the index_offset field.

    Raises:
        ChecksumError: The index was damaged.
        DecodeError: The index does not fill the region.
    """
    check_sum(index_sum, xxh3(region), "index")
    end = len(region) - SUM_FIELD_BYTES
    if region[:1] != INDEX_TAG:
        raise DecodeError("no index stands where the trailer says", offset=index_offset)
    size, pos = read_minimal_varint(region, 1, end)
    if pos + size != end:
        raise DecodeError(f"index of {size} bytes does not end at its trailer", offset=index_offset)
    if size > MAX_MESSAGE_BYTES:
        raise LimitError(f"index of {size} bytes", declared=size, limit=MAX_MESSAGE_BYTES, offset=index_offset)
    return bytes(region[pos:end])
