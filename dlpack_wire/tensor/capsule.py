"""Borrowing live memory from any producer, and lending ours.

A producer is a numpy array or scalar, an object with `__dlpack__` (of either protocol) or only `to_dlpack()`, or a
raw capsule. Memory is read where it is, while the producer is held; nothing is copied here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import EncodeError, UnsupportedTensorError
from . import abi, layout
from . import dtype as dtypes
from .device import CPU, HOST_READABLE, Device
from .dtype import CARRIERS, NATIVE, ByteOrder, DType, carrier
from .frameworks import is_lazy, normaliser
from .header import Header
from .memo import Memo

MAX_VERSION = (abi.MAJOR, abi.MINOR)


class Borrowed:
    """A producer's live tensor, readable until `release`.

    Attributes:
        array: The elements where they lie. Of any numpy dtype with the right item size; for packed elements
            the payload's bytes, one-dimensional.
        dtype: Element type.
        shape: Extents in elements.
        byte_order: Byte order of the memory.
        device: Device that the tensor lives on.
        padded: True if elements of fewer than 8 bits fill a byte each.
        version: DLPack version of the producer, or None.
    """

    __slots__ = ("_owner", "_unclaim", "array", "byte_order", "device", "dtype", "padded", "shape", "version")

    def __init__(
        self,
        array: np.ndarray[Any, Any],
        dtype: DType,
        shape: tuple[int, ...],
        byte_order: ByteOrder,
        device: Device = CPU,
        padded: bool = False,
        version: tuple[int, int] | None = None,
        owner: object = None,
    ) -> None:
        self.array = array
        self.dtype = dtype
        self.shape = shape
        self.byte_order = byte_order
        self.device = device
        self.padded = padded
        self.version = version
        self._owner = owner
        self._unclaim: Callable[[], None] | None = None

    @property
    def lasting(self) -> bool:
        """True if the array stays valid for as long as it is held; memory out of a capsule does not."""
        return self._unclaim is None

    def release(self) -> None:
        """Release the memory. The array must not be used any more."""
        self._owner = None
        if self._unclaim is not None:
            unclaim, self._unclaim = self._unclaim, None
            unclaim()

    def __enter__(self) -> Borrowed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def borrow(x: Any) -> Borrowed:
    """Borrow a producer's memory.

    Returns:
        A context manager; the producer and its memory are held until it is released.

    Raises:
        UnsupportedTensorError: `x` is not a producer, or its dtype, device or kind cannot be written in a message.
        EncodeError: `x` describes an impossible tensor.
        UnsupportedVersionError: `x` is a capsule of another major version, or its producer makes such ones.
        ValueError: `x` is a capsule that was consumed, or holds no tensor.
        Exception: Any error of the producer itself.
    """
    kind = type(x)
    reader = _READERS.get(kind)
    if reader is None:
        reader = _READERS.keep(kind, _find_reader(x))
    return reader(x)


def borrow_writable(x: Any) -> Borrowed:
    """Borrow a tensor's memory to write into, if it is an array or its library allows that.

    Raises:
        UnsupportedTensorError: The memory is read-only, or not known to be that of `x` itself.
        EncodeError: `x` describes an impossible tensor.
        Exception: Any error of the producer itself.
    """
    if isinstance(x, np.ndarray):
        if not x.flags.writeable:
            raise UnsupportedTensorError("the array is read-only")
        return borrow(x)
    if is_lazy(x):
        raise UnsupportedTensorError("a lazy view has no memory of its own to write into")
    look = peeker(x)
    if look is not None:
        held, raw = look(x)
        return _from_raw(raw, held, padded=False, version=MAX_VERSION, writable=True)
    if not hasattr(type(x), "__dlpack__"):
        return _refuse(x)
    capsule = _ask(x)
    kind = abi.kind_of(capsule) if abi.is_capsule(capsule) else None
    if kind is None or not abi.has_destructor(capsule):
        raise UnsupportedTensorError(f"__dlpack__ returned {capsule!r}, which cannot be written into")
    return _from_managed(abi.pointer(capsule, kind), kind, capsule, writable=True)


_READERS: Memo[type, Callable[[Any], Borrowed]] = Memo(256)  # types of tensors in one program: a handful


def _find_reader(x: Any) -> Callable[[Any], Borrowed]:
    """Return the function that borrows from objects of this type."""
    kind = type(x)
    if isinstance(x, np.ndarray):
        return _refuse_masked if isinstance(x, np.ma.MaskedArray) else _borrow_array
    if isinstance(x, np.generic):
        return _borrow_scalar
    if abi.is_capsule(x):
        return _borrow_capsule
    if peeker(x) is not None:
        return _borrow_by_table
    normalise = normaliser(x)
    if normalise is not None:
        return lambda x: _borrow_producer(normalise(x))
    if hasattr(kind, "__dlpack__"):
        return _borrow_producer
    if hasattr(kind, "to_dlpack"):
        return _borrow_to_dlpack
    return _refuse


def _refuse(x: Any) -> Borrowed:
    kind = type(x)
    if isinstance(x, (bool, int, float, complex, list, tuple, memoryview)) or kind.__module__ == "array":
        remedy = "wrap it in numpy.asarray with the dtype you mean"
    elif isinstance(x, Mapping):
        remedy = "a collection of tensors; flatten it to one level, with names such as 'model/weight'"
    elif x is None or isinstance(x, (str, bytes)):
        remedy = "strings and the like go into metadata"
    elif hasattr(x, "state_dict"):
        remedy = "save its state_dict()"
    elif hasattr(x, "to_numpy"):
        remedy = "encode its to_numpy()"
    else:
        remedy = "it has neither __dlpack__ nor to_dlpack"
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raise UnsupportedTensorError(f"{name} is not a tensor: {remedy}")


def _refuse_masked(x: Any) -> Borrowed:
    raise UnsupportedTensorError(
        "a masked array would lose its mask: encode `x.data` and `x.mask`, or `x.filled(value)`"
    )


def _borrow_array(x: np.ndarray[Any, Any]) -> Borrowed:
    if type(x) is not np.ndarray:
        x = x.view(np.ndarray)  # np.matrix is never one-dimensional, and other subclasses may say anything
    dtype = x.dtype
    return Borrowed(x, dtypes.from_numpy(dtype), x.shape, dtypes.byte_order_of(dtype))


def _borrow_scalar(x: np.generic) -> Borrowed:
    return _borrow_array(np.asarray(x))


# --- DLPack -----------------------------------------------------------------------------------------------------------


def _borrow_producer(x: Any) -> Borrowed:
    device = _device_of(x)
    if device is not None and device.device_type not in HOST_READABLE:
        borrowed = _borrow_fresh(_host_copy(x, device))
        borrowed.device = device
        return borrowed
    return _borrow_fresh(_ask(x))


def _device_of(x: Any) -> Device | None:
    if not hasattr(type(x), "__dlpack_device__"):
        return None
    device_type, device_id = x.__dlpack_device__()
    return Device(int(device_type), int(device_id))


def _ask(x: Any) -> Any:
    """Ask a producer for its capsule, by the protocol it speaks. For the CPU, `stream` must be left out."""
    try:
        return x.__dlpack__(max_version=MAX_VERSION)
    except TypeError as error:
        # Either the producer is older than `max_version`, or the fault is its own: then the second try shows it too.
        try:
            return x.__dlpack__()
        except TypeError as again:
            raise again from error


def _host_copy(x: Any, device: Device) -> Any:
    """Return a capsule with a copy in host memory of a tensor on another device."""
    try:
        return x.__dlpack__(max_version=MAX_VERSION, dl_device=tuple(CPU), copy=True)
    except (TypeError, BufferError, ValueError, NotImplementedError) as error:
        for method in ("cpu", "get"):  # torch, cupy
            fetch = getattr(x, method, None)
            if callable(fetch):
                host = fetch()
                if hasattr(type(host), "__dlpack__") and _device_of(host) in (CPU, None):
                    return _ask(host)
        raise UnsupportedTensorError(
            f"tensor lives on {device} and its library gives no copy in host memory: {error}", field="device"
        ) from error


def _borrow_fresh(capsule: Any) -> Borrowed:
    """Borrow from a capsule that a producer has just made for us: dropping it frees it."""
    kind = abi.kind_of(capsule) if abi.is_capsule(capsule) else None
    if kind is None:
        raise UnsupportedTensorError(f"__dlpack__ returned {capsule!r}, not a tensor capsule")
    # Treated like a capsule that the user holds: a producer may return one capsule to several callers, or one without a
    # destructor, which nobody but us would free.
    return _borrow_capsule(capsule)


def _borrow_to_dlpack(x: Any) -> Borrowed:
    return borrow(x.to_dlpack())


# The name is checked and changed as one step, also where threads run without a GIL: two threads could both claim it.
_CLAIMING = threading.Lock()


def _borrow_capsule(capsule: Any) -> Borrowed:
    """Borrow from a capsule that the user holds: it stays usable, and nobody else can consume it meanwhile."""
    with _CLAIMING:
        kind = abi.kind_of(capsule)
        if kind is None:
            name = (abi.name_of(capsule) or b"").decode("ascii", "replace")
            if name.startswith("used_"):
                raise ValueError(f"capsule {name!r} was consumed already, or is being read by another thread")
            raise ValueError(f"capsule {name!r} holds no DLPack tensor")
        managed = abi.pointer(capsule, kind)
        abi.claim(capsule, kind)

    if abi.has_destructor(capsule):

        def give_back() -> None:
            abi.unclaim(capsule, kind)
    else:
        # Nobody else would ever free it: reading it consumes it.
        def give_back() -> None:
            abi.call_deleter(managed, kind)

    try:
        borrowed = _from_managed(managed, kind, capsule)
    except BaseException:
        give_back()
        raise
    borrowed._unclaim = give_back
    return borrowed


def _from_managed(managed: int, kind: bytes, owner: object, writable: bool = False) -> Borrowed:
    raw, flags, version = abi.read_managed(managed, kind)
    if writable and (version is None or flags & (layout.FLAG_READ_ONLY | layout.FLAG_IS_COPIED)):
        raise UnsupportedTensorError("its library does not lend its own memory for writing")
    padded = bool(flags & layout.FLAG_SUBBYTE_PADDED)
    return _from_raw(raw, owner, padded=padded, version=version, writable=writable)


Peek = Callable[[Any], tuple[Any, abi.RawTensor]]
"""A function that reads an object's C tensor, on any device, and returns it with the object to hold meanwhile."""


