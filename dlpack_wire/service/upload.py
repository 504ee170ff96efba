"""An object on its way to a server: its tensors, and the requests that carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from ..errors import EncodeError
from ..message.aliases import stored_once
from ..message.codec import is_tensor, source_of
from ..message.names import names_block
from ..message.wire import length_delimited
from ..tensor.checksum import BLOCK_BYTES, SUM_BYTES, payload_sum, xxh3
from ..tensor.memory import Buffer
from ..tensor.source import Source
from ..v1 import tensor_service_pb2 as pb
from .messages import MAX_SERVICE_MESSAGE_BYTES, chunk_parts, chunks_of, record_parts

Progress = Callable[[int, int], None]
"""Called with the payload bytes sent or received so far, and their total."""

_FINISH = pb.PutRequest(finish=True).SerializeToString()

_CHUNK_HEAD_BYTES = 256
"""Room for what stands before a chunk's data: tags, lengths, position, and a sum for each of at most 3 blocks."""


class Outgoing:
    """The tensors of an object to be put, held until it is done.

    Attributes:
        payload_bytes: Sum of the sizes of their payloads.
    """

    def __init__(self, x: Any, held: ExitStack) -> None:
        self._items: list[tuple[bytes, Source]] = []
        if isinstance(x, Mapping) and not is_tensor(x):
            if not x:
                raise EncodeError("an object has at least one tensor")
            for name, tensor, aliases in stored_once(x):
                self._add(tensor, names_block(name, aliases), name, held)
        else:
            self._add(x, b"", None, held)
        self.payload_bytes = sum(source.header.payload_bytes for _, source in self._items)

    def _add(self, x: Any, names: bytes, name: str | None, held: ExitStack) -> None:
        try:
            self._items.append((names, held.enter_context(source_of(x))))
        except EncodeError as error:
            error.at(tensor=name)
            raise

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Source:
        return self._items[index][1]

    def records(self) -> Iterator[bytes]:
        """Yield the headers as fields of `PutRequest`."""
        for block, source in self._items:
            yield b"".join(record_parts(2, block, source.header))

    def inline_parts(self) -> Iterator[Buffer]:
        """Yield headers and payloads as fields of `StoreRequest`, in parts to be joined."""
        for block, source in self._items:
            payload = source.buffer()
            if payload is None:
                payload = memoryview(b"".join(map(bytes, source.pieces(1 << 20))))
            header = source.header.with_checksum(payload_sum(payload))
            yield from record_parts(15, block, header, payload)


class Upload:
    """An object being streamed to a server.

    Attributes:
        failure: The exception raised by a tensor or the progress callback while it was being sent, or None.
    """

    def __init__(self, start: pb.PutStart, metadata: bytes, tensors: Outgoing, size: int, progress: Progress | None):
        self._start = start
        self._metadata = metadata
        self._tensors = tensors
        self._size = size
        self._progress = progress
        self._held = (0, 0)
        # Sums of the blocks sent so far, so that a resumed upload need not hash them again.
        self._sent = [bytearray() for _ in range(len(tensors))]
        self.failure: BaseException | None = None

    def requests(self) -> Iterator[bytes]:
        """Yield all messages."""
        return self._guarded(self._all())

    def remaining(self, status: pb.GetUploadStatusResponse) -> Iterator[bytes]:
        """Yield the messages that are left to be sent; all of them if the server holds other bytes than were sent."""
        index, begin = status.tensor_index, status.offset
        sent = bytes(self._sent[index][: begin // BLOCK_BYTES * SUM_BYTES]) if index < len(self._sent) else b""
        if index < len(self._tensors) and xxh3(sent) != status.held_sum:
            return self.requests()
        return self._guarded(self._rest(index, begin))

    def has_moved(self, status: pb.GetUploadStatusResponse) -> bool:
        """Return True if the server holds more than at the last call."""
        before, self._held = self._held, (status.tensor_index, status.offset)
        return self._held > before

    def status_request(self) -> bytes:
        """Return the serialized GetUploadStatusRequest."""
        return pb.GetUploadStatusRequest(upload_id=self._start.upload_id).SerializeToString()

    def take_failure(self) -> BaseException:
        """Return and clear `failure`: its traceback would keep this object alive."""
        assert self.failure is not None
        failure, self.failure = self.failure, None
        return failure

    def discard_request(self) -> bytes:
        """Return the serialized DiscardUploadRequest."""
        return pb.DiscardUploadRequest(upload_id=self._start.upload_id).SerializeToString()

    def _guarded(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        # gRPC would only log what its iterator raises, and end the call with a status of its own.
        try:
            yield from messages
        except Exception as error:
            self.failure = error

    def _all(self) -> Iterator[bytes]:
        parts = [_start_field(self._start, self._metadata)]
        used = len(parts[0])
        for record in self._tensors.records():
            if used + len(record) > MAX_SERVICE_MESSAGE_BYTES:
                yield b"".join(parts)
                parts, used = [], 0
            parts.append(record)
            used += len(record)
        yield from self._chunks(parts, 0, 0)

    def _rest(self, index: int, begin: int) -> Iterator[bytes]:
        start = pb.PutStart(upload_id=self._start.upload_id, resume=True)
        yield from self._chunks([_start_field(start)], index, begin)

    def _chunks(self, parts: list[bytes], index: int, begin: int) -> Iterator[bytes]:
        """Yield chunks from a position on and the end. `parts` go first, in the first chunk's message if they fit."""
        total = self._tensors.payload_bytes
        done = begin + sum(self._tensors[at].header.payload_bytes for at in range(index))
        used = sum(map(len, parts))
        for at in range(index, len(self._tensors)):
            sent = self._sent[at]
            del sent[begin // BLOCK_BYTES * SUM_BYTES :]
            for chunk in chunks_of(self._tensors[at], at, self._size, begin):
                sent += chunk.sums
                if parts and used + len(chunk.data) + _CHUNK_HEAD_BYTES > MAX_SERVICE_MESSAGE_BYTES:
                    yield b"".join(parts)
                    parts = []
                done += len(chunk.data)
                if done == total:
                    parts.append(_FINISH)
                yield b"".join([*parts, *chunk_parts(chunk)])
                parts = []
                if self._progress is not None:
                    self._progress(done, total)
            begin = 0
        if parts:
            yield b"".join([*parts, _FINISH])


def _start_field(start: pb.PutStart, metadata: bytes = b"") -> bytes:
    return length_delimited(1, start.SerializeToString() + metadata)
