"""Tensor files: `save`, `load`, `open`, `verify`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

import numpy as np

from . import _abi
from .errors import DecodeError, EncodeError
from .metadata import Metadata
from .reader import FileReader, MappedBytes, MemoryBytes, PositionedBytes, check_magic
from .record import RECORD_ALIGNMENT
from .source import Layout, Source
from .tensor import Tensor
from .v1 import dlpack_pb2
from .writer import FileWriter


def save(
    target: Any,
    x: Any,
    metadata: Metadata | None = None,
    durable: bool = True,
    *,
    layout: Layout = "keep",
    alignment: int = RECORD_ALIGNMENT,
) -> None:
    """Save one tensor, or tensors by name, as a tensor file.

    Args:
        target: A path, replaced atomically, or a binary file object (anything with `write`).
        x: A tensor (anything that `encode` takes), a mapping from names to tensors, or an iterable of (name, tensor)
            pairs, which may be longer than memory.
        metadata: User metadata of the file: str, int, float, bool or bytes by key.
        durable: Wait until the file and its name are on disk. False skips the wait, never the atomic replacement.
        layout: As for `encode`.
        alignment: Every payload starts at a multiple of this: a power of two from 64 to 4096.

    Raises:
        EncodeError: A name or tensor has no place in a file.
        OSError: It could not be written. The old file, if any, is untouched.

    Memory:
        No copy of a payload that is dense. Tensors of a mapping that are the same memory in the same layout are
        stored once.
    """
    with FileWriter(target, metadata=metadata, durable=durable, alignment=alignment) as f:
        if _is_tensor(x):
            f.write("", x, layout=layout)
        elif isinstance(x, Mapping):
            aliases = _tied(x)
            for name, tensor in x.items():
                if aliases is None:
                    f.write(name, tensor, layout=layout)
                elif name in aliases:
                    f.write(name, tensor, aliases=aliases[name], layout=layout)
        elif isinstance(x, Iterable) and not isinstance(x, (str, bytes, bytearray)):
            for pair in x:
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise EncodeError(f"an iterable must give (name, tensor) pairs, not {type(pair).__name__}")
                f.write(*pair, layout=layout)
        else:
            f.write("", x, layout=layout)  # refuses it, and says why


def _is_tensor(x: Any) -> bool:
    if isinstance(x, (np.ndarray, np.generic, Tensor, dlpack_pb2.DLTensor)) or _abi.is_capsule(x):
        return True
    return hasattr(type(x), "__dlpack__") or (hasattr(type(x), "to_dlpack") and not isinstance(x, Mapping))


def _tied(tensors: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """The further names of each tensor that is stored, by the name it is stored under; None if no two are the same.

    Only tensors that could share memory are compared: the same object, or views of one array.
    """
    roots = {name: _root(x) for name, x in tensors.items()}
    common = {root for root, count in Counter(roots.values()).items() if count > 1}
    if not common:
        return None
    stored: dict[str, list[str]] = {}
    first: dict[Any, str] = {}
    for name, x in tensors.items():
        key = None
        if roots[name] in common:
            with Source(x) as source:
                key = source.identity()
        if key is None or key not in first:
            stored[name] = []
            if key is not None:
                first[key] = name
        else:
            stored[first[key]].append(name)
    return stored


def _root(x: Any) -> int:
    """Equal for two tensors if they may share memory."""
    if isinstance(x, Tensor):
        x = x._array
    if isinstance(x, np.ndarray):
        while x.base is not None:
            if not isinstance(x.base, np.ndarray):
                return id(x.base.obj if isinstance(x.base, memoryview) else x.base)
            x = x.base
        return id(x)
    storage = getattr(x, "untyped_storage", None)  # torch
    if storage is not None and not getattr(x, "is_sparse", False):
        return hash(("storage", storage().data_ptr()))
    return id(x)


def load(source: Any, *, verify: bool = True) -> Tensor | dict[str, Tensor]:
    """Load what was saved: a tensor, or a dict of tensors by name.

    Args:
        source: A path, the file's bytes, or a binary file object.
        verify: Compare all checksums.

    Raises:
        DecodeError: It is no tensor file, or damaged.
        OSError: It could not be read.

    Memory:
        Tensors from a path share one private mapping of the file; writing to them never changes it.
    """
    with _open_any(source, verify) as f:
        if list(f) == [""]:
            return f[""]
        return dict(f)


def load_one(source: Any, *, verify: bool = True) -> Tensor:
    """As `load`, for a file with one tensor, of whatever name.

    Raises:
        DecodeError: It holds none or several.
    """
    with _open_any(source, verify) as f:
        names = list(f)
        if len(names) != 1:
            raise DecodeError(f"holds {len(names)} tensors, not one")
        return f[names[0]]


def load_dict(source: Any, *, verify: bool = True) -> dict[str, Tensor]:
    """As `load`, always a dict; a tensor saved by itself has the empty name."""
    with _open_any(source, verify) as f:
        return dict(f)


def _open_any(source: Any, verify: bool) -> FileReader:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return FileReader(MemoryBytes(source), "bytes", verify)
    if hasattr(source, "read"):
        return FileReader(MemoryBytes(source.read()), getattr(source, "name", None) or "file object", verify)
    return open(source, verify=verify)


@overload
def open(path: Any, mode: Literal["r"] = "r", *, mmap: bool = True, verify: bool = False) -> FileReader: ...


@overload
def open(
    path: Any,
    mode: Literal["w"],
    *,
    metadata: Metadata | None = None,
    durable: bool = True,
    alignment: int = RECORD_ALIGNMENT,
) -> FileWriter: ...


def open(
    path: Any,
    mode: Literal["r", "w"] = "r",
    *,
    mmap: bool = True,
    verify: bool = False,
    metadata: Metadata | None = None,
    durable: bool = True,
    alignment: int = RECORD_ALIGNMENT,
) -> FileReader | FileWriter:
    """Open a tensor file.

    Args:
        path: Where it is; for writing also a binary file object.
        mode: "r" reads lazily; "w" writes tensor by tensor and replaces the file on close.
        mmap: Reading: map the file. False reads each payload when asked for (network disks).
        verify: Reading: compare a payload's checksum when it is first used.
        metadata, durable, alignment: Writing: as for `save`.

    Raises:
        DecodeError: Reading: it is no tensor file, or damaged.
        OSError: It could not be opened.
    """
    if mode == "w":
        return FileWriter(path, metadata=metadata, durable=durable, alignment=alignment)
    if mode != "r":
        raise ValueError(f"mode must be 'r' or 'w', not {mode!r}")
    where = os.fsdecode(path)
    fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            check_magic(b"", 0)  # an empty file cannot be mapped
        source = MappedBytes(fd, size) if mmap else PositionedBytes(fd, size)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, DecodeError):
            error.at(path=where)
        raise
    return FileReader(source, where, verify, fd)


def verify(path: Any) -> None:
    """Check every byte of a tensor file that matters: magic, records, payloads, all indexes and trailers.

    Raises:
        DecodeError: The first fault, naming the tensor or the part.
    """
    with open(path) as f:
        f.verify()
