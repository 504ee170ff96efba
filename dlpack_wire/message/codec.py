"""Tensors to messages and back: bytes with `encode` and `decode`, message objects with `to_proto` and `from_proto`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ..errors import EncodeError, LimitError
from ..tensor import header as headers
from ..tensor.abi import memory
from ..tensor.capsule import peeker, raw_layout
from ..tensor.checksum import PASS_BYTES, Running, check_contents, check_sum, xxh3
from ..tensor.device import HOST_READABLE, Device
from ..tensor.dtype import NATIVE, ByteOrder, DType
from ..tensor.header import Header
from ..tensor.layout import canonical_strides
from ..tensor.memory import Buffer
from ..tensor.source import Layout, Source, plain_array, plain_header
from ..tensor.tensor import Tensor, from_payload, is_foreign
from ..v1 import dlpack_pb2
from . import reading, writing
from .wire import MAX_MESSAGE_BYTES, varint_size

ALIGNMENT = 16
"""The payload's position in a message is a multiple of this, if an element has a part wider than a byte."""


def encode(x: Any, *, checksum: bool = True, layout: Layout = "keep", provenance: bool = False) -> bytes:
    """Serialize a tensor as one `DLTensor` message.

    Args:
        x: Anything with `__dlpack__` or `to_dlpack`, a raw DLPack capsule, a numpy array of either byte order, a
            `Tensor` or a `DLTensor` message.
        checksum: Write the payload's XXH3-64.
        layout: "keep" memory that is dense under some order of the axes (Fortran, channels-last); anything else
            is packed row-major. "compact" packs always.
        provenance: Record the DLPack version that the producer speaks.

    Returns:
        The message. Equal values, dtype, layout and device give equal bytes, whichever library made them.

    Raises:
        UnsupportedTensorError: `x` has no place in a message (also a BufferError).
        EncodeError: The message would exceed 2^31-1 bytes, protobuf's limit.

    Memory:
        Copies the payload once. Holds `x` only during the call.
    """
    if layout == "keep" and not provenance:
        message = _encode_plain(x, checksum)
        if message is not None:
            return message
    with source_of(x, layout, provenance) as source:
        before, after = _prefix(source.header, checksum)
        payload = source.buffer()
        if payload is None:
            return _encode_gathered(source, before, after, checksum)
        return _join(before, after, payload, checksum)


def _join(before: bytes, after: bytes, payload: Any, checksum: bool) -> bytes:
    if checksum:
        return b"".join((before, xxh3(payload).to_bytes(8, "little"), after, payload))
    return b"".join((before, after, payload))


def _encode_plain(x: Any, checksum: bool) -> bytes | None:
    """The short way for what most tensors are: compact row-major memory of a type whose bytes need no look.

    It gives the same bytes as the long way, which is taken for everything else (None).
    """
    key: tuple[Any, ...]
    if type(x) is np.ndarray:
        key = (x.dtype, x.shape, x.strides, checksum)
        found = _PLAIN.get(key)
        if found is not None:
            before, after, element = found
            return _join(before, after, x if element is None else x.view(element), checksum)
        plain = plain_array(x)
        if plain is None:
            return None
        header, payload = plain
        before, after = _remember_plain(key, header, checksum, None if payload is x else payload.dtype)
        return _join(before, after, payload, checksum)
    peek = peeker(x)
    if peek is None:
        return None
    held, raw = peek(x)
    data, device_type, device_id, _, code, bits, lanes, _, _, byte_offset = raw
    shape, strides = raw_layout(raw)
    key = (code, bits, lanes, shape, strides, device_type, device_id, checksum)
    found = _PLAIN.get(key)
    if found is not None:
        before, after, size = found
    else:
        if device_type not in HOST_READABLE or canonical_strides(shape, strides) is not None or 0 in shape:
            return None
        dtype = DType(code, bits, lanes)
        if not dtype.any_bytes:
            return None
        order = NATIVE if dtype.part_bytes > 1 else ByteOrder.UNSPECIFIED
        header = plain_header(dtype, shape, order, Device(device_type, device_id))
        size = header.payload_bytes
        before, after = _remember_plain(key, header, checksum, size)
    if not data:
        return None
    message = _join(before, after, memory(data + byte_offset, size), checksum)
    del held
    return message


# What _encode_plain found out, by dtype, shape, strides and whatever else decides it: the two parts of the prefix; for
# arrays the dtype to view them as, if numpy exports no buffer of their own, for C tensors the payload's size.
_PLAIN: dict[tuple[Any, ...], tuple[bytes, bytes, Any]] = {}
_CACHE_SIZE = 4096


def _remember_plain(key: tuple[Any, ...], header: Header, checksum: bool, rest: Any) -> tuple[bytes, bytes]:
    before, after = _prefix(header, checksum)
    if len(_PLAIN) >= _CACHE_SIZE:
        _PLAIN.clear()
    _PLAIN[key] = (before, after, rest)
    return before, after


