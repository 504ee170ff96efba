"""DLPack's C structs and capsules, through ctypes. The only module that touches raw memory.

Source: dlpack.h of DLPack 1.3 and "Python Specification for DLPack". Offsets are those of 64-bit platforms.

    DLTensor (48)   0 data*  8 device_type i32  12 device_id i32  16 ndim i32  20 code u8  21 bits u8  22 lanes u16
                    24 shape*  32 strides*  40 byte_offset u64
    DLManagedTensor (legacy)     0 DLTensor  48 manager_ctx*  56 deleter*
    DLManagedTensorVersioned     0 major u32  4 minor u32  8 manager_ctx*  16 deleter*  24 flags u64  32 DLTensor
    DLPackExchangeAPI            0 major u32  4 minor u32  8 prev*  16 allocator*  24 managed_from_object*
                                 32 managed_to_object*  40 dltensor_from_object*  48 current_work_stream*
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_longlong, c_size_t, c_ssize_t, c_void_p, py_object
from typing import Any

from ..errors import UnsupportedVersionError

if struct.calcsize("P") != 8:
    raise ImportError("dlpack_wire needs a 64-bit Python: DLPack's struct offsets are those of 64-bit platforms")

LEGACY = b"dltensor"
VERSIONED = b"dltensor_versioned"
EXCHANGE_API = b"dlpack_exchange_api"
MAJOR = 1
MINOR = 3
"""The DLPack version that this module understands; a larger minor version adds nothing that it must know."""

_DLTENSOR = struct.Struct("<QiiiBBHQQQ" if struct.pack("=H", 1) == b"\x01\x00" else ">QiiiBBHQQQ")
_VERSION = struct.Struct("=II")
_FLAGS = struct.Struct("=Q")
_DTYPE = struct.Struct("=BBH")

_api = ctypes.pythonapi
_prototype = ctypes.PYFUNCTYPE
_get_pointer = _prototype(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", _api))
_is_valid = _prototype(c_int, py_object, c_char_p)(("PyCapsule_IsValid", _api))
_get_name = _prototype(c_char_p, py_object)(("PyCapsule_GetName", _api))
_set_name = _prototype(c_int, py_object, c_char_p)(("PyCapsule_SetName", _api))
_get_destructor = _prototype(c_void_p, py_object)(("PyCapsule_GetDestructor", _api))
_memory_view = _prototype(py_object, c_void_p, c_ssize_t, c_int)(("PyMemoryView_FromMemory", _api))
_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_FROM_OBJECT = _prototype(c_int, py_object, c_void_p)
_READ, _WRITE = 0x100, 0x200

CAPSULE_TYPE = type(_prototype(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", _api))(1, b"", None))
"""`types.CapsuleType`, which Python has from 3.13 on."""

# PyCapsule_SetName keeps the pointer, so the bytes must live as long as any capsule: module constants.
_USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


RawTensor = tuple[int, int, int, int, int, int, int, int, int, int]
"""A C `DLTensor`: (data, device_type, device_id, ndim, code, bits, lanes, shape, strides, byte_offset).

Pointers are addresses, 0 for NULL. A plain tuple, as `struct` makes it: to build one with named fields would cost a
tenth of encoding a small tensor. Its readers unpack it into these names.
"""


_TensorBytes = ctypes.c_char * 48
_INT64S = [c_longlong * count for count in range(65)]


def is_capsule(obj: object) -> bool:
    """Return True for a PyCapsule of any name."""
    return type(obj) is CAPSULE_TYPE


def name_of(capsule: object) -> bytes | None:
    """Return the capsule's name."""
    name: bytes | None = _get_name(capsule)
    return name


def kind_of(capsule: object) -> bytes | None:
    """Return LEGACY or VERSIONED if the capsule holds an unconsumed tensor, else None."""
    if _is_valid(capsule, VERSIONED):
        return VERSIONED
    if _is_valid(capsule, LEGACY):
        return LEGACY
    return None


def pointer(capsule: object, kind: bytes) -> int:
    """Return the address in a capsule of that name."""
    address: int = _get_pointer(capsule, kind)
    return address


def claim(capsule: object, kind: bytes) -> None:
    """Rename an unconsumed capsule to its `used_` name, so that no other consumer takes it."""
    _set_name(capsule, _USED[kind])


def unclaim(capsule: object, kind: bytes) -> None:
    """Undo `claim`."""
    _set_name(capsule, kind)


