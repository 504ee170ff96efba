"""Borrowing from producers of every kind, and lending to consumers of every kind."""

from __future__ import annotations

import array
import ctypes
import types
import weakref
from typing import Any

import numpy as np
import pytest
from hand_built_capsules import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    PADDED,
    READ_ONLY,
    ROCM_HOST,
    Handmade,
    HostCopyProducer,
    LegacyProducer,
    Producer,
    StubbornProducer,
    ToDlpackOnly,
    floats,
    int64s,
    managed_of,
    name_of,
    tabled,
    tensor_of,
)
from strategies import NATIVE_DTYPES, ORDERS, lay_out, logical_bytes

import dlpack_wire as dw
from dlpack_wire.tensor.capsule import borrow, borrow_writable
from dlpack_wire.tensor.dtype import table
from dlpack_wire.v1 import dlpack_pb2

BOTH = pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
SIX = dw.encode(np.arange(6, dtype="f4"))


def values(x: Any) -> Any:
    return dw.decode(dw.encode(x)).numpy().tolist()


# --- borrowing --------------------------------------------------------------------------------------------------------


@BOTH
def test_null_strides_are_row_major(versioned: bool) -> None:
    for version in ((1, 0), (1, 2), (1, 3)):
        made = floats(12, shape=(3, 4), versioned=versioned, version=version)
        assert values(made.capsule) == np.arange(12).reshape(3, 4).tolist()


@BOTH
def test_strides_count_elements_and_may_be_anything_that_lies_in_memory(versioned: bool) -> None:
    memory = np.arange(24, dtype="f4")
    for shape, strides, first in (
        ((2, 3), (3, 1), 0),
        ((2, 3), (1, 2), 0),
        ((2, 3), (12, 4), 0),
        ((2, 3), (-3, -1), 5),
        ((2, 3), (0, 1), 0),
        ((4, 3), (1, 1), 2),
        ((2, 1, 3), (12, -999, 4), 0),
    ):
        made = Handmade(memory.tobytes(), shape=shape, strides=strides, byte_offset=4 * first, versioned=versioned)
        expected = np.lib.stride_tricks.as_strided(memory[first:], shape, [4 * s for s in strides])
        assert values(made.capsule) == expected.tolist()


@BOTH
def test_the_byte_offset_is_honoured(versioned: bool) -> None:
    memory = np.arange(10, dtype="i8")
    made = Handmade(memory.tobytes(), code=0, bits=64, shape=(3,), byte_offset=8, versioned=versioned)
    assert values(made.capsule) == [1, 2, 3]
    odd = Handmade(b"\xff" + memory.tobytes(), code=0, bits=64, shape=(3,), byte_offset=9, versioned=versioned)
    assert values(odd.capsule) == [1, 2, 3]


@BOTH
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_empty_tensors_may_have_no_memory_and_any_strides(shape: tuple[int, ...], versioned: bool) -> None:
    for strides in (None, (0,) * len(shape), (1,) * len(shape), (2**62,) * len(shape), (-(2**63),) * len(shape)):
        for data in (0, 1):
            made = Handmade(data, shape=shape, strides=strides, byte_offset=8, versioned=versioned)
            assert dw.encode(made.capsule) == dw.encode(np.empty(shape, "f4"))


@BOTH
def test_a_0_d_tensor_may_have_null_shape_and_strides(versioned: bool) -> None:
    made = Handmade(np.float32(7).tobytes(), shape=None, ndim=0, versioned=versioned)
    assert dw.encode(made.capsule) == dw.encode(np.float32(7))


@BOTH
@pytest.mark.parametrize("dtype", table(), ids=str)
def test_every_type_is_borrowed_packed_and_with_lanes(dtype: dw.DType, versioned: bool) -> None:
    for lanes in (1, 2, 3):
        d = dw.DType(dtype.code, dtype.bits, lanes)
        size = (5 * d.element_bits + 7) // 8
        content = bytearray(np.random.default_rng(2).integers(0, 2, size, np.uint8))
        if 5 * d.element_bits % 8:
            content[-1] &= (1 << 5 * d.element_bits % 8) - 1
        made = Handmade(content, code=d.code, bits=d.bits, lanes=lanes, shape=(5,), versioned=versioned)
        t = dw.decode(dw.encode(made.capsule))
        assert t.dtype is d
        assert bytes(t.payload) == content


