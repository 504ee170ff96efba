"""One class per framework: how it makes a tensor, and how it takes one.

Nothing here uses the library, except that tensors are handed over by it: `make` builds an object that holds exactly
the expected bits in the expected layout, `take` reads a DLPack producer back.
"""

from __future__ import annotations

import ctypes
import os
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from hand_built_capsules import PADDED, Handmade, int64s, managed_of, tensor_of

import dlpack_wire as dw

from .expected import NO_PADDING, NO_TYPE, Cannot, Expected, Kind, is_row_major, unpack

# TensorFlow reports on the machine as it starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NO_LAYOUT = "has no such layout"
NO_EXPORT = "does not lend the type by DLPack"
REFUSED = "does not take the type by DLPack"
REFUSED_LAYOUT = "does not take the layout by DLPack"


class Taken(NamedTuple):
    """What a consumer sees: its name for the type, the extents, and the elements, row-major, one cell each."""

    dtype: str
    shape: tuple[int, ...]
    elements: bytes


class Framework:
    """A framework.

    Attributes:
        name: As people call it.
        distribution: What to install.
        module: What to import.
        makes, takes: Whether it is a producer, a consumer.
    """

    name: str
    distribution: str
    module: str
    makes = True
    takes = True

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """Without the part that names a build, such as `+cpu`."""
        return version(self.distribution).partition("+")[0]

    @cached_property
    def lib(self) -> Any:
        return import_module(self.module)

    def make(self, expected: Expected) -> Any:
        raise NotImplementedError

    def take(self, producer: Any) -> Taken:
        raise NotImplementedError


def lends(x: Any, expected: Expected) -> Any:
    """`x`, if its own library exports it at all, and as what it is."""
    try:
        capsule = x.__dlpack__()
    except Exception as error:
        raise Cannot(NO_EXPORT) from error
    c, dtype = tensor_of(capsule), expected.kind.dtype
    if (c.code, c.bits, c.lanes) != (dtype.code, dtype.bits, dtype.lanes):
        raise Cannot("lends the type as another one")
    return x


class Numpy(Framework):
    """numpy, with the types of ml_dtypes. Those are no part of numpy's own DLPack and leave through `np.asarray`."""

    name, distribution, module = "numpy", "numpy", "numpy"

    @property
    def version(self) -> str:
        return f"{version('numpy')} (ml_dtypes {version('ml_dtypes')})"

    def make(self, expected: Expected) -> Any:
        return expected.array()

    def take(self, producer: Any) -> Taken:
        try:
            array = np.from_dlpack(producer)
        except (BufferError, RuntimeError, SystemError) as error:
            if not hasattr(producer, "__array__") or not hasattr(ml_dtypes, producer.dtype.name):
                raise Cannot(NO_TYPE) from error
            array = np.asarray(producer)
        return Taken(array.dtype.name, array.shape, array.tobytes())


def has_foreign_order(native: np.dtype[Any]) -> bool:
    """Return False for the half-precision complex types of ml_dtypes before 0.7, whose functions swap differently."""
    return str(native.kind) != "W"


class ForeignNumpy(Numpy):
    """numpy arrays in the byte order that this machine does not have."""

    name = "numpy, swapped"
    takes = False

    def make(self, expected: Expected) -> Any:
        native = expected.kind.numpy
        part = native.itemsize // 2 if "complex" in native.name else native.itemsize
        if part == 1:
            raise Cannot("has one byte order for the type")
        if not has_foreign_order(native):
            raise Cannot("has no agreed second byte order for the type: ml_dtypes' own functions differ")
        other = copy(expected)
        other.room = expected.room.view(f"u{part}").byteswap().view(np.uint8)
        return other.view(native.newbyteorder("S"))


class Torch(Framework):
    name, distribution, module = "torch", "torch", "torch"

    def make(self, expected: Expected) -> Any:
        torch, wanted = self.lib, expected.kind.dtype
        dtype = getattr(torch, {"float4_e2m1fnx2": "float4_e2m1fn_x2"}.get(wanted.name, wanted.name), None)
        if not isinstance(dtype, torch.dtype):
            raise Cannot(NO_TYPE)
        if expected.kind.padded:
            raise Cannot(NO_PADDING)
        if wanted.bits < 8 and wanted.lanes == 1:
            raise Cannot("has only shells of such types, without a stated packing")
        if min(expected.layout.strides, default=0) < 0:
            raise Cannot(NO_LAYOUT)
        room = torch.from_numpy(expected.room).view(dtype) if expected.room.size else torch.empty(0, dtype=dtype)
        return room.as_strided(expected.layout.shape, expected.layout.strides, expected.layout.offset)

    def take(self, producer: Any) -> Taken:
        try:
            x = self._import(producer)
        except BufferError as error:
            raise Cannot(REFUSED) from error
        name = {"float4_e2m1fn_x2": "float4_e2m1fnx2"}.get(str(x.dtype)[6:], str(x.dtype)[6:])
        return Taken(name, tuple(x.shape), x.reshape(-1).view(self.lib.uint8).numpy().tobytes())

    def _import(self, producer: Any) -> Any:
        return self.lib.from_dlpack(producer)


