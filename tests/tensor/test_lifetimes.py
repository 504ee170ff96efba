"""Whoever lends memory gets it back: deleters run exactly once, in every order, in every error, and at the very end."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_built_capsules import (
    CUDA,
    FaultyProducer,
    Handmade,
    LegacyProducer,
    Producer,
    ToDlpackOnly,
    floats,
    managed_of,
    name_of,
)
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.message import codec
from dlpack_wire.tensor import capsule as capsules

BOTH = pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])

FAULTS: dict[str, dict[str, Any]] = {
    "opaque handle": {"code": 3, "bits": 64},
    "bits 0": {"bits": 0},
    "lanes 0": {"lanes": 0},
    "unknown width": {"bits": 24},
    "negative ndim": {"ndim": -1},
    "65 dimensions": {"shape": (1,) * 65},
    "huge ndim": {"ndim": 2**31 - 1},
    "null shape": {"shape": None, "ndim": 2},
    "negative extent": {"shape": (-6,)},
    "2^63 bytes": {"shape": (2**61,)},
    "null data": {"data": 0},
    "device memory": {"device": CUDA, "data": 0x10},
    "unknown device": {"device": (99, 0), "data": 0x10},
}
FAULTY = pytest.mark.parametrize("fields", FAULTS.values(), ids=FAULTS.keys())


def faulty(fields: dict[str, Any], **more: Any) -> Handmade:
    return Handmade(**{"data": bytes(24), "shape": (6,), **fields, **more})


# --- good tensors -----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", [Producer, LegacyProducer])
def test_a_producers_capsule_is_freed_once(kind: type[Producer], versioned: bool) -> None:
    producer = kind(lambda: floats(versioned=versioned))
    for times in range(1, 4):
        dw.encode(producer)
        assert producer.deleter_calls == [1] * times
    dw.to_proto(producer)
    assert producer.deleter_calls == [1] * 4


@BOTH
def test_a_producers_capsule_without_a_destructor_is_freed_once(versioned: bool) -> None:
    producer = Producer(lambda: floats(versioned=versioned, destructor=False))
    dw.encode(producer)
    assert producer.deleter_calls == [1]


@BOTH
def test_a_raw_capsule_is_only_borrowed(versioned: bool) -> None:
    made = floats(versioned=versioned)
    first = dw.encode(made.capsule)
    assert dw.encode(made.capsule) == first
    assert dw.to_proto(made.capsule).SerializeToString() == first
    assert name_of(made.capsule) == made.kind
    assert made.deleter_calls == 0
    made.drop()
    assert made.deleter_calls == 1


@BOTH
def test_a_raw_capsule_can_be_consumed_after_it_was_borrowed(versioned: bool) -> None:
    made = floats(versioned=versioned)

    class Holder:
        def __dlpack__(self, **_: Any) -> Any:
            return made.take()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    dw.encode(made.capsule)
    a = np.from_dlpack(Holder())
    assert made.deleter_calls == 0
    assert a.tolist() == [0, 1, 2, 3, 4, 5]
    del a
    assert made.deleter_calls == 1


@BOTH
def test_a_raw_capsule_without_a_destructor_is_consumed(versioned: bool) -> None:
    made = floats(versioned=versioned, destructor=False)
    dw.encode(made.capsule)
    assert made.deleter_calls == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="used_"):
            dw.encode(made.capsule)
    made.drop()
    assert made.deleter_calls == 1


@BOTH
def test_a_null_deleter_is_tolerated(versioned: bool) -> None:
    for destructor in (True, False):
        made = floats(versioned=versioned, deleter=False, destructor=destructor)
        assert dw.decode(dw.encode(made.capsule)).shape == (6,)
        made.drop()
        assert made.deleter_calls == 0


@BOTH
def test_a_consumed_capsule_is_refused(versioned: bool) -> None:
    used = b"used_dltensor_versioned" if versioned else b"used_dltensor"
    made = floats(versioned=versioned, name=used)
    for read in (dw.encode, dw.to_proto):
        with pytest.raises(ValueError, match=f"{used.decode()}' was consumed"):
            read(made.capsule)
    assert made.deleter_calls == 0
    made.call_deleter()


@pytest.mark.parametrize("name", [b"something else", b"", b"dltensor_", b"DLTENSOR", b"used_by_me", b"\xff\xfe"])
def test_a_capsule_of_another_kind_is_refused(name: bytes) -> None:
    made = floats(name=name)
    with pytest.raises(ValueError, match="capsule"):
        dw.encode(made.capsule)
    assert name_of(made.capsule) == name
    assert made.deleter_calls == 0
    made.call_deleter()


def test_a_capsule_is_refused_while_it_is_being_read() -> None:
    made = floats()
    with capsules.borrow(made.capsule):
        assert name_of(made.capsule) == b"used_dltensor_versioned"
        with pytest.raises(ValueError, match="used_"):
            dw.encode(made.capsule)
    assert dw.decode(dw.encode(made.capsule)).shape == (6,)


def test_releasing_twice_gives_back_once() -> None:
    made = floats(destructor=False)
    borrowed = capsules.borrow(made.capsule)
    borrowed.release()
    borrowed.release()
    assert made.deleter_calls == 1


@pytest.mark.parametrize("destructor", [True, False])
def test_threads_racing_for_a_capsule_read_it_whole_or_not_at_all(destructor: bool) -> None:
    expected = dw.encode(np.arange(6, dtype="f4"))
    threads = 4
    start = threading.Barrier(threads)

    def read(capsule: Any, results: list[Any]) -> None:
        start.wait()
        try:
            results.append(dw.encode(capsule))
        except ValueError as error:
            # Not the error itself: its traceback would hold the capsule.
            results.append(type(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            made = floats(destructor=destructor)
            results: list[Any] = []
            readers = [threading.Thread(target=read, args=(made.capsule, results)) for _ in range(threads)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            good = [r for r in results if r == expected]
            bad = [r for r in results if r is ValueError]
            assert len(good) + len(bad) == threads
            assert good if destructor else len(good) == 1
            assert made.deleter_calls == (0 if destructor else 1)
            del readers
            made.drop()
            assert made.deleter_calls == 1
    finally:
        sys.setswitchinterval(interval)


def test_an_object_with_only_to_dlpack_is_freed_once() -> None:
    made = floats()
    dw.encode(ToDlpackOnly(made))
    assert made.deleter_calls == 1


# --- bad ones ---------------------------------------------------------------------------------------------------------


@BOTH
@FAULTY
def test_a_faulty_tensor_of_a_producer_is_freed_once(fields: dict[str, Any], versioned: bool) -> None:
    producer = Producer(lambda: faulty(fields, versioned=versioned))
    with pytest.raises(dw.EncodeError):
        dw.encode(producer)
    gc.collect()
    assert producer.deleter_calls == [1]


@BOTH
@FAULTY
def test_a_faulty_raw_capsule_is_given_back(fields: dict[str, Any], versioned: bool) -> None:
    made = faulty(fields, versioned=versioned)
    for _ in range(2):
        with pytest.raises(dw.EncodeError):
            dw.encode(made.capsule)
        assert name_of(made.capsule) == made.kind
        assert made.deleter_calls == 0
    made.drop()
    gc.collect()
    assert made.deleter_calls == 1


@BOTH
@FAULTY
def test_a_faulty_raw_capsule_without_a_destructor_is_freed_once(fields: dict[str, Any], versioned: bool) -> None:
    made = faulty(fields, versioned=versioned, destructor=False)
    with pytest.raises(dw.EncodeError):
        dw.encode(made.capsule)
    assert made.deleter_calls == 1
    with pytest.raises(ValueError, match="used_"):
        dw.encode(made.capsule)
    assert made.deleter_calls == 1


@pytest.mark.parametrize("version", [(0, 5), (2, 0), (99, 1)])
def test_another_major_version_is_freed_untouched(version: tuple[int, int]) -> None:
    """Every field but version, context and deleter may have another meaning there: here they would crash."""
    nonsense = {"data": 1, "shape": None, "ndim": 3, "device": (-7, -7), "version": version}
    made = Handmade(**nonsense)
    with pytest.raises(dw.UnsupportedVersionError) as caught:
        dw.encode(made.capsule)
    assert caught.value.found == version
    assert made.deleter_calls == 0
    del caught  # its traceback holds the capsule
    made.drop()
    assert made.deleter_calls == 1
    alone = Handmade(**nonsense, destructor=False)
    with pytest.raises(dw.UnsupportedVersionError):
        dw.encode(alone.capsule)
    assert alone.deleter_calls == 1
    producer = Producer(lambda: Handmade(**nonsense))
    with pytest.raises(dw.UnsupportedVersionError):
        dw.encode(producer)
    assert producer.deleter_calls == [1]


def test_a_later_minor_version_is_read() -> None:
    assert dw.encode(floats(version=(1, 99)).capsule) == dw.encode(np.arange(6, dtype="f4"))


@pytest.mark.parametrize("make", [lambda m: m.capsule, lambda m: Producer(lambda: m)], ids=["capsule", "producer"])
@pytest.mark.parametrize("strides", [None, (2,)], ids=["whole", "gathered"])
def test_an_exception_in_the_middle_gives_the_memory_back(
    make: Callable[[Handmade], Any], strides: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    made = floats(12, shape=(6,), strides=strides)
    x = make(made)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "payload_sum", fail)
        patch.setattr(codec, "Summing", fail)
        with pytest.raises(KeyboardInterrupt):
            dw.encode(x)
    if isinstance(x, Producer):
        assert made.deleter_calls == 1
    else:
        del x
        assert (name_of(made.capsule), made.deleter_calls) == (made.kind, 0)
        made.drop()
        assert made.deleter_calls == 1


def test_a_producers_own_error_comes_through() -> None:
    with pytest.raises(TypeError, match="the producer's own fault"):
        dw.encode(FaultyProducer(floats))

    class Failing(Producer):
        def __dlpack__(self, **_: Any) -> Any:
            raise RuntimeError("no tensor today")

    with pytest.raises(RuntimeError, match="no tensor today"):
        dw.encode(Failing(floats))


@pytest.mark.parametrize("returned", [None, 7, "dltensor", object()])
def test_a_producer_that_returns_no_capsule_is_refused(returned: Any) -> None:
    class Odd:
        def __dlpack__(self, **_: Any) -> Any:
            return returned

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with pytest.raises(dw.EncodeError, match="__dlpack__"):
        dw.encode(Odd())


# --- lending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_a_lent_capsule_holds_the_message_until_it_is_gone(options: dict[str, Any]) -> None:
    buffer = bytearray(dw.encode(np.arange(6, dtype="f4")))
    before = sys.getrefcount(buffer)
    capsule = dw.decode(buffer).__dlpack__(**options)
    assert sys.getrefcount(buffer) > before
    del capsule
    assert sys.getrefcount(buffer) == before


@pytest.mark.parametrize("first", ["tensor", "consumer"])
def test_tensor_and_consumer_may_go_in_either_order(first: str) -> None:
    buffer = bytearray(dw.encode(np.arange(6, dtype="f4")))
    before = sys.getrefcount(buffer)
    held = {"tensor": dw.decode(buffer)}
    held["consumer"] = np.from_dlpack(held["tensor"])
    del held[first]
    assert sys.getrefcount(buffer) > before
    (left,) = held.values()
    assert np.asarray(left).tolist() == [0, 1, 2, 3, 4, 5]
    del left
    held.clear()
    assert sys.getrefcount(buffer) == before


def test_what_we_lend_says_what_it_is() -> None:
    capsule = dw.decode(dw.encode(np.arange(6, dtype="f4"))).__dlpack__(max_version=(1, 0))
    managed = managed_of(capsule)
    assert (managed.major, bool(managed.deleter), managed.flags) == (1, True, 1)


# --- many rounds ------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def stays_flat(round_trip: Callable[[], object], count: int) -> None:
    """A round handles at least 64 KiB, so 1000 that leak each would leave 64 MiB, and every tenth of them 6."""
    for _ in range(50):
        round_trip()
    gc.collect()
    before = resident_bytes()
    for _ in range(count):
        round_trip()
    gc.collect()
    assert resident_bytes() - before < 4 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_thousands_of_rounds_leave_nothing_behind(rounds: Callable[[int, int], int]) -> None:
    count = rounds(1000, 10_000)
    content = np.ones(16384, "f4")
    raw = content.tobytes()
    message = dw.encode(content)
    shape = (128, 128)

    def refused() -> None:
        with pytest.raises(dw.EncodeError):
            dw.encode(Producer(lambda: Handmade(raw, code=3, bits=64, shape=shape)))

    stays_flat(lambda: dw.encode(Producer(lambda: Handmade(raw, shape=shape))), count)
    stays_flat(lambda: dw.encode(Handmade(raw, shape=shape).take()), count)
    stays_flat(lambda: dw.encode(Handmade(raw, shape=shape, destructor=False).take()), count)
    stays_flat(refused, count)
    stays_flat(lambda: np.from_dlpack(dw.decode(bytearray(message))), count)
    stays_flat(lambda: dw.decode(bytearray(message)).__dlpack__(), count)
    stays_flat(lambda: dw.from_proto(dw.to_proto(content)).numpy(), count)
    torch = pytest.importorskip("torch")
    stays_flat(lambda: torch.from_dlpack(dw.decode(bytearray(message))), count)
    stays_flat(lambda: dw.encode(torch.ones(shape)), count)


def test_reference_counts_stay_flat() -> None:
    content = np.ones(6, "f4")
    message = bytearray(dw.encode(content))
    watched = (content, message, content.dtype, dw.DType("float32"), dw.Device(1, 0), None, (), 1)

    def rounds() -> None:
        for _ in range(100):
            dw.encode(content)
            dw.encode(content[::2])
            t = dw.decode(message)
            np.from_dlpack(t)
            t.numpy()
            t.__dlpack__()
            with pytest.raises(dw.DecodeError):
                dw.decode(message[:-1])

    rounds()
    before = [sys.getrefcount(x) for x in watched]
    rounds()
    after = [sys.getrefcount(x) for x in watched]
    assert all(abs(b - a) < 50 for a, b in zip(before, after, strict=True)), (before, after)


# --- the end ----------------------------------------------------------------------------------------------------------

AT_EXIT = """
    import numpy, torch
    import dlpack_wire as dw

    message = dw.encode(torch.arange(6.0))
    tensor = dw.decode(message)
    held = torch.from_dlpack(dw.decode(bytearray(message)))
    copied = torch.from_dlpack(dw.decode(message, copy=True))
    view = held[1:3]
    array = numpy.from_dlpack(tensor)
    capsules = [tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 3))]
    cycle = [held, tensor]
    cycle.append(cycle)
    torch.kept_in_another_module = torch.from_dlpack(dw.decode(bytearray(message)))
