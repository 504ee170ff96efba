"""Random access to a file's bytes: by a private mapping, by positioned reads, or in memory."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from typing import Any, Protocol

from ..errors import TruncatedError
from ..tensor.memory import NO_RESERVE, Buffer, empty_aligned

# A mapping needs no descriptor of its own; before 3.13, Python keeps one for as long as the mapping lives.
_UNTRACKED: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}

WINDOW_BYTES = 256 * 1024
"""Bytes that a small read fetches, because heads of records lie close together. A larger window saves fetches where
tensors are small, and reads more than is used where they are large.
"""

AHEAD_BYTES = 8 << 20
"""Bytes that the kernel is asked to read ahead behind a payload: files are mostly read from front to back. More would
help slow disks, and evict other pages if the next tensor is not the one read next.
"""


class Storage(Protocol):
    """Random access to the bytes of a file.

    Attributes:
        size: Size of the file when it was opened.
    """

    size: int

    def read(self, begin: int, end: int) -> Buffer:
        """Return the bytes [begin, end), which must exist."""

    def memory(self, begin: int, end: int) -> tuple[Any, int]:
        """Return memory in which [begin, end) lies, and the position of `begin` in it."""

    def close(self) -> None:
        """Release everything that no tensor needs."""


class MemoryBytes:
    """A file that lies in memory."""

    def __init__(self, buffer: Any) -> None:
        self._view = memoryview(buffer).cast("B")
        self.size = len(self._view)

    def read(self, begin: int, end: int) -> Buffer:
        """Return a view."""
        return self._view[begin:end]

    def memory(self, begin: int, end: int) -> tuple[Any, int]:
        """Return all of the memory."""
        return self._view, begin

    def close(self) -> None:
        """Do nothing: the buffer is its owner's."""


class MappedBytes(MemoryBytes):
    """A file mapped private: writable memory that never changes the file."""

    def __init__(self, fd: int, size: int) -> None:
        """Map a file.

        Args:
            fd: Its descriptor; closed with this object.
            size: Its size, not 0.
        """
        self._fd = -1  # not ours to close before all has gone well
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        super().__init__(mmap.mmap(fd, size, mmap.MAP_PRIVATE | NO_RESERVE, protection, **_UNTRACKED))
        self._fd = fd

    def read(self, begin: int, end: int) -> Buffer:
        """Return a view, if the file still reaches that far."""
        # Touching a page beyond the end of a file that was cut after it was mapped would end the process.
        if self._fd >= 0:
            _check_size(os.fstat(self._fd).st_size, end, self.size)
        return self._view[begin:end]

    def memory(self, begin: int, end: int) -> tuple[Any, int]:
        """Return the whole mapping, if the file still reaches that far."""
        self.read(begin, end)
        return self._view, begin

    def close(self) -> None:
        """Close the descriptor; the mapping stays for as long as a tensor needs it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FetchedBytes:
    """A file read piece by piece. Small reads are served out of a window, so that many of them cost few fetches."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Its position and its bytes: replaced together, because other threads may be reading.
        self._window: tuple[int, Buffer] = (0, b"")

    def read(self, begin: int, end: int) -> Buffer:
        """Return fetched bytes, out of the window if they are few."""
        if end - begin > WINDOW_BYTES // 4:
            return self._fetched(begin, end)
        at, window = self._window
        if not at <= begin <= end <= at + len(window):
            try:
                at, window = begin, self._fetched(begin, min(begin + WINDOW_BYTES, self.size))
            except TruncatedError:  # a file that became shorter may still have the bytes asked for
                at, window = begin, self._fetched(begin, end)
            self._window = at, window
        return window[begin - at : end - at]

    def _fetched(self, begin: int, end: int) -> bytearray:
        into = bytearray(end - begin)
        self.fetch(memoryview(into), begin)
        return into

    def memory(self, begin: int, end: int) -> tuple[Any, int]:
        """Fetch into fresh aligned memory."""
        into = empty_aligned(end - begin)
        self.fetch(into.data, begin)
        return into, 0

    def fetch(self, into: memoryview, begin: int) -> None:
        """Fill memory with the file's bytes from `begin` on."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop the window; tensors that have not been read yet still need the rest."""
        self._window = (0, b"")


class PositionedBytes(FetchedBytes):
    """A file read by positioned reads, for file systems that do not map well."""

    def __init__(self, fd: int, size: int) -> None:
        """Read a file.

        Args:
            fd: Its descriptor; closed when nothing needs this object any more.
            size: Its size.
        """
        super().__init__(size)
        self._fd = fd

    def fetch(self, into: memoryview, begin: int) -> None:
        """Fill memory by positioned reads, and let the kernel read on behind large ones."""
        done = 0
        while done < len(into):
            count = os.preadv(self._fd, [into[done:]], begin + done)
            if count == 0:
                _check_size(begin + done, begin + len(into), self.size)
            done += count
        if len(into) > WINDOW_BYTES and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, begin + done, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

    def __del__(self) -> None:
        os.close(self._fd)


def _check_size(now: int, end: int, then: int) -> None:
    if now < end:
        raise TruncatedError(
            f"the file had {then} bytes when it was opened and has {now} now", needed=end, available=now
        )


def open_path(path: str, *, mapped: bool = True, only_regular: bool = False) -> Storage:
    """Open a file for random access.

    Args:
        path: A path.
        mapped: Map the file; else read it by positioned reads.
        only_regular: Refuse links, pipes and devices: for a name that comes from a file and not from the user.

    Raises:
        IsADirectoryError: The path is a folder.
        OSError: The file cannot be opened, or is of a kind that is refused.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK if only_regular else 0  # else a pipe would block
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if only_regular and not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_size and mapped:
            return MappedBytes(fd, status.st_size)
        if status.st_size:
            return PositionedBytes(fd, status.st_size)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return MemoryBytes(b"")  # an empty file cannot be mapped
