"""Make service.json: calls to a server, and what it must answer.

    python tests/data/transcripts/make.py --force

Nothing here uses the library. The transcripts are reviewed when they change and then frozen: they bind servers in every
language, so a difference is a change of the contract. proto/README.md describes the form.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from hand_built_files import (  # noqa: E402
    BLOCK,
    field,
    fixed,
    header_of,
    names_of,
    number,
    payload_sum_of,
    sums_of_blocks,
    text,
    xxh3,
)

TRANSCRIPTS: list[dict[str, Any]] = []
A, B = b"\1\2\3\4", b"\5\6\7\x08\x09"
LARGE = bytes(3 * BLOCK) + A  # four blocks
TWO_BLOCKS = bytes(BLOCK) + B
EMPTY_SUM = 0x2D06800538D394C2
NOTHING: dict[str, Any] = {}


def transcript(name: str, *steps: dict[str, Any]) -> None:
    TRANSCRIPTS.append({"name": name, "steps": list(steps)})


def step(
    method: str, *messages: Any, status: str | None = None, reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """A step; a message is its bytes, or a list of bytes and references to earlier answers."""
    send = [written(message) for message in messages]
    expected = status or ("OK" if reason is None else "INVALID_ARGUMENT")
    return {"method": method, "send": send, "status": expected, "reason": reason, **more}


def refused(method: str, *messages: Any, reason: str, status: str = "INVALID_ARGUMENT") -> dict[str, Any]:
    return step(method, *messages, status=status, reason=reason)


def written(message: Any) -> list[Any]:
    parts = [message] if isinstance(message, bytes) else message
    return [part if isinstance(part, dict) else shortened(part) for part in parts]


def shortened(content: bytes) -> Any:
    """Bytes in hex, or as a list of [hex, times] if they have long runs of zeros."""
    runs = re.split(rb"(\0{1000,})", content)
    if len(runs) == 1:
        return content.hex()
    return [["00", len(run)] if i % 2 else [run.hex(), 1] for i, run in enumerate(runs) if run]


def earlier(name: str, field_number: int) -> dict[str, Any]:
    """A field of a request whose value is one that an earlier answer set."""
    return {"field": field_number, "value": name}


# --- messages ---------------------------------------------------------------------------------------------------------


def record(name: str, payload: bytes, header: bytes | None = None, aliases: Sequence[str] = ()) -> bytes:
    """A TensorRecord with a header alone."""
    header = header_of([len(payload)]) if header is None else header
    return names_of(name, aliases) + field(15, header)


def stored_record(name: str, payload: bytes, header: bytes | None = None) -> bytes:
    """A TensorRecord with its payload, as Store takes it."""
    header = header_of([len(payload)]) if header is None else header
    return names_of(name) + field(15, header + (field(15, payload) if payload else b""))


def chunk(
    payload: bytes, begin: int = 0, end: int | None = None, *, tensor: int = 0, sums: Sequence[int] | None = None
) -> bytes:
    """A Chunk of a payload, from one of its blocks on."""
    data = payload[begin:end]
    sums = sums_of_blocks(data) if sums is None else sums
    content = number(1, tensor) if tensor else b""
    content += number(2, begin) if begin else b""
    content += field(3, b"".join(struct.pack("<Q", s) for s in sums)) if sums else b""
    return content + field(15, data)


def start(
    name: str,
    *,
    upload: int = 0,
    records: int = 1,
    size: int = 0,
    resume: bool = False,
    if_generation: int | None = None,
    more: bytes = b"",
) -> bytes:
    """The first field of a Put."""
    content = field(1, name.encode()) if name else b""
    content += field(2, upload_id(upload)) if upload else b""
    content += number(3, if_generation) if if_generation is not None else b""
    content += more
    content += number(5, records) if records else b""
    content += number(6, size) if size else b""
    content += number(7, 1) if resume else b""
    return field(1, content)


def put_record(*arguments: Any, **more: Any) -> bytes:
    return field(2, record(*arguments, **more))


def put_chunk(*arguments: Any, **more: Any) -> bytes:
    return field(15, chunk(*arguments, **more))


FINISH = number(3, 1)


def upload_id(upload: int) -> bytes:
    return upload.to_bytes(16, "big")


def by_id(upload: int) -> bytes:
    """A GetUploadStatusRequest or DiscardUploadRequest."""
    return field(1, upload_id(upload))


def named(name: str) -> bytes:
    """A request whose first field is a name."""
    return field(1, name.encode())


def store(name: str, *records: bytes, upload: int = 0, if_generation: int | None = None) -> bytes:
    content = named(name) + (field(2, upload_id(upload)) if upload else b"")
    content += number(3, if_generation) if if_generation is not None else b""
    return content + b"".join(field(15, r) for r in records)


def put(name: str, payload: bytes = A, **more: Any) -> dict[str, Any]:
    """A whole Put that succeeds."""
    messages = [start(name, size=len(payload), **more), put_record("", payload)]
    messages += [put_chunk(payload, at, at + 2 * BLOCK) for at in range(0, len(payload), 2 * BLOCK)]
    return step("Put", *messages, FINISH, answer={"generation": {"set": "g"}, "already_committed": False})


def status(upload: int, **fields: Any) -> dict[str, Any]:
    """A GetUploadStatus, repeated until the answer is this one: a lost connection takes a moment to be noticed."""
    return step("GetUploadStatus", by_id(upload), answer=fields, until=True)


def receiving(upload: int, payload: bytes, offset: int, tensor: int = 0) -> dict[str, Any]:
    held = xxh3(b"".join(struct.pack("<Q", s) for s in sums_of_blocks(payload[:offset])))
    position = {"tensor_index": str(tensor), "offset": str(offset), "held_sum": str(held)}
    return status(upload, state="RECEIVING", **position)


def got(name: str, payload: bytes, request: bytes = b"", **header: Any) -> dict[str, Any]:
    """A Get of a bare tensor."""
    expected = {"name": "", "tensor": {"shape": [str(len(payload))], **header}}
    payloads = {"0": ["0", shortened(payload)]} if payload else {}
    return step("Get", named(name) + request, records=[expected], payloads=payloads)


def missing(name: str) -> dict[str, Any]:
    return refused("Stat", named(name), status="NOT_FOUND", reason="OBJECT_NOT_FOUND")


# --- the transcripts --------------------------------------------------------------------------------------------------


def server_info() -> None:
    methods = [
        "GetServerInfo",
        "Store",
        "Fetch",
        "Put",
        "DiscardUpload",
        "GetUploadStatus",
        "Get",
        "Stat",
        "List",
        "Delete",
        "Publish",
        "Subscribe",
    ]
    limits = {"inline_payload_bytes": str(BLOCK), "max_chunk_bytes": str(3 * BLOCK), "max_tensor_count": "65536"}
    transcript(
        "what a server says of itself",
        step(
            "GetServerInfo",
            b"",
            answer={**limits, "methods": {"any order": methods}, "contract_revision": "2", "features": []},
        ),
        step("GetServerInfo", number(99, 1) + field(1000, b"later"), answer=limits),
    )


def stores() -> None:
    transcript(
        "store, and fetch",
        step("Store", store("s/1", stored_record("", A)), answer={"generation": {"set": "g"}}),
        step(
            "Fetch",
            named("s/1"),
            answer={
                "object": {"name": "s/1", "generation": {"is": "g"}, "tensor_count": "1", "payload_bytes": "4"},
                "records": [{"name": "", "tensor": {"shape": ["4"], "data_sum": str(payload_sum_of(A))}}],
                "complete": True,
                "chunks": [{"tensor_index": "0", "offset": "0", "block_sums": [str(xxh3(A))], "data": A.hex()}],
            },
        ),
        step("Store", store("s/1", stored_record("", B)), answer={"generation": {"above": "g"}}),
        got("s/1", B),
    )
    transcript(
        "store a set, with a tensor that has no payload",
        step("Store", store("s/2", stored_record("a", A), stored_record("e", b""), stored_record("b", B))),
        step(
            "Get",
            named("s/2"),
            records=[{"name": "a"}, {"name": "e", "tensor": {"data_sum": str(EMPTY_SUM)}}, {"name": "b"}],
            payloads={"0": ["0", A.hex()], "2": ["0", B.hex()]},
        ),
    )
    committed = {"generation": {"is": "g"}, "already_committed": True}
    transcript(
        "a repeated store of one upload id changes nothing",
        step("Store", store("s/3", stored_record("", A), upload=301), answer={"generation": {"set": "g"}}),
        step("Store", store("s/3", stored_record("", B), upload=301), answer=committed),
        refused("Store", store("s/other", stored_record("", B), upload=301), reason="INVALID_REQUEST"),
        got("s/3", A),
        missing("s/other"),
    )
    mismatch = {"status": "FAILED_PRECONDITION", "reason": "GENERATION_MISMATCH"}
    transcript(
        "preconditions of store and delete",
        step("Store", store("s/4", stored_record("", A), if_generation=0), answer={"generation": {"set": "g"}}),
        refused("Store", store("s/4", stored_record("", B), if_generation=0), **mismatch),
        got("s/4", A),
        step(
            "Store",
            [store("s/4"), earlier("g", 3), field(15, stored_record("", B))],
            answer={"generation": {"set": "h"}},
        ),
        refused("Delete", [named("s/4"), earlier("g", 2)], **mismatch),
        step("Delete", [named("s/4"), earlier("h", 2)], answer={"generation": {"is": "h"}}),
        missing("s/4"),
        refused("Delete", named("s/4"), status="NOT_FOUND", reason="OBJECT_NOT_FOUND"),
        refused("Delete", named("s/4") + number(2, 0), status="NOT_FOUND", reason="OBJECT_NOT_FOUND"),
        step("Store", store("s/4", stored_record("", A)), answer={"generation": {"above": "h"}}),
    )
    one = header_of([4], payload_sum=1)
    transcript(
        "stores that are refused",
        refused("Store", store("", stored_record("", A)), reason="INVALID_NAME"),
        refused("Store", store("a\0b", stored_record("", A)), reason="INVALID_NAME"),
        refused("Store", store("n" * 4097, stored_record("", A)), reason="INVALID_NAME"),
        refused("Store", field(1, b"\xff") + field(15, stored_record("", A)), reason="INVALID_REQUEST"),
        refused("Store", store("s/5"), reason="INVALID_REQUEST"),
        refused("Store", store("s/5", stored_record("a", A), stored_record("a", B)), reason="INVALID_NAME"),
        refused("Store", store("s/5", stored_record("a", A), stored_record("", B)), reason="INVALID_NAME"),
        refused("Store", store("s/5", stored_record("", A, one)), status="DATA_LOSS", reason="CHECKSUM_MISMATCH"),
        refused("Store", store("s/5", stored_record("", A, header_of([5]))), reason="INVALID_TENSOR"),
        refused("Store", store("s/5", stored_record("", A, header_of([4], flags=8))), reason="INVALID_TENSOR"),
        refused("Store", store("s/5", stored_record("", A, header_of([4]) + number(10, 1))), reason="INVALID_TENSOR"),
        refused("Store", store("s/5", number(4, 1) + stored_record("", A)), reason="INVALID_TENSOR"),
        refused("Store", store("s/5", stored_record("", b"\2", header_of([1], 6))), reason="INVALID_TENSOR"),
        refused("Store", store("s/5", names_of("a")), reason="INVALID_TENSOR"),
        refused("Store", store("s/5", stored_record("", bytes(BLOCK + 1))), reason="INVALID_REQUEST"),
        refused("Store", store("s/5", stored_record("", A)) + b"\x0b\x0c", reason="INVALID_REQUEST"),
        refused("Store", named("s/5") + field(2, b"short") + field(15, stored_record("", A)), reason="INVALID_REQUEST"),
        missing("s/5"),
    )
    reverse = field(15, stored_record("", A)) + named("s/6")
    with_file_fields = fixed(14, 12345) + field(15, header_of([4]) + field(14, bytes(9)) + field(15, A))
    transcript(
        "stores in other forms",
        step("Store", reverse + number(99, 7)),
        got("s/6", A),
        step("Store", named("s/7") + field(15, with_file_fields)),
        got("s/7", A),
    )


def puts() -> None:
    last = {"generation": {"set": "g"}, "already_committed": False}
    large = [put_chunk(LARGE, 0, 2 * BLOCK), put_chunk(LARGE, 2 * BLOCK)]
    transcript("put, one field a message", put("p/1", LARGE), got("p/1", LARGE))
    transcript(
        "put in one message",
        step("Put", start("p/2", size=4) + put_record("", A) + FINISH + put_chunk(A), answer=last),
        got("p/2", A),
    )
    transcript(
        "put a set: an empty tensor has no chunk, and what follows finish is ignored",
        step(
            "Put",
            start("p/3", records=3, size=9) + put_record("a", A),
            put_record("e", b"") + put_record("b", B, aliases=["tied"]),
            put_chunk(A),
            put_chunk(B, tensor=2),
            FINISH,
            put_chunk(A),
            answer=last,
        ),
        step(
            "Get",
            named("p/3") + field(2, b"tied"),
            records=[{"name": "b", "aliases": ["tied"]}],
            payloads={"0": ["0", B.hex()]},
        ),
    )
    transcript(
        "put tensors without a payload",
        step("Put", start("p/4", records=2), put_record("a", b""), put_record("b", b""), FINISH, answer=last),
        step("Get", named("p/4"), records=[{"name": "a"}, {"name": "b"}], payloads={}),
    )
    begin = [start("p/5", size=len(LARGE)), put_record("", LARGE)]
    order: dict[str, Any] = {"reason": "CHUNK_OUT_OF_ORDER"}
    invalid: dict[str, Any] = {"reason": "INVALID_REQUEST"}
    incomplete: dict[str, Any] = {"status": "ABORTED", "reason": "UPLOAD_INCOMPLETE"}
    damaged: dict[str, Any] = {"status": "DATA_LOSS", "reason": "CHECKSUM_MISMATCH"}
    wrong_sums = [1, *sums_of_blocks(LARGE[BLOCK : 2 * BLOCK])]
    stated = put_record("", LARGE, header_of([len(LARGE)], payload_sum=1))
    transcript(
        "puts that are refused leave nothing",
        refused("Put", **invalid),
        refused("Put", put_record("", A), **invalid),
        refused("Put", *begin, start("p/5"), **invalid),
        refused("Put", start("p/5", records=0, size=4), **invalid),
        refused("Put", start("p/5", size=5), put_record("", A), put_chunk(A), FINISH, **invalid),
        refused("Put", start("p/5", size=4), put_record("", A), put_record("b", B), **invalid),
        refused("Put", start("p/5", records=2, size=9), put_record("a", A), put_chunk(A), **order),
        refused("Put", start("p/5", records=2, size=9), put_record("a", A), FINISH, **incomplete),
        refused("Put", *begin, put_chunk(LARGE, BLOCK, 2 * BLOCK), **order),
        refused("Put", *begin, put_chunk(LARGE, 0, BLOCK, tensor=1), **order),
        refused("Put", *begin, field(15, chunk(b"")), **order),
        refused("Put", *begin, put_chunk(LARGE + B, 0, BLOCK), put_chunk(bytes(4 * BLOCK), BLOCK, 4 * BLOCK), **order),
        refused("Put", *begin, put_chunk(LARGE, 0, BLOCK - 1), **invalid),
        refused("Put", *begin, put_chunk(LARGE, 0, 2 * BLOCK, sums=sums_of_blocks(LARGE[:BLOCK])), **invalid),
        refused("Put", *begin, put_chunk(LARGE, 0, BLOCK, sums=[]), **invalid),
        refused("Put", *begin, put_chunk(LARGE, 0, 2 * BLOCK, sums=wrong_sums), **damaged),
        refused("Put", begin[0], stated, *large, FINISH, **damaged),
        refused("Put", start("p/5", size=8), put_record("", A), put_chunk(A) + put_chunk(A), **invalid),
        refused("Put", *begin, *large, **incomplete),
        refused("Put", *begin, large[0], FINISH, **incomplete),
        refused("Put", start("p/5", size=4), put_record("", A, header_of([4], code=3)), reason="INVALID_TENSOR"),
        refused("Put", start("p/\0", size=4), put_record("", A), reason="INVALID_NAME"),
        missing("p/5"),
    )
    bool_header = header_of([len(LARGE)], 6)
    transcript(
        "values that are none of the type are refused",
        refused("Put", begin[0], put_record("", LARGE, bool_header), *large, FINISH, reason="INVALID_TENSOR"),
        missing("p/5"),
    )
    mismatch: dict[str, Any] = {"status": "FAILED_PRECONDITION", "reason": "GENERATION_MISMATCH"}
    transcript(
        "preconditions of put",
        put("p/6", if_generation=0),
        refused("Put", start("p/6", size=4, if_generation=0), put_record("", A), put_chunk(A), FINISH, **mismatch),
        refused(
            "Put", start("p/7", size=4, if_generation=1 << 60), put_record("", A), put_chunk(A), FINISH, **mismatch
        ),
        missing("p/7"),
        step(
            "Put",
            start("p/8", size=4, if_generation=0, upload=801),
            put_record("", A),
            call="slow",
            end="open",
        ),
        receiving(801, A, 0),
        step("Store", store("p/8", stored_record("", B))),
        step("Put", put_chunk(A), FINISH, call="slow", **mismatch),
        status(801, state="UNKNOWN"),
        got("p/8", B),
    )


def resumed() -> None:
    begin = [start("r/1", upload=1, size=len(LARGE)), put_record("", LARGE)]
    first, second = put_chunk(LARGE, 0, 2 * BLOCK), put_chunk(LARGE, 2 * BLOCK)
    committed = {"generation": {"is": "g"}, "already_committed": True}
    done: dict[str, Any] = {"answer": {"generation": {"set": "g"}, "already_committed": False}}
    order: dict[str, Any] = {"reason": "CHUNK_OUT_OF_ORDER"}
    invalid: dict[str, Any] = {"reason": "INVALID_REQUEST"}
    unknown: dict[str, Any] = {"status": "NOT_FOUND", "reason": "UPLOAD_NOT_FOUND"}
    incomplete: dict[str, Any] = {"status": "ABORTED", "reason": "UPLOAD_INCOMPLETE"}
    damaged: dict[str, Any] = {"status": "DATA_LOSS", "reason": "CHECKSUM_MISMATCH"}

    def resume(upload: int, *messages: bytes, name: str = "", **more: Any) -> dict[str, Any]:
        return step("Put", start(name, upload=upload, records=0, resume=True), *messages, **more)

    transcript(
        "a lost connection, resumed",
        status(1, state="UNKNOWN"),
        step("Put", *begin, first, call="lost", end="open"),
        receiving(1, LARGE, 2 * BLOCK),
        step("Put", call="lost", end="cancel"),
        receiving(1, LARGE, 2 * BLOCK),
        missing("r/1"),
        resume(1, first, **order),
        receiving(1, LARGE, 2 * BLOCK),
        resume(1, put_record("", LARGE), **invalid),
        status(1, state="UNKNOWN"),
    )
    stated = {"if_generation": number(3, 1), "metadata": field(4, text("k", "v")), "sizes": number(5, 1) + number(6, 1)}
    transcript(
        "a resumed upload keeps what was first stated, and a start that is refused leaves it",
        step("Put", start("r/11", upload=11, size=len(LARGE)), put_record("", LARGE), first, **incomplete),
        *(
            refused("Put", field(1, field(2, upload_id(11)) + more + number(7, 1)), second, FINISH, **invalid)
            for more in stated.values()
        ),
        resume(11, second, FINISH, name="r/other", **invalid),
        refused("Put", start("r/11", upload=11, records=0, size=4), **invalid),
        refused("Put", start("a\0b", upload=11, size=4), put_record("", A), reason="INVALID_NAME"),
        receiving(11, LARGE, 2 * BLOCK),
        resume(11, second, FINISH, **done),
    )
    transcript(
        "resumed to the end, and repeated",
        step("Put", start("r/2", upload=2, size=len(LARGE)), put_record("", LARGE), first, **incomplete),
        receiving(2, LARGE, 2 * BLOCK),
        resume(2, second, FINISH, name="r/2", **done),
        status(2, state="COMMITTED", generation={"is": "g"}),
        got("r/2", LARGE),
        resume(2, answer=committed),
        resume(2, name="r/2", answer=committed),
        resume(2, name="r/other", **invalid),
        step("Put", start("r/2", upload=2, size=4), put_record("", A), answer=committed),
        refused("Put", start("r/other", upload=2, size=4), put_record("", A), **invalid),
        got("r/2", LARGE),
        refused("DiscardUpload", by_id(2), **unknown),
        got("r/2", LARGE),
    )
    transcript(
        "an upload stays where it was after a bad chunk",
        step(
            "Put", start("r/3", upload=3, size=len(LARGE)), put_record("", LARGE), first, second[:-4] + B[:4], **damaged
        ),
        receiving(3, LARGE, 2 * BLOCK),
        resume(3, put_chunk(LARGE, 3 * BLOCK), **order),
        receiving(3, LARGE, 2 * BLOCK),
        resume(3, FINISH, **incomplete),
        receiving(3, LARGE, 2 * BLOCK),
        resume(3, second, **incomplete),
        status(3, state="RECEIVING", tensor_index="1", offset="0", held_sum=str(EMPTY_SUM)),
        resume(3, FINISH, **done),
        got("r/3", LARGE),
    )
    transcript(
        "uploads that are gone after an error",
        step(
            "Put",
            start("r/4", upload=4, size=len(LARGE)),
            put_record("", LARGE),
            first,
            put_chunk(LARGE, 2 * BLOCK, sums=[]),
            **invalid,
        ),
        status(4, state="UNKNOWN"),
        resume(4, second, **unknown),
        step("Put", start("r/4", upload=5, records=2, size=9), put_record("a", A), **incomplete),
        status(5, state="UNKNOWN"),
        missing("r/4"),
    )
    transcript(
        "a start without resume begins anew",
        step("Put", start("r/5", upload=6, size=len(LARGE)), put_record("", LARGE), first, **incomplete),
        receiving(6, LARGE, 2 * BLOCK),
        step("Put", start("r/6", upload=6, size=5), put_record("", B), **incomplete),
        receiving(6, B, 0),
        resume(6, put_chunk(B), FINISH, **done),
        got("r/6", B),
        missing("r/5"),
    )
    transcript(
        "resuming between tensors, past an empty one",
        step(
            "Put",
            start("r/7", upload=7, records=3, size=4 + len(TWO_BLOCKS)),
            put_record("a", A) + put_record("e", b"") + put_record("b", TWO_BLOCKS),
            put_chunk(A),
            **incomplete,
        ),
        status(7, state="RECEIVING", tensor_index="2", offset="0", held_sum=str(EMPTY_SUM)),
        resume(7, put_chunk(TWO_BLOCKS, 0, BLOCK, tensor=2), **incomplete),
        receiving(7, TWO_BLOCKS, BLOCK, tensor=2),
        resume(7, put_chunk(TWO_BLOCKS, BLOCK, tensor=2), FINISH, **done),
        step(
            "Get",
            named("r/7"),
            records=[{"name": "a"}, {"name": "e"}, {"name": "b"}],
            payloads={"0": ["0", A.hex()], "2": ["0", shortened(TWO_BLOCKS)]},
        ),
    )
    busy: dict[str, Any] = {"status": "FAILED_PRECONDITION", "reason": "UPLOAD_IN_PROGRESS"}
    transcript(
        "one call at a time sends an upload, and another may drop it",
        step("Put", start("r/8", upload=8, size=len(LARGE)), put_record("", LARGE), first, call="first", end="open"),
        receiving(8, LARGE, 2 * BLOCK),
        refused("Put", start("r/8", upload=8, size=4), put_record("", A), **busy),
        resume(8, second, **busy),
        refused("Store", store("r/8", stored_record("", A), upload=8), **busy),
        step("DiscardUpload", by_id(8), answer=NOTHING),
        step("Put", call="first", **incomplete),
        status(8, state="UNKNOWN"),
        refused("DiscardUpload", by_id(8), **unknown),
        missing("r/8"),
    )
    transcript(
        "an idle upload is dropped",
        step("Put", start("r/9", upload=9, size=len(LARGE)), put_record("", LARGE), first, **incomplete),
        step("DiscardUpload", by_id(9), answer=NOTHING),
        status(9, state="UNKNOWN"),
        resume(9, second, **unknown),
    )
    transcript(
        "upload ids that are malformed or missing",
        refused("GetUploadStatus", field(1, b"short"), **invalid),
        refused("GetUploadStatus", b"", **invalid),
        refused("DiscardUpload", field(1, bytes(17)), **invalid),
        refused("Put", field(1, named("r/10") + field(2, b"short") + number(5, 1) + number(6, 4)), **invalid),
        refused("Put", start("r/10", records=0, resume=True), **invalid),
        refused("Put", start("", upload=1 << 100, records=0, resume=True), **unknown),
    )


def gets() -> None:
    three = store("g/1", stored_record("a", A), stored_record("e", b""), stored_record("b", B))
    a, b = {"name": "a"}, {"name": "b"}
    lost: dict[str, Any] = {"status": "NOT_FOUND", "reason": "OBJECT_NOT_FOUND"}
    invalid: dict[str, Any] = {"reason": "INVALID_REQUEST"}
    outside: dict[str, Any] = {"status": "OUT_OF_RANGE", "reason": "OUT_OF_RANGE"}
    transcript(
        "tensors of a set",
        step("Store", three),
        step("Get", named("g/1") + field(2, b"b"), records=[b], payloads={"0": ["0", B.hex()]}),
        step(
            "Get",
            named("g/1") + field(2, b"b") + field(2, b"a") + field(2, b"b"),
            records=[b, a, b],
            payloads={"0": ["0", B.hex()], "1": ["0", A.hex()], "2": ["0", B.hex()]},
        ),
        refused("Get", named("g/1") + field(2, b"none"), status="NOT_FOUND", reason="TENSOR_NOT_FOUND"),
        refused("Fetch", named("g/1") + field(2, b"none"), status="NOT_FOUND", reason="TENSOR_NOT_FOUND"),
        refused("Get", named("g/none"), **lost),
        refused("Fetch", named("g/none"), **lost),
        refused("Get", named(""), reason="INVALID_NAME"),
    )
    transcript(
        "from a position on",
        put("g/2", LARGE),
        *(
            step(
                "Get",
                named("g/2") + (number(6, at) if at else b""),
                records=[{"name": ""}],
                payloads={"0": [str(at), shortened(LARGE[at:])]},
            )
            for at in (0, BLOCK, 3 * BLOCK)
        ),
        step("Get", named("g/2") + number(6, len(LARGE)), records=[{"name": ""}], payloads={}),
        step("Get", named("g/2") + number(5, 1), records=[{"name": ""}], payloads={}),
        refused("Get", named("g/2") + number(6, 1), **invalid),
        refused("Get", named("g/2") + number(6, len(LARGE) + 1), **outside),
        refused("Get", named("g/2") + number(6, 4 * BLOCK), **outside),
        refused("Get", named("g/2") + number(5, 2), **outside),
        refused("Get", named("g/2") + number(5, 1) + number(6, BLOCK), **outside),
        step("Get", named("g/2") + number(7, 1), records=[{"name": ""}], payloads={"0": ["0", shortened(LARGE)]}),
    )
    transcript(
        "generations",
        step("Store", store("g/3", stored_record("", A)), answer={"generation": {"set": "old"}}),
        step("Get", [named("g/3"), earlier("old", 3)], records=[{"name": ""}], payloads={"0": ["0", A.hex()]}),
        step("Store", store("g/3", stored_record("", B))),
        refused("Get", [named("g/3"), earlier("old", 3)], status="FAILED_PRECONDITION", reason="GENERATION_MISMATCH"),
    )
    total = str(len(LARGE))
    transcript(
        "fetch gives the first blocks of a large object",
        put("g/4", LARGE),
        step(
            "Fetch",
            named("g/4"),
            answer={
                "object": {"generation": {"is": "g"}, "payload_bytes": total},
                "records": [{"tensor": {"shape": [total], "data_sum": str(payload_sum_of(LARGE))}}],
                "complete": False,
                "chunks": [{"tensor_index": "0", "offset": "0", "data": shortened(LARGE[:BLOCK])}],
            },
        ),
    )
    transcript(
        "stat and its pages",
        step("Store", three.replace(b"g/1", b"g/5"), answer={"generation": {"set": "g"}}),
        step(
            "Stat",
            named("g/5"),
            answer={
                "object": {"generation": {"is": "g"}, "tensor_count": "3", "payload_bytes": "9"},
                "records": [a, {"name": "e"}, b],
                "next_record": "0",
            },
        ),
        step("Stat", named("g/5") + number(3, 2), answer={"records": [a, {"name": "e"}], "next_record": "2"}),
        step("Stat", named("g/5") + number(2, 2) + number(3, 2), answer={"records": [b], "next_record": "0"}),
        step("Stat", named("g/5") + number(2, 3), answer={"records": [], "next_record": "0"}),
        step("Stat", named("g/5") + number(2, 1 << 63), answer={"records": [], "next_record": "0"}),
    )


def slices() -> None:
    def selected(*selections: bytes) -> bytes:
        return b"".join(field(4, s) for s in selections)

    def bounds(start: int | None, stop: int | None, step: int | None) -> bytes:
        values = enumerate((start, stop, step), 1)
        return field(2, b"".join(number(i, v & (1 << 64) - 1) for i, v in values if v is not None))

    def index(i: int) -> bytes:
        return number(1, i & (1 << 64) - 1)

    steps = []
    for size in (0, 1, 5):
        payload = bytes(range(size))
        steps.append(step("Store", store(f"l/{size}", stored_record("", payload))))
        choices = (None, -2, 1, 9)
        for start, stop, stride in product(choices, choices, (None, 2, -1, -3)):
            steps.append(got(f"l/{size}", payload[start:stop:stride], selected(bounds(start, stop, stride))))
    ends = (-(1 << 63), (1 << 63) - 1)
    for start, stop, stride in product(ends, ends, ends):
        steps.append(got("l/5", bytes(range(5))[start:stop:stride], selected(bounds(start, stop, stride))))
    transcript("ranges over 0, 1 and 5 elements", *steps)

    rows = [struct.pack(">3H", *(10 * i + j for j in range(3))) for i in range(4)]
    header = header_of([4, 3], 1, 16, 2)
    big: dict[str, Any] = {"data_sum": None, "byte_order": "BYTE_ORDER_BIG_ENDIAN"}

    def part(payload: bytes, shape: list[int], *selections: bytes) -> dict[str, Any]:
        tensor = {**big, "shape": [str(n) for n in shape], "strides": []}
        payloads = {"0": ["0", payload.hex()]} if payload else {}
        return step("Get", named("l/m") + selected(*selections), records=[{"tensor": tensor}], payloads=payloads)

    outside: dict[str, Any] = {"status": "OUT_OF_RANGE", "reason": "OUT_OF_RANGE"}
    invalid: dict[str, Any] = {"reason": "INVALID_REQUEST"}
    transcript(
        "parts of a big-endian matrix",
        step("Store", store("l/m", stored_record("", b"".join(rows), header))),
        part(rows[1], [3], index(1)),
        part(rows[3], [3], index(-1)),
        part(rows[3] + rows[1], [2, 3], bounds(None, None, -2)),
        part(b"".join(row[4:6] for row in rows), [4], field(2, b""), index(2)),
        part(rows[2][2:4], [], index(2), index(1)),
        part(b"", [0, 3], bounds(2, 2, None)),
        refused("Get", named("l/m") + selected(index(4)), **outside),
        refused("Get", named("l/m") + selected(index(-5)), **outside),
        refused("Get", named("l/m") + selected(index(-(1 << 63))), **outside),
        refused("Get", named("l/m") + selected(bounds(None, None, 0)), **invalid),
        refused("Get", named("l/m") + selected(b""), **invalid),
        refused("Get", named("l/m") + selected(field(3, b"later")), **invalid),
        refused("Get", named("l/m") + selected(index(0), index(0), index(0)), **invalid),
        refused("Get", named("l/m") + selected(index(0)) + number(6, BLOCK), **invalid),
    )
    packed = header_of([3], 0, 4)
    transcript(
        "selections that are not possible",
        step("Store", store("l/p", stored_record("", b"\x21\x03", packed))),
        refused("Get", named("l/p") + selected(index(0)), **invalid),
        step("Store", store("l/s", stored_record("a", A), stored_record("b", B))),
        refused("Get", named("l/s") + selected(index(0)), **invalid),
        step(
            "Get",
            named("l/s") + field(2, b"b") + selected(index(1)),
            records=[{"name": "b", "tensor": {"shape": []}}],
            payloads={"0": ["0", "06"]},
        ),
    )
    long = bytes(BLOCK) + bytes(range(200)) + bytes(BLOCK)
    transcript(
        "a slice of several blocks has sums of its own",
        put("l/long", long),
        got("l/long", long[5:-3], selected(bounds(5, -3, None))),
    )


def lists() -> None:
    names = ["i/a", "i/a\u0301", "i/b*", "i/c", "i/\u00e9"]
    listed = [{"name": name} for name in sorted(names, key=str.encode)]
    prefix = field(1, b"i/")
    invalid: dict[str, Any] = {"reason": "INVALID_REQUEST"}
    last = {"next_page_token": ""}
    transcript(
        "lists and their pages",
        *(step("Store", store(name, stored_record("", A))) for name in reversed(names)),
        step("List", prefix, answer={"objects": listed, **last}),
        step("List", prefix + number(2, 2), answer={"objects": listed[:2], "next_page_token": {"set": "t"}}),
        step(
            "List",
            [prefix + number(2, 2), earlier("t", 3)],
            answer={"objects": listed[2:4], "next_page_token": {"set": "u"}},
        ),
        step("List", [prefix + number(2, 2), earlier("u", 3)], answer={"objects": listed[4:], **last}),
        step("List", field(1, b"i/none"), answer={"objects": [], **last}),
        refused("List", [field(1, b"i"), earlier("t", 3)], **invalid),
        refused("List", prefix + field(3, b"zzzz"), **invalid),
        refused("List", [prefix, earlier("t", 3), field(3, b"AAAAAAAAAAAAAAAAAAAAAA==")], **invalid),
        refused("List", prefix + number(2, 1001), **invalid),
    )


def topics() -> None:
    def frame(topic: str, payload: bytes, *, header: bytes | None = None, more: bytes = b"") -> bytes:
        header = header_of([len(payload)]) if header is None else header
        return field(1, field(1, topic.encode()) + more + field(6, header))

    def sent(payload: bytes, **arguments: Any) -> bytes:
        return field(15, chunk(payload, **arguments))

    def subscribed(*patterns: str, more: bytes = b"") -> bytes:
        return b"".join(field(1, pattern.encode()) for pattern in patterns) + more

    def received(topic: str, sequence: int, payload: bytes, **more: Any) -> dict[str, Any]:
        return {"topic": topic, "sequence": str(sequence), "dropped_count": "0", "payload": shortened(payload), **more}

    reliable = number(2, 3)
    order: dict[str, Any] = {"reason": "CHUNK_OUT_OF_ORDER"}
    invalid: dict[str, Any] = {"reason": "INVALID_REQUEST"}
    stamped = number(2, 77) + number(3, 123456789) + field(4, text("unit", "m")) + number(5, 9)
    cam = {"time_ns": "123456789", "metadata": {"unit": {"string_value": "m"}}}
    transcript(
        "frames, retained and live",
        step(
            "Publish",
            frame("cam/1", A, more=stamped) + sent(A),
            answers=[{"topic": "cam/1", "last_sequence": "1", "subscriber_count": "0"}],
        ),
        step("Publish", frame("cam/2", LARGE), sent(LARGE, end=2 * BLOCK), sent(LARGE, begin=2 * BLOCK)),
        step(
            "Subscribe",
            subscribed("cam/*", more=reliable),
            call="all",
            end="open",
            events=["start", {"any order": [received("cam/1", 1, A, **cam), received("cam/2", 1, LARGE)]}, "caught up"],
        ),
        step(
            "Subscribe",
            subscribed("cam/1", "cam/1", more=reliable + number(5, 1)),
            call="live",
            end="open",
            events=["start", "caught up"],
        ),
        step(
            "Publish",
            frame("cam/1", b""),
            frame("cam/1", B) + sent(B),
            answers=[{"topic": "cam/1", "last_sequence": "3", "subscriber_count": "2"}],
        ),
        step("Subscribe", call="all", end="cancel", events=[received("cam/1", 2, b""), received("cam/1", 3, B)]),
        step("Subscribe", call="live", end="cancel", events=[received("cam/1", 2, b""), received("cam/1", 3, B)]),
    )
    transcript(
        "frames that are refused",
        refused("Publish", sent(A), **order),
        refused("Publish", frame("f/1", A), frame("f/1", A), **invalid),
        refused("Publish", frame("f/1", A) + frame("f/1", A), **invalid),
        refused("Publish", frame("f/2", b""), sent(A), **order),
        refused("Publish", frame("f/1", A), sent(A, tensor=1), **order),
        refused("Publish", frame("f/1", A), sent(A, sums=[1]), status="DATA_LOSS", reason="CHECKSUM_MISMATCH"),
        refused("Publish", frame("f/1", A), sent(A, sums=[]), **invalid),
        refused("Publish", frame("f/1", A), status="ABORTED", reason="UPLOAD_INCOMPLETE"),
        refused("Publish", frame("f/*", A) + sent(A), reason="INVALID_NAME"),
        refused("Publish", frame("", A) + sent(A), reason="INVALID_NAME"),
        refused("Publish", frame("f/1", A, header=header_of([4], flags=8)) + sent(A), reason="INVALID_TENSOR"),
        step(
            "Subscribe",
            subscribed("f/*"),
            call="f",
            end="cancel",
            events=["start", received("f/2", 1, b""), "caught up"],
        ),
    )
    transcript(
        "subscriptions that are refused",
        refused("Subscribe", b"", **invalid),
        refused("Subscribe", subscribed("a*b"), **invalid),
        refused("Subscribe", subscribed("*a"), **invalid),
        refused("Subscribe", subscribed(""), reason="INVALID_NAME"),
        refused("Subscribe", subscribed("a", more=number(2, 99)), **invalid),
        refused("Subscribe", subscribed(*(["a"] * 1001)), **invalid),
    )
    bounds = {"queue_frame_count": "4096", "queue_bytes": str(256 << 20)}
    transcript(
        "queue bounds are clipped",
        step(
            "Subscribe",
            subscribed("q", more=reliable + number(3, 1 << 40) + number(4, 1 << 40)),
            call="q",
            end="cancel",
            events=[{"start": bounds}, "caught up"],
        ),
    )


def transcripts() -> list[dict[str, Any]]:
    server_info()
    stores()
    puts()
    resumed()
    gets()
    slices()
    lists()
    topics()
    return TRANSCRIPTS


def main() -> int:
    lines = []
    for made in transcripts():
        steps = ",\n".join("  " + json.dumps(step) for step in made["steps"])
        lines.append(f' {{"name": {json.dumps(made["name"])}, "steps": [\n{steps}\n ]}}')
    content = "[\n" + ",\n".join(lines) + "\n]\n"
    path = HERE / "service.json"
    if "--force" in sys.argv[1:]:
        path.write_text(content)
        return 0
    if not path.is_file() or path.read_text() != content:
        print("differs: service.json")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
