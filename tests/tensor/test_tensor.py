"""The tensor that decode gives: facts, parts, and ways out."""

from __future__ import annotations

import inspect
import operator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import EXTENSION_DTYPES, NATIVE_DTYPES, any_bits, arrays, lay_out, logical_bytes, native
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.tensor.dtype import table
from dlpack_wire.v1 import dlpack_pb2


def tensor(a: Any, writable: bool = False) -> dw.Tensor:
    message = dw.encode(a)
    return dw.decode(bytearray(message) if writable else message)


def message_of(code: int, bits: int, lanes: int, shape: list[int], data: bytes, **fields: Any) -> dw.Tensor:
    message = dlpack_pb2.DLTensor(dtype={"bits": bits, "lanes": lanes}, shape=shape, data=data, **fields)
    message.dtype.code = code  # type: ignore[assignment]
    return dw.from_proto(message)


@given(arrays())
def test_facts_are_those_of_the_array(a: np.ndarray[Any, Any]) -> None:
    t = tensor(a)
    assert (t.shape, t.ndim, t.size) == (a.shape, a.ndim, a.size)
    assert t.dtype is dw.DType(a.dtype)
    assert t.nbytes == t.header.payload_bytes == (a.size * t.dtype.element_bits + 7) // 8
    assert t.device == dw.Device(1, 0) == t.__dlpack_device__()
    assert t.header.device == (1, 0)
    assert t.byte_order == (0 if t.dtype.part_bytes == 1 else 1)
    assert len(t.strides) == a.ndim
    if a.ndim:
        assert len(t) == len(a)
        assert [part.shape for part in t] == [part.shape for part in a]


def test_a_0_d_tensor_has_no_length() -> None:
    with pytest.raises(TypeError):
        len(tensor(np.float32(1)))
    with pytest.raises(TypeError):
        list(tensor(np.float32(1)))


def test_flags_are_those_of_this_memory_now() -> None:
    assert tensor(np.ones(3)).flags == 1
    assert tensor(np.ones(3), writable=True).flags == 0
    assert tensor(np.ones(3, ">f4")).flags == 0
    assert message_of(0, 4, 1, [2], b"\1\2", flags=4).flags & 4


def test_the_header_is_what_was_recorded() -> None:
    t = message_of(2, 32, 1, [2], np.ones(2, ">f4").tobytes(), byte_order=2, device={"device_type": 2, "device_id": 3})
    assert t.header.byte_order == dw.ByteOrder.BIG
    assert t.header.device == (2, 3)
    assert t.byte_order == dw.ByteOrder.LITTLE
    assert t.device == (1, 0)
    assert t.header.checksum is None
    assert tensor(np.ones(2)).header.checksum == dw.to_proto(np.ones(2)).data_sum


def test_the_payload_is_row_major_whatever_the_memory_is() -> None:
    a = lay_out(np.dtype("i4"), (2, 3), "fortran")
    assert bytes(tensor(a).payload) == a.tobytes()
    assert bytes(tensor(a.astype(">i4")).payload) == a.tobytes()
    t = tensor(np.arange(6, dtype="f4"), writable=True)
    t.numpy()[0] = 9
    assert bytes(t.payload)[:4] == np.float32(9).tobytes()
    assert t.payload.format == "B"
    assert t.payload.ndim == 1


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_the_payload_of_odd_shapes(shape: tuple[int, ...]) -> None:
    for dtype in ("f4", "?", ml_dtypes.bfloat16, ml_dtypes.int4):
        a = np.zeros(shape, dtype)
        assert len(tensor(a).payload) == tensor(a).nbytes


# --- numpy ------------------------------------------------------------------------------------------------------------


def test_numpy_is_a_view() -> None:
    t = tensor(np.arange(6, dtype="f4"), writable=True)
    t.numpy()[0] = 5
    assert t.numpy()[0] == 5
    assert np.shares_memory(np.asarray(t), t.numpy())
    t.numpy().shape = (2, 3)
    assert t.shape == t.numpy().shape == (6,)


