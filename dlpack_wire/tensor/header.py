"""The header of a tensor: everything but its bytes, as a checked value."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import DecodeError, EncodeError, TruncatedError
from . import layout
from .device import Device
from .dtype import ByteOrder, DType


class Header(NamedTuple):
    """All of a tensor but its bytes. Every instance describes a possible tensor: numbers from outside pass `checked`.

    Attributes:
        dtype: Element type.
        shape: Extents in elements, outermost first.
        payload_bytes: Exact size of the payload.
        byte_order: Byte order of the payload as recorded.
        device: Device that held the tensor when it was encoded, or None.
        strides: In elements, one per dimension; None if compact row-major. Canonical (1 for axes of size 1).
        byte_offset: Bytes from the start of the payload to element [0, ..., 0].
        padded: True if elements of fewer than 8 bits fill a byte each.
        version: DLPack version of the producer, or None.
        checksum: XXH3-64 of the payload, or None.
    """

    dtype: DType
    shape: tuple[int, ...]
    payload_bytes: int
    byte_order: ByteOrder
    device: Device | None
    strides: tuple[int, ...] | None = None
    byte_offset: int = 0
    padded: bool = False
    version: tuple[int, int] | None = None
    checksum: int | None = None

    @classmethod
    def plain(cls, dtype: DType, shape: tuple[int, ...], byte_order: ByteOrder, device: Device) -> Header:
        """Return the header of a compact row-major tensor of ours, without padded elements.

        Raises:
            EncodeError: The shape is impossible.
        """
        size = layout.check_layout(dtype, shape, error=EncodeError)
        return cls(dtype, shape, size, byte_order, device)

    def with_checksum(self, checksum: int | None) -> Header:
        """Return the same header with another checksum."""
        # The checksum is the last field. `_replace` says so too, but takes several times as long, for each message.
        return tuple.__new__(Header, (*self[:-1], checksum))

    @property
    def flags(self) -> int:
        """DLPack's flag mask as recorded: 4 if padded."""
        return layout.FLAG_SUBBYTE_PADDED if self.padded else 0

    @property
    def is_packed(self) -> bool:
        """True if elements share bytes with their neighbours."""
        return layout.is_packed(self.dtype, self.padded)


def checked(
    *,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    byte_offset: int,
    byte_order: int,
    device: Device | None,
    flags: int,
    version: tuple[int, int] | None,
) -> Header:
    """Check untrusted numbers against every rule of the contract, and return them as a header without a checksum.

    Raises:
        DecodeError: The fields break a rule of the contract.
    """
    if flags & ~_KNOWN_FLAGS:
        raise DecodeError(f"{flags}: only the bits 1, 2 and 4 are known", field="flags")
    padded = bool(flags & layout.FLAG_SUBBYTE_PADDED)
    size = layout.check_layout(dtype, shape, strides, byte_offset, padded=padded)
    if not 0 <= byte_order <= 2:
        raise DecodeError(f"{byte_order} is neither unspecified (0), little (1) nor big endian (2)", field="byte_order")
    if dtype.part_bytes == 1:
        byte_order = 0
    elif byte_order == 0:
        raise DecodeError(f"not stated, but {dtype.name} may have parts wider than a byte", field="byte_order")
    if strides is not None:
        strides = layout.canonical_strides(shape, strides)
    # Positions, in the order of the fields: keywords would slow the reading of a message by a twentieth.
    return Header(dtype, shape, size, _ORDERS[byte_order], device, strides, byte_offset, padded, version)


_KNOWN_FLAGS = layout.FLAG_READ_ONLY | layout.FLAG_IS_COPIED | layout.FLAG_SUBBYTE_PADDED
_ORDERS = tuple(ByteOrder)  # a look-up by position, because calling the enum costs more than the rest of a header


def check_payload_size(header: Header, size: int) -> None:
    """Check that a payload has exactly the size that the header states.

    Raises:
        TruncatedError: The payload is shorter.
        DecodeError: The payload is longer.
    """
    needed = header.payload_bytes
    if size < needed:
        raise TruncatedError(
            f"shape {header.shape} of {header.dtype.name} needs {needed} bytes, has {size}",
            needed=needed,
            available=size,
            field="data",
        )
    if size > needed:
        raise DecodeError(
            f"shape {header.shape} of {header.dtype.name} needs {needed} bytes, has {size}: {size - needed} too many",
            field="data",
        )
