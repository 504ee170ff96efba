"""Run the whole matrix and write docs/matrix.md: `python -m tests.matrix`."""

from __future__ import annotations

import sys
from pathlib import Path

# The tests' own helpers are imported by their plain names, as pytest does it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from .frameworks import FRAMEWORKS
from .page import PAGE, render
from .run import run


def main() -> int:
    missing = [f.name for f in FRAMEWORKS if not f.installed]
    if missing:
        print(f"not installed: {', '.join(missing)}; see requirements.txt here", file=sys.stderr)
        return 1
    found = run(FRAMEWORKS)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(FRAMEWORKS, found))
    made = sum(why is None for why in found.made.values())
    taken = sum(why is None for why in found.taken.values())
    print(f"{made} tensors made, {len(found.made) - made} that their framework cannot make")
    print(f"{taken} kinds of message taken, {len(found.taken) - taken} that their consumer cannot take or nobody sends")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
