"""Reading a tensor file: through a private mapping, by positioned reads, or from bytes."""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import header as headers
from .checksum import check_contents
from .errors import DecodeError, TruncatedError, UnsupportedVersionError
from .header import Header
from .index import INDEX_TAG, MAGIC, MAX_CHAIN, TRAILER_BYTES, Entry, Index, Trailer, check_index, read_trailer
from .metadata import MAX_RECORD_BYTES, Value, decode_map, decode_name
from .record import MAX_HEAD_BYTES, RecordHead, read_head
from .tensor import Tensor, empty_aligned, from_payload
from .wire import LEN, Buffer, read_field, read_minimal_varint

# Python has the constant from 3.11 on; the value is Linux's. Without it the kernel refuses maps larger than RAM.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Bytes(Protocol):
    """Random access to the bytes of a file."""

    size: int

    def read(self, begin: int, end: int) -> Buffer:
        """The bytes [begin, end), which must exist."""

    def payload(self, begin: int, end: int) -> tuple[Any, int]:
        """Memory that holds [begin, end), and the position of `begin` in it."""


class MemoryBytes:
    """A file that lies in memory."""

    def __init__(self, buffer: Any) -> None:
        # An array keeps the buffer exported while a tensor over it lives; a memoryview given to numpy does not.
        self._array = np.frombuffer(buffer, np.uint8)
        self._view = self._array.data
        self.size = len(self._view)

    def read(self, begin: int, end: int) -> Buffer:
        return self._view[begin:end]

    def payload(self, begin: int, end: int) -> tuple[Any, int]:
        return self._array, begin


class MappedBytes(MemoryBytes):
    """A file mapped private: writable memory that never changes the file."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd: int | None = fd
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        super().__init__(mmap.mmap(fd, size, mmap.MAP_PRIVATE | _NO_RESERVE, protection))

    def read(self, begin: int, end: int) -> Buffer:
        # Touching a page beyond the end of a file that was cut after it was mapped would end the process.
        if self._fd is not None:
            _check_size(os.fstat(self._fd).st_size, self.size)
        return self._view[begin:end]

    def payload(self, begin: int, end: int) -> tuple[Any, int]:
        self.read(begin, begin)
        return self._array, begin

    def close(self) -> None:
        """Let go of the descriptor; the mapping stays for as long as a tensor needs it."""
        self._fd = None


class PositionedBytes:
    """A file read piece by piece, for file systems that do not map well."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def read(self, begin: int, end: int) -> Buffer:
        into = bytearray(end - begin)
        self._read_into(memoryview(into), begin)
        return into

    def payload(self, begin: int, end: int) -> tuple[Any, int]:
        into = empty_aligned(end - begin)
        self._read_into(into.data, begin)
        return into, 0

    def _read_into(self, into: memoryview, begin: int) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(self._fd, [into[done:]], begin + done)
            if count == 0:
                _check_size(begin + done, self.size)
            done += count


def _check_size(now: int, then: int) -> None:
    if now < then:
        raise TruncatedError(
            f"the file had {then} bytes when it was opened and has {now} now", needed=then, available=now
        )


class _Located(NamedTuple):
    header: Header
    checksum: int
    entry: Entry


