"""Indexes: what they say, how names are found, and which ones are refused, however large they claim to be."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hand_built_files import (
    BLOCK,
    END,
    entry,
    field,
    fixed,
    header_of,
    listed,
    names_of,
    removal_entry,
    text,
    varint,
    xxh3,
)
from hypothesis import given
from hypothesis import strategies as st

from dlpack_wire import ByteOrder, ChecksumError, DecodeError, DType, LimitError
from dlpack_wire.file.entry import read_entry
from dlpack_wire.file.index import (
    Index,
    check_index,
    entry_bytes,
    index_bytes,
    read_trailer,
    removal_bytes,
    split_line,
    whole_line,
)
from dlpack_wire.file.record import MAX_HEAD_BYTES
from dlpack_wire.message.names import MAX_FILE_METADATA_BYTES, MAX_NAMES_BYTES, names_block
from dlpack_wire.tensor.header import Header

HEADER = header_of([4], payload_sum=7)
LIMIT = 1 << 20


def line(name: str, at: int = 64, aliases: list[str] | None = None, size: int = 4) -> bytes:
    return entry(names_of(name, aliases or []), HEADER, at - 40, at, size)


def test_lines_are_the_bytes_of_the_contract() -> None:
    header = Header(DType("uint8"), (4,), 4, ByteOrder.UNSPECIFIED, None)
    written = entry_bytes(names_block("a", ["b"], {"k": "v"}), header, (7).to_bytes(8, "little"), 24, 64)
    assert written == entry(names_of("a", ["b"], [text("k", "v")]), HEADER, 24, 64, 4)
    block, rest = split_line(written)
    assert block == names_of("a", ["b"], [text("k", "v")])
    assert whole_line(block, rest) == written
    assert removal_bytes(names_of("a", ["b"]), 24, 40) == removal_entry(names_of("a", ["b"]), 24, 40)


def test_a_line_lists_the_sums_of_several_blocks() -> None:
    size = 2 * BLOCK + 1
    header = Header(DType("uint8"), (size,), size, ByteOrder.UNSPECIFIED, None)
    sums = bytes(range(24))
    written = entry_bytes(names_of("a"), header, sums, 24, 64)
    assert written == entry(names_of("a"), header_of([size], payload_sum=xxh3(sums)), 24, 64, size, listed(sums))
    index = Index(written, 1 << 30)
    assert index.entry(0).sums == sums
    assert read_entry(index.entry(0)).sums == sums


def test_a_line_without_a_header_removes_its_names() -> None:
    index = Index(line("a") + removal_entry(names_of("b"), 100, 120), LIMIT)
    assert index.removed == {1}
    assert [index.removes(i) for i in range(2)] == [False, True]
    assert index.entry(1)[:3] == (names_of("b"), b"", b"")


def test_an_index_and_its_trailer_are_the_bytes_of_the_contract() -> None:
    metadata = field(2, text("k", "v"))
    index, trailer = index_bytes([line("a")], metadata, 1000, (17, 23))
    covered = field(3, line("a") + metadata + fixed(3, 17) + fixed(4, 23)) + fixed(4, 1000)
    assert index == covered
    assert trailer == fixed(5, xxh3(covered)) + END
    assert read_trailer(index[-9:] + trailer) == (1000, xxh3(covered))
    assert check_index(covered, 1000, xxh3(covered)) == covered[2:-9]


def parsed(content: bytes) -> tuple[list[tuple[str, int]], list[bytes]] | str:
    """Names with their ordinals, and all lines; or the error."""
    try:
        index = Index(content, 1 << 30)
    except DecodeError as error:
        return str(error)
    return list(index.names()), [index.line(i) for i in range(len(index))]


def numbered(count: int, template: str = "step/{:05}", **more: Any) -> list[bytes]:
    return [line(template.format(i), 128 * (i + 1), **more) for i in range(count)]


ODD_LINES = {
    "none": b"",
    "an alias": line("odd/00", 1 << 20, ["tied"]),
    "another length": line("odd", 1 << 20),
    "a name as before": line("step/00007", 1 << 20),
    "a name with NUL": line("step/0000\0", 1 << 20),
    "a name that is not UTF-8": line("step/00xx1", 1 << 20).replace(b"00xx1", b"00\xff\xfe1"),
    "no name": entry(b"", HEADER, 1 << 19, 1 << 20, 4),
    "cut off": line("step/99999", 1 << 20)[:20],
    "another field": field(7, b"abc"),
    "a removal": removal_entry(names_of("step/00007x"), 1 << 19, 1 << 20),
}


@pytest.mark.parametrize("odd", ODD_LINES)
@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 40, 100, 5000])
def test_lines_found_many_at_once_are_those_found_one_by_one(
    odd: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = numbered(max(at, 70))
    content = b"".join([*lines[:at], ODD_LINES[odd], *lines[at:]])
    at_once = parsed(content)
    monkeypatch.setattr(Index, "_lines_alike", lambda *_: None)
    assert at_once == parsed(content)
    if odd in ("none", "an alias", "another length", "no name"):
        assert isinstance(at_once, tuple) or odd == "no name"


def test_numbered_lines_are_found_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    alike = Index._lines_alike

    def count(self: Index, pos: int, end: int) -> Any:
        found = alike(self, pos, end)
        calls.append(len(found[0]) if found is not None else 0)
        return found

    monkeypatch.setattr(Index, "_lines_alike", count)
    Index(b"".join(numbered(20_000)), 1 << 30)
    assert sum(calls) == 20_000
    assert len(calls) <= 6
    calls.clear()
    Index(b"".join(numbered(20_000, "{0:x}" * 3)), 1 << 30)
    assert sum(calls) > 19_000
    assert len(calls) < 100


@pytest.mark.parametrize("at", range(27))
def test_a_trailer_of_other_tags_or_magic_is_none(at: int) -> None:
    trailer = bytearray(fixed(4, 1000) + fixed(5, 1) + END)
    is_number = at in range(1, 9) or at in range(10, 18)
    trailer[at] ^= 0x40
    assert (read_trailer(trailer) is not None) == is_number
    assert read_trailer(trailer[:-1]) is None


def test_an_index_says_what_was_written() -> None:
    index = Index(
        line("a", 128) + line("ä", 256, ["tied", "more"]) + field(2, text("k", "v")) + fixed(3, 9) + fixed(4, 5), LIMIT
    )
    assert len(index) == 2
    assert index.name_count == 4
    assert list(index.names()) == [("a", 0), ("ä", 1), ("tied", 1), ("more", 1)]
    assert [index.find(n.encode()) for n in ("a", "ä", "tied", "more", "b", "")] == [0, 1, 1, 1, None, None]
    assert index.metadata() == {"k": "v"}
    assert index.base == (9, 5)
    assert index.offsets.tolist() == [[88, 128, 4], [216, 256, 4]]
    assert index.line(1) == line("ä", 256, ["tied", "more"])
    assert index.entry(1) == (names_of("ä", ["tied", "more"]), HEADER, b"", 216, 256, 4)


def test_an_empty_index_is_an_index() -> None:
    index = Index(b"", LIMIT)
    assert (len(index), index.name_count, list(index.names()), index.find(b"a")) == (0, 0, [], None)
    assert (index.metadata(), index.base) == ({}, None)


def test_the_only_tensor_may_have_no_name() -> None:
    index = Index(line(""), LIMIT)
    assert list(index.names()) == [("", 0)]
    assert index.find(b"") == 0


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), unique=True))
def test_every_name_is_found_and_no_other(names: list[str]) -> None:
    index = Index(b"".join(line(name, 64 * (i + 1)) for i, name in enumerate(names)), LIMIT)
    assert list(index.names()) == [(name, i) for i, name in enumerate(names)]
    assert [index.find(name.encode()) for name in names] == list(range(len(names)))
    assert index.find(b"\0") is None


def test_names_of_many_lines_are_found_across_every_boundary() -> None:
    count = 20_000
    index = Index(b"".join(line(f"layer.{i}", 64 * (i + 1), ["x" * (i % 3) + str(i)]) for i in range(count)), 1 << 30)
    assert index.name_count == 2 * count
    for i in range(0, count, 37):
        assert index.find(b"layer.%d" % i) == i
    assert sum(1 for _ in index.names()) == 2 * count


def test_unicode_forms_stay_distinct() -> None:
    index = Index(line("\u00e9", 64) + line("e\u0301", 128) + line("E\u0301", 192), LIMIT)
    assert [n for n, _ in index.names()] == ["\u00e9", "e\u0301", "E\u0301"]


A, B = line("a", 128), line("b", 256)
TAIL = fixed(13, 88) + fixed(14, 128) + fixed(15, 4)


@pytest.mark.parametrize(
    "content",
    {
        "same name twice": A + line("a", 256),
        "alias before name": field(1, field(2, b"b") + names_of("a") + field(4, HEADER) + TAIL),
        "alias is another's name": A + line("b", 256, ["a"]),
        "empty name beside others": line("", 128) + B,
        "empty name with aliases": line("", 128, ["x"]),
        "empty name written out": field(1, field(1, b"") + field(4, HEADER) + TAIL),
        "empty alias": field(1, names_of("a") + field(2, b"") + field(4, HEADER) + TAIL),
        "name with NUL": line("a\0b", 128),
        "name is no UTF-8": field(1, field(1, b"\xff") + field(4, HEADER) + TAIL),
        "name too long": line("a" * 4097, 128),
        "too many aliases": line("a", 128, [f"b{i}" for i in range(65)]),
        "name longer than its entry": field(1, b"\x0a\x7fa" + field(4, HEADER) + TAIL),
        "alias longer than its entry": field(1, names_of("a") + b"\x12\x7fb" + field(4, HEADER) + TAIL),
        "no offsets": field(1, names_of("a") + field(4, HEADER + bytes(30))),
        "offsets in another order": field(
            1, names_of("a") + field(4, HEADER) + fixed(14, 128) + fixed(13, 88) + fixed(15, 4)
        ),
        "offset of another number": field(
            1, names_of("a") + field(4, HEADER) + fixed(13, 88) + fixed(14, 128) + fixed(12, 4)
        ),
        "offset of another wire type": field(1, names_of("a") + field(4, HEADER) + b"\x6a" + TAIL[1:]),
        "entry too short": field(1, TAIL),
        "empty entry": field(1, b""),
        "record beyond the index": line("a", LIMIT + 64),
        "payload beyond the index": line("a", LIMIT, size=4),
        "payload size wraps": line("a", 128, size=2**64 - 64),
        "data_offset wraps": entry(names_of("a"), HEADER, 88, 2**64 - 64, 4),
        "record_offset behind data_offset": entry(names_of("a"), HEADER, 129, 128, 4),
        "record_offset in the magic": entry(names_of("a"), HEADER, 8, 64, 4),
        "record_offset zero": entry(names_of("a"), HEADER, 0, 64, 4),
        "payload not at a multiple of 64": entry(names_of("a"), HEADER, 88, 129, 4),
        "payload at half a multiple of 64": entry(names_of("a"), HEADER, 88, 160, 4),
        "head too long": entry(names_of("a"), HEADER, 64, 64 * (MAX_HEAD_BYTES // 64 + 2), 4),
        "entry behind metadata": field(2, text("k", "v")) + A,
        "metadata behind base": fixed(3, 9) + fixed(4, 5) + field(2, text("k", "v")),
        "base twice": fixed(3, 9) + fixed(3, 9),
        "sum of no base": fixed(4, 9),
        "base of another wire type": A + field(3, bytes(8)),
        "metadata of another wire type": A + b"\x10\x01",
        "field number 0": A + b"\x02\x00",
        "cut entry": A[:-1],
        "only a tag": b"\x0a",
        "length longer than it needs": b"\x0a\x80\x00",
        "group": A + b"\x4b\x4c",
    }.items(),
    ids=lambda item: item[0],
)
def test_indexes_that_no_writer_makes_are_refused(content: tuple[str, bytes]) -> None:
    with pytest.raises(DecodeError):
        Index(content[1], LIMIT)


@pytest.mark.parametrize(
    "content",
    {
        "name of another wire type": b"\x08\x01" + field(4, HEADER),
        "no header": names_of("a", [], [text("k", "v" * 40)]),
        "header twice": names_of("a") + field(4, HEADER) * 2,
        "sums twice": names_of("a") + field(4, HEADER) + field(5, bytes(16)) * 2,
        "sums without header": names_of("a") + field(5, bytes(40)),
        "sums one by one": names_of("a") + field(4, HEADER) + fixed(5, 1) + fixed(5, 2),
        "field 6, which must not be ignored": names_of("a") + field(4, HEADER) + field(6, b""),
        "field 8, which must not be ignored": names_of("a") + field(4, HEADER) + fixed(8, 1),
        "field 9 before the header": names_of("a") + field(9, b"") + field(4, HEADER),
        "name twice": names_of("a") * 2 + field(4, HEADER),
    }.items(),
    ids=lambda item: item[0],
)
def test_lines_that_no_writer_makes_are_refused_when_they_are_used(content: tuple[str, bytes]) -> None:
    index = Index(field(1, content[1] + TAIL), LIMIT)
    with pytest.raises(DecodeError):
        index.entry(0)


def test_metadata_that_breaks_a_rule_is_refused_when_it_is_used() -> None:
    index = Index(field(2, text("b", "")) + field(2, text("a", "")), LIMIT)
    with pytest.raises(DecodeError):
        index.metadata()


@pytest.mark.parametrize("count", [1, 50_000])
def test_the_cap_on_file_metadata_holds_before_it_is_looked_into(count: int) -> None:
    piece = b"x" * ((MAX_FILE_METADATA_BYTES + 1) // count)
    content = b"".join(field(2, text(f"{i:06}", piece.decode())) for i in range(count))
    assert len(content) > MAX_FILE_METADATA_BYTES
    with pytest.raises(LimitError):
        Index(content, LIMIT)


def test_the_cap_on_names_and_metadata_of_a_line_is_that_of_the_record() -> None:
    def sized(total: int) -> bytes:
        block = names_of("a", [], [field(1, b"k") + field(2, field(5, bytes(1 << 19)))])
        block = names_of("a", [], [field(1, b"k") + field(2, field(5, bytes((1 << 19) + total - len(block))))])
        assert len(block) == total
        return entry(block, HEADER, 88, 1 << 20, 4)

    assert len(Index(sized(MAX_NAMES_BYTES), 1 << 21).entry(0).names) == MAX_NAMES_BYTES
    with pytest.raises(LimitError):
        Index(sized(MAX_NAMES_BYTES + 1), 1 << 21).entry(0)


@pytest.mark.parametrize(
    "content",
    {
        "short aliases": b"".join(
            entry(names_of(f"{i:x}", [f"{i:x}.{j}" for j in range(64)]), b"", 64 * i + 9, 64 * i + 64, 0)
            for i in range(1, 2000)
        ),
        "short names": b"".join(entry(names_of(f"{i:x}"), b"", 64 * i + 9, 64 * i + 64, 0) for i in range(1, 30_000)),
        "short metadata": b"".join(field(2, text(f"{i:05}", "")) for i in range(60_000)),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_hostile_index_takes_little_more_memory_than_its_size(content: tuple[str, bytes]) -> None:
    serialized = content[1]
    assert len(serialized) > 500_000
    tracemalloc.start()
    try:
        index = Index(serialized, 1 << 40)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(serialized) + 1_500_000  # and the content itself, which was there before
    assert index.find(b"2") == (1 if len(index) else None)


def test_the_cap_on_the_head_of_a_record_is_exact() -> None:
    data = 64 * (MAX_HEAD_BYTES // 64 + 2)
    longest = entry(names_of("a"), HEADER, data - MAX_HEAD_BYTES, data, 4)
    assert Index(longest, 2 * data).entry(0).record_offset == data - MAX_HEAD_BYTES
    with pytest.raises(LimitError) as caught:
        Index(entry(names_of("a"), HEADER, data - MAX_HEAD_BYTES - 1, data, 4), 2 * data)
    assert (caught.value.declared, caught.value.limit) == (MAX_HEAD_BYTES + 1, MAX_HEAD_BYTES)


def test_the_cap_on_file_metadata_counts_the_metadata_alone() -> None:
    def sized(total: int) -> bytes:
        overhead = len(field(2, text("k", "v" * (total - 100)))) - (total - 100)
        return A + field(2, text("k", "v" * (total - overhead)))

    largest = sized(MAX_FILE_METADATA_BYTES)
    assert len(largest) == len(A) + MAX_FILE_METADATA_BYTES
    assert Index(largest, LIMIT).metadata().keys() == {"k"}
    with pytest.raises(LimitError) as caught:
        Index(sized(MAX_FILE_METADATA_BYTES + 1), LIMIT)
    assert (caught.value.declared, caught.value.limit) == (MAX_FILE_METADATA_BYTES + 1, MAX_FILE_METADATA_BYTES)


def test_a_damaged_index_is_a_checksum_error() -> None:
    region = field(3, A) + fixed(4, 0)
    damaged = bytearray(region)
    damaged[5] ^= 1
    with pytest.raises(ChecksumError):
        check_index(damaged, 0, xxh3(region))


@pytest.mark.parametrize(
    "region",
    [
        field(3, A) + b"\0" + fixed(4, 0),
        field(2, A) + fixed(4, 0),
        b"\x1a" + varint(2**40) + A + fixed(4, 0),
        b"\x1a\x80\x00" + fixed(4, 0),
        fixed(4, 0),
    ],
)
def test_a_region_that_is_no_index_is_refused(region: bytes) -> None:
    with pytest.raises(DecodeError):
        check_index(region, 0, xxh3(region))


@given(st.binary(max_size=200))
def test_any_bytes_give_an_index_or_an_error(content: bytes) -> None:
    try:
        index = Index(content, LIMIT)
        for ordinal in range(len(index)):
            index.entry(ordinal)
        index.metadata()
    except DecodeError:
        pass


@given(st.data())
def test_any_change_to_an_index_gives_an_index_or_an_error(data: st.DataObject) -> None:
    content = bytearray(A + line("b", 256, ["t", "u"]) + field(2, text("k", "v")) + fixed(3, 9) + fixed(4, 5))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        index = Index(bytes(content), LIMIT)
        for name, ordinal in index.names():
            assert index.find(name.encode()) == ordinal
            index.entry(ordinal)
        index.metadata()
    except DecodeError:
        pass


def test_sorted_names_do_not_depend_on_the_hash_seed() -> None:
    names = [f"n{i}" for i in np.random.default_rng(0).permutation(500)]
    index = Index(b"".join(line(n, 64 * (i + 1)) for i, n in enumerate(names)), LIMIT)
    assert [n for n, _ in index.names()] == names
