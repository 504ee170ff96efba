"""Pieces that the files of this folder are made of, and the list of the files."""

from __future__ import annotations

from typing import Any

from hand_built_files import (
    BLOCK,
    CraftedFile,
    entry,
    field,
    fixed,
    header_of,
    names_of,
    record,
    varint,
    with_sum,
    xxh3,
)

PAYLOAD = b"\1\2\3\4"
HEADER = header_of([4], payload_sum=xxh3(PAYLOAD))
A = names_of("a")
HUGE = 1 << 40

FILES: dict[str, tuple[bytes | None, dict[str, Any]]] = {}
"""Content of every file, None for a sparse one, and what files.json says of it."""


def valid(name: str, content: bytes, tensors: dict[str, bytes], **more: Any) -> None:
    said = {"error": None, "at": None, "tensors": {k: shortened(v) for k, v in tensors.items()}, **more}
    FILES[f"valid-{name}.dlpw"] = content, said


def shortened(payload: bytes) -> Any:
    """A payload as files.json has it: in hex, or with its leading zeros counted."""
    zeros = len(payload) - len(payload.lstrip(b"\0"))
    return payload.hex() if zeros < BLOCK else [["00", zeros], [payload[zeros:].hex(), 1]]


def sparse(name: str, size: int, parts: list[tuple[int, bytes]], tensors: dict[str, Any]) -> None:
    written = {"size": str(size), "parts": [[str(offset), part.hex()] for offset, part in parts]}
    FILES[f"valid-{name}.dlpw"] = None, {"error": None, "at": None, "tensors": tensors, "sparse": written}


def invalid(name: str, content: bytes, at: str, error: str = "decode error", **more: Any) -> None:
    FILES[f"invalid-{name}.dlpw"] = content, {"error": error, "at": at, **more}


def two_tensors() -> CraftedFile:
    f = CraftedFile()
    f.add("a", PAYLOAD)
    f.add("b", b"\5\6\7\x08")
    return f


def simple() -> bytes:
    return two_tensors().finish()


def lying(
    names: bytes = A,
    header: bytes = HEADER,
    payload: bytes = PAYLOAD,
    *,
    line_names: bytes | None = None,
    line_header: bytes | None = None,
    record_offset: int = 9,
    data_offset: int | None = None,
    data_bytes: int | None = None,
) -> bytes:
    """A file of one record, whose index entry may say something else."""
    f = CraftedFile()
    written, data_at = record(names, header, payload, 9)
    f.content += written
    f.lines.append(
        entry(
            names if line_names is None else line_names,
            header if line_header is None else line_header,
            record_offset,
            9 + data_at if data_offset is None else data_offset,
            len(payload) if data_bytes is None else data_bytes,
        )
    )
    return f.finish()


def with_record(written: bytes, data_at: int) -> bytes:
    """A file of one record that is given, and an honest index entry."""
    f = CraftedFile()
    f.content += written
    f.lines.append(entry(A, HEADER, 9, 9 + data_at, len(PAYLOAD)))
    return f.finish()


def reshaped(
    before: bytes = b"", names: bytes = A, sum_field: bytes = fixed(14, 0), after_header: bytes = b""
) -> bytes:
    """A record with something more in it; its payload lies at a multiple of 64."""
    for padding in range(1, 200):
        middle = HEADER + after_header + field(14, bytes(padding)) + b"\x7a" + varint(len(PAYLOAD))
        inner = names + before + sum_field + b"\x7a" + varint(len(middle) + len(PAYLOAD)) + middle
        head = b"\x12" + varint(len(inner) + len(PAYLOAD)) + inner
        if (9 + len(head)) % 64 == 0:
            break
    if sum_field == fixed(14, 0):
        head = with_sum(head, names + before)
    return with_record(head + PAYLOAD, len(head))


def hidden() -> bytes:
    """The index points at a record that lies in the payload of a record which it does not name."""
    inner, _ = record(A, HEADER, PAYLOAD, 128)
    f = CraftedFile()
    f.add("a", bytes(64) + inner, indexed=False)
    content = bytes(f.content)
    assert content.index(inner) == 128
    f.lines.append(entry(A, HEADER, 128, content.index(PAYLOAD, 128), 4))
    return f.finish()


def doubled_data() -> bytes:
    """A standard parser takes the last of two `data`."""
    return with_record(*record(A, HEADER, PAYLOAD, 9, tail=field(15, b"\5\6\7\x08")))


def doubled_tensor() -> bytes:
    """A standard parser merges two `tensor`."""
    second = field(15, field(15, b"\5\6\7\x08"))
    written, data_at = record(A, HEADER, PAYLOAD, 9)
    assert written[1] + len(second) < 0x80
    return with_record(b"\x12" + bytes([written[1] + len(second)]) + written[2:] + second, data_at)


def with_lines(*lines: bytes, ending: bytes = b"") -> bytes:
    """Two honest records under an index of other lines."""
    f = two_tensors()
    f.lines = list(lines)
    return f.finish(ending)


def based(base: tuple[int, int] | None) -> bytes:
    f = two_tensors()
    f.finish()
    f.add("c")
    return f.finish(base=f.trailer if base is None else base)


def chain_of(count: int) -> bytes:
    f = CraftedFile()
    f.finish()
    for _ in range(count - 1):
        f.finish(base=f.trailer)
    return bytes(f.content)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
