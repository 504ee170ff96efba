"""The one table from exceptions to what a caller is told: gRPC status, machine-readable reason, safe text."""

from __future__ import annotations

import errno
from typing import NamedTuple

import grpc

from dlpack_wire.errors import ChecksumError, DecodeError, EncodeError
from dlpack_wire.service.arrival import IncompleteError, OutOfOrderError
from dlpack_wire.service.transport import REASON_KEY
from dlpack_wire.v1 import tensor_service_pb2 as pb

MAX_TEXT_BYTES = 1000
"""Most bytes of a status text. HTTP/2 peers take 8 KiB of trailers, and percent-encoding may triple the text."""

CODES: dict[str, grpc.StatusCode] = {
    "INVALID_NAME": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_TENSOR": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "CHUNK_OUT_OF_ORDER": grpc.StatusCode.INVALID_ARGUMENT,
    "CHECKSUM_MISMATCH": grpc.StatusCode.DATA_LOSS,
    "GENERATION_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "UPLOAD_IN_PROGRESS": grpc.StatusCode.FAILED_PRECONDITION,
    "UPLOAD_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "UPLOAD_INCOMPLETE": grpc.StatusCode.ABORTED,
    "OBJECT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TENSOR_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "OBJECT_TOO_LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "STORE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "HEADERS_TOO_LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "SUBSCRIBER_TOO_SLOW": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_SUBSCRIBERS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_REQUESTS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}
"""Status code of every `ErrorReason`."""


class Refusal(Exception):
    """The server will not do what was asked.

    Attributes:
        reason: Name of an `ErrorReason` without its prefix.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Status(NamedTuple):
    """The status of a call that failed.

    Attributes:
        code: gRPC's status code.
        reason: Name of the `ErrorReason`.
        text: For people, at most MAX_TEXT_BYTES.
    """

    code: grpc.StatusCode
    reason: str
    text: str

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The reason as trailing metadata."""
        return ((REASON_KEY, self.reason),)


def status_of(error: BaseException) -> Status:
    """Map an exception to a status. Unexpected exceptions become INTERNAL with no details."""
    if isinstance(error, Refusal):
        reason, text = error.reason, str(error)
    elif isinstance(error, ChecksumError):
        reason, text = "CHECKSUM_MISMATCH", str(error)
    elif isinstance(error, OutOfOrderError):
        reason, text = "CHUNK_OUT_OF_ORDER", str(error)
    elif isinstance(error, IncompleteError):
        reason, text = "UPLOAD_INCOMPLETE", str(error)
    elif isinstance(error, (DecodeError, EncodeError)):
        if error.field == "name":
            reason = "INVALID_NAME"
        else:
            reason = "INVALID_REQUEST" if error.tensor is None and error.topic is None else "INVALID_TENSOR"
        text = str(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, text = "STORE_FULL", "the disk is full"
    else:
        reason, text = "INTERNAL", "the server failed; its log says more"
    return Status(CODES[reason], reason, cut(text))


def cut(text: str) -> str:
    """Cut a text to at most MAX_TEXT_BYTES of UTF-8, between characters."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    return encoded[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "..."


assert {f"ERROR_REASON_{reason}" for reason in CODES} == set(pb.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}