class FileReader(Mapping[str, Tensor]):
    """A tensor file open for reading: a mapping from names to tensors.

    `f["w"]` reads no payload; `f["w"][2:5]` only touches what it selects. Asked for twice, it is the same memory. The
    memory is writable and private: writing to it never changes the file. Not safe against another process that
    cuts the file short after it was opened: what can be seen of that before access is an error, the rest ends the
    process (SIGBUS); `mmap=False` always gives an error.

    Memory:
        Every tensor keeps the mapping alive, also after `close`.
    """

    def __init__(self, source: Bytes, where: str, verify: bool = False, fd: int | None = None) -> None:
        """Open bytes as a tensor file; `dlpack_wire.open` is the door for users.

        Args:
            source: The file's bytes.
            where: What to call the file in errors.
            verify: Check every payload when it is first used.
            fd: Descriptor to close with this object.
        """
        self._source = source
        self._where = where
        self._verify = verify
        self._fd = fd
        self._located: dict[int, _Located] = {}
        self._verified: set[int] = set()
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, DecodeError):
                error.at(path=where)
            raise

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        size = self._source.size
        check_magic(self._source.read(0, min(len(MAGIC), size)), size)
        self.generation_end = size
        trailer = self._trailer_at(size)
        if trailer is None:
            self.generation_end = walk(self._source).complete_end
            trailer = self._trailer_at(self.generation_end)
            if trailer is None:
                raise DecodeError("not finalised: no generation is complete; recover() may save its records")
        self.torn_bytes = size - self.generation_end
        self.live = trailer
        self._indexes = self._read_chain(trailer, self.generation_end)
        self._starts = [0]
        for index in self._indexes:
            self._starts.append(self._starts[-1] + len(index))
        self._check_disjoint()
        self._names = self._indexes[0].names
        self.metadata: dict[str, Value] = dict(self._indexes[0].metadata)
        for start, index in zip(self._starts[1:], self._indexes[1:], strict=False):
            self.metadata.update(index.metadata)
            for name, ordinal in index.names.items():
                self._names.pop(name, None)
                self._names[name] = start + ordinal
        if "" in self._names and len(self._names) > 1:
            raise DecodeError("the empty name is reserved for a file's only tensor", field="name")

    def _trailer_at(self, end: int) -> Trailer | None:
        begin = end - TRAILER_BYTES
        if begin < len(MAGIC):
            return None
        return read_trailer(self._source.read(begin, end))

    def _read_chain(self, trailer: Trailer, end: int) -> list[Index]:
        """The indexes that the live one builds on, and itself last."""
        chain: list[Index] = []
        offset, index_sum = trailer
        while True:
            if not len(MAGIC) <= offset < end - TRAILER_BYTES:
                raise DecodeError(f"index at {offset}, outside the file's {end} bytes", field="index_offset")
            region = self._source.read(offset, end - 18)
            index = Index(check_index(region, offset, index_sum), offset)
            chain.append(index)
            if index.base is None:
                chain.reverse()
                return chain
            if len(chain) >= MAX_CHAIN:
                raise DecodeError(f"more than {MAX_CHAIN} indexes build on each other")
            before = offset
            offset, index_sum = index.base
            if not len(MAGIC) <= offset < before:
                raise DecodeError(f"base index at {offset}, not before its successor", offset=before)
            size, pos = read_minimal_varint(
                self._source.read(offset, min(offset + 11, before)), 1, min(11, before - offset)
            )
            end = offset + pos + size + TRAILER_BYTES
            if end > before or self._trailer_at(end) != (offset, index_sum):
                raise DecodeError("base index without its trailer", offset=offset)

    def _check_disjoint(self) -> None:
        extents = np.concatenate([index.offsets for index in self._indexes])
        if len(extents) < 2:
            return
        begins, ends = extents[:, 0], extents[:, 1] + extents[:, 2]
        if (begins[1:] < ends[:-1]).any():
            order = np.argsort(begins, kind="stable")
            begins, ends = begins[order], ends[order]
            if (begins[1:] < ends[:-1]).any():
                at = int(begins[1:][begins[1:] < ends[:-1]][0])
                raise DecodeError("records overlap", offset=at)

    # --- looking ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        ordinal = self._ordinal(name)
        try:
            header, checksum, entry = self._locate(ordinal)
            buffer, begin = self._source.payload(entry.data_offset, entry.end)
            if self._verify and ordinal not in self._verified:
                check_contents(header, checksum, memoryview(buffer)[begin : begin + entry.data_bytes])
                self._verified.add(ordinal)
            return from_payload(header, None, buffer, begin)
        except DecodeError as error:
            raise error.at(path=self._where, tensor=name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"<FileReader {self._where!r} with {len(self)} names>"

    def header(self, name: str) -> Header:
        """A tensor's header, as recorded."""
        return self.locate(name).header

    def names_of(self, name: str) -> list[str]:
        """Every name of the same tensor."""
        ordinal = self._ordinal(name)
        return [other for other, o in self._names.items() if o == ordinal]

    def metadata_of(self, name: str) -> dict[str, Value]:
        """A tensor's user metadata."""
        entry = self.locate(name).entry
        return decode_map(_split_names(entry.names)[1], MAX_RECORD_BYTES)

    def locate(self, name: str) -> _Located:
        """A tensor's header, checksum and index entry, checked against its record."""
        ordinal = self._ordinal(name)
        try:
            return self._locate(ordinal)
        except DecodeError as error:
            raise error.at(path=self._where, tensor=name) from None

    def _ordinal(self, name: str) -> int:
        if self._fd == _CLOSED:
            raise ValueError(f"{self._where} is closed")
        try:
            return self._names[name]
        except KeyError:
            raise KeyError(f"{self._where} has no tensor {name!r} among its {len(self)}") from None

    def _locate(self, ordinal: int) -> _Located:
        """Parse an index entry and the head of its record, and hold one against the other."""
        found = self._located.get(ordinal)
        if found is not None:
            return found
        at = bisect_right(self._starts, ordinal) - 1
        entry = self._indexes[at].entry(ordinal - self._starts[at])
        located = read_entry(entry)
        head = read_head(
            self._source.read(entry.record_offset, entry.data_offset), 0, self._source.size, entry.record_offset
        )
        if (head.data_offset, head.end) != (entry.data_offset, entry.end):
            raise DecodeError(
                f"record [{head.data_offset}, {head.end}), index entry [{entry.data_offset}, {entry.end})",
                offset=entry.record_offset,
            )
        if head.header != entry.header:
            raise DecodeError("the record's header differs from its index entry's", offset=entry.record_offset)
        if head.names != entry.names:
            check_names(head.names, entry.names)
        self._located[ordinal] = located
        return located

    # --- verifying ----------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Check every byte that matters: all generations, records, names and payloads.

        Raises:
            DecodeError: The first fault found, naming the tensor or the part.
        """
        for problem in self.problems():
            raise problem

    def problems(self) -> Iterator[DecodeError]:
        """Every fault that `verify` would raise, one by one."""
        for problem in self._problems():
            yield problem.at(path=self._where)

    def _problems(self) -> Iterator[DecodeError]:
        walked = walk(self._source)
        if self.torn_bytes:
            yield DecodeError(f"torn tail: {self.torn_bytes} bytes after the last complete generation")
        elif walked.stopped is not None:
            yield walked.stopped
        for end in walked.ends[:-1]:
            trailer = self._trailer_at(end)
            assert trailer is not None
            try:
                self._read_chain(trailer, end)
            except DecodeError as error:
                yield error
        claimed: dict[str, int] = {}
        for offset in walked.records:
            if offset < self.generation_end:
                yield from self._record_problems(offset, claimed)
        records = set(walked.records)
        for name, ordinal in self._names.items():
            offset = self._offset_of(ordinal)
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
                    self._locate(ordinal)
                except DecodeError as error:
                    yield error.at(tensor=name)
        for name, offset in claimed.items():
            if name not in self._names:
                yield DecodeError("a record that the index does not know", tensor=name, offset=offset)

    def _offset_of(self, ordinal: int) -> int:
        at = bisect_right(self._starts, ordinal) - 1
        return int(self._indexes[at].offsets[ordinal - self._starts[at], 0])

    def _record_problems(self, offset: int, claimed: dict[str, int]) -> Iterator[DecodeError]:
        """Check one record by itself, note the names that it claims, and check its payload."""
        names: list[str] = []
        try:
            head, names = read_record(self._source, offset)
            claimed.update(dict.fromkeys(names, offset))
            entry = Entry(head.names, head.header, offset, head.data_offset, head.end - head.data_offset)
            header, checksum, _ = read_entry(entry)
            check_contents(header, checksum, self._source.read(entry.data_offset, entry.end))
        except DecodeError as error:
            yield error.at(tensor=names[0] if names else None, offset=offset)

    # --- ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the file. Tensors taken from it stay usable."""
        if self._fd not in (None, _CLOSED):
            if isinstance(self._source, MappedBytes):
                self._source.close()
            os.close(self._fd)
        self._fd = _CLOSED

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", _CLOSED) != _CLOSED:
            self.close()


_CLOSED = -1


def check_magic(found: Buffer, size: int) -> None:
    """Refuse what is no tensor file of this version."""
    if size == 0:
        raise DecodeError("not a tensor file: it is empty")
    if bytes(found) != MAGIC:
        if bytes(found[:8]) == MAGIC[:8] and len(found) == len(MAGIC):
            version = bytes(found[8:]).decode("latin-1")
            raise UnsupportedVersionError(f"tensor file of version {version!r}", found=version, supported="1")
        raise DecodeError(f"not a tensor file: it begins with {bytes(found)!r}, not {MAGIC!r}")


def read_entry(entry: Entry) -> _Located:
    """The header and checksum of an index entry, checked by themselves."""
    located = headers.read(entry.header, 0, len(entry.header))
    if located.data_begin != located.data_end:
        raise DecodeError("an index entry's header has a payload", field="data")
    if located.checksum is None:
        raise DecodeError("missing", field="data_xxh3_64")
    headers.check_payload_size(located.header, entry.data_bytes)
    return _Located(located.header._replace(checksum=located.checksum), located.checksum, entry)


def _split_names(block: bytes) -> tuple[list[str], bytes]:
    """The names in fields 1 and 2, and the bytes of field 3."""
    names: list[str] = []
    pos, end = 0, len(block)
    while pos < end:
        field = read_field(block, pos, end)
        if field.number == 3:
            break
        names.append(decode_name(block[field.content : field.end]))
        pos = field.end
    if not names or block[:1] != b"\x0a":
        names.insert(0, "")
    return names, block[pos:]


def check_names(record: bytes, entry: bytes) -> None:
    """Require an entry's names to be among its record's, and equal metadata."""
    record_names, record_metadata = _split_names(record)
    entry_names, entry_metadata = _split_names(entry)
    strange = set(entry_names) - set(record_names)
    if strange:
        raise DecodeError(f"index entry names {sorted(strange)}, its record {record_names}", field="name")
    if record_metadata != entry_metadata:
        raise DecodeError("the record's metadata differs from its index entry's", field="metadata")


def read_record(source: Bytes, offset: int) -> tuple[RecordHead, list[str]]:
    """The head of the record at an offset, and its names."""
    head = read_head(source.read(offset, min(offset + MAX_HEAD_BYTES, source.size)), 0, source.size, offset)
    return head, _split_names(head.names)[0]


class Walk(NamedTuple):
    """What the top-level fields of a file are.

    Attributes:
        records: Positions of all whole records.
        ends: Ends of all complete generations.
        stopped: Why the walk ended before the file, or None.
    """

    records: list[int]
    ends: list[int]
    stopped: DecodeError | None

    @property
    def complete_end(self) -> int:
        """End of the last complete generation; 0 if there is none."""
        return self.ends[-1] if self.ends else 0


def walk(source: Bytes) -> Walk:
    """Walk the top-level fields by their lengths, reading no payload."""
    size = source.size
    pos = len(MAGIC)
    records: list[int] = []
    ends: list[int] = []
    index_at = index_end = -1
    stopped: DecodeError | None = None
    while pos < size:
        window = source.read(pos, min(pos + TRAILER_BYTES, size))
        limit = len(window)
        try:
            tag, content = read_minimal_varint(window, 0, limit)
            if tag & 7 == LEN:
                length, content = read_minimal_varint(window, content, limit)
                if length > size - pos - content:
                    raise TruncatedError(
                        f"field {tag >> 3} needs {length} bytes, has {size - pos - content}",
                        needed=length,
                        available=size - pos - content,
                    )
                if tag == 0x12:
                    records.append(pos)
                elif tag == INDEX_TAG[0]:
                    index_at, index_end = pos, pos + content + length
                elif tag >> 3 in (1, 4, 5, 6) or tag >> 3 == 0:
                    raise DecodeError(f"field {tag >> 3} has wire type {LEN}")
                pos += content + length
                continue
            trailer = read_trailer(window)
            if trailer is None or trailer.index_offset != index_at or pos != index_end:
                raise DecodeError("neither a record nor an index nor a trailer")
        except DecodeError as error:
            stopped = error.at(offset=pos)
            break
        pos += TRAILER_BYTES
        ends.append(pos)
    return Walk(records, ends, stopped)
