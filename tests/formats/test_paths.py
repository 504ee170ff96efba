"""Pipes and devices as sources and targets of conversions."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import foreign_files
import numpy as np
import pytest

import dlpack_wire as dw
from dlpack_wire.formats.convert import convert

SUFFIXES = ("dlpw", "npy", "npz", "safetensors", "onnx", "pt")


def made(path: Path) -> Path:
    """Write a file of tensors of that suffix."""
    foreign_files.write(path, {"a": np.arange(70_000)}, {})  # more than a pipe holds
    return path


def run(*arguments: Any, source: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    paths = os.pathsep.join((str(Path(dw.__file__).parent.parent), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "dlpack_wire", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, input=source, capture_output=True, timeout=60, env=environment)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_standard_input_and_output_are_read_and_written_as_streams(suffix: str, tmp_path: Path) -> None:
    source = made(tmp_path / f"x.{suffix}")
    name = "torch" if suffix == "pt" else suffix
    flags = ("--from", name, "--to", name)
    done = run("convert", "/dev/stdin", "/dev/stdout", *flags, source=source.read_bytes())
    assert (done.returncode, done.stderr) == (0, b"/dev/stdout: 1 tensors\n")
    target = tmp_path / f"y.{suffix}"
    target.write_bytes(done.stdout)
    assert foreign_files.read(target)[0] == foreign_files.read(source)[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_named_pipes_are_read_and_written(suffix: str, tmp_path: Path) -> None:
    source = made(tmp_path / f"x.{suffix}")
    incoming, outgoing = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    os.mkfifo(incoming)
    os.mkfifo(outgoing)
    arrived = io.BytesIO()
    threads = [
        threading.Thread(target=lambda: incoming.write_bytes(source.read_bytes())),
        threading.Thread(target=lambda: arrived.write(outgoing.read_bytes())),
    ]
    for thread in threads:
        thread.start()
    convert(incoming, outgoing)
    for thread in threads:
        thread.join(30)
    target = tmp_path / f"y.{suffix}"
    target.write_bytes(arrived.getvalue())
    assert foreign_files.read(target)[0] == foreign_files.read(source)[0]
    assert outgoing.is_fifo()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_devices_are_written_and_not_read(suffix: str, tmp_path: Path) -> None:
    source = made(tmp_path / f"x.{suffix}")
    name = "torch" if suffix == "pt" else suffix
    assert convert(source, "/dev/null", target_format=name).skipped == []
    assert Path("/dev/null").is_char_device()
    for device in ("/dev/null", "/dev/zero"):
        with pytest.raises(OSError, match="a device, which has no known end"):
            convert(device, tmp_path / "y.dlpw", source_format=name)
    assert not (tmp_path / "y.dlpw").exists()


def test_a_full_device_is_an_error(tmp_path: Path) -> None:
    source = made(tmp_path / "x.npz")
    for name in ("dlpw", "npz", "safetensors", "onnx", "torch"):
        with pytest.raises(OSError, match="No space left"):
            convert(source, "/dev/full", target_format=name)


def test_data_beside_a_model_needs_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made(tmp_path / "x.npz")
    monkeypatch.setattr("dlpack_wire.formats.onnx.MAX_MESSAGE_BYTES", 1)
    with pytest.raises(dw.EncodeError, match="a second file"):
        convert(source, "/dev/null", target_format="onnx")
    assert not Path("/dev/null.data").exists()


def test_facts_for_programs_do_not_mix_with_the_stream(tmp_path: Path) -> None:
    source = made(tmp_path / "x.npz")
    done = run("convert", source, "/dev/stdout", "--to", "npz", "--json")
    assert b'"names"' in done.stderr
    with np.load(io.BytesIO(done.stdout)) as found:
        assert found.files == ["a"]
