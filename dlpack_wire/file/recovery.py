"""Saving what is whole in a damaged tensor file."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..errors import DecodeError
from ..message.names import MAX_FILE_METADATA_BYTES, MAX_NAMES_BYTES, Value, decode_map, encode_map, split_names
from ..tensor.checksum import check_contents
from ..tensor.header import Header
from .appender import live_lines, lock
from .chain import Link, read_chain, trailer_at
from .entry import payload_of, read_entry, read_record
from .index import MAGIC, Entry, Index, entry_bytes, index_bytes, split_line
from .sink import FileSink
from .storage import MappedBytes, MemoryBytes, Storage
from .walk import Walk, check_magic, walk
from .writer import FileWriter


class Recovery(NamedTuple):
    """What became of a damaged file.

    Attributes:
        names: Names whose tensors are whole, in the order they were written.
        problems: What was wrong: one error for each record or part that was left behind.
    """

    names: list[str]
    problems: list[DecodeError]


class _Whole(NamedTuple):
    """A record that is whole."""

    names: bytes
    header: Header
    entry: Entry


class _Found(NamedTuple):
    """All that can be made out of a file.

    Attributes:
        records: The whole ones, in the order of the file.
        end: Where the last of them or the last complete generation ends.
        metadata: User metadata of the file, by the newest index that can be read.
        problems: What is wrong with the file.
        only_tail: Whether nothing is wrong but what stands behind `end`.
    """

    records: list[_Whole]
    end: int
    metadata: dict[str, Value]
    problems: list[DecodeError]
    only_tail: bool


def recover(source: Any, target: Any = None, *, durable: bool = True) -> Recovery:
    """Save every whole record of a damaged or unfinished tensor file.

    Records are found by walking forward over the file's fields, never by searching: a payload may itself be a file.
    Where the walk is stopped, it goes on at the next record that an index names. A record whose header or payload
    does not match its checksum is left behind. Of several records with one name the last whole one counts.

    Args:
        source: Path of the damaged file.
        target: Where to write the file of whole records. Not given: mend `source` in place; if only its tail is torn,
            that is cut off and an index is added, else the file is replaced by one of its whole records.
        durable: Wait until the result is on disk.

    Returns:
        The names that were saved, and what was wrong.

    Raises:
        DecodeError: It is no tensor file.
        BlockingIOError: Mending in place, and another process is appending to the file.
        OSError: The result could not be written; `source` is as it was.
    """
    where = os.fsdecode(source)
    # A mapping keeps a descriptor of its own, which must not be that of the lock: it would outlive this call.
    locked = lock(where) if target is None else None
    try:
        content = _content(where)
        try:
            found = _find(content)
            if locked is not None and found.only_tail:
                names = _mend(locked, content.size, found, durable)
            else:
                names = _copy(content, found, where if target is None else target, durable)
        except DecodeError as error:
            raise error.at(path=where) from None
        finally:
            content.close()
    finally:
        if locked is not None:
            os.close(locked)
    return Recovery(names, [problem.at(path=where) for problem in found.problems])


def _content(path: str) -> Storage:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size:
            return MappedBytes(fd, size)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return MemoryBytes(b"")


def _find(source: Storage) -> _Found:
    """Look at every record."""
    damage: list[DecodeError] = []
    magic = bytes(source.read(0, min(len(MAGIC), source.size)))
    try:
        check_magic(magic, source.size)
    except DecodeError as error:
        damage.append(error)
    walked = walk(source)
    chain, faults = _newest_chain(source, walked)
    damage += faults
    offsets = set(walked.records)
    for link in chain:
        offsets.update(link.index.offsets[:, 0].tolist())
    records: list[_Whole] = []
    for offset in sorted(offsets):
        try:
            if records and offset < records[-1].entry.end:
                raise DecodeError("an index entry points into another record", offset=offset)
            records.append(_read_whole(source, offset))
        except DecodeError as error:
            damage.append(error)
    if not records and not MAGIC.startswith(magic):
        raise damage[0]
    tail: list[DecodeError] = []
    if walked.stopped is not None:
        tail.append(walked.stopped)
    elif walked.complete_end != source.size:
        tail.append(DecodeError("not finalised: no index and trailer end the file", offset=source.size))
    metadata: dict[str, Value] = {}
    for link in chain:
        metadata.update(link.index.metadata())
    end = max(walked.complete_end, records[-1].entry.end if records else 0, len(MAGIC))
    return _Found(records, end, metadata, damage + tail, not damage)


def _newest_chain(source: Storage, walked: Walk) -> tuple[list[Link], list[DecodeError]]:
    """The indexes of the newest generation that can be read, and the faults of newer ones."""
    faults: list[DecodeError] = []
    for end in dict.fromkeys((source.size, *reversed(walked.ends))):
        trailer = trailer_at(source, end)
        if trailer is None:
            continue
        try:
            chain = read_chain(source, trailer, end)
            for link in chain:
                link.index.metadata()
            return chain, faults if end in walked.ends else []
        except DecodeError as error:
            if end in walked.ends:
                faults.append(error)
    return [], faults


def _read_whole(source: Storage, offset: int) -> _Whole:
    """A record with header, metadata and payload as they were written."""
    names: list[str] = []
    try:
        head = read_record(source, offset)
        names, metadata = split_names(head.names)
        decode_map(metadata, MAX_NAMES_BYTES)
        entry = Entry(head.names, head.header, offset, head.data_offset, head.end - head.data_offset)
        header, checksum, _ = read_entry(entry)
        check_contents(header, checksum, payload_of(source, entry))
    except DecodeError as error:
        raise error.at(tensor=names[0] if names else None, offset=offset) from None
    return _Whole(head.names, header, entry)


def _lines(records: list[_Whole]) -> list[bytes]:
    """Index lines of the records that still have a name."""
    lines = []
    for names, header, entry in records:
        assert header.checksum is not None
        lines.append(entry_bytes(names, header, header.checksum, entry.record_offset, entry.data_offset))
    return live_lines(lines)


def _names(lines: list[bytes]) -> list[str]:
    return [name for line in lines for name in split_names(split_line(line)[0])[0]]


def _mend(fd: int, size: int, found: _Found, durable: bool) -> list[str]:
    """Cut off a torn tail, and index what stands before it."""
    lines = _lines(found.records)
    if found.problems or found.end < size:
        os.ftruncate(fd, found.end)
        sink = FileSink(fd, found.end)
        metadata = encode_map(2, found.metadata, MAX_FILE_METADATA_BYTES)
        sink.append(*index_bytes(lines, metadata, found.end))
        sink.flush()
        if durable:
            os.fsync(fd)
    return _names(lines)


def _copy(source: Storage, found: _Found, target: Any, durable: bool) -> list[str]:
    """Write a new file of the records that still have a name."""
    lines = _lines(found.records)
    index = Index(b"".join(lines), source.size)
    at = {record.entry.record_offset: record for record in found.records}
    with FileWriter(target, metadata=found.metadata, durable=durable) as f:
        for ordinal in range(len(index)):
            entry = index.entry(ordinal)
            record = at[entry.record_offset]
            f.copy(entry.names, record.header, payload_of(source, record.entry))
    return _names(lines)
