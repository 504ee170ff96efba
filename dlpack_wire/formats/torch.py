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
from collections.abc import Container, Iterator
from math import prod
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from ..errors import DecodeError, EncodeError
from ..file.storage import Storage
from ..message.names import Value
from ..tensor import layout
from ..tensor.dtype import DType
from .archive import Archive
from .items import Content, Item, payload_bytes, pieces, refuse_metadata, ties
from .paths import open_bytes, replaced
from .pickled import Call, Global, OddKey, Ordered, Persistent, interpret

MAX_PICKLE_BYTES = 256 << 20
"""Largest pickle that is read. It has names and shapes but no weights: 256 MiB are millions of tensors."""

_PICKLE_FACTOR = 4
"""Maximum bytes of a pickle for each byte of the file. torch does not compress, so its pickle is smaller than its file.
In an archive that was compressed later, the directory alone has a line for each storage, about as long as the pickle's
entry for that storage.
"""

_SMALL_PICKLE_BYTES = 1 << 20
"""Size up to which a pickle is read whatever the file's size."""

_ROOT = re.compile("[^/]*/data[.]pkl")
"""Name of the pickle in the archive: torch puts everything into one folder, named for the file."""

_MAX_NODES = 1 << 22
"""Maximum number of values that are visited: a pickle may hold one list many times over, so its size bounds nothing."""

_TEXT_FACTOR = 64
"""Characters of names and metadata for each byte of the pickle, in which one text may stand in many places. The name
of a number in a list may be far longer than its two bytes.
"""

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


_TENSORS = tuple(Global("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3"))
_PARAMETERS = tuple(Global("torch._utils", f"_rebuild_parameter{kind}") for kind in ("", "_with_state"))
_TYPED = tuple(
    Global("torch.jit._pickle", name)
    for name in ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")
)
"""Functions by which TorchScript gives lists and dictionaries, their first arguments, a static type."""

_OF_TYPE = Global("torch._tensor", "_rebuild_from_type_v2")
_PLAIN_TYPES = (Global("torch", "Tensor"), Global("torch._tensor", "Tensor"), Global("torch.nn.parameter", "Parameter"))

