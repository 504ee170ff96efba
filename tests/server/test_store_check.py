"""`dlpack-wire store check|repair`: every kind of loss and damage is said, and mended where that is possible."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_wire_server.directory_store import DirectoryStore
from dlpack_wire_server.store_check import Problem, check
from server_process import running

import dlpack_wire as dw
from dlpack_wire.cli import main as cli

RETENTION_NS = 10**12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three objects, one of which was replaced, put through a server."""
    path = tmp_path / "store"
    with running("--dir", str(path)) as server, dw.connect(server.address) as client:
        client.put("a", np.arange(5), metadata={"unit": "m"})
        client.put("replaced", np.zeros(3))
        client.put("replaced", {"x": np.ones(7), "y": np.ones(2)})
        client.put("large", np.zeros(3 << 20, np.uint8))
        client.put("deleted", np.zeros(3))
        client.delete("deleted")
    return path


def texts(folder: Path, **options: Any) -> list[str]:
    return [problem.text for problem in check(str(folder), **options)]


def names(folder: Path) -> list[str]:
    store = DirectoryStore(str(folder), 0, RETENTION_NS)
    found = [info.name for info in store.list("", "", 100)]
    for name in found:
        for record in (stored := store.get(name)).records:
            stored.read(record, 0, record.header.payload_bytes)
    store.close()
    return found


def file_of(folder: Path, name: str) -> Path:
    for path in (folder / "objects").iterdir():
        with dw.open(path) as f:
            if f.metadata["dlpack_wire.object"] == name:
                return path
    raise AssertionError(name)


def test_a_whole_folder(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert list(check(str(folder), report=lambda done, total: seen.append((done, total)))) == []
    assert seen[-1][0] == seen[-1][1] > 3 << 20
    assert list(check(str(folder), repair=True)) == []
    assert names(folder) == ["a", "large", "replaced"]


@pytest.mark.parametrize("loss", ["removed", "no WAL", "damaged"])
def test_a_lost_index_is_made_anew(folder: Path, loss: str, tmp_path: Path) -> None:
    if loss == "removed":
        for path in folder.glob("index.sqlite*"):
            path.unlink()
        expected = "the index index.sqlite is missing"
    elif loss == "damaged":
        content = bytearray((folder / "index.sqlite").read_bytes())
        content[100:4000] = bytes(3900)
        (folder / "index.sqlite").write_bytes(content)
        expected = "the index index.sqlite is damaged"
    else:
        index = sqlite3.connect(folder / "index.sqlite")
        index.execute("DELETE FROM objects WHERE name != ?", (b"a",))
        index.execute("DELETE FROM dead")
        index.commit()
        index.close()
        expected = "objects/"
    found = list(check(str(folder)))
    assert found[0].text.startswith(expected)
    assert {problem.remedy for problem in found} <= {
        "a new index is made of the objects' files",
        "it is taken into the index",
    }
    assert list(check(str(folder), repair=True)) == found
    assert list(check(str(folder))) == []
    assert names(folder) == ["a", "large", "replaced"]
    with running("--dir", str(folder)) as server, dw.connect(server.address) as client:
        assert client.stat("a").metadata == {"unit": "m"}
        assert (client.get("replaced")["x"].numpy() == 1).all()  # type: ignore[index]
        assert client.put("a", np.zeros(1)) > client.stat("large").generation


def test_what_a_start_put_aside_is_taken_back(folder: Path) -> None:
    index = sqlite3.connect(folder / "index.sqlite")
    index.execute("DELETE FROM objects WHERE name = ?", (b"large",))
    index.commit()
    index.close()
    assert names(folder) == ["a", "replaced"]
    (problem,) = check(str(folder), repair=True)
    assert problem.text.startswith("lost+found/")
    assert "whole object 'large'" in problem.text
    assert names(folder) == ["a", "large", "replaced"]


def test_an_older_generation_stays_aside(folder: Path) -> None:
    (folder / "lost+found").mkdir()
    shutil.copy(file_of(folder, "a"), folder / "lost+found" / "7.dlpw")
    (problem,) = check(str(folder), repair=True)
    assert problem == Problem("lost+found/7.dlpw is an older generation of 'a'")
    assert (folder / "lost+found" / "7.dlpw").exists()


def test_damage_is_named_by_object_tensor_and_block(folder: Path) -> None:
    path = file_of(folder, "large")
    with open(path, "r+b") as f:
        f.seek(2 << 20)
        f.write(b"\1")
    (problem,) = check(str(folder), repair=True)
    assert problem.text.startswith(f"object 'large', {path.name}: ")
    assert "block" in problem.text
    assert problem.remedy == ""
    assert path.exists()


def test_a_missing_file(folder: Path) -> None:
    file_of(folder, "a").unlink()
    (text,) = texts(folder, repair=True)
    assert text.startswith("object 'a': its file ")
    assert text.endswith(" is missing")
    assert list(check(str(folder))) == []
    assert names(folder) == ["large", "replaced"]


def test_files_that_were_exchanged(folder: Path) -> None:
    first, second = file_of(folder, "a"), file_of(folder, "large")
    other = first.with_suffix(".x")
    first.rename(other)
    second.rename(first)
    other.rename(second)
    assert sorted(texts(folder)) == sorted(
        [f"object 'a': {first.name} is of 'large'", f"object 'large': {second.name} is of 'a'"]
    )


def test_a_file_that_is_no_object_is_left_alone(folder: Path) -> None:
    (folder / "objects" / "5.dlpw").write_bytes(b"something else")
    (problem,) = check(str(folder), repair=True)
    assert problem.text.startswith("objects/5.dlpw is not in the index, and no whole object: ")
    assert (folder / "objects" / "5.dlpw").exists()


def test_a_folder_in_use_and_one_that_is_none(folder: Path, tmp_path: Path) -> None:
    store = DirectoryStore(str(folder), 0, RETENTION_NS)
    with pytest.raises(OSError, match="in use by another server"):
        texts(folder)
    store.close()
    with pytest.raises(FileNotFoundError):
        texts(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["store", "check", str(folder)]) == cli.OK
    assert capsys.readouterr().out == f"{folder}: no problems\n"
    file_of(folder, "a").unlink()
    assert cli.main(["store", "check", str(folder), "--json"]) == cli.BAD_DATA
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["text"].startswith("object 'a': its file ")
    assert cli.main(["store", "repair", str(folder)]) == cli.OK
    assert "(done: its name is removed from the index)" in capsys.readouterr().out
    assert cli.main(["store", "check", str(folder)]) == cli.OK
    assert cli.main(["store", "check", str(folder / "none")]) == cli.NOT_FOUND
