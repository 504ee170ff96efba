"""A tensor over memory that has arrived, as `decode`, `open` and `get` return it."""

from __future__ import annotations

import mmap
import operator
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ..errors import UnsupportedTensorError
from . import layout
from .capsule import lend
from .device import CPU, Device
from .dtype import BCOMPLEX, COMPLEX, INT, NATIVE, UINT, ByteOrder, DType, carrier
from .header import Header
from .memory import empty_aligned
from .subbyte import mask, pack, unpack

_SHOWN_ELEMENTS = 16
"""Maximum number of elements that `repr` shows: a line of them."""


class Tensor:
    """A tensor in host memory, for any DLPack consumer: `np.from_dlpack(t)`, `torch.from_dlpack(t)`, ...

    A tensor from `open` with `verify=True` or `mmap=False`, or from a URL, reads its payload at its first use. Whatever
    needs the elements may then raise DecodeError (damaged or cut short) or OSError.

    Memory:
        Borrows the payload it was made from and keeps it alive; so does everything made from the tensor.
    """

    __slots__ = ("__weakref__", "_array", "_checksum", "_header")

    def __init__(self, header: Header, array: np.ndarray[Any, Any], checksum: int | None = None) -> None:
        """Wrap memory whose layout is that of `header`.

        Args:
            header: The header. Its byte order is that of the payload as recorded; the memory of a known type is always
                in this machine's.
            array: The elements, of the numpy dtype if there is one, else of a carrier; for packed elements the
                bytes, one-dimensional.
            checksum: The recorded checksum, if it is not in the header: most readers never ask for it.
        """
        self._header = header
        self._array = array
        self._checksum = checksum

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def header(self) -> Header:
        """The header as recorded: `header.device` is where the tensor lived when it was encoded."""
        if self._checksum is not None:
            self._header = self._header.with_checksum(self._checksum)
            self._checksum = None
        return self._header

    @property
    def storage(self) -> np.ndarray[Any, Any]:
        """The elements where they lie, as numpy sees them; for packed elements the bytes, one-dimensional.

        For this package: numpy's view may have a carrier type, and a write into it changes the tensor.
        """
        return self._array

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._header.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements, outermost first."""
        return self._header.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._header.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self._header.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between neighbours along each dimension, in elements."""
        if self._header.is_packed:
            return layout.row_major(self._header.shape)
        itemsize = self.storage.dtype.itemsize
        return tuple(s // itemsize for s in self.storage.strides)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements without gaps."""
        return layout.compact_bytes(self._header.dtype, self._header.padded, self.size)

    @property
    def device(self) -> Device:
        """Where this memory is: always the CPU. Where the tensor lived before is in `header.device`."""
        return CPU

    @property
    def flags(self) -> int:
        """DLPack's flags of this memory: 1 read-only, 4 sub-byte padded."""
        read_only = 0 if self.storage.flags.writeable else layout.FLAG_READ_ONLY
        return read_only | (layout.FLAG_SUBBYTE_PADDED if self._header.padded else 0)

    @property
    def payload(self) -> memoryview:
        """The elements as row-major bytes in this machine's order.

        A view if the elements lie in that order, read-only if the tensor is; else a writable copy. As aligned as the
        tensor.
        """
        flat = np.ascontiguousarray(self.storage).reshape(-1)
        return flat.view(np.uint8).data

    @property
    def byte_order(self) -> ByteOrder:
        """Byte order of the memory: this machine's, unless the type is unknown and cannot be swapped."""
        recorded = self._header.byte_order
        return NATIVE if recorded and self._header.dtype.known else recorded

    def __repr__(self) -> str:
        extents = ", ".join(map(str, self._header.shape))
        lived = self.header.device
        origin = f", from {lived}" if lived is not None and lived != CPU else ""
        return f"<Tensor {self._header.dtype.name}[{extents}] {self.nbytes} bytes{origin}{self._shown()}>"

    def _shown(self) -> str:
        """Return what `repr` shows of the elements."""
        if not 0 < self.size <= _SHOWN_ELEMENTS or self._header.dtype.numpy_or_none is None:
            return ""
        return ": " + " ".join(np.array2string(self.numpy(), separator=" ").split())

    def __len__(self) -> int:
        """Return the first extent.

        Raises:
            TypeError: The tensor is 0-d.
        """
        if not self._header.shape:
            raise TypeError("a 0-d tensor has no length")
        return self._header.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        """Return an iterator over the parts along the first dimension.

        Raises:
            TypeError: The tensor is 0-d.
        """
        return map(self.__getitem__, range(len(self)))

    # --- values -------------------------------------------------------------------------------------------------------

    def item(self) -> bool | int | float | complex:
        """Return the only element as a number of Python, exactly.

        Raises:
            ValueError: The tensor does not have exactly one element.
            UnsupportedTensorError: Neither numpy nor ml_dtypes has a type for the elements.
        """
        if self.size != 1:
            raise ValueError(f"a tensor of shape {self.shape} has {self.size} elements, not one")
        found: bool | int | float | complex = self._in_python_types().item()
        return found

    def tolist(self) -> Any:
        """Return the elements as numbers of Python, exactly, in lists nested as the dimensions are.

        Raises:
            UnsupportedTensorError: Neither numpy nor ml_dtypes has a type for the elements.
        """
        return self._in_python_types().tolist()

    def _in_python_types(self) -> np.ndarray[Any, Any]:
        """Return the elements in one of numpy's own types, which hold every value of those that ml_dtypes has."""
        array = self.numpy()
        if array.dtype.isbuiltin == 1:
            return array
        code = self._header.dtype.code
        if code in (INT, UINT):
            return array.astype(np.int64)
        return array.astype(np.complex128 if code in (COMPLEX, BCOMPLEX) else np.float64)

    def _scalar(self, wanted: str) -> Any:
        if self._header.shape:
            text = f"a tensor of shape {self.shape} is not {wanted}: index one element, as in t[0], or use t.numpy()"
            raise TypeError(text)
        return self.item()

    def __bool__(self) -> bool:
        """Return the truth of a 0-d tensor's value.

        Raises:
            TypeError: The tensor has dimensions: `t.numpy().any()` or `.all()` says what is meant.
        """
        if self._header.shape:
            text = f"a tensor of shape {self.shape} is neither true nor false: use t.numpy().any() or t.numpy().all()"
            raise TypeError(text)
        return bool(self.item())

    def __int__(self) -> int:
        return int(self._scalar("one number"))

    def __float__(self) -> float:
        return float(self._scalar("one number"))

    def __complex__(self) -> complex:
        return complex(self._scalar("one number"))

    def __index__(self) -> int:
        value = self._scalar("an index")
        if type(value) is not int:
            raise TypeError(f"a tensor of {self._header.dtype.name} is no index")
        return value

    def __bytes__(self) -> bytes:
        """Return a copy of `payload`."""
        return bytes(self.payload)

    def __eq__(self, other: object) -> bool:
        """Return False for None, and refuse everything else: elements are compared by numpy.

        Raises:
            TypeError: Always, but for None.
        """
        if other is None:
            return False
        raise TypeError("tensors are not compared: use t.numpy() == other, or numpy.array_equal(t, other)")

    __hash__ = object.__hash__

    def __contains__(self, value: object) -> bool:
        """Refuse to look for an element.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a tensor is not searched: use value in t.numpy()")

    # --- out ----------------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the tensor as a numpy array, of an ml_dtypes type where numpy has none.

        Raises:
            UnsupportedTensorError: Neither numpy nor ml_dtypes has a type for the elements.

        Memory:
            A view, read-only if the payload is. Packed elements are unpacked into a new array.
        """
        dtype = self._header.dtype.numpy
        if self._header.is_packed:
            unpacked: np.ndarray[Any, Any] = self._unpacked().view(dtype)
            return unpacked
        view: np.ndarray[Any, Any] = self.storage.view()
        if self._header.padded and view.size:
            # Not all of ml_dtypes' types ignore the upper bits.
            values = view.view(np.uint8)
            bits = np.uint8(mask(self._header.dtype.bits))
            if values.max() > bits:
                view = (values & bits).view(dtype)
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the tensor as a numpy array, for `np.asarray(t)`.

        Args:
            dtype: Type to convert the elements to, if they are of another.
            copy: True: into new memory always; None: where it is needed; False: never.

        Raises:
            UnsupportedTensorError: Neither numpy nor ml_dtypes has a type for the elements.
            ValueError: A copy is needed and `copy` is False.

        Memory:
            As `numpy`, unless a copy is made.
        """
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"{self._header.dtype.name} to {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        if copy is False and self._header.is_packed:
            raise ValueError(f"packed {self._header.dtype.name} cannot be unpacked without a copy")
        return array.copy() if copy else array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU.device_type, CPU.device_id

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Lend the memory as a DLPack capsule, versioned if the consumer speaks version 1 or later.

        A copy is made where the consumer could not take the memory as it is: memory with negative strides; a read-only
        mapping; read-only or sub-byte padded memory for a legacy consumer, whose protocol has no flags to say so.

        Args:
            stream: None or -1: host memory has no streams.
            max_version: DLPack version that the consumer speaks; None if it is a legacy one.
            dl_device: Device that the consumer asks for: None or the CPU.
            copy: True: into new memory always; None: where it is needed; False: never.

        Returns:
            A capsule that no consumer has taken yet.

        Raises:
            BufferError: The consumer asks for another device, for a stream, or for no copy where one is needed.
            UnsupportedTensorError: The element type does not fit DLPack's struct, or is an unknown code in foreign
                byte order (also a BufferError).

        Memory:
            The capsule, and then its consumer, keeps the memory alive.
        """
        if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != tuple(CPU):
            raise BufferError(f"this tensor is in host memory {tuple(CPU)}, not on {tuple(dl_device)}")
        if stream is not None and stream != -1:
            raise BufferError(f"host memory has no streams: stream must be None, not {stream!r}")
        dtype = self._header.dtype
        if dtype.code > 255 or dtype.bits > 255 or dtype.lanes > 65535:
            raise UnsupportedTensorError(
                f"(code {dtype.code}, bits {dtype.bits}, lanes {dtype.lanes}) does not fit a DLPack dtype",
                field="dtype",
            )
        if self.byte_order not in (ByteOrder.UNSPECIFIED, NATIVE):
            raise UnsupportedTensorError(
                f"{dtype.name} in {self.byte_order.name.lower()} endian order: a code that this version does not know "
                "cannot be swapped",
                field="byte_order",
            )
        array, padded = self.storage, self._header.padded
        legacy = max_version is None or max_version[0] < 1
        why = None
        if any(s < 0 for s in array.strides):
            why = "memory with negative strides"
        elif legacy and padded:
            why = "sub-byte padded memory"
        elif not array.flags.writeable and (legacy or _is_mapped(array)):
            # Not every consumer heeds the read-only flag, and a write into a read-only mapping ends the process.
            why = "read-only memory"
        if why is not None and copy is False:
            raise BufferError(f"{why} cannot be lent to this consumer without a copy")
        if legacy and padded:
            array = pack(array, dtype.bits)
            padded = False
        elif why is not None or copy:
            array = np.array(array, order="C" if why == "memory with negative strides" else "K")
        return lend(
            array,
            dtype,
            self._header.shape,
            padded=padded,
            copied=array is not self.storage,
            max_version=None if legacy else max_version,
        )

    # --- parts --------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        """Return a part of the tensor by basic indexing, as numpy does it.

        Args:
            key: Integers, slices, `...` and None.

        Raises:
            IndexError: The key is of another kind, has too many parts, or lies outside of the tensor.
            ValueError: A slice has a step of 0.
            TypeError: A slice has bounds that are not integers.

        Memory:
            A view; a copy for packed elements, which share bytes.
        """
        if self._header.is_packed:
            part = select(self._unpacked(), key)
            return self._with(pack(part, self._header.dtype.bits), part.shape)
        part = select(self.storage, key)
        return self._with(part, part.shape)

    def _unpacked(self) -> np.ndarray[Any, Any]:
        """Return packed elements with each lane in a byte of its own."""
        lanes = self._header.dtype.lanes
        return (
            unpack(self.storage, self._header.dtype.bits, self.size * lanes)
            .view(carrier(lanes))
            .reshape(self._header.shape)
        )

    def _with(self, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Tensor:
        size = layout.compact_bytes(self._header.dtype, self._header.padded, prod(shape))
        header = self._header._replace(shape=shape, strides=None, byte_offset=0, checksum=None, payload_bytes=size)
        return Tensor(header, array)


def select(array: np.ndarray[Any, Any], key: Any) -> np.ndarray[Any, Any]:
    """Return `array[key]` for integers, slices, Ellipsis and None; always a view, also of a single element.

    Raises:
        IndexError: The key is of another kind, has too many parts, or lies outside of the array.
    """
    keys = key if isinstance(key, tuple) else (key,)
    for k in keys:
        if not (k is None or k is Ellipsis or isinstance(k, slice) or _is_index(k)):
            raise IndexError(f"only integers, slices, `...` and None select parts of a tensor, not {type(k).__name__}")
    keys = tuple([operator.index(k) if isinstance(k, Tensor) else k for k in keys])
    if Ellipsis not in keys:
        keys = (*keys, Ellipsis)
    part: np.ndarray[Any, Any] = array[keys]
    return part


def _is_mapped(array: np.ndarray[Any, Any]) -> bool:
    """Return True if the memory is a file mapping."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, mmap.mmap)


def _is_index(k: object) -> bool:
    return hasattr(type(k), "__index__") and not isinstance(k, (bool, np.bool_, np.ndarray))


def from_payload(header: Header, checksum: int | None, buffer: Any, begin: int, copy: bool | None = None) -> Tensor:
    """Return a tensor over the payload that starts at `begin` of `buffer`. Its size and contents have been checked.

    Args:
        header: The header that describes the bytes.
        checksum: The recorded checksum, if the header does not have it.
        buffer: Bytes, or anything that exports them. Not modified.
        begin: Position of the payload.
        copy: True: into new memory always; None: where byte order or alignment demand it; False: never.

    Raises:
        BufferError: A copy is needed and `copy` is False.

    Memory:
        Borrows `buffer` and keeps it alive, unless copied.
    """
    size = header.payload_bytes
    if size == 0:
        return Tensor(header, _view(header, empty_aligned(0), 0), checksum)
    if type(buffer) is memoryview:
        # np.ndarray would look through it and drop the export: the memory could be resized away under the tensor.
        buffer = np.frombuffer(buffer, np.uint8)
    dtype = header.dtype
    swap = is_foreign(header)
    if not swap and not copy:
        array = _view(header, buffer, begin)
        if _is_aligned(array, dtype.alignment):
            return Tensor(header, array, checksum)
    if copy is False:
        why = f"{header.byte_order.name.lower()} endian order" if swap else f"memory not aligned to {dtype.alignment}"
        raise BufferError(f"a payload in {why} needs a copy, and copy=False forbids it")
    source = np.frombuffer(buffer, np.uint8, size, begin)
    fresh = empty_aligned(size)
    if swap:
        # The bytes, not the elements, are reversed part by part: gaps of a strided payload come along.
        part = carrier(dtype.part_bytes)
        np.copyto(fresh.view(part), source.view(part).byteswap())
    else:
        fresh[:] = source
    return Tensor(header, _view(header, fresh, 0), checksum)


def is_foreign(header: Header) -> bool:
    """Return True if the payload must be swapped for this machine."""
    order = header.byte_order
    return order != NATIVE and order != ByteOrder.UNSPECIFIED and header.dtype.known


def _view(header: Header, buffer: Any, begin: int) -> np.ndarray[Any, Any]:
    dtype = header.dtype
    if header.is_packed:
        packed: np.ndarray[Any, Any] = np.ndarray((header.payload_bytes,), np.uint8, buffer, begin)
        return packed
    element = dtype.element
    strides = None
    if header.strides is not None:
        strides = tuple(s * element.itemsize for s in header.strides)
    array: np.ndarray[Any, Any] = np.ndarray(header.shape, element, buffer, begin + header.byte_offset, strides)
    return array


def _is_aligned(array: np.ndarray[Any, Any], alignment: int) -> bool:
    """Return True if every element lies at a multiple of `alignment`; strides are whole elements."""
    if array.dtype.alignment >= alignment:
        return array.flags.aligned
    return array.ctypes.data % alignment == 0
