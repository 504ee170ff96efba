"""Verifying a tensor file: every byte that matters, in all generations."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import DecodeError
from ..message.names import split_names
from .chain import MAX_CHAIN, read_index, trailer_at
from .contents import FileContents
from .entry import check_entry_names, read_entry, read_record, read_whole
from .index import Entry, Index, Trailer
from .storage import Storage
from .walk import walk


def problems(f: FileContents) -> Iterator[DecodeError]:
    """Yield every fault of an open file. In a file without faults, indexes and records describe the same tensors."""
    for problem in _problems(f):
        yield problem.at(path=f.where)


def _problems(f: FileContents) -> Iterator[DecodeError]:
    walked = walk(f.source)
    if walked.stopped is not None:
        yield walked.stopped
    if f.torn_bytes:
        yield DecodeError(
            f"torn tail: {f.torn_bytes} bytes after the trailer of the last complete generation",
            offset=f.generation_end,
        )
    records = _Records(f.source, f.listed_sums())
    for offset in walked.records:
        if offset < f.generation_end:
            yield from records.check(offset)
    # Every index is read once: a chain is right if each link is, and names an earlier one as its base.
    depths: dict[Trailer, int] = {}
    for end in walked.ends:
        yield from _generation_problems(f.source, end, depths, records)
    yield from _name_problems(f, records)


class _Records:
    """The records of a file, as its indexes must describe them.

    Attributes:
        claimed: Position of the last record of every name, without names that were removed.
    """

    def __init__(self, source: Storage, listed: dict[int, bytes]) -> None:
        self._listed = listed
        self.claimed: dict[str, int] = {}
        self._source = source
        # 64-bit hashes stand for the bytes, because a file may have millions of records. Python salts them for each
        # process, so no file can be made whose bytes differ and whose hashes do not. That two lines of a million have
        # equal hashes by chance, so that one of them is not checked, has a probability of 3e-8.
        self._names: dict[int, int] = {}
        self._tensors: dict[int, int] = {}
        self._lines: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        return offset in self._names

    def check(self, offset: int) -> Iterator[DecodeError]:
        """Check one record by itself, payload included, and note its names and header."""

        def note(names: list[str], entry: Entry) -> None:
            for name in names:
                if entry.header:
                    self.claimed[name] = offset
                else:
                    self.claimed.pop(name, None)
            self._names[offset], self._tensors[offset] = hash(entry.names), _tensor_hash(entry)

        try:
            read_whole(self._source, offset, note, self._listed.get(offset, b""))
        except DecodeError as error:
            yield error

    def compare(self, index: Index) -> Iterator[DecodeError]:
        """Hold the entries of an index against their records; entries repeated from another index only once."""
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
            if self._tensors[offset] != _tensor_hash(entry):
                raise DecodeError("the record's header or extent differs from its index entry's")
            if entry.header:
                read_entry(entry)
            if self._names[offset] != hash(entry.names):
                check_entry_names(read_record(self._source, offset).names, entry.names)
        except DecodeError as error:
            yield error.at(tensor=name, offset=offset)


def _tensor_hash(entry: Entry) -> int:
    """Return the hash of what an entry says beside its names. Its block sums are tied to the header's sum."""
    return hash((entry.header, entry.record_offset, entry.data_offset, entry.data_bytes))


def _generation_problems(
    source: Storage, end: int, depths: dict[Trailer, int], records: _Records
) -> Iterator[DecodeError]:
    """Check the index of the generation that ends there."""
    trailer = trailer_at(source, end)
    assert trailer is not None  # the walk saw it
    try:
        index = read_index(source, trailer, end)
        index.metadata()
        depth = 0
        if index.base is not None:
            depth = depths.get(Trailer(*index.base), MAX_CHAIN) + 1
        if depth >= MAX_CHAIN:
            raise DecodeError(
                "the base index is not one of this file's, or too many build on each other", offset=trailer.index_offset
            )
        depths[trailer] = depth
    except DecodeError as error:
        yield error
    else:
        yield from records.compare(index)


def _name_problems(f: FileContents, records: _Records) -> Iterator[DecodeError]:
    """Require every name to denote its last record, by the live index as by a reader of the whole file."""
    indexed = set()
    try:
        names = f.ordinals()
    except DecodeError:  # an entry that was named when its index was compared
        return
    for name, ordinal in names:
        indexed.add(name)
        offset, last = f.record_offset(ordinal), records.claimed.get(name)
        if offset not in records:
            yield DecodeError("no whole record stands where its index entry says", tensor=name, offset=offset)
        elif last != offset:
            yield DecodeError(f"its index entry does not point at its last record, {last}", tensor=name, offset=offset)
    for name, offset in records.claimed.items():
        if name not in indexed:
            yield DecodeError("a record that the index does not know", tensor=name, offset=offset)
