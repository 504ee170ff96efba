"""Tensors in the messages of the service: framing records and chunks around payloads.

The generated classes never see a payload. On the way out a message is its small fields, made by its class, joined with
the payload behind them; on the way in records and chunks are cut out of the serialized message, which may have them in
any order, and the class parses the rest. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message

from ..errors import DecodeError, LimitError
from ..message import reading, writing
from ..message.names import MAX_NAMES_BYTES, Value, decode_name, decode_value, names_block, names_too_large
from ..message.tags import RECORD_CRITICAL_NUMBERS, byte, tag
from ..message.wire import FIXED64, LEN, VARINT, length_delimited, read_field, read_varint, varint
from ..tensor.checksum import BLOCK_BYTES, block_sums
from ..tensor.header import Header
from ..tensor.memo import Memo
from ..tensor.memory import Buffer
from ..tensor.source import Source
from ..v1 import tensor_file_pb2
from ..v1 import tensor_service_pb2 as pb

MAX_SERVICE_MESSAGE_BYTES = 4 << 20
"""Largest message of the service: gRPC's default limit, so that no client has to raise it."""

MAX_CHUNK_BYTES = MAX_SERVICE_MESSAGE_BYTES // BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES
"""Largest payload of a chunk: whole blocks that leave room for what shares their message."""

INLINE_BYTES = 1 << 20
"""Maximum payload bytes in Store and Fetch: leaves room for headers and metadata."""

MAX_METADATA_BYTES = 1 << 20
"""Maximum bytes of an object's metadata: leaves room for the rest of a message."""

QUICK_PARSE_BYTES = 8 << 10
"""Messages with fewer bytes beside a payload are cheap to parse: with fields of two bytes it takes 5 ms."""

_FEW_FIELDS = 32

MAX_FIELDS = 100_000
"""Maximum number of fields of a message, or of a record in it: enough for as many tensors as an object may have."""

_CHUNK = pb.Chunk.DESCRIPTOR
_TENSOR_INDEX_TAG = byte(tag(_CHUNK, "tensor_index"))
_OFFSET_TAG = byte(tag(_CHUNK, "offset"))
_SUMS_NUMBER = _CHUNK.fields_by_name["block_sums"].number
_DATA_NUMBER = _CHUNK.fields_by_name["data"].number
_CHUNK_TAG = byte(tag(_CHUNK, "data"))
"""Tag of a chunk's data, and of the chunk in its message: both are field 15."""

_M = TypeVar("_M", bound=Message)


class Record(NamedTuple):
    """A tensor as a message of the service describes it.

    Attributes:
        names: Its name, which may be empty, and its aliases.
        metadata: Its user metadata.
        header: Its header, with the payload's checksum if that was stated.
        payload: The payload, if the message carries it; else empty.
    """

    names: tuple[str, ...]
    metadata: dict[str, Value]
    header: Header
    payload: Buffer

    @property
    def block(self) -> bytes:
        """Names and metadata as `names_block` makes them."""
        return names_block(self.names[0], self.names[1:], self.metadata, allow_empty=True)


class Chunk(NamedTuple):
    """One contiguous piece of a tensor's payload.

    Attributes:
        tensor_index: Which tensor.
        offset: Bytes from the start of the payload.
        sums: Sums of the blocks in it, 8 bytes each.
        data: The bytes, where they lie: whole blocks, of which the payload's last may be shorter.
    """

    tensor_index: int
    offset: int
    sums: bytes
    data: Buffer


# --- out --------------------------------------------------------------------------------------------------------------


def record_parts(number: int, block: bytes, header: Header, payload: Buffer = b"") -> list[Buffer]:
    """Return a record as the field of that number, in parts to be joined; without a payload if none is given."""
    tensor = writing.summed_fields(header) + writing.data_tag(len(payload))
    tensor_bytes = len(tensor) + len(payload)
    inner = block + _CHUNK_TAG + varint(tensor_bytes) + tensor
    return [varint(number << 3 | LEN) + varint(len(inner) + len(payload)) + inner, payload]


