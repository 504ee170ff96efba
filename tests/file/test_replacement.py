"""Temporary files: atomic, private to their writer, and never left behind for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dlpack_wire.file.replacement import Replacement


def temporaries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.endswith(".dlpw-tmp"))


def test_nothing_is_seen_before_it_is_published(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_text("old")
    r = Replacement(target)
    os.write(r.fd, b"new")
    assert target.read_text() == "old"
    assert len(temporaries(tmp_path)) == 1
    r.publish()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["t"]


def test_discarding_leaves_no_trace(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_text("old")
    r = Replacement(target)
    r.discard()
    r.discard()
    assert os.listdir(tmp_path) == ["t"]
    assert target.read_text() == "old"


def test_symlinks_are_followed_to_their_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "t", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    r = Replacement(link)
    os.write(r.fd, b"new")
    assert temporaries(tmp_path) == []
    r.publish()
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_dangling_symlink_gets_a_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("t")
    r = Replacement(tmp_path / "link")
    r.publish()
    assert (tmp_path / "t").exists()
    assert (tmp_path / "link").is_symlink()


def test_names_as_long_as_allowed_have_temporaries(tmp_path: Path) -> None:
    for name in ("n" * 255, "ä" * 127, "\U0001f600" * 63):
        r = Replacement(tmp_path / name)
        assert temporaries(tmp_path)
        r.publish()
        assert (tmp_path / name).exists()


def test_exclusive_publishing_never_replaces(tmp_path: Path) -> None:
    target = tmp_path / "t"
    first, second = Replacement(target), Replacement(target)
    os.write(first.fd, b"first")
    first.publish(exclusive=True)
    with pytest.raises(FileExistsError):
        second.publish(exclusive=True)
    second.discard()
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["t"]


def test_a_target_that_is_no_regular_file_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    r = Replacement(pipe)
    assert r.in_place
    os.write(r.fd, b"through")
    r.publish()
    reader.join(10)
    assert read == [b"through"]
    assert pipe.is_fifo()
    null = Replacement("/dev/null")
    null.publish()
    assert not Path("/dev/null").is_file()


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Replacement(tmp_path)


def writer_process(target: Path) -> subprocess.Popen[bytes]:
    """A process that has a temporary open, and waits."""
    script = (
        f"from dlpack_wire.file.replacement import Replacement; r = Replacement({str(target)!r});"
        "print('ready', flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_temporaries_of_killed_writers_are_removed_and_those_of_live_ones_are_not(tmp_path: Path) -> None:
    target = tmp_path / "t"
    live, dead = writer_process(target), writer_process(target)
    other = writer_process(tmp_path / "other")
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    assert len(temporaries(tmp_path)) == 3
    Replacement(target).discard()
    assert len(temporaries(tmp_path)) == 2
    for process in (live, other):
        process.kill()
        process.communicate()
    Replacement(target).discard()
    assert len(temporaries(tmp_path)) == 1
    Replacement(tmp_path / "other").discard()
    assert temporaries(tmp_path) == []


def test_files_that_only_look_alike_are_left_alone(tmp_path: Path) -> None:
    keep = [".t.dlpw-tmp.txt", "t.0123456789abcdef.dlpw-tmp", ".t2.0123456789abcdef.dlpw-tmp"]
    for name in keep:
        (tmp_path / name).touch()
    Replacement(tmp_path / "t").discard()
    assert sorted(os.listdir(tmp_path)) == sorted(keep)


def test_a_temporary_taken_for_a_dead_one_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    real = fcntl.flock
    removed = []

    def flock(fd: int, operation: int) -> None:
        if not removed:
            removed.append(temporaries(tmp_path)[0])
            (tmp_path / removed[0]).unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    r = Replacement(tmp_path / "t")
    assert temporaries(tmp_path)
    assert temporaries(tmp_path) != removed
    r.publish()
    assert (tmp_path / "t").exists()


@pytest.mark.parametrize("durable", [True, False])
def test_the_file_is_synced_before_it_is_renamed_and_its_folder_after(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")
        fsync(fd)

    def noted_rename(old: str, new: str) -> None:
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    r = Replacement(tmp_path / "t", durable)
    os.write(r.fd, b"new")
    r.publish()
    assert steps == (["sync file", "rename", "sync folder"] if durable else ["rename"])
