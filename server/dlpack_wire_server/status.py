"""The one table from exceptions to what a caller is told: gRPC status, machine-readable reason, safe text."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from dlpack_wire.errors import ChecksumError, DecodeError, EncodeError
from dlpack_wire.service.arrival import IncompleteError, OutOfOrderError
from dlpack_wire.v1 import tensor_service_pb2 as pb

MAX_TEXT_BYTES = 1000
"""Maximum bytes of a status text. HTTP/2 peers take 8 KiB of trailers, and percent-encoding may triple the text."""

CODES = {
    "INVALID_NAME": "INVALID_ARGUMENT",
    "INVALID_TENSOR": "INVALID_ARGUMENT",
    "INVALID_REQUEST": "INVALID_ARGUMENT",
    "OUT_OF_RANGE": "OUT_OF_RANGE",
    "CHUNK_OUT_OF_ORDER": "INVALID_ARGUMENT",
    "CHECKSUM_MISMATCH": "DATA_LOSS",
    "GENERATION_MISMATCH": "FAILED_PRECONDITION",
    "UPLOAD_IN_PROGRESS": "FAILED_PRECONDITION",
    "UPLOAD_NOT_FOUND": "NOT_FOUND",
    "UPLOAD_INCOMPLETE": "ABORTED",
    "OBJECT_NOT_FOUND": "NOT_FOUND",
    "TENSOR_NOT_FOUND": "NOT_FOUND",
    "OBJECT_TOO_LARGE": "RESOURCE_EXHAUSTED",
    "STORE_FULL": "RESOURCE_EXHAUSTED",
    "HEADERS_TOO_LARGE": "RESOURCE_EXHAUSTED",
    "SUBSCRIBER_TOO_SLOW": "RESOURCE_EXHAUSTED",
    "TOO_MANY_SUBSCRIBERS": "RESOURCE_EXHAUSTED",
    "TOO_MANY_REQUESTS": "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED": "UNAUTHENTICATED",
    "PERMISSION_DENIED": "PERMISSION_DENIED",
    "SHUTTING_DOWN": "UNAVAILABLE",
    "INTERNAL": "INTERNAL",
}
"""Name of gRPC's status code for every `ErrorReason`."""


_FULL = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG


class Refusal(Exception):
    """The server will not do what was asked.

    Attributes:
        reason: Name of an `ErrorReason` without its prefix.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class StoreDamagedError(Refusal):
    """What is stored cannot be read as it was written."""

    def __init__(self, text: str) -> None:
        super().__init__("CHECKSUM_MISMATCH", text)


class UncertainError(Exception):
    """A write failed in a way that does not tell whether it happened: to be repeated under the same upload id."""


class StalledError(Exception):
    """The caller did not take a message in time: it may go on from there by another call."""


class Status(NamedTuple):
    """The status of a call that failed.

    Attributes:
        code: Name of gRPC's status code, whichever transport brought the call.
        reason: Name of the `ErrorReason`; "" if the code says it all.
        text: For people, at most MAX_TEXT_BYTES.
    """

    code: str
    reason: str
    text: str


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
    elif isinstance(error, UncertainError) or (isinstance(error, OSError) and error.errno == errno.EBUSY):
        return Status("UNAVAILABLE", "", "the store's index cannot be written now: try again")
    elif isinstance(error, StalledError):
        return Status("UNAVAILABLE", "", str(error))
    elif isinstance(error, OSError) and error.errno in _FULL:
        reason, text = "STORE_FULL", f"nothing can be written: {os.strerror(error.errno).lower()}"
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
