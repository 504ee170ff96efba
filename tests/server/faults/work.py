"""Works on a folder of objects while the preloaded shim makes one system call fail, and says what came of it.

    LD_PRELOAD=shim.so python work.py < requests

One process serves many requests, a JSON list [folder, at, mode] a line. For each it forks a child that works on the
folder with the fault armed, then one without that opens the folder again and says what is there. Answers, a line each:
{"count": calls, "said": {operation: outcome}, "found": {...}}.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dlpack_wire_server.directory_store import DirectoryStore
from dlpack_wire_server.status import status_of
from dlpack_wire_server.store import Serialized, Store

from dlpack_wire.service.messages import Record
from dlpack_wire.tensor.source import Source

RETENTION_NS = 10**12
SIZES = {"small": 100, "large": 300_000}


def put(store: Store, name: str, value: int, size: str, upload: bytes | None = None) -> int:
    source = Source(np.full(SIZES[size], value, np.uint8))
    draft = store.draft([Record(("",), {}, source.header, b"")], Serialized(b"", b""))
    try:
        offset = 0
        for piece in source.pieces(1 << 20):
            draft.write(0, offset, piece)
            offset += len(piece)
        return store.publish(draft, [source.block_sums()], name, None, upload).generation
    finally:
        draft.discard()


# Operations in order: each changes one name, so that its outcome can be told from what is there afterwards.
OPERATIONS: dict[str, Callable[[Store], Any]] = {
    "put new": lambda store: put(store, "new", 2, "large", b"upload"),
    "replace": lambda store: put(store, "replaced", 2, "small"),
    "delete": lambda store: store.delete("deleted", None),
    "put after": lambda store: put(store, "after", 2, "small"),
    "replace again": lambda store: put(store, "again", 2, "large"),
    "delete again": lambda store: store.delete("deleted too", None),
}


def prepare(folder: str) -> None:
    store = DirectoryStore(folder, 0, RETENTION_NS)
    for name in ("replaced", "deleted", "again", "deleted too", "kept"):
        put(store, name, 1, "small")
    store.close()


def work(folder: str, say: Callable[[str, Any], None]) -> None:
    """Do all operations; say of each whether it was acknowledged or refused, before the next one."""
    try:
        store = DirectoryStore(folder, 0, RETENTION_NS)
    except OSError as error:
        say("open", f"refused: {error}")
        return
    say("open", "done")
    for name, operation in OPERATIONS.items():
        try:
            operation(store)
            say(name, "done")
        except Exception as error:  # what the server would make a status of
            status = status_of(error)
            say(name, "uncertain" if status.code == "UNAVAILABLE" else f"refused: {status.reason}: {error!r}")


def look(folder: str) -> dict[str, Any]:
    """Say what a new server finds: the value of every name, and its largest generation."""
    store = DirectoryStore(folder, 0, RETENTION_NS)
    found: dict[str, Any] = {}
    for info in store.list("", "", 100):
        stored = store.get(info.name)
        values = {bytes(stored.read(r, 0, r.header.payload_bytes)) for r in stored.records}
        (content,) = values
        found[info.name] = content[0] if content == bytes([content[0]]) * len(content) else "torn"
    found["next generation"] = put(store, "probe", 3, "small")
    files = {path.name for path in (store._folder.objects).iterdir()}
    found["files"] = len(files)
    store.close()
    return found


def in_child(run: Callable[[Callable[[str, Any], None]], None]) -> dict[str, Any]:
    """Run in a fork; return what it said until its end."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            run(lambda name, outcome: os.write(write, json.dumps([name, outcome]).encode() + b"\n") and None)
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = dict(json.loads(line) for line in pipe if line.endswith("\n"))
    os.waitpid(pid, 0)
    return said


def main() -> None:
    logging.disable()
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    shim.fault_arm.argtypes = ctypes.c_char_p, ctypes.c_long, ctypes.c_char
    shim.fault_count.restype = ctypes.c_long
    for line in sys.stdin:
        folder, at, mode = json.loads(line)
        in_child(lambda say, folder=folder: say("prepared", prepare(folder)))

        def faulty(say: Callable[[str, Any], None], folder: str = folder, at: int = at, mode: str = mode) -> None:
            shim.fault_arm(folder.encode(), at, mode.encode())
            work(folder, say)
            say("count", shim.fault_count())
            say("drafts", [path.name for path in Path(folder, "objects").glob("*.draft")])

        said = in_child(faulty)
        found = in_child(lambda say, folder=folder: [say(*item) for item in look(folder).items()] and None)
        print(json.dumps({"at": at, "mode": mode, "said": said, "found": found}), flush=True)


if __name__ == "__main__":
    main()
