"""Writing a tensor file: record by record, to a path (atomically) or to anything with `write`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ..errors import EncodeError, WireError
from ..message.codec import source_of
from ..message.names import MAX_FILE_METADATA_BYTES, Metadata, Value, names_block, split_names
from ..message.wire import MAX_MESSAGE_BYTES
from ..tensor.checksum import SUM_BYTES, block_sums, xxh3
from ..tensor.header import Header
from ..tensor.source import Layout, plain_array
from .index import MAGIC, entry_bytes, index_bytes, metadata_bytes
from .record import MAX_ALIGNMENT, RECORD_ALIGNMENT, RecordPlan, plan_record, prefix
from .remote import RemoteTarget, is_url
from .replacement import Replacement
from .sink import FileSink, Payload, Sink, StreamSink

_process = os.getpid()


def _note_fork() -> None:
    global _process
    _process = os.getpid()


# Every record asks for the process; asking the kernel each time would make writing small tensors 8 % slower.
os.register_at_fork(after_in_child=_note_fork)

MAX_LINES_BYTES = MAX_MESSAGE_BYTES - MAX_FILE_METADATA_BYTES - (1 << 20)
"""Maximum bytes of index entries of one generation, so that its index is one message: tens of millions of tensors."""

SMALL_BYTES = 256 * 1024
"""Payloads up to this size are gathered into a buffer, so that many small ones cost few system calls. Each is copied
once more for it, which costs more than a system call if the payload is larger than the cache.
"""


class Target(Protocol):
    """The file, URL or device written to, until it is published or discarded."""

    def publish(self) -> None:
        """Make the written bytes the file."""

    def discard(self) -> None:
        """Drop the written bytes."""


class RecordWriter:
    """The part that all writers of tensor files share: `f["w"] = x`, or `write` with more to say.

    Attributes:
        metadata: User metadata of the file; may be changed until `close`.
    """

    def __init__(self, metadata: Metadata | None, alignment: int) -> None:
        """Begin with no records.

        Args:
            metadata: User metadata of the file.
            alignment: Every payload starts at a multiple of this: a power of two from 64 to 4096.

        Raises:
            EncodeError: The alignment is out of range, or the metadata cannot be written.
        """
        if alignment < RECORD_ALIGNMENT or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
            raise EncodeError(
                f"must be a power of two from {RECORD_ALIGNMENT} to {MAX_ALIGNMENT}, not {alignment}", field="alignment"
            )
        metadata_bytes(metadata)  # refuses it now rather than at the end
        self.metadata: dict[str, Value] = dict(metadata or {})
        self._alignment = alignment
        self._lines: list[bytes] = []
        self._lines_bytes = 0
        self._closed = False
        self._process = _process
        self._lock = threading.RLock()
        self._sink: Sink

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
            EncodeError: A name is taken or malformed, or `x` cannot be written. The file stays usable.
            OSError: Writing failed. The file is closed, and what was not published before is lost.
            Exception: Any error of the producer `x` itself.
            ValueError: The file is closed.
            RuntimeError: This process was forked from the one that opened the file.
        """
        names = names_block(name, aliases, metadata, allow_empty=True)
        with self._lock:
            self._write(names, name, x, aliases, layout)

    def _write(self, names: bytes, name: str, x: Any, aliases: Sequence[str], layout: Layout) -> None:
        self._check(names, name, aliases)
        begin = self._sink.position
        try:
            plain = plain_array(x) if type(x) is np.ndarray else None
            if plain is not None and plain.header.payload_bytes <= SMALL_BYTES:
                self._append_small(names, plain.header, plain.payload(x))
            else:
                with source_of(x, layout) as source:
                    self._append(names, source.header, source, source.buffer())
        except BaseException as error:
            self._note_failure(error, begin, name)
            raise
        self._claim(name, aliases)

    def _copy(self, names: bytes, header: Header, payload: memoryview) -> None:
        name, *aliases = split_names(names)[0]
        with self._lock:
            self._check(names, name, aliases)
            begin = self._sink.position
            try:
                self._append(names, header.with_checksum(None), Copied(header, payload), payload)
            except BaseException as error:
                self._note_failure(error, begin, name)
                raise
            self._claim(name, aliases)

    def _check(self, names: bytes, name: str, aliases: Sequence[str]) -> None:
        """Refuse a record before any byte of it is written."""
        self._check_usable(names)
        self._check_names(name, aliases)

    def _check_usable(self, names: bytes) -> None:
        if self._closed:
            raise ValueError("the file is closed")
        if self._is_inherited:
            raise RuntimeError("the file was opened before a fork: only the process that opened it may write to it")
        if self._lines_bytes + len(names) > MAX_LINES_BYTES:
            raise EncodeError(
                f"the index of one generation takes at most {MAX_LINES_BYTES} bytes",
                field="entries",
                declared=self._lines_bytes + len(names),
                limit=MAX_LINES_BYTES,
            )

    def _note_failure(self, error: BaseException, begin: int, name: str) -> None:
        """End the file if nothing more can come: after a failed write, or with half a record on a stream."""
        if isinstance(error, OSError) or self._sink.position != begin:
            self.abort()
        if isinstance(error, WireError):
            error.at(tensor=name)

    def _check_names(self, name: str, aliases: Sequence[str]) -> None:
        """Refuse names that this file cannot take."""
        raise NotImplementedError

    def _claim(self, name: str, aliases: Sequence[str]) -> None:
        """Note the names of a record that has been written."""
        raise NotImplementedError

    def _append(self, names: bytes, header: Header, payload: Payload, flat: memoryview | None) -> None:
        if flat is not None and header.payload_bytes <= SMALL_BYTES:
            self._append_small(names, header, flat)
        else:
            begin = self._sink.position
            record = plan_record(header, len(names), begin % self._alignment, self._alignment)
            sums = self._sink.append_record(record, names, payload)
            self._note(names, header, begin, record, sums)

    def _append_small(self, names: bytes, header: Header, payload: Any) -> None:
        begin = self._sink.position
        record = plan_record(header, len(names), begin % self._alignment, self._alignment)
        payload_sum = xxh3(payload)
        self._sink.append(prefix(record, names, payload_sum), payload)
        self._note(names, header, begin, record, payload_sum.to_bytes(SUM_BYTES, "little"))

    def _note(self, names: bytes, header: Header, begin: int, record: RecordPlan, sums: bytes) -> None:
        line = entry_bytes(names, header, sums, begin, begin + record.prefix_bytes)
        self._lines.append(line)
        self._lines_bytes += len(line)

    def close(self) -> None:
        """Publish the file.

        Raises:
            OSError: The file cannot be written; the old file, if any, stays.
        """
        raise NotImplementedError

    def abort(self) -> None:
        """Drop everything that was not published."""
        raise NotImplementedError

    @property
    def _is_inherited(self) -> bool:
        """True in a forked child: the file is its parent's, and must be left alone."""
        return self._process != _process

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.abort()

    def __reduce__(self) -> str:
        raise TypeError("a file being written cannot be sent to another process")


