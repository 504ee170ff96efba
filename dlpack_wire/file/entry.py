"""An entry of the index, held against its record."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ..errors import DecodeError
from ..message import reading, writing
from ..message.names import MAX_NAMES_BYTES, decode_map, split_names
from ..message.tags import SUM_FIELD_BYTES, byte
from ..tensor import header as headers
from ..tensor.checksum import (
    BLOCK_BYTES,
    SUM_BYTES,
    block_sums,
    check_block_sums,
    check_blocks,
    check_sum,
    check_values,
    total,
)
from ..tensor.header import Header
from ..tensor.memory import Buffer
from . import tags
from .index import Entry
from .record import MAX_HEAD_BYTES, RECORD_ALIGNMENT, RecordHead, plan_record, prefix, read_head
from .storage import Storage

_REMEMBERED_BYTES = 128
"""Header fields up to this size are parsed once, however many tensors of a file share them. Those of most tensors take
10 to 60 bytes; the cap bounds the memory that the headers of a hostile file may keep here.
"""

_METADATA_TAG = byte(tags.METADATA)


class CheckedEntry(NamedTuple):
    """An entry of the index that agrees with its record.

    Attributes:
        header: Its header, with the checksum.
        checksum: XXH3-64 of the payload.
        entry: The entry.
    """

    header: Header
    checksum: int
    entry: Entry

    @property
    def sums(self) -> bytes:
        """Sums of the payload's blocks, 8 bytes each."""
        if self.entry.sums or not self.entry.data_bytes:
            return self.entry.sums
        return self.checksum.to_bytes(SUM_BYTES, "little")


def read_entry(entry: Entry) -> CheckedEntry:
    """Return the header and checksum of an index entry, checked by themselves.

    Raises:
        DecodeError: Malformed fields.
    """
    fields = entry.header[:-SUM_FIELD_BYTES]
    if len(fields) <= _REMEMBERED_BYTES and entry.header[len(fields) : len(fields) + 1] == writing.SUM_TAG:
        header = _header_of(fields)
        if header is not None:
            headers.check_payload_size(header, entry.data_bytes)
            checksum = int.from_bytes(entry.header[-8:], "little")
            _check_sums(header, checksum, entry.sums)
            return CheckedEntry(header.with_checksum(checksum), checksum, entry)
    located = reading.read(entry.header, 0, len(entry.header))
    if located.data_begin != located.data_end:
        raise DecodeError("an index entry's header has a payload", field="data")
    if located.checksum is None:
        raise DecodeError("missing", field="data_sum")
    headers.check_payload_size(located.header, entry.data_bytes)
    _check_sums(located.header, located.checksum, entry.sums)
    return CheckedEntry(located.header.with_checksum(located.checksum), located.checksum, entry)


def _check_sums(header: Header, checksum: int, sums: bytes) -> None:
    if header.payload_bytes > BLOCK_BYTES:
        check_block_sums(header, checksum, sums)
    elif sums:
        raise DecodeError("stated for a payload of one block", field="block_sums")


# Many tensors of a file share these fields. An lru_cache, not a Memo: one argument, and its C code makes hits cheapest.
@lru_cache(maxsize=4096)
def _header_of(fields: bytes) -> Header | None:
    """Return the header in fields that end where a checksum begins, or None if they take the strict way."""
    try:
        located = reading.read(fields, 0, len(fields))
    except DecodeError:
        return None
    return located.header if located.data_begin == located.data_end else None


def check_record(source: Storage, located: CheckedEntry) -> None:
    """Hold an index entry against the head of its record.

    Raises:
        DecodeError: Entry and record differ, or one of them is malformed.
    """
    entry = located.entry
    region = source.read(entry.record_offset, entry.data_offset)
    if not _is_as_we_write(region, located):
        head = read_head(region, 0, source.size, entry.record_offset)
        if (head.data_offset, head.end) != (entry.data_offset, entry.end):
            raise DecodeError(
                f"record [{head.data_offset}, {head.end}), index entry [{entry.data_offset}, {entry.end})",
                offset=entry.record_offset,
            )
        if head.header != entry.header:
            raise DecodeError("the record's header differs from its index entry's", offset=entry.record_offset)
        if head.names != entry.names:
            check_entry_names(head.names, entry.names)
    if _METADATA_TAG in entry.names:  # cheap test, true also if a name contains the byte; most records have neither
        decode_map(split_names(entry.names)[1], MAX_NAMES_BYTES)


