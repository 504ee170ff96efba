"""safetensors: a JSON header and the tensors behind it.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Container, Iterator, Sequence
from typing import Any

from ..errors import DecodeError, EncodeError, LimitError
from ..file.storage import Storage
from ..tensor import header as headers
from ..tensor.device import CPU
from ..tensor.dtype import ByteOrder, DType
from ..tensor.tensor import from_payload
from .items import Content, Item, payload_bytes, pieces, refuse_metadata, text_metadata
from .paths import open_bytes, replaced

MAX_JSON_BYTES = 100_000_000
"""Limit of the format itself, which its own library enforces."""

DTYPES = {
    "BOOL": "bool",
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "F4": "float4_e2m1fn",
}
_CODES = {name: code for code, name in DTYPES.items()}

_FIELDS = ("dtype", "shape", "data_offsets")
"""Fields of an entry, in the order of the form that is a list."""

_MAX_JSON_DEPTH = 126
"""Deepest nesting that the format's own reader takes."""


@contextlib.contextmanager
def read(path: str, wanted: Container[str] | None = None) -> Iterator[Content]:
    """Open a safetensors file."""
    with open_bytes(path) as source:
        size, begin = _header_size(source)
        listed = _parse(bytes(source.read(8, begin)))
        metadata = listed.pop("__metadata__", None)
        metadata = _Object() if metadata is None else metadata
        if not isinstance(metadata, _Object) or not all(isinstance(v, str) for v in metadata.all_values()):
            raise DecodeError("must be an object of strings", field="__metadata__")
        items, ranges = [], []
        for name, entry in listed.items():
            item, where = _item(source, begin, size, name, entry)
            items.append(item)
            ranges.append((*where, name))
        _check_coverage(ranges, size)
        # The format's own reader looks at all, and takes the last.
        for name, entry in listed.repeated:
            _fields(name, entry)
        skipped = [f"{name}: an earlier entry of this name" for name, _ in listed.repeated]
        skipped += [f"metadata {key!r}: an earlier value" for key, _ in metadata.repeated]
        yield Content(items, dict(metadata), skipped, stored_bytes=source.size)


def _check_coverage(ranges: list[tuple[int, int, str]], size: int) -> None:
    """Raise DecodeError unless the tensors lie one behind the other and fill the `size` bytes behind the header."""
    position = 0
    for first, last, name in sorted(ranges):
        if first != position:
            said = f"begins at byte {first} of the data, where the tensors before it end at {position}"
            raise DecodeError(said, tensor=name, field="data_offsets")
        position = last
    if position != size:
        raise DecodeError(f"{size - position} bytes behind the last tensor belong to none")


def _header_size(source: Storage) -> tuple[int, int]:
    """Return the bytes of all tensors together, and the position of the first."""
    if source.size < 8:
        raise DecodeError(f"not a safetensors file: it has {source.size} bytes")
    size = int.from_bytes(source.read(0, 8), "little")
    if size > MAX_JSON_BYTES:
        raise LimitError(
            f"header of {size} bytes; at most {MAX_JSON_BYTES} are read", declared=size, limit=MAX_JSON_BYTES
        )
    if 8 + size > source.size:
        raise DecodeError(f"header of {size} bytes in a file of {source.size}")
    return source.size - 8 - size, 8 + size


class _Object(dict[str, Any]):
    """A JSON object.

    Attributes:
        repeated: Keys and values that stand in it before another value of the same key, which counts.
    """

    def __init__(self, pairs: Sequence[tuple[str, Any]] = ()) -> None:
        super().__init__(pairs)
        last = {key: at for at, (key, _) in enumerate(pairs)} if len(self) < len(pairs) else {}
        self.repeated = [pair for at, pair in enumerate(pairs) if last and last[pair[0]] != at]

    def all_values(self) -> list[Any]:
        """Return the values that count and those that do not."""
        return [*self.values(), *(value for _, value in self.repeated)]


