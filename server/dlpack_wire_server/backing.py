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
    """The bytes of one object: written while it is a draft, read once it is published.

    Attributes:
        size: Bytes that it takes.
    """

    size: int

    def write(self, position: int, data: Buffer) -> None:
        """Put bytes at a position."""

    def seal(self, sums: Sequence[int]) -> None:
        """Make it whole, given the sums of its payloads. No byte will change any more."""

    def view(self) -> memoryview:
        """All bytes, read-only; valid for as long as somebody holds the view."""


class SmallBacking:
    """Plain bytes: the payloads one after the other. Nobody needs the file of an object so small."""

    size = 0

    def __init__(self, payload_bytes: int, overhead_bytes: int, budget: Budget) -> None:
        """Take room, which is given back with this object.

        Args:
            payload_bytes: How much will be written.
            overhead_bytes: What else the object takes.
            budget: Where it is taken from.
        """
        budget.reserve(payload_bytes + overhead_bytes)
        self.size = payload_bytes + overhead_bytes
        self._budget = budget
        self._bytes = bytearray(payload_bytes)

    def __del__(self) -> None:
        if self.size:
            self._budget.release(self.size)

    def write(self, position: int, data: Buffer) -> None:
        self._bytes[position : position + len(data)] = data

    def seal(self, sums: Sequence[int]) -> None:
        pass

    def view(self) -> memoryview:
        return memoryview(self._bytes).toreadonly()


class DescriptorBacking:
    """A file without a name or with one, written by calls and read through a mapping that lasts while it is in use.

    The mapping of a large one lasts as long as itself, so that its pages are looked up once. For small ones there may
    be too many for a process.

    Attributes:
        fd: Its descriptor, closed with this object.
        size: Its size.
    """

    fd = -1

    def __init__(self, fd: int, size: int, image: FilePlan | None = None) -> None:
        """A file that is there.

        Args:
            fd: Its descriptor.
            size: Its size.
            image: The plan of its bytes, if they are still to be written.
        """
        self.fd = fd
        self.size = size
        self._image = image
        self._mapped: weakref.ref[mmap.mmap] | None = None
        self._kept: mmap.mmap | None = None

    def write(self, position: int, data: Buffer) -> None:
        left = memoryview(data)
        while len(left):
            # One call writes at most about 2 GiB, and less on a disk that fills up.
            count = os.pwrite(self.fd, left, position)
            position += count
            left = left[count:]

    def seal(self, sums: Sequence[int]) -> None:
        assert self._image is not None
        for position, piece in self._image.pieces(sums):
            self.write(position, piece)
        self._image = None

    def view(self) -> memoryview:
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
    """A memfd."""

    def __init__(self, image: FilePlan, budget: Budget) -> None:
        """Take bytes, which are given back with this object."""
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

    def seal(self, sums: Sequence[int]) -> None:
        super().seal(sums)
        fcntl.fcntl(self.fd, *_SEALS)


class FileBacking(DescriptorBacking):
    """A file that is removed with this object, unless it is kept."""

    def __init__(self, path: Path, image: FilePlan, budget: Budget) -> None:
        """Make a file.

        Args:
            path: Where.
            image: The plan of its bytes, whose number has been reserved.
            budget: Where that is given back, unless it is kept.
        """
        self._budget: Budget | None = None
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        super().__init__(fd, image.size, image)
        self._path = path
        self._budget = budget
        os.ftruncate(self.fd, image.size)

    def seal(self, sums: Sequence[int]) -> None:
        super().seal(sums)
        os.fsync(self.fd)

    def place(self, path: Path) -> None:
        """Give the file its name, on disk too."""
        os.rename(self._path, path)
        self._path = path
        sync_folder(str(path.parent))

    def keep(self) -> None:
        """From now on it is removed by others."""
        self._budget = None

    def __del__(self) -> None:
        if self._budget is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._budget.release(self.size)
        super().__del__()
