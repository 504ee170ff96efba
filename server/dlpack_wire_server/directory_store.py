"""Stored objects in a folder: one immutable file per generation, and an index that says which ones count.

    DIR                         locked by the server that has it
    DIR/index.sqlite            names, generations, uploads; an object that is not in it does not exist
    DIR/reserve                 disk space for the index, so that objects can be deleted when the disk is full
    DIR/objects/123.dlpw        the object of generation 123; its metadata has the name
    DIR/objects/ab12.draft      an object that is being put
    DIR/lost+found/124.dlpw     a whole object that the index did not know when the server started

A name never becomes a path. A put is acknowledged after the file, its place in the folder, and its line in the index
are on disk, in that order; an old file goes after that. So a server killed at any point leaves the old value or the
new one, old files that the index calls dead, and files that it does not name. A start removes the dead ones and the
drafts. It never removes a whole file that the index merely does not know: the index may be the one that is wrong.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from dlpack_wire.errors import DecodeError
from dlpack_wire.file.contents import FileContents
from dlpack_wire.file.storage import PositionedBytes
from dlpack_wire.message.names import split_names
from dlpack_wire.service.messages import Record

from .backing import FileBacking
from .budget import Budget
from .object_index import ObjectIndex, Row
from .status import Refusal, StoreDamagedError, UncertainError
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

INDEX, RESERVE, OBJECTS, LOST = "index.sqlite", "reserve", "objects", "lost+found"
_MAX_OPEN = 64
_MAX_OPEN_BYTES = 64 << 20
"""Objects read last that are kept open, and bytes of the descriptions of their tensors. One may be larger."""

_MEMORY_BYTES = 256 << 20
"""Maximum bytes of memory for large requests and for the descriptions of tensors that are being put: 65 536 of them
take about 40 MiB."""

_NO_LIMIT = 1 << 62

_log = logging.getLogger(__name__)


class DirectoryStore:
    """Objects in a folder that this process alone uses."""

    on_disk = True

    def __init__(self, path: str, limit_bytes: int, retention_ns: int, max_remembered: int = 100_000) -> None:
        """Open a folder, or create it, and clear away what a killed server left.

        Args:
            path: The folder.
            limit_bytes: Maximum bytes of all images; 0: whatever fits the disk.
            retention_ns: How long committed uploads are remembered.
            max_remembered: How many are remembered at most.

        Raises:
            OSError: The folder cannot be used, or another server has it.
        """
        self._folder = Folder(path)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._open: OrderedDict[int, StoredObject] = OrderedDict()
        self._open_bytes = 0
        self._alive: weakref.WeakValueDictionary[int, StoredObject] = weakref.WeakValueDictionary()
        # Files whose commit failed: kept until it is certain that it did not happen.
        self._uncertain: list[FileBacking] = []
        try:
            self._index = self._folder.open_index(retention_ns, max_remembered)
            known = self._index.generations()
            self.budget = Budget(limit_bytes or _NO_LIMIT, sum(known.values()))
            self.memory = Budget(_MEMORY_BYTES, what="memory for headers")
            largest = self._folder.clear(known, self._index)
            self._last = max(self._index.last, largest, time.time_ns() // 1000)
        except BaseException:
            self._folder.close()
            raise

    # --- in -----------------------------------------------------------------------------------------------------------

    def draft(self, records: Sequence[Record], metadata: Serialized) -> Draft:
        """Create a `.draft` file for an object."""
        image, placed = plan_object(records, metadata)
        free = self._free_bytes()
        if image.size > free:
            raise Refusal("STORE_FULL", f"{image.size} bytes do not fit: {free} are free on the disk")
        backing = FileBacking(self._folder.objects / f"{secrets.token_hex(8)}.draft", image, self.budget)
        return Draft(placed, metadata.shown, backing)

    def publish(
        self, draft: Draft, sums: Sequence[bytes], name: str, if_generation: int | None, upload: bytes | None
    ) -> Commit:
        """Rename the draft to its generation, commit it to the index, and remove the file it replaces."""
        backing = draft.backing
        assert isinstance(backing, FileBacking)
        records = draft.complete(sums)
        with self._lock:
            self._settle()
            committed = self._index.committed(upload) if upload is not None else None
            if committed is not None:
                return Commit(committed.generation, True)
            check_generation(name, if_generation, self._index.generation(name))
            generation = self._last = self._last + 1
            info = draft.info(name, generation)
            backing.rename(self._folder.file(generation))
            try:
                replaced = self._index.put(Row(info, backing.size), upload)
            except UncertainError:
                backing.is_uncertain = True
                self._uncertain.append(backing)
                raise
            self._hold(StoredObject(info, records, backing.keep(), is_checked=True))
        self._remove(replaced)
        return Commit(generation, False)

    def _settle(self) -> None:
        """Require that no earlier commit is uncertain; drop the files of those that did not happen."""
        self._index.settle()
        for backing in self._uncertain:
            backing.is_uncertain = False
            backing.discard()
        self._uncertain.clear()

    def delete(self, name: str, if_generation: int | None) -> int:
        """Remove a name from the index, then its file."""
        with self._lock:
            self._settle()
            present = self._index.generation(name)
            if not present:
                raise not_found(name)
            check_generation(name, if_generation, present)
            removed = self._index.delete(name)
        self._remove(removed)
        return present

    def _remove(self, row: Row | None) -> None:
        """Remove the file of an object that the index calls dead. Readers keep it open."""
        if row is None:
            return
        generation = row.info.generation
        with self._reading:
            self._open.pop(generation, None)
        try:
            self._folder.file(generation).unlink(missing_ok=True)
        except OSError as error:
            # The put or delete is done. The next start removes what the index calls dead.
            _log.warning("generation %d of %r stays on disk until the next start: %s", generation, row.info.name, error)
            return
        self._index.note_unlinked(generation)
        self.budget.release(row.image_bytes)

    # --- out ----------------------------------------------------------------------------------------------------------

    def committed(self, upload: bytes) -> Committed | None:
        """Return what an upload became, from the index."""
        return self._index.committed(upload)

    def generation(self, name: str) -> int:
        """Return the present generation of a name, from the index."""
        return self._index.generation(name)

    def get(self, name: str, generation: int | None = None) -> StoredObject:
        """Return the object of a name; open its file unless it is open already."""
        while True:
            row = self._index.find(name)
            present = row.info.generation if row is not None else 0
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
                stored = self._folder.load(row.info)
            except FileNotFoundError:
                if self._index.generation(name) == present:  # it was not replaced meanwhile
                    raise StoreDamagedError(f"object {name!r}: its file is missing") from None
                continue
            self._hold(stored)
            return stored

    def peek(self, info: ObjectSummary) -> StoredObject:
        """Return an object without keeping it open.

        Raises:
            FileNotFoundError: It is gone.
            StoreDamagedError: Its file is damaged, or cannot be read.
        """
        with self._reading:
            held = self._alive.get(info.generation)
        return held if held is not None else self._folder.load(info)

    def _hold(self, stored: StoredObject) -> None:
        """Keep the objects read last open."""
        with self._reading:
            if stored.info.generation not in self._open:
                self._open_bytes += stored.held_bytes
            self._alive[stored.info.generation] = self._open[stored.info.generation] = stored
            self._open.move_to_end(stored.info.generation)
            while len(self._open) > _MAX_OPEN or (len(self._open) > 1 and self._open_bytes > _MAX_OPEN_BYTES):
                _, oldest = self._open.popitem(last=False)
                self._open_bytes -= oldest.held_bytes

    def list(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
        """Return the next objects in the order of their names, until their metadata takes over 4 MiB."""
        return self._index.page(prefix, after, count)

    @property
    def limit_bytes(self) -> int:
        """The limit in force: what is set, or what is used and free on the disk."""
        return min(self.budget.limit, self.budget.used + self._free_bytes())

    def _free_bytes(self) -> int:
        status = os.statvfs(self._folder.objects)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        """Close the index, and let another server have the folder."""
        self._index.close()
        self._folder.close()


class Folder:
    """The folder of a store, locked for as long as this object is open.

    Attributes:
        path: The folder.
        objects: The folder in it that has the objects' files.
        lost: The folder in it that has files which the index did not know.
    """

    def __init__(self, path: str) -> None:
        """Create the folder unless it exists, and lock it.

        Raises:
            OSError: It cannot be used, or another server has it.
        """
        self.path = Path(path)
        self.objects = self.path / OBJECTS
        self.lost = self.path / LOST
        self.objects.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The lock is on the folder itself, which nobody can remove and create again while a server uses what is in it.
        self._claim = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in (self.path, self.objects):
                if folder.stat().st_mode & 0o077:
                    folder.chmod(0o700)
        except BlockingIOError:
            os.close(self._claim)
            raise OSError(f"{path} is in use by another server") from None
        except BaseException:
            os.close(self._claim)
            raise

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._claim)

    def open_index(self, retention_ns: int, max_remembered: int) -> ObjectIndex:
        """Open the index, or create it in a folder without objects.

        Raises:
            OSError: It is missing, damaged, or one of another revision.
        """
        path = self.path / INDEX
        if not path.exists() and any(True for _ in self.files()):
            raise OSError(
                f"{self.objects} holds objects, but their index {path} is missing; see `dlpack-wire store repair`"
            )
        return ObjectIndex(path, self.path / RESERVE, retention_ns, max_remembered)

    def file(self, generation: int) -> Path:
        """Return the path of a generation's file."""
        return self.objects / f"{generation}.dlpw"

    def files(self) -> Iterator[tuple[int, Path]]:
        """Yield the generation and the path of every object's file."""
        for entry in self.objects.iterdir():
            if found := _FILE.fullmatch(entry.name):
                yield int(found[1]), entry

    def clear(self, known: dict[int, int], index: ObjectIndex) -> int:
        """Remove drafts and dead files, put aside those that the index does not know; return the largest generation."""
        dead, found = index.dead(), set()
        largest = 0
        for generation, path in list(self.files()):
            largest = max(largest, generation)
            if generation in known:
                found.add(generation)
            elif generation in dead:
                path.unlink()
            else:
                self.lost.mkdir(mode=0o700, exist_ok=True)
                path.rename(self.lost / path.name)
                _log.warning("%s is not in the index: moved to %s; see `dlpack-wire store check`", path.name, self.lost)
        for generation in dead:
            index.note_unlinked(generation)
        for path in self.objects.glob("*.draft"):
            _log.warning("removing %s, which a server left behind unfinished", path)
            path.unlink()
        if self.lost.is_dir():
            aside = (_FILE.fullmatch(path.name) for path in self.lost.iterdir())
            largest = max([largest, *(int(found[1]) for found in aside if found)])
        for generation in sorted(known.keys() - found):
            _log.error("%s is missing: somebody else removed it", self.file(generation))
        return largest

    def load(self, info: ObjectSummary) -> StoredObject:
        """Open the file of an object.

        Raises:
            FileNotFoundError: There is no such file.
            StoreDamagedError: It is damaged, or cannot be read.
        """
        path = self.file(info.generation)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            source = PositionedBytes(fd, os.fstat(fd).st_size)
            records = read_records(FileContents(source, ""))
        except FileNotFoundError:
            raise
        except (DecodeError, OSError) as error:
            _log.error("%s, object %r: %s", path, info.name, error)
            raise StoreDamagedError(f"object {info.name!r}: its file cannot be read: {error}") from error
        if sum(record.header.payload_bytes for record in records) != info.payload_bytes:
            raise StoreDamagedError(f"object {info.name!r}: its file is another one")
        return StoredObject(info, records, source, is_checked=True)


_FILE = re.compile(r"(\d{1,20})\.dlpw")


def read_records(contents: FileContents) -> list[StoredRecord]:
    """Return the tensors in an object's file.

    Raises:
        DecodeError: The file is damaged.
    """
    records = []
    for _, located in contents.entries():
        entry = located.entry
        names, _ = split_names(entry.names)
        records.append(StoredRecord(tuple(names), entry.names, located.header, entry.data_offset, located.sums))
    return records
