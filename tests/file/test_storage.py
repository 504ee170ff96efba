"""Where bytes come from: windows, descriptors and files that become shorter."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlpack_wire import TruncatedError
from dlpack_wire.file.storage import WINDOW_BYTES, MappedBytes, MemoryBytes, PositionedBytes, open_path

CONTENT = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    p = tmp_path / "content"
    p.write_bytes(CONTENT)
    return p


def open_source(path: Path, kind: str) -> MemoryBytes | PositionedBytes:
    if kind == "memory":
        return MemoryBytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    return MappedBytes(fd, len(CONTENT)) if kind == "mapped" else PositionedBytes(fd, len(CONTENT))


RANGES = [(0, 9), (5, 5), (100, 1000), (2**20 - 3, 2**20 + 3), (0, len(CONTENT)), (len(CONTENT) - 27, len(CONTENT))]


@pytest.mark.parametrize("kind", ["memory", "mapped", "positioned"])
def test_every_range_is_what_it_should_be(kind: str, path: Path) -> None:
    source = open_source(path, kind)
    for _ in range(2):
        for begin, end in RANGES:
            assert bytes(source.read(begin, end)) == CONTENT[begin:end]
            memory, at = source.memory(begin, end)
            assert bytes(memoryview(memory)[at : at + end - begin]) == CONTENT[begin:end]
    source.close()


def test_many_small_reads_cost_few_large_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(path, "positioned")
    calls = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: calls.append(at) or preadv(fd, into, at))
    for begin in range(0, len(CONTENT) - 100, 100):
        assert bytes(source.read(begin, begin + 27)) == CONTENT[begin : begin + 27]
    assert len(calls) <= len(CONTENT) // WINDOW_BYTES + 2


def test_short_reads_are_gone_on_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(path, "positioned")
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:1001]], at))
    assert bytes(source.read(3, 300_000)) == CONTENT[3:300_000]


@pytest.mark.parametrize("kind", ["mapped", "positioned"])
def test_a_file_that_became_shorter_is_an_error(kind: str, path: Path) -> None:
    source = open_source(path, kind)
    os.truncate(path, 1000)
    assert bytes(source.read(0, 1000)) == CONTENT[:1000]
    for read in (source.read, source.memory):
        with pytest.raises(TruncatedError) as caught:
            read(999, 1001)
        assert caught.value.available == 1000
    source.close()


@pytest.mark.parametrize("kind", ["mapped", "positioned"])
def test_descriptors_are_closed_once(kind: str, path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    source = open_source(path, kind)
    source.close()
    source.close()
    del source
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("mapped", [True, False])
def test_a_path_is_opened_whatever_its_size(path: Path, mapped: bool, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, content in ((path, CONTENT), (tmp_path / "empty", b"")):
        source = open_path(str(name), mapped=mapped)
        assert (source.size, bytes(source.read(0, source.size))) == (len(content), content)
        source.close()
    with pytest.raises(IsADirectoryError):
        open_path(str(tmp_path), mapped=mapped)


def test_only_regular_files_are_opened_where_the_name_is_not_the_users(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(path)
    before = len(os.listdir("/proc/self/fd"))
    for name, error in (("pipe", "not a regular file"), ("link", "symbolic links"), (".", "directory")):
        with pytest.raises(OSError, match=error):
            open_path(str(tmp_path / name), only_regular=True)
    assert len(os.listdir("/proc/self/fd")) == before
    assert open_path(str(path), only_regular=True).size == len(CONTENT)


def test_threads_may_read_at_once(path: Path) -> None:
    source = open_source(path, "positioned")

    def check(start: int) -> bool:
        return all(
            bytes(source.read(begin, begin + 50)) == CONTENT[begin : begin + 50]
            for begin in range(start, len(CONTENT) - 50, 65_537)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, range(40)))
