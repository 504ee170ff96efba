"""Checking and repairing a folder of objects that no server uses."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dlpack_wire.errors import DecodeError
from dlpack_wire.file import audit
from dlpack_wire.file.contents import FileContents
from dlpack_wire.file.reader import FileReader
from dlpack_wire.file.storage import open_path
from dlpack_wire.message.names import encode_map

from .directory_store import INDEX, Folder, read_records
from .object_index import ObjectIndex, Row
from .status import StoreDamagedError
from .store import OBJECT_KEY, ObjectSummary

Report = Callable[[int, int], None]
"""Told how many bytes of all have been read."""

_RETENTION_NS = 10**18
_MAX_REMEMBERED = 1 << 31


class Problem(NamedTuple):
    """One thing that is wrong with a folder.

    Attributes:
        text: What it is.
        remedy: What a repair does about it; "" if it can do nothing.
    """

    text: str
    remedy: str = ""


class Unknown(NamedTuple):
    """A whole object's file that the index does not know.

    Attributes:
        row: What the index should say of it.
        path: Where it lies.
    """

    row: Row
    path: Path


def check(path: str, *, repair: bool = False, report: Report | None = None) -> Iterator[Problem]:
    """Yield what is wrong with a folder; every byte of every object is read.

    Args:
        path: The folder.
        repair: Mend it as the problems' remedies say, after all have been yielded.
        report: Progress.

    Raises:
        OSError: The folder cannot be used, or a server has it.
    """
    if not Path(path, "objects").is_dir():
        raise FileNotFoundError(2, "not the folder of a store: it has no folder `objects`", path)
    folder = Folder(path)
    try:
        yield from _Check(folder, report).run(repair)
    finally:
        folder.close()


class _Check:
    def __init__(self, folder: Folder, report: Report | None) -> None:
        self._folder = folder
        self._report = report
        self._all_bytes = sum(file.stat().st_size for file in self._files())
        self._read_bytes = 0

    def _files(self) -> Iterator[Path]:
        yield from (path for _, path in self._folder.files())
        if self._folder.lost.is_dir():
            yield from self._folder.lost.glob("*.dlpw")

    def run(self, repair: bool) -> Iterator[Problem]:
        index, problems = self._open_index()
        yield from problems
        known: dict[int, Row] = {}
        dead: set[int] = set()
        if index is not None:
            known, dead = {row.info.generation: row for row in index.rows()}, index.dead()
            index.close()
        newest = {row.info.name: row.info.generation for row in known.values()}
        lost: list[Row] = []
        for generation, row in sorted(known.items()):
            path = self._folder.file(generation)
            if not path.exists():
                lost.append(row)
                remedy = "its name is removed from the index"
                yield Problem(f"object {row.info.name!r}: its file {path.name} is missing", remedy)
            else:
                yield from self._damage(path, row)
        found: dict[str, Unknown] = {}
        for path in list(self._files()):
            generation = int(path.stem)
            if generation not in dead and (path.parent == self._folder.lost or generation not in known):
                yield from self._unknown(path, newest, found)
        if repair and (index is None or lost or found):
            self._repair(index is None, lost, found)

    def _open_index(self) -> tuple[ObjectIndex | None, list[Problem]]:
        """Open the index, if it is whole."""
        path = self._folder.path / INDEX
        remedy = "a new index is made of the objects' files"
        if not path.exists():
            return None, [Problem(f"the index {path.name} is missing", remedy)]
        try:
            index = self._folder.open_index(_RETENTION_NS, _MAX_REMEMBERED)
            wrong = index.problems()
            if not wrong:
                for _ in index.rows():
                    pass
                return index, []
            index.close()
        except (OSError, sqlite3.Error, StoreDamagedError) as error:
            wrong = [str(error)]
        return None, [Problem(f"the index {path.name} is damaged: {text}", remedy) for text in wrong]

    def _damage(self, path: Path, row: Row) -> Iterator[Problem]:
        """Yield what is wrong with the file of an object."""
        problems = list(self._problems(path))
        for problem in problems:
            yield Problem(f"object {row.info.name!r}, {path.name}: {problem}")
        if not problems and (other := describe(path)) is not None:
            differs = [field for field in ("name", "tensor_count", "payload_bytes") if _differs(field, other, row)]
            if differs:
                yield Problem(f"object {row.info.name!r}: {path.name} is of {other.info.name!r}")

    def _problems(self, path: Path) -> Iterator[DecodeError]:
        try:
            with FileReader(open_path(str(path)), path.name) as f:
                yield from audit.problems(f._contents)
        except DecodeError as error:
            yield error
        self._read_bytes += path.stat().st_size
        if self._report is not None:
            self._report(self._read_bytes, self._all_bytes)

    def _unknown(self, path: Path, newest: dict[str, int], found: dict[str, Unknown]) -> Iterator[Problem]:
        """Say what a file is that the index does not know, and note it if it is to be adopted."""
        where = f"{path.parent.name}/{path.name}"
        problems = list(self._problems(path))
        row = describe(path) if not problems else None
        if row is None:
            yield Problem(f"{where} is not in the index, and no whole object: {problems[0] if problems else 'unnamed'}")
            return
        name, generation = row.info.name, row.info.generation
        if newest.get(name, 0) > generation:
            yield Problem(f"{where} is an older generation of {name!r}")
            return
        newest[name] = generation
        found[name] = Unknown(row, path)
        yield Problem(f"{where} is a whole object {name!r} that the index does not know", "it is taken into the index")

    def _repair(self, anew: bool, lost: list[Row], found: dict[str, Unknown]) -> None:
        path = self._folder.path / INDEX
        if anew:
            stamp = time.time_ns()
            for old in self._folder.path.glob(f"{INDEX}*"):
                old.rename(self._folder.path / f"damaged-{stamp}-{old.name}")
            path.touch(mode=0o600)
        index = self._folder.open_index(_RETENTION_NS, _MAX_REMEMBERED)
        try:
            for row in lost:
                index.delete(row.info.name)
            for unknown in sorted(found.values(), key=lambda u: u.row.info.generation):
                target = self._folder.file(unknown.row.info.generation)
                if unknown.path != target:
                    os.rename(unknown.path, target)
                replaced = index.put(unknown.row, None)
                if replaced is not None:
                    self._folder.file(replaced.info.generation).unlink(missing_ok=True)
        finally:
            index.close()


def _differs(field: str, other: Row, row: Row) -> bool:
    return bool(getattr(other.info, field) != getattr(row.info, field))


def describe(path: Path) -> Row | None:
    """Return what the index should say of a whole file; None if the file does not say whose it is."""
    source = open_path(str(path))
    try:
        contents = FileContents(source, path.name)
        metadata = contents.metadata()
        records = read_records(contents)
    except DecodeError:
        return None
    finally:
        source.close()
    name = metadata.pop(OBJECT_KEY, None)
    if not isinstance(name, str):
        return None
    status = path.stat()
    info = ObjectSummary(
        name,
        int(path.stem),
        len(records),
        sum(record.header.payload_bytes for record in records),
        status.st_mtime_ns,
        encode_map(6, metadata, 1 << 24),
    )
    return Row(info, status.st_size)
