"""Saving the whole records of a damaged tensor file."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..errors import DecodeError
from ..message.names import Value, split_names
from .appender import live_lines, lock
from .chain import Link, read_chain, trailer_at
from .entry import CheckedEntry, WholeRecord, payload_of, read_whole
from .index import MAGIC, Index, entry_bytes, index_bytes, metadata_bytes, removal_bytes, split_line
from .sink import FileSink
from .storage import Storage, open_path
from .walk import Walk, check_magic, walk
from .writer import FileWriter, copy_record


class Recovery(NamedTuple):
    """The result of a recovery.

    Attributes:
        names: Names whose tensors are whole, in the order they were written.
        problems: One error for each record or part that was left behind, in the order of the file; those of its end
            last.
    """

    names: list[str]
    problems: list[DecodeError]


class _Found(NamedTuple):
    """The whole records of a file, and its faults.

    Attributes:
        records: The whole ones, in the order of the file.
        end: End of the last of them, or of the last complete generation.
        metadata: User metadata of the file, by the newest index that can be read.
        problems: The faults of the file.
        only_tail: True if the faults all stand behind `end`.
    """

    records: list[WholeRecord]
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
        target: Path of the file of whole records. Not given: mend `source` in place; if only its tail is torn,
            that is cut off and an index is added, else the file is replaced by one of its whole records.
        durable: Wait until the result is on disk.

    Returns:
        The names that were saved, and the faults.

    Raises:
        DecodeError: Not a tensor file.
        EncodeError: Not all records fit one file, whose index takes at most 2^31-1 bytes.
        BlockingIOError: Mending in place, and another process is appending to the file.
        OSError: The file cannot be read, or the result cannot be written; `source` is as it was.
    """
    where = os.fsdecode(source)
    # A mapping keeps a descriptor of its own, which must not be that of the lock: it would outlive this call.
    locked = lock(where) if target is None else None
    try:
        content = open_path(where)
        try:
            found = _find(content)
            if locked is not None and found.only_tail:
                names = _mend(locked, content.size, found, durable)
            else:
                names = _copy(content, found, where if target is None else target, durable)
        except DecodeError as error:
            error.at(path=where)
            raise
        finally:
            content.close()
    finally:
        if locked is not None:
            os.close(locked)
    return Recovery(names, [problem.at(path=where) for problem in found.problems])


def _find(source: Storage) -> _Found:
    """Read every record."""
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
    records: list[WholeRecord] = []
    for offset in sorted(offsets):
        try:
            if records and offset < records[-1].entry.end:
                raise DecodeError("an index entry points into another record", offset=offset)
            records.append(read_whole(source, offset))
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
    """Return the indexes of the newest generation that can be read, and the faults of newer ones."""
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


def _lines(records: list[WholeRecord]) -> list[bytes]:
    """Return index lines of the records that still have a name."""
    lines = []
    for header, entry in records:
        if header is None:
            lines.append(removal_bytes(entry.names, entry.record_offset, entry.end))
            continue
        assert header.checksum is not None
        sums = CheckedEntry(header, header.checksum, entry).sums
        lines.append(entry_bytes(entry.names, header, sums, entry.record_offset, entry.data_offset))
    return live_lines(lines)


def _names(lines: list[bytes]) -> list[str]:
    return [name for line in lines for name in split_names(split_line(line)[0])[0]]


def _mend(fd: int, size: int, found: _Found, durable: bool) -> list[str]:
    """Cut off a torn tail, and index the records before it."""
    lines = _lines(found.records)
    if found.problems or found.end < size:
        os.ftruncate(fd, found.end)
        sink = FileSink(fd, found.end)
        sink.append(*index_bytes(lines, metadata_bytes(found.metadata), found.end))
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
            assert record.header is not None  # a removal has no line among the live ones
            copy_record(f, entry.names, record.header, payload_of(source, record.entry))
    return _names(lines)