def test_the_array_protocol() -> None:
    t = tensor(np.arange(6, dtype="f4"))
    assert np.asarray(t).tolist() == list(range(6))
    assert np.array(t).flags.writeable
    assert not np.shares_memory(np.array(t, copy=True), t.numpy())
    assert np.asarray(t, dtype="f8").dtype == np.float64
    assert np.shares_memory(np.array(t, copy=False), t.numpy())
    with pytest.raises(ValueError, match="copy"):
        np.array(t, dtype="f8", copy=False)
    with pytest.raises(ValueError, match="copy"):
        np.array(tensor(np.zeros(3, ml_dtypes.int4)), copy=False)
    assert np.add(t, 1).tolist() == list(range(1, 7))


def test_types_that_numpy_lacks_are_refused_with_the_remedy() -> None:
    for t in (
        message_of(2, 32, 2, [1], bytes(8), byte_order=1),
        message_of(200, 16, 1, [1], bytes(2), byte_order=1),
        message_of(0, 7, 1, [1], b"\1"),
    ):
        for read in (t.numpy, lambda t=t: np.asarray(t)):
            with pytest.raises(dw.UnsupportedTensorError, match="payload"):
                read()
        assert bytes(t.payload)


def test_negative_strides_reach_numpy_as_they_are() -> None:
    a = np.arange(6.0).reshape(2, 3)
    t = message_of(2, 64, 1, [2, 3], a.tobytes(), strides=[-3, 1], byte_offset=24, byte_order=1)
    assert t.numpy().tolist() == a[::-1].tolist()
    assert t.strides == t.header.strides == (-3, 1)
    assert np.from_dlpack(t).tolist() == a[::-1].tolist()
    with pytest.raises(BufferError, match="negative"):
        t.__dlpack__(max_version=(1, 0), copy=False)


def test_gaps_between_rows_are_stepped_over() -> None:
    t = message_of(1, 8, 1, [2, 3], bytes(range(8)), strides=[5, 1])
    assert t.numpy().tolist() == [[0, 1, 2], [5, 6, 7]]
    assert bytes(t.payload) == b"\0\1\2\5\6\7"
    assert np.from_dlpack(t).tolist() == [[0, 1, 2], [5, 6, 7]]


# --- parts ------------------------------------------------------------------------------------------------------------

INDEX = st.one_of(
    st.integers(-3, 2),
    st.slices(3),
    st.just(Ellipsis),
    st.none(),
)


@given(arrays(), st.lists(INDEX, max_size=4).map(tuple))
def test_parts_are_numpys(a: np.ndarray[Any, Any], key: tuple[Any, ...]) -> None:
    t = tensor(a)
    try:
        expected = native(a)[(*key, ...) if Ellipsis not in key else key]
    except IndexError:
        with pytest.raises(IndexError):
            t[key]
        return
    part = t[key]
    assert isinstance(part, dw.Tensor)
    assert part.shape == expected.shape
    assert part.dtype is t.dtype
    assert logical_bytes(part.numpy()) == expected.tobytes()
    assert dw.encode(part) == dw.encode(expected)
    assert part.header.payload_bytes == part.nbytes


@pytest.mark.parametrize(
    "key", [(), ..., 0, -1, slice(None), slice(None, None, -2), (0, 1), (None, 1), (..., 0), np.int64(1)]
)
def test_parts_of_every_type_are_numpys(key: Any) -> None:
    for dtype in NATIVE_DTYPES + EXTENSION_DTYPES:
        a = any_bits(dtype, (3, 5))
        part = tensor(a)[key]
        whole = key if isinstance(key, tuple) else (key,)
        expected = a[whole if Ellipsis in whole else (*whole, ...)]
        assert (part.shape, part.numpy().tobytes()) == (expected.shape, expected.tobytes())


