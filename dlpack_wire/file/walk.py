"""Walking the top-level fields of a tensor file by their lengths, without its index."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import DecodeError, TruncatedError, UnsupportedVersionError
from ..message.wire import LEN, read_minimal_varint, read_tag
from ..tensor.memory import Buffer
from . import tags
from .index import MAGIC, TRAILER_BYTES, read_trailer
from .storage import Storage


def check_magic(found: Buffer, size: int) -> None:
    """Raise DecodeError unless a file begins as a tensor file of this version.

    Args:
        found: The file's first bytes, as many as the magic has or all.
        size: The file's size.

    Raises:
        UnsupportedVersionError: A tensor file of another version.
        DecodeError: Not a tensor file.
    """
    if size == 0:
        raise DecodeError("not a tensor file: it is empty", field="magic")
    if bytes(found) != MAGIC:
        if bytes(found[:8]) == MAGIC[:8] and len(found) == len(MAGIC):
            version = bytes(found[8:]).decode("latin-1")
            raise UnsupportedVersionError(
                f"tensor file of version {version!r}", found=version, supported="1", field="magic"
            )
        raise DecodeError(f"not a tensor file: it begins with {bytes(found)!r}, not {MAGIC!r}", field="magic")


_WINDOW_BYTES = 32 * 1024
"""Bytes that are read at once: many small records, or the head of a large one."""

_FIXED_NUMBERS = {tag >> 3 for tag in (tags.MAGIC, tags.INDEX_OFFSET, tags.INDEX_SUM, tags.END_MAGIC)}


class Walk(NamedTuple):
    """The top-level fields of a part of a file.

    Attributes:
        records: Positions of all whole records.
        indexes: Begins and ends of all whole indexes; at the end of each its trailer should follow.
        ends: Ends of all complete generations.
        end: Position after the last whole field.
        stopped: The fault that ended the walk before the end of the part, or None.
    """

    records: list[int]
    indexes: list[tuple[int, int]]
    ends: list[int]
    end: int
    stopped: DecodeError | None

    @property
    def complete_end(self) -> int:
        """End of the last complete generation; 0 if no generation is complete."""
        return self.ends[-1] if self.ends else 0


def walk(source: Storage, begin: int = len(MAGIC), end: int | None = None) -> Walk:
    """Walk the fields in [begin, end) by their lengths, reading no payload.

    Args:
        source: The file.
        begin: Position of a field.
        end: Position at which one should end; the file's end if not given.
    """
    size = source.size if end is None else end
    pos = origin = begin
    window: Buffer = b""
    records: list[int] = []
    indexes: list[tuple[int, int]] = []
    ends: list[int] = []
    index_end = -1
    stopped: DecodeError | None = None
    while pos < size:
        at = pos - origin
        if at + TRAILER_BYTES > len(window):
            origin, at = pos, 0
            window = source.read(pos, min(pos + _WINDOW_BYTES, size))
        limit = min(at + TRAILER_BYTES, len(window))
        try:
            tag, content = read_tag(window, at, limit)
            if tag & 7 == LEN and pos != index_end:
                length, content = read_minimal_varint(window, content, limit)
                after = origin + content + length
                if after > size:
                    available = size - origin - content
                    raise TruncatedError(
                        f"field {tag >> 3} needs {length} bytes, has {available}", needed=length, available=available
                    )
                if tag == tags.RECORD:
                    records.append(pos)
                elif tag == tags.INDEX:
                    indexes.append((pos, after))
                    index_end = after
                elif tag >> 3 in _FIXED_NUMBERS:
                    raise DecodeError(f"field {tag >> 3} has wire type {LEN}")
            else:
                trailer = read_trailer(window[at:limit])
                if trailer is None or pos != index_end or trailer.index_offset != indexes[-1][0]:
                    raise DecodeError(f"field {tag >> 3} has wire type {tag & 7}")
                after = pos + TRAILER_BYTES
                ends.append(after)
        except DecodeError as error:
            missing = "trailer behind the index" if pos == index_end else "record or index"
            error.args = (f"no whole {missing}: {error.args[0]}",)
            error.offset = pos  # it counted from the window's begin
            stopped = error
            break
        pos = after
    if stopped is None and pos == index_end:
        stopped = TruncatedError(
            "no whole trailer behind the index: none begins there", needed=TRAILER_BYTES, available=0
        )
        stopped.offset = pos
    return Walk(records, indexes, ends, pos, stopped)