def test_padded_tensors_are_borrowed_with_strides() -> None:
    made = Handmade(bytes(range(6)), code=1, bits=4, shape=(3, 2), strides=(1, 3), flags=PADDED)
    t = dw.decode(dw.encode(made.capsule))
    assert (t.flags & PADDED, t.strides, bytes(t.payload)) == (PADDED, (1, 3), b"\0\3\1\4\2\5")


def test_packed_tensors_with_strides_are_refused() -> None:
    made = Handmade(bytes(6), code=1, bits=4, shape=(3, 2), strides=(1, 3))
    with pytest.raises(dw.UnsupportedTensorError, match="row-major"):
        dw.encode(made.capsule)


@pytest.mark.parametrize("fields", [{"flags": PADDED}, {"flags": PADDED, "code": 17, "bits": 4, "lanes": 2}])
def test_padded_flags_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(dw.EncodeError, match="flags"):
        dw.encode(Handmade(bytes(24), **{"shape": (6,), **fields}).capsule)


def test_flags_of_the_exchange_do_not_reach_the_wire() -> None:
    assert dw.encode(floats(flags=READ_ONLY | 2 | 1 << 40).capsule) == SIX


@pytest.mark.parametrize(
    ("code", "bits", "lanes"), [(3, 64, 1), (2, 24, 1), (4, 32, 1), (2, 0, 1), (2, 32, 0), (200, 12, 1), (6, 1, 1)]
)
def test_impossible_types_are_refused_with_their_numbers(code: int, bits: int, lanes: int) -> None:
    with pytest.raises(dw.EncodeError, match=rf"code {code}, bits {bits}, lanes {lanes}"):
        dw.encode(Handmade(bytes(64), code=code, bits=bits, lanes=lanes, shape=(2,)).capsule)


# --- protocols --------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", [Producer, LegacyProducer])
def test_producers_of_both_protocols(kind: type[Producer], versioned: bool) -> None:
    producer = kind(lambda: floats(versioned=versioned))
    assert dw.encode(producer) == SIX
    assert dw.to_proto(producer).SerializeToString() == SIX


def test_a_cpu_producer_is_never_given_a_stream() -> None:
    producer = Producer(floats)
    dw.encode(producer)
    assert all("stream" not in asked for asked in producer.asked)
    assert producer.asked[0]["max_version"][0] == 1
    assert producer.asked[0]["max_version"] >= (1, 1)


def test_a_producer_may_lack_dlpack_device() -> None:
    class NoDevice:
        def __dlpack__(self, **_: Any) -> Any:
            return floats().take()

    assert dw.encode(NoDevice()) == SIX


def test_objects_with_only_to_dlpack() -> None:
    for versioned in (True, False):
        assert dw.encode(ToDlpackOnly(floats(versioned=versioned))) == SIX


def test_the_protocol_is_preferred_to_to_dlpack() -> None:
    class Two(Producer):
        def to_dlpack(self) -> Any:
            raise AssertionError("the old way")

    assert dw.encode(Two(floats)) == SIX


def test_messages_are_producers_too() -> None:
    message = dlpack_pb2.DLTensor.FromString(SIX)
    assert dw.encode(message) == SIX
    assert dw.to_proto(message) == message
    message.data_sum += 1
    with pytest.raises(dw.ChecksumError):
        dw.encode(message)


def test_our_own_tensors_are_producers() -> None:
    t = dw.decode(SIX)
    assert dw.encode(t) == SIX
    assert dw.encode(t[2:4]) == dw.encode(np.arange(2, 4, dtype="f4"))


@pytest.mark.parametrize("x", [None, 7, "dltensor", object(), lambda: None], ids=repr)
def test_no_producer_at_all(x: Any) -> None:
    with pytest.raises(dw.UnsupportedTensorError):
        dw.encode(x)


