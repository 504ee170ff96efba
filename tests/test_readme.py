"""The examples of README and docs/ run as they stand, one after the other, and print what the pages say they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from server_process import running

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^<!-- (example|output): (\w+) -->\n```(?:python)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:7070"

PAGES = sorted(page for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")) if "```python" in page.read_text())


def blocks(page: Path, kind: str) -> dict[str, str]:
    """The marked blocks of a page by name: "example" or "output"."""
    return {name: text for found, name, text in EXAMPLE.findall(page.read_text()) if found == kind}


def test_there_are_pages_with_examples() -> None:
    assert {"README.md", "resuming.md", "delivery-policies.md", "files-and-damage.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_an_example(page: Path) -> None:
    text = page.read_text()
    assert text.count("```python") == text.count("<!-- example: ") == len(blocks(page, "example"))
    assert text.count("<!-- output: ") == len(blocks(page, "output"))
    assert blocks(page, "output").keys() <= blocks(page, "example").keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples, outputs = blocks(page, "example"), blocks(page, "output")
    namespace: dict[str, Any] = {}
    with contextlib.ExitStack() as held:
        address = ADDRESS
        if any(ADDRESS in code for code in examples.values()):
            address = held.enter_context(running()).address
        for name, code in examples.items():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code.replace(ADDRESS, address), f"{page.name}, {name}", "exec"), namespace)
            assert printed.getvalue() == outputs.get(name, ""), name
