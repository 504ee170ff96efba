"""Where tensors live: what the host can read is read in place, the rest is asked for; no device pointer is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_built_capsules import (
    CPU,
    CUDA,
    ELSEWHERE,
    READABLE,
    Handmade,
    HostCopyProducer,
    Producer,
    StubbornProducer,
    floats,
    tabled,
)
from matrix.expected import KINDS, LAYOUTS, Cannot, Expected, Kind
from matrix.frameworks import Framework, Torch, TvmFfi, lend
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.tensor.dtype import table

# torch says so whenever it copies complex32.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

SIX = dw.encode(np.arange(6, dtype="f4"))


def name_of(device: Any) -> str:
    return str(dw.Device(*device))


# --- what the host can read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
@pytest.mark.parametrize("device", READABLE, ids=name_of)
def test_readable_memory_is_read_where_it_is(device: tuple[int, int], versioned: bool) -> None:
    producer = Producer(lambda: floats(device=device, versioned=versioned), device)
    for x in (producer, floats(device=device, versioned=versioned).capsule):
        t = dw.decode(dw.encode(x))
        assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
        assert t.header.device == device
        assert t.device == CPU
    assert all(asked.keys() == {"max_version"} for asked in producer.asked)


# --- what it cannot ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ELSEWHERE, ids=name_of)
def test_a_host_copy_is_asked_for_first(device: tuple[int, int], tmp_path: Path) -> None:
    class Both(HostCopyProducer):
        def cpu(self) -> Any:
            raise AssertionError("the protocol comes first")

        get = cpu

    producer = Both(floats, device)
    t = dw.decode(dw.encode(producer))
    assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert [(a["dl_device"], a["copy"], "stream" in a) for a in producer.asked] == [(CPU, True, False)]
    assert t.header.device == device
    dw.save(tmp_path / "x.dlpw", producer, durable=False)
    assert (
        dw.load_one(tmp_path / "x.dlpw").header.device == dw.from_proto(dw.to_proto(producer)).header.device == device
    )


@pytest.mark.parametrize("refusal", [BufferError, TypeError, ValueError, NotImplementedError])
@pytest.mark.parametrize("method", ["cpu", "get"])
def test_the_librarys_own_way_is_next(method: str, refusal: type[Exception]) -> None:
    def refuse(self: Any, **asked: Any) -> Any:
        raise refusal("no copies")

    fetch = {method: lambda self: Producer(floats)}
    kind = type("Elsewhere", (), {"__dlpack__": refuse, "__dlpack_device__": lambda self: (10, 1), **fetch})
    t = dw.decode(dw.encode(kind()))
    assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert t.header.device == (10, 1)


def test_what_is_fetched_must_be_in_host_memory() -> None:
    class Loop(StubbornProducer):
        def cpu(self) -> Any:
            return self

    x = Loop(lambda: Handmade(0x10, shape=(6,), device=CUDA), CUDA)
    with pytest.raises(dw.UnsupportedTensorError, match="cuda:0"):
        dw.encode(x)


def test_a_fault_in_fetching_is_not_hidden() -> None:
    class OutOfMemory(StubbornProducer):
        def cpu(self) -> Any:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        dw.encode(OutOfMemory(floats, CUDA))


@pytest.mark.parametrize("device", ELSEWHERE, ids=name_of)
def test_memory_out_of_reach_is_refused_by_name(device: tuple[int, int]) -> None:
    with pytest.raises(dw.UnsupportedTensorError) as caught:
        dw.encode(StubbornProducer(lambda: Handmade(0x10, shape=(6,), device=device), device))
    assert isinstance(caught.value, BufferError)
    assert caught.value.field == "device"
    assert name_of(device) in str(caught.value)


def test_a_device_pointer_is_never_followed() -> None:
    """All addresses here are unmapped: reading one byte through them ends the process."""
    said = run_python("""
        import io
        import dlpack_wire as dw
        from hand_built_capsules import ELSEWHERE, Handmade, HostCopyProducer, LegacyProducer, Producer
        from hand_built_capsules import StubbornProducer, ToDlpackOnly, tabled

        refused = 0
        for address in (0x10, 0xDEAD0000, 0x7FFF_FFFF_F000):
            for device in ELSEWHERE:
                for versioned in (True, False):
                    for shape, strides in (((6,), None), ((2, 3), (1, 2)), ((), None), ((2, 2), (-2, 0)), ((0,), None)):
                        def make():
                            return Handmade(address, shape=shape, strides=strides, device=device, versioned=versioned)

                        for x in (
                            make().capsule,
                            Producer(make, device),
                            Producer(make, (1, 0)),
                            LegacyProducer(make, device),
                            StubbornProducer(make, device),
                            HostCopyProducer(make, device),
                            ToDlpackOnly(make()),
                            tabled(make, device),
                        ):
                            for write in (dw.encode, dw.to_proto, lambda x: dw.save(io.BytesIO(), x)):
                                if isinstance(x, ToDlpackOnly) and x.made.capsule is None:
                                    x = ToDlpackOnly(make())
                                try:
                                    write(x)
                                except BufferError as error:
                                    assert dw.Device(*device).__str__() in str(error), (x, device, error)
                                    refused += 1
        print(refused)
    """)
    assert int(said) == 3 * len(ELSEWHERE) * 2 * 5 * 8 * 3


# --- C exchange tables ------------------------------------------------------------------------------------------------


def test_the_exchange_table_is_used() -> None:
    x = tabled(floats)
    assert dw.encode(x) == dw.to_proto(x).SerializeToString() == SIX
    assert (x.table_calls, x.asked) == (2, [])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("bits", "asked"), [(4, 1), (7, 1), (8, 0), (64, 0)])
def test_types_that_may_be_padded_are_asked_for_by_the_protocol(bits: int, asked: int) -> None:
    """The table's tensor has no flags, which would say so."""
    x = tabled(lambda: Handmade(bytes(64), code=1, bits=bits, shape=(8,)))
    assert dw.to_proto(x).dtype.bits == bits
    assert len(x.asked) == asked


