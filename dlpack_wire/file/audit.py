"""Verifying a tensor file: every byte that matters, in all generations."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import DecodeError
from ..message.names import MAX_NAMES_BYTES, decode_map, split_names
from ..tensor.checksum import check_contents
from .chain import MAX_CHAIN, trailer_at
from .entry import check_entry_names, payload_of, read_entry, read_record
from .index import Entry, Index, Trailer, check_index
from .reader import FileReader
from .storage import Storage
from .walk import walk


def problems(f: FileReader) -> Iterator[DecodeError]:
    """Every fault of an open file, one by one; none proves that its indexes and its whole content say the same."""
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
    records = _Records(f.source)
    for offset in walked.records:
        if offset < f.generation_end:
            yield from records.check(offset)
    # Every index is read once: a chain is right if each link is, and names an earlier one as its base.
    depths: dict[Trailer, int] = {}
    for end in walked.ends:
        yield from _generation_problems(f.source, end, depths, records)
    yield from _name_problems(f, records)


class _Records:
    """The records of a file, as far as its indexes have to say the same.

    Attributes:
        claimed: Every name and the position of the last record that claims it.
    """

    def __init__(self, source: Storage) -> None:
        self.claimed: dict[str, int] = {}
        self._source = source
        # Hashes stand for bytes: a file may have millions of records.
        self._names: dict[int, int] = {}
        self._tensors: dict[int, int] = {}
        self._lines: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        return offset in self._names

    def check(self, offset: int) -> Iterator[DecodeError]:
        """Check one record by itself, payload included, and note what it says."""
        names: list[str] = []
        try:
            head = read_record(self._source, offset)
            names, metadata = split_names(head.names)
            decode_map(metadata, MAX_NAMES_BYTES)
            self.claimed.update(dict.fromkeys(names, offset))
            entry = Entry(head.names, head.header, offset, head.data_offset, head.end - head.data_offset)
            header, checksum, _ = read_entry(entry)
            self._names[offset], self._tensors[offset] = hash(entry.names), hash(entry[1:])
            check_contents(header, checksum, payload_of(self._source, entry))
        except DecodeError as error:
            if not names:
                error.args = (f"record: {error.args[0]}",)
            yield error.at(tensor=names[0] if names else None, offset=offset)

    def compare(self, index: Index) -> Iterator[DecodeError]:
        """Hold the entries of an index against their records; those that are the same as in another index only once."""
        for ordinal in range(len(index)):
            line = hash(index.line(ordinal))
            if line not in self._lines:
                self._lines.add(line)
                yield from self._compare_entry(index, ordinal)

    def _compare_entry(self, index: Index, ordinal: int) -> Iterator[DecodeError]:
        name: str | None = None
        offset = int(index.offsets[ordinal, 0])
        try:
            entry = index.entry(ordinal)
            name = split_names(entry.names)[0][0]
            if offset not in self:
                raise DecodeError("no whole record stands where its index entry says")
            if self._tensors[offset] != hash(entry[1:]):
                raise DecodeError("the record's header or extent differs from its index entry's")
            if self._names[offset] != hash(entry.names):
                check_entry_names(read_record(self._source, offset).names, entry.names)
        except DecodeError as error:
            yield error.at(tensor=name, offset=offset)


def _generation_problems(
    source: Storage, end: int, depths: dict[Trailer, int], records: _Records
) -> Iterator[DecodeError]:
    """Check the index of the generation that ends there."""
    trailer = trailer_at(source, end)
    assert trailer is not None  # the walk saw it
    try:
        offset, index_sum = trailer
        index = Index(check_index(source.read(offset, end - 18), offset, index_sum), offset)
        index.metadata()
        depth = 0
        if index.base is not None:
            depth = depths.get(Trailer(*index.base), MAX_CHAIN) + 1
        if depth >= MAX_CHAIN:
            raise DecodeError("the index builds on none of this file's, or on too many", offset=offset)
        depths[trailer] = depth
    except DecodeError as error:
        yield error
    else:
        yield from records.compare(index)


def _name_problems(f: FileReader, records: _Records) -> Iterator[DecodeError]:
    """Require every name to denote its last record, by the live index as by a reader of the whole file."""
    indexed = set()
    for name, ordinal in f.ordinals():
        indexed.add(name)
        offset, last = f.record_offset(ordinal), records.claimed.get(name)
        if offset not in records:
            yield DecodeError("no whole record stands where its index entry says", tensor=name, offset=offset)
        elif last != offset:
            yield DecodeError(f"its index entry does not point at its last record, {last}", tensor=name, offset=offset)
    for name, offset in records.claimed.items():
        if name not in indexed:
            yield DecodeError("a record that the index does not know", tensor=name, offset=offset)
