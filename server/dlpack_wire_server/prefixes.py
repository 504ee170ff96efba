"""Prefixes of names."""

from __future__ import annotations

from collections.abc import Iterable


def widest(prefixes: Iterable[str]) -> list[str]:
    """Return, sorted, the prefixes that begin with no other of them: every name has at most one."""
    found: list[str] = []
    for prefix in sorted(prefixes):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found
