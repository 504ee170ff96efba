"""A tensor about to be written: its header, and its payload in contiguous pieces."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal

import numpy as np

from ..errors import EncodeError
from . import layout
from .capsule import Borrowed, Plain, borrow
from .checksum import BLOCK_BYTES, Summing, block_sums, spare_bits, total
from .device import CPU
from .dtype import BOOL, byte_order_of, carrier, from_numpy
from .header import Header
from .memo import Memo
from .subbyte import mask, pack
from .tensor import Tensor

Layout = Literal["keep", "compact"]


class Source:
    """A tensor as it will be on the wire. Holds the producer's memory until `close`.

    Attributes:
        header: Its header, without a checksum.
    """

    __slots__ = ("_borrowed", "_flat", "_gather", "header")

    def __init__(self, x: Any, layout: Layout = "keep", provenance: bool = False) -> None:
        """Borrow `x` and decide how it is written.

        Args:
            x: Any producer that `capsule.borrow` knows, or a `Tensor`.
            layout: "keep" memory that is dense under some order of the axes, or write "compact" row-major always.
            provenance: Record the producer's DLPack version.

        Raises:
            EncodeError: The layout is neither of the two.
            Exception: Any error of `capsule.borrow`.
        """
        if layout not in ("keep", "compact"):
            raise EncodeError(f"must be 'keep' or 'compact', not {layout!r}", field="layout")
        self._borrowed = _borrow_tensor(x) if isinstance(x, Tensor) else borrow(x)
        # Exactly one of the two is set: payload bytes that lie contiguous in memory, or elements to gather.
        self._flat: np.ndarray[Any, Any] | None = None
        self._gather: np.ndarray[Any, Any] | None = None
        try:
            self._choose_layout(layout == "keep", provenance)
        except BaseException:
            self.close()
            raise

    def _choose_layout(self, keep: bool, provenance: bool) -> None:
        """Decide which bytes are written, and make the header for them."""
        b = self._borrowed
        array, dtype, shape, padded = b.array, b.dtype, b.shape, b.padded
        strides: tuple[int, ...] | None = None
        size = layout.check_layout(dtype, shape, padded=padded, error=EncodeError)
        version = b.version if provenance else None
        if dtype.element_bits % 8 and not padded and array.dtype == dtype.numpy_or_none:
            array = pack(array, dtype.bits)  # ml_dtypes keeps one element per byte
        elif size and not layout.is_packed(dtype, padded) and not array.flags.c_contiguous:
            order = _dense_order(array, shape) if keep else None
            if order is not None:
                itemsize = array.itemsize
                strides = layout.canonical_strides(shape, tuple(s // itemsize for s in array.strides))
                array = array.transpose(order)
        self.header = Header(dtype, shape, size, b.byte_order, b.device, strides, padded=padded, version=version)
        if dtype.code == BOOL or dtype.bits < 8:
            array = self._canonical_bits(array)
        if array.flags.c_contiguous:
            self._flat = array.reshape(-1).view(np.uint8) if size else np.empty(0, np.uint8)
        else:
            self._gather = array.getfield(carrier(array.itemsize))

    def _canonical_bits(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elements with no bits set but those of their values; copied only if others were set."""
        header = self.header
        if header.payload_bytes == 0:
            return array
        if header.is_packed:
            spare = spare_bits(header)
            if spare and array[-1] >> (8 - spare):
                array = array.copy()
                array[-1] &= 0xFF >> spare
        elif header.dtype.code == BOOL:
            values = array.getfield(np.uint8) if array.itemsize == 1 else np.ascontiguousarray(array).view(np.uint8)
            if values.max() > 1:
                array = (values != 0).view(np.uint8)
        elif header.padded:
            values = array.getfield(np.uint8)
            if values.max() > mask(header.dtype.bits):
                array = values & np.uint8(mask(header.dtype.bits))
        return array

    @property
    def lasting(self) -> bool:
        """True if pieces stay valid indefinitely, also after `close`; False if only until the next one is requested."""
        return self._flat is not None and self._borrowed.lasting

    def buffer(self) -> memoryview | None:
        """Return the whole payload where it lies, or None if it has to be gathered."""
        return self._flat.data if self._flat is not None else None

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the payload in order, in contiguous pieces of at most `size` bytes (at least one element).

        A piece is valid until the next one is requested, unless `lasting` is True.
        """
        if self._flat is not None:
            flat = self._flat.data
            for begin in range(0, len(flat), size):
                yield flat[begin : begin + size]
            return
        array = self._gather
        assert array is not None
        elements = max(size // array.itemsize, 1)
        flags: Any = ["external_loop", "buffered", "zerosize_ok"]
        for piece in np.nditer(array, flags, order="C", buffersize=elements):
            block: Any = piece
            for begin in range(0, block.size, elements):
                part = np.ascontiguousarray(block[begin : begin + elements])
                yield part.view(np.uint8).data

    def block_sums(self) -> bytes:
        """Return the sums of the payload's blocks, 8 bytes each."""
        if self._flat is not None:
            return block_sums(self._flat.data)
        summing = Summing()
        for piece in self.pieces(BLOCK_BYTES):
            summing.update(piece)
        return summing.finish()

    def checksum(self) -> int:
        """Return the sum of the payload."""
        return total(self.block_sums())

    def close(self) -> None:
        """Let go of the producer's memory."""
        self._flat = self._gather = None
        self._borrowed.release()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


PLAIN_ARRAYS: Memo[tuple[Any, ...], Plain] = Memo(4096)  # shapes in use in one program, with much to spare
"""Facts about plain arrays, by (dtype, shape, strides)."""


def plain_array(x: np.ndarray[Any, Any]) -> Plain | None:
    """Return the facts about a plain array, at once if another one was like it; None if it takes a `Source`.

    Args:
        x: An array, of no subclass.
    """
    key = (x.dtype, x.shape, x.strides)
    found = PLAIN_ARRAYS.get(key)
    if found is None:
        dtype = from_numpy(x.dtype)
        if not dtype.any_bytes or not x.flags.c_contiguous or not x.size:
            return None
        header = Header.plain(dtype, x.shape, byte_order_of(x.dtype), CPU)
        found = PLAIN_ARRAYS.keep(key, Plain(header, carrier(x.itemsize) if x.dtype.kind in "VW" else None))
    return found


def _borrow_tensor(t: Tensor) -> Borrowed:
    """Borrow one of our own tensors; its byte order is foreign only if its code is unknown."""
    return Borrowed(t.storage, t.dtype, t.shape, t.byte_order, CPU, t.header.padded)


def _dense_order(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> list[int] | None:
    """Return the order of axes in which the elements are contiguous, or None if they are not in any order."""
    itemsize = array.itemsize
    strides = array.strides
    if any(s % itemsize for s in strides):
        return None
    if not layout.is_dense(shape, tuple(s // itemsize for s in strides)):
        return None
    return sorted(range(len(shape)), key=lambda axis: -strides[axis] if shape[axis] > 1 else 0)