def _is_as_we_write(region: Buffer, located: CheckedEntry) -> bool:
    """Return True if a record's head has, sums included, the bytes that this package writes for its index entry.

    Such a head needs no parsing: comparing bytes is ten times as fast.
    """
    header, checksum, entry = located
    planned = plan_record(
        header.with_checksum(None), len(entry.names), entry.record_offset % RECORD_ALIGNMENT, RECORD_ALIGNMENT
    )
    return planned.middle.endswith(entry.header[:-8]) and region == prefix(planned, entry.names, checksum)


def check_entry_names(record: bytes, entry: bytes) -> None:
    """Require an entry's names to be among its record's, and equal metadata."""
    record_names, record_metadata = split_names(record)
    entry_names, entry_metadata = split_names(entry)
    strange = set(entry_names) - set(record_names)
    if strange:
        raise DecodeError(f"index entry names {sorted(strange)}, its record {record_names}", field="name")
    if record_metadata != entry_metadata:
        raise DecodeError("the record's metadata differs from its index entry's", field="metadata")


def read_record(source: Storage, offset: int) -> RecordHead:
    """Read the head of the record at an offset.

    Raises:
        DecodeError: Malformed record.
    """
    return read_head(source.read(offset, min(offset + MAX_HEAD_BYTES, source.size)), 0, source.size, offset)


def payload_of(source: Storage, entry: Entry) -> memoryview:
    """Return the bytes of a record's payload."""
    memory, begin = source.memory(entry.data_offset, entry.end)
    return memoryview(memory)[begin : begin + entry.data_bytes]


_PART_BYTES = 64 * BLOCK_BYTES
"""Bytes of a payload that are checked at a time: enough for all cores."""


class WholeRecord(NamedTuple):
    """A record whose header, names, metadata and payload are as they were written.

    Attributes:
        header: Its header, with the checksum; None if it removes its names.
        entry: The index entry that describes it.
    """

    header: Header | None
    entry: Entry


def _check_payload(source: Storage, entry: Entry, header: Header, checksum: int, listed: bytes) -> bytes:
    """Check a payload part by part, so that it need not fit into memory; return the sums of its blocks."""
    size = entry.data_bytes
    sums = b""
    fault: DecodeError | None = None
    for begin in range(0, size, _PART_BYTES):
        part = source.read(entry.data_offset + begin, entry.data_offset + min(begin + _PART_BYTES, size))
        sums += block_sums(part)
        try:
            check_values(header, begin, part)
        except DecodeError as error:
            fault = fault or error  # of damaged bytes the sum tells more
    if total(sums) != checksum and len(listed) == len(sums) > SUM_BYTES and total(listed) == checksum:
        for number in range(len(sums) // SUM_BYTES):
            block = slice(number * SUM_BYTES, (number + 1) * SUM_BYTES)
            if sums[block] != listed[block]:
                begin = entry.data_offset + number * BLOCK_BYTES
                data = source.read(begin, min(begin + BLOCK_BYTES, entry.end))
                check_blocks(listed[block], number, len(sums) // SUM_BYTES, data)
    check_sum(checksum, total(sums), "payload")
    if fault is not None:
        raise fault
    return sums


def read_whole(
    source: Storage,
    offset: int,
    found: Callable[[list[str], Entry], None] | None = None,
    listed: bytes = b"",
) -> WholeRecord:
    """Read a record and check all of it, payload included.

    Args:
        source: The file.
        offset: Position of the record's tag.
        found: Called with names and entry before header and payload are checked, which may be damaged.
        listed: Sums of the payload's blocks by an index, if one has them, so that a damaged block can be named.

    Raises:
        DecodeError: Damaged or malformed; the error names the tensor as far as its name could be read.
    """
    names: list[str] = []
    try:
        head = read_record(source, offset)
        names, metadata = split_names(head.names)
        decode_map(metadata, MAX_NAMES_BYTES)
        entry = Entry(head.names, head.header, b"", offset, head.data_offset, head.end - head.data_offset)
        if found is not None:
            found(names, entry)
        if not head.header:
            return WholeRecord(None, entry)
        located = reading.read(head.header, 0, len(head.header))
        checksum = located.checksum
        if checksum is None:
            raise DecodeError("missing", field="data_sum")
        headers.check_payload_size(located.header, entry.data_bytes)
        sums = _check_payload(source, entry, located.header, checksum, listed)
        if len(sums) > SUM_BYTES:
            entry = entry._replace(sums=sums)
    except DecodeError as error:
        if not names:
            error.args = (f"record: {error.args[0]}",)
        error.at(tensor=names[0] if names else None, offset=offset)
        raise
    return WholeRecord(located.header.with_checksum(checksum), entry)
