"""The element types: one table of names, DLPack codes, widths and numpy types.

Source of codes and widths: DLPack 1.3 (`DLDataTypeCode` in dlpack.h) and the values added to its main branch since.
Names are those of DLPack and ml_dtypes.
"""

from __future__ import annotations

import operator
import re
from enum import IntEnum
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np

from ..errors import DecodeError, EncodeError, UnsupportedTensorError, WireError


class ByteOrder(IntEnum):
    """Order of the bytes in each part of an element; the numbers of the message's `byte_order`."""

    UNSPECIFIED = 0
    LITTLE = 1
    BIG = 2

    # Enum's own hashes the name in Python, on every look-up of a header.
    __hash__ = int.__hash__


NATIVE = ByteOrder.LITTLE if np.little_endian else ByteOrder.BIG
"""Byte order of this machine."""

INT, UINT, FLOAT, OPAQUE_HANDLE, BFLOAT, COMPLEX, BOOL = range(7)
FLOAT8_E3M4, FLOAT8_E4M3, FLOAT8_E4M3B11FNUZ, FLOAT8_E4M3FN = range(7, 11)
FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ, FLOAT8_E8M0FNU = range(11, 15)
FLOAT6_E2M3FN, FLOAT6_E3M2FN, FLOAT4_E2M1FN, BCOMPLEX = range(15, 19)


class _Row(NamedTuple):
    name: str
    code: int
    bits: int


