"""Attack a server, and measure an innocent caller and the server's memory: `python -m tests.attacks`."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
from server_process import ServerProcess  # noqa: E402

import dlpack_wire as dw  # noqa: E402
from attacks.attacks import ATTACKS  # noqa: E402

MIB = 1 << 20
STORE_BYTES, TOPIC_BYTES = 256 * MIB, 128 * MIB
ALLOWED_BYTES = 64 * MIB
"""Memory beside the budgets: Python's own, and what is on its way."""

TOKENS = {"innocent": ("good/", "innocent-0123456789"), "attacker": ("junk/", "attacker-0123456789")}
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}


class Outcome(NamedTuple):
    """Result of an attack.

    Attributes:
        p50_ms, p99_ms, max_ms: Latency of the innocent caller's Stat.
        calls: How many of those there were.
        refusals: How many of them were refused, by status.
        memory_bytes: Most memory of the server beyond what it had before.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    calls: int
    refusals: dict[str, int]
    memory_bytes: int

    def is_within(self, bound_ms: float) -> bool:
        """True if the promises hold."""
        budget = STORE_BYTES + TOPIC_BYTES + ALLOWED_BYTES
        return self.p99_ms <= bound_ms and not self.refusals and self.memory_bytes <= budget


def attack(name: str, seconds: float, flags: list[str], folder: Path) -> Outcome:
    tokens = folder / "tokens.json"
    entries = [{"name": n, "token": t, "read": [p], "write": [p]} for n, (p, t) in TOKENS.items()]
    tokens.write_text(json.dumps({"tokens": entries}))
    tokens.chmod(0o600)
    limits = [f"--max-store-bytes={STORE_BYTES}", f"--max-topic-bytes={TOPIC_BYTES}"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = f"127.0.0.1:{free.getsockname()[1]}"
    server = ServerProcess("--token-file", str(tokens), "--metrics-listen", metrics, *limits, *flags)
    try:
        return _measured(name, seconds, server, metrics)
    finally:
        server.stop()


def _measured(name: str, seconds: float, server: ServerProcess, metrics: str) -> Outcome:
    with dw.connect(server.address, token=TOKENS["innocent"][1]) as client:
        client.put("good/x", np.zeros(10))
        if name == "lists":
            for i in range(20_000):
                client.put(f"good/{i}", np.zeros(10))
    start = _memory(server)
    python = [sys.executable, "-m"]
    innocent = subprocess.Popen(
        [*python, "attacks.innocent", server.address, TOKENS["innocent"][1], "good/x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert innocent.stdout is not None
    assert innocent.stdout.readline() == "ready\n"
    attacker = subprocess.Popen(
        [*python, "attacks.attacks", name, server.address, metrics, TOKENS["attacker"][1], str(seconds)],
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    peak = start
    while attacker.poll() is None:
        peak = max(peak, _memory(server))
        time.sleep(0.02)
    said = json.loads(innocent.communicate("")[0])
    ms = sorted(1000 * s for s in said["seconds"])
    p50, p99 = (ms[int(len(ms) * q)] for q in (0.5, 0.99))
    return Outcome(p50, p99, ms[-1], len(ms), said["refusals"], peak - start)


def _memory(server: ServerProcess) -> int:
    return server.private_bytes() + server.memfd_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip())
    parser.add_argument("attack", nargs="*", help=f"only these of {' '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=10, help="of each attack")
    parser.add_argument("--bound-ms", type=float, default=50, help="allowed for the innocent caller's p99")
    parser.add_argument("--dir", action="store_true", help="objects in a folder")
    arguments = parser.parse_args()
    print(f"{'attack':28}{'calls':>7}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}{'MiB':>6}  refusals of the innocent")
    failed = 0
    for name in arguments.attack or ATTACKS:
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--dir", f"{folder}/store"] if arguments.dir else []
            outcome = attack(name, arguments.seconds, flags, Path(folder))
        is_good = outcome.is_within(arguments.bound_ms)
        failed += not is_good
        times = f"{outcome.p50_ms:8.1f}{outcome.p99_ms:8.1f}{outcome.max_ms:8.1f}"
        memory = f"{outcome.memory_bytes / MIB:6.0f}"
        print(
            f"{name:28}{outcome.calls:7}{times}{memory}  {outcome.refusals or '-'}{'' if is_good else '   <-'}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
