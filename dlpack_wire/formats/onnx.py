"""ONNX: the tensors of a model, inline or in a file beside it: initializers, constants and attributes of nodes.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. The model is read field by field, so that no weight
passes through a parser; nodes are only looked at for the tensors and graphs inside them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from ..errors import ChecksumError, DecodeError, EncodeError, WireError
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
from .paths import is_stream, open_bytes, replaced

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
_MODEL_TRAINING, _MODEL_FUNCTION = 20, 25
_TRAINING_INITIALIZATION, _TRAINING_ALGORITHM = 1, 2
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_ATTRIBUTE = 1, 7, 11
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 2, 5, 15
_NODE_OUTPUT, _NODE_NAME, _NODE_OP_TYPE, _NODE_ATTRIBUTE = 2, 3, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 1, 5, 6, 10, 11
_ATTRIBUTE_FLOATS, _ATTRIBUTE_SPARSE, _ATTRIBUTE_SPARSES = 7, 22, 23
_SPARSE_VALUES = 1
_DIMS, _DATA_TYPE, _SEGMENT, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 3, 8, 9, 13, 14
_KEY, _VALUE = 1, 2
_OPSET_VERSION = 2

# Texts and metadata that are named when they are left behind, by message.
_MODEL_TEXTS = {6: "doc_string"}
_GRAPH_TEXTS = {10: "doc_string", 14: "quantization_annotation", 16: "metadata_props"}
_TENSOR_TEXTS = {12: "doc_string", 16: "metadata_props"}

_LOCATION_EXTERNAL = 1
"""Data location of a tensor that lies in a file beside the model."""

_TYPED = {4: ("<f4", FIXED32), 5: ("<i4", VARINT), 7: ("<i8", VARINT), 10: ("<f8", FIXED64), 11: ("<u8", VARINT)}
"""Fields that hold a tensor's values one by one: the type of the values, and the wire type of each."""

# Attributes of a Constant node that are not tensors, and those of any node that may be weights.
_CONSTANTS = {2: "number", 3: "number", 4: "string", 7: "numbers", 8: "numbers", 9: "strings"}

_IR_VERSION, _OPSET = 10, 21
"""Versions that written models state: those of ONNX 1.16, the first with types of 4 bits."""

_MAX_DEPTH = 16
"""Deepest nesting of graphs, which If, Loop and Scan nest: bounds the recursion, far above what exporters write."""

_TEXT_FACTOR = 64
"""Characters of names for each byte of the model: a tensor of a few bytes has the names of all nodes around it."""

_ALIGNMENT = 4096
"""Alignment of tensors in an external file, so that they can be mapped: ONNX recommends the size of a page."""

_HEAD_BYTES = 1024
"""Allowance for a tensor's head, when the size of a model is estimated. Names may be longer: hence half the limit."""


@contextlib.contextmanager
def read(path: str, wanted: Container[str] | None = None) -> Iterator[Content]:
    """Open a model: its tensors, and those of all graphs and functions inside it."""
    with open_bytes(path) as source, contextlib.ExitStack() as stack:
        model = _Model(source, os.path.dirname(os.path.abspath(path)), stack, wanted)
        graphs = 0
        for field in model.fields(0, source.size):
            if field.number == _MODEL_METADATA:
                key, value = model.text_pair(field)
                if key in model.metadata:
                    raise DecodeError(f"two values have the key {key!r}", field="metadata_props")
                model.metadata[key] = value
            # As every parser does, pass over a field of another wire type than its number has.
            elif field.wire_type != LEN:
                continue
            elif field.number == _MODEL_GRAPH:
                model.read_graph(field, "", 0)
                graphs += 1
            elif field.number == _MODEL_FUNCTION:
                model.read_function(field)
            elif field.number == _MODEL_TRAINING:
                model.read_training(field)
            else:
                model.note_text(field, _MODEL_TEXTS, "")
        if not graphs:
            raise DecodeError("not an ONNX model: it has no graph")
        yield Content(model.items, dict(model.metadata), model.skipped, stored_bytes=source.size + model.beside_bytes())


