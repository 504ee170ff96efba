"""Elements of fewer than 8 bits: one per byte, or packed little bit-endian without gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

PackedBytes = np.ndarray[Any, np.dtype[np.uint8]]


def mask(bits: int) -> int:
    """Return the mask of the bits that hold a padded element's value."""
    return (1 << bits) - 1


def pack(values: np.ndarray[Any, Any], bits: int) -> PackedBytes:
    """Pack elements that fill a byte each, in row-major order; their upper bits are ignored.

    Element i starts at bit i * bits, counted from the least significant bit of the first byte; spare bits are zero.
    """
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if 8 % bits == 0:
        per_byte = 8 // bits
        bytes_out = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
        np.bitwise_and(flat, mask(bits), out=bytes_out[: flat.size])
        lanes = bytes_out.reshape(-1, per_byte)
        packed: PackedBytes = lanes[:, 0].copy()
        for lane in range(1, per_byte):
            packed |= lanes[:, lane] << (lane * bits)
        return packed
    split = np.unpackbits(flat.reshape(-1, 1), axis=1, count=bits, bitorder="little")
    return np.packbits(split.reshape(-1), bitorder="little")


def unpack(packed: PackedBytes, bits: int, count: int) -> PackedBytes:
    """Unpack the first `count` elements, one per byte, upper bits zero."""
    if 8 % bits == 0:
        per_byte = 8 // bits
        lanes = np.empty((packed.size, per_byte), np.uint8)
        for lane in range(per_byte):
            np.bitwise_and(packed >> (lane * bits), mask(bits), out=lanes[:, lane])
        return lanes.reshape(-1)[:count]
    split = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(split, axis=1, bitorder="little").reshape(-1)
