"""A closed writer writes nothing: its descriptor's number may be another file's by then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlpack_wire as dw
from dlpack_wire.file.record import plan_record
from dlpack_wire.file.sink import FileSink, StreamSink
from dlpack_wire.file.writer import RecordWriter, copy_record
from dlpack_wire.message.codec import source_of
from dlpack_wire.message.names import names_block

X = np.arange(100_000, dtype=np.int64)


def copy_into(writer: RecordWriter) -> None:
    with source_of(X) as source:
        payload = source.buffer()
        assert payload is not None
        copy_record(writer, names_block("copied"), source.header.with_checksum(source.checksum()), payload)


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("ended", ["close", "abort"])
@pytest.mark.parametrize("write", [copy_into, lambda f: f.write("x", X), lambda f: f.write("x", X[:3])])
def test_nothing_goes_into_the_file_that_got_the_descriptor(mode: Any, ended: str, write: Any, tmp_path: Path) -> None:
    writer = dw.open(tmp_path / "t.dlpw", mode)
    writer["a"] = X[:10]
    getattr(writer, ended)()
    victims = [os.open(tmp_path / f"victim{i}", os.O_RDWR | os.O_CREAT) for i in range(8)]
    try:
        with pytest.raises(ValueError, match="closed"):
            write(writer)
        assert [os.fstat(fd).st_size for fd in victims] == [0] * 8
    finally:
        for fd in victims:
            os.close(fd)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_closed_sink_refuses_by_itself(mode: Any, tmp_path: Path) -> None:
    """Whatever a writer forgets to check, the sink knows that its descriptor is gone."""
    writer = dw.open(tmp_path / "t.dlpw", mode)
    writer["a"] = X[:10]
    writer.close()
    sink = writer._sink
    victims = [os.open(tmp_path / f"victim{i}", os.O_RDWR | os.O_CREAT) for i in range(8)]
    try:
        sink.append(b"late")
        with pytest.raises(ValueError, match="closed"):
            sink.flush()
        with source_of(X) as source, pytest.raises(ValueError, match="closed"):
            sink.append_record(plan_record(source.header, 0, 0, 64), b"", source)
        assert [os.fstat(fd).st_size for fd in victims] == [0] * 8
    finally:
        for fd in victims:
            os.close(fd)


def test_a_closed_stream_sink_refuses_too() -> None:
    class Refusing:
        def write(self, content: Any) -> int:
            raise AssertionError("nothing may be written")

    sink = StreamSink(Refusing())
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.append(b"late")


def test_what_was_buffered_is_dropped_with_the_descriptor(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    sink = FileSink(fd)
    sink.append(b"buffered")
    sink.close()
    sink.flush()
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_a_copy_is_refused_like_any_record(tmp_path: Path) -> None:
    with dw.open(tmp_path / "t.dlpw", "w") as f:
        f["copied"] = X[:10]
        with pytest.raises(dw.EncodeError, match="duplicate"):
            copy_into(f)
    assert list(dw.load_dict(tmp_path / "t.dlpw")) == ["copied"]


def test_a_pipe_is_closed_with_its_writer(tmp_path: Path) -> None:
    """Its stream has no number of its own that another file could get."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = dw.open(pipe, "w")
    writer["a"] = X[:10]
    stream = writer._sink._stream  # type: ignore[attr-defined]
    writer.close()
    victims = [os.open(tmp_path / f"victim{i}", os.O_RDWR | os.O_CREAT) for i in range(8)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        stream.write(memoryview(b"late"))
    assert [os.fstat(fd).st_size for fd in victims] == [0] * 8
    for fd in (reader, *victims):
        os.close(fd)


def test_the_lock_of_a_failed_append_is_given_up_whoever_holds_the_error(tmp_path: Path) -> None:
    path = tmp_path / "t.dlpw"
    path.write_bytes(b"not a tensor file")
    with pytest.raises(dw.DecodeError) as caught:
        dw.open(path, "a")
    path.write_bytes(b"")
    with dw.open(path, "a") as f:
        f["a"] = X[:3]
    assert caught.value.path == str(path)


@pytest.mark.filterwarnings("ignore:os.fork")  # libraries that other tests import warn of it; the child runs no thread
def test_a_forked_child_cannot_write(tmp_path: Path) -> None:
    with dw.open(tmp_path / "t.dlpw", "w") as f:
        f["a"] = X
        child = os.fork()
        if not child:
            code = 1
            try:
                f["b"] = X
            except RuntimeError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert list(dw.load_dict(tmp_path / "t.dlpw")) == ["a"]
