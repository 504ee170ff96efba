"""torch's .pt files since torch 1.6, TorchScript archives among them: a zip archive of a pickle and raw storages.

The pickle is interpreted by `pickled`, which calls and imports nothing. Tensors are named by the path to them: keys,
positions and attributes, joined by dots.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import DecodeError, EncodeError
from ..file.storage import Storage
from ..message.names import Value
from ..tensor.dtype import DType
from .archive import Archive
from .content import Content, Item, payload_bytes, pieces, refuse_metadata
from .paths import open_bytes, replaced
from .pickled import Call, Global, Persistent, interpret

MAX_PICKLE_BYTES = 256 << 20
"""Largest pickle that is read: names and shapes, no weights."""

_ROOT = re.compile("[^/]*/data[.]pkl")
_MAX_NODES, _MAX_DEPTH = 1 << 22, 100

STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_STORAGE_OF = {name: storage for storage, name in STORAGES.items()}
# Types without a storage class of their own, by torch's name; those not listed have the same one here.
_RENAMED = {"complex32": "complex32", "float": "float32", "double": "float64", "half": "float16"}
_OWN_TYPES = (
    *("uint16", "uint32", "uint64", "complex32"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


class _View(NamedTuple):
    """A tensor in a pickle: a view of a storage."""

    key: str
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@contextlib.contextmanager
def read(path: str) -> Iterator[Content]:
    """Open a .pt file. Numbers and text beside its tensors are metadata; everything else is skipped."""
    with open_bytes(path) as source:
        if bytes(source.read(0, min(2, source.size))) != b"PK":
            raise DecodeError(
                "not a torch file of torch 1.6 or later (older ones are bare pickles, which are not read)"
            )
        archive = Archive(source)
        root = next((m.removesuffix("data.pkl") for m in archive.members() if _ROOT.fullmatch(m)), "")
        order = "<"
        if f"{root}byteorder" in archive.members():
            order = ">" if archive.read(f"{root}byteorder", 16) == b"big" else "<"
        collected = _Collected(archive, f"{root}data/", order)
        collected.visit(interpret(archive.read(f"{root}data.pkl", MAX_PICKLE_BYTES)), "", 0)
        yield Content(collected.items, collected.metadata, collected.skipped)


class _Collected:
    """What is found on the way through a pickled value."""

    def __init__(self, archive: Archive, folder: str, order: str) -> None:
        self.items: list[Item] = []
        self.metadata: dict[str, Value] = {}
        self.skipped: list[str] = []
        self._archive = archive
        self._folder = folder
        self._order = order
        self._nodes = 0

    def visit(self, value: Any, path: str, depth: int) -> None:
        """Sort a value and all that it holds into tensors, metadata, and the rest."""
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise DecodeError(f"more than {_MAX_NODES} values, or nested more than {_MAX_DEPTH} deep")
        view = _view(value, path)
        if view is not None:
            self.items.append(self._item(path, view))
        elif isinstance(value, dict):
            for key, held in value.items():
                self.visit(held, _joined(path, key), depth + 1)
        elif isinstance(value, (list, tuple)) and not isinstance(value, (Global, Persistent)):
            for position, held in enumerate(value):
                self.visit(held, _joined(path, position), depth + 1)
        elif isinstance(value, (str, bool, int, float, bytes)) and path:
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                self.skipped.append(f"{path}: a number beyond 64 bits")
            else:
                self.metadata[path] = value
        elif isinstance(value, Call) and (value.state or value.entries or value.elements):
            for held in (value.entries, value.elements, value.state):
                if held:
                    self.visit(held, path, depth + 1)
        elif value is not None:
            named = value.function if isinstance(value, Call) else value
            self.skipped.append(f"{path}: {named if isinstance(named, Global) else type(value).__name__}")

    def _item(self, path: str, view: _View) -> Item:
        source, begin, size = self._archive.content(self._folder + view.key)
        array = _array(source, begin, size, view, self._order, path)
        return Item(path, view.dtype, view.shape, lambda: array, identity=view)


def _array(source: Storage, begin: int, size: int, view: _View, order: str, path: str) -> np.ndarray[Any, Any]:
    """Return the elements of a view; numpy refuses one that reaches beyond its storage."""
    element = view.dtype.element
    if order == ">" and view.dtype.part_bytes > 1:
        element = element.newbyteorder(">")
    memory, at = source.memory(begin, begin + size)
    try:
        array: np.ndarray[Any, Any] = np.ndarray(
            view.shape,
            element,
            memoryview(memory)[at : at + size],
            view.offset * element.itemsize,
            tuple(s * element.itemsize for s in view.strides),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError(f"reaches beyond its storage of {size} bytes: {error}", tensor=path) from None
    return array


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _view(value: Any, path: str) -> _View | None:
    """Return the tensor that a note describes, or None."""
    if not isinstance(value, Call) or not isinstance(value.function, Global):
        return None
    module, name = value.function
    if module != "torch._utils" or not isinstance(value.arguments, tuple):
        return None
    arguments = value.arguments
    if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
        return _view(arguments[0], path) if arguments else None
    if name not in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return None
    try:
        reference, offset, shape, strides, *more = arguments
        kind, storage, key, _, _ = reference.key
        declared = more[2] if name == "_rebuild_tensor_v3" else storage
        if kind != "storage" or not isinstance(declared, Global):
            raise TypeError("not a reference to a storage")
        numbers = [int(offset), *map(int, shape), *map(int, strides)]
        if min(numbers) < 0 or len(shape) != len(strides):
            raise ValueError("negative or missing numbers")
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise DecodeError(f"not a tensor as torch writes it: {error}", tensor=path) from None
    return _View(str(key), _dtype(declared, path), numbers[0], tuple(map(int, shape)), tuple(map(int, strides)))


def _dtype(declared: Global, path: str) -> DType:
    name = STORAGES.get(declared.name, _RENAMED.get(declared.name, declared.name))
    try:
        return DType(name)
    except (ValueError, TypeError, EncodeError, DecodeError):
        raise DecodeError(f"{declared} is no element type that is known", tensor=path) from None


def write(path: str, content: Content, durable: bool) -> None:
    """Write a dictionary of tensors, as `torch.save` does; text and numbers of the file's metadata stand among them."""
    taken = {item.name for item in content.items}
    for item in content.items:
        if item.dtype.name not in _STORAGE_OF and item.dtype.name not in _OWN_TYPES:
            raise EncodeError(f"a torch file has no type for {item.dtype.name}", tensor=item.name, field="dtype")
        refuse_metadata(item.metadata, "a tensor in a torch file", item.name)
    for key in content.metadata:
        if key in taken:
            raise EncodeError(f"{key!r} is a tensor and metadata", field="metadata")
    with replaced(path, durable) as file, zipfile.ZipFile(file, "w") as archive:
        _write_member(archive, "data.pkl", iter([_pickle(content)]))
        _write_member(archive, "byteorder", iter([b"little"]))
        for number, item in enumerate(content.items):
            _write_member(archive, f"data/{number}", pieces(item))
        _write_member(archive, "version", iter([b"3\n"]))


