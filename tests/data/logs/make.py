"""Make the logs of this folder, byte by byte after the specification of MCAP (https://mcap.dev/spec).

    python tests/data/logs/make.py --force

Nothing here uses the library or the `mcap` package. The logs are reviewed when they change and then frozen.

logs.json: for every log
    error       class of the error, in the contract's words; null if there is none
    tensors     in the order of log_time: topic, log_time and publish_time (nanoseconds, decimal strings), sequence, and
                the message in hex
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: E402
from hand_built_files import field, fixed, header_of, payload_sum_of  # noqa: E402

from dlpack_wire.v1 import dlpack_pb2  # noqa: E402

MAGIC = b"\x89MCAP0\r\n"
TENSOR, OTHER = 1, 2
SECOND = 1_000_000_000


class Tensor(NamedTuple):
    """A message of a log."""

    channel: int
    time_ns: int
    sequence: int
    message: bytes


def record(opcode: int, content: bytes) -> bytes:
    return struct.pack("<BQ", opcode, len(content)) + content


def string(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def message_of(payload: bytes, bits: int = 8, order: int = 0) -> bytes:
    header = header_of([len(payload) * 8 // bits], 1, bits, order) + fixed(9, payload_sum_of(payload))
    return header + field(15, payload)


def schemas() -> bytes:
    """The schema of tensors, and another one that readers pass over."""
    described = FileDescriptorSet(file=[])
    dlpack_pb2.DESCRIPTOR.CopyToProto(described.file.add())
    ours = string(b"dlpack_wire.v1.DLTensor") + string(b"protobuf") + string(described.SerializeToString())
    other = string(b"text") + string(b"jsonschema") + string(b"{}")
    return record(3, struct.pack("<H", TENSOR) + ours) + record(3, struct.pack("<H", OTHER) + other)


def channels(names: dict[int, bytes]) -> bytes:
    made = b""
    for number, name in names.items():
        schema, encoding = (OTHER, b"json") if name == b"notes" else (TENSOR, b"protobuf")
        made += record(4, struct.pack("<HH", number, schema) + string(name) + string(encoding) + string(b""))
    return made


NAMES = {1: b"cam/left", 2: b"cam/\xc3\xa9", 3: b"notes"}


def log(chunks: list[list[Tensor]], *, wrong_crc: bool = False) -> bytes:
    """A finalised log of uncompressed chunks, each with the schemas and channels before its messages."""
    out = MAGIC + record(1, string(b"") + string(b"made by hand"))
    indexes = b""
    counts: dict[int, int] = {}
    times = [t.time_ns for chunk in chunks for t in chunk]
    for chunk in chunks:
        content = schemas() + channels(NAMES)
        places: dict[int, list[tuple[int, int]]] = {}
        for t in chunk:
            places.setdefault(t.channel, []).append((t.time_ns, len(content)))
            counts[t.channel] = counts.get(t.channel, 0) + 1
            head = struct.pack("<HIQQ", t.channel, t.sequence, t.time_ns, t.time_ns)
            content += record(5, head + t.message)
        first, last = min(t.time_ns for t in chunk), max(t.time_ns for t in chunk)
        begin = len(out)
        crc = crc32(content) ^ wrong_crc
        head = struct.pack("<QQQI", first, last, len(content), crc) + string(b"")
        out += record(6, head + struct.pack("<Q", len(content)) + content)
        length, offsets = len(out) - begin, {}
        index_begin = len(out)
        for channel, entries in places.items():
            offsets[channel] = len(out)
            packed = b"".join(struct.pack("<QQ", *entry) for entry in entries)
            out += record(7, struct.pack("<H", channel) + string(packed))
        mapped = b"".join(struct.pack("<HQ", *item) for item in offsets.items())
        fixed_part = struct.pack("<QQQQ", first, last, begin, length) + string(mapped)
        sizes = struct.pack("<Q", len(out) - index_begin) + string(b"") + struct.pack("<QQ", len(content), len(content))
        indexes += record(8, fixed_part + sizes)
    out += record(15, struct.pack("<I", 0))
    statistics = struct.pack("<QHIIII", len(times), 2, len(NAMES), 0, 0, len(chunks))
    statistics += struct.pack("<QQ", min(times, default=0), max(times, default=0))
    statistics += string(b"".join(struct.pack("<HQ", *item) for item in counts.items()))
    summary = schemas() + channels(NAMES) + record(11, statistics) + indexes
    # The footer's CRC covers the summary and the footer's own fields before it.
    footer = struct.pack("<QQ", len(out), 0)
    covered = summary + struct.pack("<BQ", 2, 20) + footer
    return out + covered + struct.pack("<I", crc32(covered)) + MAGIC


TENSORS = [
    Tensor(1, 3 * SECOND, 1, message_of(b"\1\2\3\4")),
    Tensor(2, 1 * SECOND, 1, message_of(b"\0\1\0\2", 16, 2)),
    Tensor(3, 2 * SECOND, 7, b'{"text": "passed over"}'),
    Tensor(1, 2 * SECOND, 2, message_of(b"")),
    Tensor(2, 4 * SECOND, 2**32 - 1, message_of(b"\x09")),
]


def logs() -> dict[str, tuple[bytes, dict[str, Any]]]:
    whole = log([TENSORS[:3], TENSORS[3:]])
    listed = [
        {
            "topic": NAMES[t.channel].decode(),
            "log_time": str(t.time_ns),
            "publish_time": str(t.time_ns),
            "sequence": t.sequence,
            "message": t.message.hex(),
        }
        for t in sorted(TENSORS, key=lambda t: t.time_ns)
        if t.channel != 3
    ]
    damaged = [TENSORS[0]._replace(message=TENSORS[0].message[:-1] + b"\5")]
    return {
        "valid-two-topics.mcap": (whole, {"error": None, "tensors": listed}),
        "valid-no-tensors.mcap": (log([[TENSORS[2]]]), {"error": None, "tensors": []}),
        "valid-no-messages.mcap": (log([]), {"error": None, "tensors": []}),
        "invalid-not-finalised.mcap": (whole[: whole.index(b"\x0f\4\0\0\0\0\0\0\0")], {"error": "decode error"}),
        "invalid-chunk-flipped.mcap": (log([TENSORS], wrong_crc=True), {"error": "checksum error"}),
        "invalid-tensor-flipped.mcap": (log([damaged]), {"error": "checksum error"}),
    }


def main() -> int:
    made = logs()
    listed = json.dumps({name: said for name, (_, said) in made.items()}, indent=1) + "\n"
    contents = {**{name: content for name, (content, _) in made.items()}, "logs.json": listed.encode()}
    if "--force" in sys.argv[1:]:
        for name, content in contents.items():
            (HERE / name).write_bytes(content)
        return 0
    different = [n for n, c in contents.items() if not (HERE / n).is_file() or (HERE / n).read_bytes() != c]
    for name in different:
        print(f"differs: {name}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