_TABLE = (
    *(_Row(f"int{b}", INT, b) for b in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    *(_Row(f"uint{b}", UINT, b) for b in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    *(_Row(f"float{b}", FLOAT, b) for b in (16, 32, 64)),
    _Row("bfloat16", BFLOAT, 16),
    *(_Row(f"complex{b}", COMPLEX, b) for b in (32, 64, 128)),
    _Row("bool", BOOL, 8),
    _Row("float8_e3m4", FLOAT8_E3M4, 8),
    _Row("float8_e4m3", FLOAT8_E4M3, 8),
    _Row("float8_e4m3b11fnuz", FLOAT8_E4M3B11FNUZ, 8),
    _Row("float8_e4m3fn", FLOAT8_E4M3FN, 8),
    _Row("float8_e4m3fnuz", FLOAT8_E4M3FNUZ, 8),
    _Row("float8_e5m2", FLOAT8_E5M2, 8),
    _Row("float8_e5m2fnuz", FLOAT8_E5M2FNUZ, 8),
    _Row("float8_e8m0fnu", FLOAT8_E8M0FNU, 8),
    _Row("float6_e2m3fn", FLOAT6_E2M3FN, 6),
    _Row("float6_e3m2fn", FLOAT6_E3M2FN, 6),
    _Row("float4_e2m1fn", FLOAT4_E2M1FN, 4),
    _Row("bcomplex32", BCOMPLEX, 32),
)

WIDTHS: dict[int, tuple[int, ...]] = {}
"""Legal widths in bits of every known code."""
for _row in _TABLE:
    WIDTHS[_row.code] = (*WIDTHS.get(_row.code, ()), _row.bits)

_NAME_OF = {(row.code, row.bits): row.name for row in _TABLE}
_BY_NAME = {row.name: row for row in _TABLE}
_NUMPY_NAMES = {f"{kind}{b}" for kind in ("int", "uint") for b in (8, 16, 32, 64)}
_NUMPY_NAMES |= {"float16", "float32", "float64", "complex64", "complex128", "bool"}

# "code200_16bitx4": a code that this version does not know, its bits, and its lanes if there are several.
_OPAQUE_NAME = re.compile(r"code([0-9]{1,10})_([0-9]{1,10})bit(?:x([0-9]{1,10}))?")
# "float32x4": a name of the table, which ends with a digit, a letter or is "bool", then the lanes.
_LANED_NAME = re.compile(r"(.+?[0-9]|bool|.+[a-z])x([0-9]{1,10})")


CARRIERS: dict[int, np.dtype[Any]] = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


def carrier(itemsize: int) -> np.dtype[Any]:
    """Return a numpy dtype that moves elements of that many bytes without looking at them."""
    found = CARRIERS.get(itemsize)
    return found if found is not None else np.dtype((np.void, itemsize))


def fault(code: int, bits: int, lanes: int) -> str | None:
    """Return the reason why (code, bits, lanes) is not an element type, or None if it is one."""
    said = f"(code {code}, bits {bits}, lanes {lanes})"
    if code < 0:
        return f"{said}: negative code"
    if code == OPAQUE_HANDLE:
        return f"{said}: an opaque handle is a pointer and means nothing outside its process"
    if bits < 1:
        return f"{said}: bits must be at least 1"
    if lanes < 1:
        return f"{said}: lanes must be at least 1"
    if bits >= 8 and bits % 8:
        return f"{said}: bits must be below 8 or a multiple of 8"
    widths = WIDTHS.get(code)
    if widths is not None and bits not in widths:
        return f"{said}: code {code} has {' or '.join(map(str, widths))} bits"
    return None


class DType:
    """An element type: `lanes` numbers of `bits` bits of the kind `code`. Immutable; one object per value.

    `DType("bfloat16")`, `DType("float32x4")` (4 lanes), `DType(code, bits, lanes)`, `DType(np.dtype)` and
    `DType(DType)` all name one. Codes that DLPack does not define yet are opaque: `DType("code200_16bit")`.

    Attributes:
        code: DLPack's `DLDataTypeCode`.
        bits: Width of one lane in bits.
        lanes: Numbers per element.
        name: Canonical name.
        known: True if this version knows the code.
        element_bits: Width of one element in bits.
        part_bytes: Width in bytes of the parts that a byte swap reverses: lanes, or halves of complex numbers; 1 if
            no part is wider than a byte.
        numpy_or_none: The numpy dtype, or None if numpy has no such type.
        plain_numpy: The numpy dtype, if a payload in this machine's order can be viewed through it at any address and
            without checking its bytes; else None.
        any_bytes: True if every bit pattern of an element is a value, so that payloads need no check.
        alignment: Bytes that memory of this type is aligned to when handed out: one lane, at most 16.

    Raises:
        EncodeError: The name or the numbers are not those of an element type.
        UnsupportedTensorError: DLPack has no counterpart of the numpy dtype.
        TypeError: The argument is neither a name, nor integers, nor a dtype.
    """

    __slots__ = (
        "__weakref__",
        "alignment",
        "any_bytes",
        "bits",
        "code",
        "element_bits",
        "known",
        "lanes",
        "name",
        "numpy_or_none",
        "part_bytes",
        "plain_numpy",
    )

    code: int
    bits: int
    lanes: int
    name: str
    known: bool
    element_bits: int
    part_bytes: int
    alignment: int
    any_bytes: bool
    plain_numpy: np.dtype[Any] | None
    numpy_or_none: np.dtype[Any] | None

    def __new__(cls, what: DType | str | int | np.dtype[Any] | type, bits: int | None = None, lanes: int = 1) -> DType:
        """Look the element type up, or make it."""
        if isinstance(what, DType):
            return what
        if bits is not None:
            code = operator.index(what)  # type: ignore[arg-type]
            bits, lanes = operator.index(bits), operator.index(lanes)
        elif isinstance(what, str):
            code, bits, lanes = _parse(what)
        else:
            return from_numpy(np.dtype(what))  # type: ignore[arg-type]
        return _look_up(code, bits, lanes, EncodeError)

    def __eq__(self, other: object) -> bool:
        """Return True for what names this type: itself, its name, or its numpy or torch dtype.

        The hash is that of this object alone. To look others up in a set or a dict, make a `DType` of them first.
        """
        if self is other:  # every value is interned for as long as somebody holds it
            return True
        if isinstance(other, str):
            return self.name == other
        if isinstance(other, (np.dtype, type)):
            try:
                return _FROM_NUMPY.get(np.dtype(other)) is self
            except TypeError:
                return False
        if type(other).__module__ == "torch" and type(other).__name__ == "dtype":
            return f"torch.{self.name}" == str(other)
        return NotImplemented

    __hash__ = object.__hash__

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a DType is immutable: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (self.code, self.bits, self.lanes)

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __str__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element; elements that do not fill whole bytes count as one byte."""
        return max(self.element_bits // 8, 1)

    @property
    def element(self) -> np.dtype[Any]:
        """The numpy dtype, or a carrier of the same size where numpy has no such type."""
        return self.numpy_or_none if self.numpy_or_none is not None else carrier(self.itemsize)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype, in native byte order; of ml_dtypes where numpy itself has none.

        Raises:
            UnsupportedTensorError: numpy has no such type.
        """
        if self.numpy_or_none is None:
            if not self.known:
                remedy = "this version does not know the code; read the bytes from `.payload`"
            elif self.lanes > 1:
                remedy = "numpy has no lanes; view the bytes in `.payload` with a last axis of size lanes"
            else:
                remedy = f"ml_dtypes {ml_dtypes.__version__} has none either; a newer one may, or read `.payload`"
            raise UnsupportedTensorError(
                f"numpy has no type for {self.name} (code {self.code}, bits {self.bits}, lanes {self.lanes}): {remedy}",
                field="dtype",
            )
        return self.numpy_or_none


def _parse(name: str) -> tuple[int, int, int]:
    row = _BY_NAME.get(name)
    if row is not None:
        return row.code, row.bits, 1
    opaque = _OPAQUE_NAME.fullmatch(name)
    if opaque is not None:
        return int(opaque[1]), int(opaque[2]), int(opaque[3] or 1)
    laned = _LANED_NAME.fullmatch(name)
    row = _BY_NAME.get(laned[1]) if laned is not None else None
    if laned is None or row is None:
        raise EncodeError(f"unknown dtype {name[:64]!r}", field="dtype")
    return row.code, row.bits, int(laned[2])


def _make(code: int, bits: int, lanes: int) -> DType:
    base = _NAME_OF.get((code, bits))
    name = base if base is not None else f"code{code}_{bits}bit"
    if lanes > 1:
        name = f"{name}x{lanes}"
    numpy: np.dtype[Any] | None = None
    if base in _NUMPY_NAMES and lanes == 1:
        numpy = np.dtype(base)
    elif lanes == 1 and base is not None and hasattr(ml_dtypes, base):
        numpy = np.dtype(getattr(ml_dtypes, base))
    halves = 2 if code in (COMPLEX, BCOMPLEX) else 1
    self = object.__new__(DType)
    put = object.__setattr__
    put(self, "code", code)
    put(self, "bits", bits)
    put(self, "lanes", lanes)
    put(self, "name", name)
    put(self, "known", base is not None)
    put(self, "element_bits", bits * lanes)
    put(self, "part_bytes", max(bits // 8 // halves, 1))
    # A power of two even for lanes of odd width, which only codes not invented yet could have.
    lane_bytes = max(bits // 8, 1)
    put(self, "alignment", min(lane_bytes & -lane_bytes, 16))
    put(self, "any_bytes", bits >= 8 and code != BOOL)
    plain = self.any_bytes and numpy is not None and numpy.alignment >= self.alignment
    put(self, "plain_numpy", numpy if plain else None)
    put(self, "numpy_or_none", numpy)
    return _INTERNED.setdefault((code, bits, lanes), self)


def _look_up(code: int, bits: int, lanes: int, error: type[WireError]) -> DType:
    found = _FROM_TABLE.get((code, bits, lanes)) or _INTERNED.get((code, bits, lanes))
    if found is None:
        wrong = fault(code, bits, lanes)
        if wrong is not None:
            raise error(wrong, field="dtype")
        found = _make(code, int(bits), int(lanes))
    return found


# Weak, because hostile input may name billions of opaque types. The table's own are held by _FROM_TABLE.
_INTERNED: WeakValueDictionary[tuple[int, int, int], DType] = WeakValueDictionary()
_FROM_TABLE: dict[tuple[int, int, int], DType] = {}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {}
for _row in _TABLE:
    _dtype = _make(_row.code, _row.bits, 1)
    _FROM_TABLE[_row.code, _row.bits, 1] = _dtype
    if _dtype.numpy_or_none is not None:
        _FROM_NUMPY[_dtype.numpy_or_none] = _dtype


def from_wire(code: int, bits: int, lanes: int) -> DType:
    """Return the element type that a message states.

    Raises:
        DecodeError: The numbers are not those of an element type.
    """
    return _look_up(code, bits, lanes, DecodeError)


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """Return the element type of a numpy dtype of either byte order.

    Raises:
        UnsupportedTensorError: DLPack has no counterpart of the dtype.
    """
    found = _FROM_NUMPY.get(dtype)
    if found is None and not dtype.isnative and str(dtype.kind) != "W":
        found = _FROM_NUMPY.get(dtype.newbyteorder("="))
    if found is None:
        remedy = "convert it to a numeric dtype first"
        if dtype.kind in "mM":
            remedy = "store `x.view('int64')` and keep the unit in the metadata"
        elif dtype.kind in "fc":
            remedy = "convert with `astype('float64')` or `astype('complex128')`, if losing precision is right"
        elif dtype.names is not None:
            remedy = "store its fields one by one"
        elif dtype.kind == "V":
            remedy = "view it as the numbers that it holds"
        elif str(dtype.kind) == "W":
            # ml_dtypes before 0.7 swaps all bytes of a half-precision complex number, and so its halves too.
            remedy = "convert it to this machine's byte order first"
        raise UnsupportedTensorError(f"DLPack has no type for numpy's {dtype!r}: {remedy}", field="dtype")
    return found


def table() -> tuple[DType, ...]:
    """Return every known element type with one lane, by code and width."""
    return tuple(_FROM_TABLE.values())


def byte_order_of(dtype: np.dtype[Any]) -> ByteOrder:
    """Return the byte order of a numpy dtype's memory; unspecified where no part is wider than a byte."""
    if dtype.itemsize == 1:
        return ByteOrder.UNSPECIFIED
    return NATIVE if dtype.isnative else ByteOrder(3 - NATIVE)
