"""Stored objects and drafts of them, and what a store of objects must do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple, Protocol

from dlpack_wire.errors import DecodeError
from dlpack_wire.file.lazy import LazyTensor
from dlpack_wire.file.plan import FilePlan
from dlpack_wire.file.storage import Storage
from dlpack_wire.service.messages import Record
from dlpack_wire.tensor.checksum import BLOCK_BYTES, block_count, check_blocks, sums_in, total
from dlpack_wire.tensor.header import Header
from dlpack_wire.tensor.memory import Buffer
from dlpack_wire.tensor.tensor import Tensor, from_payload

from .backing import Backing
from .budget import Budget
from .status import Refusal, StoreDamagedError

OBJECT_KEY = "dlpack_wire.object"
"""Key in the metadata of an object's file under which the object's name stands, so that a file says whose it is."""

_log = logging.getLogger(__name__)


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
        data_offset: Position of its payload in the backing.
        sums: Sums of the payload's blocks, 8 bytes each; empty in a draft.
    """

    names: tuple[str, ...]
    block: bytes
    header: Header
    data_offset: int
    sums: bytes = b""


_RECORD_BYTES, _NAME_BYTES, _EXTENT_BYTES, _STRIDE_BYTES, _VALUE_BYTES = 512, 64, 16, 40, 160
"""Bytes of memory that a tensor's description takes as Python objects, measured by `tracemalloc`: a fixed part, and
more for each name, extent, stride and metadata value. Most extents are small numbers, which Python shares."""


def held_bytes(record: Record | StoredRecord) -> int:
    """Return about how many bytes of memory a tensor's description takes: names, metadata and header."""
    header = record.header
    size = _RECORD_BYTES + _EXTENT_BYTES * len(header.shape) + _STRIDE_BYTES * len(header.strides or ())
    size += sum(_NAME_BYTES + len(name) for name in record.names)
    if isinstance(record, StoredRecord):
        return size + len(record.block)
    for key, value in record.metadata.items():
        size += _VALUE_BYTES + len(key) + (len(value) if isinstance(value, (str, bytes)) else 0)
    return size


