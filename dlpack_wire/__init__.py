"""Tensors on disk, between processes and in logs: DLPack in, DLPack out, one protobuf schema in between.

    msg = dw.encode(x)          any DLPack producer -> bytes of a serialized DLTensor
    t = dw.decode(msg)          -> a Tensor for any DLPack consumer, without a copy

Importing this package loads neither grpc nor any array library but numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .appender import FileAppender
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
from .recovery import recover
from .tensor import Tensor
from .writer import FileWriter

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .client import Client, connect
    from .connection import Tls
    from .log import LogReader, LogRecord, LogWriter

__version__ = "0.1.0"

# What needs an extra is imported when it is first asked for.
_LATER = {
    "AsyncClient": "async_client",
    "Client": "client",
    "LogReader": "log",
    "LogRecord": "log",
    "LogWriter": "log",
    "Tls": "connection",
    "connect": "client",
}


def __getattr__(name: str) -> object:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


__all__ = [
    "AsyncClient",
    "ByteOrder",
    "ChecksumError",
    "Client",
    "DType",
    "DecodeError",
    "Device",
    "EncodeError",
    "FileAppender",
    "FileReader",
    "FileWriter",
    "Header",
    "LimitError",
    "LogReader",
    "LogRecord",
    "LogWriter",
    "NotFoundError",
    "RemoteError",
    "Tensor",
    "Tls",
    "TruncatedError",
    "UnsupportedTensorError",
    "UnsupportedVersionError",
    "WireError",
    "connect",
    "decode",
    "encode",
    "from_proto",
    "load",
    "load_dict",
    "load_one",
    "open",
    "recover",
    "save",
    "to_proto",
    "verify",
]