def peeker(x: Any) -> Peek | None:
    """Return the function that reads the C tensor of such objects through their type's exchange table, or None."""
    kind = type(x)
    try:
        return _PEEKERS[kind]
    except KeyError:
        table = getattr(kind, "__dlpack_c_exchange_api__", None)
        read = abi.exchange_reader(table) if table is not None else None
        return _PEEKERS.keep(kind, _peek_with(read, normaliser(x)) if read is not None else None)


_PEEKERS: Memo[type, Peek | None] = Memo(256)  # types of tensors in one program: a handful


def _peek_with(read: abi.TensorReader, normalise: Callable[[Any], Any] | None) -> Peek:
    def peek(x: Any) -> tuple[Any, abi.RawTensor]:
        held = x if normalise is None else normalise(x)
        return held, read(held)

    return peek


def _borrow_by_table(x: Any) -> Borrowed:
    peek = peeker(x)
    assert peek is not None
    held, raw = peek(x)
    _, device_type, _, _, _, bits, _, _, _, _ = raw
    # The table's tensor has no flags, so nothing says whether elements of fewer than 8 bits are padded.
    if device_type in HOST_READABLE and bits >= 8:
        return _from_raw(raw, held, padded=False, version=MAX_VERSION)
    return _borrow_producer(held)


