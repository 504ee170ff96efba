"""The README's examples run as they stand, one after the other, as a reader would type them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import running

README = Path(__file__).parent.parent / "README.md"
EXAMPLE = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = dict(EXAMPLE.findall(README.read_text()))
ADDRESS = "127.0.0.1:7070"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running() as server:
        yield server.address


def test_every_python_block_is_an_example() -> None:
    assert README.read_text().count("```python") == len(EXAMPLES) == 7


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for name, code in EXAMPLES.items():
        exec(compile(code.replace(ADDRESS, address), f"README.md, {name}", "exec"), namespace)
    assert (tmp_path / "model.dlpw").exists()
    assert (tmp_path / "run.mcap").exists()


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench", "soak", "proto", "floors"])
def test_commands_named_exist(target: str) -> None:
    assert f"make {target}" in README.read_text()
    assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text(), re.MULTILINE)