REMEDIES = {
    "number": (7, "numpy.asarray"),
    "list": ([1.0], "numpy.asarray"),
    "array": (array.array("f", [1]), "numpy.asarray"),
    "memoryview": (memoryview(b"a"), "numpy.asarray"),
    "mapping": ({"a": 1}, "flatten"),
    "None": (None, "metadata"),
    "text": ("a", "metadata"),
    "bytes": (b"a", "metadata"),
    "model": (type("Model", (), {"state_dict": None})(), "state_dict"),
    "frame": (type("Frame", (), {"to_numpy": None})(), "to_numpy"),
    "object": (object(), "neither __dlpack__ nor to_dlpack"),
}


@pytest.mark.parametrize(("x", "remedy"), REMEDIES.values(), ids=REMEDIES.keys())
def test_refusals_name_the_type_and_a_remedy(x: Any, remedy: str) -> None:
    with pytest.raises(dw.UnsupportedTensorError, match=remedy) as caught:
        borrow(x)
    kind = type(x)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    assert str(caught.value).startswith(f"{name} is not a tensor: ")


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(dw.UnsupportedTensorError, match="mask"):
        borrow(np.ma.array([1, 2], mask=[0, 1]))


@BOTH
@pytest.mark.parametrize("ndim", [-(2**31), -1, 65, 2**31 - 1])
def test_impossible_numbers_of_dimensions_are_refused_with_the_number(ndim: int, versioned: bool) -> None:
    for x in (floats(ndim=ndim, versioned=versioned).capsule, tabled(lambda: floats(ndim=ndim))):
        with pytest.raises(dw.EncodeError, match="dimensions") as caught:
            dw.encode(x)
        assert (caught.value.field, caught.value.declared, caught.value.limit) == ("shape", ndim, 64)


def test_the_most_dimensions_there_may_be() -> None:
    for make in (lambda: floats(1, shape=(1,) * 64), lambda: floats(1, shape=(1,) * 64, strides=(1,) * 64)):
        for x in (make().capsule, tabled(make)):
            assert dw.decode(dw.encode(x)).shape == (1,) * 64


def test_a_missing_shape_is_refused() -> None:
    for x in (floats(shape=None, ndim=2).capsule, tabled(lambda: floats(shape=None, ndim=2))):
        with pytest.raises(dw.EncodeError, match="NULL for 2 dimensions") as caught:
            dw.encode(x)
        assert caught.value.field == "shape"


def test_missing_memory_is_refused() -> None:
    for x in (Handmade(0, shape=(6,)).capsule, tabled(lambda: Handmade(0, shape=(6,), byte_offset=8))):
        with pytest.raises(dw.EncodeError, match="NULL for 24 bytes") as caught:
            dw.encode(x)
        assert caught.value.field == "data"


def test_a_class_is_no_producer() -> None:
    """It has `__dlpack__`, but as a function of its instances."""
    with pytest.raises(dw.UnsupportedTensorError):
        dw.encode(Producer)


# --- memory to write into ---------------------------------------------------------------------------------------------


def test_writing_reaches_the_tensor_itself() -> None:
    a = np.zeros(6, "f4")
    made = floats()
    through_table = tabled(floats)
    for x, memory in (
        (a, a.view("u1")),
        (Producer(lambda: made), made.memory),
        (through_table, through_table.lent.memory),  # type: ignore[attr-defined]
    ):
        with borrow_writable(x) as borrowed:
            borrowed.array.view("u1")[4:8] = 255
        assert memory is not None
        assert memory[4:8].tolist() == [255] * 4


def test_torch_memory_is_written_into() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(6, dtype=torch.int32)
    with borrow_writable(x) as borrowed:
        borrowed.array[:] = 7
    assert x.tolist() == [7] * 6
    lazy = torch.zeros(3, dtype=torch.complex64).conj()
    with pytest.raises(dw.UnsupportedTensorError, match="lazy"):
        borrow_writable(lazy)


