"""Records: where payloads lie, and what a reader of record heads refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built_files import field, fixed, header_of, names_of, record, text, varint, with_sum, xxh3

from dlpack_wire import ByteOrder, ChecksumError, DecodeError, DType, EncodeError, LimitError, TruncatedError
from dlpack_wire.file.record import MAX_HEAD_BYTES, plan_record, prefix, read_head
from dlpack_wire.message.names import MAX_ALIASES, MAX_NAMES_BYTES, MAX_RECORD_BYTES, names_block, split_names
from dlpack_wire.tensor.header import Header
from dlpack_wire.v1 import tensor_file_pb2

PAYLOAD = b"\x01\x02\x03\x04"
HEADER = header_of([4], payload_sum=xxh3(PAYLOAD))


def uint8_header(size: int) -> Header:
    return Header(DType("uint8"), (size,), size, ByteOrder.UNSPECIFIED, None)


def padding_of(prefix_bytes: bytes) -> int:
    """Zero bytes before the tag of the payload, whose sum is said to be 0."""
    at = prefix_bytes.index(fixed(9, 0)) + 9
    if prefix_bytes[at] != 0x72:
        return 0
    size = shift = 0
    at += 1
    while True:
        size |= (prefix_bytes[at] & 0x7F) << shift
        shift += 7
        if prefix_bytes[at] < 0x80:
            return size
        at += 1


def smallest_padding(names: bytes, size: int, offset: int, alignment: int) -> int:
    """By trying every size on bytes made without the library."""
    header = header_of([size], payload_sum=0)
    for padding in range(4 * alignment):
        middle = header + (field(14, bytes(padding)) if padding else b"") + b"\x7a" + varint(size)
        tensor = b"\x7a" + varint(len(middle) + size)
        record_bytes = len(names) + 9 + len(tensor) + len(middle) + size
        head_bytes = 1 + len(varint(record_bytes)) + record_bytes - size
        if (offset + head_bytes) % alignment == 0:
            return padding
    raise AssertionError("no padding fits")


@pytest.mark.parametrize("alignment", [64, 128, 256, 1024, 4096])
def test_the_padding_is_the_smallest_that_aligns_the_payload(alignment: int) -> None:
    random = np.random.default_rng(alignment)
    sizes = [1, 2, 63, 64, 65, 120, 126, 127, 128, 129, 16100, 16256, 16383, 16384, 2097000, 2097151]
    for size in sizes:
        offsets = range(64) if alignment == 64 else random.integers(0, alignment, 12)
        for offset in map(int, offsets):
            name = "n" * int(random.integers(1, 200))
            names = names_block(name)
            planned = plan_record(uint8_header(size), len(names), offset, alignment)
            written = prefix(planned, names, 0)
            assert len(written) == planned.prefix_bytes
            assert (offset + planned.prefix_bytes) % alignment == 0
            assert padding_of(written) == smallest_padding(names, size, offset, alignment)


def test_an_empty_payload_has_neither_padding_nor_data() -> None:
    header = uint8_header(0)
    names = names_block("a")
    planned = plan_record(header, len(names), 13, 64)
    assert planned.prefix_bytes == planned.record_bytes
    written = prefix(planned, names, xxh3(b""))
    assert written == record(names, header_of([0], payload_sum=xxh3(b"")), b"", 13)[0]


@pytest.mark.parametrize("size", [1, 64, 100, 127, 128, 300, 20_000])
def test_records_are_the_bytes_of_the_contract(size: int) -> None:
    payload = np.random.default_rng(size).bytes(size)
    names = names_block("tensor", ["tied"], {"k": "v"})
    assert names == names_of("tensor", ["tied"], [text("k", "v")])
    planned = plan_record(uint8_header(size), len(names), 9, 64)
    written = prefix(planned, names, xxh3(payload)) + payload
    assert written == record(names, header_of([size], payload_sum=xxh3(payload)), payload, 9)[0]
    content, parsed = written[1:], tensor_file_pb2.TensorRecord()
    while content[0] >= 0x80:
        content = content[1:]
    parsed.ParseFromString(content[1:])
    assert (parsed.name, list(parsed.aliases), parsed.tensor.data) == ("tensor", ["tied"], payload)
    assert parsed.metadata["k"].string_value == "v"
    assert parsed.tensor.data_sum == xxh3(payload)


def test_a_head_comes_back() -> None:
    names = names_of("a", ["b"], [text("k", "v")])
    written, data_at = record(names, HEADER, PAYLOAD, 1000)
    head = read_head(written[:data_at], 0, 1000 + len(written), 1000)
    assert head == (names, HEADER, 1000 + data_at, 1000 + len(written))


def test_every_flipped_bit_of_a_head_is_noticed() -> None:
    written, data_at = record(names_of("a", [], [text("k", "v")]), HEADER, PAYLOAD, 9)
    for bit in range(data_at * 8):
        damaged = bytearray(written)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            read_head(damaged, 0, len(damaged) + 9, 9)


def test_a_head_cut_anywhere_is_an_error() -> None:
    written, data_at = record(names_of("a"), HEADER, PAYLOAD, 9)
    for size in range(data_at):
        with pytest.raises(DecodeError):
            read_head(written[:size], 0, len(written) + 9, 9)
    for size in range(data_at, len(written)):
        with pytest.raises(TruncatedError):
            read_head(written[:size], 0, size + 9, 9)


def assemble(
    *, names: bytes = names_of("a"), before: bytes = b"", sum_field: bytes = fixed(14, 0), tensor: bytes
) -> bytes:
    """A record whose tensor ends with the payload, if it is a good one; the sum is right unless another is given."""
    written = field(2, names + before + sum_field + field(15, tensor))
    if sum_field != fixed(14, 0):
        return written
    return with_sum(written[: -len(PAYLOAD)], names + before) + written[-len(PAYLOAD) :]


BODY = HEADER + field(15, PAYLOAD)


@pytest.mark.parametrize(
    "written",
    {
        "name twice": assemble(names=names_of("a") + names_of("b"), tensor=BODY),
        "alias before name": assemble(names=field(2, b"b") + names_of("a"), tensor=BODY),
        "metadata before alias": assemble(names=names_of("a", [], [text("k", "v")]) + field(2, b"b"), tensor=BODY),
        "name of another wire type": assemble(names=b"\x08\x01", tensor=BODY),
        "no sum": assemble(sum_field=b"", tensor=BODY),
        "sum twice": with_sum(field(2, names_of("a") + fixed(14, 0) + fixed(14, 0) + field(15, BODY)), names_of("a")),
        "sum of another wire type": assemble(sum_field=field(14, bytes(8)), tensor=BODY),
        "field 4, which must not be ignored": assemble(before=field(4, b"x"), tensor=BODY),
        "field 8, which must not be ignored": assemble(before=field(8, b"x"), tensor=BODY),
        "unknown field twice": assemble(before=field(9, b"x") * 2, tensor=BODY),
        "no tensor and no name": with_sum(field(2, fixed(14, 0)), b""),
        "field behind the tensor": field(2, names_of("a") + fixed(14, 0) + field(15, BODY) + field(16, b"")),
        "tensor twice": field(2, names_of("a") + fixed(14, 0) + field(15, BODY) * 2),
        "data twice": assemble(tensor=HEADER + field(15, PAYLOAD) * 2),
        "data not last": assemble(tensor=HEADER + field(15, PAYLOAD) + field(16, b"")),
        "empty data": assemble(tensor=HEADER + field(15, b"")),
        "padding after data": assemble(tensor=HEADER + field(15, PAYLOAD) + field(14, bytes(4))),
        "padding not zero": assemble(tensor=HEADER + field(14, b"\x01") + field(15, PAYLOAD)),
        "padding too long": assemble(tensor=HEADER + field(14, bytes(16385)) + field(15, PAYLOAD)),
        "padding twice": assemble(tensor=HEADER + field(14, b"\0") * 2 + field(15, PAYLOAD)),
        "dtype twice": assemble(tensor=HEADER[:8] + HEADER + field(15, PAYLOAD)),
        "shape behind the sum": assemble(
            tensor=HEADER[:8] + fixed(9, xxh3(PAYLOAD)) + field(5, b"\4") + field(15, PAYLOAD)
        ),
        "length longer than it needs": b"\x12" + b"\x80\x00",
        "another tag": b"\x1a" + assemble(tensor=BODY)[1:],
        "group": assemble(before=b"\x4b\x4c", tensor=BODY),
        "field number 0": assemble(before=b"\x02\x00", tensor=BODY),
    }.items(),
    ids=lambda item: item[0],
)
def test_records_that_no_writer_makes_are_refused(written: tuple[str, bytes]) -> None:
    with pytest.raises(DecodeError):
        read_head(written[1], 0, len(written[1]))


NAMES = names_of("a")


def ending_in(written: bytes) -> bytes:
    """A record whose sum is right up to its payload, if it has one, else to its end."""
    head, found, rest = written.partition(b"\x7a\x04" + PAYLOAD)
    return with_sum(head + found[:2], NAMES) + found[2:] + rest if found else with_sum(written, NAMES)


ENDINGS = {
    "a field behind the tensor": (
        field(2, NAMES + fixed(14, 0) + field(15, BODY) + field(16, b"")),
        "the tensor does not end its record",
    ),
    "a second tensor": (
        field(2, NAMES + fixed(14, 0) + field(15, BODY) + field(15, b"")),
        "the tensor does not end its record",
    ),
    "a tensor that is a number": (
        field(2, NAMES + fixed(14, 0) + fixed(15, 0)),
        "the tensor has wire type 1",
    ),
    "a tensor longer than its record": (
        field(2, NAMES + fixed(14, 0) + b"\x7a\x7f" + BODY),
        "the tensor does not end its record",
    ),
    "a field behind the payload": (
        field(2, NAMES + fixed(14, 0) + field(15, BODY + field(16, b""))),
        "the payload does not end its record",
    ),
    "a payload that is a number": (
        field(2, NAMES + fixed(14, 0) + field(15, HEADER + fixed(15, 0))),
        "the payload has wire type 1",
    ),
    "a payload of no bytes": (
        field(2, NAMES + fixed(14, 0) + field(15, HEADER + b"\x7a\x00")),
        "the payload does not end its record",
    ),
    "a payload longer than its record": (
        field(2, NAMES + fixed(14, 0) + field(15, HEADER + b"\x7a\x05" + PAYLOAD)),
        "the payload does not end its record",
    ),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_a_record_ends_with_its_tensor_and_that_with_its_payload(case: str) -> None:
    written, said = ENDINGS[case]
    with pytest.raises(DecodeError, match=said):
        read_head(ending_in(written), 0, len(written))


def test_errors_count_positions_from_the_begin_of_the_file() -> None:
    written, data_at = record(NAMES, HEADER, PAYLOAD, 1000)
    size = len(written) - 2  # without tag and length
    with pytest.raises(TruncatedError, match=f"record needs {size} bytes, has {size - 1}") as cut:
        read_head(b"\0\0" + written[:data_at], 2, 1002 + len(written) - 1, 1000)
    assert (cut.value.needed, cut.value.available, cut.value.offset) == (size, size - 1, 1002)
    large = names_of("a", [], [field(1, b"k") + field(2, field(5, bytes(MAX_RECORD_BYTES)))])
    written = assemble(names=large, tensor=BODY)
    with pytest.raises(LimitError) as over:
        read_head(written, 0, 1000 + len(written), 1000)
    assert (over.value.declared, over.value.limit, over.value.offset) == (len(large), MAX_RECORD_BYTES, 1000)
    with pytest.raises(DecodeError) as malformed:
        read_head(b"\0\0" + assemble(sum_field=b"", tensor=BODY), 2, 2000, 1000)
    assert malformed.value.offset == 1000 + 2 + 2 + len(NAMES)


def test_an_unknown_field_before_the_sum_is_for_later_versions() -> None:
    written = assemble(before=field(9, b"later"), tensor=BODY)
    assert read_head(written, 0, len(written)).names == names_of("a")


def test_a_wrong_sum_is_a_checksum_error_with_both_sums() -> None:
    written = bytearray(assemble(tensor=BODY))
    at = written.index(b"\x71")
    written[at + 1] ^= 1
    with pytest.raises(ChecksumError) as caught:
        read_head(written, 0, len(written))
    assert caught.value.expected ^ caught.value.actual == 1


def test_the_cap_on_names_and_metadata_is_the_same_for_writer_and_reader() -> None:
    overhead = len(names_block("a", (), {"k": bytes(1 << 19)})) - (1 << 19)
    largest = names_block("a", (), {"k": bytes(MAX_NAMES_BYTES - overhead)})
    assert len(largest) == MAX_NAMES_BYTES == MAX_RECORD_BYTES - 9
    written = assemble(names=largest, tensor=BODY)
    assert len(written) < MAX_HEAD_BYTES
    assert read_head(written, 0, len(written)).names == largest
    with pytest.raises(EncodeError):
        names_block("a", (), {"k": bytes(MAX_NAMES_BYTES - overhead + 1)})
    too_large = names_of("a", [], [field(1, b"k") + field(2, field(5, bytes(MAX_NAMES_BYTES - overhead + 1)))])
    assert len(too_large) == MAX_NAMES_BYTES + 1
    written = assemble(names=too_large, tensor=BODY)
    with pytest.raises(LimitError):
        read_head(written, 0, len(written))


def test_the_cap_on_headers_holds() -> None:
    # A field of a later version, between those of today and the sum.
    def sized(total: int) -> bytes:
        return assemble(tensor=HEADER + field(13, bytes(total - len(HEADER) - 4)) + field(15, PAYLOAD))

    assert read_head(sized(65536), 0, 10**6).header[:8] == HEADER[:8]
    with pytest.raises(LimitError):
        read_head(sized(65537), 0, 10**6)


@pytest.mark.parametrize("claimed", [2**31, 2**40, 2**62, 2**63 - 1])
def test_a_length_beyond_the_file_is_refused_by_the_file_size(claimed: int) -> None:
    with pytest.raises(TruncatedError) as caught:
        read_head(b"\x12" + varint(claimed), 0, 100, 9)
    assert caught.value.needed == claimed


def test_names_of_a_block_come_back() -> None:
    assert split_names(names_block("a", ["b", "c"], {"k": 1}))[0] == ["a", "b", "c"]
    assert split_names(b"") == ([""], b"")


@pytest.mark.parametrize(
    "block",
    [
        field(1, b""),
        names_of("a", ["a"]),
        names_of("a", ["b", "b"]),
        names_of("a", ["b", ""]),
        field(2, b"b"),
        field(1, b"\xff"),
        field(1, b"a\0"),
        field(1, b"a" * 4097),
        names_of("a", [str(i) for i in range(MAX_ALIASES + 1)]),
    ],
)
def test_blocks_of_bad_names_are_refused(block: bytes) -> None:
    with pytest.raises(DecodeError):
        split_names(block)


def test_writers_refuse_what_readers_refuse() -> None:
    for aliases in (["a"], ["b", "b"], [""], ["x\0"], [str(i) for i in range(MAX_ALIASES + 1)]):
        with pytest.raises(EncodeError):
            names_block("a", aliases)
    assert len(split_names(names_block("a", [str(i) for i in range(MAX_ALIASES)]))[0]) == MAX_ALIASES + 1
