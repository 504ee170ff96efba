"""An object on its way from a server, and the memory it goes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DecodeError
from ..tensor.capsule import Borrowed
from ..tensor.dtype import carrier
from ..tensor.header import Header
from ..tensor.memory import empty_aligned
from ..tensor.tensor import Tensor, from_payload, is_foreign
from ..v1 import tensor_service_pb2 as pb
from .arrival import Arrival, Stage
from .messages import Chunk, Record, parse
from .upload import Progress


class Download:
    """An object being received.

    Attributes:
        request: The request for the whole of it.
        arrival: The parts that have come.
        generation: Its generation; 0 until it is known.
    """

    def __init__(self, request: pb.GetRequest, taken: Borrowed | None, progress: Progress | None) -> None:
        self.request = request
        self.arrival = Arrival()
        self.generation = 0
        self._taken = taken
        self._progress = progress
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._known_records = 0

    @property
    def complete(self) -> bool:
        """True if all bytes have come."""
        return self.arrival.stage is Stage.COMPLETE

    def next_request(self) -> bytes:
        """Return the request for what is missing."""
        request = pb.GetRequest()
        request.CopyFrom(self.request)
        if self.generation:
            request.generation = self.generation
            if request.selections:
                self._restart()
            request.start_tensor_index, request.start_offset = self.arrival.tensor_index, self.arrival.offset
        return request.SerializeToString()

    def _restart(self) -> None:
        """Forget the parts that came: a slice cannot be continued."""
        self.arrival = Arrival()
        self._arrays = []

    def take_fetched(self, raw: bytes) -> None:
        """Handle a FetchResponse: all headers, and all payload bytes or a prefix of them."""
        response, records, chunks = parse(pb.FetchResponse, raw)
        self._begin(response.object.generation, len(records))
        for record in records:
            self._record(record)
        for chunk in chunks:
            self._chunk(chunk)

    def take(self, raw: bytes) -> None:
        """Handle one message of a Get."""
        response, records, chunks = parse(pb.GetResponse, raw)
        if response.HasField("object"):
            self._begin(response.object.generation, response.record_count)
        for record in records:
            self._record(record)
        for chunk in chunks:
            self._chunk(chunk)

    def _begin(self, generation: int, record_count: int) -> None:
        if self.arrival.stage is Stage.START:
            self.arrival.begin(record_count)
            self.generation = generation
        elif generation != self.generation:
            raise DecodeError(f"generation {self.generation} was asked for, {generation} came", field="generation")
        else:
            self._known_records = len(self.arrival.records)

    def _record(self, record: Record) -> None:
        if self._known_records:  # a continued stream tells them again
            self._known_records -= 1
            return
        self.arrival.record(record)
        self._arrays.append(self._memory(record.header))

    def _memory(self, header: Header) -> np.ndarray[Any, Any]:
        taken = self._taken
        if taken is None:
            return empty_aligned(header.payload_bytes)
        if self._arrays:
            raise ValueError("out= is for one tensor, and the object has several: name one with tensors=[...]")
        if (
            (taken.dtype, taken.shape) != (header.dtype, header.shape)
            or header.is_packed
            or not taken.array.flags.writeable
        ):
            raise ValueError(
                f"out= must be writable {header.dtype.name} of shape {header.shape} with elements of whole bytes, "
                f"not {taken.dtype.name} of shape {taken.shape}"
            )
        if header.strides is not None or is_foreign(header) or not taken.array.flags.c_contiguous:
            return empty_aligned(header.payload_bytes)
        return taken.array.reshape(-1).view(np.uint8)

    def _chunk(self, chunk: Chunk) -> None:
        self.arrival.chunk(chunk)
        array = self._arrays[chunk.tensor_index]
        array[chunk.offset : chunk.offset + len(chunk.data)] = np.frombuffer(chunk.data, np.uint8)
        if self._progress is not None:
            self._progress(self.arrival.received_bytes, self.arrival.payload_bytes)

    def tensors(self) -> list[Tensor]:
        """Return the tensors in the order they were asked for."""
        return [
            from_payload(record.header, None, array, 0)
            for record, array in zip(self.arrival.records, self._arrays, strict=True)
        ]

    def fill(self) -> None:
        """Copy the tensor into the memory that was given for it, if it is not there yet."""
        taken = self._taken
        (array,) = self._arrays
        if taken is None or np.shares_memory(array, taken.array):
            return
        (tensor,) = self.tensors()
        element = carrier(taken.array.itemsize)
        np.copyto(taken.array.getfield(element), tensor.numpy().getfield(element))
