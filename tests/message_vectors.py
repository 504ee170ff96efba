"""The vectors of the message, as they lie in data/vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "data" / "vectors"
VALID: list[dict[str, Any]] = json.loads((VECTORS / "valid.json").read_text())
INVALID: list[dict[str, Any]] = json.loads((VECTORS / "invalid.json").read_text())


def wire_of(case: dict[str, Any]) -> bytes:
    wire = case["wire"]
    return bytes.fromhex(wire) if isinstance(wire, str) else b"".join(bytes.fromhex(p) * times for p, times in wire)
