"""Rewriting a tensor file without its dead bytes."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from ..errors import DecodeError
from ..message.names import names_block, split_names
from ..tensor.checksum import check_contents
from .appender import lock
from .contents import FileContents
from .entry import CheckedEntry, payload_of
from .record import MAX_ALIGNMENT, RECORD_ALIGNMENT
from .storage import open_path
from .writer import FileWriter, copy_record


class Compaction(NamedTuple):
    """The result of compacting a file.

    Attributes:
        names: Names in the file, in the order they were written.
        before_bytes: Size of the old file.
        after_bytes: Size of the new one.
    """

    names: list[str]
    before_bytes: int
    after_bytes: int


def compact(source: Any, target: Any = None, *, durable: bool = True) -> Compaction:
    """Rewrite a tensor file with one generation: without replaced and removed tensors, old indexes and unknown fields.

    Tensors, names, order, metadata and the payloads' alignment stay. Every payload is compared with its checksum on the
    way. What follows the last complete generation, of an append that was killed, is dropped.

    Args:
        source: Path of the file.
        target: Path of the new file. Not given: `source` is replaced, atomically. Those who have it open keep the old
            file, whose disk space is freed when they close it.
        durable: Wait until the new file is on disk.

    Raises:
        DecodeError: Not a tensor file, or damaged; nothing is written.
        EncodeError: The index would not fit 2^31-1 bytes.
        BlockingIOError: Another process is appending to the file.
        OSError: The file cannot be read or written; `source` is as it was.

    Memory:
        The index is held, and one payload is mapped at a time.
    """
    where = os.fsdecode(source)
    locked = lock(where)
    try:
        content = open_path(where)
        try:
            contents = FileContents(content, where)
            contents.check_claims()
            alignment = _alignment_of(contents)
            with FileWriter(
                where if target is None else target,
                metadata=contents.metadata(),
                durable=durable,
                alignment=alignment,
            ) as f:
                for ordinal, found in contents.entries():
                    _copy(f, contents, contents.names(ordinal), found)
                f.close()
            names = [name for name, _ in contents.ordinals()]
            return Compaction(names, content.size, os.stat(where if target is None else target).st_size)
        finally:
            content.close()
    finally:
        os.close(locked)


def _copy(f: FileWriter, contents: FileContents, names: list[str], found: CheckedEntry) -> None:
    header, checksum, entry = found
    own, metadata = split_names(entry.names)
    block = entry.names if own == names else names_block(names[0], names[1:]) + metadata
    payload = payload_of(contents.source, entry)
    try:
        check_contents(header, checksum, payload, found.sums)
    except DecodeError as error:
        error.at(path=contents.where, tensor=names[0])
        raise
    copy_record(f, block, header, payload)


def _alignment_of(contents: FileContents) -> int:
    """Return the largest alignment that all payloads of a file have, which is at least the one it was written with."""
    offsets = [link.index.offsets for link in contents.chain]
    begins = np.concatenate([rows[:, 1][rows[:, 2] > 0] for rows in offsets]) if offsets else np.empty(0, np.uint64)
    if not len(begins):
        return RECORD_ALIGNMENT
    shared = int(np.bitwise_or.reduce(begins)) | MAX_ALIGNMENT
    return shared & -shared
