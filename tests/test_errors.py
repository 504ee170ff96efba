"""Errors say whose fault it was, where, and carry their numbers; they survive pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

import dlpack_wire as dw

ERRORS = [
    dw.WireError("wrong", tensor="w", field="shape", offset=7),
    dw.EncodeError("wrong", field="dtype"),
    dw.UnsupportedTensorError("wrong"),
    dw.DecodeError("wrong", offset=0),
    dw.TruncatedError("cut", needed=24, available=23, field="data"),
    dw.ChecksumError("damaged", expected=1, actual=2**64 - 1, tensor="w"),
    dw.LimitError("too much", declared=2**63, limit=64),
    dw.UnsupportedVersionError("too new", found=(2, 0), supported=(1, 3)),
    dw.RemoteError("refused", code="UNAVAILABLE", reason="DRAINING"),
    dw.NotFoundError("no such tensor", code="NOT_FOUND", tensor="w"),
]


@pytest.mark.parametrize(
    ("kind", "parents"),
    [
        (dw.EncodeError, (dw.WireError,)),
        (dw.UnsupportedTensorError, (dw.EncodeError, BufferError)),
        (dw.DecodeError, (dw.WireError, ValueError)),
        (dw.TruncatedError, (dw.DecodeError,)),
        (dw.ChecksumError, (dw.DecodeError,)),
        (dw.LimitError, (dw.DecodeError,)),
        (dw.UnsupportedVersionError, (dw.DecodeError,)),
        (dw.RemoteError, (dw.WireError,)),
        (dw.NotFoundError, (dw.RemoteError, KeyError)),
    ],
)
def test_parents(kind: type[Exception], parents: tuple[type[Exception], ...]) -> None:
    assert all(issubclass(kind, parent) for parent in parents)


def test_whose_fault_is_never_mixed() -> None:
    assert not issubclass(dw.EncodeError, dw.DecodeError)
    assert not issubclass(dw.EncodeError, ValueError)
    assert not issubclass(dw.DecodeError, (dw.EncodeError, BufferError))
    assert not issubclass(dw.RemoteError, (dw.DecodeError, dw.EncodeError))


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling(error: dw.WireError, protocol: int) -> None:
    """A worker process sends them back: one that cannot be unpickled kills the pool."""
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert again.args == error.args
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_errors_can_be_copied(error: dw.WireError) -> None:
    assert str(copy.copy(error)) == str(error)
    assert copy.deepcopy(error).__dict__ == error.__dict__


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_messages_name_the_place(error: dw.WireError) -> None:
    text = str(error)
    assert error.args[0] in text
    assert error.field is None or error.field in text
    assert error.tensor is None or repr(error.tensor) in text
    assert error.offset is None or f"byte {error.offset}" in text


def test_a_place_is_added_only_where_none_was_known() -> None:
    error = dw.DecodeError("wrong", offset=3)
    assert error.at(tensor="w", offset=9) is error
    assert (error.tensor, error.offset) == ("w", 3)
    assert error.at(tensor="v").tensor == "w"
    assert dw.DecodeError("wrong").at(offset=0).offset == 0


def test_names_are_shown_escaped() -> None:
    assert "\n" not in str(dw.DecodeError("wrong", tensor="a\nb\x1b[2J"))
    assert "\x1b" not in str(dw.DecodeError("wrong", tensor="a\nb\x1b[2J"))


def test_a_missing_name_prints_as_a_sentence() -> None:
    """KeyError alone would show the repr of its message."""
    assert str(dw.NotFoundError("no such tensor", code="NOT_FOUND")) == "no such tensor"


def test_errors_carry_their_numbers() -> None:
    truncated, checksum, limit = ERRORS[4:7]
    assert isinstance(truncated, dw.TruncatedError)
    assert (truncated.needed, truncated.available) == (24, 23)
    assert isinstance(checksum, dw.ChecksumError)
    assert (checksum.expected, checksum.actual) == (1, 2**64 - 1)
    assert isinstance(limit, dw.LimitError)
    assert (limit.declared, limit.limit) == (2**63, 64)


def test_numbers_cannot_be_forgotten() -> None:
    for kind in (dw.TruncatedError, dw.ChecksumError, dw.LimitError, dw.UnsupportedVersionError, dw.RemoteError):
        with pytest.raises(TypeError):
            kind("without numbers")
