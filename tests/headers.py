"""Headers made through the one function that checks them."""

from __future__ import annotations

from typing import Any

import dlpack_wire as dw
from dlpack_wire.tensor import header as headers


def header_of(**fields: Any) -> dw.Header:
    """A header, by the one door there is."""
    plain: dict[str, Any] = {
        "dtype": dw.DType("float32"),
        "shape": (6,),
        "strides": None,
        "byte_offset": 0,
        "byte_order": 1,
        "device": None,
        "flags": 0,
        "version": None,
    }
    return headers.checked(**{**plain, **fields})
