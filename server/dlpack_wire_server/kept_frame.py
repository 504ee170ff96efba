"""One frame of a topic: arriving, then kept as the messages that every subscriber is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dlpack_wire.service.arrival import Stage
from dlpack_wire.service.frames import FrameHead, delivered, frame_arrival, frame_fields
from dlpack_wire.service.messages import Chunk, chunk_parts
from dlpack_wire.tensor.checksum import total

from .budget import Budget

OVERHEAD_BYTES = 1024
"""Bytes that a frame takes beyond its payload, metadata and topic, about: Python objects and message heads."""

JOINED_BYTES = 256 << 10
"""A frame's head and first chunk share a message if together they are not larger than this."""


class KeptFrame:
    """A frame that has come in whole.

    Attributes:
        topic: Name of its topic.
        sequence: Its number on the topic.
        serial: Its number among all frames.
        size: Bytes that it takes.
    """

    __slots__ = ("_budget", "_chunks", "_fields", "sequence", "serial", "size", "topic")

    def __init__(
        self, topic: str, sequence: int, serial: int, fields: bytes, chunks: Sequence[bytes], size: int, budget: Budget
    ) -> None:
        """Take over `size` reserved bytes of `budget`, which are returned with this object."""
        self.topic = topic
        self.sequence = sequence
        self.serial = serial
        self.size = size
        self._fields = fields
        self._chunks = chunks
        self._budget = budget

    def __del__(self) -> None:
        self._budget.release(self.size)

    def messages(self, dropped_count: int) -> Iterator[bytes]:
        """Yield the messages of Subscribe that carry it."""
        head = delivered(self._fields, dropped_count)
        chunks = iter(self._chunks)
        if self._chunks and len(head) + len(self._chunks[0]) <= JOINED_BYTES:
            head += next(chunks)
        yield head
        yield from chunks


class Intake:
    """A frame that is arriving. Its bytes must be reserved before they are handed over.

    Attributes:
        topic: Name of its topic.
        size: Bytes taken for it so far.
    """

    def __init__(self, head: FrameHead, metadata: bytes) -> None:
        """Begin a frame.

        Args:
            head: The frame; its own `metadata` is ignored.
            metadata: Its metadata, serialized.
        """
        self.topic = head.topic
        self.size = 0
        self._head = head._replace(metadata={})
        self._metadata = metadata
        self._arrival = frame_arrival(head)
        self._chunks: list[bytes] = []

    @property
    def complete(self) -> bool:
        """True if all bytes have come."""
        return self._arrival.stage is Stage.COMPLETE

    def take(self, piece: Chunk) -> None:
        """Check a chunk and keep it. May run in a thread.

        Raises:
            DecodeError: Not the next chunk, or damaged.
        """
        self._arrival.chunk(piece)
        self._chunks.append(b"".join(chunk_parts(piece)))

    def finish(self, sequence: int, serial: int, budget: Budget) -> KeptFrame:
        """Return the kept frame, which takes over the bytes reserved of `budget`."""
        head = self._head
        self._arrival.end()
        header = head.header.with_checksum(total(self._arrival.sums[0]))
        fields = frame_fields(head.topic, sequence, head.time_ns or time.time_ns(), self._metadata, header)
        frame = KeptFrame(head.topic, sequence, serial, fields, self._chunks, self.size, budget)
        self.size = 0
        return frame
