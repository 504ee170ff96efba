"""Index entries against records: the short way and the strict one come to the same verdict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_built_files import two_generations

import dlpack_wire as dw
from dlpack_wire.file import entry as located
from dlpack_wire.file.reader import FileReader, contents_of
from dlpack_wire.file.storage import MemoryBytes

FILES = sorted((Path(__file__).parents[1] / "data" / "files").glob("*.dlpw"))


def verdict(content: bytes) -> list[tuple[str, str]]:
    """What is found under every name, or the error there."""
    try:
        f = FileReader(MemoryBytes(content), "x")
    except dw.DecodeError as error:
        return [("", str(error))]
    found = []
    try:
        names = list(f)
    except dw.DecodeError as error:
        return [("", str(error))]
    for name in names:
        try:
            found.append((name, repr(contents_of(f).locate(name))))
        except dw.DecodeError as error:
            found.append((name, str(error)))
    return found


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets every record be parsed, and remembers no header."""
    monkeypatch.setattr(located, "_is_as_we_write", lambda region, found: False)
    monkeypatch.setattr(located, "_REMEMBERED_BYTES", -1)
    return monkeypatch


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_judged_alike(path: Path, strict: pytest.MonkeyPatch) -> None:
    parsed = verdict(path.read_bytes())
    strict.undo()
    assert verdict(path.read_bytes()) == parsed


def test_every_flipped_bit_of_a_head_is_judged_alike(strict: pytest.MonkeyPatch) -> None:
    content = two_generations()
    damaged = []
    for bit in range(9 * 8, len(content) * 8, 3):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    parsed = [verdict(d) for d in damaged]
    strict.undo()
    assert [verdict(d) for d in damaged] == parsed


@pytest.mark.parametrize("alignment", [64, 4096])
def test_what_is_written_is_found_either_way(alignment: int, tmp_path: Path, strict: pytest.MonkeyPatch) -> None:
    tensors = {
        "plain": np.arange(100.0),
        "empty": np.empty((0, 3)),
        "scalar": np.array(1, np.uint8),
        "fortran": np.asfortranarray(np.ones((3, 4))),
        "big": np.arange(5, dtype=">i4"),
    }
    dw.save(tmp_path / "t", tensors, alignment=alignment)
    content = (tmp_path / "t").read_bytes()
    parsed = verdict(content)
    strict.undo()
    assert verdict(content) == parsed
    assert len(parsed) == len(tensors)
