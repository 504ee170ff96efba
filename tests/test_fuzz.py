"""The short run of the fuzz targets: all inputs that were kept, and the same mutants of them every time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fuzz import corpus, law
from subprocesses import run_python

import dlpack_wire as dw

MUTANTS = (10_000, 1_000_000)

each_target = pytest.mark.parametrize("target", law.TARGETS)


@pytest.fixture
def traced() -> Iterator[None]:
    """Memory is counted."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@each_target
@pytest.mark.usefixtures("traced")
def test_what_was_kept_obeys_the_law(target: str) -> None:
    for content in (*corpus.read(target), *corpus.seeds(target)):
        law.check_bounded(target, content)


@pytest.mark.usefixtures("traced")
def test_mutants_obey_the_law(rounds: Callable[[int, int], int]) -> None:
    for target, content in corpus.mutants(rounds(*MUTANTS)):
        law.check_bounded(target, content)


@each_target
def test_the_corpus_is_small_and_holds_every_verdict(target: str) -> None:
    """And every seed: golden vectors that are added must be fuzzed too."""
    kept = corpus.read(target)
    assert corpus.path(target).stat().st_size < 150_000
    verdicts = {law.TARGETS[target](content).split()[0] for content in kept}
    assert {"value", "DecodeError", "TruncatedError"} <= verdicts
    assert target != "message" or "ChecksumError" in verdicts
    assert {law.TARGETS[target](seed).split()[0] for seed in corpus.seeds(target)} <= verdicts


def test_verdicts_do_not_depend_on_the_protobuf_back_end() -> None:
    script = """
        import hashlib
        from google.protobuf.internal import api_implementation
        from fuzz import corpus, law

        print(api_implementation.Type())
        inputs = [(target, content) for target in law.TARGETS for content in corpus.read(target)]
        for target, content in (*inputs, *corpus.mutants(3000, seed=1)):
            print(hashlib.sha256(content).hexdigest()[:8], law.TARGETS[target](content))
    """
    compiled, pure = (run_python(script, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=name) for name in ("upb", "python"))
    assert compiled.splitlines()[0] == "upb"
    assert pure.splitlines()[0] == "python"
    assert compiled.splitlines()[1:] == pure.splitlines()[1:]


# --- the law itself ---------------------------------------------------------------------------------------------------


def broken(error: Exception) -> Callable[..., dw.Tensor]:
    def read(*_: object, **__: object) -> dw.Tensor:
        raise error

    return read


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        ("decode", KeyError("another exception")),
        ("decode", dw.TruncatedError("another error than from_proto", needed=1, available=0)),
        ("from_proto", dw.DecodeError("only from_proto refuses")),
        ("encode", dw.EncodeError("what was decoded cannot be encoded")),
    ],
    ids=str,
)
def test_the_law_notices(function: str, fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    message = dw.encode(np.arange(3))
    assert law.check_message(message).startswith("value")
    monkeypatch.setattr(dw, function, broken(fault))
    with pytest.raises((AssertionError, type(fault))):
        law.check_message(message)


@pytest.mark.usefixtures("traced")
def test_the_law_notices_memory_that_the_input_does_not_justify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(law.TARGETS, "message", lambda content: str(len(bytearray(1 << 20))))
    with pytest.raises(AssertionError, match="bytes for an input"):
        law.check_bounded("message", b"\0")


@pytest.mark.parametrize(
    ("content", "plain"),
    [
        ("2206080210201801", True),  # a dtype
        ("a200 06080210201801", False),  # its tag is a byte longer than it need be
        ("2286 00080210201801", False),  # its length is
        ("2207 0802 10a000 1801", True),  # a value may be
        ("2207 8800 02 1020 1801", False),  # a tag within it may not
        ("0b0c", False),  # a group
        ("2203 0b0c 08", False),  # a group within
        ("0000", False),  # field 0
        ("2a0b" + "ff" * 10 + "01", False),  # an extent of more than 10 bytes
        ("28" + "ff" * 10 + "01", False),
        ("28" + "ff" * 9 + "7f", True),  # bits above 64 are dropped
        ("a2" + "80" * 8 + "02" + "00", False),  # but not of tags
        ("22" + "80" * 9 + "02", False),  # nor of lengths
        ("2a0a" + "ff" * 9 + "01", True),  # -1
        ("72818001" + "00" * 16385, False),  # padding over its cap
        ("72808001" + "00" * 16384, True),
        ("a2068080 04" + "00" * 65536, False),  # a header over its cap
        ("7a8080 04" + "00" * 65536, True),  # data has none
        ("22", True),  # a cut message: everybody refuses it
    ],
)
def test_where_the_contract_is_stricter_than_protobuf(content: str, plain: bool) -> None:
    assert law.is_plain(bytes.fromhex(content)) is plain
    if not plain:
        with pytest.raises(dw.DecodeError):
            dw.decode(bytes.fromhex(content))
