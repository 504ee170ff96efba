"""NumPy's .npy and .npz: one array, or a zip archive of them.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from ..errors import DecodeError, EncodeError, TruncatedError, UnsupportedVersionError, WireError
from ..file.storage import Storage
from ..tensor import layout
from ..tensor.dtype import from_numpy
from .archive import Archive
from .items import PIECE_BYTES, Content, Item, pieces, refuse_metadata
from .paths import open_bytes, replaced

_READ_HEADER = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
    # The same but for UTF-8, in which only fields of structured types, which are no tensors, have their names.
    (3, 0): npy_format.read_array_header_2_0,
}
"""Readers of headers by version, which numpy knows."""

_MAX_NAME_BYTES = 0xFFFF
"""Maximum bytes of a member's name: what its field in a zip archive holds."""

_HEAD_BYTES = 1 << 16
"""Bytes in which the header is looked for. numpy itself refuses a header of more than 10,000 characters."""


@contextlib.contextmanager
def read_npy(path: str, wanted: Container[str] | None = None) -> Iterator[Content]:
    """Open a .npy file: one tensor without a name."""
    with open_bytes(path) as source:
        yield Content([_item("", source, 0, source.size)], stored_bytes=source.size)


@contextlib.contextmanager
def read_npz(path: str, wanted: Container[str] | None = None) -> Iterator[Content]:
    """Open a .npz file: a tensor for each member that is an array, by its name without .npy."""
    with open_bytes(path) as source:
        archive = Archive(source)
        items, skipped = [], []
        for member in archive.members():
            name = member.removesuffix(".npy")
            if wanted is not None and name not in wanted:
                continue
            item = _member(name, archive, member)
            if item is None:
                skipped.append(f"{member}: not an array")
            else:
                items.append(item)
        if skipped and not items:
            raise DecodeError("not a npz file: no member of the archive is an array")
        yield Content(items, skipped=skipped, stored_bytes=source.size)


def _member(name: str, archive: Archive, member: str) -> Item | None:
    """Return the array in a member, or None if it does not begin as one. Its sum is checked when it is loaded."""
    source, begin, size = archive.content(member)
    if bytes(source.read(begin, begin + min(size, len(npy_format.MAGIC_PREFIX)))) != npy_format.MAGIC_PREFIX:
        archive.check_sum(member, compressed=True)  # damage must not turn an array into something else
        return None
    item = _item(name, source, begin, size)

    def load() -> Any:
        archive.check_sum(member)
        return item.load()

    return replace(item, load=load)


def _item(name: str, source: Storage, begin: int, size: int) -> Item:
    """Return the array in [begin, begin + size)."""
    head = io.BytesIO(bytes(source.read(begin, begin + min(size, _HEAD_BYTES))))
    try:
        version = npy_format.read_magic(head)
        if version not in _READ_HEADER:
            raise UnsupportedVersionError(
                f"npy of version {version[0]}.{version[1]}; 1.0, 2.0 and 3.0 are known",
                found=f"{version[0]}.{version[1]}",
                supported="1.0, 2.0, 3.0",
                tensor=name,
            )
        shape, fortran, dtype = _READ_HEADER[version](head)
        if not all(type(n) is int for n in shape):  # numpy takes True here, and fails when it makes the array
            raise TypeError(f"shape {shape}")
    except WireError:
        raise
    except Exception as error:
        # numpy hands the header to Python's tokenizer and compiler, and lets through whatever they raise.
        raise DecodeError(f"not a npy array: {type(error).__name__}: {error}", tensor=name) from error
    if dtype.hasobject:
        raise DecodeError("holds Python objects, which only pickle can read: refused", tensor=name)
    try:
        element = from_numpy(dtype)
    except WireError as error:
        raise DecodeError(f"{dtype} is not an element type of tensors: {error}", tensor=name) from error
    try:
        needed = head.tell() + layout.check_layout(element, shape)
    except DecodeError as error:
        error.at(tensor=name)
        raise
    if needed < size:
        said = f"{dtype} of shape {shape} needs {needed} bytes; {size - needed} more follow, which no array claims"
        raise DecodeError(said, tensor=name, offset=begin + needed)
    if needed > size:
        raise TruncatedError(
            f"{dtype} of shape {shape} needs {needed} bytes, has {size}", needed=needed, available=size, tensor=name
        )
    data = begin + head.tell()

    def load() -> Any:
        memory, at = source.memory(data, begin + size)
        return np.ndarray(shape, dtype, memory, at, order="F" if fortran else "C")

    return Item(name, element, shape, load)


def write_npy(path: str, content: Content, durable: bool) -> None:
    """Write one tensor without a name."""
    if [item.name for item in content.items] != [""]:
        names = [item.name for item in content.items]
        raise EncodeError(f"a .npy file holds one tensor and no name, not {names[:5]}; choose one tensor, or .npz")
    refuse_metadata(content.metadata, "npy")
    with replaced(path, durable) as file:
        _write(file, content.items[0])


def write_npz(path: str, content: Content, durable: bool) -> None:
    """Write all tensors, uncompressed."""
    refuse_metadata(content.metadata, "npz")
    names = {item.name for item in content.items}
    for item in content.items:
        if "\0" in item.name or item.name.endswith("/"):
            raise EncodeError("not a name for a member of an archive", tensor=item.name, field="name")
        size = len(item.name.encode()) + len(".npy")
        if size > _MAX_NAME_BYTES:
            said = f"a member's name takes {size} bytes; at most {_MAX_NAME_BYTES} fit"
            raise EncodeError(said, tensor=item.name[:64], field="name", declared=size, limit=_MAX_NAME_BYTES)
        if f"{item.name}.npy" in names:
            said = f"numpy cannot tell this name from {item.name + '.npy'!r}, the name of another tensor"
            raise EncodeError(said, tensor=item.name, field="name")
    with replaced(path, durable) as file, zipfile.ZipFile(file, "w") as archive:
        for item in content.items:
            with archive.open(zipfile.ZipInfo(f"{item.name}.npy"), "w", force_zip64=True) as member:
                _write(member, item)


def _write(file: Any, item: Item) -> None:
    dtype = item.dtype.numpy_or_none
    if dtype is None or not dtype.isbuiltin == 1:
        raise EncodeError(f"npy has no type for {item.dtype.name}", tensor=item.name, field="dtype")
    refuse_metadata(item.metadata, "npy", item.name)
    descr = npy_format.dtype_to_descr(dtype.newbyteorder("<"))
    npy_format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": item.shape})
    for piece in pieces(item):
        for begin in range(0, len(piece), PIECE_BYTES):
            file.write(piece[begin : begin + PIECE_BYTES])
