"""An image is, byte for byte, what saving the same tensors gives."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays

import dlpack_wire as dw
from dlpack_wire.file.plan import FilePlan
from dlpack_wire.message.names import MAX_FILE_METADATA_BYTES, Metadata, encode_map, names_block
from dlpack_wire.tensor.source import Source


def build(tensors: dict[str, Any], metadata: Metadata | None = None) -> bytes:
    """The bytes of an image with its payloads put where it wants them, written in the order of their positions."""
    sources = {name: Source(x, "keep") for name, x in tensors.items()}
    blocks = [(names_block(name, allow_empty=True), source.header) for name, source in sources.items()]
    image = FilePlan(blocks, encode_map(2, metadata, MAX_FILE_METADATA_BYTES))
    room = bytearray(image.size)
    for slot, source in zip(image.slots, sources.values(), strict=True):
        payload = b"".join(map(bytes, source.pieces(1 << 16)))
        room[slot.data_offset : slot.data_offset + len(payload)] = payload
    for position, piece in image.pieces([source.block_sums() for source in sources.values()]):
        room[position : position + len(piece)] = piece
    assert len(room) == image.size
    return bytes(room)


def saved(x: Any, metadata: Metadata | None = None) -> bytes:
    out = io.BytesIO()
    dw.save(out, x, metadata)
    return out.getvalue()


@given(st.lists(arrays(), min_size=1, max_size=6))
def test_equals_the_saved_file(tensors: list[Any]) -> None:
    named = {f"t{i}": x for i, x in enumerate(tensors)}
    assert build(named, {"k": 1, "a": "b"}) == saved(named, {"k": 1, "a": "b"})


@given(arrays())
def test_a_bare_tensor_has_the_empty_name(x: Any) -> None:
    assert build({"": x}) == saved(x)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 16383, 16384, 2**21 - 1, 2**21])
def test_sizes_around_which_varints_grow(size: int) -> None:
    x = np.arange(size, dtype=np.uint8)
    content = build({"w": x, "v": x})
    assert content == saved({"w": x.copy(), "v": x.copy()})
    loaded = dw.load_dict(content)
    assert all(np.array_equal(loaded[name].numpy(), x) for name in "wv")


def test_a_checksum_in_a_header_changes_nothing() -> None:
    x = np.arange(5.0)
    with Source(x) as source:
        plain = FilePlan([(b"\x0a\x01w", source.header)])
        summed = FilePlan([(b"\x0a\x01w", source.header._replace(checksum=7))])
    assert list(plain.pieces([bytes(8)])) == list(summed.pieces([bytes(8)]))