def chunk_parts(chunk: Chunk) -> list[Buffer]:
    """Return a chunk as the last field of its message, in parts to be joined."""
    head = _OFFSET_TAG + varint(chunk.offset) if chunk.offset else b""
    if chunk.tensor_index:
        head = _TENSOR_INDEX_TAG + varint(chunk.tensor_index) + head
    head += length_delimited(_SUMS_NUMBER, chunk.sums)
    size = len(chunk.data)
    head += _CHUNK_TAG + varint(size)
    return [_CHUNK_TAG + varint(len(head) + size) + head, chunk.data]


def chunk_messages(parts: list[Buffer], chunks: Iterable[Chunk]) -> Iterator[bytes]:
    """Yield messages with one chunk each. `parts` go first, in the message of the first chunk if they fit."""
    used = sum(map(len, parts))
    for chunk in chunks:
        head = chunk_parts(chunk)
        if parts and used + len(head[0]) + len(chunk.data) > MAX_SERVICE_MESSAGE_BYTES:
            yield b"".join(parts)
            parts = []
        yield b"".join([*parts, *head])
        parts = []
    if parts:
        yield b"".join(parts)


def chunks_of(source: Source, index: int, size: int, begin: int = 0) -> Iterator[Chunk]:
    """Yield a payload from `begin` on in chunks of at most `size` bytes, hashed as they come.

    Args:
        source: The tensor.
        index: Its number in the stream.
        size: Maximum bytes of a chunk, at least a block.
        begin: Position to begin at, that of a block.
    """
    size = size // BLOCK_BYTES * BLOCK_BYTES
    flat = source.buffer()
    if flat is not None:
        for offset in range(begin, len(flat), size):
            data = flat[offset : offset + size]
            yield Chunk(index, offset, block_sums(data), data)
        return
    gathered = bytearray()
    offset = 0
    for piece in source.pieces(BLOCK_BYTES):
        gathered += piece
        while len(gathered) >= BLOCK_BYTES:
            if offset >= begin:
                block = gathered[:BLOCK_BYTES]
                yield Chunk(index, offset, block_sums(block), block)
            del gathered[:BLOCK_BYTES]
            offset += BLOCK_BYTES
    if gathered and offset >= begin:
        yield Chunk(index, offset, block_sums(gathered), gathered)


# --- in ---------------------------------------------------------------------------------------------------------------


class _Fields(NamedTuple):
    """Numbers of the fields that are read around a message's class; 0: it has none."""

    records: int
    chunks: int


_FIELDS: dict[type[Message], _Fields] = {
    pb.StoreRequest: _Fields(records=15, chunks=0),
    pb.FetchResponse: _Fields(records=2, chunks=15),
    pb.PutRequest: _Fields(records=2, chunks=15),
    pb.GetResponse: _Fields(records=3, chunks=15),
    pb.StatResponse: _Fields(records=2, chunks=0),
}
_NO_FIELDS = _Fields(0, 0)


def parse(kind: type[_M], serialized: Buffer, max_records: int = 1 << 16) -> tuple[_M, list[Record], list[Chunk]]:
    """Parse a message: its own fields by its class, records and chunks around it.

    Raises:
        DecodeError: The message or a record in it is malformed.
        LimitError: More than `max_records` records.
    """
    records_number, chunks_number = _FIELDS.get(kind, _NO_FIELDS)
    records: list[Record] = []
    chunks: list[Chunk] = []
    rest = Rest(serialized, 0)
    end = len(serialized)
    for number, wire_type, begin, content, after in walk_fields(serialized, 0, end):
        if wire_type != LEN or not number or number not in (records_number, chunks_number):
            continue
        if number == chunks_number:
            chunks.append(read_chunk(serialized, content, after))
        elif len(records) < max_records:
            records.append(_read_record(serialized, content, after))
        else:
            raise LimitError(
                f"more than {max_records} records", declared=len(records) + 1, limit=max_records, field="records"
            )
        rest.leave_out(begin, after)
    return rest.parse(kind, end), records, chunks


