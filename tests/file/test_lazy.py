"""Parts of tensors are numpy's, whether the file is mapped or read; and only what is asked for is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import ALL_DTYPES, ORDERS, Array, any_bits, lay_out, logical_bytes, native

import dlpack_wire as dw
from dlpack_wire.file.lazy import LazyTensor
from dlpack_wire.file.reader import FileReader
from dlpack_wire.file.storage import FetchedBytes
from dlpack_wire.tensor.checksum import BLOCK_BYTES, block_sums
from dlpack_wire.tensor.header import Header

KEYS: list[Any] = [
    *(0, -1, 2, -3, np.int64(1), np.uint8(2)),
    *(slice(None), slice(1, 2), slice(1, 100), slice(-2, None), slice(None, None, -1), slice(2, 0, -2), slice(5, 1)),
    *(slice(-100, 100, 3), slice(0, 0)),
    *(Ellipsis, None, (), (0, 1), (0, 1, 2), (-1, -1, -1)),
    *((..., 2), (0, ...), (0, ..., 1), (..., None), (None, ..., None), (slice(1, 2), None, 0)),
    *((slice(None), 2), (slice(None), slice(None), slice(None, None, 2)), (..., slice(None, None, -1))),
    *((slice(None, None, 2), 1, slice(4, 0, -3)), (0, slice(0, 0)), (None, None, 1)),
]
BAD: list[Any] = [
    *(3, -4, 99, (0, 5), (0, 0, 7), (0, 0, 0, 0), (..., ...), (slice(None),) * 4),
    *("a", 1.0, [0], (0, [1]), np.array([1]), np.array(True), True, {}, (0, "a")),
]


@pytest.fixture(params=[True, False], ids=["mapped", "read"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def save_and_open(tensors: dict[str, Any]) -> FileReader:
        dw.save(tmp_path / "t", tensors, durable=False)
        return dw.open(tmp_path / "t", mmap=request.param)

    return save_and_open


@pytest.mark.parametrize("order", ["c", "fortran", "permuted"])
@pytest.mark.parametrize("name", ["float32", "int8", ">i4", "complex128", "bfloat16", "int4", "float6_e2m3fn", "bool"])
def test_parts_are_those_of_numpy(name: str, order: str, opened: Any) -> None:
    dtype = next(d for d in ALL_DTYPES if d in (name, np.dtype(name) if name[0] == ">" else None) or d.name == name)
    x = lay_out(dtype, (3, 5, 7), order)
    for key in KEYS:
        with opened({"x": x}) as f:
            part, expected = f["x"][key], x[key]
            assert part.shape == np.shape(expected), key
            assert logical_bytes(np.asarray(part.numpy())) == logical_bytes(np.asarray(expected)), key
            assert part.numpy().dtype == native(x).dtype


@pytest.mark.parametrize("key", BAD, ids=repr)
def test_parts_that_numpy_refuses_are_refused_with_its_error(key: Any, opened: Any) -> None:
    with opened({"x": np.zeros((3, 5, 7))}) as f, pytest.raises(IndexError):
        f["x"][key]


@given(st.data())
def test_any_part_of_any_shape(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4).map(tuple))
    x = lay_out(np.dtype("i2"), shape, data.draw(st.sampled_from(ORDERS)))
    axis = st.none() | st.integers(-6, 6) | st.slices(6) | st.just(Ellipsis)
    key = tuple(data.draw(st.lists(axis, max_size=6)))
    path = tmp_path_factory.mktemp("parts") / "t"
    dw.save(path, {"x": x}, durable=False)
    for mmap in (True, False):
        with dw.open(path, mmap=mmap) as f:
            try:
                expected = x[key]
            except IndexError:
                with pytest.raises(IndexError):
                    f["x"][key]
            else:
                part = f["x"][key]
                assert part.shape == np.shape(expected)
                assert part.numpy().tolist() == expected.tolist()


def test_scalars_and_empty_tensors_have_parts_too(opened: Any) -> None:
    with opened({"s": np.array(7), "e": np.zeros((0, 3))}) as f:
        for key in ((), ..., None):
            assert f["s"][key].numpy().tolist() == np.array(7)[key].tolist()
        assert f["e"][:, 1].shape == (0,)
        assert f["e"][:, 1:2].shape == (0, 1)
        with pytest.raises(IndexError):
            f["e"][0]
        with pytest.raises(IndexError):
            f["s"][0]


def test_a_part_of_a_part(opened: Any) -> None:
    x = np.arange(3 * 5 * 7).reshape(3, 5, 7)
    with opened({"x": x}) as f:
        assert f["x"][1][2:4][:, 3].numpy().tolist() == x[1][2:4][:, 3].tolist()


def test_every_consumer_takes_parts(opened: Any) -> None:
    with opened({"x": np.arange(12.0).reshape(3, 4)}) as f:
        part = f["x"][1:, ::2]
        assert torch.from_dlpack(part).tolist() == [[4, 6], [8, 10]]
        assert np.from_dlpack(part).tolist() == [[4, 6], [8, 10]]
        assert dw.decode(dw.encode(part)).numpy().tolist() == [[4, 6], [8, 10]]


# --- what is read -----------------------------------------------------------------------------------------------------


class Counted(FetchedBytes):
    """A file in memory that writes down what is fetched."""

    def __init__(self, content: bytes) -> None:
        super().__init__(len(content))
        self.content = content
        self.ranges: list[tuple[int, int]] = []

    def fetch(self, into: memoryview, begin: int) -> None:
        self.ranges.append((begin, begin + len(into)))
        into[:] = self.content[begin : begin + len(into)]

    @property
    def fetched_bytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


def stored(x: Array, verify: bool = False) -> tuple[LazyTensor, Counted]:
    t = dw.decode(dw.encode(x))
    header: Header = t.header
    payload = bytes(t.payload) if header.strides is None else x.tobytes("A")
    source = Counted(bytes(100) + payload)
    return LazyTensor(header, source, 100, block_sums(payload), set() if verify else None), source


LARGE = np.arange(500 * 400 * 30, dtype="i4").reshape(500, 400, 30)  # 24 MB, rows of 48 KB


@pytest.mark.parametrize(
    ("key", "most_bytes", "most_ranges"),
    [
        (np.s_[7], 48_000, 1),
        (np.s_[7:9], 96_000, 1),
        (np.s_[7, 3], 120, 1),
        (np.s_[7, 3, 2], 4, 1),
        (np.s_[::100], 5 * 48_000, 5),
        (np.s_[::-100], 5 * 48_000, 5),
        (np.s_[::100, 5:7], 5 * 240, 5),
        (np.s_[100:102, 5], 48_000 + 120, 1),
        (np.s_[0:0], 0, 0),
    ],
)
def test_a_part_reads_little_more_than_itself(key: Any, most_bytes: int, most_ranges: int) -> None:
    t, source = stored(LARGE)
    assert (t[key].numpy() == LARGE[key]).all()
    assert source.fetched_bytes <= most_bytes
    assert len(source.ranges) <= most_ranges


def test_looking_at_a_tensor_reads_nothing() -> None:
    t, source = stored(np.asfortranarray(LARGE))
    assert (t.shape, t.dtype.name, t.nbytes, t.ndim, t.size) == ((500, 400, 30), "int32", 24_000_000, 3, 6_000_000)
    assert t.strides == (1, 500, 200_000)
    assert (len(t), t.flags, t.device) == (500, 0, (1, 0))
    assert "int32[500, 400, 30]" in repr(t)
    assert source.ranges == []


def test_the_whole_is_read_once() -> None:
    t, source = stored(LARGE)
    assert (t.numpy() == LARGE).all()
    assert (np.from_dlpack(t)[3] == LARGE[3]).all()
    assert (t[5].numpy() == LARGE[5]).all()
    assert source.ranges == [(100, 100 + LARGE.nbytes)]
    t.numpy()[0, 0, 0] = -1
    assert t[0, 0, 0].numpy() == -1


def test_a_verified_part_reads_the_blocks_that_it_touches() -> None:
    t, source = stored(LARGE, verify=True)
    assert (t[3].numpy() == LARGE[3]).all()
    assert source.ranges == [(100, 100 + BLOCK_BYTES)]
    source.ranges.clear()
    assert (t[21:23].numpy() == LARGE[21:23]).all()  # its bytes lie on both sides of the first block's end
    assert source.ranges == [(100, 100 + 2 * BLOCK_BYTES)]
    source.ranges.clear()
    assert (t[-1].numpy() == LARGE[-1]).all()
    [(begin, end)] = source.ranges
    assert ((begin - 100) % BLOCK_BYTES, end) == (0, 100 + LARGE.nbytes)


@pytest.mark.parametrize("at", [0, BLOCK_BYTES - 1, BLOCK_BYTES, LARGE.nbytes - 1])
def test_damage_is_noticed_by_the_parts_that_touch_its_block(at: int) -> None:
    t, source = stored(LARGE, verify=True)
    content = bytearray(source.content)
    content[100 + at] ^= 1
    source.content = bytes(content)
    damaged = at // BLOCK_BYTES
    for row in (0, 10, 25, 250, 499):
        blocks = range(row * 48_000 // BLOCK_BYTES, (row * 48_000 + 47_999) // BLOCK_BYTES + 1)
        if damaged in blocks:
            with pytest.raises(dw.ChecksumError, match=f"block {damaged} of 23"):
                t[row]
        else:
            assert (t[row].numpy() == LARGE[row]).all()
    with pytest.raises(dw.ChecksumError, match=f"block {damaged} of 23"):
        t.numpy()


def test_parts_are_aligned_and_compact() -> None:
    x = any_bits(np.dtype("c16"), (100, 3))
    t, _ = stored(x)
    part = t[1::2, 1]
    assert part.numpy().ctypes.data % 8 == 0
    assert part.numpy().flags.writeable
    assert part.strides == (1,)
