"""Print the back end and the verdict on every file of a folder: `python -m tests.fuzz.verdicts TARGET FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf.internal import api_implementation

from .properties import TARGETS


def main() -> None:
    check, folder = TARGETS[sys.argv[1]], Path(sys.argv[2])
    print(api_implementation.Type())
    for file in sorted(folder.iterdir()):
        print(file.name, check(file.read_bytes()))


if __name__ == "__main__":
    main()