class Plain:
    """Facts about all plain tensors of one element type, layout and device.

    Plain: compact row-major and not empty, in memory that the host can read, of a type whose every bit pattern is a
    value. The payload of such a tensor is its memory, without a look at it.

    Attributes:
        header: Their header, without a checksum.
        payload_bytes: Size of their payloads.
        element: The dtype to view arrays as where numpy exports no buffer of their own (ml_dtypes), or None.
        prefixes: Bytes that `message.codec` writes before their payloads, without and with a checksum, once known.
    """

    __slots__ = ("element", "header", "payload_bytes", "prefixes")

    def __init__(self, header: Header, element: np.dtype[Any] | None = None) -> None:
        self.header = header
        self.payload_bytes = header.payload_bytes
        self.element = element
        self.prefixes: list[tuple[bytes, bytes] | None] = [None, None]

    def payload(self, x: np.ndarray[Any, Any]) -> Any:
        """Return an object whose buffer is the payload of one of these tensors that is an array."""
        return x if self.element is None else x.view(self.element)


# All of a C tensor that decides its header: (code, bits, lanes, shape, strides, device_type, device_id).
_Kind = tuple[int, int, int, tuple[int, ...], tuple[int, ...], int, int]

_PLAIN: Memo[_Kind, Plain] = Memo(4096)  # shapes in use in one program, with much to spare


