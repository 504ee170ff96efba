"""ONNX: the initializers of a model, inline or in a file beside it.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. The model is read field by field, so that no weight
passes through a parser; nodes are only looked at for the graphs inside them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import DecodeError, EncodeError, WireError
from ..file.storage import Storage, open_path
from ..message.wire import LEN, MAX_MESSAGE_BYTES, VARINT, Field, length_delimited, read_field, read_varint, varint
from ..tensor import header as headers
from ..tensor.device import CPU
from ..tensor.dtype import ByteOrder, DType
from ..tensor.header import Header
from ..tensor.tensor import from_payload
from .content import Content, Item, payload_bytes, pieces, refuse_metadata, text_metadata
from .paths import open_bytes, replaced

DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
}
_CODES = {name: code for code, name in DTYPES.items()}

# Fields of TensorProto.
_DIMS, _DATA_TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_TYPED = {4: ("<f4", 5), 5: ("<i4", 0), 7: ("<i8", 0), 10: ("<f8", 1), 11: ("<u8", 0)}

_MAX_DEPTH = 16
_ALIGNMENT = 4096  # of tensors in an external file, as ONNX recommends for mapping


@contextlib.contextmanager
def read(path: str) -> Iterator[Content]:
    """Open a model: its initializers, and those of all graphs inside it."""
    with open_bytes(path) as source, contextlib.ExitStack() as stack:
        model = _Model(source, os.path.dirname(os.path.abspath(path)), stack)
        graphs = 0
        for field in model.fields(0, source.size):
            if field.number == 7:
                model.read_graph(field, "", 0)
                graphs += 1
            elif field.number == 14:
                key, value = model.text_pair(field)
                model.metadata[key] = value
        if not graphs:
            raise DecodeError("not an ONNX model: it has no graph")
        yield Content(model.items, dict(model.metadata), model.skipped)


class _Model:
    """A model being read."""

    def __init__(self, source: Storage, folder: str, stack: contextlib.ExitStack) -> None:
        self.items: list[Item] = []
        self.metadata: dict[str, str] = {}
        self.skipped: list[str] = []
        self._source = source
        self._content = memoryview(source.memory(0, source.size)[0]) if source.size else memoryview(b"")
        self._folder = folder
        self._stack = stack
        self._external: dict[str, Storage] = {}
        self._names: set[str] = set()

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """Yield the fields of a message."""
        while begin < end:
            field = read_field(self._content, begin, end)
            yield field
            begin = field.end

    def _bytes(self, field: Field) -> bytes:
        if field.wire_type != LEN:
            raise DecodeError(f"field {field.number} has wire type {field.wire_type}", offset=field.start)
        return bytes(self._content[field.content : field.end])

    def _text(self, field: Field) -> str:
        try:
            return self._bytes(field).decode()
        except UnicodeDecodeError:
            raise DecodeError(f"field {field.number} is not UTF-8", offset=field.start) from None

    def _number(self, field: Field) -> int:
        if field.wire_type != VARINT:
            raise DecodeError(f"field {field.number} has wire type {field.wire_type}", offset=field.start)
        return read_varint(self._content, field.content, field.end)[0]

    def text_pair(self, field: Field) -> tuple[str, str]:
        """Read a StringStringEntryProto."""
        parts = {part.number: self._text(part) for part in self.fields(field.content, field.end) if part.number < 3}
        return parts.get(1, ""), parts.get(2, "")

    def read_graph(self, graph: Field, prefix: str, depth: int) -> None:
        """Collect a graph's initializers, and those of the graphs in its nodes, with the node's name before theirs."""
        if depth > _MAX_DEPTH:
            raise DecodeError(f"graphs nested more than {_MAX_DEPTH} deep", offset=graph.start)
        for field in self.fields(graph.content, graph.end):
            if field.number == 5:
                self._add(field, prefix)
            elif field.number == 15:
                self.skipped.append(f"{prefix}sparse initializer")
            elif field.number == 1 and field.wire_type == LEN:
                self._read_node(field, prefix, depth)

    def _read_node(self, node: Field, prefix: str, depth: int) -> None:
        name, attributes = "", []
        for field in self.fields(node.content, node.end):
            if field.number == 3:
                name = self._text(field)
            elif field.number == 5 and field.wire_type == LEN:
                attributes.append(field)
        for attribute in attributes:
            parts = list(self.fields(attribute.content, attribute.end))
            label = next((self._text(part) for part in parts if part.number == 1), "")
            for part in parts:
                if part.number in (6, 11) and part.wire_type == LEN:  # g and graphs
                    self.read_graph(part, f"{prefix}{name}/{label}/", depth + 1)

    def _add(self, tensor: Field, prefix: str) -> None:
        dims: list[int] = []
        code = location = 0
        name = ""
        data: Field | None = None
        external: dict[str, str] = {}
        for field in self.fields(tensor.content, tensor.end):
            if field.number == _DIMS:
                dims += self._numbers(field)
            elif field.number == _DATA_TYPE:
                code = self._number(field)
            elif field.number == _NAME:
                name = prefix + self._text(field)
            elif field.number == _EXTERNAL:
                external.update([self.text_pair(field)])
            elif field.number == _LOCATION:
                location = self._number(field)
            elif field.number == _RAW or field.number in _TYPED:
                if data is not None:
                    raise DecodeError("data in two places, or not packed", tensor=name, offset=field.start)
                data = field
        if code == 8:
            self.skipped.append(f"{name}: strings")
            return
        if code not in DTYPES:
            raise DecodeError(f"data type {code} is not known", tensor=name, field="data_type")
        if name in self._names:
            raise DecodeError("an initializer of that name is there twice", tensor=name, field="name")
        self._names.add(name)
        dtype = DType(DTYPES[code])
        order = ByteOrder.LITTLE if dtype.part_bytes > 1 else ByteOrder.UNSPECIFIED
        try:
            header = headers.checked(
                dtype=dtype,
                shape=tuple(dims),
                strides=None,
                byte_offset=0,
                byte_order=order,
                device=CPU,
                flags=0,
                version=None,
            )
            self.items.append(self._item(name, header, data, external if location == 1 else None))
        except WireError as error:
            error.at(tensor=name)
            raise

    def _numbers(self, field: Field) -> list[int]:
        if field.wire_type == VARINT:
            numbers = [self._number(field)]
        else:
            numbers, pos = [], field.content
            while pos < field.end:
                value, pos = read_varint(self._content, pos, field.end)
                numbers.append(value)
        return [n - (1 << 64) if n >> 63 else n for n in numbers]

    def _item(self, name: str, header: Header, data: Field | None, external: dict[str, str] | None) -> Item:
        if external is not None:
            source, begin, size = self._locate(external)
        elif data is not None and data.number != _RAW:
            return Item(name, header.dtype, header.shape, lambda: self._typed(header, data))
        else:
            source, begin, size = self._source, 0, 0
            if data is not None:
                begin, size = data.content, data.end - data.content
        headers.check_payload_size(header, size)

        def load() -> Any:
            memory, at = source.memory(begin, begin + size)
            return from_payload(header, None, memory, at)

        return Item(name, header.dtype, header.shape, load)

    def _typed(self, header: Header, data: Field) -> Any:
        """Return a tensor whose values stand in a typed field; narrow types have one value in each number."""
        kind, wire_type = _TYPED[data.number]
        if data.wire_type == LEN and wire_type:
            values = np.frombuffer(self._bytes(data), kind)
        elif data.wire_type == LEN:
            mask = (1 << 8 * np.dtype(kind).itemsize) - 1
            unsigned = np.array([n & mask for n in self._numbers(data)], f"<u{np.dtype(kind).itemsize}")
            values = unsigned.view(kind)
        else:
            raise DecodeError("a typed field that is not packed", offset=data.start)
        size = np.dtype(kind).itemsize
        narrow = header.dtype.element_bits // 8
        raw = values.view(np.uint8).reshape(-1, size)
        if not header.is_packed and narrow < size:
            raw = raw[:, :narrow]
        elif header.is_packed:
            raw = raw[:, :1]  # a byte of packed elements in each number
        payload = np.ascontiguousarray(raw).reshape(-1)
        headers.check_payload_size(header, payload.size)
        return from_payload(header, None, payload, 0)

    def _locate(self, external: dict[str, str]) -> tuple[Storage, int, int]:
        """Where a tensor in an external file lies."""
        location = external.get("location", "")
        source = self._external.get(location)
        if source is None:
            source = self._external[location] = self._open_beside(location)
        try:
            begin = int(external.get("offset", "0"))
            size = int(external["length"]) if "length" in external else source.size - begin
        except ValueError as error:
            raise DecodeError(f"external data: {error}", field="external_data") from None
        if not 0 <= begin <= begin + size <= source.size:
            raise DecodeError(f"[{begin}, {begin + size}) of {source.size} bytes", field="external_data")
        return source, begin, size

    def _open_beside(self, location: str) -> Storage:
        """Open a file in the model's own folder. Paths in a model never lead anywhere else."""
        if location in ("", ".", "..") or os.path.basename(location) != location or "\0" in location:
            raise DecodeError(f"{location!r} is not the name of a file beside the model", field="location")
        path = os.path.join(self._folder, location)
        try:
            source = open_path(path, only_regular=True)
        except OSError as error:
            raise DecodeError(f"{location!r}: {error.strerror}", field="location") from None
        if not source.size:
            raise DecodeError(f"{location!r} is empty", field="location")
        self._stack.callback(source.close)
        return source


