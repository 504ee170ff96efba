"""The contents of a file of any format: tensors that are loaded one by one, and metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..errors import EncodeError
from ..message.codec import source_of
from ..message.names import Value
from ..tensor import layout
from ..tensor.dtype import ByteOrder, DType, carrier
from ..tensor.source import Source

PIECE_BYTES = 1 << 20
"""Bytes of a tensor that are swapped and written at a time. More saves calls, and takes more memory beside a tensor."""


@dataclass(frozen=True)
class Item:
    """One tensor of a file.

    Attributes:
        name: Its name; "" where the format has none.
        dtype: Element type.
        shape: Extents in elements.
        load: Function that returns the tensor, as anything that `encode` takes.
        metadata: User metadata of the tensor.
        identity: A key that is equal for items that are one tensor under several names; None if it has one name.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    load: Callable[[], Any]
    metadata: dict[str, Value] = field(default_factory=dict)
    identity: Hashable = None


@dataclass(frozen=True)
class Content:
    """The contents of a file.

    Attributes:
        items: The tensors, in the order of the file.
        metadata: User metadata of the file.
        skipped: Descriptions of everything else in the file, which is left behind.
        notes: Descriptions of what the tensors have to do with each other, which no other file tells.
        stored_bytes: Size of the file, and of the files beside it that hold its data.
    """

    items: list[Item]
    metadata: dict[str, Value] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stored_bytes: int = 0


def ties(items: Iterable[Item]) -> list[list[Item]]:
    """Return the items in groups: those that are one tensor under several names, and each other one by itself."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(("name", item.name) if item.identity is None else ("tie", item.identity), []).append(item)
    return list(groups.values())


def pieces(item: Item) -> Iterator[Any]:
    """Yield the elements' bytes, row-major and little endian, in pieces.

    Raises:
        EncodeError: The tensor differs from what the item announces.
        DecodeError: Damaged tensor.
    """
    with source_of(item.load(), "compact") as source:
        _check(item, source)
        swap = source.header.byte_order == ByteOrder.BIG
        for piece in source.pieces(PIECE_BYTES):
            yield np.frombuffer(piece, carrier(item.dtype.part_bytes)).byteswap().view(np.uint8).data if swap else piece


def _check(item: Item, source: Source) -> None:
    header = source.header
    if (header.dtype, header.shape) != (item.dtype, item.shape) or header.padded:
        raise EncodeError(
            f"announced as {item.dtype.name}{list(item.shape)}, is {header.dtype.name}{list(header.shape)}",
            tensor=item.name,
        )


def payload_bytes(item: Item) -> int:
    """Return the number of bytes that `pieces` yields."""
    return layout.compact_bytes(item.dtype, False, prod(item.shape))


def text_metadata(metadata: dict[str, Value], what: str, tensor: str | None = None) -> dict[str, str]:
    """Return metadata for a format that only knows text.

    Raises:
        EncodeError: Some of it is not text.
    """
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise EncodeError(
                f"{key!r} is {type(value).__name__}, and {what} only holds text", field="metadata", tensor=tensor
            )
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


def refuse_metadata(metadata: dict[str, Value], what: str, tensor: str | None = None) -> None:
    """Raise EncodeError if there is metadata, for a format that cannot hold any.

    Raises:
        EncodeError: There is metadata.
    """
    if metadata:
        raise EncodeError(f"{what} cannot hold {sorted(metadata)}", field="metadata", tensor=tensor)


def check_names(content: Content) -> None:
    """Raise EncodeError unless the names of all tensors differ, and they and the metadata are valid Unicode.

    Each reader may give names that another format cannot tell apart (a torch file {"a.b": x, "a": {"b": y}}), or halves
    of characters (JSON and pickles have them).

    Raises:
        EncodeError: Two tensors have the same name, or a text has no form in UTF-8.
    """
    names = [item.name for item in content.items]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise EncodeError("two tensors would have this name", tensor=twice, field="name")
    texts = [*names, *content.metadata, *(value for value in content.metadata.values() if isinstance(value, str))]
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"{text!r} is not valid Unicode: {error.reason}") from error
