"""Objects in this process's memory."""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence

from dlpack_wire.service.messages import Record

from .backing import MemfdBacking, SmallBacking
from .budget import Budget
from .store import (
    Commit,
    Committed,
    Draft,
    ObjectSummary,
    Serialized,
    StoredObject,
    StoredRecord,
    check_generation,
    held_bytes,
    not_found,
    plan_object,
)

SMALL_BYTES = 64 << 10
"""Objects with fewer payload bytes are plain bytes: a memfd for each would exhaust the file descriptors."""

_OVERHEAD_BYTES = 1536
"""Approximate overhead of an object in bytes, beside the descriptions of its tensors."""

_REMEMBERED_BYTES = 32 << 20
"""Maximum bytes of the names of committed uploads: 100 000 names of 300 bytes."""


class MemoryStore:
    """Objects in this process's memory. Bounded: refuses what does not fit."""

    on_disk = False

    def __init__(self, limit_bytes: int, retention_ns: int, max_remembered: int = 100_000) -> None:
        """Begin with an empty store.

        Args:
            limit_bytes: Maximum bytes of all images, drafts and replaced objects still being read included.
            retention_ns: How long committed uploads are remembered.
            max_remembered: How many are remembered at most.
        """
        self.budget = self.memory = Budget(limit_bytes)
        self._retention_ns = retention_ns
        self._max_remembered = max_remembered
        self._lock = threading.Lock()
        self._objects: dict[str, StoredObject] = {}
        self._names: list[str] = []  # in code point order, which is the byte order of UTF-8
        self._past: weakref.WeakValueDictionary[int, StoredObject] = weakref.WeakValueDictionary()
        self._last = time.time_ns() // 1000
        self._uploads: OrderedDict[bytes, tuple[Committed, int]] = OrderedDict()
        self._uploads_bytes = 0

    def draft(self, records: Sequence[Record], metadata: Serialized) -> Draft:
        """Reserve memory for an object: a bytearray for small payloads, else a memfd."""
        size = sum(record.header.payload_bytes for record in records)
        # The stored metadata has the object's name in it.
        overhead = _OVERHEAD_BYTES + len(metadata.shown) + len(metadata.stored)
        if size >= SMALL_BYTES:
            image, placed = plan_object(records, metadata)
            overhead += sum(map(held_bytes, placed))
            return Draft(placed, metadata.shown, MemfdBacking(image, overhead, self.budget))
        small: list[StoredRecord] = []
        begin = 0
        for record in records:
            small.append(StoredRecord(record.names, record.block, record.header, begin))
            begin += record.header.payload_bytes
        overhead += sum(map(held_bytes, small))
        return Draft(small, metadata.shown, SmallBacking(size, overhead, self.budget))

    def publish(
        self, draft: Draft, sums: Sequence[bytes], name: str, if_generation: int | None, upload: bytes | None
    ) -> Commit:
        """Make a draft the value of a name; the replaced object lives on while it is read."""
        records = draft.complete(sums)
        with self._lock:
            if upload is not None and upload in self._uploads:
                return Commit(self._uploads[upload][0].generation, True)
            present = self._objects.get(name)
            check_generation(name, if_generation, present.info.generation if present else 0)
            self._last += 1
            stored = StoredObject(draft.info(name, self._last), records, draft.backing.keep())
            self._objects[name] = self._past[self._last] = stored
            if present is None:
                insort(self._names, name)
            if upload is not None:
                self._remember(upload, Committed(name, self._last))
            return Commit(self._last, False)

    def _remember(self, upload: bytes, committed: Committed) -> None:
        now = time.monotonic_ns()
        self._uploads[upload] = (committed, now + self._retention_ns)
        self._uploads_bytes += len(committed.name)
        while (
            len(self._uploads) > self._max_remembered
            or self._uploads_bytes > _REMEMBERED_BYTES
            or next(iter(self._uploads.values()))[1] < now
        ):
            _, (oldest, _) = self._uploads.popitem(last=False)
            self._uploads_bytes -= len(oldest.name)

    def committed(self, upload: bytes) -> Committed | None:
        """Return what an upload became, while it is remembered."""
        with self._lock:
            found = self._uploads.get(upload)
        return found[0] if found is not None else None

    def get(self, name: str, generation: int | None = None) -> StoredObject:
        """Return the object of a name, or an earlier one that is still being read."""
        with self._lock:
            present = self._objects.get(name)
            if generation is None:
                if present is None:
                    raise not_found(name)
                return present
            past = self._past.get(generation)
        if past is None or past.info.name != name:
            check_generation(name, generation, present.info.generation if present else 0)
            raise not_found(name)
        return past

    def generation(self, name: str) -> int:
        """Return the present generation of a name."""
        with self._lock:
            present = self._objects.get(name)
        return present.info.generation if present is not None else 0

    def delete(self, name: str, if_generation: int | None) -> int:
        """Remove a name; its object lives on while it is read."""
        with self._lock:
            present = self._objects.get(name)
            if present is None:
                raise not_found(name)
            check_generation(name, if_generation, present.info.generation)
            del self._objects[name]
            del self._names[bisect_left(self._names, name)]
            return present.info.generation

    def list(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
        """Return the next objects in the order of their names."""
        found = []
        with self._lock:
            at = bisect_left(self._names, max(prefix, after))
            if at < len(self._names) and self._names[at] == after:
                at += 1
            for name in self._names[at : at + count]:
                if not name.startswith(prefix):
                    break
                found.append(self._objects[name].info)
        return found

    @property
    def limit_bytes(self) -> int:
        """The limit in force."""
        return self.budget.limit

    def close(self) -> None:
        """Do nothing: memory goes with the process."""
