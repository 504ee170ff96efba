"""The short run of the fuzz targets: all inputs that were kept, and the same mutants of them every time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fuzz import corpus, properties
from subprocesses import run_python

import dlpack_wire as dw

MUTANTS = (10_000, 200_000)

each_target = pytest.mark.parametrize("target", properties.TARGETS)


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
        properties.check_bounded(target, content)


@pytest.mark.usefixtures("traced")
def test_mutants_obey_the_law(rounds: Callable[[int, int], int]) -> None:
    for target, content in corpus.mutants(rounds(*MUTANTS)):
        properties.check_bounded(target, content)


@each_target
def test_the_corpus_is_small_and_holds_every_verdict(target: str) -> None:
    """And every seed: golden vectors that are added must be fuzzed too."""
    kept = corpus.read(target)
    assert corpus.path(target).stat().st_size < 150_000
    verdicts = {properties.TARGETS[target](content).split()[0] for content in kept}
    assert {"value", "DecodeError", "TruncatedError"} <= verdicts
    assert target != "message" or "ChecksumError" in verdicts
    assert {properties.TARGETS[target](seed).split()[0] for seed in corpus.seeds(target)} <= verdicts


def test_verdicts_do_not_depend_on_the_protobuf_back_end() -> None:
    script = """
        import hashlib
        from google.protobuf.internal import api_implementation
        from fuzz import corpus, properties

        print(api_implementation.Type())
        inputs = [(target, content) for target in properties.TARGETS for content in corpus.read(target)]
        for target, content in (*inputs, *corpus.mutants(3000, seed=1)):
            print(hashlib.sha256(content).hexdigest()[:8], properties.TARGETS[target](content))
    """
    compiled, pure = (run_python(script, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=name) for name in ("upb", "python"))
    assert compiled.splitlines()[0] == "upb"
    assert pure.splitlines()[0] == "python"
    assert compiled.splitlines()[1:] == pure.splitlines()[1:]


# --- the properties themselves ----------------------------------------------------------------------------------------


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
    assert properties.check_message(message).startswith("value")
    monkeypatch.setattr(dw, function, broken(fault))
    with pytest.raises((AssertionError, type(fault))):
        properties.check_message(message)


@pytest.mark.usefixtures("traced")
def test_the_law_notices_memory_that_the_input_does_not_justify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(properties.TARGETS, "message", lambda content: str(len(bytearray(1 << 20))))
    with pytest.raises(AssertionError, match="bytes for an input"):
        properties.check_bounded("message", b"\0")


DTYPE, DATA = "2206 080110081801", "7a0101"
"""A uint8 of no dimensions; each message below would hold one, were it not for what is said beside it."""


@pytest.mark.parametrize(
    ("content", "plain"),
    [
        (DTYPE + DATA, True),
        ("a200 06 080110081801" + DATA, False),  # a tag is a byte longer than it need be
        ("2286 00 080110081801" + DATA, False),  # a length is
        ("2207 0801 108800 1801" + DATA, True),  # a value may be
        ("2207 8800 01 1008 1801" + DATA, False),  # a tag within it may not
        ("a2" + "80" * 8 + "02 06 080110081801" + DATA, False),  # a tag of more than 64 bits
        ("22 86" + "80" * 8 + "02 080110081801" + DATA, False),  # a length
        ("10" + "80" * 9 + "7e" + DTYPE + DATA, True),  # of a value such bits are dropped
        ("10" + "80" * 10 + "01" + DTYPE + DATA, False),  # but ten bytes are the most
        ("2a0b" + "81" + "80" * 9 + "01" + DTYPE + DATA, False),  # of an extent too
        ("0b0c" + DTYPE + DATA, False),  # a group
        ("2208 0b0c 080110081801" + DATA, False),  # a group within
        ("0000" + DTYPE + DATA, False),  # field 0
        ("72818001" + "00" * 16385 + DTYPE + DATA, False),  # padding over its cap
        ("72808001" + "00" * 16384 + DTYPE + DATA, True),
        ("a206808004" + "00" * 65536 + DTYPE + DATA, False),  # a header over its cap
    ],
)
def test_where_the_contract_is_stricter_than_protobuf(content: str, plain: bool) -> None:
    message = bytes.fromhex(content)
    assert properties.is_plain(message) is plain
    assert properties.check_message(message).startswith("value") is plain
