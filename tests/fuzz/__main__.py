"""Fuzz every target on both protobuf back ends and compare their verdicts: `python -m tests.fuzz`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

from . import corpus
from .properties import TARGETS

BACK_ENDS = ("upb", "python")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip())
    parser.add_argument("--seconds", type=int, default=900, help="in all, divided among targets and back ends")
    parser.add_argument(
        "--keep", action="store_true", help="write the shortest inputs that cover as much to the corpus"
    )
    parser.add_argument("--target", choices=tuple(TARGETS), action="append", help="only these")
    arguments = parser.parse_args()
    targets = arguments.target or tuple(TARGETS)
    share = max(arguments.seconds // (len(targets) * len(BACK_ENDS)), 1)
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            found = Path(folder) / target
            fill(found, [*corpus.seeds(target), *corpus.read(target)])
            for back_end in BACK_ENDS:
                print(target, back_end, fuzz(target, back_end, found, share), flush=True)
            compare(target, found)
            if arguments.keep:
                inputs = [file.read_bytes() for file in found.iterdir()]
                corpus.write(target, [*corpus.seeds(target), *corpus.distil(target, inputs)])
    return 0


def fill(folder: Path, inputs: list[bytes]) -> None:
    """Files as libFuzzer wants them."""
    folder.mkdir()
    for number, content in enumerate(inputs):
        (folder / f"kept-{number:05}").write_bytes(content)


def fuzz(target: str, back_end: str, folder: Path, seconds: int) -> str:
    """Fuzz for a while; what libFuzzer says at the end. An input that breaks a property ends the program."""
    said = work(
        target,
        back_end,
        str(folder),
        f"-max_total_time={seconds}",
        f"-max_len={corpus.MAX_INPUT_BYTES}",
        "-timeout=10",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
        f"-artifact_prefix={folder.parent}/",
    )
    last = re.findall(r"cov: \d+ ft: \d+", said)[-1]
    runs = re.search(r"number_of_executed_units: (\d+)", said)
    peak = re.search(r"peak_rss_mb: *(\d+)", said)
    assert runs is not None
    assert peak is not None
    return f"{seconds} s, {runs[1]} executions, {last}, peak RSS {peak[1]} MB, {len(list(folder.iterdir()))} inputs"


def work(target: str, back_end: str, *options: str) -> str:
    done = run_with(back_end, f"{__package__}.worker", target, *options)
    if done.returncode != 0:
        found = re.search(r"Base64: (\S*)", done.stderr)
        content = b64decode(found[1]).hex() if found else done.stderr[-2000:]
        sys.exit(f"{done.stdout[-4000:]}\n{target} on {back_end}: a property is broken by\n{content}")
    return done.stderr


def compare(target: str, folder: Path) -> None:
    """Hold the verdicts of both back ends on every input against each other."""
    said = [run_with(back_end, f"{__package__}.verdicts", target, str(folder)) for back_end in BACK_ENDS]
    for back_end, done in zip(BACK_ENDS, said, strict=True):
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == back_end
    first, second = (done.stdout.splitlines()[1:] for done in said)
    for one, other in zip(first, second, strict=True):
        if one != other:
            sys.exit(f"{target}: the back ends differ\n{one}\n{other}")
    print(f"{target}: {len(first)} verdicts, equal on both back ends", flush=True)


def run_with(back_end: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": back_end},
        capture_output=True,
        text=True,
        errors="replace",
    )


if __name__ == "__main__":
    sys.exit(main())
