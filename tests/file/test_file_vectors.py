"""The files in data/files: made without the library, one for every rule that a file can break."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from message_vectors import ERRORS, elements_of, joined

import dlpack_wire as dw
from dlpack_wire.file import entry
from dlpack_wire.file.reader import contents_of
from dlpack_wire.file.recovery import recover
from dlpack_wire.message.names import encode_value
from dlpack_wire.v1 import tensor_file_pb2

FOLDER = Path(__file__).parents[1] / "data" / "files"
FILES: dict[str, dict[str, Any]] = json.loads((FOLDER / "files.json").read_text())
VALID = [name for name, said in FILES.items() if said["error"] is None and "sparse" not in said]
SPARSE = [name for name, said in FILES.items() if "sparse" in said]
INVALID = [name for name, said in FILES.items() if said["error"] is not None]


def test_the_files_are_those_that_are_made_on_purpose() -> None:
    done = subprocess.run([sys.executable, FOLDER / "make.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", VALID)
def test_valid_files_are_read(name: str) -> None:
    said = FILES[name]
    expected = {name: joined(written) for name, written in said["tensors"].items()}
    for mmap in (True, False):
        with dw.open(FOLDER / name, mmap=mmap, verify=True) as f:
            assert {k: bytes(payload_of(f, k)) for k in f} == expected
            for key, elements in said.get("elements", {}).items():
                assert elements_of(f[key]).hex() == elements
            assert serialized(f.metadata) == said.get("metadata", {})
            stated = {k: serialized(f.metadata_of(k)) for k in f}
            assert {k: values for k, values in stated.items() if values} == said.get("tensor_metadata", {})
    if name.startswith("valid-torn"):
        with pytest.raises(dw.DecodeError):
            dw.verify(FOLDER / name)
        return
    dw.verify(FOLDER / name)
    parsed = tensor_file_pb2.TensorFile.FromString((FOLDER / name).read_bytes())
    found = {}
    for record in parsed.records:
        for key in (record.name, *record.aliases):
            if record.HasField("tensor"):
                found[key] = record.tensor.data
            else:
                del found[key]
    assert found == expected


def payload_of(f: dw.FileReader, name: str) -> memoryview:
    """A payload as it lies in the file, which `Tensor.payload` is not for one with strides or padded elements."""
    return entry.payload_of(contents_of(f).source, contents_of(f).locate(name).entry)


def serialized(metadata: dict[str, Any]) -> dict[str, str]:
    return {key: encode_value(key, value).SerializeToString().hex() for key, value in metadata.items()}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_files_are_read(name: str, tmp_path: Path) -> None:
    said, path = FILES[name], tmp_path / name
    with open(path, "wb") as file:
        file.truncate(int(said["sparse"]["size"]))
        for offset, part in said["sparse"]["parts"]:
            file.seek(int(offset))
            file.write(bytes.fromhex(part))
    for mmap in (True, False):
        with dw.open(path, mmap=mmap, verify=True) as f:
            assert list(f) == list(said["tensors"])
            for key, written in said["tensors"].items():
                t = f[key]
                if isinstance(written, str):
                    assert bytes(t.payload).hex() == written
                    continue
                [[part, times]] = written
                assert (part, times) == ("00", t.header.payload_bytes)
                assert (t[-1].numpy(), t[times // 2].numpy()) == (0, 0)
    dw.verify(path)
    path.unlink()


def read_everything(path: Path, mmap: bool) -> str:
    """Who refuses the file."""
    try:
        f = dw.open(path, mmap=mmap)
    except dw.DecodeError:
        return "open"
    with f:
        try:
            for t in f.values():
                t.numpy()
        except dw.DecodeError:
            return "read"
    return "verify"


@pytest.mark.parametrize("name", INVALID)
def test_invalid_files_are_refused(name: str, tmp_path: Path) -> None:
    said = FILES[name]
    path = FOLDER / name
    assert {read_everything(path, mmap) for mmap in (True, False)} == {said["at"]}
    with pytest.raises(dw.DecodeError):
        dw.verify(path)
    kinds = {type(problem) for problem in dw.file.problems(path)}
    assert any(issubclass(kind, ERRORS[said["error"]]) for kind in kinds), kinds
    with pytest.raises(dw.DecodeError):
        if said["at"] != "verify":
            dw.load(path)
        else:
            dw.verify(path)


@pytest.mark.parametrize("name", INVALID)
def test_what_is_recovered_of_an_invalid_file_is_valid(name: str, tmp_path: Path) -> None:
    target = tmp_path / "saved.dlpw"
    try:
        found = recover(FOLDER / name, target)
    except dw.DecodeError:
        assert not target.exists()
        return
    dw.verify(target)
    assert list(dw.load_dict(target)) == found.names
