"""Tensors whose payload has not been read, as `open` gives them where files are read and not mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..tensor import layout
from ..tensor.checksum import check_contents
from ..tensor.header import Header
from ..tensor.memory import unreserved
from ..tensor.tensor import Tensor, from_payload, is_foreign, select
from .storage import FetchedBytes

_NOT_READ = np.empty(0, np.uint8)  # stands for the elements, which the property `storage` replaces

_GAP_BYTES = 64 * 1024
"""Pieces closer than this are fetched as one: 64 KiB travel in the time that another fetch takes to begin."""

_MOST_PIECES = 4096
"""A selection of more pieces is fetched from its first byte to its last: each piece costs a call."""


class LazyTensor(Tensor):
    """A tensor that is read as a whole when its memory is first needed; a part of it by basic indexing only reads that.

    Memory:
        Keeps the file's descriptor open until it has been read.
    """

    __slots__ = ("_begin", "_source", "_stored", "_verify")

    def __init__(self, header: Header, source: FetchedBytes, begin: int, verify: bool) -> None:
        """Describe a tensor in a file.

        Args:
            header: Its header, with the checksum.
            source: The file's bytes.
            begin: Position of the payload, which is not empty.
            verify: Check the whole payload before any of it is used.
        """
        super().__init__(header, _NOT_READ)
        self._source: FetchedBytes | None = source
        self._begin = begin
        self._verify = verify
        self._stored: Tensor | None = None

    def load(self) -> Tensor:
        """Read the payload, unless that has been done.

        Raises:
            DecodeError: It does not match its checksum, or the file has become shorter.
        """
        source = self._source
        if self._stored is None and source is not None:
            header = self._header
            memory, begin = source.memory(self._begin, self._begin + header.payload_bytes)
            if self._verify:
                check_contents(header, header.checksum, memory.data)
            self._stored = from_payload(header, None, memory, begin)
            self._source = None  # in this order: another thread may be here too
        assert self._stored is not None
        return self._stored

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self._header, self.storage)

    @property
    def storage(self) -> np.ndarray[Any, Any]:
        """The elements, which are read first unless that has been done."""
        return self.load().storage

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between neighbours along each dimension, in elements; known without reading."""
        strides = self._header.strides
        return layout.row_major(self._header.shape) if strides is None else strides

    @property
    def flags(self) -> int:
        """DLPack's flags of the memory that will be read."""
        return self._header.flags

    def __getitem__(self, key: Any) -> Tensor:
        header = self._header
        source = self._source
        if source is None or self._verify or header.is_packed or is_foreign(header):
            return self.load()[key]
        itemsize = layout.compact_bytes(header.dtype, header.padded, 1)
        # Index a dummy array with the same strides; the resulting address and strides tell which bytes to fetch.
        nowhere = np.empty(1, f"V{itemsize}")
        strides = tuple(s * itemsize for s in self.strides)
        part = select(as_strided(nowhere, header.shape, strides), key)
        return self._with(self._fetch(source, part, part.ctypes.data - nowhere.ctypes.data), part.shape)

    def _fetch(self, source: FetchedBytes, part: np.ndarray[Any, Any], first: int) -> np.ndarray[Any, Any]:
        """Fetch the elements of `part`, whose first one lies at `first`, counted from element zero."""
        own = self._header.dtype.numpy_or_none
        element = own if own is not None and own.itemsize == part.itemsize else part.dtype
        if part.size == 0:
            return np.empty(part.shape, element)
        low, high = layout.span(part.shape, part.strides)
        size = high - low + part.itemsize
        memory = unreserved(size)
        origin = self._begin + self._header.byte_offset + first + low
        for begin, end in _pieces(part, -low, size):
            source.fetch(memory[begin:end], origin + begin)
        view: np.ndarray[Any, Any] = np.ndarray(part.shape, element, memory, -low, part.strides)
        # A copy gives back the pages between the elements, and is aligned for every consumer.
        return np.array(view, order="K")


def _pieces(part: np.ndarray[Any, Any], first: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges that have to be fetched of `size` bytes, in ascending order.

    Args:
        part: Shape and strides of the selected elements.
        first: Position of its element [0, ..., 0].
        size: Bytes from the lowest to the highest of them.
    """
    axes = sorted((abs(s), s, n) for s, n in zip(part.strides, part.shape, strict=True) if n > 1)
    run, low = part.itemsize, first
    starts = np.zeros(1, np.int64)
    for step, stride, n in axes:
        if stride < 0:
            low += stride * (n - 1)
        if step - run < _GAP_BYTES and len(starts) == 1:
            run = step * (n - 1) + run
        elif len(starts) * n > _MOST_PIECES:
            return [(0, size)]
        else:
            starts = (np.arange(n)[:, None] * step + starts).reshape(-1)
    return [(low + start, low + start + run) for start in starts.tolist()]
