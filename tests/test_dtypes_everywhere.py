"""Every element type by every way a tensor can go: in a message, a file, a log and a store. All bits arrive."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from matrix.expected import KINDS, LAYOUTS, Cannot, Expected, Kind, cells
from matrix.frameworks import ForeignNumpy, has_foreign_order, lend
from strategies import lay_out, logical_bytes, native

import dlpack_wire as dw
from dlpack_wire.tensor.dtype import NATIVE
from dlpack_wire.v1 import dlpack_pb2

Array = np.ndarray[Any, Any]
Way = Callable[[Any, Path], dw.Tensor]

# --- the ways ---------------------------------------------------------------------------------------------------------


def by_message(x: Any, folder: Path) -> dw.Tensor:
    return dw.decode(dw.encode(x))


def by_copied_message(x: Any, folder: Path) -> dw.Tensor:
    return dw.decode(memoryview(bytearray(dw.encode(x, checksum=False))), copy=True)


def by_message_object(x: Any, folder: Path) -> dw.Tensor:
    return dw.from_proto(dw.to_proto(x))


def by_standard_parser(x: Any, folder: Path) -> dw.Tensor:
    return dw.from_proto(dlpack_pb2.DLTensor.FromString(dw.encode(x)))


def by_file(x: Any, folder: Path) -> dw.Tensor:
    dw.save(folder / "one.dlpw", x, durable=False)
    return dw.load_one(folder / "one.dlpw")


def by_mapped_file(x: Any, folder: Path) -> dw.Tensor:
    dw.save(folder / "dict.dlpw", {"other": np.arange(3), "x": x}, durable=False)
    with dw.open(folder / "dict.dlpw", verify=True) as f:
        return f["x"]


def by_read_file(x: Any, folder: Path) -> dw.Tensor:
    with dw.open(folder / "written.dlpw", "w", durable=False) as f:
        f["x"] = x
    with dw.open(folder / "written.dlpw", mmap=False) as f:
        return f["x"]


def by_stream(x: Any, folder: Path) -> dw.Tensor:
    target = io.BytesIO()
    dw.save(target, x)
    return dw.load_one(target.getvalue())


def by_log(x: Any, folder: Path) -> dw.Tensor:
    log = pytest.importorskip("dlpack_wire.log")
    with log.LogWriter(folder / "run.mcap", overwrite=True) as writer:
        writer.write("topic", x, time_ns=1)
    (record,) = log.LogReader(folder / "run.mcap").read()
    found: dw.Tensor = record.tensor
    return found


BY_ITSELF = (
    *(by_message, by_copied_message, by_message_object, by_standard_parser),
    *(by_file, by_mapped_file, by_read_file, by_stream, by_log),
)


@pytest.fixture(scope="module")
def store() -> Iterator[Way]:
    """By way of a server: put, then get."""
    pytest.importorskip("grpc")
    from server_process import running

    from dlpack_wire.service.client import connect

    with running() as process, connect(process.address, timeout=60) as client:

        def by_store(x: Any, folder: Path) -> dw.Tensor:
            client.put("x", x)
            found = client.get("x")
            assert isinstance(found, dw.Tensor)
            return found

        yield by_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the files of all tests here; each replaces those before it."""
    return tmp_path_factory.mktemp("paths")


@pytest.fixture(params=[*BY_ITSELF, "by_store"], ids=lambda way: getattr(way, "__name__", way))
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.getfixturevalue("store") if request.param == "by_store" else request.param
    return found


# --- every type -------------------------------------------------------------------------------------------------------

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def part_bytes(kind: Kind) -> int:
    """Width of what a byte swap reverses."""
    return kind.dtype.bits // 8 // (2 if "complex" in kind.dtype.name else 1)


MULTI_BYTE = [k for k in KINDS if part_bytes(k) > 1]
# numpy has both orders of these; ml_dtypes' own functions disagree about those of its complex types.
FOREIGN = [k for k in MULTI_BYTE if k.dtype.numpy_or_none is not None and has_foreign_order(k.numpy)]


def check_arrived(t: dw.Tensor, expected: Expected) -> None:
    kind = expected.kind
    assert (t.dtype, t.header.padded, t.shape) == (kind.dtype, kind.padded, expected.layout.shape)
    assert cells(kind, t.shape, bytes(t.payload)) == expected.elements


@each_kind
def test_every_type_arrives_by_every_way(kind: Kind, way: Way, folder: Path) -> None:
    for layout in LAYOUTS:
        expected = Expected(kind, layout)
        try:
            x = lend(expected)
        except Cannot:
            continue
        t = way(x, folder)
        check_arrived(t, expected)
        assert t.header.strides == dw.decode(dw.encode(x)).header.strides
        assert t.header.checksum is not None or way is by_copied_message
        if kind.dtype.numpy_or_none is not None:
            values = np.ascontiguousarray(t.numpy()).reshape(-1).view(np.uint8)
            bits = kind.dtype.bits
            assert (values & ((1 << bits) - 1) if bits < 8 else values).tobytes() == expected.elements
        else:
            with pytest.raises(dw.UnsupportedTensorError, match=kind.dtype.name.rstrip("0123456789")):
                t.numpy()


@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind.name)
def test_foreign_order_arrives_as_native_by_every_way(kind: Kind, way: Way, folder: Path) -> None:
    for layout in LAYOUTS:
        expected = Expected(kind, layout)
        x = ForeignNumpy().make(expected)
        t = way(x, folder)
        check_arrived(t, expected)
        assert t.header.byte_order == 3 - NATIVE
        assert t.numpy().dtype.isnative
        assert t.__dlpack__() is not None


# --- every bit --------------------------------------------------------------------------------------------------------