def _read_only_array() -> np.ndarray[Any, Any]:
    a = np.zeros(6, "f4")
    a.flags.writeable = False
    return a


NOT_WRITABLE = {
    "read-only array": (_read_only_array, "read-only"),
    "read-only capsule": (lambda: Producer(lambda: floats(flags=READ_ONLY)), "for writing"),
    "copy": (lambda: Producer(lambda: floats(flags=2)), "for writing"),
    "legacy capsule": (lambda: Producer(lambda: floats(versioned=False)), "for writing"),
    "capsule that nobody frees": (lambda: Producer(lambda: floats(destructor=False)), "cannot be written into"),
    "capsule of another kind": (lambda: Producer(lambda: floats(name=b"other")), "cannot be written into"),
    "producer without a capsule": (lambda: type("Odd", (), {"__dlpack__": lambda self, **_: 7})(), "7"),
    "device memory": (lambda: Producer(lambda: Handmade(0x10, shape=(6,), device=CUDA), CUDA), "cuda:0"),
    "object": (object, "is not a tensor"),
}


@pytest.mark.parametrize(("make", "said"), NOT_WRITABLE.values(), ids=NOT_WRITABLE.keys())
def test_memory_that_may_not_be_written_into_is_refused(make: Any, said: str) -> None:
    with pytest.raises(dw.UnsupportedTensorError, match=said):
        borrow_writable(make())


def test_borrowed_memory_is_read_only_unless_it_was_asked_for() -> None:
    for x in (floats().capsule, Producer(floats), tabled(floats)):
        with borrow(x) as borrowed:
            assert not borrowed.array.flags.writeable


def test_only_memory_out_of_a_capsule_goes_with_its_release() -> None:
    for x, lasting in ((np.zeros(3), True), (floats().capsule, False), (Producer(floats), False)):
        with borrow(x) as borrowed:
            assert borrowed.lasting is lasting


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, CUDA_HOST, ROCM_HOST, (3, 2), (1, 5)])
def test_host_readable_memory_is_read_in_place(device: tuple[int, int]) -> None:
    for x in (floats(device=device).capsule, Producer(lambda: floats(device=device), device)):
        t = dw.decode(dw.encode(x))
        assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        assert t.header.device == device
        assert t.device == t.__dlpack_device__() == CPU


@pytest.mark.parametrize("device", [CUDA, (2, 3), CUDA_MANAGED, (8, 0), (99, 1)])
def test_a_host_copy_is_asked_for_by_the_protocol(device: tuple[int, int]) -> None:
    producer = HostCopyProducer(floats, device)
    t = dw.decode(dw.encode(producer))
    assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert t.header.device == device
    assert producer.asked[-1]["dl_device"] == CPU
    assert producer.deleter_calls == [1]


@pytest.mark.parametrize(("device", "named"), [(CUDA, "cuda:0"), (CUDA_MANAGED, "cuda_managed:0"), ((99, 1), "99:1")])
def test_memory_elsewhere_is_refused_by_name_and_never_read(device: tuple[int, int], named: str) -> None:
    """The pointers here would crash if they were followed."""
    for x in (
        Handmade(0x10, shape=(6,), device=device).capsule,
        StubbornProducer(lambda: Handmade(0x10, shape=(6,), device=device), device),
        ToDlpackOnly(Handmade(0x10, shape=(6,), device=device)),
    ):
        with pytest.raises(BufferError, match=named):
            dw.encode(x)


def test_a_producer_that_lies_about_its_device_is_not_believed() -> None:
    with pytest.raises(BufferError, match="cuda:0"):
        dw.encode(Producer(lambda: Handmade(0x10, shape=(6,), device=CUDA), CPU))
    with pytest.raises(BufferError, match="cuda:0"):
        dw.encode(HostCopyProducer(lambda: Handmade(0x10, shape=(6,), device=CUDA), CUDA))


