"""Verifying: every bit counts, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_built_files import CraftedFile, entry, field, header_of, names_of, record, text, two_generations, xxh3

import dlpack_wire as dw
from dlpack_wire import file
from dlpack_wire.errors import DecodeError
from dlpack_wire.file.reader import FileReader, contents_of
from dlpack_wire.file.storage import MemoryBytes
from dlpack_wire.file.walk import walk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.dlpw"


def first_problem(path: Path) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        dw.verify(path)
    return caught.value


def test_good_files_have_no_problems(path: Path) -> None:
    path.write_bytes(two_generations())
    dw.verify(path)
    assert list(file.problems(path)) == []


def test_every_flipped_bit_of_two_generations_is_reported_with_its_place(path: Path) -> None:
    content = two_generations()
    payloads = {}
    with FileReader(MemoryBytes(content), "crafted") as f:
        for name in f:
            found = contents_of(f).locate(name).entry
            first_name = "a" if name == "tied" else name  # a record is known by its first name
            payloads |= dict.fromkeys(range(found.data_offset, found.end), first_name)
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        error = first_problem(path)
        assert error.path == str(path)
        if bit // 8 in payloads:
            assert error.tensor == payloads[bit // 8]
        else:
            assert error.tensor or any(
                part in str(error) for part in ("magic", "record", "index", "trailer", "version")
            )


def test_every_byte_cut_off_is_reported(path: Path) -> None:
    content = two_generations()
    first = walk(MemoryBytes(content)).ends[0]
    for size in range(len(content)):
        path.write_bytes(content[:size])
        if size == first:
            dw.verify(path)  # nothing tells that there was more
        else:
            first_problem(path)


def test_all_problems_are_listed_with_their_tensors(path: Path) -> None:
    dw.save(path, {name: np.arange(10) for name in "abcd"})
    with dw.open(path) as f:
        places = {name: contents_of(f).locate(name).entry.data_offset for name in "bd"}
    content = bytearray(path.read_bytes())
    for at in places.values():
        content[at] ^= 1
    path.write_bytes(content)
    assert [problem.tensor for problem in file.problems(path)] == ["b", "d"]


def test_swapped_payloads_of_equal_size_are_noticed(path: Path) -> None:
    dw.save(path, {"a": np.arange(8), "b": np.arange(8, 16)})
    content = path.read_bytes()
    one, two = np.arange(8).tobytes(), np.arange(8, 16).tobytes()
    path.write_bytes(content.replace(one, b"?" * 64).replace(two, one).replace(b"?" * 64, two))
    assert {problem.tensor for problem in file.problems(path)} == {"a", "b"}


def test_zeros_in_the_place_of_the_end_are_noticed(path: Path) -> None:
    dw.save(path, {"a": np.arange(1000), "b": np.arange(1000)})
    content = path.read_bytes()
    for size in (10, 5000, len(content) - 1):
        path.write_bytes(content[:size] + bytes(len(content) - size))
        first_problem(path)


def problems_of(content: bytes, path: Path) -> list[str]:
    path.write_bytes(content)
    return [str(problem) for problem in file.problems(path)]


def test_a_record_that_the_index_does_not_know_is_named(path: Path) -> None:
    f = CraftedFile()
    f.add("a")
    f.add("b", indexed=False)
    [problem] = problems_of(f.finish(), path)
    assert "tensor 'b': a record that the index does not know" in problem


def test_an_index_that_points_at_a_superseded_record_is_named(path: Path) -> None:
    f = CraftedFile()
    f.add("a")
    f.add("a", b"\5\6\7\x08", indexed=False)
    [problem] = problems_of(f.finish(), path)
    assert "tensor 'a'" in problem
    assert "its last record" in problem


def test_an_older_generation_is_verified_too(path: Path) -> None:
    f = CraftedFile()
    f.add("a")
    f.finish()
    at = f.trailer[0] + 10
    f.add("b")
    f.lines.insert(0, _line_of_first(bytes(f.content)))
    content = bytearray(f.finish())  # complete: it does not need the first index
    path.write_bytes(content)
    dw.verify(path)
    content[at] ^= 1
    [problem] = problems_of(bytes(content), path)
    assert "index" in problem


def _line_of_first(content: bytes) -> bytes:
    begin, end = walk(MemoryBytes(content)).indexes[0]
    return content[begin + 2 : end]


@pytest.mark.parametrize(
    "metadata",
    [[text("b", "1"), text("a", "2")], [text("a", "1"), text("a", "2")], [field(1, b"a") + field(2, b"\x0a\x7f")]],
)
def test_metadata_that_readers_see_differently_is_named(metadata: list[bytes], path: Path) -> None:
    f = CraftedFile()
    f.add("a", metadata=metadata)
    assert any("metadata" in problem for problem in problems_of(f.finish(), path))
    f = CraftedFile()
    f.add("a")
    assert any(
        "metadata" in problem for problem in problems_of(f.finish(b"".join(field(2, m) for m in metadata)), path)
    )


def test_contents_that_break_a_rule_are_named(path: Path) -> None:
    """Sums may be right and values still wrong: bools of 2, spare bits."""
    for header, payload in (
        (header_of([3], code=6, payload_sum=xxh3(b"\0\1\2")), b"\0\1\2"),
        (header_of([3], code=1, bits=2, payload_sum=xxh3(b"\xff")), b"\xff"),
    ):
        f = CraftedFile()
        f.add("bad", payload, header=header)
        [problem] = problems_of(f.finish(), path)
        assert "tensor 'bad'" in problem


def test_names_twice_in_one_record_are_named(path: Path) -> None:
    f = CraftedFile()
    written, data_at = record(names_of("a", ["b", "b"]), header_of([4], payload_sum=xxh3(b"1234")), b"1234", 9)
    f.content += written
    f.lines.append(entry(names_of("a", ["b"]), header_of([4], payload_sum=xxh3(b"1234")), 9, 9 + data_at, 4))
    assert problems_of(f.finish(), path)
