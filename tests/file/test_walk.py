"""Walking a file's top-level fields by their lengths."""

from __future__ import annotations

import pytest
from hand_built_files import MAGIC, CraftedFile, field, fixed, two_generations, varint

from dlpack_wire import DecodeError, TruncatedError
from dlpack_wire.file.storage import MemoryBytes
from dlpack_wire.file.walk import Walk, check_magic, walk


def walked(content: bytes, *bounds: int) -> Walk:
    return walk(MemoryBytes(content), *bounds)


def test_everything_is_found_where_it_is() -> None:
    f = CraftedFile()
    first = f.add("a")
    second = f.add("b", b"")
    f.finish()
    end = len(f.content)
    third = f.add("c", bytes(1000))
    content = f.finish(base=f.trailer)
    found = walked(content)
    assert found.records == [first, second, third]
    assert found.ends == [end, len(content)]
    assert [begin for begin, _ in found.indexes] == [
        end - 27 - (found.indexes[0][1] - found.indexes[0][0]),
        f.trailer[0],
    ]
    assert (found.complete_end, found.end, found.stopped) == (len(content), len(content), None)


def test_a_part_is_walked_to_where_it_should_end() -> None:
    content = two_generations()
    whole = walked(content)
    assert walked(content, whole.records[0], whole.records[2]).records == whole.records[:2]
    inside = whole.indexes[0]
    for end in range(whole.records[1] + 1, whole.records[2] + 1):
        found = walked(content, whole.records[1], end)
        assert found.end <= end
        assert (found.stopped is None) == (end in (inside[0], whole.ends[0]))


def test_every_cut_is_noticed_and_what_stands_before_is_kept() -> None:
    content = two_generations()
    whole = walked(content)
    for size in range(len(MAGIC), len(content)):
        found = walked(content[:size])
        assert found.end <= size
        is_behind_an_index = size in [end for _, end in whole.indexes]
        assert (found.stopped is None) == (found.end == size and not is_behind_an_index)
        assert found.records == [r for r in whole.records if r < found.end]
        assert found.ends == [e for e in whole.ends if e <= size]


@pytest.mark.parametrize(
    "tail",
    {
        "another magic": MAGIC,
        "trailer without index": fixed(4, 9) + fixed(5, 0) + b"\x31DLPWIREE",
        "index without trailer": field(3, b"") + field(2, b""),
        "index twice": field(3, b"") * 2,
        "trailer of another index": field(3, b"") + fixed(4, 10) + fixed(5, 0) + b"\x31DLPWIREE",
        "magic of another wire type": field(1, b""),
        "trailer of another wire type": field(4, b""),
        "record of another wire type": b"\x10\x01",
        "unknown number": b"\x38\x01",
        "field number 0": b"\x02\x00",
        "field number 2^29": varint(1 << 32 | 2) + b"\x00",
        "group": b"\x3b\x3c",
        "long tag": b"\x92\x00\x00",
        "long length": b"\x12\x80\x00",
        "length of 2^40": b"\x12" + varint(2**40),
        "length of 2^63": b"\x12" + varint(2**63),
        "length of 2^64": b"\x12" + b"\xff" * 9 + b"\x02",
    }.items(),
    ids=lambda item: item[0],
)
def test_anything_else_stops_the_walk(tail: tuple[str, bytes]) -> None:
    found = walked(MAGIC + tail[1])
    assert found.stopped is not None
    assert found.stopped.offset is not None
    assert found.ends == []


def test_an_error_says_how_much_is_missing() -> None:
    found = walked(MAGIC + b"\x12" + varint(1000) + bytes(10))
    assert isinstance(found.stopped, TruncatedError)
    assert (found.stopped.needed, found.stopped.available) == (1000, 10)
    assert "record" in str(found.stopped)


def test_payloads_are_not_read() -> None:
    class Counted(MemoryBytes):
        count = 0

        def read(self, begin: int, end: int) -> memoryview:
            self.count += end - begin
            return self._view[begin:end]

    f = CraftedFile()
    for name in "abc":
        f.add(name, bytes(5_000_000))
    source = Counted(f.finish())
    assert walk(source).stopped is None
    assert source.count < 200_000


def test_the_magic_is_checked() -> None:
    check_magic(MAGIC, 100)
    for found in (b"", MAGIC[:5], b"\x09DLPWIRE2", b"PK\x03\x04....."):
        with pytest.raises(DecodeError):
            check_magic(found, len(found))
