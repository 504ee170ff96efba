"""Listings of tensors, metadata and problems, for people and for programs."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError
from ..message.names import Value
from ..tensor.dtype import ByteOrder
from ..tensor.header import Header
from ..tensor.layout import row_major
from .terminal import print_table, printable

if TYPE_CHECKING:
    from ..service.topics import Frame

Line = tuple[list[str], Header, int | None]
"""Names of a tensor, its header, and the position of its payload in the file, if it is in one."""


def print_tensors(tensors: Sequence[Line], as_json: bool) -> None:
    """List tensors, for people or for programs."""
    if as_json:
        print_json([_json_tensor(names, header, at) for names, header, at in tensors])
        return
    print_table(
        ("name", "dtype", "shape", "bytes", "offset", "layout", "device"),
        [
            (
                " = ".join(names) or "(no name)",
                h.dtype.name,
                str(list(h.shape)),
                h.payload_bytes,
                "" if at is None else at,
                _layout(h),
                str(h.device or ""),
            )
            for names, h, at in tensors
        ],
    )


def _layout(header: Header) -> str:
    if header.is_packed:
        return "packed"
    order = ", big-endian" if header.byte_order == ByteOrder.BIG else ""
    if header.strides is None:
        return f"row-major{order}"
    if header.strides == row_major(header.shape[::-1])[::-1]:
        return f"column-major{order}"
    return f"strides {list(header.strides)}{order}"


def when(time_ns: int) -> str:
    """Format a time in the machine's own zone."""
    return datetime.datetime.fromtimestamp(time_ns // 10**9).isoformat(" ")


def print_json(value: Any) -> None:
    """Print JSON that every parser reads: without NaN and infinity."""
    print(json.dumps(value, indent=2, allow_nan=False))


def _json_tensor(names: list[str], header: Header, data_offset: int | None) -> dict[str, Any]:
    return {
        "names": names,
        "dtype": header.dtype.name,
        "shape": header.shape,
        "strides": header.strides,
        "payload_bytes": header.payload_bytes,
        "data_offset": data_offset,
        "byte_order": header.byte_order.name.lower(),
        "device": header.device and header.device._asdict(),
        "sub_byte_padded": header.padded,
        "data_sum": None if header.checksum is None else f"{header.checksum:016x}",
    }


def json_metadata(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """Return metadata for JSON: bytes as hex digits, floats that JSON lacks as protobuf's JSON spells them."""
    return {key: _json_value(value) for key, value in metadata.items()}


def _json_value(value: Value) -> Value:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def json_problem(problem: DecodeError) -> dict[str, Any]:
    """Return a problem of a file for JSON."""
    return {
        "kind": type(problem).__name__,
        "problem": str(problem.args[0]),
        "tensor": problem.tensor,
        "field": problem.field,
        "offset": problem.offset,
    }


def print_frame(frame: Frame, as_json: bool) -> None:
    """Show a frame in one line, at once."""
    header = frame.tensor.header
    if as_json:
        facts = {
            "topic": frame.topic,
            "sequence": frame.sequence,
            "time_ns": frame.time_ns,
            "dropped_count": frame.dropped_count,
            "is_retained": frame.is_retained,
            "dtype": header.dtype.name,
            "shape": header.shape,
            "payload_bytes": header.payload_bytes,
            "metadata": json_metadata(frame.metadata),
        }
        print(json.dumps(facts, allow_nan=False), flush=True)
        return
    what = f"{header.dtype.name}{list(header.shape)} {header.payload_bytes} bytes"
    if frame.dropped_count:
        what += f", {frame.dropped_count} dropped before"
    if frame.is_retained:
        what += " (retained)"
    if frame.metadata:
        what += f" {json_metadata(frame.metadata)}"
    moment = f"{when(frame.time_ns)}.{frame.time_ns // 10**6 % 1000:03}"
    print(f"{moment} {printable(frame.topic)} #{frame.sequence} {printable(what)}", flush=True)


def print_problems(problems: Sequence[DecodeError]) -> None:
    """List problems for people, one a line."""
    for problem in problems:
        print(printable(str(problem)))