def _parse(header: bytes) -> _Object:
    """Parse the header as strictly as the format's own reader, where Python's parser takes more than JSON."""
    try:
        # Decoded here: from bytes, Python's parser would take UTF-16 and UTF-32 too.
        listed = json.loads(
            header.decode(), object_pairs_hook=_Object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not a safetensors file: {error}") from error
    if not isinstance(listed, _Object):
        raise DecodeError("not a safetensors file: its header is not a JSON object")
    if any(key == "__metadata__" for key, _ in listed.repeated):
        raise DecodeError("stands twice", field="__metadata__")
    return listed


def _integer(digits: str) -> int | float:
    # -0 and whatever exceeds 64 bits are floats to the format's own reader, and no extents.
    return _float(digits) if digits == "-0" or len(digits) > 20 else int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number out of range: {digits[:32]}")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_ignored(value: Any, depth: int) -> None:
    """Raise DecodeError if the format's own reader would refuse a value that has no meaning."""
    if depth > _MAX_JSON_DEPTH:
        raise DecodeError(f"values nested more than {_MAX_JSON_DEPTH} deep")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DecodeError(f"{value[:64]!r} is not valid Unicode: {error.reason}") from error
    held = [*value, *value.all_values()] if isinstance(value, _Object) else value if isinstance(value, list) else ()
    for inner in held:
        _check_ignored(inner, depth + 1)


def _integers(value: Any) -> tuple[int, ...]:
    # JSON gives floats, booleans and strings too, which `int` would take.
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 1 << 64 for n in value):
        raise TypeError(f"must be a list of integers that are not negative, not {str(value)[:64]}")
    return tuple(value)


def _fields(name: str, entry: Any) -> tuple[DType, tuple[int, ...], tuple[int, int]]:
    """Return the type, the shape and the offsets that an entry states.

    Raises:
        DecodeError: The format's own reader would refuse the entry, wherever its data lies.
    """
    if isinstance(entry, list) and len(entry) == len(_FIELDS):
        entry = _Object(list(zip(_FIELDS, entry, strict=True)))  # the format's own reader takes both forms
    try:
        if not isinstance(entry, _Object):
            raise TypeError(f"must be an object, not {type(entry).__name__}")
        if any(key in _FIELDS for key, _ in entry.repeated):
            raise ValueError("a field stands twice")
        ignored = {key: value for key, value in entry.items() if key not in _FIELDS}
        _check_ignored(_Object([*entry.repeated, *ignored.items()]), 1)
        first, last = _integers(entry["data_offsets"])
        return DType(DTYPES[entry["dtype"]]), _integers(entry["shape"]), (first, last)
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"{type(error).__name__} in its header: {error}", tensor=name) from error


def _item(source: Storage, begin: int, size: int, name: str, entry: Any) -> tuple[Item, tuple[int, int]]:
    """Return the tensor of an entry, and its offsets. They count from `begin`, and `size` bytes follow that."""
    dtype, shape, (first, last) = _fields(name, entry)
    order = ByteOrder.LITTLE if dtype.part_bytes > 1 else ByteOrder.UNSPECIFIED
    try:
        header = headers.checked(
            dtype=dtype, shape=shape, strides=None, byte_offset=0, byte_order=order, device=CPU, flags=0, version=None
        )
        if not 0 <= first <= last <= size:
            raise DecodeError(f"[{first}, {last}) of {size} bytes", field="data_offsets")
        headers.check_payload_size(header, last - first)
        if math.prod(shape) * dtype.element_bits % 8:
            raise DecodeError(f"{dtype.name}{list(shape)} does not fill its last byte", field="shape")
    except DecodeError as error:
        error.at(tensor=name)
        raise

    def load() -> Any:
        memory, at = source.memory(begin + first, begin + last)
        return from_payload(header, None, memory, at)

    return Item(name, dtype, shape, load), (first, last)


def write(path: str, content: Content, durable: bool) -> None:
    """Write all tensors, those of wide elements first, so that each of them lies aligned."""
    metadata = text_metadata(content.metadata, "safetensors")
    listed: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    items = sorted(content.items, key=lambda item: (-item.dtype.part_bytes, item.name))
    position = 0
    for item in items:
        code = _CODES.get(item.dtype.name)
        if code is None:
            raise EncodeError(f"safetensors has no type for {item.dtype.name}", tensor=item.name, field="dtype")
        if item.name == "__metadata__":
            raise EncodeError("safetensors reserves this name", tensor=item.name, field="name")
        refuse_metadata(item.metadata, "a tensor in safetensors", item.name)
        if math.prod(item.shape) * item.dtype.element_bits % 8:
            said = f"{item.dtype.name}{list(item.shape)} does not fill its last byte, which safetensors does not allow"
            raise EncodeError(said, tensor=item.name, field="shape")
        end = position + payload_bytes(item)
        listed[item.name] = {"dtype": code, "shape": list(item.shape), "data_offsets": [position, end]}
        position = end
    header = json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_JSON_BYTES:
        raise EncodeError(
            f"the header of {len(items)} tensors takes {len(header)} bytes; safetensors allows {MAX_JSON_BYTES}",
            declared=len(header),
            limit=MAX_JSON_BYTES,
        )
    with replaced(path, durable) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for item in items:
            for piece in pieces(item):
                file.write(piece)