class Jax(Framework):
    name, distribution, module = "jax", "jax", "jax"

    def make(self, expected: Expected) -> Any:
        jax, layout = self.lib, expected.layout
        array = expected.array()
        if not hasattr(jax.numpy, expected.kind.dtype.name):
            raise Cannot(NO_TYPE)
        dense = array.flags.forc or layout.name in ("channels-last", "empty")
        if not dense or min(layout.strides, default=0) < 0:
            raise Cannot(NO_LAYOUT)
        with jax.enable_x64(True):
            try:
                x = jax.numpy.asarray(np.ascontiguousarray(array).reshape(layout.shape))
                if not layout.is_row_major:
                    x = jax.device_put(x, self._order(layout.strides))
            except jax.errors.JaxRuntimeError as error:
                raise Cannot(NO_TYPE if layout.is_row_major else NO_LAYOUT) from error
            if expected.kind.is_packed and not layout.is_row_major:
                raise Cannot("packs elements in other orders too, which no message can say, so they are refused")
            return lends(x, expected)

    def _order(self, strides: tuple[int, ...]) -> Any:
        layouts = import_module("jax.experimental.layout")
        major_to_minor = tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))
        on = self.lib.sharding.SingleDeviceSharding(self.lib.devices()[0])
        return layouts.Format(layouts.Layout(major_to_minor), on)

    def take(self, producer: Any) -> Taken:
        with self.lib.enable_x64(True):
            try:
                x = self.lib.numpy.from_dlpack(producer)
            except self.lib.errors.JaxRuntimeError as error:
                raise Cannot(REFUSED) from error
            return Taken(x.dtype.name, x.shape, np.asarray(x).tobytes())


class Tensorflow(Framework):
    name, distribution, module = "tensorflow", "tensorflow", "tensorflow"

    def make(self, expected: Expected) -> Any:
        array = expected.array()
        try:
            self.lib.as_dtype(expected.kind.dtype.name)
        except TypeError as error:
            raise Cannot(NO_TYPE) from error
        if not array.flags.c_contiguous:
            raise Cannot(NO_LAYOUT)
        return lends(self.lib.constant(array), expected)

    def take(self, producer: Any) -> Taken:
        try:
            x = self.lib.experimental.dlpack.from_dlpack(producer.__dlpack__())
        except self.lib.errors.InvalidArgumentError as error:
            raise Cannot(REFUSED_LAYOUT if "strides" in str(error) else REFUSED) from error
        if producer.dtype.name == f"{x.dtype.name}x{producer.dtype.lanes}":
            raise Cannot("ignores lanes and takes one in so many")
        return Taken(x.dtype.name, tuple(x.shape), x.numpy().tobytes())


class Pyarrow(Framework):
    name, distribution, module = "pyarrow", "pyarrow", "pyarrow"

    def make(self, expected: Expected) -> Any:
        array = expected.array()
        try:
            x = self.lib.Tensor.from_numpy(array)
        except self.lib.ArrowNotImplementedError as error:
            raise Cannot(NO_TYPE) from error
        except self.lib.ArrowInvalid as error:
            raise Cannot(NO_LAYOUT) from error
        if self._name(x) != expected.kind.dtype.name:
            raise Cannot(NO_TYPE)
        return x

    def _name(self, x: Any) -> str:
        return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(x.type), str(x.type))

    def take(self, producer: Any) -> Taken:
        try:
            x = self.lib.Tensor.from_dlpack(producer)
        except (self.lib.ArrowInvalid, self.lib.ArrowTypeError) as error:
            raise Cannot(REFUSED) from error
        return Taken(self._name(x), tuple(x.shape), x.to_numpy().tobytes())


class ArrayApiStrict(Framework):
    name, distribution, module = "array-api-strict", "array-api-strict", "array_api_strict"

    def make(self, expected: Expected) -> Any:
        try:
            return self.lib.asarray(expected.array())
        except TypeError as error:
            raise Cannot(NO_TYPE) from error

    def take(self, producer: Any) -> Taken:
        try:
            x = self.lib.from_dlpack(producer)
        except (BufferError, RuntimeError, SystemError, TypeError) as error:
            raise Cannot(NO_TYPE) from error
        array = np.asarray(x)
        return Taken(array.dtype.name, x.shape, array.tobytes())