def has_destructor(capsule: object) -> bool:
    """Return True if the capsule frees its tensor by itself when nobody consumes it."""
    return bool(_get_destructor(capsule))


def call_deleter(managed: int, kind: bytes) -> None:
    """Call the deleter of a managed tensor, if it has one."""
    address = c_size_t.from_address(managed + (16 if kind == VERSIONED else 56)).value
    if address:
        _DELETER(address)(managed)


def read_managed(managed: int, kind: bytes) -> tuple[RawTensor, int, tuple[int, int] | None]:
    """Read the tensor, flags and version of a managed tensor.

    Raises:
        UnsupportedVersionError: Its major version is another one; then no other byte of it is read.
    """
    if kind == LEGACY:
        return read_tensor(managed), 0, None
    head = ctypes.string_at(managed, 32)
    major, minor = _VERSION.unpack_from(head)
    if major != MAJOR:
        raise UnsupportedVersionError(
            f"DLPack {major}.{minor} tensor; this package reads {MAJOR}.x",
            found=(major, minor),
            supported=(MAJOR, MINOR),
        )
    return read_tensor(managed + 32), _FLAGS.unpack_from(head, 24)[0], (major, minor)


def read_tensor(address: int) -> RawTensor:
    """Read the C `DLTensor` at an address."""
    raw: RawTensor = _DLTENSOR.unpack(ctypes.string_at(address, 48))
    return raw


def read_int64s(address: int, count: int) -> tuple[int, ...]:
    """Read `count` numbers of 64 bits at an address, at most 64 of them."""
    return tuple(_INT64S[count].from_address(address)[:])


def memory(address: int, size: int, writable: bool = False) -> memoryview:
    """Return memory as a buffer that owns nothing: the memory's owner must be held meanwhile."""
    view: memoryview = _memory_view(address, size, _WRITE if writable else _READ)
    return view


def owned_memory(address: int, size: int, owner: object, writable: bool = False) -> memoryview:
    """Return memory as a buffer that keeps its owner alive, so that it may be handed on."""
    array = (ctypes.c_char * size).from_address(address)
    array.owner = owner  # type: ignore[attr-defined]
    view = memoryview(array).cast("B")
    return view if writable else view.toreadonly()


def relabel(
    capsule: object,
    *,
    dtype: tuple[int, int, int],
    shape: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    flags: int = 0,
) -> None:
    """Rewrite the header in a fresh capsule of ours, before anybody has seen it.

    The memory stays that of the array behind it, with its deleter. `shape` and `strides` must have the array's
    number of dimensions.
    """
    kind = kind_of(capsule)
    assert kind is not None
    managed = pointer(capsule, kind)
    tensor = managed
    if kind == VERSIONED:
        tensor = managed + 32
        major, minor = _VERSION.unpack(ctypes.string_at(managed, 8))
        _poke(managed, _VERSION.pack(major, max(minor, 1)))
        if flags:
            old = _FLAGS.unpack(ctypes.string_at(managed + 24, 8))[0]
            _poke(managed + 24, _FLAGS.pack(old | flags))
    _poke(tensor + 20, _DTYPE.pack(*dtype))
    _, _, _, _, _, _, _, shape_at, strides_at, _ = read_tensor(tensor)
    if shape:
        _poke(shape_at, struct.pack(f"={len(shape)}q", *shape))
    if strides and strides_at:
        _poke(strides_at, struct.pack(f"={len(strides)}q", *strides))


def _poke(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


TensorReader = Callable[[Any], RawTensor]


def exchange_reader(table: object) -> TensorReader | None:
    """Return a function that reads an object's tensor through a C exchange table, without owning it.

    Returns:
        None if the capsule is not such a table, is of another major version, or lacks that function. A tensor that
        the reader returns is valid while the object lives and is not resized.
    """
    if not is_capsule(table) or not _is_valid(table, EXCHANGE_API):
        return None
    address = pointer(table, EXCHANGE_API)
    if _VERSION.unpack(ctypes.string_at(address, 8))[0] != MAJOR:
        return None
    function = c_size_t.from_address(address + 40).value
    if not function:
        return None
    from_object = _FROM_OBJECT(function)
    unpack = _DLTENSOR.unpack_from
    address_of = ctypes.addressof

    def reader(obj: Any) -> RawTensor:
        into = _TensorBytes()
        if from_object(obj, address_of(into)) != 0:
            raise BufferError(f"the C exchange table of {type(obj).__name__} refused the object")
        raw: RawTensor = unpack(into)
        return raw

    return reader