def parses_quickly(serialized: Buffer, depth: int) -> bool:
    """Return True if a message is cheap to parse: it has few bytes beside one payload.

    Args:
        serialized: The message.
        depth: In how many messages the payload lies: each time it is field 15.
    """
    pos, end = 0, len(serialized)
    left = QUICK_PARSE_BYTES
    try:
        for _ in range(depth):
            if end - pos <= left:
                return True
            inner = 0, 0
            for field, _ in zip(walk_fields(serialized, pos, end), range(_FEW_FIELDS), strict=False):
                if field[0] == 15 and field[1] == LEN and field[4] - field[3] > inner[1] - inner[0]:
                    inner = field[3], field[4]
            left -= end - pos - (inner[1] - inner[0])
            if left < 0:
                return False
            pos, end = inner
    except DecodeError:
        return False
    return True


def only_chunk(chunks: Sequence[Chunk]) -> Chunk | None:
    """Return the chunk of a message that may have one.

    Raises:
        DecodeError: The message has several.
        LimitError: It is larger than MAX_CHUNK_BYTES.
    """
    if len(chunks) > 1:
        raise DecodeError(f"{len(chunks)} chunks in one message", field="chunk")
    if not chunks:
        return None
    size = len(chunks[0].data)
    if size > MAX_CHUNK_BYTES:
        text = f"a chunk of {size} bytes; at most {MAX_CHUNK_BYTES} are allowed"
        raise LimitError(text, declared=size, limit=MAX_CHUNK_BYTES, field="chunk")
    return chunks[0]


