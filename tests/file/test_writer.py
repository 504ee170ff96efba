"""Writing tensor by tensor: what is refused, and what becomes of a file whose writing fails."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.message.names import MAX_FILE_METADATA_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    p = tmp_path / "t.dlpw"
    dw.save(p, {"old": np.arange(5)})
    return p


def test_tensors_and_metadata_come_back(path: Path) -> None:
    with dw.open(path, "w", metadata={"k": 1}) as f:
        f["a"] = np.arange(3)
        f.write("b", np.arange(4), aliases=["c"], metadata={"unit": "m"})
        f.metadata["later"] = True
        f.metadata["k"] = 2
    with dw.open(path) as g:
        assert list(g) == ["a", "b", "c"]
        assert g.metadata == {"k": 2, "later": True}
        assert g.metadata_of("c") == {"unit": "m"}
        assert g.names_of("c") == ["b", "c"]


def test_nothing_is_published_before_the_end(path: Path) -> None:
    f = dw.open(path, "w")
    f["a"] = np.arange(3)
    assert list(dw.load_dict(path)) == ["old"]
    f.close()
    f.close()
    assert list(dw.load_dict(path)) == ["a"]


def test_an_exception_publishes_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), dw.open(path, "w") as f:
        f["a"] = np.arange(3 // len(f.metadata))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_an_exception_in_an_iterable_publishes_nothing(path: Path) -> None:
    def tensors() -> Iterator[tuple[str, Any]]:
        yield "a", np.arange(10**6)
        raise ZeroDivisionError

    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        dw.save(path, tensors())
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_forgotten_writer_leaves_nothing(path: Path) -> None:
    f = dw.open(path, "w")
    f["a"] = np.arange(3)
    del f
    gc.collect()
    assert list(dw.load_dict(path)) == ["old"]
    assert os.listdir(path.parent) == [path.name]


def test_a_forked_child_does_not_touch_its_parents_file(path: Path) -> None:
    script = f"""
        import os, dlpack_wire as dw, numpy as np
        f = dw.open({str(path)!r}, "w")
        f["a"] = np.arange(3)
        if os.fork() == 0:
            del f
            os._exit(0)
        os.wait()
        f.close()
        print(list(dw.load_dict({str(path)!r})))
    """
    assert run_python(script) == "['a']\n"


def test_refusals_leave_the_file_usable(path: Path) -> None:
    with dw.open(path, "w") as f:
        f["a"] = np.arange(3)
        for name, x in (("a", np.arange(1)), ("", np.arange(1)), ("b", object()), ("c\0", np.arange(1))):
            with pytest.raises(dw.EncodeError):
                f[name] = x
        with pytest.raises(dw.EncodeError):
            f.write("b", np.arange(1), aliases=["a"])
        with pytest.raises(dw.EncodeError):
            f.write("b", np.arange(1), metadata={"k": None})  # type: ignore[dict-item]
        f["b"] = np.arange(2)
    dw.verify(path)
    assert {k: t.numpy().tolist() for k, t in dw.load_dict(path).items()} == {"a": [0, 1, 2], "b": [0, 1]}


def test_the_empty_name_stands_alone(path: Path) -> None:
    with dw.open(path, "w") as f:
        with pytest.raises(dw.EncodeError):
            f.write("", np.arange(1), aliases=["x"])
        f[""] = np.arange(2)
        with pytest.raises(dw.EncodeError):
            f["a"] = np.arange(1)
        with pytest.raises(dw.EncodeError):
            f[""] = np.arange(1)
    assert dw.load(path).numpy().tolist() == [0, 1]  # type: ignore[union-attr]


def test_a_closed_file_takes_nothing(path: Path) -> None:
    with dw.open(path, "w") as f:
        pass
    with pytest.raises(ValueError, match="closed"):
        f["a"] = np.arange(3)


def test_the_cap_on_file_metadata_is_the_readers(path: Path) -> None:
    overhead = len(b"\x12\x80\x80\x80\x08\x0a\x01k\x12\x80\x80\x80\x08\x2a\x80\x80\x80\x08")
    largest = {"k": bytes(MAX_FILE_METADATA_BYTES - overhead)}
    dw.save(path, {}, largest, durable=False)
    with dw.open(path) as f:
        assert f.metadata == largest
    for options in ({"metadata": {"k": bytes(MAX_FILE_METADATA_BYTES)}}, {}):
        with pytest.raises(dw.EncodeError), dw.open(path, "w", **options) as g:  # type: ignore[arg-type]
            g.metadata["k"] = bytes(MAX_FILE_METADATA_BYTES)
    assert os.listdir(path.parent) == [path.name]


class Failing(io.RawIOBase):
    """A stream that fails after so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "no space")
        count = min(self.room, len(piece))
        self.room -= count
        return count


def test_a_stream_that_fails_anywhere_is_an_error_and_takes_no_more() -> None:
    stream = io.BytesIO()
    dw.save(stream, {"a": np.arange(4), "b": np.arange(3)})
    for room in range(len(stream.getvalue())):
        with pytest.raises(OSError, match="no space"):
            dw.save(Failing(room), {"a": np.arange(4), "b": np.arange(3)})
    f = dw.open(Failing(100), "w")
    with pytest.raises(OSError, match="no space"):
        f["a"] = np.arange(100)
    with pytest.raises(ValueError, match="closed"):
        f["b"] = np.arange(1)


