"""Tensor files: `save`, `load`, `open`, `verify`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from ..errors import DecodeError, EncodeError
from ..message.aliases import stored_once
from ..message.codec import is_tensor
from ..message.names import Metadata
from ..tensor.source import Layout
from ..tensor.tensor import Tensor
from . import audit
from .appender import FileAppender
from .reader import FileReader, contents_of
from .record import RECORD_ALIGNMENT
from .remote import RemoteBytes, is_url
from .storage import MemoryBytes, open_path
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
        target: A path or URL, replaced atomically, or a binary file object (anything with `write`).
        x: A tensor (anything that `encode` takes), a mapping from names to tensors, or an iterable of (name, tensor)
            pairs, which may be longer than memory.
        metadata: User metadata of the file: str, int, float, bool or bytes by key.
        durable: Wait until the file and its name are on disk. False skips the wait, never the atomic replacement.
        layout: As for `encode`.
        alignment: Every payload starts at a multiple of this: a power of two from 64 to 4096.

    Raises:
        EncodeError: A name is malformed or repeated, a tensor or the metadata cannot be written, `layout` or
            `alignment` is not an allowed value, or an iterable yields something other than (name, tensor) pairs.
        Exception: Any error of a tensor's producer itself.
        OSError: The file cannot be written. The old file, if any, is untouched.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.

    Memory:
        No copy of a payload that is dense. Tensors of a mapping that are the same memory in the same layout are
        stored once.
    """
    with FileWriter(target, metadata=metadata, durable=durable, alignment=alignment) as f:
        if is_tensor(x):
            f.write("", x, layout=layout)
        elif isinstance(x, Mapping):
            for name, tensor, aliases in stored_once(x):
                f.write(name, tensor, aliases=aliases, layout=layout)
        elif isinstance(x, Iterable) and not isinstance(x, (str, bytes, bytearray)):
            for pair in x:
                if not isinstance(pair, tuple) or len(pair) != 2:
                    said = type(pair).__name__
                    raise EncodeError(f"an iterable must give (name, tensor) pairs, not {said}; or save a dict")
                f.write(*pair, layout=layout)
        else:
            f.write("", x, layout=layout)  # which refuses it, and says why


def load(source: Any, *, verify: bool = True) -> Tensor | dict[str, Tensor]:
    """Load a tensor file: one tensor if it was saved by itself, else a dict of tensors by name.

    Args:
        source: A path or URL, the file's bytes, or a binary file object.
        verify: Compare all checksums.

    Raises:
        DecodeError: Not a tensor file, or damaged.
        OSError: The file cannot be read.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.

    Memory:
        Tensors from a path share one private mapping of the file; writing to them never changes it.
    """
    with _open_any(source, verify) as f:
        if verify:
            contents_of(f).check_claims()
        tensors = {name: f.read(name) for name in f}
    return tensors[""] if tensors.keys() == {""} else tensors


def load_one(source: Any, *, verify: bool = True) -> Tensor:
    """Load the tensor of a file that holds one, whatever its name. Arguments are those of `load`.

    Raises:
        DecodeError: The file holds no tensor or several, or as for `load`.
        OSError: The file cannot be read.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.
    """
    with _open_any(source, verify) as f:
        if len(f) != 1:
            raise DecodeError(f"holds {len(f)} tensors, not one").at(path=contents_of(f).where)
        return f.read(next(iter(f)))


def load_dict(source: Any, *, verify: bool = True) -> dict[str, Tensor]:
    """Load a dict of tensors; a tensor saved by itself has the empty name. Arguments and errors are those of `load`."""
    with _open_any(source, verify) as f:
        return {name: f.read(name) for name in f}


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


@overload
def open(
    path: Any,
    mode: Literal["a"],
    *,
    metadata: Metadata | None = None,
    durable: bool = True,
    alignment: int = RECORD_ALIGNMENT,
) -> FileAppender: ...


def open(
    path: Any,
    mode: Literal["r", "w", "a"] = "r",
    *,
    mmap: bool = True,
    verify: bool = False,
    metadata: Metadata | None = None,
    durable: bool = True,
    alignment: int = RECORD_ALIGNMENT,
) -> FileReader | FileWriter | FileAppender:
    """Open a tensor file.

    Args:
        path: A path, or a URL that fsspec knows; for writing also a binary file object.
        mode: "r" reads lazily; "w" writes tensor by tensor and replaces the file on close; "a" adds to a file, whose
            earlier tensors stay readable at any time, and makes it if it does not exist.
        mmap: Reading: map the file. False reads each payload, or the part that is sliced, when it is needed (network
            disks). URLs are never mapped.
        verify: Reading: check the blocks of a payload that are used, once each. URLs are always verified.
        metadata: Writing: as for `save`. Appending: metadata to add to the file's.
        durable: Writing and appending: as for `save`.
        alignment: Writing and appending: as for `save`.

    Raises:
        DecodeError: Reading and appending: it is not a tensor file, or damaged.
        EncodeError: The alignment or metadata cannot be written, or a URL is to be appended to.
        OSError: The file cannot be opened; appending: another process is appending to it (BlockingIOError).
        ValueError: The mode is unknown.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.
    """
    if mode == "w":
        return FileWriter(path, metadata=metadata, durable=durable, alignment=alignment)
    if mode == "a":
        if is_url(path):
            raise EncodeError(f"{path}: a file behind a URL cannot be appended to")
        return FileAppender(path, metadata=metadata, durable=durable, alignment=alignment)
    if mode != "r":
        raise ValueError(f"mode must be 'r', 'w' or 'a', not {mode!r}")
    if is_url(path):
        return FileReader(RemoteBytes(path), path, verify=True)
    where = os.fsdecode(path)
    return FileReader(open_path(where, mapped=mmap), where, verify)


def problems(path: Any) -> Iterator[DecodeError]:
    """Yield every fault of a tensor file: in its magic, records, payloads, indexes and trailers, of all generations."""
    try:
        f = open(path)
    except DecodeError as error:
        yield error
        return
    with f:
        yield from audit.problems(contents_of(f))


def verify(path: Any) -> None:
    """Check every byte of a tensor file that matters: magic, records, payloads, all indexes and trailers.

    Raises:
        DecodeError: The first fault, with the name of the tensor or the part.
        OSError: The file could not be read.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.
    """
    for problem in problems(path):
        raise problem