def write(path: str, content: Content, durable: bool) -> None:
    """Write a model of nothing but initializers; those that do not fit a message go to a file beside it."""
    metadata = text_metadata(content.metadata, "onnx")
    names = [item.name for item in content.items]
    if "" in names:
        raise EncodeError("an initializer needs a name", field="name")
    for item in content.items:
        if item.dtype.name not in _CODES:
            raise EncodeError(f"onnx has no type for {item.dtype.name}", tensor=item.name, field="dtype")
        refuse_metadata(item.metadata, "a tensor in onnx", item.name)
    if sum(map(payload_bytes, content.items)) + 1024 * len(names) < MAX_MESSAGE_BYTES // 2:
        with replaced(path, durable) as file:
            _write_model(file, content.items, metadata, None)
    else:
        beside = path + ".data"
        # The data is published first: no model is ever seen that names data which is not there.
        with replaced(path, durable) as file, replaced(beside, durable) as data:
            _write_model(file, content.items, metadata, os.path.basename(beside))
            position = 0
            for item in content.items:
                data.seek(_aligned(position))
                position = _aligned(position) + payload_bytes(item)
                for piece in pieces(item):
                    data.write(piece)
            data.truncate(position)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _write_model(file: Any, items: list[Item], metadata: dict[str, str], beside: str | None) -> None:
    heads, sizes = [], []
    position = 0
    for item in items:
        size = payload_bytes(item)
        head = length_delimited(1, b"".join(varint(n) for n in item.shape)) if item.shape else b""
        head += b"\x10" + varint(_CODES[item.dtype.name]) + length_delimited(8, item.name.encode())
        if beside is None:
            head += b"\x4a" + varint(size)
        else:
            position = _aligned(position)
            said = {"location": beside, "offset": str(position), "length": str(size)}
            head += b"".join(length_delimited(13, _pair(key, value)) for key, value in said.items()) + b"\x70\x01"
            position += size
        heads.append(head)
        sizes.append(size if beside is None else 0)
    inner = [len(head) + size for head, size in zip(heads, sizes, strict=True)]
    name = length_delimited(2, b"tensors")
    graph_bytes = len(name) + sum(1 + len(varint(n)) + n for n in inner)
    # ir_version 10, producer_name, and then the graph; the opset of it.
    file.write(b"\x08\x0a" + length_delimited(2, b"dlpack-wire"))
    file.write(b"\x3a" + varint(graph_bytes) + name)
    for item, head, n in zip(items, heads, inner, strict=True):
        file.write(b"\x2a" + varint(n) + head)
        if beside is None:
            for piece in pieces(item):
                file.write(piece)
    file.write(length_delimited(8, b"\x10\x15"))
    for key, value in metadata.items():
        file.write(length_delimited(14, _pair(key, value)))


def _pair(key: str, value: str) -> bytes:
    return length_delimited(1, key.encode()) + length_delimited(2, value.encode())