class FileWriter(RecordWriter):
    """A new tensor file being written: `f["w"] = x`, or `write` with more to say.

    Nothing is published before `close`; an exception inside the `with` block publishes nothing. One tensor is held at a
    time, so the file may be larger than memory. A path is written in one pass: payloads are hashed
    while they are written. For a stream each payload is hashed first.

    Attributes:
        metadata: User metadata of the file; may be changed until `close`.
    """

    def __init__(
        self, target: Any, *, metadata: Metadata | None = None, durable: bool = True, alignment: int = RECORD_ALIGNMENT
    ) -> None:
        """Begin a file.

        Args:
            target: A path or URL, replaced atomically on `close`, or an object with `write`, written as it comes.
            metadata: User metadata of the file.
            durable: Wait on `close` until file and name are on disk.
            alignment: Every payload starts at a multiple of this: a power of two from 64 to 4096.

        Raises:
            EncodeError: The alignment is out of range, or the metadata cannot be written.
            OSError: The target cannot be written to.
            ImportError: A URL needs the extra `dlpack-wire[remote]`.
        """
        super().__init__(metadata, alignment)
        self._names: set[str] = set()
        self._target: Target | None = None
        self._closed = True  # nothing to abort before there is a sink
        if hasattr(target, "write"):
            self._sink = StreamSink(target)
        elif is_url(target):
            self._target = upload = RemoteTarget(target)
            self._sink = StreamSink(upload.stream)
        else:
            self._target = replacement = Replacement(target, durable)
            in_place = replacement.in_place
            self._sink = StreamSink(ReplacementStream(replacement)) if in_place else FileSink(replacement.fd)
        self._closed = False
        try:
            self._sink.append(MAGIC)
        except BaseException:
            self.abort()
            raise

    def _check_names(self, name: str, aliases: Sequence[str]) -> None:
        if not self._names.isdisjoint((name, *aliases)):
            taken = next(n for n in (name, *aliases) if n in self._names)
            raise EncodeError(f"duplicate name {taken!r}", field="name")
        if "" in self._names or (not name and (self._names or aliases)):
            raise EncodeError("the empty name is reserved for a file's only tensor", tensor=name, field="name")

    def _claim(self, name: str, aliases: Sequence[str]) -> None:
        self._names.add(name)
        self._names.update(aliases)

    def close(self) -> None:
        """Write the index, and publish the file.

        Raises:
            EncodeError: The metadata has been changed to something that cannot be written.
            OSError: The file cannot be written; the old file, if any, stays.
        """
        with self._lock:
            if not self._closed and not self._is_inherited:
                self._finish()

    def _finish(self) -> None:
        try:
            metadata = metadata_bytes(self.metadata)
            self._sink.append(*index_bytes(self._lines, metadata, self._sink.position))
            self._sink.flush()
            if self._target is not None:
                self._target.publish()
            self._sink.close()
        except BaseException:
            self.abort()
            raise
        self._closed = True

    def abort(self) -> None:
        """Drop the written bytes; the old file, if any, stays."""
        self._closed = True
        if self._is_inherited:
            return
        self._sink.close()
        if self._target is not None:
            self._target.discard()

    def __enter__(self) -> FileWriter:
        return self


def copy_record(writer: RecordWriter, names: bytes, header: Header, payload: memoryview) -> None:
    """Append the payload of another file as it lies there: for this package, not for users.

    Args:
        writer: The file to write to.
        names: Names and metadata, as `names_block` makes them.
        header: The payload's header with its checksum, which has been checked.
        payload: The payload.

    Raises:
        EncodeError, OSError, ValueError: As for `FileWriter.write`.
    """
    writer._copy(names, header, payload)


class ReplacementStream:
    """The stream of a target that is written in place. Its descriptor stays the target's own, which closes it."""

    def __init__(self, replacement: Replacement) -> None:
        self._replacement = replacement

    def write(self, content: memoryview) -> int:
        """Write some of the bytes; return how many."""
        return os.write(self._replacement.fd, content)


class Copied:
    """A payload in another file."""

    def __init__(self, header: Header, payload: memoryview) -> None:
        self._header = header
        self._payload = payload

    @property
    def lasting(self) -> bool:
        """True: it lies in a mapping that is kept alive."""
        return True

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the payload in order, in pieces of at most `size` bytes."""
        for begin in range(0, len(self._payload), size):
            yield self._payload[begin : begin + size]

    def block_sums(self) -> bytes:
        """Return the sums of the payload's blocks, 8 bytes each."""
        return block_sums(self._payload)
