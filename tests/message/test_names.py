"""Names and user metadata: what is accepted, how it lies, and what is refused."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hand_built_files import field, text
from hypothesis import given
from hypothesis import strategies as st

from dlpack_wire import DecodeError, EncodeError, LimitError
from dlpack_wire.message.names import (
    MAX_ALIASES,
    MAX_FILE_METADATA_BYTES,
    MAX_NAME_BYTES,
    MAX_NAMES_BYTES,
    MAX_RECORD_BYTES,
    UnknownValue,
    check_encodings,
    decode_map,
    decode_name,
    encode_map,
    encode_name,
    names_block,
    names_too_large,
    split_names,
)
from dlpack_wire.v1 import tensor_file_pb2

LIMIT = 1 << 16

values = (
    st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans() | st.binary(max_size=64)
)


@given(st.dictionaries(st.text(max_size=20), values, max_size=8))
def test_metadata_comes_back_with_its_types(metadata: dict[str, Any]) -> None:
    found = decode_map(encode_map(3, metadata, LIMIT), LIMIT)
    assert found == metadata
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in metadata.items()}


@given(st.dictionaries(st.text(max_size=20), values, max_size=8))
def test_a_standard_parser_reads_the_same_metadata(metadata: dict[str, Any]) -> None:
    record = tensor_file_pb2.TensorRecord.FromString(encode_map(3, metadata, LIMIT))
    assert {k: getattr(v, v.WhichOneof("value")) for k, v in record.metadata.items()} == metadata


def test_keys_are_sorted_by_their_bytes_whatever_the_order_given() -> None:
    keys = ["b", "a", "ä", "\U0001f600", "￿", ""]
    serialized = encode_map(3, dict.fromkeys(keys, 1), LIMIT)
    assert serialized == encode_map(3, dict.fromkeys(reversed(keys), 1), LIMIT)
    assert list(decode_map(serialized, LIMIT)) == sorted(keys, key=str.encode)


def test_numpy_scalars_and_nan_are_values() -> None:
    found = decode_map(
        encode_map(3, {"i": np.int16(-3), "f": np.float32(0.5), "b": np.bool_(True), "nan": math.nan}, LIMIT), LIMIT
    )
    assert math.isnan(found.pop("nan"))  # type: ignore[arg-type]
    assert found == {"i": -3, "f": 0.5, "b": True}
    assert type(found["b"]) is bool


@pytest.mark.parametrize(
    "metadata", [{"k": None}, {"k": [1]}, {"k": 2**63}, {"k": -(2**63) - 1}, {"k": 1j}, {1: "v"}, {"\ud800": 1}]
)
def test_other_values_are_refused(metadata: dict[Any, Any]) -> None:
    with pytest.raises(EncodeError):
        encode_map(3, metadata, LIMIT)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(EncodeError):
        encode_map(3, {"k": "\ud800"}, LIMIT)


def test_the_cap_is_the_same_for_writer_and_reader() -> None:
    def sized(total: int) -> dict[str, Any]:
        overhead = len(encode_map(3, {"k": bytes(LIMIT - 100)}, LIMIT)) - (LIMIT - 100)
        return {"k": bytes(total - overhead)}

    fitting = encode_map(3, sized(LIMIT), LIMIT)
    assert len(fitting) == LIMIT
    assert decode_map(fitting, LIMIT).keys() == {"k"}
    with pytest.raises(EncodeError):
        encode_map(3, sized(LIMIT + 1), LIMIT)
    with pytest.raises(LimitError) as caught:
        decode_map(encode_map(3, sized(LIMIT + 1), LIMIT + 1), LIMIT)
    assert (caught.value.declared, caught.value.limit) == (LIMIT + 1, LIMIT)


@pytest.mark.parametrize(
    "fields",
    {
        "doubled key": [text("a", "1"), text("a", "2")],
        "descending keys": [text("b", "1"), text("a", "2")],
        "no value": [field(1, b"a")],
        "no key": [field(2, field(1, b"v"))],
        "value before key": [field(2, field(1, b"v")) + field(1, b"a")],
        "something behind the value": [text("a", "1") + field(3, b"")],
        "key that is not UTF-8": [text(b"\xff", "1")],
        "text that is not UTF-8": [field(1, b"a") + field(2, field(1, b"\xff"))],
        "empty entry": [b""],
    }.values(),
    ids=str,
)
def test_maps_that_no_writer_makes_are_refused(fields: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        decode_map(b"".join(field(3, f) for f in fields), LIMIT)


@pytest.mark.parametrize("value", [b"", field(99, b"x"), field(12, b"later") + field(13, b"")])
def test_a_value_of_a_kind_that_is_unknown_is_kept_and_passed_on(value: bytes) -> None:
    serialized = field(3, field(1, b"a") + field(2, value))
    metadata = decode_map(serialized, LIMIT)
    assert metadata == {"a": UnknownValue(value)}
    assert encode_map(3, metadata, LIMIT) == serialized


@given(st.binary(max_size=60))
def test_any_bytes_give_metadata_or_an_error(serialized: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode_map(serialized, LIMIT)


@pytest.mark.parametrize("name", ["a", "ä" * (MAX_NAME_BYTES // 2), "../../etc/passwd", "\u202e", "\n", "é", "e\u0301"])
def test_names_come_back(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@pytest.mark.parametrize("name", ["", "a\0b", "ä" * (MAX_NAME_BYTES // 2) + "a", "\ud800", 7, b"a", None])
def test_names_that_break_a_rule_are_refused(name: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        encode_name(name)
    assert caught.value.field == "name"


def test_the_empty_name_has_to_be_allowed() -> None:
    assert encode_name("", allow_empty=True) == b""


@pytest.mark.parametrize("encoded", [b"a\0b", b"\xff", b"\xed\xa0\x80", b"a" * (MAX_NAME_BYTES + 1)])
def test_names_that_arrive_and_break_a_rule_are_refused_alone_and_among_many(encoded: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_name(encoded)
    with pytest.raises(DecodeError):
        check_encodings([b"fine", encoded, b"also fine"])


def test_caps_are_those_of_the_contract() -> None:
    assert (MAX_NAME_BYTES, MAX_ALIASES) == (4096, 64)
    assert (MAX_RECORD_BYTES, MAX_NAMES_BYTES) == (1048576, 1048567)
    assert MAX_FILE_METADATA_BYTES == 16777216


def test_the_longest_name_with_nul_is_refused_for_its_nul() -> None:
    longest = "a" * (MAX_NAME_BYTES - 1) + "\0"
    for refused in (lambda: encode_name(longest), lambda: decode_name(longest.encode())):
        with pytest.raises((EncodeError, DecodeError), match="NUL"):
            refused()


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**70])
def test_numbers_beyond_64_bits_are_refused_with_the_reason(number: int) -> None:
    with pytest.raises(EncodeError, match=f"'k': {number} does not fit 64 bits"):
        encode_map(3, {"k": number}, LIMIT)


@pytest.mark.parametrize("entry", [field(1, b"a"), field(2, b""), field(1, b"a") + field(2, b"") + field(3, b"")])
def test_an_entry_is_a_key_and_a_value(entry: bytes) -> None:
    with pytest.raises(DecodeError, match="a key and a value") as caught:
        decode_map(text_entry() + field(3, entry), LIMIT)
    assert caught.value.offset == len(text_entry())


def text_entry() -> bytes:
    return encode_map(3, {"": 1}, LIMIT)


def test_caps_that_are_exceeded_are_told_with_both_numbers() -> None:
    long = "a" * (MAX_NAME_BYTES + 1)
    fitting = MAX_NAMES_BYTES - len(names_block("a", ["b"], {"k": bytes(2**19)})) + 2**19
    cases: list[tuple[Any, int, int]] = [
        (lambda: encode_name(long), MAX_NAME_BYTES + 1, MAX_NAME_BYTES),
        (lambda: decode_name(long.encode()), MAX_NAME_BYTES + 1, MAX_NAME_BYTES),
        (lambda: check_encodings([long.encode()]), MAX_NAME_BYTES + 1, MAX_NAME_BYTES),
        (lambda: encode_map(3, {"k": bytes(90)}, 98), 99, 98),
        (lambda: names_block("a", map_of(MAX_ALIASES + 1)), MAX_ALIASES + 1, MAX_ALIASES),
        (lambda: split_names(crowded(MAX_ALIASES + 1)), MAX_ALIASES + 1, MAX_ALIASES),
        (lambda: names_block("a", ["b"], {"k": bytes(fitting + 1)}), MAX_NAMES_BYTES + 1, MAX_NAMES_BYTES),
    ]
    for refused, declared, limit in cases:
        with pytest.raises((EncodeError, LimitError), match=f"{declared}.*at most {limit}") as caught:
            refused()
        assert (caught.value.declared, caught.value.limit) == (declared, limit)
    error = names_too_large(MAX_NAMES_BYTES + 1, 7)
    assert (error.declared, error.limit, error.offset) == (MAX_NAMES_BYTES + 1, MAX_NAMES_BYTES, 7)
    names_block("a", ["b"], {"k": bytes(fitting)})


def map_of(count: int) -> list[str]:
    """That many different names."""
    return [f"alias {i}" for i in range(count)]


def crowded(count: int) -> bytes:
    """A block with that many aliases."""
    return field(1, b"a") + b"".join(field(2, alias.encode()) for alias in map_of(count))


# --- blocks of names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a"])
@pytest.mark.parametrize("aliases", [[], ["b"], ["b", "c"], map_of(MAX_ALIASES)], ids=len)
@pytest.mark.parametrize("metadata", [None, {}, {"k": 1, "j": "x"}])
def test_blocks_are_protobufs_and_read_back(name: str, aliases: list[str], metadata: Any) -> None:
    block = names_block(name, aliases, metadata, allow_empty=True)
    record = tensor_file_pb2.TensorRecord.FromString(block)
    assert record.SerializeToString(deterministic=True) == block
    assert (record.name, list(record.aliases)) == (name, aliases)
    if name or not aliases:
        names, rest = split_names(block)
        assert names == [name, *aliases]
        assert decode_map(rest, LIMIT) == (metadata or {})


@pytest.mark.parametrize("aliases", [["a"], ["b", "b"], ["b", "c", "b"]], ids=str)
def test_doubled_names_are_refused(aliases: list[str]) -> None:
    with pytest.raises(EncodeError, match="duplicate") as caught:
        names_block("a", aliases)
    assert caught.value.tensor == "a"
    block = field(1, b"a") + b"".join(field(2, alias.encode()) for alias in aliases)
    with pytest.raises(DecodeError, match="duplicate"):
        split_names(block)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (field(1, b""), "left out"),
        (field(1, b"a") + field(2, b""), "left out"),
        (field(2, b"a"), "empty"),
        (field(1, b"a\0"), "NUL"),
        (field(1, b"\xff"), "UTF-8"),
    ],
    ids=str,
)
def test_blocks_that_no_writer_makes_are_refused(block: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said) as caught:
        split_names(block)
    assert caught.value.field == "name"


def test_faults_of_metadata_name_the_tensor() -> None:
    with pytest.raises(EncodeError, match=r"tensor 'a'.*metadata") as caught:
        names_block("a", [], {"k": None})  # type: ignore[dict-item]
    assert (caught.value.tensor, caught.value.field) == ("a", "metadata")


def test_metadata_must_be_a_mapping() -> None:
    with pytest.raises(EncodeError, match="mapping"):
        encode_map(3, [("a", 1)], LIMIT)  # type: ignore[arg-type]
    assert encode_map(3, None, 0) == encode_map(3, {}, 0) == b""


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_the_largest_numbers_come_back(number: int) -> None:
    assert decode_map(encode_map(3, {"k": number}, LIMIT), LIMIT) == {"k": number}


def test_many_good_names_pass() -> None:
    check_encodings([b"a", "ä".encode(), b"a" * MAX_NAME_BYTES])
