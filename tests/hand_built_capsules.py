"""DLPack tensors made by hand: every field of the C structs can be set, and deleter calls are counted.

The structs are written out here a second time on purpose: sharing the library's own would hide its mistakes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}

CPU, CUDA, CUDA_HOST, ROCM_HOST, CUDA_MANAGED = (1, 0), (2, 0), (3, 0), (11, 0), (13, 0)
READ_ONLY, IS_COPIED, PADDED = 1, 2, 4


class CTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class CManaged(ctypes.Structure):
    _fields_ = [("tensor", CTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class CManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", CTensor),
    ]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, c_void_p)
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", _api))
_get_name = ctypes.PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", _api))
_set_name = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", _api))
_get_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", _api))
# A capsule that is being destroyed has no references left, so it must not be seen as a Python object.
_dying_is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_dying_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))


class _Block:
    """What a deleter frees: the structs and all they point to. Stays until then, whatever becomes of its maker."""

    def __init__(self, managed: Any, has_deleter: bool, *held: object) -> None:
        self.managed = managed
        self.has_deleter = has_deleter
        self.held = held
        self.deleter_calls = 0
        self.address = ctypes.addressof(managed)
        _known[self.address] = _unfreed[self.address] = self


_unfreed: dict[int, _Block] = {}
_known: WeakValueDictionary[int, _Block] = WeakValueDictionary()


@_Deleter
def _delete(address: int) -> None:
    _known[address].deleter_calls += 1
    _unfreed.pop(address, None)


@_Destructor
def _destroy(capsule: int) -> None:
    for name in (LEGACY, VERSIONED):
        if _dying_is_valid(capsule, name):
            block = _known[_dying_pointer(capsule, name)]
            if block.has_deleter:
                _Deleter(block.managed.deleter)(block.address)
            else:
                _unfreed.pop(block.address, None)


class Handmade:
    """One managed tensor, freed by its deleter like that of any library.

    Attributes:
        capsule: The capsule; `take()` hands it out without keeping a reference.
        deleter_calls: How often the deleter ran.
    """

    def __init__(
        self,
        data: Any = b"",
        *,
        code: int = 2,
        bits: int = 32,
        lanes: int = 1,
        shape: Sequence[int] | None = (),
        strides: Sequence[int] | None = None,
        ndim: int | None = None,
        byte_offset: int = 0,
        device: tuple[int, int] = CPU,
        versioned: bool = True,
        version: tuple[int, int] = (1, 1),
        flags: int = 0,
        deleter: bool = True,
        destructor: bool = True,
        name: bytes | None = None,
    ) -> None:
        """`data` is a buffer, or an address. A `shape` of None is a NULL pointer, as are `strides`."""
        self.kind = VERSIONED if versioned else LEGACY
        self.memory = None if isinstance(data, int) else np.frombuffer(bytearray(data) or bytearray(1), np.uint8)
        address = data if self.memory is None else self.memory.ctypes.data
        extents = (c_int64 * len(shape or ()))(*(shape or ()))
        steps = (c_int64 * len(strides or ()))(*(strides or ()))
        managed = CManagedVersioned(major=version[0], minor=version[1], flags=flags) if versioned else CManaged()
        managed.deleter = ctypes.cast(_delete, c_void_p).value if deleter else None
        tensor = managed.tensor
        tensor.data = address
        tensor.device_type, tensor.device_id = device
        tensor.ndim = len(shape or ()) if ndim is None else ndim
        tensor.code, tensor.bits, tensor.lanes = code, bits, lanes
        tensor.shape = None if shape is None else ctypes.addressof(extents)
        tensor.strides = None if strides is None else ctypes.addressof(steps)
        tensor.byte_offset = byte_offset
        self._name = self.kind if name is None else name
        self._block = _Block(managed, deleter, self.memory, extents, steps)
        free = ctypes.cast(_destroy, c_void_p) if destructor else None
        self.capsule: Any = _new(self._block.address, self._name, free)

    @property
    def deleter_calls(self) -> int:
        return self._block.deleter_calls

    @property
    def tensor(self) -> CTensor:
        found: CTensor = self._block.managed.tensor
        return found

    def call_deleter(self) -> None:
        """As a consumer would that took ownership."""
        _Deleter(self._block.managed.deleter)(self._block.address)

    def take(self) -> Any:
        """The capsule, whose only reference is now the caller's."""
        capsule, self.capsule = self.capsule, None
        return capsule

    def drop(self) -> None:
        """Give up the capsule."""
        self.capsule = None


