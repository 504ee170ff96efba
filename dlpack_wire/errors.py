"""Every exception that this package raises on purpose.

Any bytes fed to any decoder give a value or a `DecodeError`. Another exception that escapes a decoder is a bug of ours.

WireError
├── EncodeError                 your tensor cannot go on the wire
│   └── UnsupportedTensorError  also BufferError, as DLPack asks
├── DecodeError                 also ValueError: the input is wrong
│   ├── TruncatedError          needed, available
│   ├── ChecksumError           expected, actual
│   ├── LimitError              declared, limit
│   └── UnsupportedVersionError found, supported
└── RemoteError                 code, reason: a server refused, or could not be reached
    └── NotFoundError           also KeyError

To add where an error happened, call `at` on it and re-raise it with a bare `raise`, which keeps its cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class WireError(Exception):
    """Base of all errors of this package.

    Attributes:
        path: The file concerned, or None.
        tensor: Name of the tensor concerned, or None.
        topic: Topic concerned, or None.
        field: Name of the field or argument concerned, or None.
        offset: Byte position in the message or file, or None.
    """

    def __init__(
        self, message: str, *, tensor: str | None = None, field: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.path: str | None = None
        self.tensor = tensor
        self.topic: str | None = None
        self.field = field
        self.offset = offset

    def at(
        self,
        *,
        path: str | None = None,
        tensor: str | None = None,
        topic: str | None = None,
        offset: int | None = None,
    ) -> Self:
        """Add where it happened, unless that is known already; return the error."""
        if self.path is None:
            self.path = path
        if self.tensor is None:
            self.tensor = tensor
        if self.topic is None:
            self.topic = topic
        if self.offset is None:
            self.offset = offset
        return self

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        if self.field is not None:
            text = f"{self.field}: {text}"
        if self.tensor is not None:
            text = f"tensor {self.tensor!r}: {text}"
        if self.topic is not None:
            text = f"topic {self.topic!r}: {text}"
        if self.path is not None:
            text = f"{self.path}: {text}"
        return text if self.offset is None else f"{text} (at byte {self.offset})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with `args` alone, which subclasses with required keywords refuse:
        # an error sent back by a worker process would then kill the pool.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[WireError], args: tuple[Any, ...], attributes: dict[str, Any]) -> WireError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class EncodeError(WireError):
    """Your tensor, name or option cannot go on the wire.

    Attributes:
        declared: The size or count that is over a cap, or None if the error is about something else.
        limit: The cap, or None.
    """

    def __init__(self, message: str, *, declared: int | None = None, limit: int | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.declared = declared
        self.limit = limit


class UnsupportedTensorError(EncodeError, BufferError):
    """The tensor's dtype, device or kind cannot be represented in the form that was asked for."""


class DecodeError(WireError, ValueError):
    """The input is malformed or damaged, by the rules of proto/README.md or of the foreign format that it is in."""


class TruncatedError(DecodeError):
    """The input is shorter than it announces.

    Attributes:
        needed: Number of bytes that the input announces.
        available: Number of bytes that are there.
    """

    def __init__(self, message: str, *, needed: int, available: int, **where: Any) -> None:
        super().__init__(message, **where)
        self.needed = needed
        self.available = available


class ChecksumError(DecodeError):
    """Bytes do not match their checksum: they were damaged after they were written.

    Attributes:
        expected: Stored checksum: XXH3-64, or CRC-32 in zip and MCAP files.
        actual: The same of the bytes that are there.
    """

    def __init__(self, message: str, *, expected: int, actual: int, **where: Any) -> None:
        super().__init__(message, **where)
        self.expected = expected
        self.actual = actual


class LimitError(DecodeError):
    """The input declares more than a cap allows.

    Attributes:
        declared: The size or count that the input states.
        limit: The cap.
    """

    def __init__(self, message: str, *, declared: int, limit: int, **where: Any) -> None:
        super().__init__(message, **where)
        self.declared = declared
        self.limit = limit


class UnsupportedVersionError(DecodeError):
    """The input needs another version of this package.

    Attributes:
        found: Version of the input, or number of the field that is unknown.
        supported: Version that this package reads.
    """

    def __init__(self, message: str, *, found: object, supported: object, **where: Any) -> None:
        super().__init__(message, **where)
        self.found = found
        self.supported = supported


class RemoteError(WireError):
    """A server refused, or could not be reached.

    Attributes:
        code: Name of the gRPC status code, such as "UNAVAILABLE".
        reason: Name of an `ErrorReason` of tensor_service.proto without its prefix, or "".
    """

    def __init__(self, message: str, *, code: str, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.code = code
        self.reason = reason


class NotFoundError(RemoteError, KeyError):
    """The server has no object, or the object no tensor, of that name."""
