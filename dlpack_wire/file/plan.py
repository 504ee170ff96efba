"""A tensor file planned before its payloads are known, so that they can be written straight to their final positions.

The sizes of all records and of the index follow from the headers alone. The sums have a fixed width and are filled in
once the payloads have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..message.wire import varint_size
from ..tensor.checksum import total
from ..tensor.header import Header
from .index import INDEX_TAG, MAGIC, TRAILER_BYTES, entry_bytes, entry_size, index_bytes
from .record import RECORD_ALIGNMENT, RecordPlan, plan_record, prefix


class Slot(NamedTuple):
    """One tensor in a planned file.

    Attributes:
        names: Its names and metadata, as `names_block` makes them.
        header: Its header, without a checksum.
        plan: The bytes of its record.
        record_offset: Position of the record's tag.
        data_offset: Position of the payload.
    """

    names: bytes
    header: Header
    plan: RecordPlan
    record_offset: int
    data_offset: int


class FilePlan:
    """The bytes of a tensor file of one generation, except its payloads.

    Attributes:
        slots: The tensors, in order.
        index_offset: Position of the index, behind the last record.
        size: Size of the whole file.
        payload_bytes: Size of all payloads together.
    """

    def __init__(self, tensors: Sequence[tuple[bytes, Header]], metadata: bytes = b"") -> None:
        """Plan a file.

        Args:
            tensors: Names block and header of each tensor, in order.
            metadata: The file's metadata, as `metadata_bytes` makes it.
        """
        self._metadata = metadata
        self.slots: list[Slot] = []
        position = len(MAGIC)
        for names, header in tensors:
            if header.checksum is not None:
                header = header.with_checksum(None)  # plans are remembered by header
            record = plan_record(header, len(names), position % RECORD_ALIGNMENT, RECORD_ALIGNMENT)
            self.slots.append(Slot(names, header, record, position, position + record.prefix_bytes))
            position += record.record_bytes
        self.index_offset = position
        lines = sum(entry_size(slot.names, slot.header) for slot in self.slots) + len(metadata)
        self.payload_bytes = sum(slot.header.payload_bytes for slot in self.slots)
        self.size = position + len(INDEX_TAG) + varint_size(lines) + lines + TRAILER_BYTES

    def pieces(self, sums: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield everything but the payloads, each piece with its position, in order.

        Args:
            sums: For each payload the sums of its blocks, 8 bytes each.
        """
        yield 0, MAGIC
        for slot, blocks in zip(self.slots, sums, strict=True):
            yield slot.record_offset, prefix(slot.plan, slot.names, total(blocks))
        yield self.index_offset, b"".join(index_bytes(self._lines(sums), self._metadata, self.index_offset))

    def _lines(self, sums: Sequence[bytes]) -> list[bytes]:
        """Return the lines of the index."""
        return [
            entry_bytes(slot.names, slot.header, blocks, slot.record_offset, slot.data_offset)
            for slot, blocks in zip(self.slots, sums, strict=True)
        ]
