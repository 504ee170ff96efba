"""Appending: generations, names taken over, one writer at a time, and what a kill leaves."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire import file
from dlpack_wire.file.reader import contents_of
from dlpack_wire.v1 import tensor_file_pb2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    p = tmp_path / "t.dlpw"
    dw.save(p, {"old": np.arange(5)}, {"k": "old"})
    return p


def read(path: Path) -> dict[str, list[Any]]:
    return {name: t.numpy().tolist() for name, t in dw.load_dict(path).items()}


def whole_file(path: Path) -> dict[str, list[Any]]:
    """As a standard parser sees it: the last record that carries a name has it."""
    found: dict[str, list[Any]] = {}
    for r in tensor_file_pb2.TensorFile.FromString(path.read_bytes()).records:
        for name in (r.name, *r.aliases):
            if r.HasField("tensor"):
                found[name] = dw.from_proto(r.tensor).numpy().tolist()
            else:
                del found[name]
    return found


def test_a_generation_for_every_flush(path: Path) -> None:
    first = path.read_bytes()
    with dw.open(path, "a") as f:
        f["a"] = np.arange(3)
        assert read(path).keys() == {"old"}
        f.flush()
        assert read(path).keys() == {"old", "a"}
        f.flush()  # nothing new: no generation
        f["b"] = np.arange(2)
    content = path.read_bytes()
    assert content.startswith(first)
    assert len(tensor_file_pb2.TensorFile.FromString(content).indexes) == 3
    assert read(path) == whole_file(path) == {"old": [0, 1, 2, 3, 4], "a": [0, 1, 2], "b": [0, 1]}
    dw.verify(path)


def test_a_file_that_does_not_exist_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new"
    f = dw.open(path, "a", metadata={"k": 1})
    assert dw.load(path) == {}
    f["a"] = np.arange(3)
    f.close()
    assert read(path) == {"a": [0, 1, 2]}
    with dw.open(path) as g:
        assert g.metadata == {"k": 1}
    assert os.listdir(tmp_path) == ["new"]


def test_an_empty_file_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "new"
    path.touch()
    with dw.open(path, "a") as f:
        f["a"] = np.arange(3)
    assert read(path) == {"a": [0, 1, 2]}


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"something else, and longer than a trailer")
    with pytest.raises(dw.DecodeError, match="not a tensor file"):
        dw.open(path, "a")
    assert path.read_bytes() == b"something else, and longer than a trailer"


def test_a_name_written_again_takes_the_place_of_the_earlier(path: Path) -> None:
    with dw.open(path, "a") as f:
        f.write("a", np.array([1]), aliases=["tied", "also"])
        f["old"] = np.array([2])
        f.flush()
        f["a"] = np.array([3])
        f["a"] = np.array([4])
        f.flush()
        f.write("new", np.array([5]), aliases=["also"])
    expected = {"tied": [1], "old": [2], "a": [4], "new": [5], "also": [5]}
    assert read(path) == whole_file(path) == expected
    dw.verify(path)
    with dw.open(path) as g:
        assert len(g) == 5
        assert g.names_of("also") == ["new", "also"]
        assert g.names_of("tied") == ["tied"]


def test_readers_are_not_disturbed(path: Path) -> None:
    with dw.open(path) as before, dw.open(path, "a") as f:
        f["old"] = np.zeros(3)
        f["large"] = np.zeros(200_000)
        with dw.open(path) as during:
            assert list(during) == ["old"]
            assert during["old"].numpy().tolist() == [0, 1, 2, 3, 4]
        f.flush()
        with dw.open(path) as after:
            assert after["old"].numpy().tolist() == [0, 0, 0]
            assert after.torn_bytes == 0
        assert list(before) == ["old"]
        assert before["old"].numpy().tolist() == [0, 1, 2, 3, 4]


def test_metadata_grows_changes_and_goes(path: Path) -> None:
    def metadata() -> dict[str, Any]:
        with dw.open(path) as f:
            return f.metadata

    with dw.open(path, "a", metadata={"a": 1}) as f:
        assert f.metadata == {"k": "old", "a": 1}
    assert metadata() == {"k": "old", "a": 1}
    with dw.open(path, "a") as f:
        f.metadata["a"] = True
        f.flush()
        assert type(metadata()["a"]) is bool
        f["x"] = np.arange(1)
        f.flush()
        del f.metadata["k"]
        f["x"] = np.arange(2)
    assert metadata() == {"a": True}
    assert read(path) == {"old": [0, 1, 2, 3, 4], "x": [0, 1]}
    dw.verify(path)


def test_an_exception_drops_what_was_not_flushed(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), dw.open(path, "a") as f:
        f["a"] = np.arange(3)
        f.flush()
        size = path.stat().st_size
        f["b"] = np.arange(1_000_000)
        raise ZeroDivisionError
    assert path.stat().st_size == size
    assert read(path).keys() == {"old", "a"}


def test_a_forgotten_appender_lets_go(path: Path) -> None:
    f = dw.open(path, "a")
    f["a"] = np.arange(1_000_000)
    del f
    gc.collect()
    with dw.open(path, "a") as g:
        g["b"] = np.arange(1)
    assert read(path).keys() == {"old", "b"}


def test_refusals_leave_the_file_usable(path: Path) -> None:
    with dw.open(path, "a") as f:
        for name, x in (("", np.arange(1)), ("a\0", np.arange(1)), ("a", object())):
            with pytest.raises(dw.EncodeError):
                f[name] = x
        f["a"] = np.arange(2)
    assert read(path) == {"old": [0, 1, 2, 3, 4], "a": [0, 1]}


def test_the_only_tensor_stays_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "one"
    dw.save(path, np.arange(3))
    with dw.open(path, "a") as f:
        for name in ("", "a"):
            with pytest.raises(dw.EncodeError, match="only tensor"):
                f[name] = np.arange(1)
    with dw.open(tmp_path / "two", "a") as f:
        f[""] = np.arange(3)
        with pytest.raises(dw.EncodeError, match="only tensor"):
            f["a"] = np.arange(1)
    assert dw.load(tmp_path / "two").numpy().tolist() == [0, 1, 2]  # type: ignore[union-attr]


def test_one_writer_at_a_time(path: Path) -> None:
    with dw.open(path, "a"):
        with pytest.raises(BlockingIOError, match="appending"):
            dw.open(path, "a")
        script = f"""
            import dlpack_wire as dw
            try:
                dw.open({str(path)!r}, "a")
            except BlockingIOError:
                print("refused")
        """
        assert run_python(script) == "refused\n"
    with dw.open(path, "a"):
        pass


def test_the_lock_dies_with_its_process(path: Path) -> None:
    script = f"import dlpack_wire as dw; f = dw.open({str(path)!r}, 'a'); print('ready', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with pytest.raises(BlockingIOError):
        dw.open(path, "a")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with dw.open(path, "a") as f:
        f["a"] = np.arange(1)


@pytest.mark.parametrize("how", ["replaced", "removed", "renamed"])
def test_a_flush_to_a_file_that_is_no_longer_there_is_an_error(how: str, path: Path) -> None:
    f = dw.open(path, "a")
    f["a"] = np.arange(3)
    f.flush()
    f["b"] = np.arange(3)
    if how == "replaced":
        dw.save(path, {"other": np.arange(1)})
    elif how == "removed":
        path.unlink()
    else:
        path.rename(path.with_name("moved"))
    with pytest.raises(OSError, match="another file") as caught:
        f.flush()
    assert caught.value.errno == errno.ESTALE
    with pytest.raises(ValueError, match="closed"):
        f["c"] = np.arange(1)
    if how == "replaced":
        assert read(path).keys() == {"other"}
    elif how == "renamed":
        assert read(path.with_name("moved")).keys() == {"old", "a"}


def test_a_torn_tail_is_cut_by_the_next_append(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b"\x12\xff\xff\x03 half a record")
    with dw.open(path) as f:
        assert f.torn_bytes == 18
    with dw.open(path) as reader, dw.open(path, "a") as f:
        assert path.read_bytes() == whole
        # What lay in the torn tail was never part of what this reader reads.
        assert reader["old"].numpy().tolist() == [0, 1, 2, 3, 4]
        f["a"] = np.arange(2)
    assert read(path).keys() == {"old", "a"}
    dw.verify(path)


def test_a_file_without_any_generation_is_left_to_recovery(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(dw.DecodeError, match="not finalised"):
        dw.open(path, "a")
    assert path.read_bytes() == content[:-1]


def test_every_cut_of_an_append_opens_as_before_and_can_be_appended_to(path: Path) -> None:
    first = path.stat().st_size
    with dw.open(path, "a", durable=False) as f:
        f["a"] = np.arange(3)
    content = path.read_bytes()
    for size in range(first, len(content)):
        path.write_bytes(content[:size])
        with dw.open(path) as g:
            assert list(g) == ["old"]
            assert g.torn_bytes == size - first
    path.write_bytes(content[:-1])
    with dw.open(path, "a") as f:
        f["a"] = np.arange(3)
    assert path.read_bytes() == content


def test_a_full_disk_loses_what_was_not_flushed_and_nothing_else(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    f = dw.open(path, "a")
    f["a"] = np.arange(3)
    f.flush()
    size = path.stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, hard))
        with pytest.raises(OSError) as caught:  # noqa: PT011
            f["large"] = np.zeros(100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert caught.value.errno == errno.EFBIG
    assert path.stat().st_size == size
    assert read(path).keys() == {"old", "a"}
    with dw.open(path, "a") as f:
        f["b"] = np.arange(1)
    dw.verify(path)


def test_many_flushes_stay_small_and_chains_short(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count = rounds(3_000, 100_000)
    path = tmp_path / "log"
    x = np.random.default_rng(0).integers(0, 255, 4096, np.uint8)
    with dw.open(path, "a", durable=False) as f:
        for i in range(count):
            f[f"step/{i}"] = x
            f.flush()
    assert path.stat().st_size < 1.2 * count * 4096
    with dw.open(path) as g:
        assert len(contents_of(g).chain) < 64
        assert len(g) == count
        for i in range(0, count, 97):
            assert g[f"step/{i}"].numpy()[:9].tolist() == x[:9].tolist()
    if count == 3000:
        dw.verify(path)


def test_files_of_a_hundred_openings_are_appended_to(path: Path) -> None:
    for i in range(100):
        with dw.open(path, "a", durable=False) as f:
            f[f"t{i}"] = np.array([i])
            f["last"] = np.array([i])
    assert read(path) == {"old": [0, 1, 2, 3, 4], **{f"t{i}": [i] for i in range(100)}, "last": [99]}
    dw.verify(path)


names = st.sampled_from(["a", "b", "c", "d", "ä"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), names, st.lists(names, max_size=2, unique=True)),
        st.tuples(st.just("flush"), st.none(), st.none()),
        st.tuples(st.just("reopen"), st.none(), st.none()),
        st.tuples(st.just("metadata"), names, st.none() | st.integers(0, 3)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(steps)
def test_any_order_of_writes_and_flushes_reads_like_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("model") / "t"
    truth: dict[str, list[int]] = {}
    metadata: dict[str, Any] = {}
    f = dw.open(path, "a", durable=False)
    for i, (what, name, more) in enumerate(steps):
        if what == "write":
            aliases = [alias for alias in more if alias != name]
            f.write(name, np.array([i]), aliases=aliases)
            truth |= dict.fromkeys((name, *aliases), [i])
        elif what == "metadata":
            if more is None:
                metadata.pop(name, None)
                f.metadata.pop(name, None)
            else:
                metadata[name] = f.metadata[name] = more
        else:
            f.flush()
            assert read(path) == whole_file(path) == truth
            if what == "reopen":
                f.close()
                f = dw.open(path, "a", durable=False)
    f.close()
    assert read(path) == whole_file(path) == truth
    with dw.open(path) as g:
        assert g.metadata == metadata
    assert list(file.problems(path)) == []


@pytest.mark.parametrize("durable", [True, False])
def test_records_are_on_disk_before_the_index_that_names_them(
    durable: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, pwrite, pwritev = os.fsync, os.pwrite, os.pwritev

    def what(content: bytes) -> str:
        return "index" if b"DLPWIREE" in content else "records"

    def noted_fsync(fd: int) -> None:
        steps.append("sync")
        fsync(fd)

    def noted_pwrite(fd: int, content: Any, at: int) -> int:
        steps.append(what(bytes(content)))
        return pwrite(fd, content, at)

    def noted_pwritev(fd: int, parts: Any, at: int) -> int:
        steps.append(what(b"".join(parts)))
        return pwritev(fd, parts, at)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "pwrite", noted_pwrite)
    monkeypatch.setattr(os, "pwritev", noted_pwritev)
    with dw.open(path, "a", durable=durable) as f:
        f["a"] = np.arange(3)
    assert steps == (["records", "sync", "index", "sync"] if durable else ["records", "index"])


# --- names that are removed -------------------------------------------------------------------------------------------


def test_a_removed_name_is_gone_for_every_reader(path: Path, tmp_path: Path) -> None:
    with dw.open(path, "a") as f:
        f["new"] = np.arange(2)
        del f["old"]
        with pytest.raises(KeyError, match="old"):
            del f["old"]
        with pytest.raises(KeyError, match="never"):
            del f["never"]
    expected = {"new": [0, 1]}
    assert read(path) == whole_file(path) == expected
    with dw.open(path) as f:
        assert (list(f), len(f), "old" in f) == (["new"], 1, False)
        with pytest.raises(KeyError):
            f["old"]
    dw.verify(path)
    assert dw.recover(path, tmp_path / "r.dlpw").names == ["new"]
    assert read(tmp_path / "r.dlpw") == expected


def test_a_removed_name_may_be_written_again(path: Path) -> None:
    for value in range(3):
        with dw.open(path, "a") as f:
            del f["old"]
            f["old"] = np.full(2, value)
        assert read(path) == whole_file(path) == {"old": [value, value]}
        dw.verify(path)


def test_an_alias_is_removed_alone(tmp_path: Path) -> None:
    x = np.arange(3)
    dw.save(tmp_path / "t", {"a": x, "b": x})
    with dw.open(tmp_path / "t", "a") as f:
        del f["a"]
    assert read(tmp_path / "t") == {"b": [0, 1, 2]}
    dw.verify(tmp_path / "t")


def test_the_empty_name_cannot_be_removed(tmp_path: Path) -> None:
    dw.save(tmp_path / "t", np.arange(3))
    with dw.open(tmp_path / "t", "a") as f, pytest.raises(dw.EncodeError, match="name"):
        del f[""]
    assert read(tmp_path / "t") == {"": [0, 1, 2]}


@settings(max_examples=30)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(0, 9)), max_size=4),
        min_size=1,
        max_size=12,
    )
)
def test_any_sequence_of_writes_and_removals(
    tmp_path_factory: pytest.TempPathFactory, generations: list[list[tuple[str, bool, int]]]
) -> None:
    path = tmp_path_factory.mktemp("removals") / "t"
    dw.save(path, {}, durable=False)
    expected: dict[str, list[Any]] = {}
    for changes in generations:
        with dw.open(path, "a", durable=False) as f:
            for name, is_write, value in changes:
                if is_write:
                    f[name] = np.array([value])
                    expected[name] = [value]
                elif name in expected:
                    del f[name]
                    del expected[name]
                else:
                    with pytest.raises(KeyError):
                        del f[name]
        assert read(path) == whole_file(path) == expected
    dw.verify(path)
