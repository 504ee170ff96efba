"""The index of a folder of objects, in SQLite: which generation each name has, and which uploads were committed.

A commit that fails may still turn out to have happened: its bytes may be on disk although the sync failed, and a server
that is killed then finds it at its next start. So no file is removed on the word of a failed commit. The index first
*settles*: another commit overwrites what the failed one wrote. Until that succeeds nothing is accepted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dlpack_wire.tensor.checksum import xxh3

from .status import Refusal, StoreDamagedError, UncertainError
from .store import Committed, ObjectSummary

REVISION = 3
"""Of the index and of the files."""

RESERVE_BYTES = 1 << 20
"""Disk space that is kept for the index, so that objects can be deleted when the disk is full: a delete writes about
ten pages of 4 KiB."""

_SCHEMA = f"""
PRAGMA user_version = {REVISION};
CREATE TABLE IF NOT EXISTS objects (
    name BLOB PRIMARY KEY, generation INTEGER NOT NULL, tensor_count INTEGER NOT NULL, payload_bytes INTEGER NOT NULL,
    created_time_ns INTEGER NOT NULL, metadata BLOB NOT NULL, image_bytes INTEGER NOT NULL, row_sum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    key BLOB PRIMARY KEY, name BLOB NOT NULL, generation INTEGER NOT NULL, time_ns INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS uploads_by_time ON uploads (time_ns);
CREATE TABLE IF NOT EXISTS dead (generation INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS last (generation INTEGER NOT NULL);
INSERT INTO last SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM last);
"""
_ROW = "name, generation, tensor_count, payload_bytes, created_time_ns, metadata, image_bytes, row_sum"
_PAGE_METADATA_BYTES = 4 << 20


class Row(NamedTuple):
    """One object of the index.

    Attributes:
        info: Its summary.
        image_bytes: Size of its file.
    """

    info: ObjectSummary
    image_bytes: int


class ObjectIndex:
    """The index of a folder that this process alone uses. Writes are made by one thread at a time.

    Attributes:
        last: The largest generation there ever was.
    """

    def __init__(self, path: Path, reserve: Path, retention_ns: int, max_remembered: int) -> None:
        """Open an index, or create it.

        Args:
            path: The index's file.
            reserve: A file that holds disk space for it.
            retention_ns: How long committed uploads are remembered.
            max_remembered: How many are remembered at most.

        Raises:
            OSError: The index cannot be opened, is damaged, or is one of another revision.
        """
        self._path = path
        self._reserve = reserve
        self._retention_ns = retention_ns
        self._max_remembered = max_remembered
        self._reading = threading.Lock()
        self._unsettled: BaseException | None = None
        self._unlinked: list[int] = []
        # Created here, because SQLite would make it readable for others; its other files get the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            self._writes = self._connect()
            self._reads = self._connect()
            (self.last,) = self._writes.execute("SELECT generation FROM last").fetchone()
            (self._remembered,) = self._writes.execute("SELECT COUNT(*) FROM uploads").fetchone()
        except sqlite3.DatabaseError as error:
            raise OSError(f"{path}: the index cannot be read: {error}; see `dlpack-wire store repair`") from error
        self._fill_reserve()

    def _connect(self) -> sqlite3.Connection:
        index = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        index.execute("PRAGMA journal_mode=WAL")
        index.execute("PRAGMA synchronous=FULL")
        (revision,) = index.execute("PRAGMA user_version").fetchone()
        if revision != REVISION and index.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
            index.close()
            raise OSError(f"{self._path} has revision {revision} of the index; this server reads {REVISION}")
        index.executescript(_SCHEMA)
        return index

    # --- in -----------------------------------------------------------------------------------------------------------

    def put(self, row: Row, upload: bytes | None) -> Row | None:
        """Make an object the one of its name, and return the one that it replaces.

        Raises:
            UncertainError: The commit failed, and may turn out to have happened.
            OSError: It failed and did not happen.
        """
        info = row.info
        if not self._reserve.exists() and not self._fill_reserve():
            raise Refusal("STORE_FULL", "the disk is full: objects can only be deleted")
        with self._transaction() as index:
            replaced = self._take_out(index, info.name.encode())
            values = (info.name.encode(), *info[1:], row.image_bytes)
            index.execute("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*values, _row_sum(values)))
            index.execute("UPDATE last SET generation = ?", (info.generation,))
            if upload is not None:
                self._remember(index, upload, info)
        self.last = info.generation
        return replaced

    def delete(self, name: str) -> Row | None:
        """Take a name out, and return its object.

        Raises:
            UncertainError, OSError: As for `put`.
        """
        try:
            return self._delete(name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return self._delete(name)  # settling has given it the reserve

    def _delete(self, name: str) -> Row | None:
        with self._transaction() as index:
            return self._take_out(index, name.encode())

    def _take_out(self, index: sqlite3.Connection, name: bytes) -> Row | None:
        values = index.execute(f"SELECT {_ROW} FROM objects WHERE name = ?", (name,)).fetchone()
        if values is None:
            return None
        index.execute("DELETE FROM objects WHERE name = ?", (name,))
        # Until its file is removed, so that a start after a crash can tell it from one that the index lost.
        index.execute("INSERT OR IGNORE INTO dead VALUES (?)", (values[1],))
        return _as_row(values)

    def _remember(self, index: sqlite3.Connection, upload: bytes, info: ObjectSummary) -> None:
        now = time.time_ns()
        index.execute(
            "INSERT OR REPLACE INTO uploads VALUES (?, ?, ?, ?)", (upload, info.name.encode(), info.generation, now)
        )
        index.execute("DELETE FROM uploads WHERE time_ns < ?", (now - self._retention_ns,))
        self._remembered += 1
        if self._remembered > self._max_remembered:
            (self._remembered,) = index.execute("SELECT COUNT(*) FROM uploads").fetchone()
            excess = self._remembered - self._max_remembered
            query = "DELETE FROM uploads WHERE key IN (SELECT key FROM uploads ORDER BY time_ns LIMIT ?)"
            index.execute(query, (max(excess, 0),))
            self._remembered -= max(excess, 0)

    def note_unlinked(self, generation: int) -> None:
        """Note that the file of a dead generation is gone; the next transaction forgets it."""
        self._unlinked.append(generation)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self.settle()
        index, unlinked = self._writes, self._unlinked[:]
        try:
            index.execute("BEGIN IMMEDIATE")
            yield index
            index.executemany("DELETE FROM dead WHERE generation = ?", [(generation,) for generation in unlinked])
        except sqlite3.Error as error:
            self._roll_back()
            raise _os_error(error) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            index.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            self._unsettled = error
            self.settle()
            raise _os_error(error) from error
        del self._unlinked[: len(unlinked)]

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # a failed commit may have ended the transaction itself
            self._writes.execute("ROLLBACK")

    @property
    def is_settled(self) -> bool:
        """False while a failed commit may still turn out to have happened."""
        return self._unsettled is None

    def settle(self) -> None:
        """Overwrite what a failed commit may have written.

        Raises:
            UncertainError: That failed too: whether the commit happened is known after a restart.
        """
        if self._unsettled is None:
            return
        try:
            self._reserve.unlink(missing_ok=True)  # it may have failed for want of space
            self._writes.execute("BEGIN IMMEDIATE")
            # Another value: SQLite does not write a page whose bytes stay, and a commit without pages writes nothing.
            self._writes.execute("UPDATE last SET generation = generation + 1")
            self._writes.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._roll_back()
            raise UncertainError(f"the index cannot be written: {self._unsettled}") from error
        self._unsettled = None
        self._fill_reserve()

    def _fill_reserve(self) -> bool:
        """Keep disk space for deletes; return False if there is none."""
        if self._reserve.exists():
            return True
        try:
            fd = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            return False
        return True

    # --- out ----------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Row | None:
        """Return the object of a name.

        Raises:
            StoreDamagedError: Its row is damaged.
        """
        values = self._one(f"SELECT {_ROW} FROM objects WHERE name = ?", name.encode())
        return None if values is None else _as_row(values)

    def generation(self, name: str) -> int:
        """Return the present generation of a name; 0 if there is none."""
        found = self.find(name)
        return 0 if found is None else found.info.generation

    def committed(self, upload: bytes) -> Committed | None:
        """Return what an upload became, or None if it is not remembered."""
        values = self._one("SELECT name, generation FROM uploads WHERE key = ?", upload)
        return None if values is None else Committed(values[0].decode(), values[1])

    def page(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
        """Return the next objects in the order of their names, until their metadata takes over 4 MiB."""
        found: list[ObjectSummary] = []
        left_bytes = _PAGE_METADATA_BYTES
        begin = prefix.encode()
        query = f"SELECT {_ROW} FROM objects WHERE name > ? AND name >= ? ORDER BY name LIMIT ?"
        with self._reading:
            for values in self._reads.execute(query, (after.encode(), begin, count)):
                if not values[0].startswith(begin) or left_bytes < 0:
                    break
                info = _as_row(values).info
                found.append(info)
                left_bytes -= len(info.metadata)
        return found

    def rows(self) -> Iterator[Row]:
        """Yield all objects.

        Raises:
            StoreDamagedError: A row is damaged.
        """
        for values in self._writes.execute(f"SELECT {_ROW} FROM objects ORDER BY name"):
            yield _as_row(values)

    def generations(self) -> dict[int, int]:
        """Return the size of every object's file by its generation."""
        return dict(self._writes.execute("SELECT generation, image_bytes FROM objects"))

    def dead(self) -> set[int]:
        """Return the generations that were replaced or deleted, and whose files may be left."""
        return {generation for (generation,) in self._writes.execute("SELECT generation FROM dead")}

    def problems(self) -> list[str]:
        """Return what SQLite finds wrong with the index; empty if nothing is."""
        found = [text for (text,) in self._writes.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    def _one(self, query: str, key: bytes) -> Any:
        with self._reading:
            try:
                return self._reads.execute(query, (key,)).fetchone()
            except sqlite3.Error as error:
                raise _os_error(error) from error

    def close(self) -> None:
        """Close the index."""
        self._writes.close()
        self._reads.close()


def _row_sum(values: tuple[Any, ...]) -> bytes:
    """Return the sum of a row: a flipped bit would hide an object, or give it the file of another one."""
    name, *numbers = values[:5]
    packed = struct.pack("<5q", *numbers, values[6])
    return xxh3(b"%d:%s%s%s" % (len(name), name, packed, values[5])).to_bytes(8, "little")


def _as_row(values: tuple[Any, ...]) -> Row:
    if values[7] != _row_sum(values[:7]):
        raise StoreDamagedError(f"the index entry of {values[0]!r} is damaged")
    return Row(ObjectSummary(values[0].decode(), *values[1:6]), values[6])


def _os_error(error: sqlite3.Error) -> OSError:
    """Return an error of SQLite as one of the system. By its text: before Python 3.11 it has no number."""
    text = str(error)
    number = errno.ENOSPC if "full" in text else errno.EBUSY if "locked" in text else errno.EIO
    return OSError(number, f"the index: {text}")
