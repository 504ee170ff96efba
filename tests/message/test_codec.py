"""Messages: what goes in comes out, the bytes are the contract's, and nothing hostile gets further than an error."""

from __future__ import annotations

import array
import mmap
import random
import struct
import time
import tracemalloc
from collections import UserDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hand_built_capsules import PADDED, Handmade, Producer, ToDlpackOnly, floats
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    ALL_DTYPES,
    EXTENSION_DTYPES,
    NATIVE_DTYPES,
    ORDERS,
    SWAPPED_DTYPES,
    any_bits,
    arrays,
    lay_out,
    logical_bytes,
    native,
)
from subprocesses import run_python
from xxhash import xxh3_64_intdigest

import dlpack_wire as dw
from dlpack_wire.message.codec import is_tensor
from dlpack_wire.v1 import dlpack_pb2

SHAPES = ((), (1,), (5,), (2, 3), (4, 1, 3), (2, 3, 1, 2), (0,), (3, 0, 2))


def ids(dtypes: tuple[np.dtype[Any], ...]) -> list[str]:
    return [d.name if d.isnative else f"swapped {d.name}" for d in dtypes]


def check_same(t: dw.Tensor, a: np.ndarray[Any, Any]) -> None:
    """The tensor is the array: type, shape and every bit of every element."""
    assert t.shape == a.shape
    assert t.dtype.numpy == native(a).dtype
    assert logical_bytes(t.numpy()) == logical_bytes(a)


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=ids(ALL_DTYPES))
def test_every_type_in_every_layout_arrives(dtype: np.dtype[Any], order: str) -> None:
    for shape in SHAPES:
        a = lay_out(dtype, shape, order)
        before = logical_bytes(a)
        message = dw.encode(a)
        check_same(dw.decode(message), a)
        check_same(dw.from_proto(dw.to_proto(a)), a)
        check_same(dw.decode(dw.encode(a, layout="compact", checksum=False)), a)
        assert logical_bytes(a) == before


@given(arrays())
def test_any_array_arrives_by_every_route(a: np.ndarray[Any, Any]) -> None:
    message = dw.encode(a)
    proto = dw.to_proto(a)
    assert proto.SerializeToString() == message
    assert dlpack_pb2.DLTensor.FromString(message) == proto
    assert dw.encode(proto) == dw.encode(dw.decode(message))
    for t in (dw.decode(message), dw.decode(bytearray(message)), dw.from_proto(proto), dw.decode(message, copy=True)):
        check_same(t, a)


@given(arrays(NATIVE_DTYPES + EXTENSION_DTYPES))
def test_what_is_decoded_encodes_to_the_same_bytes(a: np.ndarray[Any, Any]) -> None:
    message = dw.encode(a)
    assert dw.encode(dw.decode(message)) == message


@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=ids(NATIVE_DTYPES))
def test_equal_tensors_give_equal_bytes_whichever_library_made_them(dtype: np.dtype[Any]) -> None:
    torch = pytest.importorskip("torch")
    for shape in SHAPES:
        a = any_bits(dtype, shape)
        expected = dw.encode(a)
        code, bits = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}[dtype.kind], dtype.itemsize * 8
        assert dw.encode(torch.from_numpy(a)) == expected
        for versioned in (True, False):
            made = Handmade(a.tobytes(), code=code, bits=bits, shape=shape, versioned=versioned)
            assert dw.encode(made.capsule) == expected
        assert dw.encode(dw.decode(expected)) == expected
        assert dw.encode(a, layout="compact") == expected


def test_jax_and_numpy_give_equal_bytes() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for a in (any_bits(np.dtype("f4"), (2, 3)), np.arange(6, dtype="i4"), np.array([True, False]), np.float32(2)[...]):
        assert dw.encode(jnp.asarray(a)) == dw.encode(a)
    assert dw.encode(jnp.ones(3, jnp.bfloat16)) == dw.encode(np.ones(3, ml_dtypes.bfloat16))


