"""Reads the objects of a folder again and again, slowly, so that damage is known before somebody needs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from .directory_store import DirectoryStore
from .status import Refusal, StoreDamagedError
from .store import ObjectSummary, StoredObject

STEP_BYTES = 4 << 20
"""Bytes read at a time: whole blocks, and little enough for any cache."""

_OBJECT_BYTES = 64 << 10
"""Bytes that an object counts for at least: opening a file takes as long as reading so many."""

_PAUSE_S = 60.0
"""Least seconds between two passes, for a store with little in it."""

_log = logging.getLogger(__name__)


class Scrub:
    """Checks every object of a store, over and over.

    Attributes:
        checked_bytes: Payload bytes checked so far.
    """

    def __init__(self, store: DirectoryStore, bytes_per_s: int) -> None:
        """Begin at the first object.

        Args:
            store: The store, which this object does not own.
            bytes_per_s: Pace.
        """
        self.checked_bytes = 0
        self._store = store
        self._bytes_per_s = bytes_per_s
        self._damaged: set[str] = set()

    @property
    def damaged_count(self) -> int:
        """Number of objects that were damaged when they were last looked at."""
        return len(self._damaged)

    async def run(self) -> None:
        """Check all objects, for ever."""
        while True:
            await self.check_all()
            await asyncio.sleep(_PAUSE_S)

    async def check_all(self) -> None:
        """Check every object once."""
        damaged: set[str] = set()
        after = ""
        while found := await asyncio.to_thread(self._store.list, "", after, 100):
            for info in found:
                after = info.name
                if not await self._is_whole(info):
                    damaged.add(info.name)
                    self._damaged.add(info.name)
                else:
                    self._damaged.discard(info.name)
        self._damaged = damaged  # without those that are gone

    async def _is_whole(self, info: ObjectSummary) -> bool:
        """Return False if an object is damaged; the store has written into the log what is wrong."""
        try:
            stored = await asyncio.to_thread(self._store.peek, info)
            await self._pause(_OBJECT_BYTES)
            parts = _parts(stored)
            while (size := await asyncio.to_thread(next, parts, 0)) > 0:
                self.checked_bytes += size
                await self._pause(size)
        except StoreDamagedError:
            return False
        except (Refusal, FileNotFoundError):
            return True  # it was replaced or deleted meanwhile
        return True

    async def _pause(self, size: int) -> None:
        await asyncio.sleep(size / self._bytes_per_s)


def _parts(stored: StoredObject) -> Iterator[int]:
    """Check an object part by part; yield the size of each."""
    for record in stored.records:
        total = record.header.payload_bytes
        for begin in range(0, total, STEP_BYTES):
            end = min(begin + STEP_BYTES, total)
            stored.read(record, begin, end)
            yield end - begin
