"""Stored objects: immutable images of tensor files under names, in memory."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
import weakref
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from dlpack_wire.file.plan import FilePlan
from dlpack_wire.service.messages import Record
from dlpack_wire.tensor.header import Header
from dlpack_wire.tensor.memory import Buffer

from .budget import Budget
from .status import Refusal

SMALL_BYTES = 64 << 10
"""Objects with fewer payload bytes are plain bytes: a descriptor for each would end at the limit of open files."""

_KEPT_MAPPING_BYTES = 4 << 20

_OVERHEAD_BYTES = 512
"""What an object takes beyond its bytes, and each tensor again, about."""

_SEALS = fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class ObjectSummary(NamedTuple):
    """An object as lists show it.

    Attributes:
        name: Its name.
        generation: Version of the name's value.
        tensor_count: Number of tensors.
        payload_bytes: Sum of the sizes of all payloads.
        created_time_ns: When it was published.
        metadata: Its user metadata, serialized as the field of `ObjectInfo`.
    """

    name: str
    generation: int
    tensor_count: int
    payload_bytes: int
    created_time_ns: int
    metadata: bytes


class StoredRecord(NamedTuple):
    """One tensor of an object.

    Attributes:
        names: Its name and aliases.
        block: The same and its metadata, serialized.
        header: Its header, with the payload's checksum.
        data_offset: Position of its payload in its room.
    """

    names: tuple[str, ...]
    block: bytes
    header: Header
    data_offset: int


class StoredObject:
    """One generation of a name's value. Whoever holds it may read it, whatever happens to the name meanwhile.

    Attributes:
        info: What lists show.
        records: The tensors.
    """

    def __init__(self, info: ObjectSummary, records: Sequence[StoredRecord], room: Backing) -> None:
        self.info = info
        self.records = records
        self._backing = room

    @cached_property
    def by_name(self) -> dict[str, StoredRecord]:
        """The tensors by every name that they have."""
        return {name: record for record in self.records for name in record.names}

    def payload(self, record: StoredRecord) -> memoryview:
        """A tensor's payload where it lies, read-only."""
        return self._backing.view()[record.data_offset : record.data_offset + record.header.payload_bytes]


class Serialized(NamedTuple):
    """User metadata of an object.

    Attributes:
        shown: As the field of `ObjectInfo`.
        stored: As the field of a file's index.
    """

    shown: bytes
    stored: bytes


class Draft(NamedTuple):
    """An object being put: room that is its own, and nobody else sees.

    Attributes:
        records: Its tensors, without checksums.
        metadata: The object's metadata, as in `ObjectInfo`.
        backing: Where its bytes go.
    """

    records: Sequence[StoredRecord]
    metadata: bytes
    backing: Backing

    def write(self, tensor_index: int, offset: int, data: Buffer) -> None:
        """Write a piece of a payload."""
        self.backing.write(self.records[tensor_index].data_offset + offset, data)

    def complete(self, sums: Sequence[int]) -> list[StoredRecord]:
        """Write everything but the payloads, which must have been written."""
        self.backing.seal(sums)
        return [
            StoredRecord(names, block, header.with_checksum(payload_sum), data_offset)
            for (names, block, header, data_offset), payload_sum in zip(self.records, sums, strict=True)
        ]

    def info(self, name: str, generation: int) -> ObjectSummary:
        """What lists will show, published now."""
        payload_bytes = sum(record.header.payload_bytes for record in self.records)
        return ObjectSummary(name, generation, len(self.records), payload_bytes, time.time_ns(), self.metadata)


class Commit(NamedTuple):
    """What came of a put.

    Attributes:
        generation: The generation it got.
        repeated: Whether the same upload had been committed before, and nothing was done now.
    """

    generation: int
    repeated: bool


