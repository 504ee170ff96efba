"""Killed at any moment, a save or an append is wholly there or wholly absent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dlpack_wire as dw
from dlpack_wire import file

WRITER = """
import sys
import numpy as np
import dlpack_wire as dw
from dlpack_wire.file.appender import FileAppender

saved, log, begin, durable = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "durable"
print("ready", flush=True)
with dw.open(log, "a", durable=durable) as f:
    for i in range(begin, begin + 100_000):
        dw.save(saved, {"number": np.array([i]), "large": np.full(50_000, i), "small": np.full(10, i)}, durable=durable)
        print("saved", i, flush=True)
        f[f"step/{i}"] = np.full(i % 7 * 1000, i)
        f["last"] = np.array([i])
        f.flush()
        print("flushed", i, flush=True)
"""


def killed_writer(saved: Path, log: Path, begin: int, durable: bool, delay: float) -> dict[str, int]:
    """Let a process save and append for a while, kill it, and return the last numbers that it said were done."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(saved), str(log), str(begin), "durable" if durable else "fast"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)  # the moment of the kill is what is varied
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    done = {"saved": begin - 1, "flushed": begin - 1}
    for line in output.splitlines(keepends=True):
        if line.endswith("\n"):
            what, number = line.split()
            done[what] = int(number)
    return done


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    pick = random.Random(0)
    saved, log = tmp_path / "saved.dlpw", tmp_path / "log.dlpw"
    begin = 1
    dw.save(saved, {"number": np.array([0]), "large": np.full(50_000, 0), "small": np.full(10, 0)})
    torn = left_behind = 0
    for turn in range(rounds(25, 1000)):
        if turn % 50 == 49:
            log.unlink()  # every round verifies all of it
            with dw.open(log, "a") as f:  # what is expected below of a writer that is killed before its first flush
                f["last"] = np.array([begin - 1])
        done = killed_writer(saved, log, begin, pick.random() < 0.5, pick.random() * 0.08)

        found = dw.load_dict(saved)
        number = int(found["number"].numpy()[0])
        assert number in (done["saved"], done["saved"] + 1)
        assert all((found[name].numpy() == number).all() for name in ("large", "small"))

        left_behind += len(os.listdir(tmp_path)) - 2
        if log.exists():
            with dw.open(log) as f:
                torn += f.torn_bytes > 0
                last = int(f["last"].numpy()[0]) if "last" in f else 0
                assert last in (done["flushed"], done["flushed"] + 1)
                steps = [name for name in f if name != "last"]
                for name in steps[-20:]:
                    number = int(name.removeprefix("step/"))
                    assert (f[name].numpy() == number).all()
                    assert len(f[name]) == number % 7 * 1000
            problems = [str(problem) for problem in file.problems(log)]
            assert all("torn tail" in p or "no whole" in p for p in problems), problems
        # A gap in the numbers tells nothing: the next one starts after all that may have been done.
        begin = max(done.values()) + 2
        dw.save(
            saved,
            {"number": np.array([begin - 1]), "large": np.full(50_000, begin - 1), "small": np.full(10, begin - 1)},
        )
        assert sorted(os.listdir(tmp_path)) == sorted({"saved.dlpw", *(["log.dlpw"] if log.exists() else [])})
        with dw.open(log, "a") as f:
            f["last"] = np.array([begin - 1])
        assert list(file.problems(log)) == []
    print(f"{torn} torn tails, {left_behind} temporaries left behind and cleaned up")
