"""Reading a tensor file: a mapping from names to tensors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from weakref import WeakValueDictionary

import numpy as np

from ..errors import DecodeError
from ..message.names import MAX_NAMES_BYTES, Value, decode_map, split_names
from ..tensor.checksum import check_contents
from ..tensor.header import Header
from ..tensor.tensor import Tensor, from_payload, is_foreign
from .chain import Link, read_chain, trailer_at
from .entry import CheckedEntry, check_record, read_entry, read_record
from .index import MAGIC, TRAILER_BYTES, Entry, Index, Trailer
from .lazy import LazyTensor
from .storage import FetchedBytes, Storage
from .walk import Walk, check_magic, walk

_MANY_NAMES = 32
"""Who asks for more names than this gets a dictionary of all; before, a search per name is cheaper."""


class FileReader(Mapping[str, Tensor]):
    """A tensor file open for reading: a mapping from names to tensors.

    `f["w"]` reads no payload; `f["w"][2:5]` only touches what it selects. Asked for twice, it is the same memory. The
    memory is writable and private: writing to it never changes the file. Not safe against another process that
    cuts the file short after it was opened: what can be seen of that before access is an error, the rest ends the
    process (SIGBUS); `mmap=False` always gives an error.

    Attributes:
        torn_bytes: Bytes after the last complete generation: an append that runs, or was killed.
        generation_end: Where the live generation ends.

    Memory:
        Every tensor keeps the mapping alive, also after `close`.
    """

    def __init__(self, source: Storage, where: str, verify: bool = False) -> None:
        """Open bytes as a tensor file; `dlpack_wire.open` is the door for users.

        Args:
            source: The file's bytes; closed with this object.
            where: What to call the file in errors.
            verify: Check every payload when it is first used.
        """
        self.source = source
        self.where = where
        self._verify = verify
        self._closed = False
        self._located: dict[int, CheckedEntry] = {}
        self._verified: set[int] = set()
        # Tensors that are not views of one mapping, so that asking twice gives the same memory.
        self._held: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._ordinals: dict[str, int] | None = None
        self._searches = 0
        self._metadata: dict[str, Value] | None = None
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, DecodeError):
                error.at(path=where)
            raise

    # --- opening ------------------------------------------------------------------------------------------------------

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
        if self._ordinal_of("") is not None and len(self) > 1:
            raise DecodeError("the empty name is reserved for a file's only tensor", field="name")

    def _live_chain(self) -> list[Link]:
        """The indexes of the last complete generation, whose end is noted."""
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
        """Whether what looks like a trailer at the end is this file's, and its generation damaged.

        A torn tail may end with the trailer of a file that is a payload. But if the walk comes to this one, or to
        the index that it names, no other file is in between.
        """
        ends = (self.source.size, self.source.size - TRAILER_BYTES, trailer.index_offset)
        if not walked.ends or walked.end in ends:
            return True
        begin, end = walked.complete_end, trailer.index_offset
        return begin <= end <= self.source.size and walk(self.source, begin, end).stopped is None

    # --- looking ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        ordinal = self._ordinal(name)
        try:
            return self._tensor(ordinal)
        except DecodeError as error:
            raise error.at(path=self.where, tensor=name) from None

    def read(self, name: str) -> Tensor:
        """A tensor whose whole payload has been read, and verified if this reader verifies."""
        tensor = self[name]
        if isinstance(tensor, LazyTensor):
            try:
                tensor.load()
            except DecodeError as error:
                raise error.at(path=self.where, tensor=name) from None
        return tensor

    def __iter__(self) -> Iterator[str]:
        if len(self._indexes) == 1 and self._ordinals is None:
            return (name for name, _ in self._indexes[0].names())
        return iter(self._all_ordinals())

    def __len__(self) -> int:
        if len(self._indexes) == 1:
            return self._indexes[0].name_count
        return len(self._all_ordinals())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._ordinal_of(name) is not None

    def __repr__(self) -> str:
        return f"<FileReader {self.where!r} with {len(self)} names>"

    @property
    def metadata(self) -> dict[str, Value]:
        """User metadata of the file."""
        if self._metadata is None:
            metadata: dict[str, Value] = {}
            try:
                for index in self._indexes:
                    metadata.update(index.metadata())
            except DecodeError as error:
                raise error.at(path=self.where) from None
            self._metadata = metadata
        return self._metadata

    def header(self, name: str) -> Header:
        """A tensor's header, as recorded."""
        return self.locate(name).header

    def names_of(self, name: str) -> list[str]:
        """Every name of the same tensor."""
        ordinal = self._ordinal(name)
        at, within = self._place(ordinal)
        names = split_names(self._indexes[at].entry(within).names)[0]
        return [other for other in names if self._ordinal_of(other) == ordinal]

    def metadata_of(self, name: str) -> dict[str, Value]:
        """A tensor's user metadata."""
        entry = self.locate(name).entry
        try:
            return decode_map(split_names(entry.names)[1], MAX_NAMES_BYTES)
        except DecodeError as error:
            raise error.at(path=self.where, tensor=name) from None

    def locate(self, name: str) -> CheckedEntry:
        """A tensor's header, checksum and index entry, checked against its record."""
        ordinal = self._ordinal(name)
        try:
            return self.locate_entry(ordinal)
        except DecodeError as error:
            raise error.at(path=self.where, tensor=name) from None

    # --- names and ordinals -------------------------------------------------------------------------------------------

    def ordinals(self) -> Iterator[tuple[str, int]]:
        """Every name with the ordinal of its entry among those of all indexes."""
        if len(self._indexes) == 1 and self._ordinals is None:
            return self._indexes[0].names()
        return iter(self._all_ordinals().items())

    def record_offset(self, ordinal: int) -> int:
        """Where the record of an entry begins."""
        at, within = self._place(ordinal)
        return int(self._indexes[at].offsets[within, 0])

    def _ordinal(self, name: str) -> int:
        if self._closed:
            raise ValueError(f"{self.where} is closed")
        found = self._ordinal_of(name)
        if found is None:
            raise KeyError(f"{self.where} has no tensor {name!r} among its {len(self)}")
        return found

    def _ordinal_of(self, name: str) -> int | None:
        if self._ordinals is None and self._searches < _MANY_NAMES:
            self._searches += 1
            try:
                encoded = name.encode()
            except UnicodeEncodeError:
                return None
            for start, index in zip(reversed(self._starts[:-1]), reversed(self._indexes), strict=True):
                found = index.find(encoded)
                if found is not None:
                    return start + found
            return None
        return self._all_ordinals().get(name)

    def _all_ordinals(self) -> dict[str, int]:
        """Every name with its ordinal, in writing order; a later index takes over the names it carries."""
        if self._ordinals is None:
            self._ordinals = dict(self._indexes[0].names())
            for start, index in zip(self._starts[1:], self._indexes[1:], strict=False):
                for name, ordinal in index.names():
                    self._ordinals.pop(name, None)
                    self._ordinals[name] = start + ordinal
        return self._ordinals

    def _place(self, ordinal: int) -> tuple[int, int]:
        at = bisect_right(self._starts, ordinal) - 1
        return at, ordinal - self._starts[at]

    # --- one tensor ---------------------------------------------------------------------------------------------------

    def _tensor(self, ordinal: int) -> Tensor:
        held = self._held.get(ordinal)
        if held is not None:
            return held
        header, checksum, entry = self.locate_entry(ordinal)
        source = self.source
        if isinstance(source, FetchedBytes) and entry.data_bytes:
            tensor: Tensor = LazyTensor(header, source, entry.data_offset, self._verify)
            self._held[ordinal] = tensor
            return tensor
        buffer, begin = source.memory(entry.data_offset, entry.end)
        if self._verify and ordinal not in self._verified:
            check_contents(header, checksum, memoryview(buffer)[begin : begin + entry.data_bytes])
            self._verified.add(ordinal)
        tensor = from_payload(header, None, buffer, begin)
        if is_foreign(header):
            self._held[ordinal] = tensor
        return tensor

    def locate_entry(self, ordinal: int) -> CheckedEntry:
        """Parse an index entry and the head of its record, and hold one against the other."""
        found = self._located.get(ordinal)
        if found is not None:
            return found
        at, within = self._place(ordinal)
        entry = self._indexes[at].entry(within)
        located = read_entry(entry)
        self._check_gap(entry)
        check_record(self.source, located)
        self._located[ordinal] = located
        return located

    def _check_gap(self, entry: Entry) -> None:
        """Require whole fields between the record before and this one.

        Else the entry could point into the payload of a record that the index does not name, and a reader of the
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

    # --- ending -------------------------------------------------------------------------------------------------------

    def check_claims(self) -> None:
        """Require that every name denotes the last record that claims it, as in a reading of the whole file.

        Raises:
            DecodeError: A record that no index names claims a name that an earlier record still has, or nobody.
        """
        if not self._has_gaps:
            return
        begins, _ = self._extents
        known = set(begins.tolist())
        for offset in walk(self.source, len(MAGIC), self.generation_end).records:
            if offset not in known:
                for name in split_names(read_record(self.source, offset).names)[0]:
                    ordinal = self._ordinal_of(name)
                    if ordinal is None or self.record_offset(ordinal) < offset:
                        raise DecodeError("a record that no index names claims this name", tensor=name, offset=offset)

    def __reduce__(self) -> str:
        raise TypeError("an open file cannot be sent to another process: send its path")

    def close(self) -> None:
        """Let go of the file. Tensors taken from it stay usable."""
        self._closed = True
        self.source.close()

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _sorted_extents(indexes: Sequence[Index]) -> tuple[np.ndarray, np.ndarray]:
    """Beginnings and ends of all records that the indexes name, which must not overlap, in the order of the file."""
    offsets = indexes[0].offsets if len(indexes) == 1 else np.concatenate([index.offsets for index in indexes])
    begins, ends = offsets[:, 0], offsets[:, 1] + offsets[:, 2]
    if (begins[1:] < ends[:-1]).any():
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], ends[order]
        clash = begins[1:] < ends[:-1]
        if clash.any():
            raise DecodeError("records overlap", offset=int(begins[1:][clash][0]))
    return begins, ends
