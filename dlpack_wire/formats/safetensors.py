"""safetensors: a JSON header and the tensors behind it.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
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


@contextlib.contextmanager
def read(path: str) -> Iterator[Content]:
    """Open a safetensors file."""
    with open_bytes(path) as source:
        size, begin = _header_size(source)
        listed = _parse(bytes(source.read(8, begin)))
        metadata = listed.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise DecodeError("must be an object of strings", field="__metadata__")
        items = [_item(source, begin, size, name, entry) for name, entry in listed.items()]
        yield Content(items, metadata)


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


def _parse(header: bytes) -> dict[str, Any]:
    try:
        listed = json.loads(header, object_pairs_hook=_unique)
    except DecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not a safetensors file: {error}") from error
    if not isinstance(listed, dict):
        raise DecodeError("not a safetensors file: its header is not a JSON object")
    return listed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DecodeError("two entries have the same name")
    return found


def _integers(value: Any) -> tuple[int, ...]:
    # JSON gives floats, booleans and strings too, which `int` would take.
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        raise TypeError(f"must be a list of integers, not {str(value)[:64]}")
    return tuple(value)


def _item(source: Storage, begin: int, size: int, name: str, entry: Any) -> Item:
    """Return the tensor of an entry. Its offsets count from `begin`, and `size` bytes follow that."""
    try:
        dtype = DType(DTYPES[entry["dtype"]])
        shape = _integers(entry["shape"])
        first, last = _integers(entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"{type(error).__name__} in its header: {error}", tensor=name) from error
    order = ByteOrder.LITTLE if dtype.part_bytes > 1 else ByteOrder.UNSPECIFIED
    try:
        header = headers.checked(
            dtype=dtype, shape=shape, strides=None, byte_offset=0, byte_order=order, device=CPU, flags=0, version=None
        )
        if not 0 <= first <= last <= size:
            raise DecodeError(f"[{first}, {last}) of {size} bytes", field="data_offsets")
        headers.check_payload_size(header, last - first)
    except DecodeError as error:
        error.at(tensor=name)
        raise

    def load() -> Any:
        memory, at = source.memory(begin + first, begin + last)
        return from_payload(header, None, memory, at)

    return Item(name, dtype, shape, load)


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
