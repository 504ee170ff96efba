"""torch's files: logical values of views, ties, sums, and a note for everything that is not taken."""

from __future__ import annotations

import argparse
import collections
import pathlib
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import foreign_files
import numpy as np
import pytest
import torch

import dlpack_wire as dw
from dlpack_wire.formats.convert import Conversion, convert


def saved(tmp_path: Path, value: Any, protocol: int = 2) -> Path:
    torch.save(value, tmp_path / "x.pt", pickle_protocol=protocol)
    return tmp_path / "x.pt"


COMPLEX = torch.tensor([1 + 2j, complex(float("nan"), -0.0), complex(float("inf"), 3)])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls the type experimental
    HALF = COMPLEX.to(torch.complex32).conj()
LAZY = {
    "conjugated": COMPLEX.conj(),
    "conjugated, complex128": COMPLEX.to(torch.complex128).conj(),
    "conjugated, complex32": HALF,
    "conjugated twice": COMPLEX.conj().conj(),
    "its imaginary part": COMPLEX.conj().imag,
    "its real part": COMPLEX.conj().real,
    "transposed": COMPLEX.expand(2, 3).mH,
    "of no dimension": COMPLEX.conj()[0],
    "empty": COMPLEX.conj()[:0],
    "parameter": torch.nn.Parameter(COMPLEX.conj()),
    "negated": torch._neg_view(torch.tensor([0.0, -1.5, float("nan")])),
    "negated bfloat16": torch._neg_view(torch.tensor([0.0, -1.5], dtype=torch.bfloat16)),
    "negated int32": torch._neg_view(torch.tensor([0, 5, -(2**31)], dtype=torch.int32)),
    "negated uint8": torch._neg_view(torch.tensor([0, 5], dtype=torch.uint8)),
    "negated and conjugated": torch._neg_view(COMPLEX.conj()),
    "untyped": torch.zeros(2, dtype=torch.uint16),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("suffix", ["dlpw", "npz", "safetensors", "onnx", "pt"])
@pytest.mark.parametrize("name", LAZY)
def test_lazy_views_have_their_logical_values(name: str, suffix: str, tmp_path: Path) -> None:
    source, target = saved(tmp_path, {name: LAZY[name]}), tmp_path / f"y.{suffix}"
    kind = str(LAZY[name].dtype).removeprefix("torch.")
    if kind not in (*foreign_files.TYPES[suffix], *(["complex32"] if suffix in ("pt", "dlpw") else [])):
        with pytest.raises(dw.EncodeError, match="no type for"):
            convert(source, target)
        return
    assert convert(source, target) == Conversion([name], [])
    if suffix == "dlpw" and kind == "complex32":
        assert bytes(dw.load_dict(target)[name].payload) == foreign_files.torch_facts(LAZY[name])[2]
    else:
        assert foreign_files.read(target)[0] == {name: foreign_files.torch_facts(LAZY[name])}


def test_lazy_views_that_torch_cannot_make_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": COMPLEX.conj()})
    with zipfile.ZipFile(source) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    (name,) = (name for name in members if name.endswith("data.pkl"))
    members[name] = members[name].replace(b"ComplexFloatStorage", b"DoubleStorage")
    with zipfile.ZipFile(source, "w") as archive:
        for key, content in members.items():
            archive.writestr(key, content)
    with pytest.raises(dw.DecodeError, match=r"tensor 'a': a lazily conjugated float64"):
        convert(source, tmp_path / "y.npz")


class Rebuilt:
    """An object that pickle makes by a call with a tensor, and sets attributes on."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return Rebuilt, (torch.ones(2), [torch.ones(3)]), {"more": torch.ones(4)}


class Plain:
    """An object whose attributes are all that it has."""


class OfTensor(torch.Tensor):
    """A kind of tensor that only its class can read."""


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("protocol", [2, 4])
def test_whatever_is_not_taken_is_named_by_its_path(protocol: int, tmp_path: Path) -> None:
    plain = Plain()
    plain.weight, plain.count, plain._hooks = torch.ones(3), 3, {}  # type: ignore[attr-defined]
    with_attribute = torch.ones(2)
    with_attribute.scale = 0.5  # type: ignore[attr-defined]
    t = torch.arange(4.0)
    source = saved(
        tmp_path,
        {
            "array": np.arange(3),
            "scalar": np.float32(1),
            "objects": [{"deep": Rebuilt()}],
            "plain": plain,
            "namespace": argparse.Namespace(a=1, t=t),
            "named": collections.defaultdict(list, a=[t]),
            "counter": collections.Counter("aab"),
            "attribute": with_attribute,
            "subclass": torch.ones(2).as_subclass(OfTensor),  # type: ignore[arg-type]
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "sparse": torch.ones(2, 2).to_sparse(),
            "storage": torch.zeros(2).untyped_storage(),
            "meta": torch.ones(2, device="meta"),
            "keys": {(1, 2): t, frozenset([1]): 3, 5: t, None: t, "text": t},
            "set": {1, 2},
            "frozen": frozenset([1]),
            "path": pathlib.PurePosixPath("/x"),
            "complex": 1j,
            "large": 2**70,
            "type": torch.float32,
            "empty": {"dict": {}, "list": [], "tuple": ()},
            "none": None,
        },
        protocol,
    )
    done = convert(source, tmp_path / "y.dlpw")
    taken = {
        *("plain.weight", "namespace.t", "named.a.0", "attribute", "keys.5", "keys.None", "keys.text"),
    }
    assert set(done.names) == taken
    with dw.open(tmp_path / "y.dlpw") as f:
        assert f.metadata == {"plain.count": 3, "namespace.a": 1}
    named = collections.Counter(said.partition(": ")[0] for said in done.skipped)
    assert named == collections.Counter(
        [
            *(
                "array",
                "scalar",
                "objects.0.deep",
                "counter",
                "attribute",
                "subclass",
                "quantized",
                "sparse",
                "storage",
            ),
            *("meta", "keys", "keys", "set", "frozen", "path", "complex", "large", "type"),
            *("empty.dict", "empty.list", "empty.tuple", "none"),
        ]
    )
    said = "\n".join(done.skipped)
    assert re.search(r"^array: numpy.*_reconstruct$", said, re.MULTILINE)
    assert re.search(r"^objects\.0\.deep: .*Rebuilt, with 3 tensors in it$", said, re.MULTILINE)
    assert re.search(
        r"^keys: an entry whose key is neither text nor a number, with 1 tensor in it$", said, re.MULTILINE
    )
    assert re.search(r"^sparse: .*_rebuild_sparse_tensor, with 2 tensors in it$", said, re.MULTILINE)


def test_an_unknown_element_type_costs_its_tensor_alone(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": torch.ones(2, dtype=torch.float64), "b": torch.ones(2)})
    with zipfile.ZipFile(source) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    (name,) = (name for name in members if name.endswith("data.pkl"))
    members[name] = members[name].replace(b"DoubleStorage", b"QuantumStorage")
    with zipfile.ZipFile(source, "w") as archive:
        for key, content in members.items():
            archive.writestr(key, content)
    done = convert(source, tmp_path / "y.npz")
    assert done.names == ["b"]
    assert done.skipped == ["a: torch._utils._rebuild_tensor_v2 of an unknown element type"]


def test_a_root_that_is_no_collection_is_named(tmp_path: Path) -> None:
    for value, said in ((None, "(root): None"), ("text", "(root): str"), (np.arange(2), "(root): numpy")):
        done = convert(saved(tmp_path, value), tmp_path / "y.dlpw")
        assert done.names == []
        assert [s.startswith(said) for s in done.skipped] == [True]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_frozen_torchscript_gives_the_tensors_of_its_code(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
    frozen = torch.jit.freeze(torch.jit.script(model))
    torch.jit.save(frozen, tmp_path / "x.jit", _extra_files={"labels.txt": b"cat"})
    done = convert(tmp_path / "x.jit", tmp_path / "y.npz", without_metadata=True)
    assert len(done.skipped) == 1
    assert "extra/labels.txt" in done.skipped[0]
    with np.load(tmp_path / "y.npz") as found:
        shapes = sorted(found[name].shape for name in found)
        assert shapes == [(4,), (4, 3)]
        assert any(np.array_equal(found[name], model.state_dict()["0.weight"].numpy()) for name in found)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("member", ["data.pkl", "byteorder", "data/0"])
def test_the_sum_of_every_member_is_checked(member: str, compression: int, tmp_path: Path) -> None:
    torch.save({"a": torch.arange(100.0), "b": torch.arange(100.0, 200)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        members = {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "x.pt", "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)
    content = bytearray((tmp_path / "x.pt").read_bytes())
    entry = content.index(b"PK\x01\x02")
    while content[entry + 46 :][: len(f"archive/{member}")] != f"archive/{member}".encode():
        entry = content.index(b"PK\x01\x02", entry + 4)
    content[entry + 16] ^= 1  # of the sum in the directory
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(dw.DecodeError, match=r"CRC|checksum") as caught:
        convert(tmp_path / "x.pt", tmp_path / "y.dlpw")
    assert isinstance(caught.value, dw.ChecksumError) == (compression == zipfile.ZIP_STORED)
    assert not (tmp_path / "y.dlpw").exists()
    if member == "data/0":
        assert convert(tmp_path / "x.pt", tmp_path / "y.dlpw", only="b").names == ["b"]


def test_files_that_torch_wrote_without_sums_are_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        source = saved(tmp_path, {"a": torch.arange(4.0)})
    finally:
        torch.serialization.set_crc32_options(True)
    convert(source, tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        assert found["a"].tolist() == [0, 1, 2, 3]


def test_ties_are_kept_where_the_target_can_and_told_where_not(tmp_path: Path) -> None:
    t = torch.arange(1 << 16)
    source = saved(tmp_path, {"a": t, "b": t, "c": t.reshape(256, 256), "d": torch.ones(3)})
    size = source.stat().st_size
    shared = "a, c: views of one storage, written separately"
    for suffix in ("pt", "dlpw"):
        done = convert(source, tmp_path / f"y.{suffix}")
        assert done == Conversion(["a", "b", "c", "d"], [], (shared,))
        assert (tmp_path / f"y.{suffix}").stat().st_size < 2.1 * size  # a and b once, c once more
    found = torch.load(tmp_path / "y.pt", weights_only=True)
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert torch.equal(found["b"], t)
    assert convert(tmp_path / "y.dlpw", tmp_path / "z.pt").notes == ()
    again = torch.load(tmp_path / "z.pt", weights_only=True)
    assert again["a"].data_ptr() == again["b"].data_ptr()
    for suffix in ("npz", "safetensors", "onnx"):
        done = convert(source, tmp_path / f"y.{suffix}")
        assert done.skipped == []
        assert done.notes == (shared, "a = b: one tensor of 2 names, written 2 times")


def test_attributes_of_a_state_dict_are_told(tmp_path: Path) -> None:
    done = convert(saved(tmp_path, {"model": torch.nn.Linear(2, 2).state_dict()}), tmp_path / "y.npz")
    assert done.skipped == []
    assert done.notes == ("model: attributes of an OrderedDict, which no other file has",)


def test_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    """The storage of the other tensor is missing, one more entry is no storage, and the rest has no name."""
    good, bad = torch.arange(3.0), torch.arange(4.0, dtype=torch.float64)
    source = saved(tmp_path, {"bad": bad, "good": good, "array": np.arange(2)})
    with zipfile.ZipFile(source) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(source, "w") as archive:
        for name, content in members.items():
            if content != bad.numpy().tobytes():
                archive.writestr(name, content)
    with pytest.raises(dw.DecodeError, match="the archive has no"):
        convert(source, tmp_path / "y.npz")
    assert convert(source, tmp_path / "y.npz", only="good") == Conversion(["good"], [])


def test_a_byte_order_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": torch.arange(4)})
    with zipfile.ZipFile(source) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(source, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, b"middle" if name.endswith("byteorder") else content)
    with pytest.raises(dw.DecodeError, match="byteorder: b'middle'"):
        convert(source, tmp_path / "y.dlpw")