def borrow_plain(x: Any) -> tuple[Plain, memoryview, Any] | None:
    """Borrow a plain tensor through the exchange table of its type, without a capsule; None for any other object.

    Returns:
        The facts about such tensors, the payload, and an object to hold for as long as the payload is read.

    Raises:
        EncodeError: `x` describes an impossible tensor.
        BufferError: The producer refuses.
    """
    look = peeker(x)
    if look is None:
        return None
    held, raw = look(x)
    data, device_type, device_id, ndim, code, bits, lanes, shape_at, strides_at, byte_offset = raw
    shape, strides = _read_layout(ndim, shape_at, strides_at)
    if not data:
        return None
    kind = (code, bits, lanes, shape, strides, device_type, device_id)
    plain = _PLAIN.get(kind)
    if plain is None:
        header = _plain_header(kind)
        if header is None:
            return None
        plain = _PLAIN.keep(kind, Plain(header))
    return plain, abi.memory(data + byte_offset, plain.payload_bytes), held


def _plain_header(kind: _Kind) -> Header | None:
    """Return the header of a plain C tensor, or None for any other."""
    code, bits, lanes, shape, strides, device_type, device_id = kind
    if device_type not in HOST_READABLE or layout.canonical_strides(shape, strides) is not None or 0 in shape:
        return None
    dtype = DType(code, bits, lanes)
    if not dtype.any_bytes:
        return None
    order = NATIVE if dtype.part_bytes > 1 else ByteOrder.UNSPECIFIED
    return Header.plain(dtype, shape, order, Device(device_type, device_id))