def test_parts_of_0_d_tensors_stay_0_d() -> None:
    t = tensor(np.float32(7))
    for key in ((), ..., (...,)):
        assert t[key].shape == ()
        assert t[key].numpy()[()] == 7


def test_parts_share_memory() -> None:
    t = tensor(np.arange(6, dtype="f4"), writable=True)
    t[2:4].numpy()[:] = 9
    assert t.numpy().tolist() == [0, 1, 9, 9, 4, 5]
    element = t[0]
    assert element.shape == ()
    element.numpy()[...] = 8
    assert t.numpy()[0] == 8


def test_parts_with_lanes_and_unknown_types() -> None:
    lanes = message_of(2, 32, 2, [3], np.arange(6, dtype="f4").tobytes(), byte_order=1)
    assert np.frombuffer(lanes[1:].payload, "f4").tolist() == [2, 3, 4, 5]
    unknown = message_of(200, 24, 1, [3], b"abcdefghi", byte_order=1)
    assert bytes(unknown[::-1].payload) == b"ghidefabc"
    packed = message_of(1, 4, 3, [2], bytes.fromhex("214365"))
    assert bytes(packed[1].payload) == bytes.fromhex("5406")
    assert bytes(packed[0].payload) == bytes.fromhex("2103")


@pytest.mark.parametrize("key", ["a", 1.5, [0, 1], np.array([0, 1]), True, np.bool_(False), (0, [1]), object()])
def test_other_indices_are_refused(key: Any) -> None:
    with pytest.raises(IndexError):
        tensor(np.arange(6))[key]


def test_out_of_range_is_an_index_error() -> None:
    t = tensor(np.arange(6))
    for key in (6, -7, (0, 0)):
        with pytest.raises(IndexError):
            t[key]
    assert [int(x.numpy()) for x in t] == list(range(6))


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [d.name for d in table() if d.numpy_or_none is not None])
def test_elements_become_pythons_own_numbers(name: str) -> None:
    low = 2 if name == "float8_e8m0fnu" else 0  # which has no zero
    values = np.array([[low, 1], [1, low]]).astype(dw.DType(name).numpy)
    t = tensor(values)
    wanted = [[complex(v) for v in row] for row in values]
    found = t.tolist()
    assert [[complex(v) for v in row] for row in found] == wanted
    own = type(found[0][0])
    assert own in (bool, int, float, complex)
    for i, j in np.ndindex(2, 2):
        one = t[i, j]
        assert type(one.item()) is own
        assert complex(one) == one.item() == found[i][j]
        assert bool(one) == bool(found[i][j])
        if own is not complex:
            assert (float(one), int(one)) == (float(found[i][j]), int(found[i][j]))
    if own is int:
        assert [10, 11][t[0, 1]] == 11
        assert t[t[0, 1]].tolist() == found[1]
    else:
        with pytest.raises(TypeError, match="no index"):
            operator.index(t[0, 1])


def test_values_of_other_byte_orders_and_extremes_are_exact() -> None:
    assert tensor(np.array([2**63 - 1, -(2**63)], ">i8")).tolist() == [2**63 - 1, -(2**63)]
    assert tensor(np.array(2**64 - 1, np.uint64)).item() == 2**64 - 1
    assert tensor(np.array([np.inf, -0.0], ml_dtypes.bfloat16)).tolist() == [np.inf, -0.0]
    assert tensor(np.array([[[7]]])).item() == 7
    assert tensor(np.zeros((2, 0))).tolist() == [[], []]


def test_bytes_are_the_payload() -> None:
    x = np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))
    assert bytes(tensor(x)) == np.arange(6, dtype="=i2").tobytes()


