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
    """Open a file, mapped private, for the tensors in it, which may outlive the block.

    Raises:
        DecodeError: The block raised it; the file's path is added.
        OSError: The file cannot be opened.
    """
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
    """Return a file to write to, and rename it to `path` after the block; if the block fails, remove it.

    Raises:
        OSError: The file cannot be made, written or renamed.
    """
    replacement = Replacement(path, durable)
    try:
        with open(replacement.fd, "wb", closefd=False) as file:
            yield file
        replacement.publish()
    except BaseException:
        replacement.discard()
        raise