@pytest.mark.parametrize("limit", [1, 50, 4096, 300_000, 5_000_000])
def test_a_disk_that_fills_up_leaves_the_old_file(limit: int, path: Path) -> None:
    """A limit on file sizes stands for the disk: the kernel writes what fits, then fails."""
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        for tensors in (
            {f"t{i}": np.zeros(1000) for i in range(1000)},
            {"large": np.zeros(1_000_000)},
            {"small": np.zeros(10), "large": np.zeros(1_000_000)},
        ):
            with pytest.raises(OSError) as caught:  # noqa: PT011
                dw.save(path, tensors)
            assert caught.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_short_writes_are_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": np.arange(1000), "b": np.arange(200_000), "c": np.arange(3)}
    dw.save(path, tensors)
    expected = path.read_bytes()
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, at: pwrite(fd, content[:4097], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwrite(fd, b"".join(parts)[:11], at))
    dw.save(path, tensors)
    assert path.read_bytes() == expected


def test_a_folder_that_may_not_be_written_to_is_an_error() -> None:
    """In a process that gives up being root; an ordinary user's process stays what it is."""
    script = """
        import os, tempfile
        import dlpack_wire as dw, numpy as np
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.dlpw")
            dw.save(path, {"old": np.arange(5)})
            os.chmod(folder, 0o555)
            was_root = os.geteuid() == 0
            if was_root:
                os.seteuid(65534)
            assert list(dw.load_dict(path)) == ["old"]
            try:
                dw.save(path, np.arange(3))
            except PermissionError:
                print("refused")
            if was_root:
                os.seteuid(0)
            assert list(dw.load_dict(path)) == ["old"]
            os.chmod(folder, 0o755)
    """
    assert run_python(script) == "refused\n"


def test_metadata_is_typed_per_tensor_too(path: Path) -> None:
    metadata = {"s": "x", "i": 1, "f": 1.0, "b": True, "raw": b"\0"}
    with dw.open(path, "w") as f:
        f.write("a", np.arange(1), metadata=metadata)
    with dw.open(path) as g:
        found = g.metadata_of("a")
    assert found == metadata
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in metadata.items()}


def test_a_save_takes_no_memory_beyond_its_tensors(path: Path) -> None:
    """In a process of its own, whose peak is its own."""
    script = f"""
        import io, resource
        import numpy as np, dlpack_wire as dw
        x = np.ones(192 << 20, np.uint8)
        f = np.ones((1 << 10, 96 << 10), np.uint8)[:, ::2]
        dw.save({str(path)!r}, {{"warm": x[:1000]}}, durable=False)
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        before = peak()
        dw.save({str(path)!r}, {{"x": x, "gathered": f}}, durable=False)
        print(peak() - before < 32 << 20)
    """
    assert run_python(script) == "True\n"


class Stops(Exception):
    pass


def test_an_interrupted_write_leaves_nothing_behind_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    pwrite = os.pwrite

    def interrupted(fd: int, content: memoryview, position: int) -> int:
        nonlocal written
        written += 1
        if written == 3:
            raise Stops
        return pwrite(fd, content, position)

    with dw.open(path, "w") as f:
        f["a"] = np.arange(3)
        monkeypatch.setattr(os, "pwrite", interrupted)
        with pytest.raises(Stops):
            f["b"] = np.zeros(8 << 20, np.uint8)
        monkeypatch.undo()
        f["c"] = np.arange(4)
    dw.verify(path)
    assert dw.load_dict(path).keys() == {"a", "c"}


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_forked_child_leaves_its_parents_file_alone(path: Path, mode: str) -> None:
    run_python(
        f"""
        import os
        import numpy as np
        import dlpack_wire as dw

        with dw.open({str(path)!r}, {mode!r}) as f:
            f["x"] = np.arange(3)
            if {mode!r} == "a":
                f.flush()
            child = os.fork()
            if child == 0:
                f.abort()
                f.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            f["y"] = np.arange(4)
        """
    )
    dw.verify(path)
    assert dw.load_dict(path).keys() >= {"x", "y"}


def test_threads_may_share_a_writer(path: Path) -> None:
    with dw.open(path, "w") as f, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(f.write, str(i), np.full(300_000, i, np.uint8)) for i in range(40)]:
            done.result()
    assert all((t.numpy() == int(name)).all() for name, t in dw.load_dict(path).items())


def test_a_temporary_is_never_more_readable_than_its_target(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o600)
    modes: list[int] = []
    opened = os.open

    def seen(name: str, flags: int, mode: int = 0o777, **more: int) -> int:
        fd = opened(name, flags, mode, **more)
        if flags & os.O_CREAT:
            modes.append(os.fstat(fd).st_mode & 0o777)
        return fd

    monkeypatch.setattr(os, "open", seen)
    dw.save(path, np.arange(3))
    assert modes == [0o600]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_generation_takes_no_more_tensors_than_one_index_can_hold(
    mode: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlpack_wire.file.writer.MAX_LINES_BYTES", 200)
    with dw.open(path, mode) as f:
        for i in range(4):
            f[f"t{i}"] = np.arange(i)
        with pytest.raises(dw.EncodeError, match="at most 200 bytes"):
            f["t4"] = np.arange(1)
        if mode == "a":
            f.flush()
            f["t4"] = np.arange(1)
    dw.verify(path)
    assert len(dw.load_dict(path)) == (4 if mode == "w" else 6)
