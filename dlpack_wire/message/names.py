"""Names and user metadata: between checked values and the fields that carry them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError as ProtobufDecodeError

from ..errors import DecodeError, EncodeError, LimitError, WireError
from ..tensor.memory import Buffer
from ..v1 import tensor_file_pb2
from .tags import SUM_FIELD_BYTES, tag
from .wire import LEN, length_delimited, read_field


class UnknownValue(NamedTuple):
    """A metadata value of a kind that this version does not know: kept, and written again as it was.

    Attributes:
        serialized: The serialized `MetadataValue`.
    """

    serialized: bytes


Value = str | int | float | bool | bytes | UnknownValue
Metadata = Mapping[str, Value]

MAX_NAME_BYTES = 4096
"""Longest name in UTF-8: the length of a path on most systems."""

MAX_ALIASES = 64
"""Maximum number of further names of one tensor: a model with a weight tied more often has not been seen."""

MAX_RECORD_BYTES = 1 << 20
"""Maximum bytes of a record without its tensor: a reader fetches them before it looks at the tensor."""

MAX_NAMES_BYTES = MAX_RECORD_BYTES - SUM_FIELD_BYTES
"""Maximum bytes of a record's names and metadata: its cap without the header sum's field."""

MAX_FILE_METADATA_BYTES = 16 << 20
"""Maximum bytes of a file's metadata: a tokenizer's vocabulary fits."""

# Numbers of the fields that records of a file and of the service, and entries of an index, have in common.
_RECORD = tensor_file_pb2.TensorRecord.DESCRIPTOR
_NAME, _ALIAS, _METADATA = (tag(_RECORD, field) >> 3 for field in ("name", "aliases", "metadata"))

# Those of a map's entries, which every map has: protobuf writes it as a repeated message of these two.
_KEY, _VALUE = 1, 2


def encode_name(name: str, *, allow_empty: bool = False) -> bytes:
    """Return a name's bytes.

    Raises:
        EncodeError: The name is empty, too long, not valid Unicode, or contains NUL.
    """
    if type(name) is not str:
        raise EncodeError(f"a name must be a str, not {type(name).__name__}", field="name")
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"{name!r} is not valid Unicode: {error.reason}", field="name") from None
    if not encoded and not allow_empty:
        raise EncodeError("must not be empty, except for a file's only tensor", field="name")
    if len(encoded) > MAX_NAME_BYTES or b"\0" in encoded:
        _refuse_name(encoded, EncodeError)
    return encoded


def decode_name(encoded: bytes) -> str:
    """Check and return a name that arrived, which may be empty.

    Raises:
        DecodeError: The name is too long, not UTF-8, or contains NUL.
    """
    if len(encoded) > MAX_NAME_BYTES or b"\0" in encoded:
        _refuse_name(encoded, DecodeError)
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"{encoded[:64]!r} is not UTF-8: {error.reason}", field="name") from None


def check_encodings(encoded: Sequence[bytes]) -> None:
    """Check many names at once; see `decode_name`.

    Raises:
        DecodeError: A name is too long, not UTF-8, or contains NUL.
    """
    joined = b"\0".join(encoded)
    try:
        joined.decode()
        good = joined.count(0) == len(encoded) - 1 and max(map(len, encoded)) <= MAX_NAME_BYTES
    except UnicodeDecodeError:
        good = False
    if not good:
        for name in encoded:
            decode_name(name)


def _refuse_name(encoded: bytes, error: type[WireError]) -> None:
    if len(encoded) > MAX_NAME_BYTES:
        said = f"{encoded[:32]!r}... has {len(encoded)} bytes; at most {MAX_NAME_BYTES} are allowed"
        if error is DecodeError:
            raise LimitError(said, declared=len(encoded), limit=MAX_NAME_BYTES, field="name")
        raise EncodeError(said, field="name", declared=len(encoded), limit=MAX_NAME_BYTES)
    raise error(f"{encoded[:64]!r} contains NUL", field="name")


def encode_value(key: str, value: Any) -> tensor_file_pb2.MetadataValue:
    """Return a value as its message.

    Raises:
        EncodeError: The value is not a str, int, float, bool or bytes, or is an int beyond 64 bits.
        ValueError: The value is a str that is not valid Unicode; `encode_map` makes that an EncodeError.
    """
    if isinstance(value, UnknownValue):
        return tensor_file_pb2.MetadataValue.FromString(value.serialized)
    if isinstance(value, str):
        return tensor_file_pb2.MetadataValue(string_value=value)
    if isinstance(value, (bool, np.bool_)):
        return tensor_file_pb2.MetadataValue(bool_value=bool(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return tensor_file_pb2.MetadataValue(bytes_value=bytes(value))
    if isinstance(value, (float, np.floating)):
        return tensor_file_pb2.MetadataValue(double_value=float(value))
    if isinstance(value, (int, np.integer)):
        number = operator.index(value)
        if not -(1 << 63) <= number < 1 << 63:
            raise EncodeError(f"{key!r}: {number} does not fit 64 bits", field="metadata")
        return tensor_file_pb2.MetadataValue(int_value=number)
    raise EncodeError(f"{key!r}: {type(value).__name__} is not a str, int, float, bool or bytes", field="metadata")


def decode_value(message: tensor_file_pb2.MetadataValue) -> Value:
    """Return the value in a message; one of an unknown kind as `UnknownValue`."""
    kind = message.WhichOneof("value")
    if kind is None:
        return UnknownValue(message.SerializeToString())
    value: Value = getattr(message, kind)
    return value


def encode_map(number: int, metadata: Metadata | None, limit: int) -> bytes:
    """Serialize metadata as the map field of that number, entries sorted by the bytes of their keys.

    Raises:
        EncodeError: A key or value cannot go into metadata, or all of it exceeds `limit` bytes.
    """
    if not metadata:
        return b""
    if not isinstance(metadata, Mapping):
        raise EncodeError(f"must be a mapping from str to values, not {type(metadata).__name__}", field="metadata")
    entries: dict[bytes, bytes] = {}
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise EncodeError(f"keys must be str, not {type(key).__name__}", field="metadata")
        try:
            encoded = key.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"key {key!r} is not valid Unicode: {error.reason}", field="metadata") from None
        try:
            content = encode_value(key, value).SerializeToString()
        except (UnicodeEncodeError, ValueError) as error:
            raise EncodeError(f"{key!r}: {error}", field="metadata") from None
        entries[encoded] = length_delimited(_KEY, encoded) + length_delimited(_VALUE, content)
    serialized = b"".join(length_delimited(number, entries[key]) for key in sorted(entries))
    if len(serialized) > limit:
        raise EncodeError(
            f"{len(serialized)} bytes; at most {limit} are allowed",
            field="metadata",
            declared=len(serialized),
            limit=limit,
        )
    return serialized


def decode_map(serialized: Buffer, limit: int) -> dict[str, Value]:
    """Read metadata out of consecutive map fields, written as `encode_map` writes them.

    Raises:
        LimitError: There are more than `limit` bytes.
        DecodeError: Keys are not ascending and unique, or a value is malformed.
    """
    if len(serialized) > limit:
        raise LimitError(
            f"{len(serialized)} bytes; at most {limit} are allowed",
            declared=len(serialized),
            limit=limit,
            field="metadata",
        )
    metadata: dict[str, Value] = {}
    last: bytes | None = None
    pos, end = 0, len(serialized)
    while pos < end:
        entry = read_field(serialized, pos, end)
        key = read_field(serialized, entry.content, entry.end) if entry.wire_type == LEN else entry
        value = read_field(serialized, key.end, entry.end) if key.end < entry.end else key
        if (key.number, key.wire_type, value.number, value.wire_type, value.end) != (_KEY, LEN, _VALUE, LEN, entry.end):
            raise DecodeError("a map entry must be a key and a value", field="metadata", offset=pos)
        encoded = bytes(serialized[key.content : key.end])
        if last is not None and encoded <= last:
            raise DecodeError(f"key {encoded[:64]!r} is not in ascending order", field="metadata", offset=pos)
        last = encoded
        try:
            text = encoded.decode()
            message = tensor_file_pb2.MetadataValue.FromString(bytes(serialized[value.content : value.end]))
        except (UnicodeDecodeError, ProtobufDecodeError) as error:
            raise DecodeError(f"key {encoded[:64]!r}: {error}", field="metadata", offset=pos) from None
        metadata[text] = decode_value(message)
        pos = entry.end
    return metadata


def names_block(
    name: str, aliases: Sequence[str] = (), metadata: Metadata | None = None, *, allow_empty: bool = False
) -> bytes:
    """Serialize names and metadata: the first fields of a record, the same in its entry of the index.

    Raises:
        EncodeError: A name is malformed, names repeat, or the block exceeds a cap.
    """
    encoded = encode_name(name, allow_empty=allow_empty)
    block = length_delimited(_NAME, encoded) if encoded else b""
    if not aliases and not metadata:
        return block
    if len(aliases) > MAX_ALIASES:
        raise EncodeError(
            f"{len(aliases)} aliases; at most {MAX_ALIASES} are allowed",
            tensor=name,
            declared=len(aliases),
            limit=MAX_ALIASES,
        )
    names = {name}
    for alias in aliases:
        if alias in names:
            raise EncodeError(f"duplicate name {alias!r}", tensor=name)
        names.add(alias)
        block += length_delimited(_ALIAS, encode_name(alias))
    try:
        block += encode_map(_METADATA, metadata, MAX_NAMES_BYTES)
    except EncodeError as error:
        error.at(tensor=name)
        raise
    if len(block) > MAX_NAMES_BYTES:
        raise EncodeError(
            f"names and metadata take {len(block)} bytes; at most {MAX_NAMES_BYTES} are allowed",
            tensor=name,
            declared=len(block),
            limit=MAX_NAMES_BYTES,
        )
    return block


def split_names(block: Buffer) -> tuple[list[str], bytes]:
    """Return the names in a block made by `names_block`, and its metadata's bytes.

    Raises:
        LimitError: There are too many aliases.
        DecodeError: A name is malformed, or stands twice.
    """
    names: list[str] = []
    pos, end = 0, len(block)
    while pos < end:
        field = read_field(block, pos, end)
        if field.number == _METADATA:
            break
        if field.content == field.end:
            raise DecodeError("an empty name must be left out", field="name", offset=pos)
        if field.number == _ALIAS and not names:
            names.append("")  # only the name may be empty, and then it is left out
        names.append(decode_name(bytes(block[field.content : field.end])))
        pos = field.end
    names = names or [""]
    if len(names) > MAX_ALIASES + 1:
        raise LimitError(
            f"{len(names) - 1} aliases; at most {MAX_ALIASES} are allowed",
            declared=len(names) - 1,
            limit=MAX_ALIASES,
            field="aliases",
        )
    if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
        raise DecodeError(f"duplicate or empty names: {names}", field="name")
    return names, bytes(block[pos:])


def names_too_large(size: int, offset: int) -> LimitError:
    """Return the error for names and metadata over their cap."""
    return LimitError(
        f"names and metadata take {size} bytes or more; at most {MAX_NAMES_BYTES} are allowed",
        declared=size,
        limit=MAX_NAMES_BYTES,
        offset=offset,
    )
