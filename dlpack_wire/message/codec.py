"""Tensors to messages and back: bytes with `encode` and `decode`, message objects with `to_proto` and `from_proto`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import EncodeError, LimitError
from ..tensor import abi
from ..tensor import header as headers
from ..tensor.capsule import borrow_plain
from ..tensor.checksum import BLOCK_BYTES, Summing, check_contents, check_sum, payload_sum, total, xxh3
from ..tensor.header import Header
from ..tensor.memo import Memo
from ..tensor.memory import Buffer
from ..tensor.source import PLAIN_ARRAYS, Layout, Source, plain_array
from ..tensor.tensor import Tensor, from_payload, is_foreign
from ..v1 import dlpack_pb2
from . import reading, writing
from .tags import SUM_FIELD_BYTES
from .wire import MAX_MESSAGE_BYTES, varint_size

MESSAGE_ALIGNMENT = 16
"""The payload's position in a message is a multiple of this, if an element has a part wider than a byte."""


def encode(x: Any, *, checksum: bool = True, layout: Layout = "keep", provenance: bool = False) -> bytes:
    """Serialize a tensor as one `DLTensor` message.

    Args:
        x: Anything with `__dlpack__` or `to_dlpack`, a raw DLPack capsule, a numpy array of either byte order, a
            `Tensor` or a `DLTensor` message.
        checksum: Write the payload's sum.
        layout: "keep" memory that is dense under some order of the axes (Fortran, channels-last); anything else
            is packed row-major. "compact" packs always.
        provenance: Record the DLPack version that the producer speaks.

    Returns:
        The message. Equal values, dtype, layout and device give equal bytes, whichever library made them.

    Raises:
        UnsupportedTensorError: `x` is not a tensor, or its type, device or kind cannot be written in a message (also a
            BufferError).
        EncodeError: The message would exceed 2^31-1 bytes, protobuf's limit; `x` describes an impossible tensor; or
            `layout` is unknown.
        DecodeError: `x` is a `DLTensor` message that breaks a rule of the contract.
        UnsupportedVersionError: `x` is a capsule of another major DLPack version.
        ValueError: `x` is a capsule that was consumed, or holds no tensor.
        Exception: Any error of the producer `x` itself.

    Memory:
        Copies the payload once. Holds `x` only during the call.
    """
    if layout == "keep" and not provenance:
        message = _encode_plain(x, checksum)
        if message is not None:
            return message
    with source_of(x, layout, provenance) as source:
        prefix = _prefix(source.header, checksum)
        payload = source.buffer()
        if payload is None:
            return _encode_gathered(source, prefix, checksum)
        return _join(prefix, payload, checksum)


def _join(prefix: tuple[bytes, bytes], payload: Any, checksum: bool) -> bytes:
    before, after = prefix
    if checksum:
        return b"".join((before, payload_sum(payload).to_bytes(8, "little"), after, payload))
    return b"".join((before, after, payload))


def _encode_plain(x: Any, checksum: bool) -> bytes | None:
    """Encode compact row-major memory of a type that needs no check, as most tensors are; None for everything else.

    The bytes are those of the long way. The bytes around the payload are remembered, since programs encode tensors of
    few shapes again and again: that leaves the hash and the copy.
    """
    payload: Any
    if type(x) is np.ndarray:
        plain = _known_array((x.dtype, x.shape, x.strides)) or plain_array(x)
        if plain is None:
            return None
        payload = x if plain.element is None else x.view(plain.element)
    else:
        borrowed = borrow_plain(x)
        if borrowed is None:
            return None
        plain, payload, _held = borrowed  # the last one holds the memory until the end of this function
    prefix = plain.prefixes[checksum]
    if prefix is None:
        prefix = plain.prefixes[checksum] = _prefix(plain.header, checksum)
    before, after = prefix
    # Written out here too: a call of `_join` would cost a tenth of encoding a small tensor.
    if checksum:
        is_small = plain.header.payload_bytes <= BLOCK_BYTES
        found_sum = xxh3(payload) if is_small else payload_sum(memoryview(payload).cast("B"))
        return b"".join((before, found_sum.to_bytes(8, "little"), after, payload))
    return b"".join((before, after, payload))


# Bound once: looking the method up would cost as much as the look-up that it makes. It spares most arrays a call.
_known_array = PLAIN_ARRAYS.get


