"""numpy's files: versions, sizes, members that are no arrays, and names that numpy confuses."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dlpack_wire as dw
from dlpack_wire.formats.convert import Conversion, convert


@pytest.mark.parametrize(
    "version", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (255, 255)]
)
def test_versions_are_those_of_numpy(version: tuple[int, int], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    content = (tmp_path / "x.npy").read_bytes()
    size = int.from_bytes(content[8:10], "little").to_bytes(2 if version[0] < 2 else 4, "little")
    (tmp_path / "x.npy").write_bytes(content[:6] + bytes(version) + size + content[10:])
    try:
        np.load(tmp_path / "x.npy")
    except ValueError:
        with pytest.raises(dw.UnsupportedVersionError, match=f"npy of version {version[0]}.{version[1]};") as caught:
            convert(tmp_path / "x.npy", tmp_path / "y.dlpw")
        assert caught.value.found == f"{version[0]}.{version[1]}"
    else:
        convert(tmp_path / "x.npy", tmp_path / "y.dlpw")
        assert dw.load_one(tmp_path / "y.dlpw").numpy().tolist() == [0, 1, 2]


def test_an_extent_that_is_a_boolean_is_refused_as_by_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1.0))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(1,), }   ", b"(True,), }"))
    with pytest.raises(TypeError):
        np.load(tmp_path / "x.npy")
    with pytest.raises(dw.DecodeError, match=r"shape \(True,\)"):
        convert(tmp_path / "x.npy", tmp_path / "y.dlpw")


def test_bytes_behind_the_array_are_not_called_truncation(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content + bytes(5))
    with pytest.raises(dw.DecodeError, match="5 more follow") as caught:
        convert(tmp_path / "x.npy", tmp_path / "y.dlpw")
    assert not isinstance(caught.value, dw.TruncatedError)
    assert caught.value.offset == len(content)
    (tmp_path / "x.npy").write_bytes(content[:-5])
    with pytest.raises(dw.TruncatedError) as cut:
        convert(tmp_path / "x.npy", tmp_path / "y.dlpw")
    assert (cut.value.needed, cut.value.available) == (len(content), len(content) - 5)


def with_text(path: Path) -> Path:
    np.savez(path, data=np.arange(3), more=np.arange(4))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "hello")
        archive.writestr("objects.npy", npy_of_objects(path.parent))
    return path


def npy_of_objects(folder: Path) -> bytes:
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    return (folder / "objects.npy").read_bytes()


def test_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    source = with_text(tmp_path / "x.npz")
    assert convert(source, tmp_path / "d.npy", only="data") == Conversion([""], [])
    assert np.load(tmp_path / "d.npy").tolist() == [0, 1, 2]
    assert convert(source, tmp_path / "d.npz", only=["more", "data"]) == Conversion(["data", "more"], [])
    with np.load(tmp_path / "d.npz") as found:
        assert found.files == ["data", "more"]
    with pytest.raises(dw.EncodeError, match="no tensor 'x', 'y'"):
        convert(source, tmp_path / "e.npz", only=["x", "data", "y"])
    with pytest.raises(dw.EncodeError, match="no tensor"):
        convert(source, tmp_path / "e.npz", only=[])
    with pytest.raises(dw.EncodeError, match="holds one tensor"):
        convert(source, tmp_path / "e.npy", only=["more", "data"])
    with pytest.raises(dw.DecodeError, match="pickle"):
        convert(source, tmp_path / "e.npz")
    assert not (tmp_path / "e.npz").exists()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_are_no_arrays_are_named(compression: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "a", compression) as archive:
        archive.writestr("README.txt", "hello" * 100)
        archive.writestr("short", "x")
        archive.writestr("folder/", "")
        archive.writestr("folder with bytes/", "x")
    assert convert(tmp_path / "x.npz", tmp_path / "y.dlpw") == Conversion(
        ["a"], ["README.txt: not an array", "short: not an array", "folder with bytes/: not an array"]
    )
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("README.txt", "hello")
    with pytest.raises(dw.DecodeError, match="no member of the archive is an array"):
        convert(tmp_path / "z.npz", tmp_path / "z.dlpw")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_does_not_make_an_array_something_else(save: Callable[..., None], tmp_path: Path) -> None:
    """Its first bytes say that it is one: a change there must not leave it behind with a note."""
    save(tmp_path / "x.npz", a=np.arange(3), b=np.arange(4))
    good = (tmp_path / "x.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        begin = archive.getinfo("b.npy").header_offset + 30 + len("b.npy")
    begin += int.from_bytes(good[begin - len("b.npy") - 2 : begin - len("b.npy")], "little")
    for at in range(begin, begin + 12):
        content = bytearray(good)
        content[at] ^= 4
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(dw.DecodeError, match=r"b\.npy|tensor 'b'"):
            convert(tmp_path / "x.npz", tmp_path / "y.dlpw", durable=False)
    assert not (tmp_path / "y.dlpw").exists()


def test_names_that_numpy_confuses_are_refused(tmp_path: Path) -> None:
    x = {"a": np.zeros(1), "a.npy": np.ones(1)}
    dw.save(tmp_path / "x.dlpw", x)
    with pytest.raises(dw.EncodeError, match=r"numpy cannot tell this name from 'a\.npy'"):
        convert(tmp_path / "x.dlpw", tmp_path / "y.npz")
    assert not (tmp_path / "y.npz").exists()
    convert(tmp_path / "x.dlpw", tmp_path / "y.npz", only="a.npy")
    with np.load(tmp_path / "y.npz") as found:
        assert found["a.npy"].tolist() == [1]


def test_names_longer_than_a_member_takes_are_refused(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    for size, fits in ((65535 - 4, True), (65536 - 4, False)):
        safetensors.save_file({"n" * size: np.zeros(1)}, tmp_path / "x.safetensors")
        if fits:
            convert(tmp_path / "x.safetensors", tmp_path / "y.npz")
            with np.load(tmp_path / "y.npz") as found:
                assert found.files == ["n" * size]
        else:
            with pytest.raises(dw.EncodeError, match="65536 bytes; at most 65535") as caught:
                convert(tmp_path / "x.safetensors", tmp_path / "z.npz")
            assert (caught.value.declared, caught.value.limit) == (65536, 65535)
            assert not (tmp_path / "z.npz").exists()