@pytest.mark.parametrize("fields", [{"version": (2, 0)}, {"function": False}], ids=str)
def test_tables_of_no_use_are_passed_over(fields: dict[str, Any]) -> None:
    x = tabled(floats, **fields)
    assert dw.encode(x) == SIX
    assert x.table_calls == 0  # type: ignore[attr-defined]


def test_a_table_that_refuses_says_so() -> None:
    with pytest.raises(BufferError, match="Tabled"):
        dw.encode(tabled(floats, status=-1))


def test_device_memory_behind_a_table_is_asked_for_as_well() -> None:
    elsewhere = tabled(lambda: Handmade(0x10, shape=(6,), device=CUDA), CUDA, base=HostCopyProducer)
    elsewhere.make = floats
    t = dw.decode(dw.encode(elsewhere))
    assert t.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert t.header.device == CUDA
    assert elsewhere.asked[0]["dl_device"] == CPU


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_gives_the_same_bytes_as_the_protocol(kind: Kind) -> None:
    """Also where elements of fewer than 8 bits are padded, which a table's tensor has no flag for."""
    for layout in LAYOUTS:
        try:
            x = lend(Expected(kind, layout))
        except Cannot:
            continue
        assert dw.encode(tabled(x.made)) == dw.encode(x)


class WithoutTable:
    """Another library's tensor, by the protocol alone."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        return self._x.__dlpack__(**asked)


def with_table(framework: Framework, expected: Expected) -> Any:
    """A framework's tensor of a type that has a table; of tvm-ffi that is its own wrapper."""
    x = framework.make(expected)
    return x if framework.name == "torch" else framework.lib.core.DLTensorTestWrapper(x)


@pytest.mark.parametrize("framework", [Torch(), TvmFfi()], ids=lambda f: f.name)
def test_tables_of_libraries_give_the_same_bytes_as_their_protocol(framework: Framework) -> None:
    if not framework.installed:
        pytest.skip(f"{framework.name} is not installed")
    compared = 0
    for kind in KINDS:
        for layout in LAYOUTS:
            try:
                x = with_table(framework, Expected(kind, layout))
            except Cannot:
                continue
            assert hasattr(type(x), "__dlpack_c_exchange_api__")
            assert dw.encode(x) == dw.encode(WithoutTable(x))
            compared += 1
    assert compared > 100


# --- what frameworks leave to the caller ------------------------------------------------------------------------------


def test_tensorflow_strings_do_not_end_the_process() -> None:
    pytest.importorskip("tensorflow")
    said = run_python("""
        import os
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where TensorFlow reports on the machine
        import tensorflow as tf
        import dlpack_wire as dw

        for x in (tf.constant("text"), tf.constant(["a", "b"]), tf.Variable("text"), tf.ragged.constant([[1], [2, 3]]),
                  tf.sparse.from_dense([[0, 1]])):
            for write in (dw.encode, dw.to_proto):
                try:
                    write(x)
                except BufferError as error:
                    print(error)
        x = tf.Variable([1.0, 2.0])
        assert dw.decode(dw.encode(x)).numpy().tolist() == [1.0, 2.0]
    """)
    assert said.count("tensor of string") == 6
    assert len(said.splitlines()) == 10


def test_numpy_scalars_of_every_type_are_0_d_tensors() -> None:
    for dtype in table():
        if dtype.numpy_or_none is not None:
            x = np.ones((), dtype.numpy)[()]
            if isinstance(x, np.generic):
                t = dw.decode(dw.encode(x))
                assert (t.shape, t.dtype) == ((), dtype)
                assert t.numpy()[()] == x


def test_sizes_and_numbers_of_other_libraries_are_shapes_and_indices() -> None:
    torch = pytest.importorskip("torch")
    from dlpack_wire.v1 import dlpack_pb2

    shape = torch.zeros(2, 3).shape
    message = dlpack_pb2.DLTensor(dtype={"code": 1, "bits": 8, "lanes": 1}, shape=shape, data=bytes(range(6)))
    t = dw.from_proto(message)
    assert t.shape == shape
    assert dw.encode(t) == dw.encode(np.arange(6, dtype="u1").reshape(shape))
    assert t[np.int64(1), torch.tensor(2)].numpy() == t[np.uint8(1)][torch.tensor(2)].numpy() == 5
    assert t[np.int8(0) : np.int8(1)].shape == (1, 3)