class TvmFfi(Framework):
    name, distribution, module = "tvm-ffi", "apache-tvm-ffi", "tvm_ffi"

    def make(self, expected: Expected) -> Any:
        if expected.kind.padded:
            raise Cannot(NO_PADDING)  # it asks for legacy capsules
        return self.lib.from_dlpack(lend(expected))

    def take(self, producer: Any) -> Taken:
        return read_capsule(self.lib.from_dlpack(producer).__dlpack__(max_version=(1, 3)))


class Kornia(Torch):
    """kornia's `Image`, which has only `to_dlpack()`."""

    name, distribution, module = "kornia Image", "kornia", "kornia"

    @cached_property
    def lib(self) -> Any:
        return import_module("torch")

    def make(self, expected: Expected) -> Any:
        image = import_module("kornia.image")
        x = super().make(expected)
        if x.ndim != 3:
            raise Cannot("has images of three dimensions")
        size = image.ImageSize(height=x.shape[1], width=x.shape[2])
        layout = image.ImageLayout(size, channels=x.shape[0], channels_order=image.ChannelsOrder.CHANNELS_FIRST)
        return image.Image(x, image.PixelFormat(image.ColorSpace.UNKNOWN, 8 * x.element_size()), layout)

    def take(self, producer: Any) -> Taken:
        if len(producer.shape) != 3:
            raise Cannot("has images of three dimensions")
        return super().take(producer)

    def _import(self, producer: Any) -> Any:
        return import_module("kornia.image").Image.from_dlpack(producer).data


class Capsules(Framework):
    """No framework: DLPack's C structs, written and read by hand. It can say everything that DLPack can."""

    name, distribution, module = "C structs", "C structs", "ctypes"

    @property
    def version(self) -> str:
        return "DLPack 1.3"

    def make(self, expected: Expected) -> Any:
        return lend(expected)

    def take(self, producer: Any) -> Taken:
        return read_capsule(producer.__dlpack__(max_version=(1, 3)))


@dataclass
class Lent:
    """A tensor in a hand-made capsule. Strides count elements.

    Without a destructor nobody frees what a consumer refuses; numpy refuses in a way that a Python one trips over.
    """

    kind: Kind
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    byte_offset: int
    memory: bytes
    destructor: bool = True

    @property
    def dtype(self) -> dw.DType:
        return self.kind.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        return self.made(versioned=max_version is not None).take()

    def made(self, versioned: bool = True) -> Handmade:
        return Handmade(
            self.memory,
            code=self.dtype.code,
            bits=self.dtype.bits,
            lanes=self.dtype.lanes,
            shape=self.shape,
            strides=self.strides,
            byte_offset=self.byte_offset,
            flags=PADDED if self.kind.padded else 0,
            versioned=versioned,
            destructor=self.destructor,
        )


def lend(expected: Expected) -> Lent:
    """The expected in a hand-made capsule."""
    kind, layout = expected.kind, expected.layout
    if not kind.is_packed:
        return Lent(kind, layout.shape, layout.strides, layout.offset * kind.cell_bytes, expected.room.tobytes())
    if not layout.is_row_major:
        raise Cannot("shares bytes between elements in row-major memory only")
    return Lent(kind, layout.shape, layout.strides, 0, expected.packed)


def read_capsule(capsule: Any) -> Taken:
    """What a versioned capsule says; the capsule stays unconsumed."""
    managed = managed_of(capsule)
    c = managed.tensor
    kind = Kind(dw.DType(c.code, c.bits, c.lanes), bool(managed.flags & PADDED))
    shape = int64s(c.shape, c.ndim) or ()
    count = prod(shape)
    if not count:
        return Taken(kind.name, shape, b"")
    start = c.data + c.byte_offset
    strides = int64s(c.strides, c.ndim) or ()
    if kind.is_packed:
        assert is_row_major(shape, strides)
        size = (count * kind.dtype.element_bits + 7) // 8
        return Taken(kind.name, shape, unpack(ctypes.string_at(start, size), c.bits, count * c.lanes))
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    element = np.dtype((np.void, kind.cell_bytes))
    memory = ctypes.string_at(start, reach * kind.cell_bytes)
    view = np.ndarray(shape, element, memory, 0, tuple(s * kind.cell_bytes for s in strides))
    return Taken(kind.name, shape, view.tobytes())


FRAMEWORKS: tuple[Framework, ...] = (
    Numpy(),
    ForeignNumpy(),
    Torch(),
    Jax(),
    Tensorflow(),
    Pyarrow(),
    ArrayApiStrict(),
    TvmFfi(),
    Kornia(),
    Capsules(),
)