def all_patterns(bits: int) -> Array:
    """Every pattern of a narrow type; of a wide float the corners: zeros, denormals, infinities, both kinds of NaN."""
    if bits <= 16:
        return np.arange(1 << bits, dtype=f"u{max(bits // 8, 1)}")
    mantissa = {32: 23, 64: 52}[bits]
    exponents = [0, 1, (1 << bits - mantissa - 1) - 2, (1 << bits - mantissa - 1) - 1]
    mantissas = [0, 1, 2, (1 << mantissa - 1) - 1, 1 << mantissa - 1, (1 << mantissa - 1) + 1, (1 << mantissa) - 1]
    unsigned = [e << mantissa | m for e in exponents for m in mantissas]
    return np.array([sign << bits - 1 | u for sign in (0, 1) for u in unsigned], f"u{bits // 8}")


FLOATS = [k for k in KINDS if k.dtype.known and k.dtype.lanes == 1 and k.dtype.code not in (0, 1, 6) and not k.padded]


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_every_bit_of_every_float_type_arrives(kind: Kind, way: Way, folder: Path) -> None:
    """Signalling NaNs, NaN payloads, -0.0 and denormals, equal as integers; in both halves of complex types."""
    halves = 2 if "complex" in kind.dtype.name else 1
    parts = all_patterns(kind.dtype.bits // halves)
    if halves == 2:
        parts = np.stack([parts, parts[::-1]], axis=-1).reshape(-1)
    a = parts.view(kind.numpy)
    t = way(a, folder)
    assert t.dtype is kind.dtype
    assert t.numpy().view(parts.dtype).tolist() == parts.tolist()


# --- byte order -------------------------------------------------------------------------------------------------------

DENSE = LAYOUTS[:4]  # row-major, twice, Fortran, channels-last
LITTLE, BIG = dlpack_pb2.BYTE_ORDER_LITTLE_ENDIAN, dlpack_pb2.BYTE_ORDER_BIG_ENDIAN


@pytest.mark.parametrize("order", [LITTLE, BIG], ids=["little", "big"])
@pytest.mark.parametrize("kind", MULTI_BYTE, ids=lambda kind: kind.name)
def test_payloads_of_either_order_are_read(kind: Kind, order: int) -> None:
    """Complex types by halves, lanes one by one, whatever the layout; unknown codes are kept as they are."""
    for layout in DENSE:
        expected = Expected(kind, layout)
        message = dw.to_proto(lend(expected), checksum=False)
        message.byte_order = order  # type: ignore[assignment]
        if order == BIG and kind.dtype.known:
            message.data = np.frombuffer(message.data, f"u{part_bytes(kind)}").byteswap().tobytes()
        buffer = bytearray(message.SerializeToString())
        before = bytes(buffer)
        for _ in range(2):
            for t in (dw.decode(buffer), dw.from_proto(message)):
                check_arrived(t, expected)
                assert t.header.byte_order == order
                assert t.byte_order == (NATIVE if kind.dtype.known else order)
        assert bytes(buffer) == message.SerializeToString() == before


@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind.name)
def test_encoding_a_foreign_order_array_tags_it_and_swaps_nothing(kind: Kind) -> None:
    for layout in DENSE:
        x = ForeignNumpy().make(Expected(kind, layout))
        before = x.tobytes()
        for message in (dw.to_proto(x), dlpack_pb2.DLTensor.FromString(dw.encode(x))):
            assert message.byte_order == 3 - NATIVE
            assert message.data == x.transpose(np.argsort([-s for s in x.strides])).tobytes()
        assert x.tobytes() == before


@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_foreign_order_arrays_of_half_complex_types_arrive_or_are_refused(name: str) -> None:
    """ml_dtypes before 0.7 swaps all of an element in `astype`, and something else in `byteswap`: no one thing."""
    native = np.dtype(getattr(ml_dtypes, name))
    x = np.array([1 + 2j], native).astype(native.newbyteorder("S"))
    if has_foreign_order(native):
        assert complex(dw.decode(dw.encode(x)).numpy()[0]) == 1 + 2j
    else:
        with pytest.raises(dw.UnsupportedTensorError, match=name):
            dw.encode(x)


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fortran", "sliced"])
@pytest.mark.parametrize("dtype", ["<f8", ">c16", "?", ml_dtypes.int4], ids=str)
def test_tensors_of_many_pieces_arrive_by_every_way(dtype: Any, order: str, way: Way, folder: Path) -> None:
    """Larger than any piece that is hashed, gathered or sent at a time."""
    a = lay_out(np.dtype(dtype), (1900, 1601), order)
    t = way(a, folder)
    assert t.shape == a.shape
    assert t.dtype.numpy == native(a).dtype
    assert logical_bytes(t.numpy()) == logical_bytes(a)


def test_ten_elements_of_a_hundred_million_are_ten_elements_and_a_header(tmp_path: Path) -> None:
    big = np.zeros(100_000_000, "f4")
    for x in (big[:10], big[-10:], big[::10_000_000], big[50_000_000:50_000_010][::-1]):
        assert len(dw.encode(x)) <= 10 * 4 + 64
        dw.save(tmp_path / "part.dlpw", x, durable=False)
        assert (tmp_path / "part.dlpw").stat().st_size < 512
        assert dw.load_one(tmp_path / "part.dlpw").shape == (10,)


def test_ten_elements_of_a_hundred_million_in_other_libraries() -> None:
    for name in ("torch", "jax.numpy"):
        lib = pytest.importorskip(name)
        assert len(dw.encode(lib.zeros(100_000_000, dtype=lib.uint8)[:10])) <= 10 + 64
