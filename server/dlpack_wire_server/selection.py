"""Parts of stored tensors, selected where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from dlpack_wire.tensor.dtype import NATIVE
from dlpack_wire.tensor.header import Header
from dlpack_wire.tensor.source import Source
from dlpack_wire.tensor.tensor import is_foreign
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .status import Refusal
from .store import StoredObject, StoredRecord


def part(stored: StoredObject, record: StoredRecord, selections: Sequence[pb.AxisSelection]) -> tuple[Header, Source]:
    """Select a part of a tensor; return its header without a checksum, and its bytes, compact and row-major.

    Raises:
        Refusal: INVALID_REQUEST, if the tensor is packed, or a selection is malformed or one too many; OUT_OF_RANGE, if
            an index is outside its axis.
    """
    header = record.header
    if header.is_packed:
        raise Refusal("INVALID_REQUEST", f"elements of packed {header.dtype.name} share bytes: get the whole tensor")
    if len(selections) > len(header.shape):
        raise Refusal("INVALID_REQUEST", f"{len(selections)} selections for {len(header.shape)} axes")
    key = tuple(map(_key, selections))
    # Bytes are moved as they are: taken for native, they are not swapped here.
    order = header.byte_order
    native = header._replace(byte_order=NATIVE) if is_foreign(header) else header
    try:
        selected = stored.select(record, native, key)
    except IndexError as error:
        raise Refusal("OUT_OF_RANGE", str(error)) from None
    source = Source(selected, "compact")
    return source.header._replace(byte_order=order, device=header.device), source


def _key(selection: pb.AxisSelection) -> int | slice:
    kind = selection.WhichOneof("selection")
    if kind == "index":
        return selection.index
    if kind is None:
        raise Refusal("INVALID_REQUEST", "a selection is neither an index nor a range, or of a kind unknown here")
    wanted = selection.range
    if wanted.HasField("step") and wanted.step == 0:
        raise Refusal("INVALID_REQUEST", "the step of a range must not be zero")
    return slice(
        wanted.start if wanted.HasField("start") else None,
        wanted.stop if wanted.HasField("stop") else None,
        wanted.step if wanted.HasField("step") else None,
    )