def test_the_ways_of_libraries_without_the_protocol_are_tried() -> None:
    class Torchlike(StubbornProducer):
        def cpu(self) -> Any:
            return Producer(floats)

    class Cupylike(StubbornProducer):
        def get(self) -> Any:
            return np.arange(6, dtype="f4")

    for kind in (Torchlike, Cupylike):
        t = dw.decode(dw.encode(kind(lambda: Handmade(0x10, shape=(6,), device=CUDA), CUDA)))
        assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        assert t.header.device == CUDA


def test_a_fetched_object_that_is_no_producer_is_passed_over() -> None:
    class Odd(StubbornProducer):
        def cpu(self) -> Any:
            return [1, 2]

        def get(self) -> Any:
            return np.arange(6, dtype="f4")

    t = dw.decode(dw.encode(Odd(lambda: Handmade(0x10, shape=(6,), device=CUDA), CUDA)))
    assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_tensors_of_tensorflow_without_numbers_are_refused_before_they_are_exported() -> None:
    class Strings(Producer):
        dtype = types.SimpleNamespace(name="string")

    Strings.__module__ = "tensorflow.python"
    strings = Strings(floats)
    with pytest.raises(dw.UnsupportedTensorError, match="holds no numbers"):
        dw.encode(strings)
    assert strings.asked == []


# --- lending ----------------------------------------------------------------------------------------------------------


def lent(t: dw.Tensor, **options: Any) -> tuple[Any, Any]:
    """A capsule (to be held) and its C tensor."""
    capsule = t.__dlpack__(**options)
    return capsule, tensor_of(capsule)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (0,), (3, 0, 2)])
