"""What people see: nothing that could harm a terminal, and the same facts with and without rich."""

from __future__ import annotations

import sys

import pytest

from dlpack_wire.cli import terminal


@pytest.fixture
def no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcödé 深", "plain ünïcödé 深"),
        ("\0\x7f\x85\xa0", r"\x00\x7f\x85\xa0"),
        ("\u2028\u200b\ufeff", r"\u2028\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert terminal.printable(text) == shown


HEADS = ("name", "count", "note")
ROWS = [("a", 5, "x"), ("long\x1b[m", 1234567, "[bold]y")]
PLAIN = """\
name            count  note
a                   5  x
long\\x1b[m  1,234,567  [bold]y
"""


def test_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(HEADS, ROWS)
    assert capsys.readouterr().out == PLAIN
    terminal.print_table(HEADS, [])
    assert capsys.readouterr().out == "name  count  note\n"


def test_plain_columns_on_a_terminal_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_rich: None
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    terminal.print_table(HEADS, ROWS)
    assert capsys.readouterr().out == PLAIN


def test_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    terminal.print_table(HEADS, ROWS)
    printed = capsys.readouterr().out
    assert "──" in printed
    assert r"long\x1b[m" in printed
    assert "[bold]y" in printed


def test_facts(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_facts({"n": 1234, "long\n": "a\tb", "flag": True})
    assert capsys.readouterr().out == "n       1,234\nlong\\n  a\\tb\nflag    True\n"


def test_no_progress_without_a_terminal() -> None:
    with terminal.progress("get") as report:
        assert report is None


def test_plain_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_rich: None) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with terminal.progress("get") as report:
        assert report is not None
        report(100, 1000)
        assert capsys.readouterr().err == ""
        for done in range(101):
            report(done << 20, 100 << 20)
            report(done << 20, 100 << 20)
    shown = capsys.readouterr().err.split("\r")
    assert shown[1] == "get 0 % of 104,857,600 bytes"
    assert shown[101] == "get 100 % of 104,857,600 bytes"
    assert shown[102:] == ["\x1b[K"]
