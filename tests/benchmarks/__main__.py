"""Print the rows: `python -m tests.benchmarks [--json] [codec file service ...]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

# The tests' own helpers are imported by their plain names, as pytest does it.
sys.path.insert(0, str(Path(__file__).parents[1]))

AREAS = ("codec", "file", "service", "flight", "log")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip())
    parser.add_argument("areas", nargs="*", default=[], help=f"some of {', '.join(AREAS)}; default all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    unknown = set(arguments.areas) - set(AREAS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not arguments.json:
        print(f"{'work':52} {'ours':>12} {'peer':>12}  {'ratio':>8}  {'target':>9}      against")
    for area in arguments.areas or AREAS:
        for row in importlib.import_module(f"{__package__}.{area}").rows():
            if arguments.json:
                print(json.dumps(row.as_dict()))
            else:
                met = ("met" if row.met else "MISSED") if row.target else ""
                ours, theirs = _seconds(row.ours), _seconds(row.theirs)
                print(f"{row.name:52} {ours:>12} {theirs:>12}  {row.ratio:8.2f}  {row.target:>9} {met:6} {row.peer}")
            sys.stdout.flush()
    return 0


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


if __name__ == "__main__":
    sys.exit(main())