@pytest.mark.parametrize("shape", [(1,), (1, 77), (1024, 1), (1, 2, 3, 4), (2, 1, 3)])
def test_strides_of_axes_of_size_1_leave_no_trace(shape: tuple[int, ...]) -> None:
    a = lay_out(np.dtype("f4"), shape, "c")
    odd = lay_out(np.dtype("f4"), shape, "odd_size_1")
    assert odd.strides != a.strides
    assert dw.encode(odd) == dw.encode(a)
    torch = pytest.importorskip("torch")
    assert dw.encode(torch.as_strided(torch.from_numpy(a), shape, [s // 4 for s in odd.strides])) == dw.encode(a)


def test_nan_payloads_and_signed_zeros_keep_their_bits() -> None:
    for kind, size in (("f2", 2), ("f4", 4), ("f8", 8)):
        bits = [0, 1 << (size * 8 - 1), (1 << size * 8) - 1, (1 << size * 8 - 1) - 1, 0x7C01 << (size - 2) * 8]
        for order in "<>":
            a = np.array(bits, f"{order}u{size}").view(f"{order}{kind}")
            assert dw.decode(dw.encode(a)).numpy().view(f"u{size}").tolist() == bits


# --- what the writer keeps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fortran", "permuted"])
def test_dense_memory_keeps_its_layout(order: str) -> None:
    a = lay_out(np.dtype("i2"), (2, 3, 4), order)
    t = dw.decode(dw.encode(a))
    assert t.strides == t.header.strides == tuple(s // 2 for s in a.strides)
    assert t.numpy().strides == a.strides


@pytest.mark.parametrize("order", ["sliced", "negative", "broadcast"])
def test_everything_else_is_packed_row_major(order: str) -> None:
    a = lay_out(np.dtype("i2"), (2, 3, 4), order)
    t = dw.decode(dw.encode(a))
    assert t.header.strides is None
    assert t.header.payload_bytes == a.size * 2
    assert dw.encode(a) == dw.encode(np.array(a, order="C", copy=True))


def test_compact_forces_row_major() -> None:
    a = lay_out(np.dtype("i2"), (2, 3), "fortran")
    assert dw.encode(a, layout="compact") == dw.encode(np.ascontiguousarray(a))


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(dw.EncodeError, match="layout"):
        dw.encode(np.ones(3), layout="fastest")  # type: ignore[arg-type]


def test_byte_strides_that_are_no_whole_elements_are_packed() -> None:
    a = np.zeros(5, np.dtype([("a", "u1"), ("b", "<f4")]))["b"]
    a[:] = range(5)
    check_same(dw.decode(dw.encode(a)), a)
    room = any_bits(np.dtype("u1"), (40,))
    a = np.ndarray((2, 3), "f4", room, 0, (5, 11))
    t = dw.decode(dw.encode(a))
    check_same(t, a)
    assert t.header.strides is None


def test_a_broadcast_matrix_keeps_all_its_rows() -> None:
    torch = pytest.importorskip("torch")
    rows = [[1.0, 2.0]] * 4
    for x in (np.broadcast_to(np.array([1.0, 2.0]), (4, 2)), torch.tensor([1.0, 2.0]).double().expand(4, 2)):
        t = dw.decode(dw.encode(x))
        assert t.numpy().tolist() == rows
        assert t.header.payload_bytes == 4 * 2 * 8
    assert dw.decode(dw.encode(np.broadcast_to(np.int64(7), (3, 3)))).numpy().tolist() == [[7] * 3] * 3


def test_a_small_view_carries_no_more_than_itself() -> None:
    torch = pytest.importorskip("torch")
    big = np.zeros(10_000_000, "f4")
    for x in (big[:10], big[-10:], torch.from_numpy(big)[100:110]):
        assert len(dw.encode(x)) < 40 + 100
    assert dw.decode(dw.encode(torch.arange(9)[3:])).numpy().tolist() == [3, 4, 5, 6, 7, 8]


def test_large_strided_arrays_arrive_whole() -> None:
    """More than the writer gathers at a time."""
    a = np.arange(600_000, dtype="u4").reshape(1000, 600)[::-1, ::2]
    message = dw.encode(a)
    assert dw.decode(message).numpy().tobytes() == a.tobytes()
    assert dw.to_proto(a).SerializeToString() == message


def test_a_source_is_never_modified() -> None:
    dirty = np.array([0xF1, 0x02], "u1")
    for made in (
        Handmade(dirty, code=0, bits=4, shape=(2,), flags=PADDED),
        Handmade(b"\x21\xf3", code=0, bits=4, shape=(3,)),
        Handmade(b"\x02\xff", code=6, bits=8, shape=(2,)),
    ):
        assert made.memory is not None
        before = made.memory.tobytes()
        dw.encode(made.capsule)
        assert made.memory.tobytes() == before


# --- bytes ------------------------------------------------------------------------------------------------------------


@given(arrays())
def test_data_is_last_and_aligned(a: np.ndarray[Any, Any]) -> None:
    message = dw.encode(a)
    proto = dlpack_pb2.DLTensor.FromString(message)
    assert message.endswith(proto.data)
    begin = len(message) - len(proto.data)
    if not proto.data:
        assert not proto.padding
    elif dw.decode(message).dtype.part_bytes > 1:
        assert begin % 16 == 0
        assert len(proto.padding) <= 16
    else:
        assert not proto.padding
    assert proto.data_sum == xxh3_64_intdigest(proto.data)
    assert proto.flags == 0
    assert not proto.HasField("version")
    assert proto.byte_order == (0 if dw.decode(message).dtype.part_bytes == 1 else 1 if a.dtype.isnative else 2)


@pytest.mark.parametrize("count", [*range(40), 125, 126, 127, 128, 129, 16383, 16384, 16385])
def test_alignment_holds_around_every_change_of_a_length(count: int) -> None:
    for checksum in (True, False):
        message = dw.encode(np.zeros(count, "u2"), checksum=checksum)
        assert len(message) - 2 * count == 0 or count == 0 or (len(message) - 2 * count) % 16 == 0
        assert dw.decode(message).shape == (count,)


def test_a_checksum_may_be_left_out() -> None:
    message = dw.encode(np.ones(3), checksum=False)
    assert not dlpack_pb2.DLTensor.FromString(message).HasField("data_sum")
    assert dw.decode(message).header.checksum is None
    assert not dw.to_proto(np.ones(3), checksum=False).HasField("data_sum")


def test_provenance_records_the_producers_version() -> None:
    assert dw.decode(dw.encode(floats(version=(1, 7)).capsule, provenance=True)).header.version == (1, 7)
    assert dw.decode(dw.encode(floats(version=(1, 7)).capsule)).header.version is None
    assert dw.decode(dw.encode(floats(versioned=False).capsule, provenance=True)).header.version is None


def test_bools_are_written_as_0_and_1() -> None:
    odd = np.array([0, 1, 2, 255], "u1")
    for x in (
        odd.view(bool),
        odd.view(bool)[::-1][::-1],
        Handmade(odd, code=6, bits=8, shape=(4,)).capsule,
        Handmade(np.repeat(odd, 2), code=6, bits=8, shape=(4,), strides=(2,)).capsule,
    ):
        t = dw.decode(dw.encode(x))
        assert bytes(t.payload) == b"\0\1\1\1"


def test_lanes_of_bools_are_written_as_0_and_1() -> None:
    made = Handmade(b"\0\1\2\xff", code=6, bits=8, lanes=2, shape=(2,))
    assert bytes(dw.decode(dw.encode(made.capsule)).payload) == b"\0\1\1\1"


def test_bits_that_hold_no_value_are_written_as_zero() -> None:
    packed = dw.decode(dw.encode(Handmade(b"\x21\xf3", code=0, bits=4, shape=(3,)).capsule))
    assert bytes(packed.payload) == b"\x21\x03"
    laned = dw.decode(dw.encode(Handmade(b"\x21\xf3", code=0, bits=4, lanes=3, shape=(1,)).capsule))
    assert bytes(laned.payload) == b"\x21\x03"
    padded = dw.decode(dw.encode(Handmade(b"\xf1\x02", code=0, bits=4, shape=(2,), flags=PADDED).capsule))
    assert bytes(padded.payload) == b"\x01\x02"
    strided = Handmade(b"\xf1\xf2\xf3", code=0, bits=4, shape=(2,), strides=(2,), flags=PADDED)
    assert bytes(dw.decode(dw.encode(strided.capsule)).payload) == b"\x01\x03"


def test_elements_of_numpy_that_fill_a_byte_each_are_packed() -> None:
    a = np.array([1, -2, 3, -4, 5], ml_dtypes.int4)
    proto = dw.to_proto(a)
    assert (proto.dtype.code, proto.dtype.bits, proto.flags, proto.data.hex()) == (0, 4, 0, "e1c305")
    assert dw.from_proto(proto).numpy().tolist() == [1, -2, 3, -4, 5]


# --- byte order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [">u4", "<u4", "=f4", "|u1", ">c16", ">f2", ">i8", ">c8", ">f8"])
def test_numbers_are_equal_in_either_byte_order(name: str) -> None:
    for a in (np.arange(6).astype(name), np.asfortranarray(np.arange(6).astype(name).reshape(2, 3))):
        message = dw.encode(a)
        t = dw.decode(message)
        assert t.numpy().dtype.isnative
        assert t.numpy().tolist() == a.tolist()
        tag = {">": 2, "<": 1, "=": 1, "|": 0}[a.dtype.str[0]]
        assert dlpack_pb2.DLTensor.FromString(message).byte_order == tag


def test_the_tag_decides_not_the_machine() -> None:
    proto = dw.to_proto(np.array([1, 2], "<u4"))
    proto.byte_order = dlpack_pb2.BYTE_ORDER_BIG_ENDIAN
    assert dw.from_proto(proto).numpy().tolist() == [1 << 24, 2 << 24]


def test_swapping_touches_neither_message_nor_buffer() -> None:
    buffer = bytearray(dw.encode(np.arange(6, dtype=">f4")))
    before = bytes(buffer)
    t = dw.decode(buffer)
    t.numpy()[:] = 9
    assert bytes(buffer) == before
    proto = dw.to_proto(np.arange(6, dtype=">f4"))
    before = proto.SerializeToString()
    dw.from_proto(proto).numpy()[:] = 9
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("dtype", SWAPPED_DTYPES, ids=ids(SWAPPED_DTYPES))
def test_a_swapped_tensor_fits_any_consumer(dtype: np.dtype[Any]) -> None:
    a = any_bits(dtype, (3,))
    assert np.from_dlpack(dw.decode(dw.encode(a))).tobytes() == native(a).tobytes()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_decode_borrows_the_buffer() -> None:
    buffer = bytearray(dw.encode(np.arange(6, dtype="f4")))
    t = dw.decode(buffer)
    buffer[-4:] = struct.pack("<f", 99.0)
    assert t.numpy()[-1] == 99.0
    t.numpy()[0] = 7.0
    assert struct.unpack_from("<f", buffer, len(buffer) - 24) == (7.0,)


@pytest.mark.parametrize("order", ["c", "fortran"])
@pytest.mark.parametrize("dtype", ["f4", "u1", "?", "c16", ml_dtypes.bfloat16, ml_dtypes.int4])
def test_borrowed_memory_cannot_be_resized_or_closed_under_a_tensor(dtype: Any, order: str) -> None:
    """Else the next access would read freed memory."""
    message = dw.encode(lay_out(np.dtype(dtype), (2, 3), order))
    for _ in range(2):
        buffer = bytearray(message)
        tensor = dw.decode(buffer)
        with pytest.raises(BufferError):
            buffer.append(0)
        lent = np.from_dlpack(tensor[:1]) if tensor.dtype.name == "float32" else tensor
        del tensor
        with pytest.raises(BufferError):
            buffer.clear()
        del lent
        buffer.append(0)
        with mmap.mmap(-1, len(message)) as m:
            m.write(message)
            tensor = dw.decode(m)
            with pytest.raises(BufferError):
                m.close()
            del tensor


@pytest.mark.parametrize("order", ["c", "fortran"])
def test_decoded_memory_is_read_only_exactly_if_the_buffer_is(order: str) -> None:
    message = dw.encode(lay_out(np.dtype("f4"), (2, 3), order))
    for _ in range(2):
        assert not dw.decode(message).numpy().flags.writeable
        assert not dw.decode(memoryview(bytearray(message)).toreadonly()).numpy().flags.writeable
        assert dw.decode(bytearray(message)).numpy().flags.writeable
        assert dw.decode(message, copy=True).numpy().flags.writeable


def test_a_copy_is_made_on_demand_only() -> None:
    message = bytearray(dw.encode(np.arange(6, dtype="f4")))
    for _ in range(2):
        assert np.shares_memory(np.frombuffer(message, "u1"), dw.decode(message).numpy())
        assert np.shares_memory(np.frombuffer(message, "u1"), dw.decode(message, copy=False).numpy())
        assert not np.shares_memory(np.frombuffer(message, "u1"), dw.decode(message, copy=True).numpy())


def test_copy_false_refuses_what_needs_one() -> None:
    with pytest.raises(BufferError, match="big endian"):
        dw.decode(dw.encode(np.arange(6, dtype=">f4")), copy=False)
    message = dw.encode(np.arange(6, dtype="f4"))
    for _ in range(2):
        shifted = memoryview(aligned_at(message, 1))
        with pytest.raises(BufferError, match="aligned"):
            dw.decode(shifted, copy=False)
        check_same(dw.decode(shifted), np.arange(6, dtype="f4"))


def aligned_at(content: bytes, offset: int) -> np.ndarray[Any, Any]:
    """A copy that begins `offset` bytes after a multiple of 64."""
    room = np.empty(len(content) + 128, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    room[begin : begin + len(content)] = np.frombuffer(content, np.uint8)
    return room[begin : begin + len(content)]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=ids(ALL_DTYPES))
def test_memory_handed_out_is_aligned(dtype: np.dtype[Any]) -> None:
    a = any_bits(dtype, (3,))
    message = dw.encode(a)
    for offset in (0, 1, 2, 4, 8, 15, 16):
        for _ in range(2):
            t = dw.decode(aligned_at(message, offset))
            check_same(t, a)
            if not t.header.is_packed:
                assert t.numpy().ctypes.data % min(t.dtype.itemsize, 16) == 0


def test_misaligned_payloads_do_not_crash_torch() -> None:
    run_python("""
        import numpy as np, torch
        import dlpack_wire as dw

        a = np.arange(8, dtype="c16") * 1j
        for order in ("C", "F"):
            message = dw.encode(np.asarray(a.reshape(2, 4), order=order))
            room = np.empty(len(message) + 128, np.uint8)
            base = -room.ctypes.data % 64
            for offset in (*range(64), *range(64)):
                buffer = room[base + offset : base + offset + len(message)]
                buffer[:] = np.frombuffer(message, np.uint8)
                x = torch.from_dlpack(dw.decode(buffer))
                assert x[1, 2].item() == 6j
                assert (x * 2).sum().item() == 2 * a.sum()
                assert x.data_ptr() % 16 == 0
    """)


def test_negative_strides_do_not_crash_torch() -> None:
    run_python("""
        import numpy as np, torch
        import dlpack_wire as dw
        from dlpack_wire.v1 import dlpack_pb2

        x = np.arange(6.0).reshape(2, 3)
        for view in (x[:, ::-1], x[::-1, ::-1], x[::-1]):
            assert torch.from_dlpack(dw.decode(dw.encode(view))).tolist() == view.tolist()
            assert dw.decode(dw.encode(view)).numpy().tolist() == view.tolist()

        message = dlpack_pb2.DLTensor(
            dtype={"code": 2, "bits": 64, "lanes": 1}, shape=[2, 3], strides=[-3, -1], byte_offset=40, byte_order=1,
            data=x.tobytes(),
        )
        for t in (dw.from_proto(message), dw.decode(message.SerializeToString())):
            assert t.strides == (-3, -1)
            assert torch.from_dlpack(t).tolist() == x[::-1, ::-1].tolist()
            assert t.numpy().tolist() == x[::-1, ::-1].tolist()
    """)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=ids(ALL_DTYPES))
def test_any_contiguous_buffer_will_do(dtype: np.dtype[Any]) -> None:
    a = any_bits(dtype, (4,))
    message = dw.encode(a)
    with mmap.mmap(-1, len(message)) as m:
        m.write(message)
        check_same(dw.decode(m, copy=True), a)
    if len(message) % 8 == 0:
        check_same(dw.decode(array.array("Q", message)), a)
        check_same(dw.decode(memoryview(message).cast("B", (2, len(message) // 2))), a)


@pytest.mark.parametrize(
    "nothing", [b"", bytearray(), memoryview(b""), np.empty(0, "u1"), np.empty((0, 3), "f4"), array.array("d")]
)
def test_empty_buffers_are_a_decode_error(nothing: Any) -> None:
    with pytest.raises(dw.DecodeError):
        dw.decode(nothing)


@pytest.mark.parametrize("other", ["text", 7, None, [1, 2]])
def test_what_is_no_buffer_is_a_type_error(other: Any) -> None:
    with pytest.raises(TypeError):
        dw.decode(other)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "u1", "?", ">c8"])
def test_any_damaged_payload_byte_is_noticed(dtype: str) -> None:
    a = np.ones(6, dtype)
    message = dw.encode(a)
    for position in range(len(message) - a.nbytes, len(message)):
        for _ in range(2):
            damaged = bytearray(message)
            damaged[position] ^= 1
            with pytest.raises(dw.ChecksumError) as caught:
                dw.decode(damaged)
            payload = bytes(damaged[-a.nbytes :])
            assert caught.value.actual == xxh3_64_intdigest(payload)
            assert caught.value.expected == xxh3_64_intdigest(a.tobytes())
            dw.decode(message)
        with pytest.raises(dw.ChecksumError):
            dw.from_proto(dlpack_pb2.DLTensor.FromString(damaged))
        dw.decode(damaged, verify=False)
        dw.from_proto(dlpack_pb2.DLTensor.FromString(damaged), verify=False)


def test_a_short_payload_says_what_it_needs_and_has() -> None:
    proto = dw.to_proto(np.zeros(6, "f4"))
    proto.data = bytes(23)
    for read, x in ((dw.from_proto, proto), (dw.decode, proto.SerializeToString())):
        with pytest.raises(dw.TruncatedError, match="needs 24 bytes, has 23") as caught:
            read(x)
        assert (caught.value.needed, caught.value.available) == (24, 23)


@given(st.binary(max_size=200))
def test_random_bytes_give_a_value_or_a_decode_error(content: bytes) -> None:
    try:
        t = dw.decode(content)
    except dw.DecodeError:
        return
    t.payload.tobytes()


FIELD_BYTES = st.sampled_from(
    tuple(
        bytes.fromhex(part)
        for part in (
            *("0a", "10", "1a", "22", "2206080210201801", "220410081801", "28", "2a", "2a020203", "30", "32020102"),
            *("38", "4001", "4002", "49", "72", "7a", "7a06", "80", "ff" * 9, "00", "01", "04", "00" * 24),
            "7a18" + "00" * 24,
        )
    )
)


@given(st.lists(FIELD_BYTES, max_size=12))
def test_fields_put_together_at_random_give_a_value_or_a_decode_error(parts: list[bytes]) -> None:
    content = b"".join(parts)
    try:
        t = dw.decode(content)
    except dw.DecodeError:
        return
    t.payload.tobytes()
    parsed = dw.from_proto(dlpack_pb2.DLTensor.FromString(content))
    assert (parsed.header, parsed.payload) == (t.header, t.payload)


SMALL = st.sampled_from((0, 1, 2, 3, 4, 8, 63, 64, 65, 2**31 - 1, 2**31, 2**32 - 1))
EXTENT = st.sampled_from((-(2**63), -1, 0, 1, 2, 3, 2**31, 2**32, 2**40, 2**62, 2**63 - 1))


@given(
    code=st.sampled_from((-1, 0, 2, 3, 4, 5, 6, 15, 17, 18, 19, 200, 256, 2**31 - 1)),
    bits=SMALL,
    lanes=SMALL,
    shape=st.lists(EXTENT, max_size=4),
    strides=st.lists(EXTENT, max_size=4),
    byte_offset=SMALL,
    byte_order=st.integers(-1, 3),
    flags=st.integers(0, 7),
    data=st.binary(max_size=24),
)
def test_any_message_gives_a_value_or_a_decode_error_and_the_same_by_both_routes(
    code: int, bits: int, lanes: int, data: bytes, **fields: Any
) -> None:
    message = dlpack_pb2.DLTensor(data=data, **fields)
    message.dtype.code, message.dtype.bits, message.dtype.lanes = code, bits, lanes  # type: ignore[assignment]
    verdicts = []
    for read, x in ((dw.from_proto, message), (dw.decode, message.SerializeToString())):
        try:
            t = read(x)
        except dw.DecodeError as error:
            verdicts.append((type(error), error.field))
        else:
            verdicts.append((t.header, bytes(t.payload)))
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("lanes", [1, 2**16, 2**32 - 1])
@pytest.mark.parametrize("bits", [8, 255 * 8, 2**31, 2**32 - 8])
@pytest.mark.parametrize("shape", [[0], [0, 3]])
def test_an_empty_tensor_of_huge_elements_is_a_value_or_a_decode_error(bits: int, lanes: int, shape: list[int]) -> None:
    message = dlpack_pb2.DLTensor(dtype={"bits": bits, "lanes": lanes}, shape=shape, byte_order=1)
    message.dtype.code = 200  # type: ignore[assignment]
    try:
        t = dw.decode(message.SerializeToString())
    except dw.DecodeError:
        return
    assert t.shape == tuple(shape)
    assert t.nbytes == 0


def test_claims_of_terabytes_cost_nothing() -> None:
    dtype = {"code": 1, "bits": 8, "lanes": 1}
    int4 = {"code": 0, "bits": 4, "lanes": 1}
    claims = [
        dlpack_pb2.DLTensor(dtype=dtype, shape=[2**42], data=b"abc"),
        dlpack_pb2.DLTensor(dtype=dtype, shape=[2**20, 2**20], strides=[1, 2**20], data=b"abc"),
        dlpack_pb2.DLTensor(dtype=dtype, shape=[2**42], strides=[0], data=b"a"),
        dlpack_pb2.DLTensor(dtype=dtype, shape=[2**42], strides=[-1], byte_offset=2**42 - 1, data=b"a"),
        dlpack_pb2.DLTensor(dtype=int4, shape=[2**43], data=b"a"),
        dlpack_pb2.DLTensor(dtype=int4, shape=[2**42], flags=4, data=b"a"),
        dlpack_pb2.DLTensor(dtype={"code": 6, "bits": 8, "lanes": 1}, shape=[2**42], data=b"\1"),
        dlpack_pb2.DLTensor(dtype=dtype, shape=[1] * 1_000_000, data=b"a"),
    ]
    wires = [claim.SerializeToString() for claim in claims]
    wires += [b"\x7a" + b"\x80" * 6 + b"\x01", b"\x2a\xff\xff\xff\xff\x7f", b"\x72\x80\x80\x80\x80\x80\x20"]
    tracemalloc.start()
    try:
        began = time.process_time()
        for wire in wires:
            with pytest.raises(dw.DecodeError):
                dw.decode(wire)
        for claim in claims[:-1]:
            with pytest.raises(dw.DecodeError):
                dw.from_proto(claim)
        took = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20
    assert took < 0.1 * len(wires)


# --- what one message leads to expect of the next ---------------------------------------------------------------------


def test_a_message_is_never_read_in_the_light_of_the_one_before() -> None:
    """Any change of one byte is judged alike, whether or not the message it was made from was read just before."""
    for a in (np.arange(6, dtype="f4").reshape(2, 3), np.arange(16, dtype="u1").reshape(4, 4)):
        for checksum in (True, False):
            message = dw.encode(a, checksum=checksum)
            other = dw.encode(np.zeros(len(message), "u1"), checksum=False)
            other = dw.encode(np.zeros(2 * len(message) - len(other), "u1"), checksum=False)
            assert len(other) == len(message)
            for position in range(len(message) - a.nbytes):
                for change in (1, 2, 4, 0x80, 0xFF):
                    changed = bytearray(message)
                    changed[position] ^= change
                    dw.decode(other)
                    cold = verdict(changed)
                    dw.decode(message)
                    assert verdict(changed) == cold


def verdict(message: Any) -> Any:
    try:
        t = dw.decode(message)
    except dw.DecodeError as error:
        return type(error), str(error)
    return t.header, bytes(t.payload)


def test_messages_of_one_length_do_not_mix() -> None:
    arrays = [any_bits(np.dtype(d), s, i) for i, (d, s) in enumerate([("f4", (4,)), ("i4", (4,)), ("u4", (4,))])]
    arrays += [any_bits(np.dtype(d), s) for d, s in [("f4", (2, 2)), ("i2", (4, 2)), (">f4", (4,)), ("c8", (2,))]]
    messages = [(dw.encode(a, checksum=c), a) for a in arrays for c in (True, False)] * 4
    random.Random(1).shuffle(messages)
    for message, a in messages:
        check_same(dw.decode(message), a)
    for (_, first), (_, second) in pairwise(messages):
        assert dw.decode(dw.encode(first)).dtype.numpy == native(first).dtype
        assert dw.decode(dw.encode(second)).shape == second.shape


# --- what cannot go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(2, "longdouble"),
        np.zeros(2, "clongdouble"),
        np.zeros(2, "datetime64[ns]"),
        np.zeros(2, "timedelta64[s]"),
        np.array([None, {}]),
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
        np.zeros(2, "V3"),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.zeros(2, [("a", "i4")]).view(np.recarray),
        np.zeros(0, "longdouble"),
        np.longdouble(1),
        np.datetime64("2020-01-01"),
        np.array(["a"], np.dtypes.StringDType()),
    ],
    ids=lambda x: str(x.dtype),
)
def test_types_that_dlpack_lacks_are_refused_by_name(x: Any) -> None:
    with pytest.raises(dw.UnsupportedTensorError) as caught:
        dw.encode(x)
    assert isinstance(caught.value, BufferError)
    assert repr(x.dtype) in str(caught.value) or x.dtype.name in str(caught.value)
    with pytest.raises(dw.UnsupportedTensorError):
        dw.to_proto(x)


def test_a_mask_is_not_dropped_in_silence() -> None:
    with pytest.raises(dw.UnsupportedTensorError, match="mask"):
        dw.encode(np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]))


def test_a_matrix_is_an_array() -> None:
    with pytest.warns(PendingDeprecationWarning):
        m = np.matrix([[1, 2], [3, 4]])
    assert dw.encode(m) == dw.encode(np.asarray(m))


@pytest.mark.parametrize("x", [1, 1.5, True, 1j, [1, 2], (1, 2), "text", b"bytes", None, {}, object(), range(3)])
def test_what_is_no_tensor_is_refused(x: Any) -> None:
    with pytest.raises(dw.UnsupportedTensorError, match=type(x).__name__):
        dw.encode(x)


@pytest.mark.parametrize("x", [np.float32(1.5), np.bool_(True), np.int64(-1), np.complex64(1j), np.array(7)])
def test_numpy_scalars_are_0_d_tensors(x: Any) -> None:
    t = dw.decode(dw.encode(x))
    assert t.shape == ()
    assert t.numpy().dtype == x.dtype
    assert t.numpy()[()] == x


def test_more_than_protobuf_allows_is_refused_with_the_way_round() -> None:
    """The array claims 2 GiB in one byte of memory; nothing may be gathered before the refusal."""
    big = np.broadcast_to(np.uint8(1), (2**31 - 1,))
    tracemalloc.start()
    try:
        for write in (dw.encode, dw.to_proto):
            with pytest.raises(dw.EncodeError, match=r"2147483647.*save") as caught:
                write(big)
            assert not isinstance(caught.value, dw.UnsupportedTensorError)
            assert caught.value.limit == 2**31 - 1
            # device, dtype, shape, checksum, tag and length of the payload
            assert caught.value.declared == (4 + 8 + 7 + 9 + 6) + 2**31 - 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_lazy_torch_views_give_their_logical_values() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert dw.decode(dw.encode(z.conj())).numpy().tolist() == [1 - 2j, 3 + 4j]
    assert dw.decode(dw.encode(z.conj().imag)).numpy().tolist() == [-2.0, 4.0]
    assert dw.decode(dw.encode(torch._neg_view(z))).numpy().tolist() == [-1 - 2j, -3 + 4j]
    assert dw.decode(dw.encode(z.conj().reshape(2, 1).T)).numpy().tolist() == [[1 - 2j, 3 + 4j]]
    assert z.tolist() == [1 + 2j, 3 - 4j]


def test_torch_gradients_are_detached() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    for y in (x, x * 2, torch.nn.Parameter(torch.ones(3))):
        assert dw.decode(dw.encode(y)).numpy().tolist() == y.tolist()
    assert dw.from_proto(dw.to_proto(x)).numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["sparse", "csr", "meta", "quantized"])