"""


def test_tensors_alive_at_exit_do_no_harm(rounds: Callable[[int, int], int]) -> None:
    pytest.importorskip("torch")
    for _ in range(rounds(5, 50)):
        assert run_python(AT_EXIT, "-X", "dev", "-W", "error") == ""


def test_the_last_reference_may_go_in_any_thread() -> None:
    pytest.importorskip("torch")
    script = """
        import threading
        import numpy, torch
        import dlpack_wire as dw

        message = dw.encode(torch.arange(6.0))
        for load in (torch.from_dlpack, numpy.from_dlpack, lambda t: t.__dlpack__()):
            for _ in range(50):
                held = [load(dw.decode(bytearray(message)))]
                thread = threading.Thread(target=held.clear)
                thread.start()
                thread.join()
                assert held == []

        # A thread that Python did not start: autograd's, which frees what it saved for the backward pass.
        for _ in range(50):
            x = torch.ones(6, requires_grad=True)
            y = (x * torch.from_dlpack(dw.decode(bytearray(message)))).sum()
            y.backward()
            assert x.grad.tolist() == [0, 1, 2, 3, 4, 5]
            del x, y

        late = [torch.from_dlpack(dw.decode(bytearray(message)))]
        threading.Thread(target=lambda: (threading.main_thread().join(), late.clear())).start()
    """
    assert run_python(script, "-X", "dev", "-W", "error") == ""