def _write_member(archive: zipfile.ZipFile, name: str, parts: Iterator[Any]) -> None:
    with archive.open(zipfile.ZipInfo(f"archive/{name}"), "w", force_zip64=True) as member:
        for part in parts:
            member.write(part)


def _pickle(content: Content) -> bytes:
    """Write a pickle of protocol 2 by hand: what torch's own unpickler expects and nothing more."""
    parts = [b"\x80\x02}("]
    for number, item in enumerate(content.items):
        name = item.dtype.name
        untyped = name not in _STORAGE_OF
        count = payload_bytes(item) if untyped else payload_bytes(item) // item.dtype.itemsize
        storage = b"ctorch.storage\nUntypedStorage\n" if untyped else f"ctorch\n{_STORAGE_OF[name]}\n".encode()
        strides = [1] * len(item.shape)
        for axis in range(len(item.shape) - 1, 0, -1):
            strides[axis - 1] = strides[axis] * max(item.shape[axis], 1)
        parts += [
            _text(item.name),
            b"ctorch._utils\n_rebuild_tensor_v3\n(" if untyped else b"ctorch._utils\n_rebuild_tensor_v2\n(",
            b"(" + _text("storage") + storage + _text(str(number)) + _text("cpu") + _number(count) + b"tQ",
            _number(0),
            b"(" + b"".join(map(_number, item.shape)) + b"t",
            b"(" + b"".join(map(_number, strides)) + b"t",
            b"\x89ccollections\nOrderedDict\n)R",
            f"ctorch\n{name}\n".encode() if untyped else b"",
            b"tR",
        ]
    for key, value in content.metadata.items():
        parts += [_text(key), _plain(key, value)]
    return b"".join((*parts, b"u."))


def _plain(key: str, value: Value) -> bytes:
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return _text(value)
    raise EncodeError(f"{key!r}: torch's safe unpickler takes no bytes", field="metadata")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _number(number: int) -> bytes:
    size = (number.bit_length() + 8) // 8
    return b"\x8a" + bytes((size,)) + number.to_bytes(size, "little", signed=True)
