"""The vectors of the message, as they lie in data/vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hand_built_capsules as handmade
import numpy as np

import dlpack_wire as dw

VECTORS = Path(__file__).parent / "data" / "vectors"
VALID: list[dict[str, Any]] = json.loads((VECTORS / "valid.json").read_text())
KNOWN_CODES = range(19)
ERRORS = {
    "decode error": dw.DecodeError,
    "truncated": dw.TruncatedError,
    "checksum error": dw.ChecksumError,
    "limit error": dw.LimitError,
    "unsupported": dw.UnsupportedVersionError,
}
"""Our classes of errors by the contract's words."""
INVALID: list[dict[str, Any]] = json.loads((VECTORS / "invalid.json").read_text())


def wire_of(case: dict[str, Any]) -> bytes:
    return joined(case["wire"])


def joined(written: Any) -> bytes:
    """Bytes as the vectors write them: hex, or a list of [hex, times]."""
    if isinstance(written, str):
        return bytes.fromhex(written)
    return b"".join(bytes.fromhex(part) * times for part, times in written)


def elements_of(t: dw.Tensor) -> bytes:
    """Row-major elements in little endian without gaps, as the vectors write them."""
    raw = np.frombuffer(t.payload, np.uint8)
    if t.flags & handmade.PADDED:
        raw = raw & ((1 << t.dtype.bits) - 1)
    if t.dtype.part_bytes > 1 and t.byte_order == dw.ByteOrder.BIG and t.dtype.code in KNOWN_CODES:
        return raw.view(f"u{t.dtype.part_bytes}").byteswap().tobytes()
    return raw.tobytes()
