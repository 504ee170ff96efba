"""save, load and open: what goes in comes out, whatever it is and wherever it goes."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import ALL_DTYPES, ORDERS, Array, arrays, lay_out, logical_bytes, native
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.file.reader import FileReader, contents_of
from dlpack_wire.file.storage import MemoryBytes
from dlpack_wire.v1 import tensor_file_pb2


def saved(x: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    dw.save(stream, x, **options)
    return stream.getvalue()


def same(t: dw.Tensor, x: Array) -> bool:
    return t.shape == x.shape and t.numpy().dtype == native(x).dtype and logical_bytes(t.numpy()) == logical_bytes(x)


# --- round trips ------------------------------------------------------------------------------------------------------


@given(arrays())
def test_any_array_comes_back_bit_for_bit(x: Array) -> None:
    content = saved({"x": x})
    assert same(dw.load_dict(content)["x"], x)
    [record] = tensor_file_pb2.TensorFile.FromString(content).records
    assert record.name == "x"
    assert same(dw.from_proto(record.tensor), x)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_type_in_every_layout_through_a_path(dtype: np.dtype[Any], order: str, tmp_path: Path) -> None:
    tensors = {
        f"{shape}": lay_out(dtype, shape, order, 1) for shape in ((), (3,), (2, 3, 4), (1, 5), (0, 3), (3, 0, 2))
    }
    path = tmp_path / "t.dlpw"
    dw.save(path, tensors, durable=False)
    for mmap in (True, False):
        with dw.open(path, mmap=mmap, verify=True) as f:
            assert {name: same(f[name], x) for name, x in tensors.items()} == dict.fromkeys(tensors, True)
    dw.verify(path)
    parsed = tensor_file_pb2.TensorFile.FromString(path.read_bytes())
    assert {r.name: same(dw.from_proto(r.tensor), tensors[r.name]) for r in parsed.records} == dict.fromkeys(
        tensors, True
    )


def test_fortran_order_is_kept_unless_it_is_not_wanted() -> None:
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert dw.load_dict(saved({"x": x}))["x"].strides == (1, 2)
    assert dw.load_dict(saved({"x": x}, layout="compact"))["x"].strides == (3, 1)


def test_torch_tensors_and_messages_are_taken_too() -> None:
    x = torch.arange(6).reshape(2, 3).to(torch.bfloat16)
    found = dw.load_dict(saved({"torch": x, "message": dw.to_proto(np.arange(3)), "ours": dw.decode(dw.encode(x))}))
    assert torch.equal(torch.from_dlpack(found["torch"]), x)
    assert torch.equal(torch.from_dlpack(found["ours"]), x)
    assert found["message"].numpy().tolist() == [0, 1, 2]


def test_payloads_of_foreign_order_are_swapped_on_the_way_out() -> None:
    x = np.array([1, 2, 3], ">i4")
    content = saved({"x": x})
    assert x.tobytes() in content
    with FileReader(MemoryBytes(content), "bytes") as f:
        first, second = f["x"], f["x"]
        assert first.numpy().tolist() == [1, 2, 3]
        first.numpy()[0] = 9
        assert second.numpy()[0] == 9
        assert first.header.byte_order == dw.ByteOrder.BIG


def test_one_tensor_comes_back_as_one(tmp_path: Path) -> None:
    for x in (np.arange(3), np.float32(1.5), np.empty((0, 2)), torch.zeros(()), dw.to_proto(np.arange(2))):
        dw.save(tmp_path / "one", x)
        t = dw.load(tmp_path / "one")
        assert isinstance(t, dw.Tensor)
        assert dw.load_one(tmp_path / "one").shape == t.shape
        assert list(dw.load_dict(tmp_path / "one")) == [""]


def test_one_named_tensor_comes_back_as_a_dict() -> None:
    found = dw.load(saved({"x": np.arange(3)}))
    assert isinstance(found, dict)
    assert dw.load_one(saved({"x": np.arange(3)})).numpy().tolist() == [0, 1, 2]


def test_no_tensors_at_all_are_a_file() -> None:
    assert dw.load(saved({})) == {}
    with pytest.raises(dw.DecodeError, match="0 tensors"):
        dw.load_one(saved({}))
    with pytest.raises(dw.DecodeError, match="2 tensors"):
        dw.load_one(saved({"a": np.arange(1), "b": np.arange(1)}))


def test_whole_files_parse_to_the_same_names_tensors_and_metadata() -> None:
    w = np.arange(12, dtype="f4").reshape(3, 4)
    content = saved({"w": w, "tied": w, "b": np.arange(3, dtype=ml_dtypes.bfloat16)}, metadata={"step": 7, "f": 0.5})
    parsed = tensor_file_pb2.TensorFile.FromString(content)
    found = dw.load_dict(content)
    assert parsed.magic == int.from_bytes(b"DLPWIRE1", "little")
    assert parsed.end_magic == int.from_bytes(b"DLPWIREE", "little")
    assert [(r.name, list(r.aliases)) for r in parsed.records] == [("w", ["tied"]), ("b", [])]
    for r in parsed.records:
        for name in (r.name, *r.aliases):
            assert r.tensor.data == bytes(found[name].payload)
    [index] = parsed.indexes
    assert {k: v.int_value or v.double_value for k, v in index.metadata.items()} == {"step": 7, "f": 0.5}
    for e, r in zip(index.entries, parsed.records, strict=True):
        assert (e.name, list(e.aliases)) == (r.name, list(r.aliases))
        assert content[e.data_offset : e.data_offset + e.data_bytes] == r.tensor.data
        assert e.data_offset % 64 == 0
        assert list(e.header.shape) == list(r.tensor.shape)
    assert parsed.index_offset == content.rindex(b"\x21" + parsed.index_offset.to_bytes(8, "little")) - index_size(
        index
    )


def index_size(index: tensor_file_pb2.TensorFileIndex) -> int:
    size = index.ByteSize()
    return size + 1 + (size.bit_length() + 6) // 7


@pytest.mark.parametrize("alignment", [64, 128, 512, 4096])
def test_payloads_are_aligned_in_file_and_in_memory(alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "t.dlpw"
    tensors = {f"t{i}": np.full(i + 1, i, np.uint8) for i in range(50)} | {"large": np.zeros(300_000, np.uint8)}
    dw.save(path, tensors, alignment=alignment)
    with dw.open(path) as f:
        for name, x in tensors.items():
            assert contents_of(f).locate(name).entry.data_offset % alignment == 0
            assert f[name].numpy().ctypes.data % alignment == 0
            assert (f[name].numpy() == x).all()


@pytest.mark.parametrize("alignment", [0, 1, 32, 63, 96, 8192, -64, 2**40])
def test_other_alignments_are_refused(alignment: int) -> None:
    with pytest.raises(dw.EncodeError, match="power of two from 64 to 4096"):
        saved({}, alignment=alignment)


# --- names ------------------------------------------------------------------------------------------------------------


def test_awkward_names_come_back() -> None:
    names = [
        "../../etc/passwd",
        "/abs",
        "a/../b",
        "\u00e9",
        "e\u0301",
        "A",
        "a",
        " ",
        "\n",
        "\u202e",
        "ä" * 2048,
        "__metadata__",
    ]
    assert list(dw.load_dict(saved({name: np.array([i]) for i, name in enumerate(names)}))) == names


@pytest.mark.parametrize("name", ["", "a\0", "ä" * 2048 + "a", "\udc80", 7, None, b"a"])
def test_names_that_no_reader_takes_are_not_written(name: Any) -> None:
    with pytest.raises(dw.EncodeError):
        saved({"first": np.arange(1), name: np.arange(2)})


def test_duplicate_names_in_an_iterable_are_named() -> None:
    with pytest.raises(dw.EncodeError, match="duplicate name 'a'"):
        saved(iter([("a", np.arange(1)), ("b", np.arange(1)), ("a", np.arange(2))]))


def test_errors_name_the_tensor() -> None:
    for bad in (object(), "text", [1, 2], None):
        with pytest.raises(dw.EncodeError, match="'bad'"):
            saved({"good": np.arange(1), "bad": bad})
        with pytest.raises(dw.EncodeError):
            saved({"bad": bad, "too": bad})
    for bad in (object(), "text", b"bytes", 1.5, None, [1]):
        with pytest.raises(dw.EncodeError):
            saved(bad)


# --- tied weights -----------------------------------------------------------------------------------------------------


def test_tied_weights_are_stored_once() -> None:
    w = np.zeros(100_000)
    t = torch.zeros(100_000)
    tensors = {
        "w": w,
        "same object": w,
        "same memory": w.view(),
        "part": w[:1000],
        "other shape": w.reshape(100, 1000),
        "t": t,
        "t too": t.view(100_000),
        "equal": np.zeros(100_000),
    }
    content = saved(tensors)
    parsed = tensor_file_pb2.TensorFile.FromString(content)
    assert [(r.name, list(r.aliases)) for r in parsed.records] == [
        ("w", ["same object", "same memory"]),
        ("part", []),
        ("other shape", []),
        ("t", ["t too"]),
        ("equal", []),
    ]
    found = dw.load_dict(content)
    assert {name: t.shape for name, t in found.items()} == {name: tuple(x.shape) for name, x in tensors.items()}
    with FileReader(MemoryBytes(content), "bytes") as f:
        assert f.names_of("same memory") == ["w", "same object", "same memory"]


def test_more_names_than_a_record_can_have_take_another_record() -> None:
    w = np.arange(1000)
    content = saved({f"w{i}": w for i in range(150)})
    records = tensor_file_pb2.TensorFile.FromString(content).records
    assert [len(r.aliases) for r in records] == [64, 64, 19]
    assert all((t.numpy() == w).all() for t in dw.load_dict(content).values())
    assert len(dw.load_dict(content)) == 150


# --- where it goes ----------------------------------------------------------------------------------------------------


def test_an_iterable_is_written_one_by_one(tmp_path: Path) -> None:
    alive: list[int] = []

    def tensors() -> Iterator[tuple[str, Array]]:
        for i in range(5):
            x = np.full(200_000, i)
            alive.append(i)
            yield f"t{i}", x

    dw.save(tmp_path / "t", tensors())
    assert [t.numpy()[0] for t in dw.load_dict(tmp_path / "t").values()] == alive == [0, 1, 2, 3, 4]


def test_an_iterable_of_something_else_is_refused() -> None:
    for x in ([1, 2], ["ab"], [("a", np.arange(1), 3)], iter([np.arange(2)])):
        with pytest.raises(dw.EncodeError, match="pairs"):
            saved(x)


class Slow:
    """A stream that only has `write`, and takes little at a time."""

    def __init__(self, most: int, answer: bool = True) -> None:
        self.content = bytearray()
        self.most = most
        self.answer = answer

    def write(self, piece: Any) -> int | None:
        taken = bytes(piece[: self.most]) if self.answer else bytes(piece)
        self.content += taken
        return len(taken) if self.answer else None


@pytest.mark.parametrize("most", [1, 7, 4096, 10**9])
def test_streams_that_take_little_at_a_time(most: int, tmp_path: Path) -> None:
    tensors = {"a": np.arange(50), "b": np.zeros(0), "c": np.arange(2000.0).reshape(50, 40).T}
    stream, silent = Slow(most), Slow(0, answer=False)
    dw.save(stream, tensors, {"k": 1})
    dw.save(silent, tensors, {"k": 1})
    dw.save(tmp_path / "t", tensors, {"k": 1})
    assert bytes(stream.content) == bytes(silent.content) == (tmp_path / "t").read_bytes()


@pytest.mark.parametrize("answer", [0, -1, 10**6])
def test_a_stream_that_lies_about_what_it_took_is_an_error(answer: int) -> None:
    class Liar:
        def write(self, piece: Any) -> int:
            return answer

    with pytest.raises(OSError, match="Liar"):
        dw.save(Liar(), np.arange(3))


def test_paths_of_every_kind(tmp_path: Path) -> None:
    x = np.arange(3)
    for path in (tmp_path / "a", str(tmp_path / "b"), os.fsencode(tmp_path / "c"), tmp_path / "\udcff"):
        dw.save(path, x)
        assert dw.open(path)[""].numpy().tolist() == [0, 1, 2]


def test_equal_tensors_give_equal_bytes_whatever_made_them() -> None:
    x = np.arange(6, dtype="f4").reshape(2, 3)
    contents = {saved({"x": y}) for y in (x, torch.from_numpy(x.copy()), x[:, ::-1][:, ::-1], dw.decode(dw.encode(x)))}
    assert len(contents) == 1


def test_loading_lazily_and_saving_over_the_same_path(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dw.save(path, {"a": np.arange(100_000), "b": np.ones(10)})
    with dw.open(path) as f:
        live = dict(f)
        dw.save(path, {"a": live["a"]})
        assert (live["a"].numpy() == np.arange(100_000)).all()
        assert (live["b"].numpy() == 1).all()
    found = dw.load_dict(path)
    assert list(found) == ["a"]
    assert (found["a"].numpy() == np.arange(100_000)).all()


def test_another_process_that_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dw.save(path, {"a": np.arange(100_000)})
    script = f"""
        import subprocess, sys
        import dlpack_wire as dw
        with dw.open({str(path)!r}) as f:
            subprocess.run([sys.executable, "-c",
                "import dlpack_wire as dw, numpy as np; dw.save({str(path)!r}, dict(a=np.zeros(5)))"], check=True)
            print(int(f["a"].numpy().sum()))
        print(dw.load_dict({str(path)!r})["a"].shape)
    """
    assert run_python(script) == "4999950000\n(5,)\n"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask(umask: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    before = os.umask(umask)
    try:
        dw.save(path, np.arange(3))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for mode in (0o600, 0o640, 0o444):
        dw.save(path, np.arange(3))
        path.chmod(mode)
        dw.save(path, np.arange(4))
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_unknown_modes_of_opening_are_refused(tmp_path: Path) -> None:
    for mode in ("x", "rb", "", "r+"):
        with pytest.raises(ValueError, match="mode must be"):
            dw.open(tmp_path / "t", mode)  # type: ignore[call-overload]


def test_a_missing_file_is_the_usual_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dw.load(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        dw.save(tmp_path / "missing" / "t", np.arange(3))
    with pytest.raises(IsADirectoryError):
        dw.save(tmp_path, np.arange(3))
    for mmap in (True, False):
        with pytest.raises(IsADirectoryError, match=tmp_path.name):
            dw.open(tmp_path, mmap=mmap)


def test_what_was_saved_can_be_loaded_without_verifying(tmp_path: Path) -> None:
    content = bytearray(saved({"a": np.arange(100)}))
    content[content.index(np.arange(100).tobytes()) + 9] ^= 1
    assert dw.load_dict(bytes(content), verify=False)["a"].numpy()[1] != 1
    with pytest.raises(dw.ChecksumError, match="tensor 'a'"):
        dw.load_dict(bytes(content))


def test_bytes_cannot_be_resized_away_under_their_tensors() -> None:
    stream = io.BytesIO()
    dw.save(stream, {"x": np.arange(1000)})
    content = bytearray(stream.getvalue())
    x = dw.load_dict(content)["x"].numpy()
    with pytest.raises(BufferError):
        content.clear()
    assert (x == np.arange(1000)).all()


class Lazy(Mapping[str, Any]):
    """Makes its arrays anew whenever it is asked, as an open .npz file does."""

    def __getitem__(self, name: str) -> np.ndarray:
        return np.full(1000, int(name))

    def __iter__(self) -> Iterator[str]:
        return iter("012345")

    def __len__(self) -> int:
        return 6


def test_tensors_made_anew_at_an_old_address_are_not_taken_for_tied(tmp_path: Path) -> None:
    dw.save(tmp_path / "x.dlpw", Lazy())
    for name, t in dw.load_dict(tmp_path / "x.dlpw").items():
        assert (t.numpy() == int(name)).all()


def test_lazy_views_of_one_torch_tensor_are_not_taken_for_tied(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    z = torch.randn(20_000, dtype=torch.complex64)
    saved = {"a": z[:10_000].conj(), "b": z[10_000:].conj(), "c": z[:10_000].conj().imag, "d": z[10_000:].conj().imag}
    dw.save(tmp_path / "x.dlpw", saved)
    for name, t in dw.load_dict(tmp_path / "x.dlpw").items():
        assert torch.equal(torch.from_dlpack(t), saved[name].resolve_conj().resolve_neg())


def test_a_stream_may_keep_what_it_is_given() -> None:
    torch = pytest.importorskip("torch")
    parts: list[memoryview] = []

    class Keeps:
        def write(self, content: memoryview) -> None:
            parts.append(content)

    x = torch.full((1_000_000,), 7, dtype=torch.int32)
    dw.save(Keeps(), {"a": x, "b": x[::2], "c": torch.utils.dlpack.to_dlpack(x + 1)})
    del x
    torch.zeros(1_000_000, dtype=torch.int32)
    found = dw.load_dict(b"".join(parts))
    assert [set(np.unique(found[name].numpy()).tolist()) for name in "abc"] == [{7}, {7}, {8}]