_COMPLEX = ("complex32", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SIGNED = (*_COMPLEX, *_INTEGERS, "float16", "bfloat16", "float32", "float64")
"""Types of views that torch may negate when they are read."""

_KNOWN = re.compile(
    r"(data|constants)[.]pkl|(data|constants)/[^/]+|code/.*|version|byteorder"
    r"|[.]format_version|[.]storage_alignment|[.]data/serialization_id",
    re.DOTALL,
)
"""Members that hold tensors, code or facts about the file itself."""

_ROOT_NAME = "(root)"


class _View(NamedTuple):
    """A tensor in a pickle: a view of a storage."""

    member: str
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_conjugated: bool
    is_negated: bool


@contextlib.contextmanager
def read(path: str, wanted: Container[str] | None = None) -> Iterator[Content]:
    """Open a .pt file. Numbers and text beside its tensors are metadata; everything else is skipped."""
    with open_bytes(path) as source:
        if bytes(source.read(0, min(2, source.size))) != b"PK":
            raise DecodeError(
                "not a torch file of torch 1.6 or later (older ones are bare pickles, which are not read)"
            )
        archive = Archive(source, sums_optional=True)
        root = next((m.removesuffix("data.pkl") for m in archive.members() if _ROOT.fullmatch(m)), "")
        order = b"little"
        if f"{root}byteorder" in archive.members():
            order = archive.read(f"{root}byteorder", 16)
            if order not in (b"little", b"big"):
                raise DecodeError(f"{order!r} is not a byte order", field="byteorder")
        # A value of a pickle takes some hundred bytes, and a compressed pickle could be a thousand times the file.
        limit = min(MAX_PICKLE_BYTES, max(_PICKLE_FACTOR * source.size, _SMALL_PICKLE_BYTES))
        collected = _Collected(archive, ">" if order == b"big" else "<", wanted)
        for pickled, name in (("data.pkl", ""), ("constants.pkl", "constants")):
            # TorchScript keeps tensors of its code apart: all weights, if the model was frozen.
            if not name or f"{root}{pickled}" in archive.members():
                content = archive.read(f"{root}{pickled}", limit)
                collected.text_left += _TEXT_FACTOR * len(content)
                value = interpret(content)
                if not name or value:
                    collected.visit(value, name, f"{root}{pickled.removesuffix('.pkl')}/", 0)
        for member in archive.members():
            if not (member.startswith(root) and _KNOWN.fullmatch(member.removeprefix(root))):
                collected.skipped.append(f"{member}: a member of the archive that is not a tensor")
        yield Content(
            collected.items, collected.metadata, collected.skipped, collected.notes(), stored_bytes=source.size
        )


class _Collected:
    """The tensors, the metadata and the rest of pickled values.

    Attributes:
        text_left: Characters of names and metadata that may still be collected.
    """

    def __init__(self, archive: Archive, order: str, wanted: Container[str] | None) -> None:
        self.items: list[Item] = []
        self.metadata: dict[str, Value] = {}
        self.skipped: list[str] = []
        self.text_left = 1 << 20
        self._notes: list[str] = []
        self._contents: dict[str, tuple[Storage, int, int]] = {}
        self._archive = archive
        self._order = order
        self._wanted = wanted
        self._nodes = 0

    def visit(self, value: Any, path: str, folder: str, depth: int) -> None:
        """Sort a value and everything in it into tensors, metadata, and the rest."""
        self._count(depth, len(path) + (len(value) if isinstance(value, (str, bytes)) else 0))
        if isinstance(value, Call):
            self._visit_call(value, path, folder, depth)
        elif isinstance(value, (dict, list, tuple)) and not isinstance(value, (Global, Persistent)):
            if isinstance(value, Ordered) and value.state:
                self._notes.append(f"{path or _ROOT_NAME}: attributes of an OrderedDict, which no other file has")
            if path and not value:
                self._skip(path, f"an empty {'dict' if isinstance(value, dict) else type(value).__name__}")
            for key, held in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(key, OddKey):
                    self._skip(path, "an entry whose key is neither text nor a number", held)
                else:
                    self.visit(held, _joined(path, key), folder, depth + 1)
        elif not isinstance(value, (str, bool, int, float, bytes)) or not path:
            plain = value is None or isinstance(value, Global)
            kind = "a storage" if isinstance(value, Persistent) else type(value).__name__
            self._skip(path, str(value) if plain else kind)
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            self._skip(path, "a number beyond 64 bits")
        elif path in self.metadata:
            raise DecodeError(f"two values would both have the key {path!r}", field="metadata")
        else:
            self.metadata[path] = value

    def _visit_call(self, call: Call, path: str, folder: str, depth: int) -> None:
        """Add the tensor that a call makes, or visit what an object holds; an object made of something is skipped."""
        if _is_tensor(call):
            if self._wanted is not None and path not in self._wanted:
                return
            view, more = _view(call, path, folder)
            if view is None:
                self._skip(path, f"{call.function} of an unknown element type")
            else:
                self.items.append(self._item(path, view))
            if more or call.state or call.entries or call.elements:
                self._skip(path, "attributes of this tensor", [more, call.state, call.entries, call.elements])
        elif call.function in _TYPED and isinstance(call.arguments, tuple) and call.arguments:
            self.visit(call.arguments[0], path, folder, depth + 1)
        elif _holds_attributes(call):
            held = call.state if isinstance(call.state, tuple) else (call.state,)
            for part in (call.entries, call.elements, *map(_attributes, held)):
                if part:
                    self.visit(part, path, folder, depth + 1)
        else:
            self._skip(path, str(call.function) if isinstance(call.function, Global) else "a call", call)

    def _skip(self, path: str, what: str, value: Any = None) -> None:
        count = self._tensors_in(value, 0)
        held = f", with {count} {'tensor' if count == 1 else 'tensors'} in it" if count else ""
        self.skipped.append(f"{path or _ROOT_NAME}: {what}{held}")

    def _tensors_in(self, value: Any, depth: int) -> int:
        """Count the tensors in a value that is skipped."""
        if not isinstance(value, (Call, dict, list, tuple)):
            return 0
        self._count(depth)
        if isinstance(value, Call):
            if _is_tensor(value):
                return 1
            value = (value.arguments, value.state, value.entries, value.elements)
        inner = value.values() if isinstance(value, dict) else value
        return sum(self._tensors_in(held, depth + 1) for held in inner)

    def _count(self, depth: int, text: int = 0) -> None:
        self._nodes += 1
        self.text_left -= text
        if self.text_left < 0:
            raise DecodeError(f"its names and metadata are more than {_TEXT_FACTOR} times as long as the pickle")
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise DecodeError(f"more than {_MAX_NODES} values, or nested more than {_MAX_DEPTH} deep")

    def notes(self) -> list[str]:
        """Return notes on what was read: among them storages that different tensors share."""
        sharing: dict[str, dict[_View, str]] = {}
        for item in self.items:
            if isinstance(item.identity, _View):
                sharing.setdefault(item.identity.member, {}).setdefault(item.identity, item.name)
        shared = [list(names.values()) for names in sharing.values() if len(names) > 1]
        return self._notes + [f"{', '.join(names[:5])}: views of one storage, written separately" for names in shared]

    def _item(self, path: str, view: _View) -> Item:
        if view.member not in self._contents:
            self._contents[view.member] = self._archive.content(view.member)
        source, begin, size = self._contents[view.member]
        _check_bounds(view, size, path)

        def load() -> Any:
            self._archive.check_sum(view.member)
            return _array(source, begin, size, view, self._order)

        return Item(path, view.dtype, view.shape, load, identity=view)


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
    return _resolved(array, view, order) if view.is_conjugated or view.is_negated else array


def _resolved(array: np.ndarray[Any, Any], view: _View, order: str) -> np.ndarray[Any, Any]:
    """Return the values of a view that torch conjugates or negates when it is read, bit for bit as torch does."""
    width = view.dtype.part_bytes
    parts = array.copy("C").reshape(-1).view(np.dtype(f"{order}u{width}")).reshape(-1, view.dtype.itemsize // width)
    sign = 1 << 8 * width - 1
    if view.is_conjugated:
        parts[:, 1] ^= sign
    if view.is_negated and view.dtype.name in _INTEGERS:
        np.negative(parts, out=parts)
    elif view.is_negated:
        parts ^= sign
    resolved: np.ndarray[Any, Any] = parts.reshape(-1).view(array.dtype).reshape(array.shape)
    return resolved


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _is_tensor(call: Call) -> bool:
    """Return True if a recorded call would make a tensor whose elements lie in a storage."""
    if not isinstance(call.function, Global) or not isinstance(call.arguments, tuple):
        return False
    if call.function in _PARAMETERS:
        return bool(call.arguments) and isinstance(call.arguments[0], Call) and call.arguments[0].function in _TENSORS
    if call.function == _OF_TYPE:
        function, kind, arguments, *_ = (*call.arguments, None, None, None)
        return function in _TENSORS and kind in _PLAIN_TYPES and isinstance(arguments, tuple)
    return call.function in _TENSORS


def _holds_attributes(call: Call) -> bool:
    """Return True if all that an object holds was set on it, and nothing was handed to its constructor but types."""
    given = call.arguments
    if not isinstance(given, tuple) or not all(isinstance(held, (Global, NoneType)) for held in given):
        return False
    if call.state is None:
        return bool(call.entries or call.elements)
    states = call.state if isinstance(call.state, tuple) and len(call.state) == 2 else (call.state,)
    return all(state is None or isinstance(state, dict) for state in states)


def _attributes(state: Any) -> Any:
    """Return the state of an object without its empty private attributes (hooks and the like)."""
    if not isinstance(state, dict):
        return state
    return {key: value for key, value in state.items() if not (str(key).startswith("_") and _is_empty(value))}


def _is_empty(value: Any) -> bool:
    if isinstance(value, Call) and isinstance(value.function, Global) and value.function.name == "set":
        return value.arguments in (((),), ([],)) and not value.elements
    return value is None or (isinstance(value, (dict, list, tuple)) and not value)


def _view(call: Call, path: str, folder: str) -> tuple[_View | None, list[Any]]:
    """Return the tensor that a recorded call would make, None if its type is unknown, and what else the call is given.

    Raises:
        DecodeError: The arguments are not those that torch writes.
    """
    further: list[Any] = []
    while call.function in _PARAMETERS:
        further += [held for held in call.arguments[2:] if held]
        call = call.arguments[0]
    name, arguments = call.function.name, call.arguments
    if call.function == _OF_TYPE:
        function, _, arguments, *rest = arguments
        name = function.name
        further += [held for held in rest if held]
    try:
        reference, offset, shape, strides, *more = arguments
        kind, storage, key, _, _ = reference.key
        declared = more.pop(2) if name == "_rebuild_tensor_v3" else storage
        if kind != "storage" or not isinstance(declared, Global):
            raise TypeError("not a reference to a storage")
        numbers = [offset, *shape, *strides]
        if not all(type(n) is int and n >= 0 for n in numbers) or len(shape) != len(strides):
            raise ValueError("negative, missing or other numbers")
        if not isinstance(key, (str, int)):
            raise TypeError("a storage's key is no text")
        lazy = dict(more.pop(2) or {}) if len(more) > 2 else {}
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise DecodeError(f"not a tensor as torch writes it: {error}", tensor=path) from error
    further += [held for held in (*more[1:], lazy.keys() - {"conj", "neg"}) if held]
    dtype = _dtype(declared)
    if dtype is None:
        return None, further
    is_conjugated, is_negated = bool(lazy.get("conj")), bool(lazy.get("neg"))
    if (is_conjugated and dtype.name not in _COMPLEX) or (is_negated and dtype.name not in _SIGNED):
        raise DecodeError(f"a lazily {'conjugated' if is_conjugated else 'negated'} {dtype.name}", tensor=path)
    where = _View(
        f"{folder}{key}",
        dtype,
        offset,
        tuple(shape),
        tuple(strides),
        is_conjugated,
        is_negated,
    )
    return where, further


def _dtype(declared: Global) -> DType | None:
    name = _STORAGES.get(declared.name, _RENAMED.get(declared.name, declared.name))
    return DType(name) if name in _STORAGE_OF or name in _UNTYPED else None


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
        for number, same in enumerate(ties(content.items)):
            _write_member(archive, f"data/{number}", pieces(same[0]))
        _write_member(archive, "version", iter([b"3\n"]))


def _write_member(archive: zipfile.ZipFile, name: str, parts: Iterator[Any]) -> None:
    with archive.open(zipfile.ZipInfo(f"archive/{name}"), "w", force_zip64=True) as member:
        for part in parts:
            member.write(part)


def _pickle(content: Content) -> bytes:
    """Return a pickle of protocol 2, put together out of the few opcodes that torch's safe unpickler takes."""
    parts = [b"\x80\x02}("]
    numbers = {item.name: number for number, same in enumerate(ties(content.items)) for item in same}
    for item in content.items:
        name, number = item.dtype.name, numbers[item.name]
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
    raise EncodeError(f"{key!r} is {type(value).__name__}, which torch's safe unpickler refuses", field="metadata")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _number(number: int) -> bytes:
    size = (number.bit_length() + 8) // 8
    return b"\x8a" + bytes((size,)) + number.to_bytes(size, "little", signed=True)
