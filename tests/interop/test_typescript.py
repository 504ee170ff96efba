"""A client in another language, made with stock tools from proto/ alone, against our files and our server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from server_process import running

import dlpack_wire as dw

HERE = Path(__file__).parent / "typescript"
ROOT = Path(__file__).parents[2]

if shutil.which("node") is None or shutil.which("npm") is None:
    pytest.skip("no Node.js on this machine", allow_module_level=True)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript program, generated and built outside the checkout."""
    folder = tmp_path_factory.mktemp("typescript")
    for name in ("package.json", "buf.gen.yaml", "tsconfig.json", "src"):
        source = HERE / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("gen"))
        else:
            shutil.copy(source, folder / name)
    for command in (
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"],
        ["npx", "--no-install", "buf", "generate", str(ROOT / "proto")],
        ["npx", "--no-install", "tsc"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        if command[0] == "npm" and done.returncode != 0:
            pytest.skip(f"npm cannot install the tools here: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build/main.js"


def run(program: Path, *arguments: object) -> list[dict[str, Any]]:
    command = ["node", str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def tensors() -> dict[str, np.ndarray]:
    w = np.arange(12.0).reshape(3, 4)
    large = np.random.default_rng(0).integers(0, 255, (3, 2**20 + 1), dtype=np.uint8)
    return {
        "w": w,
        "fortran": np.asfortranarray(w),
        "bf16": w.astype(ml_dtypes.bfloat16),
        "empty": np.zeros((0, 2)),
        "scalar": np.array(np.nan, np.float32),
        "big endian": w.astype(">f4"),
        "large": large,
        "tied": w,
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    dw.save(tmp_path / "x.dlpw", tensors(), metadata={"made": "here"})
    return tmp_path / "x.dlpw"


def test_reads_a_file_and_checks_its_sums(program: Path, saved: Path) -> None:
    found = {line["name"]: line for line in run(program, "read", saved)}
    assert found["w"]["aliases"] == ["tied"]
    with dw.open(saved) as f:
        for name, line in found.items():
            header = f.header(name)
            assert line["dtype"] == [header.dtype.code, header.dtype.bits, header.dtype.lanes]
            assert tuple(map(int, line["shape"])) == header.shape
            assert tuple(map(int, line["strides"])) == (header.strides or ())
            assert int(line["sum"]) == header.checksum
    assert bytes.fromhex(found["big endian"]["data"]) == tensors()["big endian"].tobytes()


def test_notices_a_damaged_file(program: Path, saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[content.index(np.arange(12.0).tobytes()) + 5] ^= 1
    saved.write_bytes(content)
    done = subprocess.run(["node", str(program), "read", str(saved)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tensor w: checksum" in done.stderr


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running() as server:
        yield server.address


def test_puts_what_python_gets(program: Path, saved: Path, address: str) -> None:
    (line,) = run(program, "put", address, "from/node", saved)
    with dw.connect(address) as client:
        assert client.stat("from/node").generation == int(line["generation"])
        got = client.get("from/node")
    for name, x in tensors().items():
        assert got[name].numpy().tobytes() == x.astype(x.dtype.newbyteorder("=")).tobytes(), name


def test_gets_what_python_puts(program: Path, address: str, tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 255, (5, 2**20 + 3), dtype=np.uint8)
    with dw.connect(address) as client:
        client.put("from/python", {"a": x, "b": np.arange(3)})
    lines = run(program, "get", address, "from/python", tmp_path / "out")
    assert [line["name"] for line in lines] == ["a", "b"]
    assert (tmp_path / "out").read_bytes() == x.tobytes() + np.arange(3).tobytes()


def test_publishes_what_python_receives(program: Path, saved: Path, address: str) -> None:
    with dw.connect(address, timeout=60) as client, client.subscribe("from/node", policy="reliable") as frames:
        (line,) = run(program, "publish", address, "from/node", saved)
        found = [next(frames) for _ in range(int(line["sequence"]))]
    with dw.open(saved) as f:
        stored = [f[name] for name in dict.fromkeys(f.names_of(name)[0] for name in f)]
        assert [frame.tensor.header.shape for frame in found] == [t.shape for t in stored]
        for frame, tensor in zip(found, stored, strict=True):
            assert frame.tensor.numpy().tobytes() == tensor.numpy().tobytes()


def test_receives_what_python_publishes(program: Path, address: str) -> None:
    large = np.random.default_rng(1).integers(0, 255, 3 * 2**20 + 5, dtype=np.uint8)
    command = ["node", str(program), "subscribe", address, "from/python/*", "3"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node,
        dw.connect(address, timeout=60) as client,
    ):
        assert node.stdout is not None
        assert json.loads(node.stdout.readline()) == "ready"
        with client.publisher("from/python/a") as a, client.publisher("from/python/b") as b:
            a.send(large)
            b.send(np.empty(0))
            a.send(np.arange(3), metadata={"k": 1})
        found = [json.loads(line) for line in node.stdout]
    assert node.returncode == 0
    assert [(f["topic"], f["sequence"], f["droppedCount"]) for f in found] == [
        ("from/python/a", "1", "0"),
        ("from/python/b", "1", "0"),
        ("from/python/a", "2", "0"),
    ]
    assert [bytes.fromhex(f["data"]) for f in found] == [large.tobytes(), b"", np.arange(3).tobytes()]
