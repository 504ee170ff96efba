"""Output for people: tables, progress bars, and text that cannot harm their terminal.

Drawn by rich if it is installed (the extra `dlpack-wire[cli]`) and the output is a terminal; else plain.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

_LARGE_BYTES = 16 << 20
"""Size from which transfers get a progress bar: smaller ones take a moment."""


def printable(text: str) -> str:
    """Escape everything in a text that could move the cursor, change colours, break the line or reverse its order."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: drawn by rich on a terminal, plain columns elsewhere. Numbers are aligned to the right."""
    cells = list(rows)
    texts = [list(map(_cell, row)) for row in cells]
    right = [bool(cells) and all(type(row[i]) is int for row in cells) for i in range(len(heads))]
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            _draw_table(heads, texts, right)
            return
    lines = [heads, *texts]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right, strict=True))
        print("  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    return f"{value:,}" if type(value) is int else printable(str(value))


def _draw_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head, is_right in zip(heads, right, strict=True):
        table.add_column(head, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # not str, in which rich would look for markup
    Console().print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    names = list(map(printable, facts))
    width = max(map(len, names))
    for name, value in zip(names, facts.values(), strict=True):
        print(f"{name.ljust(width)}  {_cell(value)}")


Report = Callable[[int, int], None]
"""Called with the bytes done so far, and their total."""


def progress(what: str) -> AbstractContextManager[Report | None]:
    """Return a context that yields a function which shows progress of large transfers, or None without a terminal."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return _plain_progress(what)
    return _drawn_progress(what)


@contextlib.contextmanager
def _drawn_progress(what: str) -> Iterator[Report]:
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn(what),
        bars.BarColumn(),
        bars.DownloadColumn(binary_units=True),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=total >= _LARGE_BYTES)


@contextlib.contextmanager
def _plain_progress(what: str) -> Iterator[Report]:
    shown = -1

    def report(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // total if total >= _LARGE_BYTES else -1
        if percent > shown:
            shown = percent
            sys.stderr.write(f"\r{what} {percent} % of {total:,} bytes")
            sys.stderr.flush()

    try:
        yield report
    finally:
        if shown >= 0:
            sys.stderr.write("\r\x1b[K")
