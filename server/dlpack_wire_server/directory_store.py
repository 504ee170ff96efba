"""Stored objects in a folder: one immutable file per generation, and an index that says which ones count.

    DIR/lock                    held by the server that has the folder
    DIR/index.sqlite            names, generations, uploads; an object that is not in it does not exist
    DIR/objects/123.dlpw        the object of generation 123
    DIR/objects/ab12.draft      an object that is being put

A name never becomes a path. A put is acknowledged after the file, its place in the folder, and its line in the index
are on disk, in that order; an old file goes after that. So a server killed at any point leaves the old value or the
new one, and files that no line names, which the next start removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlpack_wire.file.contents import FileContents
from dlpack_wire.file.storage import MemoryBytes
from dlpack_wire.message.names import split_names
from dlpack_wire.service.messages import Record

from .backing import DescriptorBacking, FileBacking
from .budget import Budget
from .store import (
    Commit,
    Committed,
    Draft,
    ObjectSummary,
    Serialized,
    StoredObject,
    StoredRecord,
    check_generation,
    not_found,
    plan_object,
)

_REVISION = 2
"""Of the index and of the files. Those of revision 0 have one sum a payload, not one a block."""

_SCHEMA = f"""
PRAGMA user_version = {_REVISION};
CREATE TABLE IF NOT EXISTS objects (
    name BLOB PRIMARY KEY, generation INTEGER NOT NULL, tensor_count INTEGER NOT NULL, payload_bytes INTEGER NOT NULL,
    created_time_ns INTEGER NOT NULL, metadata BLOB NOT NULL, image_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    key BLOB PRIMARY KEY, name BLOB NOT NULL, generation INTEGER NOT NULL, time_ns INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS uploads_by_time ON uploads (time_ns);
CREATE TABLE IF NOT EXISTS last (generation INTEGER NOT NULL);
INSERT INTO last SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM last);
"""
_INFO = "name, generation, tensor_count, payload_bytes, created_time_ns, metadata"
_PAGE_METADATA_BYTES = 4 << 20
_MAX_OPEN = 64
_NO_LIMIT = 1 << 62

_log = logging.getLogger(__name__)


class DirectoryStore:
    """Objects in a folder that this process alone uses."""

    on_disk = True

    def __init__(self, path: str, limit_bytes: int, retention_ns: int, max_remembered: int = 100_000) -> None:
        """Open a folder, or create it, and remove the files that a killed server left unfinished.

        Args:
            path: The folder.
            limit_bytes: Maximum bytes of all images; 0: whatever fits the disk.
            retention_ns: How long committed uploads are remembered.
            max_remembered: How many are remembered at most.

        Raises:
            OSError: The folder cannot be used, or another server has it.
        """
        self._path = Path(path)
        self._objects = self._path / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._retention_ns = retention_ns
        self._max_remembered = max_remembered
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._open: OrderedDict[int, StoredObject] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[int, StoredObject] = weakref.WeakValueDictionary()
        self._claim = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(f"{path} is in use by another server") from None
            self._index = self._connect()
            self._reads = self._connect()
            self._last = max(self._number("SELECT generation FROM last"), time.time_ns() // 1000)
            used = self._number("SELECT COALESCE(SUM(image_bytes), 0) FROM objects")
            self.budget = Budget(limit_bytes or _NO_LIMIT, used)
            self._remove_orphans()
        except BaseException:
            os.close(self._claim)
            raise

    def _connect(self) -> sqlite3.Connection:
        path = self._path / "index.sqlite"
        if not path.exists() and any(self._objects.iterdir()):
            raise OSError(f"{self._objects} holds objects, but their index {path} is missing")
        index = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        index.execute("PRAGMA journal_mode=WAL")
        index.execute("PRAGMA synchronous=FULL")
        revision = index.execute("PRAGMA user_version").fetchone()[0]
        if revision != _REVISION and index.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
            index.close()
            raise OSError(f"{path} has revision {revision} of the index; this server reads {_REVISION}")
        index.executescript(_SCHEMA)
        return index

    def _number(self, query: str) -> int:
        return int(self._index.execute(query).fetchone()[0])

    def _remove_orphans(self) -> None:
        known = {f"{row[0]}.dlpw" for row in self._index.execute("SELECT generation FROM objects")}
        found = {entry.name for entry in os.scandir(self._objects)}
        for name in sorted(found - known):
            if name.endswith((".dlpw", ".draft")):
                _log.warning("removing %s, which a server left behind unfinished", self._objects / name)
                os.unlink(self._objects / name)
        for name in sorted(known - found):
            _log.error("%s is missing: somebody else removed it", self._objects / name)

    # --- in -----------------------------------------------------------------------------------------------------------

    def draft(self, records: Sequence[Record], metadata: Serialized) -> Draft:
        """Create a `.draft` file for an object."""
        image, placed = plan_object(records, metadata)
        self.budget.reserve(image.size)
        try:
            backing = FileBacking(self._objects / f"{secrets.token_hex(8)}.draft", image, self.budget)
        except BaseException:
            self.budget.release(image.size)
            raise
        return Draft(placed, metadata.shown, backing)

    def publish(
        self, draft: Draft, sums: Sequence[bytes], name: str, if_generation: int | None, upload: bytes | None
    ) -> Commit:
        """Rename the draft to its generation, commit it to the index, and remove the file it replaces."""
        backing = draft.backing
        assert isinstance(backing, FileBacking)
        records = draft.complete(sums)
        with self._lock:
            committed = self.committed(upload) if upload is not None else None
            if committed is not None:
                return Commit(committed.generation, True)
            present = self.generation(name)
            check_generation(name, if_generation, present)
            generation = self._last = self._last + 1
            info = draft.info(name, generation)
            backing.rename(self._file(generation))
            with self._transaction() as index:
                replaced = self._forget(index, info.name.encode())
                index.execute(
                    "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (info.name.encode(), *info[1:], backing.size),
                )
                index.execute("UPDATE last SET generation = ?", (generation,))
                if upload is not None:
                    self._remember(index, upload, Committed(name, generation))
            backing.keep()
            self._hold(StoredObject(info, records, backing))
        self._remove(present, replaced)
        return Commit(generation, False)

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        self._index.execute("BEGIN IMMEDIATE")
        try:
            yield self._index
            self._index.execute("COMMIT")
        except BaseException:
            self._index.execute("ROLLBACK")
            raise

    def _forget(self, index: sqlite3.Connection, name: bytes) -> int:
        """Take a name out of the index; the size of its image, or 0."""
        row = index.execute("SELECT image_bytes FROM objects WHERE name = ?", (name,)).fetchone()
        index.execute("DELETE FROM objects WHERE name = ?", (name,))
        return int(row[0]) if row is not None else 0

    def _remember(self, index: sqlite3.Connection, upload: bytes, committed: Committed) -> None:
        now = time.time_ns()
        row = upload, committed.name.encode(), committed.generation, now
        index.execute("INSERT OR REPLACE INTO uploads VALUES (?, ?, ?, ?)", row)
        index.execute("DELETE FROM uploads WHERE time_ns < ?", (now - self._retention_ns,))
        index.execute(
            "DELETE FROM uploads WHERE key IN (SELECT key FROM uploads ORDER BY time_ns DESC LIMIT -1 OFFSET ?)",
            (self._max_remembered,),
        )

    def delete(self, name: str, if_generation: int | None) -> int:
        """Remove a name from the index, then its file."""
        with self._lock:
            present = self.generation(name)
            if not present:
                raise not_found(name)
            check_generation(name, if_generation, present)
            with self._transaction() as index:
                size = self._forget(index, name.encode())
        self._remove(present, size)
        return present

    def _remove(self, generation: int, size: int) -> None:
        """Remove a file that the index no longer names. Readers keep it open."""
        if size:
            with self._reading:
                self._open.pop(generation, None)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(generation))
            self.budget.release(size)

    # --- out ----------------------------------------------------------------------------------------------------------

    def committed(self, upload: bytes) -> Committed | None:
        """Return what an upload became, from the index."""
        row = self._row("SELECT name, generation FROM uploads WHERE key = ?", upload)
        return Committed(row[0].decode(), row[1]) if row is not None else None

    def generation(self, name: str) -> int:
        """Return the present generation of a name, from the index."""
        row = self._row("SELECT generation FROM objects WHERE name = ?", name.encode())
        return int(row[0]) if row is not None else 0

    def get(self, name: str, generation: int | None = None) -> StoredObject:
        """Return the object of a name; open its file unless it is open already."""
        while True:
            row = self._row(f"SELECT {_INFO} FROM objects WHERE name = ?", name.encode())
            present = int(row[1]) if row is not None else 0
            wanted = generation if generation is not None else present
            with self._reading:
                held = self._alive.get(wanted)
            if held is not None and held.info.name == name:
                self._hold(held)
                return held
            check_generation(name, generation, present)
            if row is None:
                raise not_found(name)
            try:
                stored = self._load(ObjectSummary(name, *row[1:]))
            except FileNotFoundError:
                if self.generation(name) == present:
                    raise  # it was not replaced meanwhile: it is missing
                continue
            self._hold(stored)
            return stored

    def _load(self, info: ObjectSummary) -> StoredObject:
        fd = os.open(self._file(info.generation), os.O_RDONLY | os.O_CLOEXEC)
        backing = DescriptorBacking(fd, os.fstat(fd).st_size)
        contents = FileContents(MemoryBytes(backing.view()), str(self._file(info.generation)))
        records = []
        for _, located in contents.entries():
            entry = located.entry
            names, _ = split_names(entry.names)
            records.append(StoredRecord(tuple(names), entry.names, located.header, entry.data_offset, located.sums))
        return StoredObject(info, records, backing)

    def _hold(self, stored: StoredObject) -> None:
        """Keep the objects read last open."""
        with self._reading:
            self._alive[stored.info.generation] = self._open[stored.info.generation] = stored
            self._open.move_to_end(stored.info.generation)
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)

    def list(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
        """Return the next objects in the order of their names, until their metadata takes over 4 MiB."""
        found: list[ObjectSummary] = []
        left_bytes = _PAGE_METADATA_BYTES
        begin = prefix.encode()
        query = f"SELECT {_INFO} FROM objects WHERE name > ? AND name >= ? ORDER BY name LIMIT ?"
        with self._reading:
            for row in self._reads.execute(query, (after.encode(), begin, count)):
                if not row[0].startswith(begin) or left_bytes < 0:
                    break
                found.append(ObjectSummary(row[0].decode(), *row[1:]))
                left_bytes -= len(row[5])
        return found

    def _row(self, query: str, key: bytes) -> Any:
        with self._reading:
            return self._reads.execute(query, (key,)).fetchone()

    def _file(self, generation: int) -> Path:
        return self._objects / f"{generation}.dlpw"

    def close(self) -> None:
        """Close the index, and let another server have the folder."""
        self._index.close()
        self._reads.close()
        os.close(self._claim)
