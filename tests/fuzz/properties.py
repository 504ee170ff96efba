"""The properties: any bytes give a value or a `DecodeError`, in memory that the input's real size justifies; never
another exception, never a crash. `decode` and the standard parser followed by `from_proto` give the same verdict
wherever the contract is not stricter than protobuf. What is accepted can be used: every accessor, every export, and
encoding it again gives the same value. Strides are accepted exactly if they obey rules M10 to M13 of proto/README.md.
What the index of a file without problems gives is what the standard parser finds in the whole file.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from math import prod
from typing import Any, TypeVar

from google.protobuf.message import DecodeError as ParseError
from xxhash import xxh3_64_intdigest

import dlpack_wire as dw
from dlpack_wire.file.audit import problems
from dlpack_wire.file.reader import FileReader, contents_of
from dlpack_wire.file.storage import MemoryBytes
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2

MAX_HEADER_BYTES, MAX_PADDING_BYTES = 64 * 1024, 16384


def check_message(content: bytes) -> str:
    """Read bytes as a message in every way; the verdict on them."""
    direct = _outcome(dw.decode, content)
    if isinstance(direct, dw.Tensor):
        _use(direct)
    verdict = _verdict(direct)
    assert _verdict(_outcome(dw.decode, bytearray(content))) == verdict, "the second time it is judged otherwise"
    unverified = _outcome(partial(dw.decode, verify=False), content)
    if isinstance(unverified, dw.Tensor):
        _use(unverified)
        assert isinstance(direct, (dw.Tensor, dw.ChecksumError))
    else:
        assert not isinstance(direct, dw.Tensor)
    if not is_plain(content):
        assert not isinstance(direct, dw.Tensor), "the contract is stricter than that"
        return verdict
    try:
        message = dlpack_pb2.DLTensor.FromString(content)
    except ParseError:
        assert not isinstance(direct, dw.Tensor), "no parser reads it"
        return verdict
    assert _verdict(_outcome(dw.from_proto, message)) == verdict
    return verdict


def check_layout(content: bytes) -> str:
    """Build a message whose dtype is right and whose layout is anything; the verdict on it."""
    choose = _Choices(content)
    dtype = choose.one_of(_DTYPES)
    padded = dtype.bits < 8 and dtype.lanes == 1 and choose.one_of((False, True))
    shape = [choose.one_of(_EXTENTS) for _ in range(choose.one_of(range(6)))]
    strides = [choose.one_of(_STRIDES) for _ in range(choose.one_of((0, len(shape), len(shape), len(shape), 1, 7)))]
    low, high, distinct = _reach(shape, strides)
    is_packed = dtype.element_bits % 8 != 0 and not padded
    count = prod(shape)
    item = 1 if padded else dtype.element_bits // 8
    if not strides or count == 0 or is_packed:
        size, offset = (count if padded else (count * dtype.element_bits + 7) // 8), 0
    else:
        size, offset = (high - low + 1) * item, -low * item
    size_slack, offset_slack = choose.one_of(_SLACK), choose.one_of(_SLACK)
    message = dlpack_pb2.DLTensor(
        dtype={"bits": dtype.bits, "lanes": dtype.lanes},
        shape=shape,
        strides=strides,
        flags=4 if padded else 0,
        byte_order=choose.one_of((1, 2)),
        byte_offset=max(offset + offset_slack, 0),
        data=bytes(max(size + size_slack, 0)),
    )
    message.dtype.code = dtype.code
    lawful = message.byte_offset == offset and len(message.data) == size and len(strides) in (0, len(shape))
    if lawful and strides and count:
        lawful = _is_row_major(shape, strides) if is_packed else _step_over_each_other(shape, strides)
        assert distinct or not lawful
    verdict = check_message(message.SerializeToString())
    assert verdict.startswith("value") == lawful, (str(message), verdict)
    return verdict


def check_file(content: bytes) -> str:
    """Read bytes as a file, as they are and with all sums set right; both verdicts."""
    return f"{_check_file(content)} {_check_file(with_sums(content))}"


def _check_file(content: bytes) -> str:
    read = _outcome(dw.load_dict, content)
    unverified = _outcome(partial(dw.load_dict, verify=False), content)
    found = _outcome(_problems, content)
    if isinstance(read, dw.DecodeError):
        assert found != []
        return _verdict(read)
    assert not isinstance(unverified, dw.DecodeError)
    for t in (*read.values(), *unverified.values()):
        _use(t)
    if found == []:
        claims = _claims(tensor_file_pb2.TensorFile.FromString(content))
        assert claims.keys() == read.keys()
        for name, t in read.items():
            assert _verdict(dw.from_proto(claims[name])) == _verdict(t)
    return "value " + " ".join(f"{name!r} {_verdict(t)}" for name, t in sorted(read.items()))


def _problems(content: bytes) -> list[dw.DecodeError]:
    with FileReader(MemoryBytes(content), "fuzzed") as f:
        return list(problems(contents_of(f)))


def _claims(file: tensor_file_pb2.TensorFile) -> dict[str, dlpack_pb2.DLTensor]:
    """The tensor of every name: the last record that claims a name has it, unless it is one that removes names."""
    last = {name: record for record in file.records for name in (record.name, *record.aliases)}
    return {name: record.tensor for name, record in last.items() if record.HasField("tensor")}


TARGETS: dict[str, Callable[[bytes], str]] = {
    "message": check_message,
    "layout": check_layout,
    "file": check_file,
}


def check_bounded(target: str, content: bytes) -> str:
    """As the target, and with a bound on the memory that it takes. `tracemalloc` must be on."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    verdict = TARGETS[target](content)
    peak = tracemalloc.get_traced_memory()[1] - before
    # A layout of a few bytes is made into a message with a payload of up to 50 KB.
    made = 1 << 20 if target == "layout" else 256 * 1024
    assert peak < made + 64 * len(content), f"{peak} bytes for an input of {len(content)}"
    return verdict


