"""What the pages say is so: links, commands, flags, files and limits that they name exist and are what they say."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import dlpack_wire as dw
from dlpack_wire.cli import main as cli

ROOT = Path(__file__).parent.parent
FOLDERS = ("dlpack_wire", "docs", "proto", "server", "tests")
FILES = [p for p in ROOT.iterdir() if p.is_file()] + [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.*")]
PAGES = sorted(p for p in FILES if p.suffix == ".md" and "node_modules" not in p.parts)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))

WIDTH = 120

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\]\(([^()\s]+)\)")

UNITS = {"": 1, "bytes": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code(page: Path) -> list[str]:
    """Every line of a code block, and every code span, of which prose may break a line."""
    text = page.read_text()
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()[1:-1]]
    return lines + [" ".join(span.split()) for span in SPAN.findall(FENCED.sub("", text))]


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


each_page = pytest.mark.parametrize("page", PAGES, ids=name)


def test_the_pages_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "proto/README.md", "docs/limits.md"} <= {
        name(page) for page in PAGES
    }
    assert name(PAGES[0]) == "CHANGELOG.md"


@each_page
def test_lines_are_wrapped(page: Path) -> None:
    """Tables, code and the targets of links apart: a diff of longer lines cannot be read."""
    prose = LINK.sub("]()", FENCED.sub("", page.read_text())).splitlines()
    assert [line for line in prose if len(line) > WIDTH and not line.startswith("|")] == []


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", FENCED.sub("", there.read_text()), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


@each_page
def test_targets_of_make_exist(page: Path) -> None:
    for line in code(page):
        for command in re.findall(r"(?:^|&& )make ([a-z ]+)", line):
            assert set(command.split()) <= TARGETS, line


def test_targets_of_make_are_described() -> None:
    described = re.findall(r"^#   make ([a-z]+) ", MAKEFILE, re.MULTILINE)
    assert sorted(described) == sorted(TARGETS)
    assert set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()) == TARGETS
    table = re.findall(r"^\| `make ([a-z]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(TARGETS)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command."""
    (commands,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(commands.choices)


def server_flags() -> argparse.ArgumentParser:
    options = pytest.importorskip("dlpack_wire_server.options")
    parser = argparse.ArgumentParser()
    options.add_flags(parser, {})
    return parser


@each_page
def test_commands_exist(page: Path) -> None:
    for line in code(page):
        for command in re.findall(r"\bdlpack-wire ([a-z|]+)", line):
            assert set(command.split("|")) <= parsers().keys(), line


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name == "docs" or p.parent == ROOT], ids=name)
def test_flags_exist(page: Path) -> None:
    known = {flag for parser in (server_flags(), *parsers().values()) for flag in parser._option_string_actions}
    others = {"--seconds", "--json"}  # of a make target
    for line in code(page):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", line))
        assert named <= known | others, line


def test_files_named_in_the_map_exist() -> None:
    folders = {f"{name(parent)}/" for path in FILES for parent in path.parents if parent.is_relative_to(ROOT)}
    there = {name(path) for path in FILES} | folders
    for span in code(ROOT / "CONTRIBUTING.md"):
        if re.fullmatch(r"[\w./-]+(\.(py|md|proto|toml|txt)|/)", span) and span != "dist/":
            assert any(f"/{path}".endswith(f"/{span}") for path in there), span


def test_the_wheel_has_its_name() -> None:
    assert set(re.findall(r"dlpack_wire-([\d.]+)-py3", (ROOT / "README.md").read_text())) == {dw.__version__}


# --- limits -----------------------------------------------------------------------------------------------------------

ROWS = [
    [cell.strip() for cell in row.strip("|").split(" | ")]
    for row in re.findall(r"^\|.*\|$", (ROOT / "docs/limits.md").read_text(), re.MULTILINE)
    if not row.startswith("|---")
]
CONSTANT = re.compile(r"`((?:\w+\.)+\w+)(?:\((\w+)\))?`")
FLAG = re.compile(r"`--([a-z-]+)`")


def number(text: str) -> float:
    """What a cell such as `64 KiB` stands for."""
    found = re.fullmatch(r"(\d+) ?(\w*)", text)
    assert found is not None, text
    return int(found[1]) * UNITS[found[2]]


def constant(dotted: str, argument: str | None) -> Any:
    """The value of a module's constant, of a named tuple's default, or of an argument's."""
    package = "dlpack_wire_server." if dotted.startswith("server.") else "dlpack_wire."
    parts = dotted.removeprefix("server.").split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(package + ".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for at, part in enumerate(parts[split:], split + 1):
            last = at == len(parts) and hasattr(found, "_field_defaults")
            found = found._field_defaults[part] if last else getattr(found, part)
        return inspect.signature(found).parameters[argument].default if argument else found
    raise AssertionError(f"there is no {dotted}")


def test_limits_are_found() -> None:
    assert sum(CONSTANT.fullmatch(row[2]) is not None for row in ROWS) > 25
    assert sum(FLAG.fullmatch(row[2]) is not None for row in ROWS) > 5


@pytest.mark.parametrize("row", [row for row in ROWS if CONSTANT.fullmatch(row[2])], ids=lambda row: row[2].strip("`"))
def test_limits_are_those_of_the_code(row: list[str]) -> None:
    pytest.importorskip("grpc")
    found = CONSTANT.fullmatch(row[2])
    assert found is not None
    assert number(row[1]) == constant(found[1], found[2])


@pytest.mark.parametrize("row", [row for row in ROWS if FLAG.fullmatch(row[2])], ids=lambda row: row[2].strip("`"))
def test_budgets_are_those_of_the_flags(row: list[str]) -> None:
    found = FLAG.fullmatch(row[2])
    assert found is not None
    default = server_flags().get_default(found[1].replace("-", "_"))
    # A zero stands for a share of the machine, which the page tells in words.
    assert default == (number(row[1]) if row[1][0].isdigit() else 0)
