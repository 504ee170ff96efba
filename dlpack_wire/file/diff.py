"""Differences between two tensor files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..file import open as open_file
from ..message.names import Value
from ..tensor.tensor import Tensor
from .reader import FileReader

_PASS_ELEMENTS = 1 << 20
"""Elements compared at once: comparing takes a byte of memory for each of their bytes."""


class Difference(NamedTuple):
    """One difference.

    Attributes:
        name: Name of the tensor; None for the file's metadata.
        kind: "only in first", "only in second", "dtype", "shape", "values" or "metadata".
        detail: The values in both files, for people.
    """

    name: str | None
    kind: str
    detail: str


def diff(first: Any, second: Any) -> Iterator[Difference]:
    """Yield the differences between two tensor files: names in the order of the first, then those only in the second.

    Tensors are compared by their values, not by their layout: order of axes in memory, byte order, padding, device and
    the order of names make no difference, but every bit of an element does (NaN equals itself, -0.0 is not 0.0).

    Args:
        first: Path or URL.
        second: Path or URL.

    Raises:
        DecodeError: A file is not a tensor file, or is damaged where it has to be read.
        UnsupportedTensorError: Packed elements of a type that numpy lacks have to be compared.
        OSError: A file cannot be read.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.

    Memory:
        Payloads are only read where their checksums or layouts differ.
    """
    with open_file(first) as a, open_file(second) as b:
        yield from _metadata(None, a.metadata, b.metadata)
        for name in a:
            if name not in b:
                yield Difference(name, "only in first", _described(a, name))
            else:
                yield from _tensors(name, a, b)
        for name in b:
            if name not in a:
                yield Difference(name, "only in second", _described(b, name))


def _described(f: FileReader, name: str) -> str:
    header = f.header(name)
    return f"{header.dtype.name}{list(header.shape)}"


def _metadata(name: str | None, a: dict[str, Value], b: dict[str, Value]) -> Iterator[Difference]:
    for key in dict.fromkeys((*a, *b)):
        # A float may be NaN, and True is not 1 here.
        if repr(a.get(key)) != repr(b.get(key)):
            yield Difference(name, "metadata", f"{key!r}: {a.get(key)!r} and {b.get(key)!r}")


def _tensors(name: str, a: FileReader, b: FileReader) -> Iterator[Difference]:
    ours, theirs = a.header(name), b.header(name)
    yield from _metadata(name, a.metadata_of(name), b.metadata_of(name))
    if ours.dtype != theirs.dtype:
        yield Difference(name, "dtype", f"{ours.dtype.name} and {theirs.dtype.name}")
    elif ours.shape != theirs.shape:
        yield Difference(name, "shape", f"{list(ours.shape)} and {list(theirs.shape)}")
    elif ours._replace(device=None, version=None) != theirs._replace(device=None, version=None):
        count, where = _count_different(a[name], b[name])
        if count:
            yield Difference(name, "values", f"{count} of {a[name].size} elements, the first at {where}")


def _count_different(a: Tensor, b: Tensor) -> tuple[int, list[int]]:
    """Count the elements that differ; return the count and the index of the first."""
    rows = [_elements(t) for t in (a, b)]
    count, first = 0, -1
    for begin in range(0, len(rows[0]), _PASS_ELEMENTS):
        part = slice(begin, begin + _PASS_ELEMENTS)
        different = (rows[0][part] != rows[1][part]).any(axis=1)
        if first < 0 and different.any():
            first = begin + int(np.argmax(different))
        count += int(np.count_nonzero(different))
    return count, [int(i) for i in np.unravel_index(max(first, 0), a.shape or (1,))][: a.ndim]


def _elements(t: Tensor) -> np.ndarray[Any, Any]:
    """Return a row of bytes for every element, in row-major order."""
    array = t.numpy() if t.header.is_packed else np.frombuffer(t.payload, np.uint8)
    return np.ascontiguousarray(array).view(np.uint8).reshape(t.size, -1)