# --- what happened ----------------------------------------------------------------------------------------------------


_T = TypeVar("_T")


def _outcome(read: Callable[[Any], _T], x: Any) -> _T | dw.DecodeError:
    try:
        return read(x)
    except dw.DecodeError as error:
        str(error)
        return error


def _verdict(outcome: dw.Tensor | dw.DecodeError) -> str:
    if isinstance(outcome, dw.DecodeError):
        return type(outcome).__name__
    return f"value {outcome.header} {bytes(outcome.payload).hex()}"


def _use(t: dw.Tensor) -> None:
    repr(t)
    assert t.nbytes == len(t.payload)
    assert len(t.strides) == t.ndim == len(t.shape)
    with suppress(dw.UnsupportedTensorError):
        assert t.numpy().shape == t.shape
    for max_version in (None, (1, 3)):
        with suppress(BufferError):
            t.__dlpack__(max_version=max_version)
    part = t[...]
    assert (part.shape, part.payload) == (t.shape, t.payload)
    if t.ndim:
        assert t[::-1][::-1].payload == t.payload
    again = dw.decode(dw.encode(t))
    assert (again.dtype, again.shape, again.header.padded) == (t.dtype, t.shape, t.header.padded)
    if not t.header.padded:  # the upper bits of padded elements are not part of the value
        assert again.payload == t.payload


# --- where the contract is stricter than protobuf ---------------------------------------------------------------------

_SUBMESSAGES = (1, 3, 4)


def is_plain(content: bytes, nested: bool = False) -> bool:
    """Whether tags and lengths are minimal, no varint has more than 10 bytes, no groups, and the caps are kept."""
    pos = header_bytes = 0
    while pos < len(content):
        start = pos
        tag, pos, minimal = _varint(content, pos)
        if tag is None:
            return True  # cut: everybody refuses it
        number, wire_type = tag >> 3, tag & 7
        if not minimal or not 0 < number < 1 << 29 or wire_type not in (0, 1, 2, 5):
            return False
        if wire_type == 0:
            begin = pos
            _, pos, _ = _varint(content, pos)
            if pos - begin > 10:
                return False
        elif wire_type == 2:
            size, pos, minimal = _varint(content, pos)
            if not minimal or (size is not None and size >> 64):
                return False
            if size is None or size > len(content) - pos:
                return True
            inner = content[pos : pos + size]
            pos += size
            if not nested:
                if number in _SUBMESSAGES and not is_plain(inner, nested=True):
                    return False
                if number in (5, 6) and max(_varint_sizes(inner), default=0) > 10:
                    return False
                if number == 14 and size > MAX_PADDING_BYTES:
                    return False
        else:
            pos += 8 if wire_type == 1 else 4
        if number not in (14, 15) or wire_type != 2:
            header_bytes += pos - start
    return header_bytes <= MAX_HEADER_BYTES


