"""A bounded cache."""

from __future__ import annotations

from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Memo(dict[_K, _V]):
    """A dict of results by the input they were computed from, which is emptied when it is full.

    A program uses the same few shapes, types and names again and again, so nearly every look-up is a hit, and a hit
    costs no more than that of a dict. A hostile peer can make every look-up a miss: then the cap bounds the memory,
    and emptying costs one step per entry, as filling did. To evict the oldest entry instead would cost every hit a
    reordering.

    No lock is needed: every step is a single operation of a dict, and an entry that is lost to another thread is
    computed again.

    An entry keeps its key and value alive: numbers, bytes, headers, classes and functions. None may hold a tensor, a
    buffer or a connection.

    Attributes:
        limit: Maximum number of entries.
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def keep(self, key: _K, value: _V) -> _V:
        """Store a result, and return it."""
        if len(self) >= self.limit:
            self.clear()
        self[key] = value
        return value
