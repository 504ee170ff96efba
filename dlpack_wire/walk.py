"""Walking the top-level fields of a tensor file by their lengths, without its index."""

from __future__ import annotations

from typing import NamedTuple

from .errors import DecodeError, TruncatedError, UnsupportedVersionError
from .index import INDEX_TAG, MAGIC, TRAILER_BYTES, read_trailer
from .record import RECORD_TAG
from .storage import Bytes
from .wire import LEN, Buffer, read_minimal_varint, read_tag


def check_magic(found: Buffer, size: int) -> None:
    """Refuse what is no tensor file of this version.

    Args:
        found: The file's first bytes, as many as the magic has if there are so many.
        size: The file's size.
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


class Walk(NamedTuple):
    """What the top-level fields of a part of a file are.

    Attributes:
        records: Positions of all whole records.
        indexes: Beginnings and ends of all whole indexes; where one ends, its trailer should follow.
        ends: Ends of all complete generations.
        end: Position after the last whole field.
        stopped: Why the walk ended there and not where it should, or None.
    """

    records: list[int]
    indexes: list[tuple[int, int]]
    ends: list[int]
    end: int
    stopped: DecodeError | None

    @property
    def complete_end(self) -> int:
        """End of the last complete generation; 0 if there is none."""
        return self.ends[-1] if self.ends else 0


def walk(source: Bytes, begin: int = len(MAGIC), end: int | None = None) -> Walk:
    """Walk the fields in [begin, end) by their lengths, reading no payload.

    Args:
        source: The file.
        begin: Where a field begins.
        end: Where one should end; the file's end if not given.
    """
    size = source.size if end is None else end
    pos = begin
    records: list[int] = []
    indexes: list[tuple[int, int]] = []
    ends: list[int] = []
    stopped: DecodeError | None = None
    while pos < size:
        window = source.read(pos, min(pos + TRAILER_BYTES, size))
        limit = len(window)
        after_index = bool(indexes) and indexes[-1][1] == pos
        try:
            tag, content = read_tag(window, 0, limit)
            if tag & 7 == LEN and not after_index:
                length, content = read_minimal_varint(window, content, limit)
                after = pos + content + length
                if after > size:
                    raise TruncatedError(
                        f"field {tag >> 3} needs {length} bytes, has {size - pos - content}",
                        needed=length,
                        available=size - pos - content,
                    )
                if tag == RECORD_TAG[0]:
                    records.append(pos)
                elif tag == INDEX_TAG[0]:
                    indexes.append((pos, after))
                elif tag >> 3 in (1, 4, 5, 6):
                    raise DecodeError(f"field {tag >> 3} has wire type {LEN}")
            else:
                trailer = read_trailer(window)
                if trailer is None or not indexes or indexes[-1] != (trailer.index_offset, pos):
                    where = (
                        "trailer after the index" if indexes and indexes[-1][1] == pos else "record, index or trailer"
                    )
                    raise DecodeError(f"no {where} here")
                after = pos + TRAILER_BYTES
                ends.append(after)
        except DecodeError as error:
            what = "trailer behind the index" if after_index else "record or index"
            error.args = (f"no whole {what}: {error.args[0]}",)
            error.offset = pos  # so far it counted from the window's begin
            stopped = error
            break
        pos = after
    return Walk(records, indexes, ends, pos, stopped)
