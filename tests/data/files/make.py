"""Make the files of this folder: valid ones, and one invalid one for every rule that a file can break.

    python tests/data/files/make.py --force

Nothing here uses the library. The files are reviewed when they change and then frozen: they bind readers in every
language, so a difference is a change of the contract, not something to regenerate away.

files.json: for every file
    error       class of the error, in the contract's words; null if there is none
    at          who raises it: "open", "read" (the first access to the tensor), or "verify" (which also raises whatever
                the others do)
    tensors     of a file that can be read: names, and payloads in hex or as a list of [hex, times] to be joined
    elements    of tensors that are more than their payload: the elements as in the vectors of messages
    metadata    of the file, if it has any: keys, and serialized MetadataValues in hex
    tensor_metadata
                the same by the tensor's name
    sparse      of a file that is too large for the repository: its size, and [offset, hex] of all bytes that are not
                zero; it is made by seeking
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from crafts import FILES  # noqa: E402
from invalid_files import make_invalid  # noqa: E402
from valid_files import make_valid  # noqa: E402


def main() -> int:
    make_valid()
    make_invalid()
    listed = json.dumps({name: said for name, (_, said) in FILES.items()}, indent=1, ensure_ascii=True) + "\n"
    contents = {name: content for name, (content, _) in FILES.items() if content is not None}
    if "--force" in sys.argv[1:]:
        for name, content in contents.items():
            (HERE / name).write_bytes(content)
        (HERE / "files.json").write_text(listed)
        return 0
    different = [name for name, content in contents.items() if not _is(HERE / name, content)]
    different += [] if _is(HERE / "files.json", listed.encode()) else ["files.json"]
    different += [p.name for p in HERE.glob("*.dlpw") if p.name not in contents]
    for name in different:
        print(f"differs: {name}")
    return 1 if different else 0


def _is(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


if __name__ == "__main__":
    sys.exit(main())
