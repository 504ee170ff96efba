"""The order in which the parts of an object or a frame may arrive: a state machine without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ..errors import DecodeError, TruncatedError
from ..tensor.checksum import (
    BLOCK_BYTES,
    EMPTY,
    SUM_BYTES,
    block_count,
    check_blocks,
    check_sum,
    check_values,
    total,
    xxh3,
)
from .messages import Chunk, Record


class OutOfOrderError(DecodeError):
    """A chunk is not the next expected one. Everything before it is held."""


class IncompleteError(TruncatedError):
    """A stream ended before everything came. What came is held."""


class Stage(Enum):
    """The part of a stream that comes next."""

    START = "its start"
    RECORDS = "records"
    CHUNKS = "chunks"
    COMPLETE = "its end"
    ENDED = "nothing more"


class Arrival:
    """An object that arrives part by part, in the only order that is legal.

        stage       what may come       next stage
        START       begin               RECORDS
        RECORDS     record              CHUNKS after the last one, or COMPLETE if no payload has a byte
        CHUNKS      chunk               COMPLETE after the last byte
        COMPLETE    end                 ENDED

    A part that is refused leaves everything as it was before.

    Attributes:
        stage: The part that comes next.
        records: The tensors.
        sums: For each payload that is whole the sums of its blocks, 8 bytes each.
        tensor_index: Tensor that the next chunk must belong to; the number of tensors once all bytes came.
        offset: Position in its payload at which the next chunk must begin.
        received_bytes: Payload bytes so far.
        payload_bytes: Payload bytes of all records so far.
    """

    def __init__(self) -> None:
        self._sums = bytearray()  # of the present tensor
        self._record_count = 0
        self._declared_bytes: int | None = None
        self.stage = Stage.START
        self.records: list[Record] = []
        self.sums: list[bytes] = []
        self.tensor_index = 0
        self.offset = 0
        self.received_bytes = 0
        self.payload_bytes = 0

    @property
    def held_sum(self) -> int:
        """XXH3-64 of the sums of the present tensor's blocks so far."""
        return xxh3(self._sums)

    def begin(self, record_count: int, payload_bytes: int | None = None) -> None:
        """Take the start: how many records will follow, and how many payload bytes, if that is known.

        Raises:
            DecodeError: The start came before, or announces no record.
        """
        self._require(Stage.START, "the start")
        if record_count < 1:
            raise DecodeError("an object has at least one tensor", field="record_count")
        self._record_count = record_count
        self._declared_bytes = payload_bytes
        self.stage = Stage.RECORDS

    def record(self, record: Record) -> None:
        """Take the next record, without a payload.

        Raises:
            DecodeError: No record is due, or the sizes do not add up to what was announced.
        """
        self._require(Stage.RECORDS, "a record")
        if len(record.payload):
            raise DecodeError("a record here has no payload", tensor=record.names[0], field="data")
        if not record.header.payload_bytes and record.header.checksum is not None:
            check_sum(record.header.checksum, EMPTY, "empty payload")
        payload_bytes = self.payload_bytes + record.header.payload_bytes
        last = len(self.records) + 1 == self._record_count
        declared = self._declared_bytes
        if declared is not None and (payload_bytes > declared or (last and payload_bytes != declared)):
            raise DecodeError(f"{declared} announced, the headers add up to {payload_bytes}", field="payload_bytes")
        self.payload_bytes = payload_bytes
        self.records.append(record)
        if last:
            self.stage = Stage.CHUNKS
            self._step_over_whole()

    def chunk(self, chunk: Chunk) -> None:
        """Take the next chunk: check its position, its sum and its contents.

        Raises:
            OutOfOrderError: The chunk is not the next expected one.
            DecodeError: The chunk is not whole blocks with a sum each, or its contents are malformed.
            ChecksumError: A block does not match its sum, or all blocks the tensor's checksum.
        """
        self._require(Stage.CHUNKS, "a chunk")
        header = self.records[self.tensor_index].header
        size = len(chunk.data)
        end = self.offset + size
        last = end == header.payload_bytes
        if (chunk.tensor_index, chunk.offset) != (self.tensor_index, self.offset):
            raise OutOfOrderError(
                f"tensor {chunk.tensor_index} from byte {chunk.offset} came, "
                f"tensor {self.tensor_index} from byte {self.offset} is next",
                field="chunk",
            )
        if not size or end > header.payload_bytes:
            left = header.payload_bytes - self.offset
            raise OutOfOrderError(f"a chunk of {size} bytes; expected 1 to {left}", field="chunk")
        if size % BLOCK_BYTES and not last:
            raise DecodeError(f"{size} bytes are not whole blocks of {BLOCK_BYTES}", field="chunk")
        if len(chunk.sums) != block_count(size) * SUM_BYTES:
            raise DecodeError(f"{len(chunk.sums)} bytes of sums for {block_count(size)} blocks", field="block_sums")
        name = self.records[self.tensor_index].names[0]
        try:
            count = block_count(header.payload_bytes)
            check_blocks(chunk.sums, self.offset // BLOCK_BYTES, count, chunk.data)
            if last and header.checksum is not None:
                check_sum(header.checksum, total(bytes(self._sums) + chunk.sums), "payload")
            check_values(header, self.offset, chunk.data)
        except DecodeError as error:
            error.at(tensor=name, offset=self.offset)
            raise
        self._sums += chunk.sums
        self.offset = end
        self.received_bytes += size
        if last:
            self._step_over_whole()

    def end(self) -> None:
        """Take the sender's end marker.

        Raises:
            IncompleteError: Something is missing.
        """
        if self.stage is not Stage.COMPLETE:
            raise IncompleteError(
                f"ended after {self.received_bytes} of {self.payload_bytes} bytes, expecting {self.stage.value}",
                needed=self.payload_bytes,
                available=self.received_bytes,
                field="finish",
            )
        self.stage = Stage.ENDED

    def _require(self, stage: Stage, what: str) -> None:
        if self.stage is not stage:
            said = f"{what} came where {self.stage.value} should"
            raise OutOfOrderError(said, field="chunk") if what == "a chunk" else DecodeError(said)

    def _step_over_whole(self) -> None:
        """Step to the next tensor that lacks bytes."""
        while self.offset == self.records[self.tensor_index].header.payload_bytes:
            self.sums.append(bytes(self._sums))
            self._sums.clear()
            self.tensor_index += 1
            self.offset = 0
            if self.tensor_index == self._record_count:
                self.stage = Stage.COMPLETE
                return


def check_distinct_names(records: Sequence[Record]) -> None:
    """Refuse tensors that cannot be told apart in one object.

    Raises:
        DecodeError: A name is there twice, or the empty one beside another.
    """
    taken: set[str] = set()
    for record in records:
        for name in record.names:
            if name in taken:
                raise DecodeError(f"duplicate name {name!r}", field="name")
            taken.add(name)
    if "" in taken and len(taken) > 1:
        raise DecodeError("the empty name is reserved for an object's only tensor", field="name")
