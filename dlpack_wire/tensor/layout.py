"""The layout of a tensor: sizes, strides, and every rule that ties them to the payload.

All arithmetic is on Python's unbounded integers, so nothing can wrap, and nothing here allocates memory in
proportion to what an input claims. Strides count elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..errors import DecodeError, WireError
from .dtype import DType

MAX_NDIM = 64
"""Maximum number of dimensions of a tensor: numpy's limit, and more than any framework uses."""

MAX_ELEMENT_BYTES = 2**31 - 1
"""Widest element, and the most lanes: one that fills a message, and the most that numpy can hold. A lane of a few bits
takes a byte once it is unpacked."""

FLAG_READ_ONLY = 1
FLAG_IS_COPIED = 2
FLAG_SUBBYTE_PADDED = 4

_TOO_LARGE = 1 << 63


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a compact row-major tensor."""
    strides = [1] * len(shape)
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def is_packed(dtype: DType, padded: bool) -> bool:
    """Return True if elements share bytes with their neighbours."""
    return dtype.element_bits % 8 != 0 and not padded


def compact_bytes(dtype: DType, padded: bool, count: int) -> int:
    """Return the bytes of `count` elements without gaps."""
    if padded:
        return count
    return (count * dtype.element_bits + 7) // 8


def span(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and highest position reached, from element [0, ..., 0]; no axis may be empty."""
    low = high = 0
    for n, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high


def canonical_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return strides in canonical form: None if compact row-major, else 1 for every axis of size 1.

    Axes of size 0 or 1 are ignored in the comparison, because libraries disagree about their strides.
    """
    step = 1
    plain = True
    for axis in range(len(shape) - 1, -1, -1):
        n = shape[axis]
        if n > 1:
            if strides[axis] != step:
                plain = False
                break
            step *= n
    if plain or 0 in shape:
        return None
    return tuple(s if n > 1 else 1 for n, s in zip(shape, strides, strict=True))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the elements fill one block exactly under some order of the axes (C, Fortran, channels-last)."""
    step = 1
    for stride, n in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride != step:
            return False
        step *= n
    return True


def overlap(shape: Sequence[int], strides: Sequence[int]) -> str | None:
    """Return the reason why some index tuples could reach the same element, or None.

    The test is sufficient, not exact: in order of |stride|, each axis longer than 1 must step over everything that
    those before it can reach. Zero strides fail it, and so do some layouts without overlap.
    """
    reach = 0
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride <= reach:
            return f"a stride of {stride} elements does not step over the {reach + 1} that smaller strides reach"
        reach += (n - 1) * stride
    return None


def check_layout(
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    byte_offset: int = 0,
    *,
    padded: bool = False,
    error: type[WireError] = DecodeError,
) -> int:
    """Check a layout against every rule of the contract, and return the exact size of its payload.

    Args:
        dtype: Element type.
        shape: Extents in elements.
        strides: In elements, or None for compact row-major.
        byte_offset: Bytes from the start of the payload to element [0, ..., 0].
        padded: True if elements of fewer than 8 bits fill a byte each.
        error: Class to raise: EncodeError for a tensor of ours, DecodeError for one that arrived.

    Raises:
        WireError: `error`: a rule is broken.
    """
    if len(shape) > MAX_NDIM:
        raise error(f"{len(shape)} dimensions; at most {MAX_NDIM} are allowed", field="shape")
    if shape and min(shape) < 0:
        raise error(f"extents must not be negative: {tuple(shape)}", field="shape")
    if max(dtype.element_bits // 8, dtype.lanes) > MAX_ELEMENT_BYTES:
        raise error(f"elements of {dtype.name} have more than 2^31-1 bytes or lanes", field="dtype")
    if padded and (dtype.bits >= 8 or dtype.lanes != 1):
        raise error(f"sub-byte padded (4) needs bits < 8 and lanes 1, not {dtype.name}", field="flags")
    count = prod(shape)
    nonzero = count or prod(n for n in shape if n)
    # A packed lane counts as a byte here: unpacked, the tensor must still be addressable.
    unpacked = nonzero * dtype.lanes if is_packed(dtype, padded) else compact_bytes(dtype, padded, nonzero)
    if unpacked >= _TOO_LARGE:
        raise error(f"{tuple(shape)} of {dtype.name} needs 2^63 bytes or more", field="shape")
    if strides is not None and len(strides) != len(shape):
        raise error(f"{len(strides)} strides for {len(shape)} dimensions", field="strides")
    offset_needed = 0
    if strides is None or count == 0:
        needed = compact_bytes(dtype, padded, count)
    elif is_packed(dtype, padded):
        if canonical_strides(shape, strides) is not None:
            raise error(f"packed {dtype.name} must be row-major, not {tuple(strides)}", field="strides")
        needed = compact_bytes(dtype, padded, count)
    else:
        why = overlap(shape, strides)
        if why is not None:
            raise error(f"{tuple(strides)} for shape {tuple(shape)}: {why}", field="strides")
        item = 1 if padded else dtype.element_bits // 8
        low, high = span(shape, strides)
        offset_needed = -low * item
        needed = (high - low + 1) * item
        if needed >= _TOO_LARGE:
            raise error(f"{tuple(shape)} with strides {tuple(strides)} spans 2^63 bytes or more", field="strides")
    if byte_offset != offset_needed:
        raise error(
            f"{byte_offset}, but these strides need {offset_needed}",
            field="byte_offset",
        )
    return needed
