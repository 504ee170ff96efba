"""Recovering: every whole record is saved, no half one ever is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_built_files import CraftedFile, field, text, two_generations

import dlpack_wire as dw
from dlpack_wire.file.reader import contents_of
from dlpack_wire.file.recovery import recover
from dlpack_wire.file.storage import MemoryBytes
from dlpack_wire.file.walk import walk
from dlpack_wire.v1 import tensor_file_pb2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.dlpw"


@pytest.fixture(params=["in place", "elsewhere"])
def target(request: pytest.FixtureRequest, path: Path) -> Path | None:
    return None if request.param == "in place" else path.with_name("saved.dlpw")


def read(path: Path) -> dict[str, bytes]:
    return {name: bytes(t.payload) for name, t in dw.load_dict(path).items()}


def one_generation() -> tuple[bytes, dict[str, int]]:
    """A file, and where each tensor's record ends."""
    f = CraftedFile()
    ends = {}
    for name, payload in (("a", b"\1\2\3"), ("empty", b""), ("b", bytes(range(200))), ("c", b"\4")):
        f.add(name, payload, metadata=[text("unit", "m")] if name == "a" else [])
        ends[name] = len(f.content)
    return f.finish(field(2, text("k", "v"))), ends


def test_a_file_cut_at_every_byte_gives_exactly_the_whole_records_before_the_cut(
    path: Path, target: Path | None
) -> None:
    content, ends = one_generation()
    path.write_bytes(content)
    truth = read(path)
    for size in range(len(content)):
        path.write_bytes(content[:size])
        found = recover(path, target, durable=False)
        whole = [name for name, end in ends.items() if end <= size]
        assert found.names == whole
        assert found.problems
        assert read(target or path) == {name: truth[name] for name in whole}
        dw.verify(target or path)
        if target is not None:
            assert path.read_bytes() == content[:size]


def test_two_generations_cut_at_every_byte_give_the_last_whole_record_of_each_name(
    path: Path, target: Path | None
) -> None:
    content = two_generations()
    records = walk(MemoryBytes(content)).records
    for size in range(len(content)):
        path.write_bytes(content[:size])
        recover(path, target, durable=False)
        dw.verify(target or path)
        walked = walk(MemoryBytes(content[:size])) if size >= 9 else None
        count = len(walked.records) if walked else 0
        expected = [
            {},
            {"a": b"\1\2\3", "tied": b"\1\2\3"},
            {"a": b"\1\2\3", "tied": b"\1\2\3", "b": b""},
            {"a": b"\5\6\7\x08", "tied": b"\1\2\3", "b": b""},
            {"a": b"\5\6\7\x08", "tied": b"\1\2\3", "b": b"", "c": b"\x09"},
        ][count]
        assert len(records) == 4
        assert read(target or path) == expected


def test_every_flipped_bit_loses_one_tensor_at_most(
    path: Path, target: Path | None, rounds: Callable[[int, int], int]
) -> None:
    content, _ = one_generation()
    path.write_bytes(content)
    truth = read(path)
    for bit in range(9 * 8, len(content) * 8, rounds(13, 1)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found = recover(path, target, durable=False)
        saved = read(target or path)
        assert found.problems
        assert saved.items() <= truth.items()
        assert len(saved) >= len(truth) - 1
        assert list(saved) == found.names
        dw.verify(target or path)


def test_a_good_file_is_left_alone_in_place(path: Path) -> None:
    path.write_bytes(two_generations())
    assert recover(path) == (["tied", "b", "a", "c"], [])
    assert path.read_bytes() == two_generations()


def test_a_good_file_is_copied_without_what_no_name_denotes(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "saved.dlpw"
    path.write_bytes(two_generations())
    recover(path, target)
    assert read(target) == read(path)
    with dw.open(target) as f:
        assert f.metadata == {"made": "by hand"}
        assert f.metadata_of("tied") == {"unit": "m"}
        assert f.names_of("tied") == ["tied"]


def test_headers_survive_as_recorded(path: Path, tmp_path: Path) -> None:
    big = np.arange(100, dtype=">i4")
    tensors: dict[str, Any] = {"big": big, "f": np.asfortranarray(np.ones((3, 4))), "large": np.ones(100_000)}
    dw.save(path, tensors)
    path.write_bytes(path.read_bytes()[:-1])
    recover(path, tmp_path / "saved")
    with dw.open(tmp_path / "saved") as f:
        assert f.header("big").byte_order == dw.ByteOrder.BIG
        assert f["f"].strides == (1, 3)
        for name, x in tensors.items():
            assert (f[name].numpy() == x).all()


def test_a_torn_tail_is_mended_without_moving_a_byte(path: Path) -> None:
    dw.save(path, {"a": np.arange(10)})
    first = path.read_bytes()
    with dw.open(path, "a") as f:
        f["b"] = np.arange(5)
        f["c"] = np.arange(7)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    before = os.stat(path).st_ino
    assert recover(path).names == ["a", "b", "c"]
    assert os.stat(path).st_ino == before
    assert path.read_bytes().startswith(first)
    dw.verify(path)


def test_a_bad_payload_is_skipped_and_named(path: Path, target: Path | None) -> None:
    dw.save(path, {"a": np.arange(10), "b": np.arange(10, 20), "c": np.arange(20, 30)})
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(10, 20).tobytes())] ^= 1
    path.write_bytes(content)
    found = recover(path, target)
    assert found.names == ["a", "c"]
    [problem] = found.problems
    assert isinstance(problem, dw.ChecksumError)
    assert (problem.tensor, problem.path) == ("b", str(path))
    dw.verify(target or path)


