"""Verifying a tensor file: every byte that matters, in all generations."""

from __future__ import annotations

from collections.abc import Iterator

from .chain import read_chain, trailer_at
from .checksum import check_contents
from .errors import DecodeError
from .index import Entry
from .metadata import decode_map
from .reader import FileReader, payload_of, read_entry, read_record
from .record import MAX_NAMES_BYTES, split_names
from .walk import walk


def problems(f: FileReader) -> Iterator[DecodeError]:
    """Every fault of an open file, one by one; none proves that its index and its whole content say the same."""
    for problem in _problems(f):
        yield problem.at(path=f.where)


def _problems(f: FileReader) -> Iterator[DecodeError]:
    walked = walk(f.source)
    if walked.stopped is not None:
        yield walked.stopped
    if f.torn_bytes:
        yield DecodeError(
            f"torn tail: {f.torn_bytes} bytes after the trailer of the last complete generation",
            offset=f.generation_end,
        )
    for end in walked.ends[:-1]:
        trailer = trailer_at(f.source, end)
        assert trailer is not None  # the walk saw it
        try:
            for link in read_chain(f.source, trailer, end):
                link.index.metadata()
        except DecodeError as error:
            yield error
    try:
        _ = f.metadata
    except DecodeError as error:
        yield error
    claimed: dict[str, int] = {}
    for offset in walked.records:
        if offset < f.generation_end:
            yield from record_problems(f, offset, claimed)
    yield from _index_problems(f, set(walked.records), claimed)


def record_problems(f: FileReader, offset: int, claimed: dict[str, int]) -> Iterator[DecodeError]:
    """Check one record by itself, note the names that it claims, and check its payload."""
    names: list[str] = []
    try:
        head = read_record(f.source, offset)
        names, metadata = split_names(head.names)
        decode_map(metadata, MAX_NAMES_BYTES)
        claimed.update(dict.fromkeys(names, offset))
        entry = Entry(head.names, head.header, offset, head.data_offset, head.end - head.data_offset)
        header, checksum, _ = read_entry(entry)
        check_contents(header, checksum, payload_of(f.source, entry))
    except DecodeError as error:
        if not names:
            error.args = (f"record: {error.args[0]}",)
        yield error.at(tensor=names[0] if names else None, offset=offset)


def _index_problems(f: FileReader, records: set[int], claimed: dict[str, int]) -> Iterator[DecodeError]:
    """Hold the live index against the records that were found without it."""
    indexed = set()
    for name, ordinal in f.ordinals():
        indexed.add(name)
        offset = f.record_offset(ordinal)
        if offset not in records:
            yield DecodeError("no record stands where its index entry says", tensor=name, offset=offset)
        elif claimed.get(name) != offset:
            yield DecodeError(
                f"its index entry points elsewhere than its last record, {claimed.get(name)}",
                tensor=name,
                offset=offset,
            )
        else:
            try:
                f.locate_entry(ordinal)
            except DecodeError as error:
                yield error.at(tensor=name)
    for name, offset in claimed.items():
        if name not in indexed:
            yield DecodeError("a record that the index does not know", tensor=name, offset=offset)