class Store(Protocol):
    """Where objects are kept. Methods may block and may be called from any thread.

    Attributes:
        on_disk: Whether methods wait for a disk.
        budget: How much is in use.
    """

    on_disk: bool
    budget: Budget

    def draft(self, records: Sequence[Record], metadata: Serialized) -> Draft:
        """Reserve room for an object; given back when the draft is dropped.

        Args:
            records: Its tensors.
            metadata: Its metadata.

        Raises:
            Refusal: STORE_FULL.
        """

    def publish(
        self, draft: Draft, sums: Sequence[int], name: str, if_generation: int | None, upload: bytes | None
    ) -> Commit:
        """Make a draft whose payloads are written the value of a name.

        Args:
            draft: The object.
            sums: Checksums of its payloads.
            name: Its name.
            if_generation: Precondition on the present generation; 0: the name must not exist.
            upload: Key to remember the commit by.

        Raises:
            Refusal: GENERATION_MISMATCH.
        """

    def committed(self, upload: bytes) -> int | None:
        """The generation that an upload got, as far as it is remembered."""

    def get(self, name: str, generation: int | None = None) -> StoredObject:
        """The object of a name.

        Raises:
            Refusal: OBJECT_NOT_FOUND, or GENERATION_MISMATCH if that generation is gone.
        """

    def generation(self, name: str) -> int:
        """The present generation of a name; 0 if there is none."""

    def delete(self, name: str, if_generation: int | None) -> int:
        """Remove a name, and return the generation that it had.

        Raises:
            Refusal: OBJECT_NOT_FOUND, GENERATION_MISMATCH.
        """

    def list(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
        """The next objects in the order of their names, at most `count` but at least one if there is one."""

    def close(self) -> None:
        """Let go of everything that outlives the process."""


def check_generation(name: str, wanted: int | None, present: int) -> None:
    """Refuse a precondition that does not hold."""
    if wanted is not None and wanted != present:
        held = f"is at generation {present}" if present else "does not exist"
        raise Refusal("GENERATION_MISMATCH", f"{name!r} {held}, not at {wanted or 'none'}")


def not_found(name: str) -> Refusal:
    """The refusal for a name that nothing is stored under."""
    return Refusal("OBJECT_NOT_FOUND", f"no object is called {name!r}")


# --- room -------------------------------------------------------------------------------------------------------------


def in_image(records: Sequence[Record], metadata: Serialized) -> tuple[FilePlan, list[StoredRecord]]:
    """The plan of a tensor file, and the places of the tensors in it."""
    blocks = [record.block for record in records]
    image = FilePlan([(block, record.header) for block, record in zip(blocks, records, strict=True)], metadata.stored)
    return image, [
        StoredRecord(record.names, block, record.header, slot.data_offset)
        for record, block, slot in zip(records, blocks, image.slots, strict=True)
    ]


class Backing(Protocol):
    """The bytes of one object: written while it is a draft, read once it is published.

    Attributes:
        size: Bytes that it takes.
    """

    size: int

    def write(self, position: int, data: Buffer) -> None:
        """Put bytes at a position."""

    def seal(self, sums: Sequence[int]) -> None:
        """Make it whole, given the sums of its payloads. No byte will change any more."""

    def view(self) -> memoryview:
        """All bytes, read-only; valid for as long as somebody holds the view."""


class SmallBacking:
    """Plain bytes: the payloads one after the other. Nobody needs the file of an object so small."""

    size = 0

    def __init__(self, payload_bytes: int, overhead_bytes: int, budget: Budget) -> None:
        """Take room, which is given back with this object.

        Args:
            payload_bytes: How much will be written.
            overhead_bytes: What else the object takes.
            budget: Where it is taken from.
        """
        budget.reserve(payload_bytes + overhead_bytes)
        self.size = payload_bytes + overhead_bytes
        self._budget = budget
        self._bytes = bytearray(payload_bytes)

    def __del__(self) -> None:
        if self.size:
            self._budget.release(self.size)

    def write(self, position: int, data: Buffer) -> None:
        self._bytes[position : position + len(data)] = data

    def seal(self, sums: Sequence[int]) -> None:
        pass

    def view(self) -> memoryview:
        return memoryview(self._bytes).toreadonly()


class DescriptorBacking:
    """A file without a name or with one, written by calls and read through a mapping that lasts while it is in use.

    The mapping of a large one lasts as long as itself, so that its pages are looked up once. For small ones there may
    be too many for a process.

    Attributes:
        fd: Its descriptor, closed with this object.
        size: Its size.
    """

    fd = -1

    def __init__(self, fd: int, size: int, image: FilePlan | None = None) -> None:
        """A file that is there.

        Args:
            fd: Its descriptor.
            size: Its size.
            image: The plan of its bytes, if they are still to be written.
        """
        self.fd = fd
        self.size = size
        self._image = image
        self._mapped: weakref.ref[mmap.mmap] | None = None
        self._kept: mmap.mmap | None = None

    def write(self, position: int, data: Buffer) -> None:
        left = memoryview(data)
        while len(left):
            # One call writes at most about 2 GiB, and less on a disk that fills up.
            count = os.pwrite(self.fd, left, position)
            position += count
            left = left[count:]

    def seal(self, sums: Sequence[int]) -> None:
        assert self._image is not None
        for position, piece in self._image.pieces(sums):
            self.write(position, piece)
        self._image = None

    def view(self) -> memoryview:
        mapped = self._mapped() if self._mapped is not None else None
        if mapped is None:
            mapped = mmap.mmap(self.fd, self.size, mmap.MAP_PRIVATE, mmap.PROT_READ)
            self._mapped = weakref.ref(mapped)
            if self.size >= _KEPT_MAPPING_BYTES:
                self._kept = mapped
        return memoryview(mapped)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class MemfdBacking(DescriptorBacking):
    """A memfd."""

    def __init__(self, image: FilePlan, budget: Budget) -> None:
        """Take bytes, which are given back with this object."""
        budget.reserve(image.size)
        self._budget = budget
        try:
            fd = os.memfd_create("dlpack-wire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            super().__init__(fd, image.size, image)
            os.ftruncate(self.fd, image.size)
        except BaseException:
            if self.fd < 0:
                budget.release(image.size)
            raise

    def __del__(self) -> None:
        if self.fd >= 0:
            self._budget.release(self.size)
        super().__del__()

    def seal(self, sums: Sequence[int]) -> None:
        super().seal(sums)
        fcntl.fcntl(self.fd, *_SEALS)


# --- the store in memory ----------------------------------------------------------------------------------------------


class MemoryStore:
    """Objects in this process's memory. Bounded: refuses what does not fit."""

    on_disk = False

    def __init__(self, limit_bytes: int, retention_ns: int, max_remembered: int = 100_000) -> None:
        """An empty store.

        Args:
            limit_bytes: Most bytes of all images, drafts and replaced objects still being read included.
            retention_ns: How long committed uploads are remembered.
            max_remembered: Most of them.
        """
        self.budget = Budget(limit_bytes)
        self._retention_ns = retention_ns
        self._max_remembered = max_remembered
        self._lock = threading.Lock()
        self._objects: dict[str, StoredObject] = {}
        self._names: list[str] = []  # in code point order, which is the byte order of UTF-8
        self._past: weakref.WeakValueDictionary[int, StoredObject] = weakref.WeakValueDictionary()
        self._last = time.time_ns() // 1000
        self._uploads: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def draft(self, records: Sequence[Record], metadata: Serialized) -> Draft:
        size = sum(record.header.payload_bytes for record in records)
        if size >= SMALL_BYTES:
            image, placed = in_image(records, metadata)
            return Draft(placed, metadata.shown, MemfdBacking(image, self.budget))
        small: list[StoredRecord] = []
        begin, overhead = 0, _OVERHEAD_BYTES + len(metadata.shown)
        for record in records:
            block = record.block
            small.append(StoredRecord(record.names, block, record.header, begin))
            begin += record.header.payload_bytes
            overhead += _OVERHEAD_BYTES + len(block)
        return Draft(small, metadata.shown, SmallBacking(size, overhead, self.budget))

    def publish(
        self, draft: Draft, sums: Sequence[int], name: str, if_generation: int | None, upload: bytes | None
    ) -> Commit:
        records = draft.complete(sums)
        with self._lock:
            if upload is not None and upload in self._uploads:
                return Commit(self._uploads[upload][0], True)
            present = self._objects.get(name)
            check_generation(name, if_generation, present.info.generation if present else 0)
            self._last += 1
            stored = StoredObject(draft.info(name, self._last), records, draft.backing)
            self._objects[name] = self._past[self._last] = stored
            if present is None:
                insort(self._names, name)
            if upload is not None:
                self._remember(upload, self._last)
            return Commit(self._last, False)

    def _remember(self, upload: bytes, generation: int) -> None:
        now = time.monotonic_ns()
        self._uploads[upload] = (generation, now + self._retention_ns)
        while len(self._uploads) > self._max_remembered or next(iter(self._uploads.values()))[1] < now:
            self._uploads.popitem(last=False)

    def committed(self, upload: bytes) -> int | None:
        with self._lock:
            found = self._uploads.get(upload)
        return found[0] if found is not None else None

    def get(self, name: str, generation: int | None = None) -> StoredObject:
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
        with self._lock:
            present = self._objects.get(name)
        return present.info.generation if present is not None else 0

    def delete(self, name: str, if_generation: int | None) -> int:
        with self._lock:
            present = self._objects.get(name)
            if present is None:
                raise not_found(name)
            check_generation(name, if_generation, present.info.generation)
            del self._objects[name]
            del self._names[bisect_left(self._names, name)]
            return present.info.generation

    def list(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
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

    def close(self) -> None:
        pass
