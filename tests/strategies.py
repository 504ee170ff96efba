"""Hypothesis strategies: numpy arrays of every element type in every layout, and any bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]

_NATIVE = (
    *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)),
    *("f2", "f4", "f8", "c8", "c16", "?"),
)
_EXTENSIONS = (
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
    *("int1", "int2", "int4", "uint1", "uint2", "uint4", "complex32", "bcomplex32"),
)
SUB_BYTE_BITS = {name: int(name.removeprefix("u").removeprefix("int")) for name in _EXTENSIONS if "int" in name}
SUB_BYTE_BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6, "float4_e2m1fn": 4}

NATIVE_DTYPES = tuple(np.dtype(name) for name in _NATIVE)
SWAPPED_DTYPES = tuple(d.newbyteorder("S") for d in NATIVE_DTYPES if d.itemsize > 1)
EXTENSION_DTYPES = tuple(np.dtype(getattr(ml_dtypes, name)) for name in _EXTENSIONS if hasattr(ml_dtypes, name))
ALL_DTYPES = NATIVE_DTYPES + SWAPPED_DTYPES + EXTENSION_DTYPES

ORDERS = ("c", "fortran", "permuted", "sliced", "negative", "broadcast", "odd_size_1")


def any_bits(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> Array:
    """A C-ordered array of arbitrary bits that are legal for the type: NaN payloads, -0.0, infinities and all."""
    size = int(np.prod(shape, dtype=int))
    raw = np.frombuffer(np.random.default_rng(seed).bytes(size * dtype.itemsize), np.uint8).copy()
    if dtype.kind == "b":
        raw &= 1
    elif dtype.name in SUB_BYTE_BITS:
        raw &= (1 << SUB_BYTE_BITS[dtype.name]) - 1
    return raw.view(dtype).reshape(shape)


def lay_out(dtype: np.dtype[Any], shape: tuple[int, ...], order: str, seed: int = 0) -> Array:
    """An array of that type and shape that lies in memory in the way `order` names."""
    ndim = len(shape)
    if order == "fortran":
        return any_bits(dtype, shape[::-1], seed).transpose()
    if order == "permuted":  # channels-last and its like
        axes = (*range(1, ndim), 0)[:ndim]
        room = any_bits(dtype, tuple(shape[a] for a in axes), seed)
        return room.transpose(np.argsort(axes)) if ndim else room
    if order == "sliced":
        room = any_bits(dtype, tuple(2 * n + 1 for n in shape), seed)
        return room[(*(slice(1, 1 + 2 * n, 2) for n in shape), ...)]
    if order == "negative":
        return any_bits(dtype, shape, seed)[(*(slice(None, None, -1),) * ndim, ...)]
    if order == "broadcast" and ndim:
        return np.broadcast_to(any_bits(dtype, (1, *shape[1:]), seed), shape)
    array = any_bits(dtype, shape, seed)
    if order == "odd_size_1":
        strides = tuple(7 * dtype.itemsize if n == 1 else s for n, s in zip(shape, array.strides, strict=True))
        return np.ndarray(shape, dtype, array, 0, strides) if array.size else array
    return array


def shapes(max_ndim: int = 4, max_side: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of 0-d, empty and size-1 axes too."""
    return st.lists(st.integers(0, max_side), max_size=max_ndim).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, dtypes: tuple[np.dtype[Any], ...] = ALL_DTYPES) -> Array:
    """An array of any type, shape, layout and bits."""
    dtype = draw(st.sampled_from(dtypes))
    return lay_out(dtype, draw(shapes()), draw(st.sampled_from(ORDERS)), draw(st.integers(0, 2**16)))


def native(array: Array) -> Array:
    """The same values in this machine's byte order, bit for bit."""
    return array if array.dtype.isnative else array.byteswap().view(array.dtype.newbyteorder("="))


def logical_bytes(array: Array) -> bytes:
    """The elements' bytes in row-major order, in this machine's byte order."""
    return native(array).tobytes()
