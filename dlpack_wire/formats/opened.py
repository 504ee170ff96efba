"""Files of other formats on disk: mapped for reading, replaced atomically by writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import DecodeError
from ..file.replacement import Replacement
from ..file.storage import MappedBytes, MemoryBytes, Storage


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[Storage]:
    """A file's bytes, mapped private; tensors made from them outlive this."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        source: Storage = MappedBytes(os.dup(fd), size) if size else MemoryBytes(b"")
    finally:
        os.close(fd)
    try:
        yield source
    except DecodeError as error:
        raise error.at(path=path) from error.__cause__
    finally:
        source.close()


@contextlib.contextmanager
def replaced(path: str, durable: bool) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` if nothing goes wrong."""
    place = Replacement(path, durable)
    try:
        with open(place.fd, "wb", closefd=False) as file:
            yield file
        place.publish()
    except BaseException:
        place.discard()
        raise
