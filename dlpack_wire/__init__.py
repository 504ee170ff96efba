"""Tensors on disk, between processes and in logs: DLPack in, DLPack out, one protobuf schema in between.

    message = dw.encode(x)      a tensor of any DLPack producer -> the bytes of one serialized DLTensor
    t = dw.decode(message)      -> a Tensor for any DLPack consumer, without a copy
    dw.save(path, {"w": x})     -> a file, which dw.open(path) maps
    dw.connect(address)         -> a client of the tensor service; needs the extra "grpc"

Importing this package loads neither grpc nor any array library but numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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
from .file.appender import FileAppender
from .file.compaction import Compaction, compact
from .file.diff import Difference, diff
from .file.reader import FileReader
from .file.recovery import Recovery, recover
from .file.writer import FileWriter
from .message.codec import decode, encode, from_proto, to_proto
from .message.names import Metadata
from .tensor.device import Device
from .tensor.dtype import ByteOrder, DType
from .tensor.header import Header
from .tensor.tensor import Tensor

if TYPE_CHECKING:
    from .formats.convert import Conversion as Conversion
    from .formats.convert import convert as convert
    from .log import LogReader as LogReader
    from .log import LogRecord as LogRecord
    from .log import LogWriter as LogWriter
    from .service.async_client import AsyncClient as AsyncClient
    from .service.async_client import AsyncPublisher as AsyncPublisher
    from .service.async_client import AsyncSubscription as AsyncSubscription
    from .service.client import Client as Client
    from .service.client import Publisher as Publisher
    from .service.client import Subscription as Subscription
    from .service.client import connect as connect
    from .service.operations import ObjectInfo as ObjectInfo
    from .service.operations import ServerInfo as ServerInfo
    from .service.tls import Tls as Tls
    from .service.topics import Frame as Frame
    from .service.topics import Policy as Policy
    from .service.upload import Progress as Progress

__version__ = "0.1.0"

# Imported when first asked for, because it is heavy or needs an extra; not part of `import *`.
_LATER = {
    "AsyncClient": ("service.async_client", "grpc"),
    "AsyncPublisher": ("service.async_client", "grpc"),
    "AsyncSubscription": ("service.async_client", "grpc"),
    "Client": ("service.client", "grpc"),
    "Conversion": ("formats.convert", None),
    "Frame": ("service.topics", None),
    "LogReader": ("log", "log"),
    "LogRecord": ("log", "log"),
    "LogWriter": ("log", "log"),
    "ObjectInfo": ("service.operations", None),
    "Policy": ("service.topics", None),
    "Progress": ("service.upload", None),
    "Publisher": ("service.client", "grpc"),
    "ServerInfo": ("service.operations", None),
    "Subscription": ("service.client", "grpc"),
    "Tls": ("service.connection", "grpc"),
    "connect": ("service.client", "grpc"),
    "convert": ("formats.convert", None),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LATER[name]
    try:
        value: object = getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        raise ImportError(
            f"dlpack_wire.{name} needs an extra: pip install 'dlpack-wire[{extra}]' ({error})", name=error.name
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "ByteOrder",
    "ChecksumError",
    "Compaction",
    "DType",
    "DecodeError",
    "Device",
    "Difference",
    "EncodeError",
    "FileAppender",
    "FileReader",
    "FileWriter",
    "Header",
    "LimitError",
    "Metadata",
    "NotFoundError",
    "Recovery",
    "RemoteError",
    "Tensor",
    "TruncatedError",
    "UnsupportedTensorError",
    "UnsupportedVersionError",
    "WireError",
    "compact",
    "decode",
    "diff",
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
