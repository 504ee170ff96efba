"""The messages that hand out stored objects, each within the limit of one message."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterator, Sequence

from dlpack_wire.errors import DecodeError
from dlpack_wire.message.wire import length_delimited
from dlpack_wire.service.messages import (
    INLINE_BYTES,
    MAX_SERVICE_MESSAGE_BYTES,
    Chunk,
    chunk_messages,
    chunk_parts,
    chunks_of,
    record_parts,
)
from dlpack_wire.tensor.checksum import BLOCK_BYTES, sums_in
from dlpack_wire.tensor.memory import Buffer
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .selection import part
from .status import Refusal
from .store import ObjectSummary, StoredObject, StoredRecord

PAGE_BYTES = MAX_SERVICE_MESSAGE_BYTES - (1 << 20)
"""Maximum bytes of a page. A first entry larger than this is sent alone."""

_TOKEN_SUM_BYTES = 12


def object_field(number: int, info: ObjectSummary) -> bytes:
    """Return an `ObjectInfo` as the field of that number."""
    message = pb.ObjectInfo(
        name=info.name,
        generation=info.generation,
        tensor_count=info.tensor_count,
        payload_bytes=info.payload_bytes,
        created_time_ns=info.created_time_ns,
    )
    return length_delimited(number, message.SerializeToString() + info.metadata)


def select(stored: StoredObject, names: Sequence[str]) -> Sequence[StoredRecord]:
    """Return the tensors asked for, in that order; all of them if none is named."""
    if not names:
        return stored.records
    try:
        return [stored.by_name[name] for name in names]
    except KeyError as error:
        text = f"{stored.info.name!r} has no tensor {error.args[0]!r} among its {stored.info.tensor_count}"
        raise Refusal("TENSOR_NOT_FOUND", text) from None


def _stored_chunks(
    stored: StoredObject, records: Sequence[StoredRecord], index: int, begin: int, size: int
) -> Iterator[Chunk]:
    """Yield whole payloads from a position on, with the sums that their uploads were checked by."""
    for at in range(index, len(records)):
        total = records[at].header.payload_bytes
        for offset in range(begin, total, size):
            data = stored.read(records[at], offset, min(offset + size, total))
            yield Chunk(at, offset, sums_in(records[at].sums, offset, len(data)), data)
        begin = 0


def fetch_response(stored: StoredObject, records: Sequence[StoredRecord]) -> bytes:
    """Return the message of a Fetch: all headers, and as many payload bytes as fit one message.

    Raises:
        Refusal: HEADERS_TOO_LARGE, if the records do not fit into one message.
    """
    parts: list[Buffer] = [object_field(1, stored.info)]
    left_bytes = MAX_SERVICE_MESSAGE_BYTES - INLINE_BYTES - (64 << 10) - len(parts[0])
    for record in records:
        head = record_parts(2, record.block, record.header)
        left_bytes -= len(head[0])
        if left_bytes < 0:
            raise Refusal("HEADERS_TOO_LARGE", "the headers alone do not fit one message: use Get or Stat")
        parts += head
    chunks: list[Buffer] = []
    inline_bytes, complete = INLINE_BYTES, True
    for index, record in enumerate(records):
        total = record.header.payload_bytes
        size = total if total <= inline_bytes else inline_bytes // BLOCK_BYTES * BLOCK_BYTES
        if size and left_bytes >= 64:
            data = stored.read(record, 0, size)
            head = chunk_parts(Chunk(index, 0, sums_in(record.sums, 0, len(data)), data))
            left_bytes -= len(head[0])
            inline_bytes -= size
            chunks += head
        if size < total or left_bytes < 64:
            complete = False
            break
    return b"".join([*parts, pb.FetchResponse(complete=complete).SerializeToString(), *chunks])


def get_messages(
    stored: StoredObject, records: Sequence[StoredRecord], request: pb.GetRequest, size: int
) -> Iterator[bytes]:
    """Yield the messages of a Get.

    Args:
        stored: The object.
        records: The tensors that were asked for.
        request: The request.
        size: Maximum bytes of a chunk, which is rounded down to whole blocks, of which it has at least one.

    Raises:
        DecodeError: Selections contradict the rest of the request, or it starts within a block.
        Refusal: OUT_OF_RANGE, or INVALID_REQUEST for selections that do not fit the tensor.
    """
    index, begin = request.start_tensor_index, request.start_offset
    size = max(size // BLOCK_BYTES, 1) * BLOCK_BYTES
    if request.selections:
        if len(records) != 1 or index or begin:
            raise DecodeError("selections are for one tensor, from its start", field="selections")
        header, source = part(stored, records[0], request.selections)
        headers_out = [(records[0].block, header)]
        chunks = chunks_of(source, 0, size)
    else:
        payload_bytes = records[index].header.payload_bytes if index < len(records) else 0
        if index > len(records) or begin > payload_bytes:
            raise Refusal("OUT_OF_RANGE", f"tensor {index} has no byte {begin}")
        if begin % BLOCK_BYTES and begin != payload_bytes:
            raise DecodeError(f"{begin} is not a multiple of {BLOCK_BYTES}", field="start_offset")
        headers_out = [(record.block, record.header) for record in records]
        chunks = _stored_chunks(stored, records, index, begin, size)
    parts: list[Buffer] = [
        object_field(1, stored.info),
        pb.GetResponse(record_count=len(records)).SerializeToString(),
    ]
    used = len(parts[0]) + len(parts[1])
    for block, header in headers_out:
        head = record_parts(3, block, header)
        if used + len(head[0]) > MAX_SERVICE_MESSAGE_BYTES:
            yield b"".join(parts)
            parts, used = [], 0
        parts += head
        used += len(head[0])
    yield from chunk_messages(parts, chunks)


class PageTokens:
    """Tokens of list pages. They hold for one server, and are made from names that were shown."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def token(self, prefix: str, shown: str) -> str:
        """Return the token of the page that begins behind the name shown last."""
        return base64.urlsafe_b64encode(self._sum(prefix, shown) + shown.encode()).decode()

    def begin(self, prefix: str, token: str) -> str:
        """Return the name behind which the page of a token begins.

        Raises:
            DecodeError: The token is not one that `token` made for this prefix.
        """
        try:
            raw = base64.b64decode(token, b"-_", validate=True)
            shown = raw[_TOKEN_SUM_BYTES:].decode()
        except ValueError:
            raise _foreign_token() from None
        if not hmac.compare_digest(raw[:_TOKEN_SUM_BYTES], self._sum(prefix, shown)):
            raise _foreign_token()
        return shown

    def _sum(self, prefix: str, shown: str) -> bytes:
        content = f"{prefix}\0{shown}".encode()
        return hashlib.blake2b(content, key=self._key, digest_size=_TOKEN_SUM_BYTES).digest()


def _foreign_token() -> DecodeError:
    return DecodeError("not one that a list of this prefix gave out", field="page_token")


def stat_response(stored: StoredObject, request: pb.StatRequest) -> bytes:
    """Return the message of a Stat: a page of headers."""
    first = request.first_record
    last = len(stored.records)
    if request.max_record_count:
        last = min(last, first + request.max_record_count)
    parts: list[Buffer] = [object_field(1, stored.info)]
    left_bytes = PAGE_BYTES - len(parts[0])
    for at in range(first, last):
        record = stored.records[at]
        head = record_parts(2, record.block, record.header)
        left_bytes -= len(head[0])
        if left_bytes < 0 and at > first:
            last = at
            break
        parts += head
    following = last if first < last < len(stored.records) else 0
    return b"".join([*parts, pb.StatResponse(next_record=following).SerializeToString()])
