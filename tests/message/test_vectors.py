"""The vectors in data/vectors: a second writing of the message's rules, made without the library."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import hand_built_capsules as handmade
import numpy as np
import pytest
from message_vectors import ERRORS, INVALID, VALID, VECTORS, elements_of, wire_of

import dlpack_wire as dw
from dlpack_wire.v1 import dlpack_pb2


def by_name(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def dtype_of(case: dict[str, Any]) -> tuple[int, int, int]:
    d = case["dtype"]
    return d["code"], d["bits"], d["lanes"]


def numbers(texts: list[str] | None) -> tuple[int, ...] | None:
    return None if texts is None else tuple(map(int, texts))


def meaning(case: dict[str, Any]) -> dict[str, Any]:
    device, version = case["device"], case["version"]
    return {
        "dtype": dtype_of(case),
        "shape": numbers(case["shape"]),
        "strides": numbers(case["strides"]),
        "byte_offset": int(case["byte_offset"]),
        "byte_order": case["byte_order"],
        "flags": int(case["flags"]),
        "device": device and (device["device_type"], device["device_id"]),
        "version": version and (version["major"], version["minor"]),
        "checksum": case["checksum"] and int(case["checksum"]),
        "payload_bytes": len(case["payload"]) // 2,
    }


def read_meaning(header: dw.Header) -> dict[str, Any]:
    return {
        "dtype": (header.dtype.code, header.dtype.bits, header.dtype.lanes),
        "shape": header.shape,
        "strides": header.strides,
        "byte_offset": header.byte_offset,
        "byte_order": int(header.byte_order),
        "flags": header.flags,
        "device": header.device,
        "version": header.version,
        "checksum": header.checksum,
        "payload_bytes": header.payload_bytes,
    }


def produce(case: dict[str, Any]) -> Any:
    """A producer of exactly this tensor, not made by the library."""
    code, bits, lanes = dtype_of(case)
    payload = bytes.fromhex(case["payload"])
    shape, strides = numbers(case["shape"]), numbers(case["strides"])
    assert shape is not None
    if case["byte_order"] == 2:
        kind = {2: "f", 5: "c"}[code]
        byte_strides = None if strides is None else tuple(s * bits // 8 for s in strides)
        return np.ndarray(shape, f">{kind}{bits // 8}", payload, 0, byte_strides)
    device, version = case["device"], case["version"]
    return handmade.Handmade(
        payload,
        code=code,
        bits=bits,
        lanes=lanes,
        shape=shape,
        strides=strides,
        flags=int(case["flags"]),
        device=(device["device_type"], device["device_id"]),
        version=(version["major"], version["minor"]) if version else (1, 1),
    ).take()


def test_files_are_what_their_maker_makes(tmp_path: Path) -> None:
    """Frozen vectors change only together with the script that explains them."""
    maker = tmp_path / "make.py"
    maker.write_text((VECTORS / "make.py").read_text())
    subprocess.run([sys.executable, maker], check=True)
    for name in ("valid.json", "invalid.json"):
        assert (tmp_path / name).read_text() == (VECTORS / name).read_text()


def test_maker_does_not_overwrite(tmp_path: Path) -> None:
    maker = tmp_path / "make.py"
    maker.write_text((VECTORS / "make.py").read_text())
    (tmp_path / "valid.json").write_text("mine")
    assert subprocess.run([sys.executable, maker], capture_output=True).returncode == 1
    assert (tmp_path / "valid.json").read_text() == "mine"
    assert subprocess.run([sys.executable, maker, "--force"]).returncode == 0
    assert (tmp_path / "valid.json").read_text() != "mine"


def test_every_dtype_of_the_table_has_a_vector() -> None:
    from dlpack_wire.tensor.dtype import table

    assert {(d.code, d.bits) for d in table()} <= {dtype_of(case)[:2] for case in VALID}


@by_name(VALID)
def test_decoding_gives_the_meaning(case: dict[str, Any]) -> None:
    t = dw.decode(wire_of(case))
    assert read_meaning(t.header) == meaning(case)
    assert t.shape == numbers(case["shape"])
    assert elements_of(t) == bytes.fromhex(case["elements"])


@by_name(VALID)
def test_decoding_again_gives_the_meaning_again(case: dict[str, Any]) -> None:
    """What a reader remembers of the first message must not change what it makes of the second."""
    wire = wire_of(case)
    first = dw.decode(wire)
    again = dw.decode(wire)
    assert read_meaning(again.header) == read_meaning(first.header) == meaning(case)
    assert elements_of(again) == bytes.fromhex(case["elements"])


@by_name([case for case in VALID if case["written"]])
def test_encoding_gives_these_bytes(case: dict[str, Any]) -> None:
    options = {"checksum": case["checksum"] is not None, "provenance": case["version"] is not None}
    assert dw.encode(produce(case), **options).hex() == wire_of(case).hex()
    assert dw.to_proto(produce(case), **options).SerializeToString().hex() == wire_of(case).hex()


@by_name(
    [
        case
        for case in VALID
        if case["written"] and case["version"] is None and case["device"] == {"device_type": 1, "device_id": 0}
    ]
)
def test_a_decoded_tensor_encodes_to_the_same_bytes(case: dict[str, Any]) -> None:
    if case["byte_order"] == 2:
        pytest.skip("decoded memory is in this machine's order")
    again = dw.encode(dw.decode(wire_of(case)), checksum=case["checksum"] is not None)
    assert again.hex() == wire_of(case).hex()


@by_name(VALID)
def test_the_standard_parser_reads_the_same_values(case: dict[str, Any]) -> None:
    message = dlpack_pb2.DLTensor.FromString(wire_of(case))
    assert (message.dtype.code, message.dtype.bits, message.dtype.lanes) == dtype_of(case)
    assert tuple(message.shape) == numbers(case["shape"])
    assert message.data.hex() == case["payload"]
    assert message.flags & handmade.PADDED == int(case["flags"])
    assert message.byte_offset == int(case["byte_offset"])
    checksum = str(message.data_sum) if message.HasField("data_sum") else None
    assert checksum == case["checksum"]
    t = dw.from_proto(message)
    assert read_meaning(t.header) == meaning(case)
    assert elements_of(t) == bytes.fromhex(case["elements"])


@by_name(INVALID)
def test_invalid_messages_are_refused_for_their_defect(case: dict[str, Any]) -> None:
    wire = wire_of(case)
    for buffer in (wire, bytearray(wire), memoryview(b"<" + wire + b">")[1:-1]):
        with pytest.raises(ERRORS[case["error"]]) as caught:
            dw.decode(buffer)
        assert type(caught.value) is ERRORS[case["error"]]
        assert case["says"] in str(caught.value)


@by_name([case for case in INVALID if case["error"] != "checksum error"])
def test_invalid_messages_are_refused_without_verifying_too(case: dict[str, Any]) -> None:
    with pytest.raises(ERRORS[case["error"]]):
        dw.decode(wire_of(case), verify=False)


@by_name([case for case in INVALID if case["parsed"]])
def test_invalid_messages_are_refused_when_parsed_by_protobuf(case: dict[str, Any]) -> None:
    message = dlpack_pb2.DLTensor.FromString(wire_of(case))
    with pytest.raises(dw.DecodeError) as caught:
        dw.from_proto(message)
    assert type(caught.value) is ERRORS[case["error"]]
    assert case["says"] in str(caught.value)


def test_a_wrong_checksum_is_ignored_when_not_verifying() -> None:
    case = next(case for case in INVALID if case["name"] == "wrong checksum")
    assert dw.decode(wire_of(case), verify=False).shape == (6,)


@by_name([case for case in VALID if isinstance(case["wire"], str)])
def test_every_cut_is_noticed(case: dict[str, Any]) -> None:
    """A cut message is refused, or is itself a whole message of fields before the cut."""
    wire = wire_of(case)
    whole = elements_of(dw.decode(wire))
    for size in range(len(wire)):
        try:
            t = dw.decode(wire[:size])
        except dw.DecodeError:
            continue
        assert len(elements_of(t)) in (0, len(whole))


@by_name([case for case in VALID if case["written"] and case["payload"]])
def test_every_cut_of_what_we_write_is_an_error(case: dict[str, Any]) -> None:
    wire = wire_of(case)
    for size in range(len(wire)):
        with pytest.raises(dw.DecodeError):
            dw.decode(wire[:size])


@by_name([case for case in VALID if isinstance(case["wire"], str) and len(case["wire"]) < 400])
def test_every_flipped_bit_gives_a_value_or_a_decode_error(case: dict[str, Any]) -> None:
    wire = wire_of(case)
    for position, bit in itertools.product(range(len(wire)), range(8)):
        flipped = bytearray(wire)
        flipped[position] ^= 1 << bit
        try:
            t = dw.decode(flipped)
        except dw.DecodeError:
            continue
        elements_of(t)
        if case["checksum"] and t.header.checksum is not None:
            in_payload = position >= len(wire) - len(case["payload"]) // 2
            assert not (case["written"] and in_payload)
