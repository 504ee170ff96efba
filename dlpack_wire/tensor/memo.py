"""A bounded memory of answers."""

from __future__ import annotations

from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Memo(dict[_K, _V]):
    """A dict that is emptied when it is full: what was found out before, by the input that it was found out for.

    Programs ask about the same few shapes, types and names again and again, so nearly every question is a hit. A
    hostile peer can make every question a miss: then the cap bounds memory, and emptying costs one step per entry, no
    more than filling did. Evicting the oldest entry instead would cost every hit a reordering.

    No lock is needed: each step is one operation of a dict, and a lost entry is found out again. Entries are plain
    values; none keeps a tensor, a buffer or a connection alive.

    Attributes:
        limit: Most entries.
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def keep(self, key: _K, value: _V) -> _V:
        """Remember a value, and return it."""
        if len(self) >= self.limit:
            self.clear()
        self[key] = value
        return value
