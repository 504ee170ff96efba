"""Tensors on disk, between processes and in logs: DLPack in, DLPack out, one protobuf schema in between.

    msg = dw.encode(x)          any DLPack producer -> bytes of a serialized DLTensor
    t = dw.decode(msg)          -> a Tensor for any DLPack consumer, without a copy

Importing this package loads neither grpc nor any array library but numpy.
"""

from __future__ import annotations

from .codec import decode, encode, from_proto, to_proto
from .device import Device
from .dtype import ByteOrder, DType
from .errors import (
    ChecksumError,
    DecodeError,
    EncodeError,
    LimitError,
    NotFoundError,
    RemoteError,
    TruncatedError,
    UnsupportedTensorError,
    UnsupportedVersionError,
    WireError,
)
from .file import load, load_dict, load_one, open, save, verify
from .header import Header
from .reader import FileReader
from .tensor import Tensor
from .writer import FileWriter

__version__ = "0.1.0"

__all__ = [
    "ByteOrder",
    "ChecksumError",
    "DType",
    "DecodeError",
    "Device",
    "EncodeError",
    "FileReader",
    "FileWriter",
    "Header",
    "LimitError",
    "NotFoundError",
    "RemoteError",
    "Tensor",
    "TruncatedError",
    "UnsupportedTensorError",
    "UnsupportedVersionError",
    "WireError",
    "decode",
    "encode",
    "from_proto",
    "load",
    "load_dict",
    "load_one",
    "open",
    "save",
    "to_proto",
    "verify",
]
