"""Every write, sync, rename, unlink and commit of the `--dir` store fails or is the last one before a kill, each in
turn. Whatever happens, what was acknowledged is there after a restart, and what was refused is not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "faults"
ROOT = Path(__file__).parents[2]
MODES = {
    "e": "fails",
    "a": "fails although it was done",
    "d": "writes and syncs fail from there on",
    "f": "disk full from there on",
    "b": "killed before",
    "k": "killed behind",
}
# The name that an operation of work.py changes, and its value before and after; None: no object.
NAMES = {
    "put new": ("new", None, 2),
    "replace": ("replaced", 1, 2),
    "delete": ("deleted", 1, None),
    "put after": ("after", None, 2),
    "replace again": ("again", 1, 2),
    "delete again": ("deleted too", 1, None),
}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux")
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, HERE / "shim.c", "-ldl"], check=True)
    return built


def answers(shim: Path, requests: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "server"), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, HERE / "work.py"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_fault_everything_is_done(shim: Path, tmp_path: Path) -> None:
    (answer,) = answers(shim, [(str(tmp_path / "d"), 0, "e")])
    said, found = answer["said"], answer["found"]
    assert {name: said[name] for name in NAMES} == dict.fromkeys(NAMES, "done")
    assert said["count"] > 60
    assert found["files"] == 6


@pytest.mark.parametrize("mode", MODES, ids=MODES.values())
def test_nothing_acknowledged_is_lost_and_nothing_refused_is_there(
    shim: Path, tmp_path: Path, mode: str, rounds: Callable[[int, int], int]
) -> None:
    stride = rounds(6, 1)
    (whole,) = answers(shim, [(str(tmp_path / "whole"), 0, "e")])
    points = range(1 + list(MODES).index(mode) % stride, whole["said"]["count"] + 1, stride)
    wrong = []
    for answer in answers(shim, [(str(tmp_path / str(at)), at, mode) for at in points]):
        said, found = answer["said"], answer["found"]
        if found.get("kept") != 1 or "next generation" not in found:
            wrong.append((answer["at"], "kept", found))
        for operation, (name, before, after) in NAMES.items():
            outcome, value = said.get(operation, "uncertain"), found.get(name)
            right = {"done": [after], "uncertain": [before, after]}.get(outcome, [before])
            if value not in right:
                wrong.append((answer["at"], operation, outcome, value))
        if mode in "eaf" and len(said.get("drafts", ())) > (mode in "ea"):  # an unlink that failed leaves one
            wrong.append((answer["at"], "drafts", said["drafts"]))
        if mode == "f" and said.get("open") == "done" and {said["delete"], said["delete again"]} != {"done"}:
            wrong.append((answer["at"], "delete", said["delete"], said["delete again"]))
    assert not wrong
    print(f"{len(points)} points: nothing lost")