def _read_layout(ndim: int, shape_at: int, strides_at: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of a C tensor, both in elements.

    Raises:
        EncodeError: The number of dimensions is impossible, or the shape is missing.
    """
    if ndim == 0:
        return (), ()
    if ndim < 0 or ndim > layout.MAX_NDIM:
        raise EncodeError(
            f"{ndim} dimensions; 0 to {layout.MAX_NDIM} are allowed",
            field="shape",
            declared=ndim,
            limit=layout.MAX_NDIM,
        )
    if not shape_at:
        raise EncodeError(f"NULL for {ndim} dimensions", field="shape")
    shape = abi.read_int64s(shape_at, ndim)
    return shape, abi.read_int64s(strides_at, ndim) if strides_at else layout.row_major(shape)


def _from_raw(
    raw: abi.RawTensor, owner: object, *, padded: bool, version: tuple[int, int] | None, writable: bool = False
) -> Borrowed:
    """Check a C tensor and view its memory."""
    data, device_type, device_id, ndim, code, bits, lanes, shape_at, strides_at, byte_offset = raw
    if device_type not in HOST_READABLE:
        raise UnsupportedTensorError(
            f"memory on {Device(device_type, device_id)} cannot be read by the host; ask its library for a host copy",
            field="device",
        )
    dtype = DType(code, bits, lanes)
    shape, strides = _read_layout(ndim, shape_at, strides_at)
    device = CPU if device_type == 1 and device_id == 0 else Device(device_type, device_id)
    compact = layout.canonical_strides(shape, strides) is None
    # Checks the shape; strides and offset are those of live memory, not of a message.
    size = layout.check_layout(dtype, shape, padded=padded, error=EncodeError)
    byte_order = NATIVE if dtype.part_bytes > 1 else ByteOrder.UNSPECIFIED
    if size and not data:
        raise EncodeError(f"NULL for {size} bytes", field="data")
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    if layout.is_packed(dtype, padded):
        if not compact:
            raise UnsupportedTensorError(
                f"packed {dtype.name} with strides {strides}: only row-major memory can be written",
                field="strides",
            )
        itemsize, extents, steps = 1, (size,), (1,)
    else:
        itemsize = 1 if padded else dtype.element_bits // 8
        extents, steps = shape, strides
    if not size:
        array = np.empty(extents, carrier(itemsize))
    elif compact:
        array = np.ndarray(extents, carrier(itemsize), abi.owned_memory(data + byte_offset, size, owner, writable))
    else:
        low, high = layout.span(shape, steps)
        span = (high - low + 1) * itemsize
        memory = abi.owned_memory(data + byte_offset + low * itemsize, span, owner, writable)
        byte_strides = tuple(s * itemsize for s in steps)
        array = np.ndarray(extents, carrier(itemsize), memory, -low * itemsize, byte_strides)
    return Borrowed(array, dtype, shape, byte_order, device, padded, version, owner)


# --- lending ----------------------------------------------------------------------------------------------------------


def lend(
    array: np.ndarray[Any, Any],
    dtype: DType,
    shape: tuple[int, ...],
    *,
    padded: bool,
    copied: bool,
    max_version: tuple[int, int] | None,
) -> Any:
    """Return a capsule over an array's memory, under the dtype and shape that it really has.

    Args:
        array: The elements, or the bytes of packed ones, without negative strides. Kept alive until the consumer lets
            go.
        dtype: Element type.
        shape: Extents in elements.
        padded: True if elements of fewer than 8 bits fill a byte each.
        copied: True if the memory is a copy made for this consumer.
        max_version: Version that the consumer speaks; None: legacy.

    Raises:
        BufferError: The memory is read-only and the consumer a legacy one, which cannot be told.
    """
    packed = layout.is_packed(dtype, padded)
    own = None if packed else CARRIERS.get(array.dtype.itemsize)
    if own is not None:
        view = array.getfield(own)
    elif packed:
        # numpy makes a capsule of the right number of dimensions; its shape is then set.
        view = np.ndarray((1,) * len(shape), np.uint8, array) if array.size else np.empty((0,) * len(shape), np.uint8)
    else:
        view = array.getfield(np.uint8)
    if max_version is None:
        capsule = view.__dlpack__()
    else:
        capsule = view.__dlpack__(max_version=max_version)
    said = (dtype.code, dtype.bits, dtype.lanes)
    flags = (layout.FLAG_SUBBYTE_PADDED if padded else 0) | (layout.FLAG_IS_COPIED if copied else 0)
    if own is not None:
        abi.relabel(capsule, dtype=said, flags=flags)
    elif packed:
        abi.relabel(capsule, dtype=said, shape=shape, strides=layout.row_major(shape), flags=flags)
    else:
        strides = tuple(s // array.dtype.itemsize for s in view.strides)
        abi.relabel(capsule, dtype=said, strides=strides, flags=flags)
    return capsule
