"""Compacting: what is read before is read after, dead bytes are gone, and damage is never copied."""

from __future__ import annotations

import os
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hand_built_files import CraftedFile, two_generations

import dlpack_wire as dw
from dlpack_wire.file.reader import contents_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.dlpw"


def described(path: Path) -> list[tuple[object, ...]]:
    with dw.open(path) as f:
        return [(name, f.header(name), f.metadata_of(name), bytes(f[name].payload)) for name in f]


def test_names_values_metadata_and_order_stay(path: Path) -> None:
    with dw.open(path, "a", metadata={"step": 1, "old": "x"}) as f:
        f.write("a", np.arange(3.0), aliases=["b", "c"], metadata={"unit": "m"})
        f["big"] = np.asfortranarray(np.arange(600_000, dtype=">f8").reshape(600, 1000))
        f["packed"] = dw.from_proto(dw.to_proto(np.arange(5, dtype=ml_dtypes.int4)))
    with dw.open(path, "a", metadata={"step": 2}) as f:
        f["b"] = np.int8(7)
        f["gone"] = np.zeros(9)
        f["0-d"] = np.float32(1)
        f["none"] = np.zeros((0, 2))
    with dw.open(path, "a") as f:
        del f["gone"], f["a"]
        del f.metadata["old"]
    before = described(path)
    with dw.open(path) as f:
        metadata = f.metadata
    done = dw.compact(path)
    assert described(path) == before
    assert done.names == [name for name, *_ in before]
    assert done.after_bytes == path.stat().st_size < done.before_bytes
    dw.verify(path)
    with dw.open(path) as f:
        assert f.metadata == metadata == {"step": 2}
        assert contents_of(f).dead_bytes() == 0
        assert len(contents_of(f).chain) == 1


def test_a_removed_name_of_a_living_record_does_not_return(path: Path) -> None:
    with dw.open(path, "a") as f:
        f.write("a", np.arange(3), aliases=["b"])
    with dw.open(path, "a") as f:
        del f["b"]
    dw.compact(path)
    dw.verify(path)
    with dw.open(path) as f:
        assert list(f) == ["a"]


@pytest.mark.parametrize("seed", range(20))
def test_any_history(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    there: set[str] = set()
    for _ in range(chance.randint(1, 8)):
        with dw.open(path, "a") as f:
            for _ in range(chance.randint(0, 6)):
                names = chance.sample("abcdef", chance.randint(1, 3))
                if chance.random() < 0.3 and names[0] in there:
                    del f[names[0]]
                    there.remove(names[0])
                else:
                    there.update(names)
                    f.write(names[0], np.full(chance.randint(0, 40), chance.random()), aliases=names[1:])
    before = described(path)
    assert {name: bytes(t.payload) for name, t in dw.load_dict(path).items()} == {row[0]: row[3] for row in before}
    with dw.open(path) as f:
        dead = contents_of(f).dead_bytes()
        assert dead >= 0
    done = dw.compact(path)
    assert described(path) == before
    assert done.after_bytes <= done.before_bytes
    dw.verify(path)
    again = dw.compact(path)
    assert again.after_bytes == again.before_bytes


@pytest.mark.parametrize("alignment", [64, 256, 4096])
def test_the_alignment_stays(path: Path, alignment: int) -> None:
    with dw.open(path, "w", alignment=alignment) as f:
        for i in range(8):
            f[str(i)] = np.arange(10 + i)
    content = path.read_bytes()
    dw.compact(path)
    assert path.read_bytes() == content


def test_a_single_tensor_without_a_name(path: Path) -> None:
    dw.save(path, np.arange(5))
    content = path.read_bytes()
    dw.compact(path)
    assert path.read_bytes() == content


def test_a_file_without_tensors(path: Path) -> None:
    with dw.open(path, "a") as f:
        f["a"] = np.zeros(3)
        f.flush()
        del f["a"]
    dw.compact(path)
    assert described(path) == []
    dw.verify(path)


def test_damage_is_named_and_nothing_is_written(path: Path) -> None:
    dw.save(path, {"whole": np.arange(9), "big": np.zeros(3 << 20, np.uint8)})
    content = bytearray(path.read_bytes())
    with dw.open(path) as f:
        content[contents_of(f).locate("big").entry.data_offset + (2 << 20)] = 1
    path.write_bytes(content)
    with pytest.raises(dw.ChecksumError, match="block 2 of 3") as caught:
        dw.compact(path)
    assert (caught.value.tensor, caught.value.path) == ("big", str(path))
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_a_torn_tail_is_dropped(path: Path) -> None:
    content = two_generations()
    path.write_bytes(content[:-3])
    before = described(path)
    dw.compact(path)
    assert described(path) == before
    dw.verify(path)


def test_a_record_that_no_index_names_is_refused(path: Path) -> None:
    f = CraftedFile()
    f.add("a", b"\1")
    f.add("a", b"\2", indexed=False)
    path.write_bytes(f.finish())
    with pytest.raises(dw.DecodeError, match="no index names"):
        dw.compact(path)


def test_a_file_that_is_being_appended_to_is_refused(path: Path) -> None:
    with dw.open(path, "a") as f:
        f["a"] = np.zeros(3)
        with pytest.raises(BlockingIOError):
            dw.compact(path)
    dw.compact(path)


def test_a_reader_keeps_the_old_file(path: Path) -> None:
    with dw.open(path, "a") as f:
        f["a"] = np.zeros(3)
        f["a"] = np.ones(3)
    with dw.open(path) as f:
        dw.compact(path)
        assert (f["a"].numpy() == 1).all()
