"""Paths of files of other formats: mapped for reading, replaced atomically by writing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import DecodeError
from ..file.replacement import Replacement
from ..file.storage import Storage, open_path


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[Storage]:
    """Open a file, mapped private; tensors made from it outlive this. Errors about its bytes name the file."""
    source = open_path(path)
    try:
        yield source
    except DecodeError as error:
        error.at(path=path)
        raise
    finally:
        source.close()


@contextlib.contextmanager
def replaced(path: str, durable: bool) -> Iterator[BinaryIO]:
    """Return a file to write to; rename it to `path` if nothing fails, else remove it."""
    replacement = Replacement(path, durable)
    try:
        with open(replacement.fd, "wb", closefd=False) as file:
            yield file
        replacement.publish()
    except BaseException:
        replacement.discard()
        raise
