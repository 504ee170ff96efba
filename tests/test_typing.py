"""A user's program type-checks under mypy --strict, and the types are the ones that it expects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tests" / "typing" / "user_script.py"


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    wanted = {
        number: line.split("# -> ")[1]
        for number, line in enumerate(SCRIPT.read_text().splitlines(), 1)
        if line.lstrip().startswith("reveal_type(")
    }
    found = {int(m[1]): m[2] for m in re.finditer(r":(\d+): note: Revealed type is \"(.*)\"", done.stdout)}
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not errors, "\n".join(errors)
    assert found.keys() == wanted.keys()
    for number, kind in wanted.items():
        told = re.sub(r"\b(?:[a-z_]+\.)+", "", found[number])
        same = told == kind or told.endswith(f"fallback={kind}]")  # a named tuple
        assert same or (kind == "ndarray[...]" and told.startswith("ndarray[")), f"line {number}: {told}"
