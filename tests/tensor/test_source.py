"""What a tensor will be on the wire: the header and the payload's pieces."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hand_built_capsules import floats, name_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, lay_out

import dlpack_wire as dw
from dlpack_wire.tensor.checksum import xxh3
from dlpack_wire.tensor.source import Source, plain_array


@given(arrays(), st.sampled_from([1, 3, 16, 100, 1 << 20]), st.sampled_from(["keep", "compact"]))
def test_pieces_are_the_payload(a: np.ndarray[Any, Any], size: int, layout: Any) -> None:
    payload = dw.to_proto(a, layout=layout).data
    with Source(a, layout) as source:
        pieces = [bytes(piece) for piece in source.pieces(size)]
        assert b"".join(pieces) == payload
        assert all(0 < len(piece) <= max(size, a.dtype.itemsize) for piece in pieces)
        assert len(payload) == source.header.payload_bytes
        assert source.checksum() == xxh3(payload)
        whole = source.buffer()
        assert whole is None or bytes(whole) == payload
        again = [bytes(piece) for piece in source.pieces(size)]
        assert again == pieces


@pytest.mark.parametrize("order", ["sliced", "negative", "broadcast", "permuted"])
def test_large_arrays_are_gathered_in_bounded_pieces(order: str) -> None:
    a = lay_out(np.dtype("u4"), (40, 30, 50), order)
    with Source(a, "compact") as source:
        assert source.buffer() is None
        pieces = [bytes(piece) for piece in source.pieces(1000)]
    assert max(map(len, pieces)) <= 1000
    assert b"".join(pieces) == a.tobytes()


@pytest.mark.parametrize("order", ["c", "fortran", "permuted", "odd_size_1"])
def test_dense_memory_is_not_copied(order: str) -> None:
    a = lay_out(np.dtype("u4"), (4, 1, 5), order)
    with Source(a) as source:
        whole = source.buffer()
        assert whole is not None
        assert np.shares_memory(np.frombuffer(whole, "u1"), a)


@pytest.mark.parametrize("dtype", ["u1", "f4", ">f4", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2], ids=str)
@pytest.mark.parametrize("order", ["c", "fortran", "sliced"])
def test_plain_arrays_are_those_whose_memory_is_the_payload(dtype: Any, order: str) -> None:
    for shape in ((), (3, 4), (0, 4)):
        a = lay_out(np.dtype(dtype), shape, order)
        plain = plain_array(a)
        is_plain = a.flags.c_contiguous and a.size > 0 and dtype != "?"
        assert (plain is not None) == is_plain
        if plain is not None:
            assert plain is plain_array(a)
            with Source(a) as source:
                assert plain.header == source.header
                assert b"".join([plain.payload(a)]) == source.buffer()
            assert plain.payload_bytes == a.nbytes


def test_the_memory_is_held_until_close() -> None:
    made = floats()
    source = Source(made.capsule)
    assert name_of(made.capsule) == b"used_dltensor_versioned"
    source.close()
    source.close()
    assert name_of(made.capsule) == b"dltensor_versioned"


def test_an_unknown_layout_is_refused_before_anything_is_borrowed() -> None:
    made = floats(destructor=False)
    with pytest.raises(dw.EncodeError, match="layout"):
        Source(made.capsule, "best")  # type: ignore[arg-type]
    assert made.deleter_calls == 0
    made.call_deleter()
