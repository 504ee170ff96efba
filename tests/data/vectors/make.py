"""Make valid.json and invalid.json: a second, independent writing of the message's rules.

    python tests/data/vectors/make.py --force

Nothing here uses the library. The files are reviewed when they change and then frozen: they bind readers and writers
in every language, so a difference is a change of the contract, not something to regenerate away.

valid.json: a list of cases
    name        what is special about it
    wire        the message, in hex (or a list of [hex, times] to be joined)
    dtype, shape, strides, byte_offset, byte_order, flags, device, version, checksum
                its meaning: numbers of 64 bits as decimal strings, null where absent
    payload     content of `data`, in hex
    elements    the elements in row-major order, little endian, without gaps; packed ones as packed bytes
    written     whether a writer of ours must produce exactly `wire` for this meaning
invalid.json: a list of cases
    name        the defect
    wire        as above
    error       class of the error, in the contract's words
    says        part of its message
    parsed      whether the message, once parsed by a standard parser, must be refused too. False: a standard parser
                refuses it itself, reads it otherwise than we allow, or cannot see the defect
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

HERE = Path(__file__).parent

INT, UINT, FLOAT, HANDLE, BFLOAT, COMPLEX, BOOL = range(7)
F8_E4M3FN, F8_E5M2, F8_E8M0FNU, F6_E2M3FN, F4_E2M1FN, BCOMPLEX = 10, 12, 14, 15, 17, 18
LITTLE, BIG = 1, 2
PADDED = 4
VARINT, FIXED64, LEN, GROUP, GROUP_END, FIXED32 = range(6)


# --- protobuf, written out --------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    return tag(field, VARINT) + varint(value)


def block(field: int, content: bytes) -> bytes:
    return tag(field, LEN) + varint(len(content)) + content


def numbers(field: int, values: list[int]) -> bytes:
    return block(field, b"".join(map(varint, values)))


def message(values: dict[int, int]) -> bytes:
    """A sub-message of varints as proto3 writes it: zero is left out."""
    return b"".join(number(field, value) for field, value in values.items() if value)


def dtype_field(code: int, bits: int, lanes: int = 1) -> bytes:
    return block(4, message({1: code, 2: bits, 3: lanes}))


def device_field(device_type: int, device_id: int = 0) -> bytes:
    return block(3, message({1: device_type, 2: device_id}))


def sum_field(payload: bytes) -> bytes:
    return tag(9, FIXED64) + struct.pack("<Q", xxh3_64_intdigest(payload))


F4 = dtype_field(FLOAT, 32)
U1 = dtype_field(UINT, 8)
I4 = dtype_field(INT, 4)
LITTLE_ENDIAN = number(8, LITTLE)


# --- valid ------------------------------------------------------------------------------------------------------------


def part_bytes(code: int, bits: int) -> int:
    return max(bits // 8 // (2 if code in (COMPLEX, BCOMPLEX) else 1), 1)


def row_major(shape: list[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def elements_of(payload: bytes, meaning: dict[str, Any]) -> bytes:
    """The elements in row-major order, each part turned to little endian."""
    code, bits, lanes = meaning["code"], meaning["bits"], meaning["lanes"]
    shape = meaning["shape"]
    padded = bool(meaning["flags"] & PADDED)
    if 0 in shape:
        return b""
    if bits * lanes % 8 and not padded:
        return payload
    size = 1 if padded else bits * lanes // 8
    strides = row_major(shape) if meaning["strides"] is None else meaning["strides"]
    positions = [meaning["byte_offset"]]
    for extent, stride in zip(shape, strides, strict=True):
        positions = [p + i * stride * size for p in positions for i in range(extent)]
    out = b"".join(payload[p : p + size] for p in positions)
    if meaning["byte_order"] == BIG and code <= BCOMPLEX:
        part = part_bytes(code, bits)
        out = b"".join(out[i : i + part][::-1] for i in range(0, len(out), part))
    if padded:
        out = bytes(b & (1 << bits) - 1 for b in out)
    return out


def canonical(payload: bytes, meaning: dict[str, Any]) -> bytes:
    """The one message that our writers make of a meaning."""
    version, device = meaning["version"], meaning["device"]
    out = block(1, message({1: version[0], 2: version[1]})) if version else b""
    out += number(2, meaning["flags"]) if meaning["flags"] else b""
    out += device_field(*device) if device else b""
    out += dtype_field(meaning["code"], meaning["bits"], meaning["lanes"])
    out += numbers(5, meaning["shape"]) if meaning["shape"] else b""
    out += numbers(6, meaning["strides"]) if meaning["strides"] else b""
    out += number(7, meaning["byte_offset"]) if meaning["byte_offset"] else b""
    out += number(8, meaning["byte_order"]) if meaning["byte_order"] else b""
    out += sum_field(payload) if meaning["checksum"] else b""
    if not payload:
        return out
    data = block(15, payload)
    prefix = len(out) + len(data) - len(payload)
    if part_bytes(meaning["code"], meaning["bits"]) > 1 and prefix % 16:
        for zeros in range(1, 17):
            if (prefix + 2 + zeros) % 16 == 0:
                out += block(14, bytes(zeros))
    return out + data


def valid(
    name: str,
    payload: bytes,
    dtype: tuple[int, int, int],
    shape: list[int],
    *,
    strides: list[int] | None = None,
    byte_offset: int = 0,
    byte_order: int | None = None,
    flags: int = 0,
    device: tuple[int, int] | None = (1, 0),
    version: tuple[int, int] | None = None,
    checksum: bool = True,
    wire: Any = None,
    written: bool | None = None,
) -> dict[str, Any]:
    code, bits, lanes = dtype
    meaning = {
        "code": code,
        "bits": bits,
        "lanes": lanes,
        "shape": shape,
        "strides": strides,
        "byte_offset": byte_offset,
        "byte_order": (LITTLE if part_bytes(code, bits) > 1 else 0) if byte_order is None else byte_order,
        "flags": flags,
        "device": device,
        "version": version,
        "checksum": checksum,
    }
    elements = elements_of(payload, meaning)
    return {
        "name": name,
        "dtype": {"code": code, "bits": bits, "lanes": lanes},
        "shape": [str(n) for n in shape],
        "strides": None if strides is None else [str(n) for n in strides],
        "byte_offset": str(byte_offset),
        "byte_order": meaning["byte_order"],
        "flags": str(flags),
        "device": None if device is None else {"device_type": device[0], "device_id": device[1]},
        "version": None if version is None else {"major": version[0], "minor": version[1]},
        "checksum": str(xxh3_64_intdigest(payload)) if checksum else None,
        "payload": payload.hex(),
        "elements": elements.hex(),
        "written": wire is None if written is None else written,
        "wire": hexed(canonical(payload, meaning) if wire is None else wire),
    }


def hexed(wire: Any) -> Any:
    if isinstance(wire, bytes):
        return wire.hex()
    return [[part.hex(), times] for part, times in wire]


def ramp(count: int) -> bytes:
    """Bytes that are all different as long as they can be."""
    return bytes((i * 37 + 1) % 256 for i in range(count))


def pack_floats(*values: float, order: str = "<") -> bytes:
    return struct.pack(f"{order}{len(values)}f", *values)


SIX = pack_floats(0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
F32 = (FLOAT, 32, 1)
U8 = (UINT, 8, 1)

KNOWN = {
    INT: (8, 16, 32, 64),
    UINT: (8, 16, 32, 64),
    FLOAT: (16, 32, 64),
    BFLOAT: (16,),
    COMPLEX: (32, 64, 128),
    **dict.fromkeys(range(7, 15), (8,)),
    BCOMPLEX: (32,),
}
SUB_BYTE = {INT: range(1, 8), UINT: range(1, 8), 15: (6,), 16: (6,), 17: (4,)}


def spare_cleared(payload: bytes, used_bits: int) -> bytes:
    return (int.from_bytes(payload, "little") & (1 << used_bits) - 1).to_bytes(len(payload), "little")


def valid_cases() -> list[dict[str, Any]]:
    cases = []
    for code, widths in KNOWN.items():
        for bits in widths:
            cases.append(valid(f"code {code} of {bits} bits", ramp(3 * bits // 8), (code, bits, 1), [3]))
    cases.append(valid("bool", b"\0\1\1", (BOOL, 8, 1), [3]))
    for code, widths in SUB_BYTE.items():
        for bits in widths:
            packed = spare_cleared(ramp((5 * bits + 7) // 8), 5 * bits)
            one_each = bytes(b & (1 << bits) - 1 for b in ramp(5))
            cases.append(valid(f"code {code} of {bits} bits, packed, 5 elements", packed, (code, bits, 1), [5]))
            cases.append(valid(f"code {code} of {bits} bits, padded", one_each, (code, bits, 1), [5], flags=PADDED))
    cases += [
        valid("row-major matrix", SIX, F32, [2, 3]),
        valid("0-d", SIX[:4], F32, []),
        valid("0-d byte", b"\x80", U8, []),
        valid("NaN payloads, -0.0, infinities", bytes.fromhex("010080ff 0100c07f 00000080 000080ff"), F32, [4]),
        valid("64 dimensions", b"\7", U8, [1] * 64),
        valid("extents that need several bytes each", ramp(300), U8, [1, 300]),
        valid("payload length that needs two bytes", pack_floats(*range(50)), F32, [50]),
        valid("Fortran order", SIX, F32, [2, 3], strides=[1, 2]),
        valid("channels-last", ramp(24), U8, [1, 3, 2, 4], strides=[1, 1, 12, 3]),
        valid("Fortran order with an axis of size 1", SIX, F32, [2, 1, 3], strides=[1, 1, 2]),
        valid("empty", b"", F32, [0]),
        valid("empty among other axes", b"", (COMPLEX, 128, 1), [3, 0, 2]),
        valid("empty with the largest other extents", b"", U8, [0, 2**62]),
        valid("empty and packed", b"", (INT, 4, 1), [0, 3]),
        valid("two lanes of a float", SIX[:16], (FLOAT, 32, 2), [2]),
        valid("two lanes of a complex number", ramp(32), (COMPLEX, 64, 2), [2]),
        valid("two fp4 in a byte", ramp(3), (F4_E2M1FN, 4, 2), [3]),
        valid("lanes that do not fill bytes", spare_cleared(ramp(5), 36), (UINT, 4, 3), [3]),
        valid("lanes of bool", b"\0\1\1\0", (BOOL, 8, 2), [2]),
        valid("unknown code", ramp(6), (200, 16, 1), [3]),
        valid("unknown code of 3 bytes and two lanes", ramp(12), (77, 24, 2), [2]),
        valid("largest packed lanes, empty", b"", (UINT, 4, 3), [0, 2**61]),
        valid("complex lanes with strides", ramp(64), (COMPLEX, 64, 2), [2, 2], strides=[1, 2]),
        valid("unknown code, packed", spare_cleared(ramp(2), 15), (255, 5, 1), [3]),
        valid("no checksum", SIX, F32, [6], checksum=False),
        valid("no checksum, empty", b"", F32, [0], checksum=False),
        valid("producer's version", SIX, F32, [6], version=(1, 1)),
        valid("pinned host memory", SIX, F32, [6], device=(3, 2)),
        valid("ROCm pinned host memory", SIX, F32, [6], device=(11, 0)),
        valid("big endian", pack_floats(1.0, -2.5, order=">"), F32, [2], byte_order=BIG),
        valid("big endian complex", pack_floats(1.0, -2.5, order=">"), (COMPLEX, 64, 1), [1], byte_order=BIG),
        valid(
            "big endian, Fortran order",
            struct.pack(">6d", *range(6)),
            (FLOAT, 64, 1),
            [2, 3],
            strides=[1, 2],
            byte_order=BIG,
        ),
    ]
    cases += reader_cases()
    return cases


def read(name: str, wire: Any, payload: bytes, dtype: tuple[int, int, int], shape: list[int], **meaning: Any) -> Any:
    """A message that readers must take and writers do not make."""
    meaning = {"checksum": False, "device": None, **meaning}
    return valid(name, payload, dtype, shape, wire=wire, written=False, **meaning)


def reader_cases() -> list[dict[str, Any]]:
    shape = numbers(5, [2, 3])
    data = block(15, SIX)
    plain = F4 + shape + LITTLE_ENDIAN
    unknown = number(1000, 7) + tag(2000, FIXED64) + bytes(8) + tag(3000, FIXED32) + bytes(4) + block(4000, b"x\xff")
    cuda = device_field(2, 1)
    return [
        read(
            "fields in reverse order",
            data + sum_field(SIX) + LITTLE_ENDIAN + shape + F4,
            SIX,
            F32,
            [2, 3],
            checksum=True,
        ),
        read(
            "element of 2^31 - 1 bytes, empty",
            dtype_field(UINT, 8, 2**31 - 1) + numbers(5, [0]),
            b"",
            (UINT, 8, 2**31 - 1),
            [0],
        ),
        read(
            "value varint of more than 64 bits",
            tag(2, VARINT) + b"\x80" * 9 + b"\x7e" + U1 + numbers(5, [1]) + block(15, b"a"),
            b"a",
            U8,
            [1],
        ),
        read(
            "unknown code of 8 bits in lanes, without an order",
            dtype_field(99, 8, 2) + numbers(5, [1]) + block(15, b"ab"),
            b"ab",
            (99, 8, 2),
            [1],
        ),
        read(
            "empty and packed, with strides",
            dtype_field(UINT, 4) + numbers(5, [0, 3]) + numbers(6, [5, 7]),
            b"",
            (UINT, 4, 1),
            [0, 3],
        ),
        read(
            "gaps, and a stride on an axis of size 1",
            dtype_field(*U8) + numbers(5, [2, 1]) + numbers(6, [2, 99]) + block(15, b"abc"),
            b"abc",
            U8,
            [2, 1],
            strides=[2, 1],
        ),
        read("padding that is a number", U1 + numbers(5, [1]) + number(14, 5) + block(15, b"a"), b"a", U8, [1]),
        read("padding of no bytes", plain + block(14, b"") + data, SIX, F32, [2, 3]),
        read("padding behind the data", plain + data + block(14, bytes(5)), SIX, F32, [2, 3]),
        read("empty with padding", F4 + numbers(5, [0]) + LITTLE_ENDIAN + block(14, bytes(5)), b"", F32, [0]),
        read(
            "empty with the most negative stride",
            F4 + numbers(5, [0, 7]) + numbers(6, [3, -(2**63)]) + LITTLE_ENDIAN,
            b"",
            F32,
            [0, 7],
        ),
        read(
            "big endian complex of 32 bits",
            dtype_field(COMPLEX, 32) + numbers(5, [2]) + number(8, BIG) + block(15, ramp(8)),
            ramp(8),
            (COMPLEX, 32, 1),
            [2],
            byte_order=BIG,
        ),
        read(
            "big endian complex lanes",
            dtype_field(COMPLEX, 64, 2) + numbers(5, [1]) + number(8, BIG) + block(15, ramp(16)),
            ramp(16),
            (COMPLEX, 64, 2),
            [1],
            byte_order=BIG,
        ),
        read(
            "big endian stated for single bytes",
            dtype_field(*U8) + numbers(5, [2]) + number(8, 2) + block(15, b"ab"),
            b"ab",
            U8,
            [2],
            byte_order=0,
        ),
        read("data before its header", data + plain, SIX, F32, [2, 3]),
        read("unknown fields in between", unknown.join((b"", F4, shape, LITTLE_ENDIAN, data, b"")), SIX, F32, [2, 3]),
        read(
            "reserved fields that may be ignored", plain + number(12, 1) + block(13, b"later") + data, SIX, F32, [2, 3]
        ),
        read("unpacked shape", F4 + number(5, 2) + number(5, 3) + LITTLE_ENDIAN + data, SIX, F32, [2, 3]),
        read(
            "shape partly packed, partly not",
            F4 + number(5, 1) + numbers(5, [2]) + numbers(5, []) + LITTLE_ENDIAN + number(5, 3) + data,
            SIX,
            F32,
            [1, 2, 3],
        ),
        read(
            "unpacked strides",
            plain + number(6, 1) + number(6, 2) + data,
            SIX,
            F32,
            [2, 3],
            strides=[1, 2],
        ),
        read(
            "element type in two pieces",
            block(4, number(1, FLOAT) + number(2, 64))
            + shape
            + block(4, number(2, 32) + number(3, 1))
            + LITTLE_ENDIAN
            + data,
            SIX,
            F32,
            [2, 3],
        ),
        read(
            "unknown fields in the element type",
            block(4, unknown + F4[2:] + unknown) + shape + LITTLE_ENDIAN + data,
            SIX,
            F32,
            [2, 3],
        ),
        read(
            "device in two pieces",
            block(3, number(1, 2)) + plain + block(3, number(2, 1)) + data,
            SIX,
            F32,
            [2, 3],
            device=(2, 1),
        ),
        read("last byte order wins", number(8, BIG) + plain + data, SIX, F32, [2, 3]),
        read("last flags win", number(2, 4) + plain + number(2, 0) + data, SIX, F32, [2, 3]),
        read("last data wins", block(15, b"old") + plain + data, SIX, F32, [2, 3]),
        read("last checksum wins", sum_field(b"old") + plain + sum_field(SIX) + data, SIX, F32, [2, 3], checksum=True),
        read("last padding wins", plain + block(14, b"\1\2") + block(14, bytes(2)) + data, SIX, F32, [2, 3]),
        read(
            "known numbers of other wire types are unknown fields",
            plain + block(8, b"?") + number(9, 1) + number(15, 3) + number(4, 1) + data,
            SIX,
            F32,
            [2, 3],
        ),
        read(
            "varint longer than it needs to be, as a value",
            F4 + shape + tag(8, VARINT) + b"\x81\x00" + data,
            SIX,
            F32,
            [2, 3],
        ),
        read(
            "negative enum value as ten bytes",
            plain + number(7, 0) + block(3, number(1, -1)) + data,
            SIX,
            F32,
            [2, 3],
            device=(-1, 0),
        ),
        read("enum value cut to 32 bits", F4 + shape + number(8, (1 << 32) + 1) + data, SIX, F32, [2, 3]),
        read("flags that mean nothing on the wire", number(2, 3) + plain + data, SIX, F32, [2, 3]),
        read("device memory", cuda + plain + data, SIX, F32, [2, 3], device=(2, 1)),
        read("unknown device", device_field(99, -1) + plain + data, SIX, F32, [2, 3], device=(99, -1)),
        read(
            "device and version of zeros only",
            block(1, b"") + block(3, b"") + plain + data,
            SIX,
            F32,
            [2, 3],
            device=(0, 0),
            version=(0, 0),
        ),
        read("later major version", block(1, message({1: 99, 2: 1})) + plain + data, SIX, F32, [2, 3], version=(99, 1)),
        read(
            "byte order stated for single bytes",
            U1 + numbers(5, [3]) + LITTLE_ENDIAN + block(15, b"abc"),
            b"abc",
            U8,
            [3],
        ),
        read("row-major strides spelled out", plain + numbers(6, [3, 1]) + data, SIX, F32, [2, 3]),
        read(
            "odd strides on axes of size 1",
            F4 + numbers(5, [1, 6, 1]) + numbers(6, [0, 1, -(2**63)]) + LITTLE_ENDIAN + data,
            SIX,
            F32,
            [1, 6, 1],
        ),
        read(
            "negative stride",
            plain + numbers(6, [3, -1]) + number(7, 8) + data,
            SIX,
            F32,
            [2, 3],
            strides=[3, -1],
            byte_offset=8,
        ),
        read(
            "all strides negative, big endian",
            F4
            + shape
            + numbers(6, [-3, -1])
            + number(7, 20)
            + number(8, BIG)
            + block(15, pack_floats(*range(6), order=">")),
            pack_floats(*range(6), order=">"),
            F32,
            [2, 3],
            strides=[-3, -1],
            byte_offset=20,
            byte_order=BIG,
        ),
        read(
            "gaps between rows",
            U1 + numbers(5, [2, 3]) + numbers(6, [5, 1]) + block(15, ramp(8)),
            ramp(8),
            U8,
            [2, 3],
            strides=[5, 1],
        ),
        read(
            "gaps between elements",
            U1 + numbers(5, [3]) + numbers(6, [4]) + block(15, ramp(9)),
            ramp(9),
            U8,
            [3],
            strides=[4],
        ),
        read(
            "padded elements with strides",
            number(2, 4) + I4 + numbers(5, [2, 2]) + numbers(6, [1, 2]) + block(15, b"\1\2\3\4"),
            b"\1\2\3\4",
            (INT, 4, 1),
            [2, 2],
            strides=[1, 2],
            flags=PADDED,
        ),
        read(
            "padded elements with other bits set",
            number(2, 4) + I4 + numbers(5, [2]) + block(15, b"\xf1\xff"),
            b"\xf1\xff",
            (INT, 4, 1),
            [2],
            flags=PADDED,
        ),
        read(
            "packed, row-major strides spelled out",
            I4 + numbers(5, [2, 2]) + numbers(6, [2, 1]) + block(15, b"\x21\x43"),
            b"\x21\x43",
            (INT, 4, 1),
            [2, 2],
        ),
        read(
            "empty with strides of any kind",
            F4 + numbers(5, [0, 3]) + numbers(6, [0, 2**63 - 1]) + LITTLE_ENDIAN,
            b"",
            F32,
            [0, 3],
        ),
        read("empty with an empty data field", F4 + numbers(5, [0]) + LITTLE_ENDIAN + block(15, b""), b"", F32, [0]),
        read(
            "big endian, unknown code",
            dtype_field(200, 16) + numbers(5, [2]) + number(8, BIG) + block(15, b"\1\2\3\4"),
            b"\1\2\3\4",
            (200, 16, 1),
            [2],
            byte_order=BIG,
        ),
        read(
            "big endian bfloat16",
            dtype_field(BFLOAT, 16) + numbers(5, [2]) + number(8, BIG) + block(15, b"\x3f\x80\xc0\0"),
            b"\x3f\x80\xc0\0",
            (BFLOAT, 16, 1),
            [2],
            byte_order=BIG,
        ),
        read(
            "big endian lanes",
            dtype_field(INT, 16, 2) + numbers(5, [1]) + number(8, BIG) + block(15, b"\1\2\3\4"),
            b"\1\2\3\4",
            (INT, 16, 2),
            [1],
            byte_order=BIG,
        ),
        read(
            "big endian bcomplex",
            dtype_field(BCOMPLEX, 32) + number(8, BIG) + block(15, b"\1\2\3\4"),
            b"\1\2\3\4",
            (BCOMPLEX, 32, 1),
            [],
            byte_order=BIG,
        ),
        read(
            "unknown code above 255",
            dtype_field(2**31 - 1, 8) + numbers(5, [2]) + block(15, b"ab"),
            b"ab",
            (2**31 - 1, 8, 1),
            [2],
        ),
        read(
            "unknown code, wide elements",
            dtype_field(300, 264, 3) + LITTLE_ENDIAN + block(15, ramp(99)),
            ramp(99),
            (300, 264, 3),
            [],
        ),
        read(
            "most padding", [(plain, 1), (tag(14, LEN) + varint(16384), 1), (b"\0", 16384), (data, 1)], SIX, F32, [2, 3]
        ),
        read(
            "largest header",
            [
                (plain, 1),
                (tag(1000, LEN) + varint(65536 - len(plain) - 5), 1),
                (b"\1", 65536 - len(plain) - 5),
                (data, 1),
            ],
            SIX,
            F32,
            [2, 3],
        ),
    ]


# --- invalid ----------------------------------------------------------------------------------------------------------


def bad(name: str, wire: Any, error: str, says: str, *, parsed: bool = True) -> dict[str, Any]:
    return {"name": name, "error": error, "says": says, "parsed": parsed, "wire": hexed(wire)}


def invalid_cases() -> list[dict[str, Any]]:
    six = block(15, SIX)
    plain = F4 + numbers(5, [6]) + LITTLE_ENDIAN
    good = plain + sum_field(SIX) + six
    decode, truncated, limit = "decode error", "truncated", "limit error"

    def typed(name: str, dtype: bytes, says: str, error: str = decode) -> dict[str, Any]:
        return bad(name, dtype + numbers(5, [6]) + LITTLE_ENDIAN + six, error, says)

    def bytes_at(
        name: str, shape: list[int], strides: list[int], size: int, says: str, offset: int = 0
    ) -> dict[str, Any]:
        wire = U1 + numbers(5, shape) + numbers(6, strides) + (number(7, offset) if offset else b"")
        return bad(name, wire + block(15, ramp(size)), decode, says)

    return [
        # element type
        bad("nothing at all", b"", decode, "dtype"),
        bad("no element type", numbers(5, [6]) + LITTLE_ENDIAN + six, decode, "dtype"),
        typed("bits 0", dtype_field(FLOAT, 0), "bits"),
        typed("lanes 0", dtype_field(FLOAT, 32, 0), "lanes"),
        typed("element type without fields", block(4, b""), "bits"),
        typed("bits not a multiple of 8", dtype_field(200, 12), "multiple of 8"),
        typed("bits 9 of an int", dtype_field(INT, 9), "multiple of 8"),
        typed("opaque handle", dtype_field(HANDLE, 64), "opaque handle"),
        typed("negative code", dtype_field(-1, 32), "negative"),
        *(
            typed(f"code {code} of {bits} bits", dtype_field(code, bits), "bits")
            for code, bits in ((INT, 24), (INT, 128), (UINT, 256), (FLOAT, 8), (FLOAT, 24), (FLOAT, 128))
        ),
        *(
            typed(f"code {code} of {bits} bits", dtype_field(code, bits), "bits")
            for code, bits in ((BFLOAT, 32), (COMPLEX, 16), (COMPLEX, 256), (BOOL, 1), (BOOL, 16), (F8_E4M3FN, 16))
        ),
        *(
            typed(f"code {code} of {bits} bits", dtype_field(code, bits), "bits")
            for code, bits in ((F8_E8M0FNU, 4), (F6_E2M3FN, 8), (F4_E2M1FN, 8), (BCOMPLEX, 64))
        ),
        # byte order
        bad("byte order not stated", F4 + numbers(5, [6]) + six, decode, "byte_order"),
        bad("byte order zero", F4 + numbers(5, [6]) + number(8, 0) + six, decode, "byte_order"),
        bad("byte order unknown", F4 + numbers(5, [6]) + number(8, 3) + six, decode, "byte_order"),
        bad("byte order negative", F4 + numbers(5, [6]) + number(8, -1) + six, decode, "byte_order"),
        bad(
            "bool byte 7 in a gap",
            dtype_field(BOOL, 8) + numbers(5, [2]) + numbers(6, [2]) + block(15, b"\1\7\0"),
            decode,
            "bool byte",
        ),
        bad("byte order unknown, single bytes", U1 + number(8, 3) + block(15, b"a"), decode, "byte_order"),
        bad("byte order not stated, unknown code", dtype_field(200, 16) + block(15, b"ab"), decode, "byte_order"),
        bad("byte order not stated, empty", F4 + numbers(5, [0]), decode, "byte_order"),
        # flags
        bad("padded flag on 8 bits", number(2, 4) + U1 + block(15, b"a"), decode, "flags"),
        bad("flag 8", number(2, 8) + plain + six, decode, "flags"),
        bad("flag 2^63", number(2, 1 << 63) + plain + six, decode, "flags"),
        bad("reserved field 10, which must not be ignored", plain + number(10, 1) + six, "unsupported", "10"),
        bad(
            "reserved field 11, which must not be ignored",
            plain + block(11, b"later") + six,
            "unsupported",
            "11",
        ),
        bad("padded flag on 32 bits", number(2, 4) + plain + six, decode, "flags"),
        bad("padded flag on lanes", number(2, 4) + dtype_field(F4_E2M1FN, 4, 2) + block(15, b"a"), decode, "flags"),
        # shape and size
        bad("negative extent", F4 + numbers(5, [-6]) + LITTLE_ENDIAN + six, decode, "negative"),
        bad("two negative extents", F4 + numbers(5, [-2, -3]) + LITTLE_ENDIAN + six, decode, "negative"),
        bad("negative extent beside an empty axis", F4 + numbers(5, [0, -1]) + LITTLE_ENDIAN, decode, "negative"),
        bad("65 dimensions", U1 + numbers(5, [1] * 65) + block(15, b"a"), decode, "65 dimensions"),
        bad(
            "50 000 dimensions",
            [(U1 + tag(5, LEN) + varint(50_000), 1), (b"\1", 50_000), (block(15, b"a"), 1)],
            decode,
            "dimensions",
        ),
        bad("2^63 bytes", F4 + numbers(5, [2**61]) + LITTLE_ENDIAN + six, decode, "2^63"),
        bad("element of 2^31 bytes, empty", dtype_field(UINT, 8, 2**31) + numbers(5, [0]), decode, "dtype"),
        bad(
            "element over 2^32 bits, empty",
            dtype_field(UINT, 64, 2**31) + numbers(5, [0]) + LITTLE_ENDIAN,
            decode,
            "dtype",
        ),
        bad("packed element of 2^31 lanes, empty", dtype_field(UINT, 1, 2**31) + numbers(5, [0]), decode, "dtype"),
        bad("packed lanes of 2^63 bytes, empty", dtype_field(UINT, 4, 3) + numbers(5, [0, 2**62]), decode, "2^63"),
        bad("2^63 elements of one byte", U1 + numbers(5, [2**62, 2]) + block(15, b"a"), decode, "2^63"),
        bad("count that wraps to 0", F4 + numbers(5, [2**32, 2**32]) + LITTLE_ENDIAN, decode, "2^63"),
        bad(
            "count that wraps to 6",
            F4 + numbers(5, [3, (2**64 + 6) // 3 // 2, 2]) + LITTLE_ENDIAN + six,
            decode,
            "2^63",
        ),
        bad("empty, but 2^63 without the empty axis", F4 + numbers(5, [0, 2**61]) + LITTLE_ENDIAN, decode, "2^63"),
        bad("terabytes claimed", U1 + numbers(5, [2**42]) + block(15, b"abc"), truncated, "needs"),
        bad("payload one byte short", plain + block(15, SIX[:-1]), truncated, "needs 24 bytes, has 23"),
        bad("payload one byte long", plain + block(15, SIX + b"\0"), decode, "needs 24 bytes, has 25"),
        bad("no payload", plain, truncated, "needs 24 bytes, has 0"),
        bad("empty with data", F4 + numbers(5, [0]) + LITTLE_ENDIAN + block(15, b"\0"), decode, "needs 0 bytes, has 1"),
        bad("0-d with two elements", F4 + LITTLE_ENDIAN + block(15, SIX[:8]), decode, "needs 4 bytes, has 8"),
        bad("packed payload one byte short", I4 + numbers(5, [5]) + block(15, b"\1\2"), truncated, "needs 3 bytes"),
        bad("packed payload sized as if padded", I4 + numbers(5, [5]) + block(15, bytes(5)), decode, "needs 3 bytes"),
        bad(
            "padded payload sized as if packed",
            number(2, 4) + I4 + numbers(5, [5]) + block(15, bytes(3)),
            truncated,
            "needs 5 bytes",
        ),
        # strides
        bad(
            "one stride too few",
            F4 + numbers(5, [2, 3]) + numbers(6, [1]) + LITTLE_ENDIAN + six,
            decode,
            "1 strides for 2",
        ),
        bad(
            "one stride too many",
            F4 + numbers(5, [6]) + numbers(6, [6, 1]) + LITTLE_ENDIAN + six,
            decode,
            "2 strides for 1",
        ),
        bad("strides of a 0-d tensor", U1 + numbers(6, [1]) + block(15, b"a"), decode, "1 strides for 0"),
        bad("strides count of an empty tensor", U1 + numbers(5, [0]) + numbers(6, [1, 1]), decode, "2 strides for 1"),
        bytes_at("zero stride", [2], [0], 1, "strides"),
        bytes_at("zero stride claims terabytes", [2**40], [0], 1, "strides"),
        bytes_at("rows overlap", [2, 3], [2, 1], 5, "strides"),
        bytes_at("rows overlap by the last element only", [3, 4], [3, 1], 10, "strides"),
        bytes_at("equal strides", [2, 2], [1, 1], 3, "strides"),
        bytes_at("negative strides overlap", [2, 2], [-1, 1], 3, "strides", 1),
        bytes_at("lowest stride", [2], [-(2**63)], 1, "strides"),
        bytes_at("span of 2^63 bytes", [2, 2], [2**63 - 1, 1], 1, "strides"),
        bytes_at("slack before", [3], [-1], 4, "byte_offset", 3),
        bytes_at("slack after", [2, 3], [1, 2], 7, "needs 6 bytes, has 7"),
        bad(
            "payload ends within the strides",
            U1 + numbers(5, [2, 3]) + numbers(6, [5, 1]) + block(15, ramp(7)),
            truncated,
            "needs 8 bytes, has 7",
        ),
        bytes_at("slack where strides leave gaps", [2, 3], [5, 1], 10, "needs 8 bytes, has 10"),
        bytes_at("byte offset without a negative stride", [2, 3], [1, 2], 7, "byte_offset", 1),
        bytes_at("byte offset missing", [3], [-1], 3, "byte_offset"),
        bytes_at("byte offset past the end", [3], [-1], 3, "byte_offset", 3),
        bytes_at("byte offset of 2^64-1", [3], [-1], 3, "byte_offset", 2**64 - 1),
        bad("byte offset of a compact tensor", plain + number(7, 4) + block(15, bytes(4) + SIX), decode, "byte_offset"),
        bad("byte offset of an empty tensor", U1 + numbers(5, [0]) + number(7, 1), decode, "byte_offset"),
        bad(
            "byte offset in elements",
            F4 + numbers(5, [6]) + numbers(6, [-1]) + number(7, 5) + LITTLE_ENDIAN + six,
            decode,
            "byte_offset",
        ),
        bad(
            "packed with strides",
            I4 + numbers(5, [2, 2]) + numbers(6, [1, 2]) + block(15, b"\1\2"),
            decode,
            "row-major",
        ),
        bad(
            "packed with a negative stride",
            I4 + numbers(5, [4]) + numbers(6, [-1]) + block(15, b"\1\2"),
            decode,
            "row-major",
        ),
        # payload contents
        bad("bool byte 2", dtype_field(BOOL, 8) + numbers(5, [3]) + block(15, b"\0\1\2"), decode, "bool"),
        bad("bool byte 255", dtype_field(BOOL, 8) + block(15, b"\xff"), decode, "bool"),
        bad("bool byte 2 in a lane", dtype_field(BOOL, 8, 2) + block(15, b"\0\2"), decode, "bool"),
        bad(
            "bool byte 2 under a right checksum",
            dtype_field(BOOL, 8) + sum_field(b"\2") + block(15, b"\2"),
            decode,
            "bool",
        ),
        bad("spare bits set", I4 + numbers(5, [3]) + block(15, b"\x21\x13"), decode, "spare"),
        bad("spare bits set after lanes", dtype_field(UINT, 4, 3) + block(15, b"\x21\x83"), decode, "spare"),
        bad("wrong checksum", plain + sum_field(SIX[:-1]) + six, "checksum error", "checksum"),
        bad(
            "wrong checksum of bools",
            dtype_field(BOOL, 8) + sum_field(b"\0") + block(15, b"\1"),
            "checksum error",
            "checksum",
        ),
        bad("wrong checksum of nothing", U1 + numbers(5, [0]) + sum_field(b"\0"), "checksum error", "checksum"),
        bad("checksum zero", plain + tag(9, FIXED64) + bytes(8) + six, "checksum error", "checksum"),
        # padding and caps
        bad("padding not zero", plain + block(14, b"\0\1") + six, decode, "padding"),
        bad(
            "padding too long", [(plain + tag(14, LEN) + varint(16385), 1), (b"\0", 16385), (six, 1)], limit, "padding"
        ),
        bad(
            "header over 64 KiB",
            [(plain + tag(1000, LEN) + varint(65537 - len(plain) - 5), 1), (b"\1", 65537 - len(plain) - 5), (six, 1)],
            limit,
            "header",
        ),
        bad("header over 64 KiB of small fields", [(number(1000, 1), 22_000), (plain + six, 1)], limit, "header"),
        bad("header over 64 KiB behind the data", [(plain + six, 1), (number(1000, 1), 22_000)], limit, "header"),
        # wire format
        bad("tag longer than it needs to be", plain + b"\xc0\x80\x00\x01" + six, decode, "", parsed=False),
        bad("length longer than it needs to be", plain + tag(15, LEN) + b"\x98\x00" + SIX, decode, "", parsed=False),
        bad(
            "length of a sub-message longer than it needs to be",
            b"\x22\x86\x00" + F4[2:] + plain[8:] + six,
            decode,
            "",
            parsed=False,
        ),
        bad(
            "tag inside a sub-message longer than it needs to be",
            block(4, b"\x88\x00\x02" + F4[4:]) + plain[8:] + six,
            decode,
            "",
            parsed=False,
        ),
        bad("group", plain + tag(1000, GROUP) + tag(1000, GROUP_END) + six, decode, "group", parsed=False),
        bad(
            "group inside a sub-message",
            block(4, F4[2:] + tag(9, GROUP) + tag(9, GROUP_END)) + plain[8:] + six,
            decode,
            "group",
            parsed=False,
        ),
        bad("end of a group alone", plain + tag(1000, GROUP_END) + six, decode, "group", parsed=False),
        bad("wire type 6", plain + tag(1000, 6) + six, decode, "wire type", parsed=False),
        bad("wire type 7", plain + tag(1000, 7) + six, decode, "wire type", parsed=False),
        bad("field number 0", plain + b"\x00\x01" + six, decode, "field number", parsed=False),
        bad("field number 0 with data", plain + b"\x02\x01a" + six, decode, "field number", parsed=False),
        bad("field number 2^29", plain + varint(1 << 32) + b"\1" + six, decode, "field number", parsed=False),
        bad(
            "varint of 11 bytes",
            plain + tag(1000, VARINT) + b"\x80" * 10 + b"\x01" + six,
            decode,
            "varint",
            parsed=False,
        ),
        bad("tag of 11 bytes", plain + b"\x80" * 10 + b"\x01" + six, decode, "", parsed=False),
        bad(
            "varint of 11 bytes in the shape",
            F4 + block(5, b"\x86" + b"\x80" * 9 + b"\x00") + LITTLE_ENDIAN + six,
            decode,
            "varint",
            parsed=False,
        ),
        bad("shape ends inside a varint", F4 + block(5, b"\x86") + LITTLE_ENDIAN + six, truncated, "", parsed=False),
        bad("element type ends inside a field", block(4, F4[2:-1]) + plain[8:] + six, truncated, "", parsed=False),
        bad(
            "element type cut in the middle of a field",
            block(4, b"\x08") + block(4, b"\x02" + F4[4:]) + plain[8:] + six,
            truncated,
            "",
            parsed=False,
        ),
        bad("device of garbage", block(3, b"\xff") + plain + six, truncated, "", parsed=False),
        bad("version of garbage", block(1, b"\xff") + plain + six, truncated, "", parsed=False),
        # cut short
        bad("cut inside the payload", good[:-1], truncated, "needs 24 bytes, has 23", parsed=False),
        bad("cut behind the payload's length", good[:-24], truncated, "needs 24 bytes, has 0", parsed=False),
        bad("cut inside the payload's tag", good[:-25], truncated, "", parsed=False),
        bad("cut inside the checksum", good[: len(plain) + 5], truncated, "needs 8 bytes, has 4", parsed=False),
        bad("cut inside the element type", good[:4], truncated, "", parsed=False),
        bad("cut inside a tag", plain + six + b"\x80", truncated, "", parsed=False),
        bad("length of 2^63", plain + tag(15, LEN) + varint(2**63), truncated, "", parsed=False),
    ]


def write(path: Path, cases: list[dict[str, Any]]) -> None:
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


def main() -> int:
    paths = (HERE / "valid.json", HERE / "invalid.json")
    if "--force" not in sys.argv[1:] and any(path.exists() for path in paths):
        print("the vectors exist; --force replaces them", file=sys.stderr)
        return 1
    for path, cases in zip(paths, (valid_cases(), invalid_cases()), strict=True):
        write(path, cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