@pytest.mark.filterwarnings("ignore")
def test_torch_tensors_without_plain_memory_are_refused(kind: str) -> None:
    torch = pytest.importorskip("torch")
    x = {
        "sparse": lambda: torch.eye(3).to_sparse(),
        "csr": lambda: torch.eye(3).to_sparse_csr(),
        "meta": lambda: torch.ones(3, device="meta"),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    }[kind]()
    for write in (dw.encode, dw.to_proto):
        with pytest.raises(dw.UnsupportedTensorError):
            write(x)


def test_torch_types_without_numpy_arrive() -> None:
    torch = pytest.importorskip("torch")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"):
        x = torch.arange(1, 5).to(getattr(torch, name))
        t = dw.decode(dw.encode(x))
        assert t.dtype.name == name
        assert bytes(t.payload) == x.view(torch.uint8).numpy().tobytes()
        assert t.numpy().dtype.name == name
        back = torch.from_dlpack(t)
        assert back.dtype == x.dtype
        assert bytes(back.view(torch.uint8).numpy()) == bytes(t.payload)


def test_torch_pairs_of_fp4_arrive() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([0x21, 0x43, 0x65], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    t = dw.decode(dw.encode(x))
    assert (t.dtype.name, t.shape, bytes(t.payload)) == ("float4_e2m1fnx2", (3,), b"\x21\x43\x65")
    assert torch.from_dlpack(t).dtype == torch.float4_e2m1fn_x2


def test_torch_shell_types_are_refused() -> None:
    torch = pytest.importorskip("torch")
    for name in ("int4", "uint4", "int1", "uint7"):
        x = torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))
        with pytest.raises(dw.UnsupportedTensorError, match=name):
            dw.encode(x)