def _varint(content: bytes, pos: int) -> tuple[int | None, int, bool]:
    """The varint at a position (None if it is cut), where it ends, and whether it is minimal."""
    value = shift = 0
    while pos < len(content):
        byte = content[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos, byte != 0 or shift == 0
        shift += 7
    return None, pos, True


def _varint_sizes(content: bytes) -> list[int]:
    sizes, pos = [], 0
    while pos < len(content):
        begin = pos
        _, pos, _ = _varint(content, pos)
        sizes.append(pos - begin)
    return sizes


# --- files ------------------------------------------------------------------------------------------------------------


def with_sums(content: bytes) -> bytes:
    """A file with the sums of payloads, record heads and last index set right, as far as there are such things.

    Without it, hardly a change of a file would be looked at for more than its sum.
    """
    fixed = bytearray(content)
    for begin, end in _fields(content, 9, len(content), 0x12):
        sums, payload = list(_fields(content, begin, end, 0x71)), end
        for tensor_begin, tensor_end in _fields(content, begin, end, 0x7A):
            payload = tensor_end
            for payload, payload_end in _fields(content, tensor_begin, tensor_end, 0x7A):
                for at, _ in _fields(content, tensor_begin, payload, 0x49):
                    # It stands in the index as well.
                    fixed = fixed.replace(content[at : at + 8], _sum(content[payload:payload_end]))
        head = content.rfind(b"\x12", 0, begin)
        for at, _ in sums[:1]:
            fixed[at : at + 8] = bytes(8)
            fixed[at : at + 8] = _sum(fixed[head:payload])
    if len(content) > 36:
        index = int.from_bytes(content[-26:-18], "little")
        fixed[-17:-9] = _sum(fixed[index:-18])
    return bytes(fixed)


def _sum(content: bytes | bytearray) -> bytes:
    return xxh3_64_intdigest(content).to_bytes(8, "little")


def _fields(content: bytes, pos: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Where the contents of fields with that tag begin and end, up to the first thing that is no field."""
    while pos < end:
        tag, pos, _ = _varint(content, pos)
        if tag is None or tag & 7 not in (0, 1, 2, 5):
            return
        size: int | None = {0: 0, 1: 8, 5: 4}.get(tag & 7)
        if size is None:
            size, pos, _ = _varint(content, pos)
        elif tag & 7 == 0:
            _, pos, _ = _varint(content, pos)
        if size is None or size > end - pos:
            return
        if tag == wanted:
            yield pos, pos + size
        pos += size


# --- layouts ----------------------------------------------------------------------------------------------------------

_DTYPES = tuple(
    dw.DType(name)
    for name in (
        *("uint8", "bool", "int16", "float32", "complex128", "int4", "uint1", "int3", "float6_e2m3fn"),
        *("float4_e2m1fnx2", "int4x3", "uint8x3", "bfloat16x2", "code200_24bit"),
    )
)
_EXTENTS = (2, 1, 3, 0, 4, 5)
_STRIDES = (1, 2, 3, 4, 6, 12, 0, -1, -2, -3, -6, 5, 60, 7, 9, -20, 24, 16)
_SLACK = (0, 0, 0, 0, 0, 1, -1)


class _Choices:
    """One choice for each byte; the first option when the bytes have run out."""

    def __init__(self, content: bytes) -> None:
        self._bytes = iter(content)

    def one_of(self, options: Any) -> Any:
        return options[next(self._bytes, 0) % len(options)]


def _reach(shape: list[int], strides: list[int]) -> tuple[int, int, bool]:
    """Lowest and highest element position, and whether all are distinct: by going to each."""
    seen = [sum(i * s for i, s in zip(index, strides, strict=False)) for index in product(*map(range, shape))]
    return min(seen, default=0), max(seen, default=0), len(set(seen)) == len(seen)


def _is_row_major(shape: list[int], strides: list[int]) -> bool:
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != step:
            return False
        step *= n
    return True


def _step_over_each_other(shape: list[int], strides: list[int]) -> bool:
    axes = sorted((abs(stride), n) for n, stride in zip(shape, strides, strict=True) if n > 1)
    return all(
        stride > sum((n - 1) * smaller for smaller, n in axes[:position]) for position, (stride, _) in enumerate(axes)
    )
