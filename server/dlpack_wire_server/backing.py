"""Where the bytes of one object are: in a bytearray, a memfd, or a file of the store's folder."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dlpack_wire.file.plan import FilePlan
from dlpack_wire.file.replacement import sync_folder
from dlpack_wire.tensor.memory import Buffer

from .budget import Budget

_KEPT_MAPPING_BYTES = 4 << 20
"""Mappings of files from this size on are kept: looking its pages up again costs more than the entry of a mapping, of
which a process may have about 65 000."""

_SEALS = fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Backing(Protocol):
    """The bytes of one object: written while it is a draft, read once it is published. Memory is returned with it.

    Attributes:
        size: Bytes charged for it.
    """

    size: int

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes at a position."""

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write all but the payloads, given the sums of their blocks. No byte changes afterwards."""

    def view(self) -> memoryview:
        """Return all bytes, read-only; valid for as long as somebody holds the view."""


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
        budget.reserve(payload_bytes + overhead_bytes)
        self.size = payload_bytes + overhead_bytes
        self._budget = budget
        self._bytes = bytearray(payload_bytes)

    def __del__(self) -> None:
        if self.size:
            self._budget.release(self.size)

    def write(self, position: int, data: Buffer) -> None:
        """Write payload bytes; positions count from the first payload."""
        self._bytes[position : position + len(data)] = data

    def seal(self, sums: Sequence[bytes]) -> None:
        """Do nothing: there is nothing beside the payloads."""

    def view(self) -> memoryview:
        """Return the payloads."""
        return memoryview(self._bytes).toreadonly()


class DescriptorBacking:
    """A file, named or not: written by system calls, read through a mapping that lasts while it is in use.

    The mapping of a large one lasts as long as itself, so that its pages are looked up once. For small ones there may
    be too many for a process.

    Attributes:
        fd: Its descriptor, closed with this object.
        size: Its size.
    """

    fd = -1

    def __init__(self, fd: int, size: int, image: FilePlan | None = None) -> None:
        """Take over an open file.

        Args:
            fd: Its descriptor.
            size: Its size.
            image: The plan of its bytes, if they are to be written.
        """
        self.fd = fd
        self.size = size
        self._image = image
        self._mapped: weakref.ref[mmap.mmap] | None = None
        self._kept: mmap.mmap | None = None

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes at a position of the file."""
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
            self.write(position, piece)
        self._image = None

    def view(self) -> memoryview:
        """Return the mapped file; map it first if no mapping is in use."""
        mapped = self._mapped() if self._mapped is not None else None
        if mapped is None:
            mapped = mmap.mmap(self.fd, self.size, mmap.MAP_PRIVATE, mmap.PROT_READ)
            self._mapped = weakref.ref(mapped)
            if self.size >= _KEPT_MAPPING_BYTES:
                self._kept = mapped
        return memoryview(mapped)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class MemfdBacking(DescriptorBacking):
    """A sealed memfd."""

    def __init__(self, image: FilePlan, budget: Budget) -> None:
        """Reserve bytes, which are returned with this object."""
        budget.reserve(image.size)
        self._budget = budget
        try:
            fd = os.memfd_create("dlpack-wire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            super().__init__(fd, image.size, image)
            os.ftruncate(self.fd, image.size)
        except BaseException:
            if self.fd < 0:
                budget.release(image.size)
            raise

    def __del__(self) -> None:
        if self.fd >= 0:
            self._budget.release(self.size)
        super().__del__()

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write the rest of the file, and forbid every change."""
        super().seal(sums)
        fcntl.fcntl(self.fd, *_SEALS)


class FileBacking(DescriptorBacking):
    """A file in a folder, removed with this object unless it is kept."""

    def __init__(self, path: Path, image: FilePlan, budget: Budget) -> None:
        """Create the file.

        Args:
            path: Its path.
            image: The plan of its bytes; their number has been reserved.
            budget: Budget that they are returned to, unless the file is kept.
        """
        self._budget: Budget | None = None
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        super().__init__(fd, image.size, image)
        self._path = path
        self._budget = budget
        os.ftruncate(self.fd, image.size)

    def seal(self, sums: Sequence[bytes]) -> None:
        """Write the rest of the file, and wait until it is on disk."""
        super().seal(sums)
        os.fsync(self.fd)

    def rename(self, path: Path) -> None:
        """Rename the file, and wait until its new name is on disk."""
        os.rename(self._path, path)
        self._path = path
        sync_folder(str(path.parent))

    def keep(self) -> None:
        """Leave the file to the store, which removes it when it is replaced."""
        self._budget = None

    def __del__(self) -> None:
        if self._budget is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._budget.release(self.size)
        super().__del__()