@pytest.mark.parametrize(
    "ask",
    {
        "bool": bool,
        "float": float,
        "int": int,
        "complex": complex,
        "index": operator.index,
        "equal": lambda t: t == t,
        "not equal": lambda t: t != 1,
        "in a list": lambda t: 0 in [t],
        "contains": lambda t: 0.0 in t,
        "less": lambda t: t < 1,
        "sum": lambda t: t + 1,
    }.items(),
    ids=lambda pair: pair[0],
)
@pytest.mark.parametrize("shape", [(3,), (1,), (0,), (1, 1)])
def test_what_has_no_one_answer_is_an_error(ask: tuple[str, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(TypeError):
        ask[1](tensor(np.zeros(shape)))


def test_a_tensor_is_nothing_else_than_none() -> None:
    t = tensor(np.zeros(3))
    assert (t == None, t != None) == (False, True)  # noqa: E711
    assert len({t, t}) == 1


def test_one_element_is_not_many() -> None:
    for shape in ((), (1,), (1, 1)):
        assert tensor(np.full(shape, 5)).item() == 5
    for shape in ((0,), (2,), (1, 2)):
        with pytest.raises(ValueError, match=f"has {np.prod(shape)} elements, not one"):
            tensor(np.full(shape, 5)).item()


def test_values_that_numpy_lacks_name_the_remedy() -> None:
    t = message_of(200, 16, 1, [1], b"ab", byte_order=1)
    for ask in (t.item, t.tolist, lambda: float(t[0])):
        with pytest.raises(dw.UnsupportedTensorError, match="payload"):
            ask()


# --- looks ------------------------------------------------------------------------------------------------------------


def test_repr_says_what_it_is() -> None:
    assert repr(tensor(np.zeros((2, 3), "f4"))) == "<Tensor float32[2, 3] 24 bytes: [[0. 0. 0.] [0. 0. 0.]]>"
    assert repr(tensor(np.zeros(17, "f4"))) == "<Tensor float32[17] 68 bytes>"
    assert repr(tensor(np.zeros((3, 0)))) == "<Tensor float64[3, 0] 0 bytes>"
    assert repr(message_of(200, 16, 1, [1], b"ab", byte_order=1)) == "<Tensor code200_16bit[1] 2 bytes>"
    there = message_of(1, 8, 1, [2], b"ab", device={"device_type": 2, "device_id": 1})
    assert repr(there) == "<Tensor uint8[2] 2 bytes, from cuda:1: [97 98]>"
    assert repr(tensor(np.float64(1))) == "<Tensor float64[] 8 bytes: 1.>"


def test_no_attribute_can_be_made_up() -> None:
    with pytest.raises(AttributeError):
        tensor(np.zeros(3)).name = "x"  # type: ignore[attr-defined]


def test_every_public_member_has_a_docstring() -> None:
    for name, member in inspect.getmembers(dw.Tensor):
        if not name.startswith("_"):
            assert inspect.getdoc(member), name


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e2m3fn", "int4", "uint2"])
def test_upper_bits_of_padded_elements_are_ignored(name: str) -> None:
    dtype = dw.DType(name)
    clean = np.arange(4, dtype=np.uint8)
    dirty = clean | np.uint8(0xFF << dtype.bits & 0xFF)
    message = dlpack_pb2.DLTensor(dtype={"code": dtype.code, "bits": dtype.bits, "lanes": 1}, shape=[4], flags=4)
    message.data = dirty.tobytes()
    assert (dw.from_proto(message).numpy() == clean.view(dtype.numpy)).all()


def test_a_read_only_mapping_is_copied_however_it_is_wrapped(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(dw.encode(np.arange(10_000)))
    run_python(
        f"""
        import mmap, numpy, torch
        import dlpack_wire as dw

        path = {str(tmp_path / "x")!r}
        plain = numpy.memmap(path, "u1", "r")
        for buffer in (plain, memoryview(plain), memoryview(memoryview(plain)), plain[:], memoryview(plain[:])):
            t = torch.from_dlpack(dw.decode(buffer))
            t[0] = 5
            t[-1] = 5
        """
    )
