"""Running a script in a Python of its own: for what may crash, and for what happens at exit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

TESTS = Path(__file__).parent


def run_python(script: str, *options: str, **environment: str) -> str:
    """Run a script, require exit code 0 and an empty stderr, and return its stdout."""
    paths = os.pathsep.join((str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, *options, "-c", dedent(script)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout
