"""Writing a log of tensors."""

from __future__ import annotations

import io
import itertools
import operator
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from mcap.writer import CompressionType, Writer

from ..errors import EncodeError, WireError
from ..file.sink import StreamSink
from ..message.codec import encode
from ..message.names import encode_name
from ..tensor.source import Layout
from ..v1 import dlpack_pb2
from .mcap import ENCODING, SCHEMA_NAME

LOG_CHUNK_BYTES = 1 << 20
"""Size at which a chunk is written out: the default of the `mcap` package. Larger chunks are compressed better, and
more is lost in a crash before a chunk is full."""

Compression = Literal["none", "lz4", "zstd"]

_MAX_TOPICS = 65535
"""Maximum number of topics of a log: MCAP numbers channels with 16 bits, and this writer from 1."""


class LogWriter:
    """A log being written. Closing, also by an exception inside the `with` block, finalises the file.

    Memory:
        One chunk, and the `mcap` package's copies of it while it is written out.
    """

    def __init__(
        self,
        target: Any,
        *,
        compression: Compression = "none",
        chunk_bytes: int = LOG_CHUNK_BYTES,
        overwrite: bool = False,
    ) -> None:
        """Begin a log.

        Args:
            target: A path, or an object with a `write` method, which is not closed with the log.
            compression: Compression of whole chunks. Most tensors hardly shrink.
            chunk_bytes: Size at which a chunk is written out.
            overwrite: Replace an existing file instead of refusing to.

        Raises:
            FileExistsError: The file exists and `overwrite` is not set: a recording cannot be made again.
            EncodeError: The compression is unknown.
            OSError: The file cannot be created, or the header not written.
            TypeError: `target` is neither a path nor has a `write` method.
        """
        if compression not in _COMPRESSIONS:
            raise EncodeError(f"must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}", field="compression")
        self._file = None if hasattr(target, "write") else io.FileIO(os.fspath(target), "w" if overwrite else "x")
        self._output = _Output(target if self._file is None else self._file)
        self._writer = Writer(self._output, chunk_bytes, _COMPRESSIONS[compression])  # type: ignore[arg-type]
        # The number and the sequences of each topic's channel.
        self._channels: dict[str, tuple[int, Iterator[int]]] = {}
        self._closed = False
        # Set while something is written: an interruption then leaves half a record.
        self._broken = True
        try:
            self._writer.start(library="dlpack-wire")
            self._schema = self._writer.register_schema(SCHEMA_NAME, ENCODING, _file_descriptor_set())
        except BaseException:
            self._drop()
            raise
        self._broken = False

    def write(self, topic: str, x: Any, time_ns: int | None = None, *, layout: Layout = "keep") -> None:
        """Append one tensor. It is in the file once `flush` or `close` has returned.

        Args:
            topic: Topic of the tensor: 1 to 4096 bytes of UTF-8 without NUL.
            x: Anything that `encode` takes.
            time_ns: Time at which it was made, in nanoseconds since 1970-01-01 UTC; by default, now. Times need not
                ascend.
            layout: As for `encode`.

        Raises:
            EncodeError: `x`, its topic or time cannot be written (over 2^31-1 bytes, use `save`). The log stays usable.
            TypeError: `time_ns` is not an integer.
            ValueError: The log is closed.
            OSError: Writing failed. The log takes no more and cannot be finalised.
        """
        self._check_usable()
        log_time = time.time_ns() if time_ns is None else operator.index(time_ns)
        if not 0 <= log_time < 1 << 64:
            raise EncodeError(f"{log_time} does not fit 64 bits without a sign", field="time_ns").at(topic=topic)
        known = self._channels.get(topic)
        if known is None:
            encode_name(topic)
            if len(self._channels) == _MAX_TOPICS:
                raise EncodeError(
                    f"a log has at most {_MAX_TOPICS} topics",
                    field="topic",
                    declared=_MAX_TOPICS + 1,
                    limit=_MAX_TOPICS,
                ).at(topic=topic)
        try:
            message = encode(x, layout=layout)
        except WireError as error:
            error.at(topic=topic)
            raise
        self._broken = True
        if known is None:
            known = self._writer.register_channel(topic, ENCODING, self._schema), itertools.count(1)
            self._channels[topic] = known
        channel, sequences = known
        self._writer.add_message(channel, log_time, message, log_time, next(sequences) & 0xFFFFFFFF)
        self._broken = False

    def flush(self) -> None:
        """Hand everything to the operating system, so that it survives the end of this process.

        Raises:
            OSError: The log cannot be written. It takes no more and cannot be finalised.
            ValueError: The log is closed.
        """
        self._check_usable()
        self._broken = True
        self._writer.flush()  # type: ignore[no-untyped-call]
        self._broken = False

    def close(self) -> None:
        """Finalise the log: write the index that readers need.

        Raises:
            OSError: The log cannot be written, or could not be before.
        """
        if self._closed:
            return
        try:
            if self._broken:
                raise OSError("the log is not finalised: writing to it failed before")
            self._writer.finish()  # type: ignore[no-untyped-call]
            self._output.flush()
        finally:
            self._drop()

    def _drop(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise ValueError("the log is closed")
        if self._broken:
            raise OSError("writing to this log failed before")

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and self._broken:
            self._drop()  # the error that broke the log is being raised already; a second one would hide it
        else:
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


_COMPRESSIONS = {"none": CompressionType.NONE, "lz4": CompressionType.LZ4, "zstd": CompressionType.ZSTD}


class _Output:
    """A stream as mcap's writer needs it, over anything with `write`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sink = StreamSink(stream)

    def write(self, content: bytes) -> None:
        self._sink.append(content)

    def tell(self) -> int:
        return self._sink.position

    def flush(self) -> None:
        flush = getattr(self._stream, "flush", None)
        if flush is not None:
            flush()


def _file_descriptor_set() -> bytes:
    """Return the schema and all that it imports, each file after those that it imports itself."""
    files: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        files[file.name] = file

    add(dlpack_pb2.DESCRIPTOR)
    collected = descriptor_pb2.FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(collected.file.add())
    return collected.SerializeToString()
