"""torch's .pt files since torch 1.6, TorchScript archives among them: a zip archive of a pickle and raw storages.

Source: https://github.com/pytorch/pytorch/blob/main/torch/serialization.py, and torch/_utils.py for the functions that
rebuild tensors. The pickle is interpreted by `pickled`, which calls and imports nothing. Tensors are named by the path
to them: keys, positions and attributes, joined by dots.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zipfile
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import DecodeError, EncodeError
from ..file.storage import Storage
from ..message.names import Value
from ..tensor import layout
from ..tensor.dtype import DType
from .archive import Archive
from .items import Content, Item, payload_bytes, pieces, refuse_metadata
from .paths import open_bytes, replaced
from .pickled import Call, Global, Persistent, interpret

MAX_PICKLE_BYTES = 256 << 20
"""Largest pickle that is read. It has names and shapes but no weights: 256 MiB are millions of tensors."""

_ROOT = re.compile("[^/]*/data[.]pkl")
"""Name of the pickle in the archive: torch puts everything into one folder, named for the file."""

_MAX_NODES = 1 << 22
"""Maximum number of values that are visited: a pickle may hold one list many times over, so its size bounds nothing."""

_MAX_DEPTH = 100
"""Deepest nesting of values, which bounds the recursion."""

_STORAGES = {
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
_STORAGE_OF = {name: storage for storage, name in _STORAGES.items()}
_RENAMED = {"float": "float32", "double": "float64", "half": "float16"}
"""Aliases of torch's types, which a pickle may use; the other types have the same name here."""

# Types without a storage class of their own: written as a view of untyped storage.
_UNTYPED = (
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
    """The tensors, the metadata and the rest of a pickled value."""

    def __init__(self, archive: Archive, folder: str, order: str) -> None:
        self.items: list[Item] = []
        self.metadata: dict[str, Value] = {}
        self.skipped: list[str] = []
        self._archive = archive
        self._folder = folder
        self._order = order
        self._nodes = 0

    def visit(self, value: Any, path: str, depth: int) -> None:
        """Sort a value and everything in it into tensors, metadata, and the rest."""
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
            elif path in self.metadata:
                raise DecodeError(f"two values would both have the key {path!r}", field="metadata")
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
        _check_bounds(view, size, path)
        return Item(path, view.dtype, view.shape, lambda: _array(source, begin, size, view, self._order), identity=view)


def _check_bounds(view: _View, size: int, path: str) -> None:
    """Raise DecodeError unless a view has a possible shape and stays within its storage of `size` bytes."""
    try:
        # Without the strides: unlike those of a message, elements of a view may overlap.
        layout.check_layout(view.dtype, view.shape)
    except DecodeError as error:
        error.at(tensor=path)
        raise
    if 0 in view.shape:
        return
    end = (view.offset + layout.span(view.shape, view.strides)[1] + 1) * view.dtype.element.itemsize
    if end > size:
        raise DecodeError(f"reaches byte {end} of a storage of {size} bytes", tensor=path)


def _array(source: Storage, begin: int, size: int, view: _View, order: str) -> np.ndarray[Any, Any]:
    """Return the elements of a view whose bounds were checked."""
    element = view.dtype.element
    if not prod(view.shape):
        return np.empty(view.shape, element)
    if order == ">" and view.dtype.part_bytes > 1:
        element = element.newbyteorder(">")
    memory, at = source.memory(begin, begin + size)
    array: np.ndarray[Any, Any] = np.ndarray(
        view.shape,
        element,
        memory,
        at + view.offset * element.itemsize,
        # Strides of axes of one element reach nothing, and may be any number.
        tuple(s * element.itemsize if n > 1 else 0 for n, s in zip(view.shape, view.strides, strict=True)),
    )
    return array


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _view(value: Any, path: str) -> _View | None:
    """Return the tensor that a recorded call would rebuild, or None if it would rebuild something else."""
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
        raise DecodeError(f"not a tensor as torch writes it: {error}", tensor=path) from error
    return _View(str(key), _dtype(declared, path), numbers[0], tuple(map(int, shape)), tuple(map(int, strides)))


def _dtype(declared: Global, path: str) -> DType:
    name = _STORAGES.get(declared.name, _RENAMED.get(declared.name, declared.name))
    try:
        return DType(name)
    except (ValueError, TypeError, EncodeError) as error:
        raise DecodeError(f"{declared} is not a known element type", tensor=path) from error


def write(path: str, content: Content, durable: bool) -> None:
    """Write a dictionary of tensors as `torch.save` does, with the file's metadata as further entries."""
    taken = {item.name for item in content.items}
    for item in content.items:
        if item.dtype.name not in _STORAGE_OF and item.dtype.name not in _UNTYPED:
            raise EncodeError(f"a torch file has no type for {item.dtype.name}", tensor=item.name, field="dtype")
        refuse_metadata(item.metadata, "a tensor in a torch file", item.name)
    for key in content.metadata:
        if key in taken:
            raise EncodeError(f"{key!r} is the name of a tensor too", field="metadata")
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
    """Return a pickle of protocol 2, put together out of the few opcodes that torch's safe unpickler takes."""
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
    raise EncodeError(f"{key!r} is bytes, which torch's safe unpickler refuses", field="metadata")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _number(number: int) -> bytes:
    size = (number.bit_length() + 8) // 8
    return b"\x8a" + bytes((size,)) + number.to_bytes(size, "little", signed=True)
