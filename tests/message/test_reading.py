"""The short way to read a plain message says what the long way says, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlpack_wire as dw
from dlpack_wire.message import reading
from dlpack_wire.tensor.dtype import table

DTYPES = [name for name in map(str, table()) if dw.DType(name).plain_numpy is not None]
SHAPES = [(), (1,), (7,), (2, 3), (127, 2), (128, 2), (300, 1, 2), (1,) * 20, (1,) * 64]


def taught(message: bytes) -> bytes:
    """The message, after the long way has met another one like it."""
    header = reading.read(message, 0, len(message)).header
    reading.remember_plain(header)
    return message


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_plain_messages_take_the_short_way(name: str, shape: tuple[int, ...]) -> None:
    message = taught(dw.encode(np.zeros(shape, dw.DType(name).numpy)))
    found = reading.read_plain(message, len(message))
    assert found is not None
    assert found == reading.read(message, 0, len(message))


def test_an_opening_that_was_never_met_takes_the_long_way() -> None:
    message = dw.encode(np.zeros(3, np.float32))
    reading._OPENINGS.clear()
    assert reading.read_plain(message, len(message)) is None


@given(st.sampled_from(SHAPES[:5]), st.sampled_from(DTYPES), st.data())
def test_odd_messages_are_said_the_same_of_or_nothing(shape: tuple[int, ...], name: str, data: st.DataObject) -> None:
    message = bytearray(taught(dw.encode(np.zeros(shape, dw.DType(name).numpy))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(message) - 1))
        what = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if what == "flip":
            message[at] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "cut":
            del message[at : at + data.draw(st.integers(1, 3))]
        else:
            message[at:at] = bytes([data.draw(st.integers(0, 255))])
        if not message:
            return
    found = reading.read_plain(bytes(message), len(message))
    if found is not None:
        assert found == reading.read(bytes(message), 0, len(message))