def floats(count: int = 6, **fields: Any) -> Handmade:
    """A row of float32: 0, 1, 2, ..."""
    return Handmade(np.arange(count, dtype="f4").tobytes(), **{"shape": (count,), **fields})


def name_of(capsule: object) -> bytes | None:
    name: bytes | None = _get_name(capsule)
    return name


def consume(capsule: object) -> CTensor:
    """Rename a capsule to its `used_` name, as a consumer does that takes ownership, and give its tensor."""
    for kind, managed in ((LEGACY, CManaged), (VERSIONED, CManagedVersioned)):
        if _is_valid(capsule, kind):
            address = _get_pointer(capsule, kind)
            _set_name(capsule, USED[kind])
            found: CTensor = managed.from_address(address).tensor
            return found
    raise ValueError("not an unconsumed tensor capsule")


def tensor_of(capsule: object) -> CTensor:
    """The C tensor in an unconsumed capsule, which stays as it is."""
    if _is_valid(capsule, VERSIONED):
        found: CTensor = managed_of(capsule).tensor
        return found
    legacy: CTensor = CManaged.from_address(_get_pointer(capsule, LEGACY)).tensor
    return legacy


def managed_of(capsule: object) -> CManagedVersioned:
    """The managed tensor in an unconsumed versioned capsule."""
    return CManagedVersioned.from_address(_get_pointer(capsule, VERSIONED))


def int64s(address: int | None, count: int) -> tuple[int, ...] | None:
    """The numbers at an address; None for NULL."""
    return None if not address else tuple((c_int64 * count).from_address(address))


class Producer:
    """Speaks today's protocol and writes down what it was asked for."""

    def __init__(self, make: Callable[[], Handmade], device: tuple[int, int] = CPU) -> None:
        self.make = make
        self.device = device
        self.made: list[Handmade] = []
        self.asked: list[dict[str, Any]] = []

    def hand_out(self) -> Any:
        made = self.make()
        self.made.append(made)
        return made.take()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return self.hand_out()

    @property
    def deleter_calls(self) -> list[int]:
        return [made.deleter_calls for made in self.made]


class LegacyProducer(Producer):
    """Older than every keyword of the protocol."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        self.asked.append({})
        return self.hand_out()


class HostCopyProducer(Producer):
    """Lives on a device, and gives a host copy to whoever asks for one by the protocol."""

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if asked.get("dl_device") != CPU:
            raise AssertionError("asked for device memory")
        return self.hand_out()


class StubbornProducer(Producer):
    """Lives on a device and knows of no host copies."""

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if "dl_device" in asked or "copy" in asked:
            raise BufferError("no copies from this device")
        return self.hand_out()


class FaultyProducer(Producer):
    """Raises a TypeError of its own, whatever it is asked for."""

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        raise TypeError("the producer's own fault")


class ToDlpackOnly:
    """Has only the method that came before the protocol."""

    def __init__(self, made: Handmade) -> None:
        self.made = made

    def to_dlpack(self) -> Any:
        return self.made.take()


# --- devices ---------------------------------------------------------------------------------------------------------

DEVICES = [(kind, 0) for kind in (*range(1, 21), 99)] + [(2, 3), (1, 5), (3, 1), (-1, 0), (2**31 - 1, 7)]
# CPU and memory pinned for CUDA or ROCm. Managed memory (13) would need a synchronisation first.
READABLE = [d for d in DEVICES if d[0] in (1, 3, 11)]
ELSEWHERE = [d for d in DEVICES if d not in READABLE]


# --- C exchange tables ------------------------------------------------------------------------------------------------


class CTable(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    ]


_FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_TABLE_NAME = b"dlpack_exchange_api"


def tabled(
    make: Callable[[], Handmade],
    device: tuple[int, int] = CPU,
    *,
    version: tuple[int, int] = (1, 3),
    function: bool = True,
    status: int = 0,
    base: type[Producer] = Producer,
) -> Producer:
    """A producer whose type also has a C exchange table; `table_calls` counts its use."""

    @_FROM_OBJECT
    def from_object(x: Any, out: int) -> int:
        x.table_calls += 1
        ctypes.memmove(out, ctypes.addressof(x.lent.tensor), ctypes.sizeof(CTensor))
        return status

    address = ctypes.cast(from_object, ctypes.c_void_p) if function else None
    exchange = CTable(*version, tensor_from_object=address)
    capsule = _new_capsule(ctypes.addressof(exchange), _TABLE_NAME, None)
    held = {"__dlpack_c_exchange_api__": capsule, "_table": exchange, "_function": from_object, "table_calls": 0}
    x = type("Tabled", (base,), held)(make, device)
    x.lent = make()  # type: ignore[attr-defined]
    return x