@pytest.mark.parametrize("options", [{}, {"max_version": (1, 3)}], ids=["legacy", "versioned"])
@pytest.mark.parametrize("dtype", [*table(), dw.DType("code200_16bit"), dw.DType("code255_24bit")], ids=str)
def test_capsules_say_what_the_tensor_is(dtype: dw.DType, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    for lanes in (1, 2, 3):
        d = dw.DType(dtype.code, dtype.bits, lanes)
        message = dlpack_pb2.DLTensor(dtype={"bits": d.bits, "lanes": lanes}, shape=shape, byte_order=1)
        message.dtype.code = d.code  # type: ignore[assignment]
        message.data = bytes((int(np.prod(shape, dtype=int)) * d.element_bits + 7) // 8)
        t = dw.decode(bytearray(message.SerializeToString()))
        capsule, c = lent(t, **options)
        assert name_of(capsule) == (b"dltensor_versioned" if options else b"dltensor")
        assert (c.code, c.bits, c.lanes) == (d.code, d.bits, lanes)
        assert (c.device_type, c.device_id, c.byte_offset) == (1, 0, 0)
        assert c.ndim == len(shape)
        assert int64s(c.shape, c.ndim) == (shape or None) or shape == ()
        if shape and 0 not in shape:
            assert int64s(c.strides, c.ndim) == t.strides
        if message.data:
            assert c.data % d.alignment == 0
        if options:
            managed = managed_of(capsule)
            assert managed.major == 1
            assert managed.minor >= (1 if d.code >= 7 else 0)
            assert managed.flags == 0
        assert dw.encode(capsule) == dw.encode(t)


@pytest.mark.parametrize("order", [o for o in ORDERS if o != "negative"])
@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=lambda d: d.name)
def test_numpy_takes_what_we_lend(dtype: np.dtype[Any], order: str) -> None:
    for shape in ((), (3,), (2, 3, 2), (0, 2)):
        a = lay_out(dtype, shape, order)
        t = dw.decode(bytearray(dw.encode(a)))
        taken = np.from_dlpack(t)
        assert (taken.dtype, taken.shape) == (a.dtype, a.shape)
        assert taken.tobytes() == logical_bytes(a)
        assert a.size == 0 or np.shares_memory(taken, t.numpy())


@pytest.mark.parametrize("order", ORDERS)
def test_torch_and_jax_take_what_we_lend(order: str) -> None:
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    for name in ("f4", "i4", "u1", "?", "c8"):
        for shape in ((), (3,), (2, 3), (0, 2)):
            a = lay_out(np.dtype(name), shape, order)
            t = dw.decode(bytearray(dw.encode(a)))
            x = torch.from_dlpack(t)
            assert x.numpy().tobytes() == a.tobytes()
            assert x.shape == a.shape
            y = jnp.from_dlpack(t)
            assert np.asarray(y).tobytes() == a.tobytes()
            assert y.shape == a.shape


def test_read_only_memory_is_flagged_or_copied() -> None:
    t = dw.decode(SIX)
    capsule, c = lent(t, max_version=(1, 0))
    assert managed_of(capsule).flags & READ_ONLY
    assert c.data == t.numpy().ctypes.data
    capsule, c = lent(t)
    assert c.data != t.numpy().ctypes.data
    with pytest.raises(BufferError):
        t.__dlpack__(copy=False)
    assert not np.from_dlpack(t).flags.writeable
    capsule, c = lent(t, max_version=(1, 0), copy=True)
    assert managed_of(capsule).flags == 2
    assert c.data != t.numpy().ctypes.data


def test_writable_memory_is_lent_as_it_is() -> None:
    t = dw.decode(bytearray(SIX))
    for options in ({}, {"max_version": (1, 0)}, {"copy": False}):
        _, c = lent(t, **options)
        assert c.data == t.numpy().ctypes.data
    _, c = lent(t, copy=True)
    assert c.data != t.numpy().ctypes.data


def test_padded_memory_is_flagged_or_packed() -> None:
    message = dlpack_pb2.DLTensor(dtype={"code": 0, "bits": 4, "lanes": 1}, shape=[3], flags=4, data=b"\1\2\3")
    t = dw.from_proto(message)
    capsule, c = lent(t, max_version=(1, 1))
    assert managed_of(capsule).flags & PADDED
    capsule, c = lent(t)
    assert (ctypes.string_at(c.data, 2), c.bits) == (b"\x21\x03", 4)
    writable = dw.decode(bytearray(message.SerializeToString()))
    with pytest.raises(BufferError, match="padded"):
        writable.__dlpack__(copy=False)


def test_the_consumers_version_is_heeded() -> None:
    t = dw.decode(SIX)
    for version, name in (((0, 9), b"dltensor"), ((1, 0), b"dltensor_versioned"), ((2, 0), b"dltensor_versioned")):
        capsule = t.__dlpack__(max_version=version)
        assert name_of(capsule) == name
        if name == b"dltensor_versioned":
            assert managed_of(capsule).major == 1


def test_another_device_or_stream_is_refused() -> None:
    t = dw.decode(SIX)
    for options in ({"dl_device": (2, 0)}, {"dl_device": (1, 1)}, {"stream": 1}):
        with pytest.raises(BufferError):
            t.__dlpack__(**options)
    for options in ({"dl_device": (1, 0)}, {"dl_device": None}, {"stream": None}):
        t.__dlpack__(**options)


@pytest.mark.parametrize(
    ("code", "bits", "lanes", "byte_order"),
    [(300, 8, 1, 0), (256, 8, 1, 0), (200, 256, 1, 1), (200, 8, 65536, 0), (2, 32, 65536, 1), (200, 16, 1, 2)],
)
def test_what_no_capsule_can_say_is_refused(code: int, bits: int, lanes: int, byte_order: int) -> None:
    message = dlpack_pb2.DLTensor(dtype={"bits": bits, "lanes": lanes}, data=bytes(bits * lanes // 8))
    message.dtype.code = code  # type: ignore[assignment]
    message.byte_order = byte_order  # type: ignore[assignment]
    t = dw.from_proto(message)
    with pytest.raises(BufferError):
        t.__dlpack__(max_version=(1, 3))
    assert dw.decode(dw.encode(t)).header == dw.decode(dw.encode(t)).header


def test_a_lent_capsule_that_nobody_takes_is_freed() -> None:
    class Watched(bytearray):
        """A bytearray that weak references can watch."""

    buffer = Watched(SIX)
    gone = weakref.ref(buffer)
    capsule = dw.decode(buffer).__dlpack__(max_version=(1, 0))
    del buffer
    assert gone() is not None
    del capsule
    assert gone() is None