class StoredObject:
    """One generation of a name's value. It can be read while it is held, whatever happens to the name.

    Attributes:
        info: Its summary.
        records: The tensors.
    """

    def __init__(
        self, info: ObjectSummary, records: Sequence[StoredRecord], source: Storage, *, is_checked: bool = False
    ) -> None:
        """Describe an object.

        Args:
            info: Its summary.
            records: The tensors.
            source: Its bytes.
            is_checked: Compare every block with its sum when it is read: the bytes are on a disk.
        """
        self.info = info
        self.records = records
        self._source = source
        self._is_checked = is_checked

    @cached_property
    def held_bytes(self) -> int:
        """About how many bytes of memory the descriptions of its tensors take."""
        return sum(map(held_bytes, self.records))

    @cached_property
    def by_name(self) -> dict[str, StoredRecord]:
        """The tensors by every name that they have."""
        return {name: record for record in self.records for name in record.names}

    def read(self, record: StoredRecord, begin: int, end: int) -> Buffer:
        """Return whole blocks of a tensor's payload.

        Raises:
            StoreDamagedError: They differ from what was put, or cannot be read.
        """
        with self._named_errors(record):
            data = self._source.read(record.data_offset + begin, record.data_offset + end)
            if self._is_checked:
                count = block_count(record.header.payload_bytes)
                check_blocks(sums_in(record.sums, begin, len(data)), begin // BLOCK_BYTES, count, data)
        return data

    def select(self, record: StoredRecord, header: Header, key: tuple[int | slice, ...]) -> Tensor:
        """Return a part of a tensor, of which only the blocks that it touches are read.

        Args:
            record: The tensor.
            header: Its header, or the same in this machine's byte order, so that no bytes are swapped.
            key: Integers and slices for the leading axes.

        Raises:
            StoreDamagedError: A block differs from what was put, or cannot be read.
            IndexError: An integer lies outside of its axis.
        """
        checked: set[int] | None = set() if self._is_checked else None
        with self._named_errors(record):
            if not header.payload_bytes:
                return from_payload(header, None, b"", 0)[key]
            return LazyTensor(header, self._source, record.data_offset, record.sums, checked)[key]

    @contextmanager
    def _named_errors(self, record: StoredRecord) -> Iterator[None]:
        try:
            yield
        except (DecodeError, OSError) as error:
            text = f"object {self.info.name!r}, tensor {record.names[0]!r}: {error}"
            _log.error("%s (generation %d)", text, self.info.generation)
            raise StoreDamagedError(text) from error


class Serialized(NamedTuple):
    """User metadata of an object.

    Attributes:
        shown: As the field of `ObjectInfo`.
        stored: As the field of a file's index.
    """

    shown: bytes
    stored: bytes


class Draft(NamedTuple):
    """An object being put, which nobody else sees.

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

    def complete(self, sums: Sequence[bytes]) -> list[StoredRecord]:
        """Write everything but the payloads, which must have been written."""
        self.backing.seal(sums)
        return [
            record._replace(header=record.header.with_checksum(total(blocks)), sums=blocks)
            for record, blocks in zip(self.records, sums, strict=True)
        ]

    def discard(self) -> None:
        """Give its memory or file back, unless it was published."""
        self.backing.discard()

    def info(self, name: str, generation: int) -> ObjectSummary:
        """Return the summary of an object published now."""
        payload_bytes = sum(record.header.payload_bytes for record in self.records)
        return ObjectSummary(name, generation, len(self.records), payload_bytes, time.time_ns(), self.metadata)


class Commit(NamedTuple):
    """The result of a put.

    Attributes:
        generation: The generation it got.
        repeated: True if the same upload had been committed before, and nothing was done now.
    """

    generation: int
    repeated: bool


class Committed(NamedTuple):
    """What an upload became.

    Attributes:
        name: The name that it was put under.
        generation: The generation it got.
    """

    name: str
    generation: int


class Store(Protocol):
    """A store of objects. Methods may block and may be called from any thread.

    Attributes:
        on_disk: True if methods wait for a disk.
        budget: Bytes in use, and their limit.
        memory: Bytes of memory that callers make the server hold beside that; the same budget if objects are in memory.
    """

    on_disk: bool
    budget: Budget
    memory: Budget

    @property
    def limit_bytes(self) -> int:
        """The limit in force: the budget's, or less if a disk has less."""

    def draft(self, records: Sequence[Record], metadata: Serialized) -> Draft:
        """Reserve memory or a file for an object; returned when the draft is dropped.

        Args:
            records: Its tensors.
            metadata: Its metadata.

        Raises:
            Refusal: STORE_FULL, if there is no space for the object.
        """

    def publish(
        self, draft: Draft, sums: Sequence[bytes], name: str, if_generation: int | None, upload: bytes | None
    ) -> Commit:
        """Make a draft whose payloads are written the value of a name.

        Args:
            draft: The object.
            sums: For each payload the sums of its blocks, 8 bytes each.
            name: Its name.
            if_generation: Precondition on the present generation; 0: the name must not exist.
            upload: Key to remember the commit by.

        Raises:
            Refusal: GENERATION_MISMATCH, if the present generation is not `if_generation`.
        """

    def committed(self, upload: bytes) -> Committed | None:
        """Return what an upload became, or None if it is not remembered."""

    def get(self, name: str, generation: int | None = None) -> StoredObject:
        """Return the object of a name.

        Raises:
            Refusal: OBJECT_NOT_FOUND, or GENERATION_MISMATCH if that generation is gone.
        """

    def generation(self, name: str) -> int:
        """Return the present generation of a name; 0 if there is none."""

    def delete(self, name: str, if_generation: int | None) -> int:
        """Remove a name, and return the generation that it had.

        Raises:
            Refusal: OBJECT_NOT_FOUND, or GENERATION_MISMATCH if the present generation is not `if_generation`.
        """

    def list(self, prefix: str, after: str, count: int) -> list[ObjectSummary]:
        """Return the next objects in the order of their names: at most `count`, at least one if there is one."""

    def close(self) -> None:
        """Release what outlives the process."""


def check_generation(name: str, wanted: int | None, present: int) -> None:
    """Refuse a precondition that does not hold."""
    if wanted is not None and wanted != present:
        held = f"is at generation {present}" if present else "does not exist"
        expected = f"generation {wanted}" if wanted else "no object"
        raise Refusal("GENERATION_MISMATCH", f"{name!r} {held}; expected {expected}")


def not_found(name: str) -> Refusal:
    """Return the refusal for a name that has no object."""
    return Refusal("OBJECT_NOT_FOUND", f"no object is called {name!r}")


def plan_object(records: Sequence[Record], metadata: Serialized) -> tuple[FilePlan, list[StoredRecord]]:
    """Plan the tensor file of an object; return the plan and the tensors with their positions."""
    blocks = [record.block for record in records]
    image = FilePlan([(block, record.header) for block, record in zip(blocks, records, strict=True)], metadata.stored)
    return image, [
        StoredRecord(record.names, block, record.header, slot.data_offset)
        for record, block, slot in zip(records, blocks, image.slots, strict=True)
    ]
