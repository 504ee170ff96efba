"""Damage is found before somebody asks for the object, at a pace."""

from __future__ import annotations

import asyncio
import logging
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dlpack_wire_server import scrub
from dlpack_wire_server.directory_store import DirectoryStore
from dlpack_wire_server.scrub import Scrub
from server_process import ServerProcess, eventually

from dlpack_wire.service.client import connect

MIB = 1 << 20
FAST = 1 << 60
PAYLOAD = np.random.default_rng(0).integers(0, 255, 9 * MIB, np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store's folder with three objects."""
    server = ServerProcess("--dir", str(tmp_path), "--scrub-bytes-per-s", "0")
    with connect(server.address, timeout=30) as client:
        for name in "abc":
            client.put(name, {"x": PAYLOAD, "y": np.zeros(0)})
    assert server.stop()[0] == 0
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[DirectoryStore]:
    opened = DirectoryStore(str(folder), 0, 10**12)
    yield opened
    opened.close()


def damage(path: Path, at: int) -> None:
    """Flip a bit of the payload in an object's file."""
    content = bytearray(path.read_bytes())
    content[content.index(PAYLOAD[64:128].tobytes()) - 64 + at] ^= 1
    path.write_bytes(content)


def test_all_bytes_are_checked_and_damage_is_told(store: DirectoryStore, caplog: pytest.LogCaptureFixture) -> None:
    scrubbed = Scrub(store, FAST)
    asyncio.run(scrubbed.check_all())
    assert (scrubbed.checked_bytes, scrubbed.damaged_count) == (3 * PAYLOAD.size, 0)
    path = store._folder.file(store.generation("b"))
    for at in (0, 5 * MIB + 7, PAYLOAD.size - 1):
        damage(path, at)
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            asyncio.run(scrubbed.check_all())
        assert scrubbed.damaged_count == 1
        assert f"object 'b', tensor 'x': block {at // MIB} of 9" in caplog.text
        damage(path, at)
        asyncio.run(scrubbed.check_all())
        assert scrubbed.damaged_count == 0
    path.write_bytes(path.read_bytes()[:-1])
    asyncio.run(scrubbed.check_all())
    assert scrubbed.damaged_count == 1
    store.delete("b", None)
    asyncio.run(scrubbed.check_all())
    assert scrubbed.damaged_count == 0


def test_its_pace_is_kept(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(scrub.asyncio, "sleep", sleep)
    asyncio.run(Scrub(store, 10 * MIB).check_all())
    assert sum(paused) == pytest.approx((3 * PAYLOAD.size + 3 * (64 << 10)) / (10 * MIB))
    assert max(paused) <= 0.4


def test_objects_that_go_meanwhile_are_no_damage(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.peek

    def peek(info: scrub.ObjectSummary) -> scrub.StoredObject:
        if info.name == "b":
            store.delete("b", None)
        return real(info)

    monkeypatch.setattr(store, "peek", peek)
    scrubbed = Scrub(store, FAST)
    asyncio.run(scrubbed.check_all())
    assert (scrubbed.checked_bytes, scrubbed.damaged_count) == (2 * PAYLOAD.size, 0)


def test_objects_are_not_kept_open_for_it(store: DirectoryStore) -> None:
    asyncio.run(Scrub(store, FAST).check_all())
    assert not store._open


def test_a_server_scrubs_and_says_so_in_its_log_and_its_metrics(folder: Path) -> None:
    damage(max((folder / "objects").glob("*.dlpw")), 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = f"127.0.0.1:{free.getsockname()[1]}"
    server = ServerProcess("--dir", str(folder), "--scrub-bytes-per-s", "1TiB", "--metrics-listen", metrics)

    def page() -> str:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    try:
        eventually(lambda: "dlpack_wire_damaged_objects 1.0" in page())
        assert "dlpack_wire_scrubbed_bytes_total" in page()
    finally:
        code, said = server.stop()
    assert code == 0
    assert "object 'c', tensor 'x': block 0 of 9" in said