def test_an_older_whole_version_of_a_damaged_tensor_is_saved(path: Path, target: Path | None) -> None:
    dw.save(path, {"a": np.arange(10)})
    with dw.open(path, "a") as f:
        f["a"] = np.arange(10, 20)
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(10, 20).tobytes())] ^= 1
    path.write_bytes(content)
    recover(path, target)
    assert dw.load_dict(target or path)["a"].numpy().tolist() == list(range(10))


def test_a_damaged_length_in_the_middle_costs_one_record_as_long_as_there_is_an_index(
    path: Path, target: Path | None
) -> None:
    dw.save(path, {f"t{i}": np.arange(i, i + 100) for i in range(50)}, {"k": 1})
    with dw.open(path) as f:
        at = contents_of(f).locate("t7").entry.record_offset
    content = bytearray(path.read_bytes())
    content[at + 2] ^= 0x40
    path.write_bytes(content)
    found = recover(path, target)
    assert len(found.names) == 49
    assert "t7" not in found.names
    with dw.open(target or path) as f:
        assert f.metadata == {"k": 1}


def test_a_damaged_index_of_the_last_generation_is_named_and_costs_nothing(path: Path, target: Path | None) -> None:
    dw.save(path, {"a": np.arange(10)}, {"k": 1})
    size = path.stat().st_size
    with dw.open(path, "a") as f:
        f["b"] = np.arange(5)
    content = bytearray(path.read_bytes())
    begin = int.from_bytes(content[-26:-18], "little")
    content[begin + 4] ^= 1
    path.write_bytes(content)
    found = recover(path, target)
    assert found.names == ["a", "b"]
    assert [type(problem) for problem in found.problems] == [dw.ChecksumError]
    with dw.open(target or path) as g:
        assert (list(g), g.metadata) == (["a", "b"], {"k": 1})
    assert begin > size


def test_a_file_in_a_payload_is_never_taken_for_records(path: Path, target: Path | None) -> None:
    inner = np.frombuffer(two_generations(), np.uint8)
    dw.save(path, {"x": np.arange(3), "file": inner})
    content = path.read_bytes()
    end = content.index(inner.tobytes()) + len(inner)
    for size in (end - 1, end - 100, end - 400):
        path.write_bytes(content[:size])
        assert recover(path, target).names == ["x"]
    path.write_bytes(content[:end])
    assert recover(path, target).names == ["x", "file"]


def test_a_single_tensor_without_a_name_is_saved(path: Path, target: Path | None) -> None:
    dw.save(path, np.arange(10))
    path.write_bytes(path.read_bytes()[:-5])
    assert recover(path, target).names == [""]
    assert dw.load(target or path).numpy().tolist() == list(range(10))  # type: ignore[union-attr]


def test_other_files_are_refused_and_left_alone(path: Path, target: Path | None) -> None:
    for content in (b"not a tensor file at all", b"\x89HDF\r\n\x1a\n" * 100):
        path.write_bytes(content)
        with pytest.raises(dw.DecodeError, match="not a tensor file"):
            recover(path, target)
        assert path.read_bytes() == content
        assert target is None or not target.exists()


def test_mending_waits_for_no_other_writer(path: Path) -> None:
    dw.save(path, {"a": np.arange(3)})
    with dw.open(path, "a"), pytest.raises(BlockingIOError):
        recover(path)


def test_a_missing_file_is_the_usual_error_and_is_not_made(path: Path, target: Path | None) -> None:
    with pytest.raises(FileNotFoundError):
        recover(path, target)
    assert not path.exists()


def test_a_record_hidden_in_a_payload_is_not_saved_whatever_the_index_says(path: Path, target: Path | None) -> None:
    hidden = Path(__file__).parents[1] / "data" / "files" / "invalid-record-hidden-in-a-payload.dlpw"
    content = hidden.read_bytes()
    path.write_bytes(content)
    [record] = tensor_file_pb2.TensorFile.FromString(content).records
    found = recover(path, target)
    assert found.names == ["a"]
    assert any("into another record" in str(problem) for problem in found.problems)
    assert read(target or path) == {"a": record.tensor.data}
