"""Paths of files of other formats: mapped or read to their end, replaced atomically or written as it goes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from typing import Any

from ..errors import DecodeError
from ..file.replacement import Replacement
from ..file.storage import MemoryBytes, Storage, open_path

_PIECE_BYTES = 1 << 20
"""Bytes that are taken from a pipe at a time."""


def open_source(path: str) -> Storage:
    """Open a file, mapped private, or read a pipe to its end.

    Raises:
        OSError: The file cannot be opened, or is a device.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "a device, which has no known end", path)
    if not stat.S_ISFIFO(mode):
        return open_path(path)
    content = bytearray()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            content += piece
    return MemoryBytes(content)


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[Storage]:
    """Open a file for the tensors in it, which may outlive the block.

    Raises:
        DecodeError: The block raised it; the file's path is added.
        OSError: The file cannot be opened, or is a device.
    """
    source = open_source(path)
    try:
        yield source
    except DecodeError as error:
        error.at(path=path)
        raise
    finally:
        source.close()


def is_stream(path: str) -> bool:
    """Return True if a target is a pipe or a device, which is written as it goes and never replaced."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextlib.contextmanager
def replaced(path: str, durable: bool) -> Iterator[Any]:
    """Return a file to write to, and rename it to `path` after the block; if the block fails, remove it.

    Raises:
        OSError: The file cannot be made, written or renamed.
    """
    if is_stream(path):
        # By the path itself: what the link /dev/stdout leads to cannot be opened by its name.
        with open(path, "wb", buffering=0) as raw:
            yield _Stream(raw)
        return
    replacement = Replacement(path, durable)
    try:
        with open(replacement.fd, "wb", closefd=False) as file:
            yield file
        replacement.publish()
    except BaseException:
        replacement.discard()
        raise


class _Stream:
    """A pipe or a device. Some devices say that they can be positioned, and have forgotten what was written before."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw

    def write(self, content: Any) -> int:
        """Write all of it."""
        view = memoryview(content).cast("B")
        done = 0
        while done < len(view):
            written = self._raw.write(view[done:])
            if written is None:
                raise BlockingIOError(errno.EAGAIN, "the pipe takes nothing without waiting")
            done += written
        return done

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
