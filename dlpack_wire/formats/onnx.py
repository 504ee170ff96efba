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
from ..message.wire import (
    FIXED32,
    FIXED64,
    LEN,
    MAX_MESSAGE_BYTES,
    VARINT,
    Field,
    length_delimited,
    read_field,
    read_varint,
    varint,
)
from ..tensor import header as headers
from ..tensor.device import CPU
from ..tensor.dtype import ByteOrder, DType
from ..tensor.header import Header
from ..tensor.tensor import from_payload
from .items import Content, Item, payload_bytes, pieces, refuse_metadata, text_metadata
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

_STRING = 8
"""Data type of strings, which are not tensors here."""

# Numbers of fields, by message.
_MODEL_IR_VERSION, _MODEL_PRODUCER, _MODEL_GRAPH, _MODEL_OPSET, _MODEL_METADATA = 1, 2, 7, 8, 14
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 2, 5, 15
_NODE_NAME, _NODE_ATTRIBUTE = 3, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 1, 6, 11
_DIMS, _DATA_TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_KEY, _VALUE = 1, 2
_OPSET_VERSION = 2

_LOCATION_EXTERNAL = 1
"""Data location of a tensor that lies in a file beside the model."""

_TYPED = {4: ("<f4", FIXED32), 5: ("<i4", VARINT), 7: ("<i8", VARINT), 10: ("<f8", FIXED64), 11: ("<u8", VARINT)}
"""Fields that hold a tensor's values one by one: the type of the values, and the wire type of each."""

_IR_VERSION, _OPSET = 10, 21
"""Versions that written models state: those of ONNX 1.16, the first with types of 4 bits."""

_MAX_DEPTH = 16
"""Deepest nesting of graphs, which If, Loop and Scan nest: bounds the recursion, far above what exporters write."""

_ALIGNMENT = 4096
"""Alignment of tensors in an external file, so that they can be mapped: ONNX recommends the size of a page."""

_HEAD_BYTES = 1024
"""Allowance for a tensor's head, when the size of a model is estimated. Names may be longer: hence half the limit."""


@contextlib.contextmanager
def read(path: str) -> Iterator[Content]:
    """Open a model: its initializers, and those of all graphs inside it."""
    with open_bytes(path) as source, contextlib.ExitStack() as stack:
        model = _Model(source, os.path.dirname(os.path.abspath(path)), stack)
        graphs = 0
        for field in model.fields(0, source.size):
            if field.number == _MODEL_GRAPH and field.wire_type == LEN:
                model.read_graph(field, "", 0)
                graphs += 1
            elif field.number == _MODEL_METADATA:
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
        _check_wire_type(field, LEN)
        return bytes(self._content[field.content : field.end])

    def _text(self, field: Field) -> str:
        try:
            return self._bytes(field).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"field {field.number} is not UTF-8", offset=field.start) from error

    def _number(self, field: Field) -> int:
        _check_wire_type(field, VARINT)
        return read_varint(self._content, field.content, field.end)[0]

    def text_pair(self, field: Field) -> tuple[str, str]:
        """Read a StringStringEntryProto."""
        _check_wire_type(field, LEN)
        parts = {_KEY: "", _VALUE: ""}
        for part in self.fields(field.content, field.end):
            if part.number in parts:
                parts[part.number] = self._text(part)
        return parts[_KEY], parts[_VALUE]

    def read_graph(self, graph: Field, prefix: str, depth: int) -> None:
        """Collect a graph's initializers, and those of the graphs in its nodes, with the node's name before theirs."""
        if depth > _MAX_DEPTH:
            raise DecodeError(f"graphs nested more than {_MAX_DEPTH} deep", offset=graph.start)
        for field in self.fields(graph.content, graph.end):
            # As every parser does, pass over a field of another wire type than its number has.
            if field.wire_type != LEN:
                continue
            if field.number == _GRAPH_INITIALIZER:
                self._add(field, prefix)
            elif field.number == _GRAPH_SPARSE:
                self.skipped.append(f"{prefix}sparse initializer")
            elif field.number == _GRAPH_NODE:
                self._read_node(field, prefix, depth)

    def _read_node(self, node: Field, prefix: str, depth: int) -> None:
        name, attributes = "", []
        for field in self.fields(node.content, node.end):
            if field.number == _NODE_NAME:
                name = self._text(field)
            elif field.number == _NODE_ATTRIBUTE and field.wire_type == LEN:
                attributes.append(field)
        for attribute in attributes:
            parts = list(self.fields(attribute.content, attribute.end))
            label = next((self._text(part) for part in parts if part.number == _ATTRIBUTE_NAME), "")
            for part in parts:
                if part.number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS) and part.wire_type == LEN:
                    self.read_graph(part, f"{prefix}{name}/{label}/", depth + 1)

    def _add(self, tensor: Field, prefix: str) -> None:
        """Read a TensorProto, and add it to the items or to what is skipped."""
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
                    raise DecodeError(
                        "two fields with data, or one that is not packed", tensor=name, offset=field.start
                    )
                data = field
        if code == _STRING:
            self.skipped.append(f"{name}: strings")
            return
        if code not in DTYPES:
            raise DecodeError(f"unknown data type {code}", tensor=name, field="data_type")
        if name in self._names:
            raise DecodeError("two initializers have this name", tensor=name, field="name")
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
            self.items.append(self._item(name, header, data, external if location == _LOCATION_EXTERNAL else None))
        except WireError as error:
            error.at(tensor=name)
            raise

    def _numbers(self, field: Field) -> list[int]:
        """Return the signed values of a repeated number: one of them, or all packed in one field."""
        if field.wire_type == VARINT:
            numbers = [self._number(field)]
        else:
            numbers, pos = [], field.content
            while pos < field.end:
                value, pos = read_varint(self._content, pos, field.end)
                numbers.append(value)
        return [n - (1 << 64) if n >> 63 else n for n in numbers]

    def _item(self, name: str, header: Header, data: Field | None, external: dict[str, str] | None) -> Item:
        """Return a tensor whose data is in the field, in an external file, or empty if it has neither."""
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
        size = np.dtype(kind).itemsize
        if data.wire_type != LEN:
            raise DecodeError("a typed field that is not packed", offset=data.start)
        if wire_type == VARINT:  # packed: all varints in one field
            mask = (1 << 8 * size) - 1
            values = np.array([n & mask for n in self._numbers(data)], f"<u{size}").view(kind)
        elif (data.end - data.content) % size:
            raise DecodeError(f"a typed field that does not end with a value of {size} bytes", offset=data.start)
        else:
            values = np.frombuffer(self._bytes(data), kind)
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
        """Return the external file that a tensor lies in, its position there, and its size."""
        location = external.get("location", "")
        source = self._external.get(location)
        if source is None:
            source = self._external[location] = self._open_beside(location)
        try:
            begin = int(external.get("offset", "0"))
            size = int(external["length"]) if "length" in external else source.size - begin
        except ValueError as error:
            raise DecodeError(f"malformed number: {error}", field="external_data") from error
        if not 0 <= begin <= begin + size <= source.size:
            raise DecodeError(f"[{begin}, {begin + size}) of a file of {source.size} bytes", field="external_data")
        return source, begin, size

    def _open_beside(self, location: str) -> Storage:
        """Open a file in the model's own folder. Paths in a model never lead anywhere else."""
        if location in ("", ".", "..") or os.path.basename(location) != location or "\0" in location:
            raise DecodeError(f"{location!r} is not the name of a file beside the model", field="location")
        path = os.path.join(self._folder, location)
        try:
            source = open_path(path, only_regular=True)
        except OSError as error:
            raise DecodeError(f"{location!r}: {error.strerror}", field="location") from error
        if not source.size:
            raise DecodeError(f"{location!r} is empty", field="location")
        self._stack.callback(source.close)
        return source


