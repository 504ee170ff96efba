"""A real server in a process of its own, on a loopback port that is free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
START_S = 30.0


class ServerProcess:
    """A running server.

    Attributes:
        address: Where it listens.
        pid: Its process.
    """

    def __init__(self, *flags: str, listen: str = "127.0.0.1:0", **environment: str) -> None:
        paths = os.pathsep.join((str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dlpack_wire_server", "--listen", listen, *flags],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self._process.kill()
            raise AssertionError(f"the server did not start: {line}{self._process.communicate()[1]}")
        self.address = line.split()[-1]
        self.pid = self._process.pid

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 15.0) -> tuple[int, str]:
        """Send it a signal to end by, and return its exit code and what it said to stderr."""
        if self._process.poll() is None:
            self.send_signal(number)
        try:
            _, said = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        return self._process.returncode, said

    def private_bytes(self) -> int:
        """Memory that is its own: neither memfds nor mapped files."""
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))

    def peak_bytes(self) -> int:
        """The most memory that it ever had, memfds and files included."""
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))

    def descriptor_count(self) -> int:
        """Files it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memfd_count(self) -> int:
        """Images in memory that have a descriptor, drafts included."""
        return len(self._memfd_blocks())

    def memfd_bytes(self) -> int:
        """Memory of these images."""
        return 512 * sum(self._memfd_blocks())

    def _memfd_blocks(self) -> list[int]:
        folder, blocks = f"/proc/{self.pid}/fd", []
        for entry in os.listdir(folder):
            with suppress(FileNotFoundError):
                if "/memfd:" in os.readlink(f"{folder}/{entry}"):
                    blocks.append(os.stat(f"{folder}/{entry}").st_blocks)
        return blocks

    def thread_count(self) -> int:
        """Threads it has."""
        return len(os.listdir(f"/proc/{self.pid}/task"))


@contextmanager
def running(*flags: str, listen: str = "127.0.0.1:0", **environment: str) -> Iterator[ServerProcess]:
    """A server that must end well by itself when it is asked to, without a word of complaint."""
    server = ServerProcess(*flags, listen=listen, **environment)
    try:
        yield server
    except BaseException:
        server.stop(signal.SIGKILL)
        raise
    code, said = server.stop()
    complaints = [line for line in said.splitlines() if re.search(r" (WARNING|ERROR) |Traceback|Exception", line)]
    assert (code, complaints) == (0, []), f"exit code {code}: {said}"


def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until something holds, for a bounded time."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)
