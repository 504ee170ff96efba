"""Tensors whose payload has not been read, as `open` gives them where files are read and not mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..errors import DecodeError
from ..message.names import split_names
from ..tensor import layout
from ..tensor.checksum import BLOCK_BYTES, block_count, check_blocks, check_values, sums_in
from ..tensor.header import Header
from ..tensor.memory import Buffer, unreserved
from ..tensor.tensor import Tensor, from_payload, is_foreign, select
from .storage import FetchedBytes, Storage

_NOT_READ = np.empty(0, np.uint8)  # stands for the elements, which the property `storage` replaces

_GAP_BYTES = 64 * 1024
"""Pieces closer than this are fetched as one: 64 KiB travel in the time that another fetch takes to begin."""

_MOST_PIECES = 4096
"""Above this many pieces the whole span is fetched at once, because each piece costs a call."""


class LazyTensor(Tensor):
    """A tensor whose payload is read as a whole when its memory is first needed; basic indexing reads only the part.

    Memory:
        Keeps the file's descriptor or mapping open until it has been read.
    """

    __slots__ = ("_begin", "_checked", "_read", "_source", "_sums", "_where")

    def __init__(
        self,
        header: Header,
        source: Storage,
        begin: int,
        sums: bytes,
        checked: set[int] | None,
        where: tuple[str, bytes] = ("", b""),
    ) -> None:
        """Describe a tensor in a file.

        Args:
            header: Its header, with the checksum.
            source: The file's bytes.
            begin: Position of the payload, which is not empty.
            sums: Sums of the payload's blocks, 8 bytes each, which have been held against the checksum.
            checked: Numbers of the blocks that need no check any more; None: nothing is checked.
            where: The file's path and the tensor's names block, for errors.
        """
        super().__init__(header, _NOT_READ)
        self._source: Storage | None = source
        self._begin = begin
        self._sums = sums
        self._checked = checked
        self._where = where
        self._read: Tensor | None = None

    def load(self) -> Tensor:
        """Read the payload, unless that has been done.

        Raises:
            DecodeError: The payload does not match its checksum, or the file has become shorter.
        """
        source = self._source
        if self._read is None and source is not None:
            header = self._header
            size = header.payload_bytes
            with self._named_errors():
                memory, begin = source.memory(self._begin, self._begin + size)
                self._check(memoryview(memory)[begin : begin + size], 0, size)
            self._read = from_payload(header, None, memory, begin)
            self._source = None  # in this order: another thread may be here too
        assert self._read is not None
        return self._read

    def _shown(self) -> str:
        """Return what `repr` shows of the elements, which are not read for it."""
        return "" if self._read is None else super()._shown()

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
        if source is None or header.is_packed or is_foreign(header):
            return self.load()[key]
        itemsize = layout.compact_bytes(header.dtype, header.padded, 1)
        # Index a dummy array with the same strides; the resulting address and strides tell which bytes to fetch.
        nowhere = np.empty(1, f"V{itemsize}")
        strides = tuple(s * itemsize for s in self.strides)
        part = select(as_strided(nowhere, header.shape, strides), key)
        first = header.byte_offset + part.ctypes.data - nowhere.ctypes.data
        with self._named_errors():
            if isinstance(source, FetchedBytes):
                return self._with(self._fetch(source, part, first), part.shape)
            memory, begin = source.memory(self._begin, self._begin + header.payload_bytes)
            if part.size:
                payload = memoryview(memory)[begin : begin + header.payload_bytes]
                low, high = layout.span(part.shape, part.strides)
                for start, end in _pieces(part, -low, high - low + itemsize):
                    self._check(payload, first + low + start, first + low + end)
        return from_payload(header, None, memory, begin)[key]

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except DecodeError as error:
            path, names = self._where
            error.at(path=path or None, tensor=split_names(names)[0][0] if names else None)
            raise

    def _check(self, payload: memoryview, begin: int, end: int) -> None:
        """Check the blocks of a payload in memory that [begin, end) touches, each once; none if `checked` was None."""
        if self._checked is None:
            return
        numbers = [n for n in range(begin // BLOCK_BYTES, block_count(end)) if n not in self._checked]
        for first, last in _runs(numbers):
            blocks = payload[first * BLOCK_BYTES : (last + 1) * BLOCK_BYTES]
            self._compare(first * BLOCK_BYTES, blocks)
        self._checked.update(numbers)

    def _compare(self, begin: int, blocks: Buffer) -> None:
        """Compare whole blocks, which begin there, with their sums, and check their values."""
        count = block_count(self._header.payload_bytes)
        check_blocks(sums_in(self._sums, begin, len(blocks)), begin // BLOCK_BYTES, count, blocks)
        check_values(self._header, begin, blocks)

    def _fetch(self, source: FetchedBytes, part: np.ndarray[Any, Any], first: int) -> np.ndarray[Any, Any]:
        """Fetch the elements of `part`, whose first one lies at `first` of the payload."""
        own = self._header.dtype.numpy_or_none
        element = own if own is not None and own.itemsize == part.itemsize else part.dtype
        if part.size == 0:
            return np.empty(part.shape, element)
        low, high = layout.span(part.shape, part.strides)
        size = high - low + part.itemsize
        origin = first + low
        ranges = [(origin + begin, origin + end) for begin, end in _pieces(part, -low, size)]
        if self._checked is not None:
            ranges = _whole_blocks(ranges, self._header.payload_bytes)
        # Pages exist only where something is fetched to, so the gaps between ranges cost nothing.
        base = ranges[0][0]
        memory = unreserved(max(ranges[-1][1], origin + size) - base)
        for begin, end in ranges:
            into = memory[begin - base : end - base]
            source.fetch(into, self._begin + begin)
            if self._checked is not None:
                self._compare(begin, into)
        view: np.ndarray[Any, Any] = np.ndarray(part.shape, element, memory, first - base, part.strides)
        # A copy gives back the pages between the elements, and is aligned for every consumer.
        return np.array(view, order="K")


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of the runs of consecutive numbers."""
    at = 0
    while at < len(numbers):
        last = at
        while last + 1 < len(numbers) and numbers[last + 1] == numbers[last] + 1:
            last += 1
        yield numbers[at], numbers[last]
        at = last + 1


def _whole_blocks(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the whole blocks of a payload of `size` bytes that ranges in ascending order touch, neighbours joined."""
    whole: list[tuple[int, int]] = []
    for begin, end in ranges:
        begin = begin // BLOCK_BYTES * BLOCK_BYTES
        end = min(block_count(end) * BLOCK_BYTES, size)
        if whole and begin <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(end, whole[-1][1])
        else:
            whole.append((begin, end))
    return whole


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