def _check_wire_type(field: Field, wire_type: int) -> None:
    if field.wire_type != wire_type:
        raise DecodeError(f"field {field.number} has wire type {field.wire_type}", offset=field.start)


def write(path: str, content: Content, durable: bool) -> None:
    """Write a model that consists of initializers alone; from about 1 GiB on, their data is a second file."""
    metadata = text_metadata(content.metadata, "onnx")
    names = [item.name for item in content.items]
    if "" in names:
        raise EncodeError("an initializer needs a name", field="name")
    for item in content.items:
        if item.dtype.name not in _CODES:
            raise EncodeError(f"onnx has no type for {item.dtype.name}", tensor=item.name, field="dtype")
        refuse_metadata(item.metadata, "a tensor in onnx", item.name)
    if sum(map(payload_bytes, content.items)) + _HEAD_BYTES * len(names) < MAX_MESSAGE_BYTES // 2:
        with replaced(path, durable) as file:
            _write_model(file, content.items, metadata, None)
    else:
        beside = path + ".data"
        # The inner file is published first, so a model never refers to data that does not exist yet.
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
    """Write the model itself.

    Args:
        file: The file to write to.
        items: The tensors.
        metadata: Metadata of the model.
        beside: Name of the file that has the data, or None to write it into the model.
    """
    heads, sizes = [], []
    position = 0
    for item in items:
        size = payload_bytes(item)
        head = length_delimited(_DIMS, b"".join(varint(n) for n in item.shape)) if item.shape else b""
        head += _number(_DATA_TYPE, _CODES[item.dtype.name]) + length_delimited(_NAME, item.name.encode())
        if beside is None:
            head += _announced(_RAW, size)
        else:
            position = _aligned(position)
            facts = {"location": beside, "offset": str(position), "length": str(size)}
            head += b"".join(length_delimited(_EXTERNAL, _pair(key, value)) for key, value in facts.items())
            head += _number(_LOCATION, _LOCATION_EXTERNAL)
            position += size
        heads.append(head)
        sizes.append(size if beside is None else 0)
    inner = [len(head) + size for head, size in zip(heads, sizes, strict=True)]
    name = length_delimited(_GRAPH_NAME, b"tensors")
    graph_bytes = len(name) + sum(len(_announced(_GRAPH_INITIALIZER, n)) + n for n in inner)
    file.write(_number(_MODEL_IR_VERSION, _IR_VERSION) + length_delimited(_MODEL_PRODUCER, b"dlpack-wire"))
    file.write(_announced(_MODEL_GRAPH, graph_bytes) + name)
    for item, head, n in zip(items, heads, inner, strict=True):
        file.write(_announced(_GRAPH_INITIALIZER, n) + head)
        if beside is None:
            for piece in pieces(item):
                file.write(piece)
    file.write(length_delimited(_MODEL_OPSET, _number(_OPSET_VERSION, _OPSET)))
    for key, value in metadata.items():
        file.write(length_delimited(_MODEL_METADATA, _pair(key, value)))


def _number(field: int, value: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(value)


def _announced(field: int, size: int) -> bytes:
    """Return the tag and the length of a field whose `size` bytes are written next."""
    return varint(field << 3 | LEN) + varint(size)


def _pair(key: str, value: str) -> bytes:
    return length_delimited(_KEY, key.encode()) + length_delimited(_VALUE, value.encode())
