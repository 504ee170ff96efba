"""Writing a tensor file: record by record, to a path (atomically) or to anything with `write`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from .checksum import PASS_BYTES, Running, xxh3
from .errors import EncodeError, WireError
from .header import Header
from .index import MAGIC, entry_bytes, index_bytes
from .metadata import MAX_FILE_METADATA_BYTES, Metadata, Value, encode_map
from .record import MAX_ALIGNMENT, RECORD_ALIGNMENT, Plan, names_block, plan, prefix
from .source import Layout, Source, plain_array

SMALL_BYTES = 256 * 1024
"""Payloads up to this size are gathered into a buffer, so that many small ones cost few system calls."""

_BUFFER_BYTES = 4 << 20
_BUFFER_PARTS = 1000  # the kernel takes 1024 parts at once


class Sink(Protocol):
    """Where a file's bytes go, in order."""

    position: int

    def append(self, *parts: Any) -> None:
        """Append small parts."""

    def append_record(self, record: Plan, names: bytes, source: Source) -> int:
        """Append a record with its payload; return the payload's sum."""


class StreamSink:
    """Anything with `write`. A sum stands before what it covers, so payloads are hashed first: two passes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.position = 0

    def append(self, *parts: Any) -> None:
        self._write(b"".join(parts))

    def append_record(self, record: Plan, names: bytes, source: Source) -> int:
        payload_sum = source.checksum()
        self._write(prefix(record, names, payload_sum))
        for piece in source.pieces(PASS_BYTES * 16):
            self._write(piece)
        return payload_sum

    def _write(self, content: Any) -> None:
        view = memoryview(content)
        while len(view):
            count = self._stream.write(view)
            if count is None:  # what many file-like objects answer when they took everything
                count = len(view)
            if count <= 0:
                raise OSError(f"write() of {type(self._stream).__name__} took {count} of {len(view)} bytes")
            self.position += count
            view = view[count:]


class FileSink:
    """A file of our own. Hashes and writes in turn while a piece is in the cache, then writes the prefix before it."""

    def __init__(self, fd: int, position: int = 0) -> None:
        self._fd = fd
        self.position = position
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def append(self, *parts: Any) -> None:
        joined = b"".join(parts)
        self._pending.append(joined)
        self._pending_bytes += len(joined)
        self.position += len(joined)
        if self._pending_bytes > _BUFFER_BYTES or len(self._pending) >= _BUFFER_PARTS:
            self.flush()

    def append_record(self, record: Plan, names: bytes, source: Source) -> int:
        self.flush()
        running = Running()
        at = self.position + record.prefix_bytes
        for piece in source.pieces(PASS_BYTES * 4):
            running.update(piece)
            self._write_at(at, piece)
            at += len(piece)
        payload_sum = running.intdigest()
        self._write_at(self.position, memoryview(prefix(record, names, payload_sum)))
        self.position += record.record_bytes
        return payload_sum

    def flush(self) -> None:
        """Hand buffered bytes to the operating system."""
        if not self._pending:
            return
        begin = self.position - self._pending_bytes
        count = os.pwritev(self._fd, self._pending, begin)
        if count < self._pending_bytes:  # a disk that fills up: go on until the error comes, or it all fits
            self._write_at(begin + count, memoryview(b"".join(self._pending))[count:])
        self._pending.clear()
        self._pending_bytes = 0

    def _write_at(self, position: int, content: memoryview) -> None:
        # One call writes at most about 2 GiB, and less on a disk that fills up.
        while len(content):
            count = os.pwrite(self._fd, content, position)
            position += count
            content = content[count:]


class FileWriter:
    """A tensor file being written: `f["w"] = x`, or `write` with more to say.

    Nothing is published before `close`; an exception inside the `with` block publishes nothing. One tensor is held at a
    time, so the file may be larger than memory. The header of every tensor needs its checksum, so large payloads
    are hashed while they are written.

    Attributes:
        metadata: User metadata of the file; may be changed until `close`.
    """

    def __init__(
        self, target: Any, *, metadata: Metadata | None = None, durable: bool = True, alignment: int = RECORD_ALIGNMENT
    ) -> None:
        """Begin a file.

        Args:
            target: A path, replaced atomically on `close`, or an object with `write`, written as it comes.
            metadata: User metadata of the file.
            durable: Wait on `close` until file and name are on disk.
            alignment: Every payload starts at a multiple of this: a power of two from 64 to 4096.
        """
        if alignment < RECORD_ALIGNMENT or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
            raise EncodeError(
                f"must be a power of two from {RECORD_ALIGNMENT} to {MAX_ALIGNMENT}, not {alignment}", field="alignment"
            )
        encode_map(2, metadata, MAX_FILE_METADATA_BYTES)
        self.metadata: dict[str, Value] = dict(metadata or {})
        self._alignment = alignment
        self._lines: list[bytes] = []
        self._names: set[str] = set()
        self._place: Replacement | None = None
        self._closed = False
        self._sink: Sink
        if hasattr(target, "write"):
            self._sink = StreamSink(target)
        else:
            self._place = Replacement(target, durable)
            self._sink = FileSink(self._place.fd)
        try:
            self._sink.append(MAGIC)
        except BaseException:
            self.abort()
            raise

    def __setitem__(self, name: str, x: Any) -> None:
        self.write(name, x)

    def write(
        self,
        name: str,
        x: Any,
        *,
        aliases: Sequence[str] = (),
        metadata: Metadata | None = None,
        layout: Layout = "keep",
    ) -> None:
        """Append one tensor.

        Args:
            name: Its name: 1 to 4096 bytes of UTF-8 without NUL. Empty only for a file's only tensor.
            x: Anything that `encode` takes.
            aliases: Further names of the same tensor.
            metadata: User metadata of the tensor.
            layout: As for `encode`.

        Raises:
            EncodeError: A name is taken or breaks a rule, or `x` has no place in a file. The file stays usable.
            OSError: Writing failed. The file will not be published.
        """
        if self._closed:
            raise ValueError("the file is closed")
        names = names_block(name, aliases, metadata, allow_empty=not self._lines)
        for claimed in (name, *aliases):
            if claimed in self._names:
                raise EncodeError(f"duplicate name {claimed!r}", field="name")
        if "" in self._names:
            raise EncodeError("a file with a tensor of the empty name holds no other", tensor=name, field="name")
        if not name and aliases:
            raise EncodeError("a tensor of the empty name has no aliases", field="aliases")
        try:
            plain = plain_array(x) if type(x) is np.ndarray else None
            if plain is not None and plain[0].payload_bytes <= SMALL_BYTES:
                self._append_small(names, *plain)
            else:
                with Source(x, layout) as source:
                    self._append(names, source)
        except WireError as error:
            raise error.at(tensor=name) from error.__cause__
        except OSError:
            self.abort()
            raise
        self._names.add(name)
        self._names.update(aliases)

    def _append(self, names: bytes, source: Source) -> None:
        header = source.header
        payload = source.buffer()
        if payload is not None and header.payload_bytes <= SMALL_BYTES:
            self._append_small(names, header, payload)
        else:
            begin = self._sink.position
            record = plan(header, len(names), begin % self._alignment, self._alignment)
            payload_sum = self._sink.append_record(record, names, source)
            self._note(names, header, begin, record, payload_sum)

    def _append_small(self, names: bytes, header: Header, payload: Any) -> None:
        begin = self._sink.position
        record = plan(header, len(names), begin % self._alignment, self._alignment)
        payload_sum = xxh3(payload)
        self._sink.append(prefix(record, names, payload_sum), payload)
        self._note(names, header, begin, record, payload_sum)

    def _note(self, names: bytes, header: Header, begin: int, record: Plan, payload_sum: int) -> None:
        self._lines.append(entry_bytes(names, header, payload_sum, begin, begin + record.prefix_bytes))

    def close(self) -> None:
        """Write the index, and publish the file.

        Raises:
            OSError: It could not be written; the old file, if any, stays.
        """
        if self._closed:
            return
        try:
            metadata = encode_map(2, self.metadata, MAX_FILE_METADATA_BYTES)
            self._sink.append(*index_bytes(self._lines, metadata, self._sink.position))
            if isinstance(self._sink, FileSink):
                self._sink.flush()
            if self._place is not None:
                self._place.publish()
        except BaseException:
            self.abort()
            raise
        self._closed = True

    def abort(self) -> None:
        """Drop what was written; the old file, if any, stays."""
        self._closed = True
        if self._place is not None:
            self._place.discard()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.abort()


class Replacement:
    """A temporary file that takes the place of another one, or leaves no trace.

    It stands beside its target, is locked for as long as its writer lives, and is renamed over it. Temporaries
    of writers that died are removed by the next writer of the same target.
    """

    def __init__(self, path: Any, durable: bool = True) -> None:
        target = os.path.realpath(os.fsdecode(path))
        self._target = target
        self._durable = durable
        self._folder, name = os.path.split(target)
        # The name of a temporary must fit where the target's own name may already be as long as is allowed.
        self._stem = f".{name[:100]}."
        self._mode: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self._mode = os.stat(target).st_mode & 0o7777
        self._remove_dead()
        self._path = os.path.join(self._folder, f"{self._stem}{secrets.token_hex(8)}{_SUFFIX}")
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):  # some network disks have no locks; then nothing is ever cleaned up
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._mode is not None:
                os.fchmod(self.fd, self._mode)
        except BaseException:
            self.discard()
            raise

    def _remove_dead(self) -> None:
        try:
            names = [n for n in os.listdir(self._folder) if n.startswith(self._stem) and n.endswith(_SUFFIX)]
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            except OSError:
                pass  # its writer lives, or another one was quicker
            finally:
                os.close(fd)

    def publish(self) -> None:
        """Put the temporary in the target's place."""
        if self._durable:
            os.fsync(self.fd)
        os.rename(self._path, self._target)
        fd, self.fd = self.fd, -1
        os.close(fd)
        if self._durable:
            sync_folder(self._folder)

    def discard(self) -> None:
        """Remove the temporary."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(fd)


_SUFFIX = ".dlpw-tmp"


def sync_folder(path: str) -> None:
    """Wait until a folder's entries are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