class _Model:
    """A model being read."""

    def __init__(
        self, source: Storage, folder: str, stack: contextlib.ExitStack, wanted: Container[str] | None
    ) -> None:
        self.items: list[Item] = []
        self.metadata: dict[str, str] = {}
        self.skipped: list[str] = []
        self._source = source
        self._content = memoryview(source.memory(0, source.size)[0]) if source.size else memoryview(b"")
        self._folder = folder
        self._stack = stack
        self._wanted = wanted
        self._external: dict[str, Storage] = {}
        self._sums: dict[str, str] = {}
        self._initializers: set[tuple[str, str]] = set()
        self._taken: dict[str, int] = {}
        self._noted: set[str] = set()
        self._text_left = _TEXT_FACTOR * source.size

    def beside_bytes(self) -> int:
        """Return the bytes of all files beside the model."""
        return sum(source.size for source in self._external.values())

    def _unique(self, name: str) -> str:
        """Return the name, with a number behind it if it was taken: graphs and nodes may share theirs, tensors not."""
        self._spend(name)
        self._taken[name] = count = self._taken.get(name, 0) + 1
        return name if count == 1 else self._unique(f"{name}#{count}")

    def _spend(self, text: str) -> None:
        """Raise DecodeError if names that were put together have become far longer than the model."""
        self._text_left -= len(text)
        if self._text_left < 0:
            raise DecodeError(f"its names, put together, are more than {_TEXT_FACTOR} times as long as the model")

    def _graph_prefix(self, label: str) -> str:
        """Return what stands before the names of a graph's tensors, which no other graph has."""
        return f"{self._unique(label)}/"

    def note_text(self, field: Field, texts: dict[int, str], where: str) -> None:
        """Note a text or metadata that is left behind."""
        if field.number in texts and field.content < field.end:
            noted = f"{where}{texts[field.number]}"
            self._spend(noted)
            if noted not in self._noted:
                self._noted.add(noted)
                self.skipped.append(noted)

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
            if field.wire_type != LEN:
                continue
            if field.number == _GRAPH_INITIALIZER:
                self._add(field, prefix)
            elif field.number == _GRAPH_SPARSE:
                name = self._sparse_name(field)
                self.skipped.append(f"{prefix}{name}: sparse initializer" if name else f"{prefix}sparse initializer")
            elif field.number == _GRAPH_NODE:
                self._read_node(field, prefix, depth)
            else:
                self.note_text(field, _GRAPH_TEXTS, prefix)

    def read_function(self, function: Field) -> None:
        """Collect the tensors in a function's nodes and in the defaults of its attributes."""
        parts = [part for part in self.fields(function.content, function.end) if part.wire_type == LEN]
        name = next((self._text(part) for part in parts if part.number == _FUNCTION_NAME), "")
        prefix = self._graph_prefix(name)
        for part in parts:
            if part.number == _FUNCTION_NODE:
                self._read_node(part, prefix, 0)
            elif part.number == _FUNCTION_ATTRIBUTE:
                self._read_attribute(part, prefix, None, 0)

    def read_training(self, training: Field) -> None:
        """Collect the tensors of the graphs that begin and continue training."""
        labels = {_TRAINING_INITIALIZATION: "initialization", _TRAINING_ALGORITHM: "algorithm"}
        prefix = self._graph_prefix("training")
        for part in self.fields(training.content, training.end):
            if part.number in labels and part.wire_type == LEN:
                self.read_graph(part, f"{prefix}{labels[part.number]}/", 0)

    def _read_node(self, node: Field, prefix: str, depth: int) -> None:
        name, kind, output, attributes = "", "", "", []
        for field in self.fields(node.content, node.end):
            if field.number == _NODE_NAME:
                name = self._text(field)
            elif field.number == _NODE_OP_TYPE:
                kind = self._text(field)
            elif field.number == _NODE_OUTPUT and not output:
                output = self._text(field)
            elif field.number == _NODE_ATTRIBUTE and field.wire_type == LEN:
                attributes.append(field)
        constant = prefix + output if kind == "Constant" else None
        for attribute in attributes:
            self._read_attribute(attribute, f"{prefix}{name or output}/", constant, depth)

    def _read_attribute(self, attribute: Field, where: str, constant: str | None, depth: int) -> None:
        """Collect the tensors of an attribute.

        Args:
            attribute: The attribute.
            where: Name of its node or function, with a slash behind it.
            constant: Name of the tensor if its node makes a constant: what the graph calls the result; else None.
            depth: Number of graphs around it.
        """
        parts = list(self.fields(attribute.content, attribute.end))
        label = where + next((self._text(part) for part in parts if part.number == _ATTRIBUTE_NAME), "")
        self._spend(label)
        count = 0
        for part in parts:
            if part.number == _ATTRIBUTE_FLOATS or (constant is not None and part.number in _CONSTANTS):
                if not count:
                    self.skipped.append(f"{label}: {_CONSTANTS[part.number]} of an attribute")
                count += 1
            elif part.wire_type != LEN:
                continue
            elif part.number == _ATTRIBUTE_TENSOR:
                self._add(part, "", label if constant is None else constant)
            elif part.number == _ATTRIBUTE_TENSORS:
                self._add(part, "", f"{label}/{count}")
                count += 1
            elif part.number in (_ATTRIBUTE_SPARSE, _ATTRIBUTE_SPARSES):
                self.skipped.append(f"{label}: sparse tensor")
            elif part.number == _ATTRIBUTE_GRAPH:
                self.read_graph(part, self._graph_prefix(label), depth + 1)
            elif part.number == _ATTRIBUTE_GRAPHS:
                self.read_graph(part, self._graph_prefix(f"{label}/{count}"), depth + 1)
                count += 1

    def _sparse_name(self, sparse: Field) -> str:
        for part in self.fields(sparse.content, sparse.end):
            if part.number == _SPARSE_VALUES and part.wire_type == LEN:
                for field in self.fields(part.content, part.end):
                    if field.number == _NAME:
                        return self._text(field)
        return ""

    def _add(self, tensor: Field, prefix: str, known: str | None = None) -> None:
        """Read a TensorProto, and add it to the items or to what is skipped.

        Args:
            tensor: The tensor.
            prefix: Prefix of the name that stands in it.
            known: Its name, if that is not what stands in it.
        """
        dims: list[int] = []
        code = location = 0
        name = ""
        data: Field | None = None
        external: dict[str, str] = {}
        texts: dict[str, None] = {}
        for field in self.fields(tensor.content, tensor.end):
            if field.number == _DIMS:
                dims += self._numbers(field)
            elif field.number == _DATA_TYPE:
                code = self._number(field)
            elif field.number == _NAME:
                name = self._text(field)
            elif field.number == _SEGMENT:
                raise DecodeError("the tensor is split into segments, which are not supported", field="segment")
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
            elif field.number in _TENSOR_TEXTS and field.content < field.end:
                texts[_TENSOR_TEXTS[field.number]] = None
        if known is None and (prefix, name) in self._initializers:
            raise DecodeError("two initializers of a graph have this name", tensor=prefix + name, field="name")
        if known is None:
            self._initializers.add((prefix, name))
        name = self._unique(prefix + name if known is None else known)
        if self._wanted is not None and name not in self._wanted:
            return
        self.skipped += [f"{name}: {text}" for text in texts]
        if code == _STRING:
            self.skipped.append(f"{name}: strings")
            return
        if code not in DTYPES:
            raise DecodeError(f"unknown data type {code}", tensor=name, field="data_type")
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
        if "checksum" in external:
            self._check_sum(location, source, external["checksum"])
        return source, begin, size

    def _check_sum(self, location: str, source: Storage, expected: str) -> None:
        """Check a file beside the model against its SHA-1, which any of the tensors in it may state."""
        if location not in self._sums:
            self._sums[location] = hashlib.sha1(source.read(0, source.size), usedforsecurity=False).hexdigest()
        actual = self._sums[location]
        if not re.fullmatch("[0-9a-fA-F]{40}", expected):
            raise DecodeError(f"{expected[:64]!r} is not a SHA-1", field="external_data")
        if actual != expected.lower():
            raise ChecksumError(
                f"{location!r} does not match its checksum: stored {expected}, computed {actual}",
                expected=int(expected, 16),
                actual=int(actual, 16),
            )

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
        if is_stream(path):
            raise EncodeError(f"the data of {len(names)} tensors needs a second file; a pipe or device has none")
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