def decode(buffer: Buffer | Any, *, copy: bool | None = None, verify: bool = True) -> Tensor:
    """Turn one serialized `DLTensor` into a tensor that any DLPack consumer accepts.

    Args:
        buffer: The message: any object with a contiguous buffer. Not modified.
        copy: True: into new writable memory; None: only where byte order or alignment demand it; False: never.
        verify: Compare the payload's checksum, if the message has one.

    Returns:
        A tensor in host memory, in this machine's byte order, aligned to its lane's width, at most 16 bytes.

    Raises:
        TruncatedError: The buffer ends before the message does.
        ChecksumError: The payload was damaged.
        LimitError: The message, or a part of it, is larger than a cap allows.
        DecodeError: The message breaks a rule of the contract.
        BufferError: `copy` is False and a copy is needed, or `buffer` is not contiguous.
        ValueError: `buffer` is a numpy array that is not contiguous.
        TypeError: `buffer` is not an object with a buffer.

    Memory:
        Borrows `buffer` and keeps it alive, unless copied. Read-only if the buffer is.
    """
    owner = buffer
    if type(buffer) is not bytes:
        # np.ndarray would drop the export of a buffer that it is given, and the memory could be resized away under it.
        owner = np.frombuffer(buffer, np.uint8)
        buffer = owner.data
    length = len(buffer)
    if length > MAX_MESSAGE_BYTES:
        raise LimitError(
            f"a message of {length} bytes; protobuf allows at most {MAX_MESSAGE_BYTES}",
            declared=length,
            limit=MAX_MESSAGE_BYTES,
        )
    seen = _SEEN.get(length)
    # Compared here, not in a method: a call would take as long as the comparison.
    if seen is None or buffer[: seen.before_end] != seen.before or buffer[seen.after_begin : seen.begin] != seen.after:
        located = reading.read_plain(buffer, length)
        seen = None if located is None else _SEEN.keep(length, _seen_of(buffer, located))
    if seen is not None:
        header, begin = seen.header, seen.begin
        array = np.ndarray(header.shape, seen.element, owner, begin)
        checksum = None
        if seen.sum_begin:
            checksum = int.from_bytes(buffer[seen.sum_begin : seen.sum_begin + 8], "little")
            if verify:
                if header.payload_bytes > BLOCK_BYTES:
                    actual = payload_sum(memoryview(buffer)[begin:])
                else:
                    actual = xxh3(array if seen.is_exported else memoryview(buffer)[begin:])
                if actual != checksum:
                    check_sum(checksum, actual, "payload")
        if copy is None and array.flags.aligned:
            return Tensor(header, array, checksum)
        return from_payload(header, checksum, owner, begin, copy)
    located = reading.read(buffer, 0, length)
    header, checksum, begin, end, _ = located
    if end - begin != header.payload_bytes:
        headers.check_payload_size(header, end - begin)
    check_contents(header, checksum if verify else None, memoryview(buffer)[begin:end])
    tensor = from_payload(header, checksum, owner, begin, copy)
    is_whole = end == length and begin <= 1024 and header.payload_bytes > 0
    if is_whole and header.dtype.plain_numpy is not None and header.strides is None and not is_foreign(header):
        reading.remember_plain(header)
        _SEEN.keep(length, _seen_of(buffer, located))
    return tensor


class _Seen:
    """The last plain message of its length that `decode` has accepted.

    Another message of that length with the same bytes around the checksum's value, up to the payload, differs only in
    checksum and payload, so its header is the same. Plain: compact, not empty, in this machine's order, of a type whose
    every bit pattern is a value.

    Attributes:
        header: Its header, without the checksum.
        element: The dtype to view the payload as.
        is_exported: True if numpy exports such an array as a buffer; then the array itself is hashed, without a view.
        sum_begin: Position of the checksum's value; 0 if there is none.
        begin: Position of the payload.
        before: Bytes before the checksum's value, which end at `before_end`.
        after: Bytes from the checksum on to the payload, which begin at `after_begin`.
    """

    __slots__ = (
        "after",
        "after_begin",
        "before",
        "before_end",
        "begin",
        "element",
        "header",
        "is_exported",
        "sum_begin",
    )

    def __init__(self, header: Header, before: bytes, after: bytes, begin: int) -> None:
        self.header = header
        self.element = header.dtype.numpy
        self.is_exported = self.element.kind not in "VW"
        self.sum_begin = len(before) if after else 0
        self.begin = begin
        self.before = before
        self.before_end = len(before)
        self.after = after
        self.after_begin = begin - len(after)


_SEEN: Memo[int, _Seen] = Memo(4096)


def _seen_of(buffer: Buffer, parsed: reading.Parsed) -> _Seen:
    begin, sum_begin = parsed.data_begin, parsed.sum_begin
    if parsed.checksum is None:
        return _Seen(parsed.header, bytes(buffer[:begin]), b"", begin)
    # The second part is never empty: the payload's tag stands behind the sum.
    return _Seen(parsed.header, bytes(buffer[:sum_begin]), bytes(buffer[sum_begin + 8 : begin]), begin)


_GATHER_BYTES = BLOCK_BYTES // 4
"""Piece of a strided payload that is gathered, hashed and written while it is in the cache."""


def to_proto(
    x: Any, *, checksum: bool = True, layout: Layout = "keep", provenance: bool = False
) -> dlpack_pb2.DLTensor:
    """Turn a tensor into a `DLTensor` message object; it serializes to the bytes that `encode` gives.

    Args:
        x: As for `encode`.
        checksum: As for `encode`.
        layout: As for `encode`.
        provenance: As for `encode`.

    Returns:
        The message object.

    Raises:
        WireError: Any error of `encode`, for the same reasons.
        ValueError: `x` is a capsule that was consumed, or holds no tensor.
        Exception: Any error of the producer `x` itself.

    Memory:
        Two copies of the payload: protobuf takes only bytes, and copies them again.
    """
    with source_of(x, layout, provenance) as source:
        header = source.header
        # The class parses the header alone: the payload goes in through `data`, and the sum once it is known.
        fields, padding, _ = _parts(header, checksum)
        message = dlpack_pb2.DLTensor.FromString(fields + padding)
        payload = source.buffer()
        data = bytes(payload) if payload is not None else b"".join(map(bytes, source.pieces(BLOCK_BYTES)))
    if checksum:
        message.data_sum = payload_sum(data)
    message.data = data
    return message