def walk_fields(buffer: Buffer, pos: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields of a message: number, wire type, and the positions of its begin, content and end."""
    for count in range(MAX_FIELDS + 1):
        if pos >= end:
            return
        if count == MAX_FIELDS:
            # Millions of tiny ones would take long to walk, and many times their bytes once they are parsed.
            raise LimitError(f"more than {MAX_FIELDS} fields", declared=MAX_FIELDS + 1, limit=MAX_FIELDS)
        # Nearly every tag is one byte and its length one or two; anything else goes through the strict reader.
        tag = buffer[pos]
        content = pos + 1
        after = 0
        if tag & 0x87 == FIXED64 and tag >= 8:
            after = pos + 9
        elif tag & 0x87 == LEN and tag >= 8 and end - pos > 2:
            content = pos + 2
            size = buffer[pos + 1]
            if size >= 0x80 and 0 < buffer[content] < 0x80:
                size = size & 0x7F | buffer[content] << 7
                content += 1
                after = content + size
            elif size < 0x80:
                after = content + size
        if 0 < after <= end:
            yield tag >> 3, tag & 7, pos, content, after
        else:
            field = read_field(buffer, pos, end)
            after = field.end
            yield field.number, field.wire_type, pos, field.content, after
        pos = after


class Rest:
    """A message without some of its fields: the part that its class parses."""

    def __init__(self, buffer: Buffer, begin: int) -> None:
        """Begin with the message in `buffer` from `begin` on."""
        self._buffer = buffer
        self._begin = begin
        self._kept: list[Buffer] = []

    def leave_out(self, begin: int, end: int) -> None:
        """Take the bytes [begin, end) out, which lie behind those taken out before."""
        if begin > self._begin:
            self._kept.append(self._buffer[self._begin : begin])
        self._begin = end

    def parse(self, kind: type[_M], end: int) -> _M:
        """Parse the rest, until `end`.

        Raises:
            DecodeError: The rest is malformed.
        """
        self.leave_out(end, end)
        try:
            return kind.FromString(b"".join(self._kept))
        except (ProtobufDecodeError, UnicodeDecodeError) as error:  # the latter by the pure-Python back end
            raise DecodeError(f"not a {kind.DESCRIPTOR.name}: {error}") from None


def read_chunk(buffer: Buffer, pos: int, end: int) -> Chunk:
    """Read the serialized `Chunk` in [pos, end).

    Raises:
        DecodeError: Malformed message.
    """
    index = offset = 0
    sums = b""
    data_begin = data_end = end
    for number, wire_type, _, content, after in walk_fields(buffer, pos, end):
        if number == _DATA_NUMBER and wire_type == LEN:
            data_begin, data_end = content, after
        elif number == _SUMS_NUMBER and wire_type in (LEN, FIXED64):
            sums += bytes(buffer[content:after])  # packed or not, as every parser takes them
        elif number == 1 and wire_type == VARINT:
            index = read_varint(buffer, content, after)[0] & 0xFFFFFFFF  # a uint32, cut as every parser does
        elif number == 2 and wire_type == VARINT:
            offset = read_varint(buffer, content, after)[0]
    return Chunk(index, offset, sums, memoryview(buffer)[data_begin:data_end])


class _Known(NamedTuple):
    """A record without metadata that was read before: what of it stays when the payload's bytes change.

    Attributes:
        before: Its bytes before the checksum's value.
        after: Its bytes between that and the payload.
        names, header: What they mean.
    """

    before: bytes
    after: bytes
    names: tuple[str, ...]
    header: Header


# By the record's size and first bytes: tensors of one program come again and again.
_KNOWN: Memo[tuple[int, bytes], _Known] = Memo(1024)
_KNOWN_BYTES = 512
"""Longest record remembered, without its payload: names and headers of most tensors take under 100 bytes."""

_KEY_BYTES = 16
"""First bytes of a record in its key: enough to tell numbered names apart in most programs."""


def _read_record(buffer: Buffer, pos: int, end: int) -> Record:
    key = end - pos, bytes(buffer[pos : pos + _KEY_BYTES])
    known = _KNOWN.get(key)
    if known is not None:
        before, after, names, header = known
        sum_begin = pos + len(before)
        data_begin = sum_begin + 8 + len(after)
        if buffer[pos:sum_begin] == before and buffer[sum_begin + 8 : data_begin] == after:
            checksum = int.from_bytes(buffer[sum_begin : sum_begin + 8], "little")
            return Record(names, {}, header.with_checksum(checksum), _payload(buffer, data_begin, end))
    try:
        record, located = _read_new_record(buffer, pos, end)
    except DecodeError as error:
        if error.tensor is None and error.field != "name":
            error.at(tensor="")  # a fault of the record, although its name could not be read
        raise
    if located is not None and located.checksum is not None and not record.metadata and located.data_end == end:
        before, after = (
            bytes(buffer[pos : located.sum_begin]),
            bytes(buffer[located.sum_begin + 8 : located.data_begin]),
        )
        if located.sum_begin < located.data_begin and len(before) + len(after) <= _KNOWN_BYTES:
            _KNOWN.keep(key, _Known(before, after, record.names, record.header))
    return record


def _payload(buffer: Buffer, begin: int, end: int) -> Buffer:
    """Return a view of a payload. One without bytes would keep all of its message in memory, so that is no view."""
    return memoryview(buffer)[begin:end] if begin < end else b""


def _read_new_record(buffer: Buffer, pos: int, end: int) -> tuple[Record, reading.Parsed | None]:
    """Return the record, and the positions of its parts, or None if they had to be joined in another buffer."""
    name = b""
    aliases: list[bytes] = []
    tensors: list[tuple[int, int]] = []
    size = end - pos
    rest = Rest(buffer, pos)
    for number, wire_type, begin, content, after in walk_fields(buffer, pos, end):
        if number in RECORD_CRITICAL_NUMBERS:
            reading.refuse_critical(number, begin)
        if wire_type != LEN or number not in (1, 2, 15):
            continue
        if number == 15:
            tensors.append((content, after))
            size -= after - begin
        elif number == 1:
            name = bytes(buffer[content:after])
        else:
            aliases.append(bytes(buffer[content:after]))
        rest.leave_out(begin, after)
    if size > MAX_NAMES_BYTES:
        raise names_too_large(size, pos)
    names = tuple(map(decode_name, (name, *aliases)))
    try:
        message = rest.parse(tensor_file_pb2.TensorRecord, end)
        metadata = {key: decode_value(value) for key, value in message.metadata.items()}
        if not tensors:
            raise DecodeError("missing", field="tensor")
        begin, end = tensors[0]
        if len(tensors) > 1:  # parsers merge them, which is what reading them as one does
            buffer = b"".join(buffer[b:e] for b, e in tensors)
            begin, end = 0, len(buffer)
        located = reading.read(buffer, begin, end)
    except DecodeError as error:
        error.at(tensor=names[0][:64])
        raise
    header = located.header.with_checksum(located.checksum)
    record = Record(names, metadata, header, _payload(buffer, located.data_begin, located.data_end))
    return record, located if len(tensors) == 1 else None
