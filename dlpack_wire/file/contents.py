"""The contents of an open tensor file: its live indexes, and the entries that names denote."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ..errors import DecodeError
from ..message.names import Value, split_names
from ..tensor.checksum import BLOCK_BYTES
from .chain import Link, read_chain, trailer_at
from .entry import CheckedEntry, check_record, read_entry, read_record
from .index import MAGIC, TRAILER_BYTES, Entry, Index, Trailer
from .storage import Storage
from .walk import Walk, check_magic, walk

_MANY_NAMES = 32
"""Names looked up one by one; from then on a dictionary of all names is cheaper than a search for each."""


class _NewestEntry(NamedTuple):
    """The newest entry that has a name.

    Attributes:
        ordinal: Its ordinal.
        removes: True if it removes the name.
    """

    ordinal: int
    removes: bool


class FileContents:
    """The indexes of a file's last complete generation, and the entries in them, each checked when first used.

    An entry is known by its ordinal among those of all indexes, in writing order.

    Attributes:
        source: The file's bytes.
        where: Name of the file in errors.
        chain: The live indexes, oldest first.
        generation_end: Position of the end of the live generation.
        torn_bytes: Bytes after it: an append that runs, or was killed.
    """

    def __init__(self, source: Storage, where: str) -> None:
        """Find and read the live indexes.

        Args:
            source: The file's bytes; this object never closes them.
            where: Name of the file in errors.

        Raises:
            DecodeError: Not a tensor file, or damaged at its end.
        """
        self.source = source
        self.where = where
        self._checked: dict[int, CheckedEntry] = {}
        self._ordinals: dict[str, int] | None = None
        self._searches = 0
        try:
            self._open()
        except DecodeError as error:
            error.at(path=where)
            raise

    def _open(self) -> None:
        source = self.source
        size = source.size
        check_magic(source.read(0, min(len(MAGIC), size)), size)
        self.generation_end = size
        self.chain = self._live_chain()
        self.torn_bytes = size - self.generation_end
        self._indexes = [link.index for link in self.chain]
        self._starts = [0]
        for index in self._indexes:
            self._starts.append(self._starts[-1] + len(index))
        self._extents = begins, ends = _sorted_extents(self._indexes)
        self._has_gaps = len(begins) > 0 and (begins[0] != len(MAGIC) or bool((begins[1:] != ends[:-1]).any()))
        name_count = sum(index.name_count for index in self._indexes)
        if name_count > 1 and self.ordinal_of("") is not None and len(self) > 1:
            raise DecodeError("the empty name is reserved for a file's only tensor", field="name")

    def _live_chain(self) -> list[Link]:
        """Return the indexes of the last complete generation, and note its end."""
        end = self.generation_end
        trailer = trailer_at(self.source, end)
        fault: DecodeError | None = None
        if trailer is not None:
            try:
                return read_chain(self.source, trailer, end)
            except DecodeError as error:
                fault = error
        walked = walk(self.source)
        if fault is not None and trailer is not None and self._belongs(trailer, walked):
            raise fault
        self.generation_end = walked.complete_end
        trailer = trailer_at(self.source, self.generation_end)
        if trailer is None:
            raise DecodeError("not finalised: no generation is complete; recover() may save its records")
        return read_chain(self.source, trailer, self.generation_end)

    def _belongs(self, trailer: Trailer, walked: Walk) -> bool:
        """Return True if the trailer at the end of the file is the file's own, so that its generation is damaged.

        The tail may end in the trailer of a tensor file that was stored *as a payload*. The trailer is ours only if a
        walk from the last complete generation reaches it or its index.
        """
        ends = (self.source.size, self.source.size - TRAILER_BYTES, trailer.index_offset)
        if not walked.ends or walked.end in ends:
            return True
        begin, end = walked.complete_end, trailer.index_offset
        return begin <= end <= self.source.size and walk(self.source, begin, end).stopped is None

    def __len__(self) -> int:
        """Return the number of names."""
        if len(self._indexes) == 1 and not self._indexes[0].removed:
            return self._indexes[0].name_count
        return len(self._all_ordinals())

    def metadata(self) -> dict[str, Value]:
        """Return the user metadata of the file; later indexes replace keys of earlier ones.

        Raises:
            DecodeError: Malformed metadata.
        """
        metadata: dict[str, Value] = {}
        try:
            for index in self._indexes:
                metadata.update(index.metadata())
        except DecodeError as error:
            error.at(path=self.where)
            raise
        return metadata

    def dead_bytes(self) -> int:
        """Return how many bytes before the end of the live generation no name and no live index needs."""
        needed = len(MAGIC) + sum(link.end - link.trailer.index_offset for link in self.chain)
        for ordinal in {ordinal for _, ordinal in self.ordinals()}:
            at, within = self._index_of(ordinal)
            begin, data_begin, data_bytes = self._indexes[at].offsets[within].tolist()
            needed += data_begin + data_bytes - begin
        return self.generation_end - needed

    # --- names and ordinals -------------------------------------------------------------------------------------------

    def ordinals(self) -> Iterator[tuple[str, int]]:
        """Yield every name with the ordinal of its entry, in writing order."""
        if len(self._indexes) == 1 and self._ordinals is None and not self._indexes[0].removed:
            return self._indexes[0].names()
        return iter(self._all_ordinals().items())

    def record_offset(self, ordinal: int) -> int:
        """Return the position of an entry's record."""
        at, within = self._index_of(ordinal)
        return int(self._indexes[at].offsets[within, 0])

    def ordinal_of(self, name: str) -> int | None:
        """Return the ordinal of the entry that a name denotes, or None."""
        if self._ordinals is None and self._searches < _MANY_NAMES:
            self._searches += 1
            try:
                encoded = name.encode()
            except UnicodeEncodeError:
                return None
            found = self._newest(encoded)
            return None if found is None or found.removes else found.ordinal
        return self._all_ordinals().get(name)

    def _newest(self, name: bytes) -> _NewestEntry | None:
        """Return the newest entry that has a name, removals included."""
        for start, index in zip(reversed(self._starts[:-1]), reversed(self._indexes), strict=True):
            found = index.find(name)
            if found is not None:
                return _NewestEntry(start + found, index.removes(found))
        return None

    def ordinal(self, name: str) -> int:
        """Return the ordinal of the entry that a name denotes.

        Raises:
            KeyError: There is no such name.
        """
        found = self.ordinal_of(name)
        if found is None:
            raise KeyError(f"{self.where} has no tensor {name!r} among its {len(self)}")
        return found

    def _all_ordinals(self) -> dict[str, int]:
        """Return every name with its ordinal, in writing order; a later index takes over the names it carries."""
        if self._ordinals is None:
            found: dict[str, int] = {}
            try:
                for start, index in zip(self._starts, self._indexes, strict=False):
                    removed = index.removed
                    for name, ordinal in index.names():
                        found.pop(name, None)
                        if ordinal not in removed:
                            found[name] = start + ordinal
            except DecodeError as error:
                error.at(path=self.where)
                raise
            self._ordinals = found
        return self._ordinals

    def _index_of(self, ordinal: int) -> tuple[int, int]:
        """Return the number of the index that holds an entry, and the entry's ordinal in it."""
        at = bisect_right(self._starts, ordinal) - 1
        return at, ordinal - self._starts[at]

    def names(self, ordinal: int) -> list[str]:
        """Return every name that denotes an entry.

        Raises:
            DecodeError: The entry is malformed.
        """
        at, within = self._index_of(ordinal)
        names = split_names(self._indexes[at].entry(within).names)[0]
        return [name for name in names if self.ordinal_of(name) == ordinal]

    # --- entries ------------------------------------------------------------------------------------------------------

    def entry(self, ordinal: int) -> CheckedEntry:
        """Return an entry, held against the head of its record.

        Raises:
            DecodeError: Entry and record differ, or one of them is damaged or malformed.
        """
        found = self._checked.get(ordinal)
        if found is not None:
            return found
        at, within = self._index_of(ordinal)
        entry = self._indexes[at].entry(within)
        located = read_entry(entry)
        self._check_gap(entry)
        check_record(self.source, located)
        self._checked[ordinal] = located
        return located

    def _check_gap(self, entry: Entry) -> None:
        """Require whole fields between the record before and this one.

        Otherwise the entry could point into the payload of a record that the index does not name, and a reader of the
        whole file would see another tensor.
        """
        if not self._has_gaps:
            return
        begins, ends = self._extents
        at = int(np.searchsorted(begins, np.uint64(entry.record_offset)))
        before = int(ends[at - 1]) if at else len(MAGIC)
        if before != entry.record_offset:
            walked = walk(self.source, before, entry.record_offset)
            if walked.stopped is not None:
                raise DecodeError(
                    f"no record begins at {entry.record_offset}: {walked.stopped}", offset=entry.record_offset
                )

    def listed_sums(self) -> dict[int, bytes]:
        """Return the block sums in the live indexes, by the position of their record; without malformed entries."""
        found: dict[int, bytes] = {}
        for index in self._indexes:
            for ordinal in np.flatnonzero(index.offsets[:, 2] > BLOCK_BYTES).tolist():
                with suppress(DecodeError):
                    entry = index.entry(ordinal)
                    found[entry.record_offset] = entry.sums
        return found

    def locate(self, name: str) -> CheckedEntry:
        """Return the entry of a name; errors name the tensor and the file.

        Raises:
            KeyError: There is no such name.
            DecodeError: As for `entry`.
        """
        return self._named_entry(name, self.ordinal(name))

    def entries(self) -> Iterator[tuple[int, CheckedEntry]]:
        """Yield every entry that has a name, once, with its ordinal; errors name the tensor and the file.

        Raises:
            DecodeError: As for `entry`.
        """
        seen: set[int] = set()
        for name, ordinal in self.ordinals():
            if ordinal not in seen:
                seen.add(ordinal)
                yield ordinal, self._named_entry(name, ordinal)

    def _named_entry(self, name: str, ordinal: int) -> CheckedEntry:
        try:
            return self.entry(ordinal)
        except DecodeError as error:
            error.at(path=self.where, tensor=name)
            raise

    def check_claims(self) -> None:
        """Require that every name denotes the last record that claims it, as in a reading of the whole file.

        Raises:
            DecodeError: A record that no index names claims a name.
        """
        begins, ends = self._extents
        last_end = int(ends[-1]) if len(ends) else len(MAGIC)
        if not self._has_gaps and last_end == self.chain[-1].trailer.index_offset:
            return
        known = set(begins.tolist())
        last: dict[str, tuple[int, bool]] = {}
        for offset in walk(self.source, len(MAGIC), self.generation_end).records:
            if offset not in known:
                head = read_record(self.source, offset)
                last.update(dict.fromkeys(split_names(head.names)[0], (offset, bool(head.header))))
        for name, (offset, has_tensor) in last.items():
            found = self._newest(name.encode())
            is_newest = found is None or self.record_offset(found.ordinal) < offset
            is_known = found is not None and not found.removes
            if is_newest and (has_tensor or is_known):
                said = "claims" if has_tensor else "removes"
                error = DecodeError(f"a record that no index names {said} this name", tensor=name, offset=offset)
                raise error.at(path=self.where)


def _sorted_extents(indexes: Sequence[Index]) -> tuple[np.ndarray, np.ndarray]:
    """Return begins and ends of all records that the indexes name, in the order of the file.

    Raises:
        DecodeError: Records overlap.
    """
    offsets = indexes[0].offsets if len(indexes) == 1 else np.concatenate([index.offsets for index in indexes])
    begins, ends = offsets[:, 0], offsets[:, 1] + offsets[:, 2]
    if (begins[1:] < ends[:-1]).any():
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], ends[order]
        clash = begins[1:] < ends[:-1]
        if clash.any():
            raise DecodeError("records overlap", offset=int(begins[1:][clash][0]))
    return begins, ends