def from_proto(message: dlpack_pb2.DLTensor, *, copy: bool | None = None, verify: bool = True) -> Tensor:
    """Turn a `DLTensor` message object into a tensor.

    Args:
        message: The message object. Not modified.
        copy: As for `decode`.
        verify: As for `decode`.

    Returns:
        A tensor, as from `decode`.

    Raises:
        TruncatedError: The payload is shorter than the shape needs.
        ChecksumError: The payload was damaged.
        LimitError: The header or the padding is larger than a cap allows.
        DecodeError: The message breaks a rule of the contract.
        BufferError: `copy` is False and a copy is needed.
        TypeError: `message` is not a `DLTensor` message.

    Memory:
        Borrows the bytes that protobuf gives out for `data`: one copy with the C back end, none in pure Python.
    """
    if not isinstance(message, dlpack_pb2.DLTensor):
        raise TypeError(f"from_proto takes a DLTensor message, not {type(message).__name__}; decode takes bytes")
    header = reading.from_message(message)
    data = message.data
    header_bytes = message.ByteSize() - _field_bytes(data) - _field_bytes(message.padding)
    if header_bytes > reading.MAX_HEADER_BYTES:
        raise reading.header_too_large(header_bytes)
    reading.check_padding(message.padding)
    headers.check_payload_size(header, len(data))
    checksum = message.data_sum if message.HasField("data_sum") else None
    check_contents(header, checksum if verify else None, data)
    return from_payload(header, checksum, data, 0, copy)


def _field_bytes(content: bytes) -> int:
    """Return the bytes of the padding or data field, which has a tag of one byte and is left out if it is empty."""
    return 1 + varint_size(len(content)) + len(content) if content else 0


def is_tensor(x: Any) -> bool:
    """Return True for one tensor, False for a collection or anything else."""
    if isinstance(x, (np.ndarray, np.generic, Tensor, dlpack_pb2.DLTensor)) or abi.is_capsule(x):
        return True
    return hasattr(type(x), "__dlpack__") or (hasattr(type(x), "to_dlpack") and not isinstance(x, Mapping))


def source_of(x: Any, layout: Layout = "keep", provenance: bool = False) -> Source:
    """Return the source of anything that `encode` takes. The caller must close it."""
    return Source(from_proto(x) if isinstance(x, dlpack_pb2.DLTensor) else x, layout, provenance)


def _parts(header: Header, checksum: bool) -> tuple[bytes, bytes, bytes]:
    """Return the message's header fields, its padding field, and the payload's tag and length.

    Raises:
        EncodeError: The message would exceed protobuf's limit.
    """
    fields = writing.header_fields(header)
    data_tag = writing.data_tag(header.payload_bytes)
    begin = len(fields) + (SUM_FIELD_BYTES if checksum else 0) + len(data_tag)
    padding = writing.padding_field(_padding(header, begin))
    size = begin + len(padding) + header.payload_bytes
    if size > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"the message would have {size} bytes; protobuf allows at most {MAX_MESSAGE_BYTES}. "
            "Use save() or a client's put(), which have no such limit",
            declared=size,
            limit=MAX_MESSAGE_BYTES,
        )
    return fields, padding, data_tag


def _prefix(header: Header, checksum: bool) -> tuple[bytes, bytes]:
    """Return the message's bytes before the sum's value, and between that and the payload."""
    fields, padding, data_tag = _parts(header, checksum)
    return fields + writing.SUM_TAG if checksum else fields, padding + data_tag


def _padding(header: Header, begin: int) -> int:
    """Return the bytes of padding that bring the payload to a multiple of 16 from the message's first byte.

    Without padding the payload would begin at `begin`. 0: the message has no padding field. Serializers do not write an
    empty one, so the field takes at least 3 bytes: tag, length, a zero.
    """
    if header.dtype.part_bytes == 1 or header.payload_bytes == 0 or begin % MESSAGE_ALIGNMENT == 0:
        return 0
    return (-begin - 3) % MESSAGE_ALIGNMENT + 1


def _encode_gathered(source: Source, prefix: tuple[bytes, bytes], checksum: bool) -> bytes:
    """Gather a strided payload piece by piece behind its prefix, and fill in the sum."""
    before, after = prefix
    out = io.BytesIO()
    out.write(before)
    if checksum:
        out.write(bytes(8))
    out.write(after)
    summing = Summing()
    for piece in source.pieces(_GATHER_BYTES):
        if checksum:
            summing.update(piece)
        out.write(piece)
    if checksum:
        out.seek(len(before))
        out.write(total(summing.finish()).to_bytes(8, "little"))
    return out.getvalue()