# --- protobuf back ends -----------------------------------------------------------------------------------------------

BACK_ENDS = """
    import json, random
    from google.protobuf.internal import api_implementation
    from google.protobuf.message import DecodeError as ParseError
    import dlpack_wire as dw
    from dlpack_wire.v1 import dlpack_pb2
    from message_vectors import INVALID, VALID, wire_of

    # Standard parsers disagree with each other about such input.
    STRICTER = ("varint", "groups", "field number", "at most", "more than")


    def said(read, wire):
        try:
            t = read(wire)
        except dw.DecodeError as error:
            return f"{type(error).__name__}: {error}"
        except ParseError:
            return "parser refuses"
        return f"{t.header} {bytes(t.payload).hex()}"


    wires = [wire_of(case) for case in (*VALID, *INVALID)]
    chance = random.Random(7)
    for wire in [w for w in wires if 0 < len(w) < 500]:
        for _ in range(12):
            mutant = bytearray(wire)
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(len(mutant))
                choice = chance.randrange(3)
                if choice == 0:
                    mutant[at] ^= 1 << chance.randrange(8)
                elif choice == 1:
                    mutant[at:at] = chance.randbytes(chance.randint(1, 2))
                elif len(mutant) > 1:
                    del mutant[at]
            wires.append(bytes(mutant))

    verdicts = []
    for wire in wires:
        direct = said(dw.decode, wire)
        parsed = said(lambda wire: dw.from_proto(dlpack_pb2.DLTensor.FromString(wire)), wire)
        if "Error: " not in direct:
            assert parsed == direct, (wire.hex(), direct, parsed)
        elif "Error: " not in parsed and parsed != "parser refuses":
            assert any(word in direct for word in STRICTER), (wire.hex(), direct, parsed)
        verdicts.append(direct)
    print(api_implementation.Type())
    print(json.dumps(verdicts))
"""


