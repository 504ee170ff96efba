"""The demo tells the truth: it succeeds on equal bits only, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

DEMO = Path(__file__).parent / "demo" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The demo on small images, with temporary files where they can be seen."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    small = {
        module.LEFT: image,
        "mirrored": image[:, ::-1],
        "special": np.array([np.nan, -0.0, np.inf, -np.inf, 1], ">f4"),
        "torch": torch.from_numpy(image).permute(2, 0, 1).to(torch.bfloat16),
    }
    monkeypatch.setattr(module, "images", lambda: small)
    monkeypatch.setattr(module.sys, "argv", ["demo.py"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Its handler for SIGTERM would stay behind in this process.
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    return module


def one_bit_off(send: Callable[..., dict[str, Any]], name: str) -> Callable[..., dict[str, Any]]:
    def way(tensors: dict[str, Any], folder: Path) -> dict[str, Any]:
        arrived = send(tensors, folder)
        bits = arrived[name].bits.copy()
        bits.flat[-1] ^= 1 << (8 * bits.itemsize - 1)
        return {**arrived, name: arrived[name]._replace(bits=bits)}

    return way


def test_equal_bits_by_every_way(demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    printed = capsys.readouterr().out
    assert "16 of 16 arrived bit for bit" in printed
    assert "NO" not in printed
    assert all(way in printed for way in ("message", "file", "server", "log"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["message", "file", "log"])
@pytest.mark.parametrize("name", ["special", "torch"])
def test_one_bit_that_differs(demo: ModuleType, capsys: pytest.CaptureFixture[str], way: str, name: str) -> None:
    ways = dict(demo.WAYS)
    ways["server"] = ways["message"]  # what is tested here needs no other process
    ways[way] = one_bit_off(ways[way], name)
    demo.WAYS = ways
    assert demo.main() == 1
    assert "15 of 16 arrived bit for bit" in capsys.readouterr().out


def test_nothing_stays_behind_when_it_fails(demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[subprocess.Popen[str]] = []
    original = subprocess.Popen

    def popen(*args: Any, **more: Any) -> subprocess.Popen[str]:
        started.append(original(*args, **more))
        return started[-1]

    def lost(*args: Any, **more: Any) -> None:
        raise subprocess.CalledProcessError(1, "fetch")

    monkeypatch.setattr(demo.subprocess, "Popen", popen)
    monkeypatch.setattr(demo.subprocess, "run", lost)
    with pytest.raises(subprocess.CalledProcessError):
        demo.main()
    [server] = started
    assert server.returncode is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("terminal", [False, True])
def test_a_picture(demo: ModuleType, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = demo.Console(width=30, force_terminal=terminal, color_system="truecolor" if terminal else None)
    with console.capture() as capture:
        demo.draw(np.full((40, 60, 3), (255, 0, 128), np.uint8), console)
    drawn = capture.get()
    assert len(drawn.splitlines()) == 10
    assert ("\x1b[38;2;255;0;128;48;2;255;0;128m▀" in drawn) == terminal
    assert terminal or set(drawn) == {"=", "\n"}