def decode(buffer: Buffer | Any, *, copy: bool | None = None, verify: bool = True) -> Tensor:
    """Turn one serialized `DLTensor` into a tensor that any DLPack consumer accepts.

    Args:
        buffer: The message: any object with a contiguous buffer. Not modified.
        copy: True: into new writable memory; None: only where byte order or alignment demand it; False: never.
        verify: Compare the payload's checksum, if the message has one.

    Returns:
        A tensor in host memory, in this machine's byte order, aligned to 16 bytes or its element's lane.

    Raises:
        TruncatedError: The buffer ends before the message does.
        ChecksumError: The payload was damaged.
        DecodeError: The message breaks a rule of the contract.
        BufferError: `copy` is False and a copy is needed.

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
    if seen is None or buffer[: seen[3]] != seen[2] or buffer[seen[5] - len(seen[4]) : seen[5]] != seen[4]:
        located = reading.read_plain(buffer, length)
        seen = None if located is None else _remember_seen(buffer, length, located)
    if seen is not None:
        header, element, _, sum_begin, after, begin, hashable = seen
        array = np.ndarray(header.shape, element, owner, begin)
        checksum = int.from_bytes(buffer[sum_begin : sum_begin + 8], "little") if after else None
        if verify and checksum is not None:
            actual = xxh3(array if hashable else memoryview(buffer)[begin:])
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
        _remember_seen(buffer, length, located)
    return tensor


# The last plain message of each length that decode has accepted: its header, how numpy sees it, its bytes around the
# checksum's value up to the payload and where they lie, and whether numpy exports it to be hashed. Another message of
# that length with the same bytes there differs only in sum and payload, so its header is the same. Plain: compact,
# not empty, in this machine's order, of a type whose bytes need no look.
_Seen = tuple[Header, "np.dtype[Any]", bytes, int, bytes, int, bool]
_SEEN: dict[int, _Seen] = {}


def _remember_seen(buffer: Buffer, length: int, located: reading.Parsed) -> _Seen:
    header, checksum, begin, _, sum_begin = located
    element = header.dtype.numpy
    if checksum is not None:
        # The second is never empty: the payload's tag stands behind the sum.
        before, after = bytes(buffer[:sum_begin]), bytes(buffer[sum_begin + 8 : begin])
    else:
        before, after = bytes(buffer[:begin]), b""
    if len(_SEEN) >= _CACHE_SIZE:
        _SEEN.clear()
    seen = _SEEN[length] = (header, element, before, len(before), after, begin, element.kind not in "VW")
    return seen


def to_proto(
    x: Any, *, checksum: bool = True, layout: Layout = "keep", provenance: bool = False
) -> dlpack_pb2.DLTensor:
    """Turn a tensor into a `DLTensor` message object; it serializes to the bytes that `encode` gives.

    Args and errors are those of `encode`.

    Memory:
        Two copies of the payload: protobuf takes only bytes, and copies them again.
    """
    with source_of(x, layout, provenance) as source:
        header = source.header
        before, after = _prefix(header, checksum)
        message = dlpack_pb2.DLTensor.FromString(
            before + bytes(8) * checksum + after.removesuffix(writing.data_tag(header.payload_bytes))
        )
        payload = source.buffer()
        data = bytes(payload) if payload is not None else b"".join(map(bytes, source.pieces(PASS_BYTES)))
    if checksum:
        message.data_xxh3_64 = xxh3(data)
    message.data = data
    return message


def from_proto(message: dlpack_pb2.DLTensor, *, copy: bool | None = None, verify: bool = True) -> Tensor:
    """Turn a `DLTensor` message object into a tensor.

    Args and errors are those of `decode`.

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
    checksum = message.data_xxh3_64 if message.HasField("data_xxh3_64") else None
    check_contents(header, checksum if verify else None, data)
    return from_payload(header, checksum, data, 0, copy)


def _field_bytes(content: bytes) -> int:
    """Bytes of a field of number 14 or 15, which is not written if it is empty."""
    return 1 + varint_size(len(content)) + len(content) if content else 0


def source_of(x: Any, layout: Layout = "keep", provenance: bool = False) -> Source:
    """What anything that `encode` takes will be on the wire."""
    return Source(from_proto(x) if isinstance(x, dlpack_pb2.DLTensor) else x, layout, provenance)


def _prefix(header: Header, checksum: bool) -> tuple[bytes, bytes]:
    """The message's bytes before the sum's value and between it and the payload."""
    before = writing.header_fields(header)
    if checksum:
        before += writing.SUM_TAG
    after = writing.data_tag(header.payload_bytes)
    padding = _padding(header, len(before) + 8 * checksum + len(after))
    if padding:
        after = writing.padding_field(padding) + after
    size = len(before) + 8 * checksum + len(after) + header.payload_bytes
    if size > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"the message would have {size} bytes; protobuf allows at most {MAX_MESSAGE_BYTES}. "
            "Use save() or a client's put(), which have no such limit"
        )
    return before, after


def _padding(header: Header, begin: int) -> int:
    """Bytes of padding that bring the payload to a multiple of 16 from the message's first byte; 0: no field.

    Without padding the payload would begin at `begin`.
    """
    if header.dtype.part_bytes == 1 or header.payload_bytes == 0 or begin % ALIGNMENT == 0:
        return 0
    # An empty padding field is not written by serializers, so the field takes at least 3 bytes: tag, length, a zero.
    return (-begin - 3) % ALIGNMENT + 1


def _encode_gathered(source: Source, before: bytes, after: bytes, checksum: bool) -> bytes:
    """Gather a strided payload piece by piece behind its prefix, and fill in the sum."""
    out = io.BytesIO()
    out.write(before)
    if checksum:
        out.write(bytes(8))
    out.write(after)
    running = Running()
    for piece in source.pieces(PASS_BYTES):
        if checksum:
            running.update(piece)
        out.write(piece)
    if checksum:
        out.seek(len(before))
        out.write(running.intdigest().to_bytes(8, "little"))
    return out.getvalue()