def test_verdicts_do_not_depend_on_the_protobuf_back_end() -> None:
    compiled = run_python(BACK_ENDS, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="upb").splitlines()
    pure = run_python(BACK_ENDS, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python").splitlines()
    assert (compiled[0], pure[0]) == ("upb", "python")
    assert compiled[1] == pure[1]


def test_bytes_do_not_depend_on_the_protobuf_back_end() -> None:
    script = """
        import strategies
        import dlpack_wire as dw

        for dtype in strategies.ALL_DTYPES:
            for order in strategies.ORDERS:
                a = strategies.lay_out(dtype, (2, 1, 3), order)
                assert dw.to_proto(a).SerializeToString() == dw.encode(a)
                print(dw.encode(a).hex())
    """
    compiled = run_python(script, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="upb")
    assert run_python(script, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python") == compiled


def test_a_file_read_as_one_message_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tensor"
    path.write_bytes(dw.encode(np.arange(6)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert dw.decode(mapped, copy=True).numpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_more_than_a_message_is_refused_by_its_size() -> None:
    with pytest.raises(dw.LimitError, match="2147483647") as caught:
        dw.decode(np.zeros(2**31, np.uint8))
    assert (caught.value.declared, caught.value.limit) == (2**31, 2**31 - 1)


@pytest.mark.parametrize("kind", [np.matrix, np.memmap])
def test_subclasses_of_arrays_are_taken_as_arrays(kind: type) -> None:
    plain = np.arange(6.0).reshape(2, 3)
    assert dw.encode(plain.view(kind)) == dw.encode(plain)


def test_a_producer_may_hand_out_one_capsule_again() -> None:
    made = Handmade(np.arange(6, dtype="f4").tobytes())

    class Again:
        def __dlpack__(self, **_: object) -> object:
            return made.capsule

    assert dw.encode(Again()) == dw.encode(Again())
    assert made.deleter_calls == 0


# --- what is a tensor -----------------------------------------------------------------------------------------------


FLOATS = np.arange(12, dtype="f4").reshape(3, 4)


@pytest.mark.parametrize(
    "x",
    [
        FLOATS,
        np.float32(1),
        dw.decode(dw.encode(FLOATS)),
        dw.to_proto(FLOATS),
        floats().capsule,
        Producer(floats),
        ToDlpackOnly(floats()),
    ],
    ids=lambda x: type(x).__name__,
)
def test_tensors(x: Any) -> None:
    assert is_tensor(x)


@pytest.mark.parametrize("x", [{}, {"a": FLOATS}, [FLOATS], None, 7, "a", object(), Producer], ids=str)
def test_other_things(x: Any) -> None:
    assert not is_tensor(x)


def test_a_mapping_with_a_to_dlpack_is_a_collection() -> None:
    class Both(UserDict[str, Any]):
        def to_dlpack(self) -> Any:
            raise AssertionError("not a tensor")

    assert not is_tensor(Both())
