"""Where the bytes of one object are: in a bytearray, a memfd, or a file of the store's folder."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dlpack_wire.file.plan import FilePlan
from dlpack_wire.file.replacement import sync_folder
from dlpack_wire.file.storage import MemoryBytes, PositionedBytes, Storage
from dlpack_wire.tensor.memory import Buffer

from .budget import Budget

_KEPT_MAPPING_BYTES = 4 << 20
"""Mappings of files from this size on are kept: looking its pages up again costs more than the entry of a mapping, of
which a process may have about 65 000."""

_log = logging.getLogger(__name__)

_SEALS = fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Backing(Protocol):
    """The bytes of one object: written while it is a draft, read once it is published. Memory is returned with it.

    Attributes:
        size: Bytes charged for it once all of it is written.
    """

    size: int

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes at a position.

        Raises:
            Refusal: STORE_FULL, if the budget has no room for them.
        """

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write all but the payloads, given the sums of their blocks. No byte changes afterwards."""

    def keep(self) -> Storage:
        """Return the bytes of the sealed object, to be read."""

    def discard(self) -> None:
        """Give everything back now, unless it was kept. Does nothing the second time."""


class Charge:
    """The bytes that one backing has taken from a budget, charged as they come: announcing a size reserves nothing."""

    def __init__(self, budget: Budget, size: int, announced: int) -> None:
        """Take some bytes.

        Args:
            budget: Budget to take them from.
            size: Bytes to take now.
            announced: Bytes there must be room for, which are taken when they come.

        Raises:
            Refusal: STORE_FULL, if there is no room.
        """
        budget.check(announced)
        budget.reserve(size)
        self._budget = budget
        self._size = size

    def add(self, size: int) -> None:
        """Take more bytes.

        Raises:
            Refusal: STORE_FULL, if there is no room.
        """
        self._budget.reserve(size)
        self._size += size

    def give_back(self) -> None:
        """Return all of them. May run in a finalizer."""
        size, self._size = self._size, 0
        if size:
            self._budget.release(size)


class SmallBacking:
    """A bytearray with the payloads one after the other: for objects too small to be worth a descriptor."""

    size = 0

    def __init__(self, payload_bytes: int, overhead_bytes: int, budget: Budget) -> None:
        """Reserve bytes, which are returned with this object.

        Args:
            payload_bytes: Bytes that will be written.
            overhead_bytes: Bytes that the object takes beyond its payloads.
            budget: Budget to reserve them from.
        """
        self.size = payload_bytes + overhead_bytes
        self._charge = Charge(budget, self.size, self.size)
        self._bytes = bytearray(payload_bytes)

    def __del__(self) -> None:
        if hasattr(self, "_charge"):
            self._charge.give_back()

    def write(self, position: int, data: Buffer) -> None:
        """Write payload bytes; positions count from the first payload."""
        self._bytes[position : position + len(data)] = data

    def seal(self, sums: Sequence[bytes]) -> None:
        """Do nothing: there is nothing beside the payloads."""

    def keep(self) -> Storage:
        """Return the payloads, which give their bytes back when nobody reads them."""
        return HeldBytes(memoryview(self._bytes).toreadonly(), self)

    def discard(self) -> None:
        """Do nothing: the memory goes with this object."""


class HeldBytes(MemoryBytes):
    """Bytes in memory that belong to a backing, which lives as long as they do."""

    def __init__(self, view: memoryview, owner: object) -> None:
        super().__init__(view)
        self._owner = owner


class PlannedFile:
    """An open file that is being written after a plan.

    Attributes:
        fd: Its descriptor, closed with this object.
        size: Its size.
    """

    fd = -1

    def __init__(self, fd: int, image: FilePlan, budget: Budget, overhead_bytes: int = 0) -> None:
        """Take over an empty file.

        Args:
            fd: The file.
            image: The plan of its bytes.
            budget: Budget that they are charged to.
            overhead_bytes: Bytes to charge beside them.

        Raises:
            Refusal: STORE_FULL, if the budget has no room for it.
        """
        self.fd = fd
        self.size = image.size
        self._image: FilePlan | None = image
        self._charge = Charge(budget, image.size - image.payload_bytes + overhead_bytes, image.size + overhead_bytes)
        os.ftruncate(fd, image.size)

    def write(self, position: int, data: Buffer) -> None:
        """Write payload bytes at a position of the file."""
        self._charge.add(len(data))
        self._write(position, data)

    def _write(self, position: int, data: Buffer) -> None:
        left = memoryview(data)
        while len(left):
            # One call writes at most about 2 GiB, and less on a disk that fills up.
            count = os.pwrite(self.fd, left, position)
            position += count
            left = left[count:]

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write the records' heads, the index and the trailer."""
        assert self._image is not None
        for position, piece in self._image.pieces(sums):
            self._write(position, piece)
        self._image = None

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class MemfdBacking(PlannedFile):
    """A sealed memfd, read through a mapping."""

    def __init__(self, image: FilePlan, overhead_bytes: int, budget: Budget) -> None:
        """Create it; its memory is charged as it is written, and returned with this object.

        Args:
            image: The plan of its bytes.
            overhead_bytes: Bytes that the object takes beside them.
            budget: Budget to charge.
        """
        fd = os.memfd_create("dlpack-wire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        super().__init__(fd, image, budget, overhead_bytes)

    def __del__(self) -> None:
        self._close()
        if hasattr(self, "_charge"):
            self._charge.give_back()

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write the rest of the file, and forbid every change."""
        super().seal(sums)
        fcntl.fcntl(self.fd, *_SEALS)

    def keep(self) -> Storage:
        """Return the file's bytes, mapped while they are read."""
        return MemfdBytes(self)

    def discard(self) -> None:
        """Do nothing: the memory goes with this object."""


class MemfdBytes:
    """The bytes of a sealed memfd, which cannot shrink.

    The mapping of a large one lasts as long as itself, so that its pages are looked up once. For small ones there may
    be too many for a process: they are mapped while they are read.

    Attributes:
        size: Its size.
    """

    def __init__(self, backing: MemfdBacking) -> None:
        self._backing = backing
        self.size = backing.size
        self._mapped: weakref.ref[mmap.mmap] | None = None
        self._kept: mmap.mmap | None = None

    def _view(self) -> memoryview:
        mapped = self._mapped() if self._mapped is not None else None
        if mapped is None:
            mapped = mmap.mmap(self._backing.fd, self.size, mmap.MAP_PRIVATE, mmap.PROT_READ)
            self._mapped = weakref.ref(mapped)
            if self.size >= _KEPT_MAPPING_BYTES:
                self._kept = mapped
        return memoryview(mapped)

    def read(self, begin: int, end: int) -> memoryview:
        """Return a view of the mapping."""
        return self._view()[begin:end]

    def memory(self, begin: int, end: int) -> tuple[Any, int]:
        """Return the whole mapping."""
        return self._view(), begin

    def close(self) -> None:
        """Do nothing: the mapping goes with this object."""


class FileBacking(PlannedFile):
    """A file in a folder, removed with this object unless it is kept.

    Attributes:
        is_uncertain: True while it is not known whether the file is an object's: then it is not removed.
    """

    is_uncertain = False
    _path: Path | None = None

    def __init__(self, path: Path, image: FilePlan, budget: Budget) -> None:
        """Create the file.

        Args:
            path: Its path.
            image: The plan of its bytes.
            budget: Budget that they are charged to, and returned to unless the file is kept.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._path = path
        try:
            super().__init__(fd, image, budget)
        except BaseException:
            self.discard()  # now: the error's traceback would keep it
            raise

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write the rest of the file, and wait until it is on disk."""
        super().seal(sums)
        os.fsync(self.fd)

    def rename(self, path: Path) -> None:
        """Rename the file, and wait until its new name is on disk."""
        assert self._path is not None
        os.rename(self._path, path)
        self._path = path
        sync_folder(str(path.parent))

    def keep(self) -> Storage:
        """Leave the file and its charge to the store, which removes it when it is replaced; return its bytes.

        They are read by system calls: a file that somebody cuts short is then an error, where touching a mapping of it
        would end the process.
        """
        self._path = None
        fd, self.fd = self.fd, -1
        return PositionedBytes(fd, self.size)

    def discard(self) -> None:
        """Remove the file now, unless it was kept or may be an object's."""
        if self.is_uncertain:
            return
        path, self._path = self._path, None
        self._close()
        if path is not None:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the next start removes it, or puts it aside
                _log.warning("%s could not be removed: %s", path, error)
            if hasattr(self, "_charge"):
                self._charge.give_back()

    def __del__(self) -> None:
        self.discard()
