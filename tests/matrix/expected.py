"""What is sent: element types, layouts, and arrays of arbitrary bits, made without the library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np

import dlpack_wire as dw
from dlpack_wire.tensor.dtype import table

Array = np.ndarray[Any, Any]

NO_TYPE = "has no such type"
NO_PADDING = "cannot say that elements fill a byte each"


class Cannot(Exception):
    """A framework has no way to say this; the message completes the sentence "<framework> ..."."""


@dataclass(frozen=True)
class Kind:
    """An element type and, below 8 bits, whether elements share bytes or fill one each."""

    dtype: dw.DType
    padded: bool = False

    @property
    def name(self) -> str:
        return f"{self.dtype.name} padded" if self.padded else self.dtype.name

    @property
    def is_packed(self) -> bool:
        return self.dtype.element_bits % 8 != 0 and not self.padded

    @property
    def cell_bytes(self) -> int:
        """Bytes that an element fills here; lanes of a packed one fill a byte each."""
        return self.dtype.element_bits // 8 if self.dtype.element_bits % 8 == 0 else self.dtype.lanes

    @property
    def numpy(self) -> np.dtype[Any]:
        """numpy's type of this name, or that of ml_dtypes."""
        if self.padded:
            raise Cannot(NO_PADDING)
        name = self.dtype.name
        extension = getattr(ml_dtypes, name, None)
        try:
            return np.dtype(name) if extension is None else np.dtype(extension)
        except TypeError:
            raise Cannot(NO_TYPE) from None


_LANED = ("boolx2", "int8x3", "uint16x4", "float32x2", "float32x4", "bfloat16x2", "complex64x2")
_LANED_SUB_BYTE = ("int4x2", "uint1x8", "int4x3", "float4_e2m1fnx2")
_OPAQUE = ("code77_5bit", "code200_8bit", "code200_16bit", "code255_24bit", "code200_16bitx2")

KINDS = (
    *(Kind(d) for d in table()),
    *(Kind(d, padded=True) for d in table() if d.bits < 8),
    *(Kind(dw.DType(name)) for name in (*_LANED, *_LANED_SUB_BYTE, *_OPAQUE)),
)


@dataclass(frozen=True)
class Layout:
    """How the elements lie: strides and offset in elements, in a room of that many elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    room: int = 0

    @property
    def is_row_major(self) -> bool:
        return is_row_major(self.shape, self.strides)


# 45 elements: no sub-byte width fills whole bytes with them.
LAYOUTS = (
    Layout("row-major", (3, 3, 5), (15, 5, 1), 0, 45),
    Layout("row-major at an offset", (3, 3, 5), (15, 5, 1), 7, 60),
    Layout("Fortran", (3, 3, 5), (1, 3, 9), 0, 45),
    Layout("channels-last", (3, 3, 5), (1, 15, 3), 0, 45),
    Layout("stepped", (3, 3, 5), (30, 10, 2), 1, 90),
    Layout("negative", (3, 3, 5), (-15, 5, -1), 34, 45),
    Layout("broadcast", (3, 3, 5), (0, 5, 1), 0, 15),
    Layout("size-1 axes", (1, 3, 1, 5), (7, 5, 99, 1), 0, 15),
    Layout("0-d", (), (), 0, 1),
    Layout("empty", (3, 0, 5), (5, 5, 1), 0, 0),
)


class Expected:
    """A tensor that has to arrive.

    Attributes:
        room: The memory, one cell per element: arbitrary bits that are legal for the type.
    """

    def __init__(self, kind: Kind, layout: Layout) -> None:
        self.kind = kind
        self.layout = layout
        seed = crc32(f"{kind.name} {layout.name}".encode())
        self.room = np.random.default_rng(seed).integers(0, 256, layout.room * kind.cell_bytes, np.uint8)
        if kind.dtype.name.startswith("bool"):
            self.room &= 1
        elif kind.dtype.bits < 8 and kind.cell_bytes == kind.dtype.lanes:
            self.room &= (1 << kind.dtype.bits) - 1

    def view(self, element: np.dtype[Any]) -> Array:
        """The elements where they lie, as numpy sees them."""
        size = element.itemsize
        strides = tuple(s * size for s in self.layout.strides)
        view: Array = np.ndarray(self.layout.shape, element, self.room, self.layout.offset * size, strides)
        return view

    def array(self) -> Array:
        """The tensor as a numpy array, if numpy has the type."""
        return self.view(self.kind.numpy)

    @cached_property
    def elements(self) -> bytes:
        """All elements in row-major order, one cell each."""
        return self.view(np.dtype((np.void, self.kind.cell_bytes))).tobytes()

    @cached_property
    def packed(self) -> bytes:
        """All elements in row-major order without gaps: as they lie in memory where elements share bytes."""
        return pack(self.elements, self.kind.dtype.bits) if self.kind.is_packed else self.elements


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other in row-major order."""
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != step and 0 not in shape:
            return False
        step *= n
    return True


def pack(values: bytes, bits: int) -> bytes:
    """Small numbers without gaps, the first one in the lowest bits of the first byte."""
    number = sum(value << i * bits for i, value in enumerate(values))
    return number.to_bytes((len(values) * bits + 7) // 8, "little")


def unpack(packed: bytes, bits: int, count: int) -> bytes:
    """The first `count` numbers that `pack` packed."""
    number = int.from_bytes(packed, "little")
    return bytes(number >> i * bits & ((1 << bits) - 1) for i in range(count))


def cells(kind: Kind, shape: tuple[int, ...], row_major: bytes) -> bytes:
    """Elements as `Expected.elements` has them, from row-major bytes as the wire has them."""
    if kind.is_packed:
        return unpack(row_major, kind.dtype.bits, prod(shape) * kind.dtype.lanes)
    return row_major
