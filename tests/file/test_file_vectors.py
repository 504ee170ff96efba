"""The files in data/files: made without the library, one for every rule that a file can break."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dlpack_wire as dw
from dlpack_wire import errors
from dlpack_wire.file.recovery import recover
from dlpack_wire.v1 import tensor_file_pb2

FOLDER = Path(__file__).parents[1] / "data" / "files"
FILES: dict[str, dict[str, Any]] = json.loads((FOLDER / "files.json").read_text())
VALID = [name for name, said in FILES.items() if said["error"] is None]
INVALID = [name for name, said in FILES.items() if said["error"] is not None]


def test_the_files_are_those_that_are_made_on_purpose() -> None:
    done = subprocess.run([sys.executable, FOLDER / "make.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", VALID)
def test_valid_files_are_read(name: str) -> None:
    expected = FILES[name]["tensors"]
    for mmap in (True, False):
        with dw.open(FOLDER / name, mmap=mmap, verify=True) as f:
            assert {k: bytes(t.payload).hex() for k, t in f.items()} == expected
    if name == "valid-torn-tail.dlpw":
        return
    dw.verify(FOLDER / name)
    parsed = tensor_file_pb2.TensorFile.FromString((FOLDER / name).read_bytes())
    found = {}
    for record in parsed.records:
        for key in (record.name, *record.aliases):
            if record.HasField("tensor"):
                found[key] = record.tensor.data.hex()
            else:
                del found[key]
    assert found == expected


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
    assert any(issubclass(kind, getattr(errors, said["error"])) for kind in kinds), kinds
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
