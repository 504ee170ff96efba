"""Appending to a tensor file: each flush adds a generation, and no byte of an earlier one is changed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import EncodeError
from ..message.names import Metadata, Value, encode_value, names_block, split_names
from ..message.tags import SUM_FIELD_BYTES
from .chain import MAX_CHAIN, folded
from .contents import FileContents
from .index import (
    MAGIC,
    Index,
    Trailer,
    index_bytes,
    metadata_bytes,
    read_trailer,
    removal_bytes,
    removes,
    split_line,
    whole_line,
)
from .record import RECORD_ALIGNMENT, removal
from .replacement import Replacement
from .sink import FileSink
from .storage import PositionedBytes
from .writer import RecordWriter

EMPTY_FILE = MAGIC + b"".join(index_bytes([], b"", len(MAGIC)))
"""A tensor file without tensors."""


class _Level(NamedTuple):
    """One index of the file's chain, with the facts that folding needs."""

    trailer: Trailer
    size: int
    lines: Index | list[bytes]
    metadata: dict[str, Value]


class FileAppender(RecordWriter):
    """A tensor file that grows: `f["step/100"] = x`, then `f.flush()`.

    Tensors that `flush` returned for stay, whatever happens to this process. Readers that have the file open are not
    disturbed; those that open it see the last generation that was flushed. A name that is written again denotes the
    new tensor. One process appends at a time; its lock is released when it ends.

    Attributes:
        metadata: User metadata of the file; changes are written with the next generation.
    """

    def __init__(
        self, path: Any, *, metadata: Metadata | None = None, durable: bool = True, alignment: int = RECORD_ALIGNMENT
    ) -> None:
        """Open a file for appending; one that does not exist is made, without tensors.

        Bytes that a killed append left behind the last complete generation are cut off.

        Args:
            path: The file.
            metadata: User metadata to add to the file's.
            durable: Wait in `flush` until everything is on disk.
            alignment: Every new payload starts at a multiple of this: a power of two from 64 to 4096.

        Raises:
            BlockingIOError: Another process is appending to it.
            DecodeError: Not a tensor file, or without a complete generation.
            EncodeError: The alignment is out of range, or the metadata cannot be written.
            OSError: The file cannot be opened or created.
        """
        super().__init__(metadata, alignment)
        self._path = os.path.realpath(os.fsdecode(path))
        self._durable = durable
        self._closed = True  # nothing to abort before the lock is ours
        self._fd = self._open()
        try:
            self._begin()
        except BaseException:
            self._unlock()
            raise
        self._closed = False

    def _open(self) -> int:
        while True:
            try:
                return lock(self._path)
            except FileNotFoundError:
                create(self._path, self._durable)

    def _begin(self) -> None:
        if os.fstat(self._fd).st_size == 0:
            os.pwrite(self._fd, EMPTY_FILE, 0)
        contents = FileContents(PositionedBytes(os.dup(self._fd), os.fstat(self._fd).st_size), self._path)
        metadata = contents.metadata()
        self._levels = [
            _Level(link.trailer, link.index.entries_bytes, link.index, link.index.metadata()) for link in contents.chain
        ]
        self._is_empty = not len(contents)
        self._is_single = contents.ordinal_of("") is not None
        self._contents = contents
        self._written: dict[str, bool] = {}  # names since then: True if written, False if removed
        self._end = contents.generation_end
        self._flushed_metadata = metadata_bytes(metadata)
        self.metadata = {**metadata, **self.metadata}
        if contents.torn_bytes:
            os.ftruncate(self._fd, self._end)
        self._sink = FileSink(self._fd, self._end)

    def _check_names(self, name: str, aliases: Sequence[str]) -> None:
        if self._is_single or (not name and (aliases or not self._is_empty)):
            raise EncodeError("the empty name is reserved for a file's only tensor", tensor=name, field="name")

    def _claim(self, name: str, aliases: Sequence[str]) -> None:
        self._is_empty = False
        self._is_single = not name
        self._written.update(dict.fromkeys((name, *aliases), True))

    def __delitem__(self, name: str) -> None:
        """Remove a name. The next flush writes the removal; the bytes of the tensor stay in the file.

        Raises:
            KeyError: The file has no such name.
            EncodeError: The name is malformed; or it is empty and cannot be removed: save another tensor instead.
            OSError: Writing failed.
            ValueError: The file is closed.
            RuntimeError: This process was forked from the one that opened the file.
        """
        names = names_block(name)
        with self._lock:
            self._check_usable(names)
            if not self._written.get(name, self._contents.ordinal_of(name) is not None):
                raise KeyError(f"{self._path} has no tensor {name!r} to remove")
            begin = self._sink.position
            self._sink.append(removal(names))
            line = removal_bytes(names, begin, self._sink.position)
            self._lines.append(line)
            self._lines_bytes += len(line)
            self._written[name] = False

    def flush(self) -> None:
        """Make a generation of everything that was written since the last one.

        Raises:
            OSError: The file cannot be written, or the path now names another file. Unflushed tensors are lost.
            EncodeError: The metadata cannot be written, or the file has as many tensors as its indexes can hold.
            ValueError: The file is closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the file is closed")
            if not self._is_inherited:
                self._flush()

    def _flush(self) -> None:
        metadata = metadata_bytes(self.metadata)
        if not self._lines and metadata == self._flushed_metadata:
            return
        try:
            self._check_path()
            self._sink.flush()
            self._sync()
            self._append_index()
            self._sink.flush()
            self._sync()
            self._check_path()
        except BaseException:
            self.abort()
            raise
        self._end = self._sink.position
        self._lines, self._lines_bytes = [], 0
        self._flushed_metadata = metadata

    def _append_index(self) -> None:
        """Write an index of the new records and of the links that it replaces."""
        lines = live_lines(self._lines, complete=False)
        sizes = [level.size for level in self._levels]
        kept = self._levels[: len(sizes) - folded(sizes, sum(map(len, lines)))]
        metadata = self._metadata_since(kept)
        if metadata is None:
            kept, metadata = [], dict(self.metadata)
        if len(kept) >= MAX_CHAIN:
            raise EncodeError(
                "the file has as many tensors as its indexes can hold",
                field="entries",
                declared=len(kept) + 1,
                limit=MAX_CHAIN,
            )
        replaced = self._levels[len(kept) :]
        if replaced:
            lines = [line for level in replaced for line in _lines_of(level)] + lines
        lines = live_lines(lines, complete=not kept)
        index, trailer = index_bytes(
            lines,
            metadata_bytes(metadata),
            self._sink.position,
            kept[-1].trailer if kept else None,
        )
        self._sink.append(index, trailer)
        written = read_trailer(index[-SUM_FIELD_BYTES:] + trailer)
        assert written is not None
        self._levels = [*kept, _Level(written, sum(map(len, lines)), lines, metadata)]

    def _metadata_since(self, kept: Sequence[_Level]) -> dict[str, Value] | None:
        """Return the metadata that the kept links lack; None if they have a key that was removed."""
        before: dict[str, Value] = {}
        for level in kept:
            before.update(level.metadata)
        if before.keys() - self.metadata.keys():
            return None
        return {key: value for key, value in self.metadata.items() if not _is_same(before, key, value)}

    def _check_path(self) -> None:
        """Raise OSError if the file was replaced or removed: nobody would find appended tensors."""
        if not is_at(self._fd, self._path):
            raise OSError(errno.ESTALE, "the path now names another file than the one being appended to", self._path)

    def _sync(self) -> None:
        if self._durable:
            os.fsync(self._fd)

    def close(self) -> None:
        """Flush, and close the file.

        Raises:
            EncodeError, OSError: As for `flush`.
        """
        with self._lock:
            if not self._closed and not self._is_inherited:
                self.flush()
                self._release()

    def abort(self) -> None:
        """Drop unflushed tensors, and close the file."""
        if not self._closed and not self._is_inherited:
            try:
                os.ftruncate(self._fd, self._end)
            finally:
                self._release()

    def _release(self) -> None:
        self._closed = True
        self._sink.close()
        self._unlock()

    def _unlock(self) -> None:
        # Closing is not enough: the lock lives as long as a copy of the descriptor, which a forked child has, and so
        # has the traceback of an error in opening.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __enter__(self) -> FileAppender:
        return self


def _is_same(stated: dict[str, Value], key: str, value: Value) -> bool:
    return key in stated and encode_value(key, stated[key]) == encode_value(key, value)


def _lines_of(level: _Level) -> Iterable[bytes]:
    lines = level.lines
    return lines if isinstance(lines, list) else map(lines.line, range(len(lines)))


def live_lines(lines: Sequence[bytes], *, complete: bool = True) -> list[bytes]:
    """Return index lines without the names that later lines take over, and without lines that then have no name.

    Args:
        lines: Lines in writing order.
        complete: True if `lines` holds every line of the file; lines of removals are then dropped too.
    """
    taken: set[str] = set()
    live: list[bytes] = []
    for line in reversed(lines):
        block, rest = split_line(line)
        names, metadata = split_names(block)
        own = [name for name in names if name not in taken]
        taken.update(own)
        if own and not (complete and removes(rest)):
            live.append(line if own == names else whole_line(names_block(own[0], own[1:]) + metadata, rest))
    live.reverse()
    return live


def lock(path: str) -> int:
    """Open and lock the file at a path; return its descriptor.

    Raises:
        BlockingIOError: Another process has the lock.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(fd, path):
                return fd
        except BlockingIOError as error:
            os.close(fd)
            raise BlockingIOError(error.errno, "another process is appending to the file", path) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was replaced before it was locked


def create(path: str, durable: bool) -> None:
    """Create a file without tensors, unless another process is quicker."""
    replacement = Replacement(path, durable)
    try:
        os.pwrite(replacement.fd, EMPTY_FILE, 0)
        replacement.publish(exclusive=True)
    except FileExistsError:
        replacement.discard()
    except BaseException:
        replacement.discard()
        raise


def is_at(fd: int, path: str) -> bool:
    """Return True if a path names the file of a descriptor."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
