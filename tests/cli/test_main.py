"""The command line: what it prints for people and for programs, its exit codes, and that names cannot do harm."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import running
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.cli import main as cli
from dlpack_wire.file.reader import contents_of
from dlpack_wire.message.names import Metadata

EVIL = "a\x1b[31m\u202eb\r\n\x07"
SHOWN = r"a\x1b[31m\u202eb\r\n\x07"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.dlpw"
    tensors = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        EVIL: np.asfortranarray(np.zeros((4, 5))),
        "[bold]": np.zeros(3, ">i2"),
        "none": np.zeros((0, 3), bool),
    }
    tensors["tied"] = tensors["weights"]
    metadata: Metadata = {
        EVIL: "x\ny",
        "n": float("nan"),
        "b": b"\x01\xff",
        "i": 2**60,
        "f": 1.5,
        "t": True,
    }
    dw.save(path, tensors, metadata)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command, require its exit code, and that it says something on stderr only if it fails."""
    try:
        found = cli.main(list(map(str, arguments)))
    except SystemExit as end:  # argparse
        found = int(end.code or 0)
    printed = capsys.readouterr()
    assert found == code, printed.err
    assert bool(printed.err) == (code > 1), printed.err
    return printed.out if code < 2 else printed.err


# --- files ------------------------------------------------------------------------------------------------------------


def test_ls_of_a_file(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    lines = [line.split() for line in run(capsys, "ls", file).splitlines()]
    assert lines[0] == ["name", "dtype", "shape", "bytes", "offset", "layout", "device"]
    assert lines[1][:7] == ["weights", "=", "tied", "float32", "[2,", "3]", "24"]
    assert lines[1][8:] == ["row-major", "cpu"]
    assert lines[2][0] == SHOWN
    assert lines[2][-2] == "column-major"
    assert lines[3][-3:] == ["row-major,", "big-endian", "cpu"]
    assert len(lines) == 5


def test_ls_for_programs(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    listed = json.loads(run(capsys, "ls", file, "--json"))
    first, second = listed[:2]
    with dw.open(file) as f:
        assert first == {
            "names": ["weights", "tied"],
            "dtype": "float32",
            "shape": [2, 3],
            "strides": None,
            "payload_bytes": 24,
            "data_offset": contents_of(f).locate("weights").entry.data_offset,
            "byte_order": "little",
            "device": {"device_type": 1, "device_id": 0},
            "sub_byte_padded": False,
            "data_sum": f"{f.header('weights').checksum:016x}",
        }
    assert second["names"] == [EVIL]
    assert second["strides"] == [1, 4]


def test_info(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    facts = json.loads(run(capsys, "info", file, "--json"))
    assert facts == {
        "file": str(file),
        "file_bytes": file.stat().st_size,
        "payload_bytes": 24 + 160 + 6,
        "tensors": 4,
        "names": 5,
        "generations": 1,
        "dead_bytes": 0,
        "torn_bytes": 0,
        "metadata": {EVIL: "x\ny", "n": "NaN", "b": "01ff", "i": 2**60, "f": 1.5, "t": True},
    }
    printed = run(capsys, "info", file)
    assert "payload_bytes  190" in printed
    assert rf"{SHOWN}  x\ny" in printed


def test_an_appended_file_is_described(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    with dw.open(file, "a") as f:
        f["weights"] = np.ones(4)
    facts = json.loads(run(capsys, "info", file, "--json"))
    assert (facts["generations"], facts["tensors"], facts["names"]) == (2, 5, 5)
    assert facts["dead_bytes"] == 0  # "tied" still names the record of the old weights
    names = [tensor["names"] for tensor in json.loads(run(capsys, "ls", file, "--json"))]
    assert sorted(names) == sorted([["tied"], [EVIL], ["[bold]"], ["none"], ["weights"]])


def test_a_torn_file_is_described(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    with file.open("ab") as f:
        f.write(b"\x12\x7fabc")
    assert json.loads(run(capsys, "info", file, "--json"))["torn_bytes"] == 5
    assert "torn" in run(capsys, "verify", file, code=1)


def test_a_file_of_one_tensor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dw.save(tmp_path / "one", np.float64(1))
    assert run(capsys, "ls", tmp_path / "one").splitlines()[1].startswith("(no name)  float64  []")


def test_verify(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "5 names, no problems" in run(capsys, "verify", file)
    assert json.loads(run(capsys, "verify", file, "--json")) == {"file": str(file), "names": 5, "problems": []}
    with dw.open(file) as f:
        offsets = [contents_of(f).locate(name).entry.data_offset for name in ("weights", EVIL)]
    content = bytearray(file.read_bytes())
    for offset in offsets:
        content[offset] ^= 1
    file.write_bytes(content)
    printed = run(capsys, "verify", file, code=1).splitlines()
    assert len(printed) == 2
    assert "checksum" in printed[0]
    assert "weights" in printed[0]
    assert SHOWN in printed[1]
    found = json.loads(run(capsys, "verify", file, "--json", code=1))
    assert [p["kind"] for p in found["problems"]] == ["ChecksumError"] * 2
    assert [p["tensor"] for p in found["problems"]] == ["weights", EVIL]


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_what_is_no_tensor_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    bad = tmp_path / "bad\x1b[2J"
    bad.write_bytes(b"hello, world")
    assert cli.main([command, str(bad)]) == 1
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert "not a tensor file" in said
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert run(capsys, command, tmp_path / "missing", code=3).startswith("dlpack-wire: ")
    assert run(capsys, command, tmp_path, code=5).count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["frob"], ["ls"], ["info", "a", "b"], ["put", "no address", "n", "f"], ["ls", "no-such-file", "name"]],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]) -> None:
    if arguments[:1] == ["put"]:
        dw.save(tmp_path / "f", np.zeros(1))
        arguments[-1] = str(tmp_path / "f")
    assert "usage:" in run(capsys, *arguments, code=2)


# --- terminals --------------------------------------------------------------------------------------------------------


def in_terminal(*arguments: object, **environment: str) -> str:
    """What a command prints when its output is a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "dlpack_wire", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    printed = b""
    try:
        while part := os.read(master, 65536):
            printed += part
    except OSError:
        pass  # how the other end says that it is gone
    os.close(master)
    assert process.wait() == 0, printed
    return printed.decode()


def test_tables_on_a_terminal(file: Path) -> None:
    printed = in_terminal("ls", file)
    assert "──" in printed
    assert SHOWN in printed
    assert "[bold]" in printed
    assert "\u202e" not in printed


def test_a_reader_that_has_seen_enough(file: Path) -> None:
    script = f"{sys.executable} -m dlpack_wire ls {file} --json | true"
    done = subprocess.run(["bash", "-c", script + "; echo ${PIPESTATUS[0]}"], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")  # it may have written all before the pipe was closed


# --- servers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running() as server:
        yield server.address


def test_put_ls_get_rm(capsys: pytest.CaptureFixture[str], address: str, file: Path, tmp_path: Path) -> None:
    assert run(capsys, "put", address, EVIL, file).startswith(f"put {SHOWN}, generation ")
    generation = json.loads(run(capsys, "put", address, EVIL, file, "--json"))["generation"]
    head, line = run(capsys, "ls", address).splitlines()
    assert head.split() == ["name", "tensors", "bytes", "generation", "put"]
    assert line.split()[0] == SHOWN
    assert line.split()[3] == str(generation)
    [listed] = json.loads(run(capsys, "ls", address, "--json"))
    assert "headers" not in listed
    assert (listed["name"], listed["generation"], listed["metadata"]["b"]) == (EVIL, generation, "01ff")
    assert "column-major" in run(capsys, "ls", address, EVIL)
    back = tmp_path / "back.dlpw"
    assert f"generation {generation}" in run(capsys, "get", address, EVIL, back)
    with dw.open(file) as sent, dw.open(back) as got:
        assert list(got) == list(sent)
        assert repr(got.metadata) == repr(sent.metadata)
        for name in sent:
            assert dw.encode(got[name]) == dw.encode(sent[name])
    assert run(capsys, "rm", address, EVIL).startswith("removed")
    assert SHOWN in run(capsys, "rm", address, EVIL, code=3)
    assert run(capsys, "get", address, EVIL, back, code=3)
    assert run(capsys, "ls", address, EVIL, code=3)
    assert back.exists()


def test_watch(capsys: pytest.CaptureFixture[str], address: str) -> None:
    with dw.connect(address, timeout=20) as client, client.publisher("watched/\x1b[1m") as publisher:
        publisher.send(np.zeros((2, 3), np.int16), metadata={"k": float("nan")}, time_ns=10**18)
        said = run(capsys, "watch", address, "watched/*", "--count", "1")
        assert ".000 watched/\\x1b[1m #1 int16[2, 3] 12 bytes (retained) {'k': 'NaN'}" in said
        shown = json.loads(run(capsys, "watch", address, "watched/*", "--count", "1", "--json"))
    assert shown == {
        "topic": "watched/\x1b[1m",
        "sequence": 1,
        "time_ns": 10**18,
        "dropped_count": 0,
        "is_retained": True,
        "dtype": "int16",
        "shape": [2, 3],
        "payload_bytes": 12,
        "metadata": {"k": "NaN"},
    }


def test_one_bare_tensor(capsys: pytest.CaptureFixture[str], address: str, tmp_path: Path) -> None:
    dw.save(tmp_path / "one", np.arange(5), {"k": "v"})
    run(capsys, "put", address, "one", tmp_path / "one")
    run(capsys, "get", address, "one", tmp_path / "back")
    back = dw.load(tmp_path / "back")
    assert isinstance(back, dw.Tensor)
    assert dw.encode(back) == dw.encode(np.arange(5))


def test_a_damaged_file_is_not_put(capsys: pytest.CaptureFixture[str], address: str, tmp_path: Path) -> None:
    dw.save(tmp_path / "x", np.zeros(1000))
    with dw.open(tmp_path / "x") as f:
        offset = contents_of(f).locate("").entry.data_offset
    content = bytearray((tmp_path / "x").read_bytes())
    content[offset] ^= 1
    (tmp_path / "x").write_bytes(content)
    assert cli.main(["put", address, "damaged", str(tmp_path / "x")]) == 1
    assert "checksum" in capsys.readouterr().err
    run(capsys, "ls", address, "damaged", code=3)


def test_progress_on_a_terminal(address: str, tmp_path: Path) -> None:
    dw.save(tmp_path / "large", np.zeros(40 << 20, np.uint8))
    printed = in_terminal("put", address, "large", tmp_path / "large")
    assert "MiB" in printed
    assert "put large, generation" in printed
    printed = in_terminal("get", address, "large", tmp_path / "back")
    assert "MiB" in printed


def test_nobody_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert len(run(capsys, "ls", "127.0.0.1:9", code=4).splitlines()) == 1
    assert len(run(capsys, "ls", f"unix:{tmp_path}/none", code=4).splitlines()) == 1


def test_a_file_that_looks_like_an_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    dw.save("localhost:9", np.zeros(3))
    assert "float64" in run(capsys, "ls", "localhost:9")


def test_the_token_comes_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlpack_wire.service import client

    given: list[Any] = []

    def connect(address: str, *, token: str | None) -> None:
        given.append(token)
        raise dw.RemoteError("no", code="UNAUTHENTICATED")

    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setenv(cli.TOKEN, "secret")
    assert "secret" not in run(capsys, "ls", "127.0.0.1:9", code=4)
    assert given == ["secret"]


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlpack_wire", "serve", "--listen", address], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "in use" in done.stderr


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_help_needs_nothing_heavy() -> None:
    script = """
        import sys
        from dlpack_wire.cli import main as cli
        try:
            cli.main(["--help"])
        except SystemExit as end:
            assert end.code == 0
        print(sorted({"grpc", "rich", "mcap", "asyncio", "torch", "dlpack_wire_server"} & sys.modules.keys()))
    """
    printed = run_python(script)
    assert printed.endswith("[]\n")
    for line in cli.EXIT_CODES.splitlines():
        assert line in printed


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("grpc", ["ls", "127.0.0.1:9"], "dlpack-wire[grpc]"),
        ("grpc", ["serve"], "dlpack-wire[server]"),
    ],
)
def test_a_missing_extra_is_named(missing: str, arguments: list[str], extra: str) -> None:
    script = f"""
        import contextlib, io, sys
        sys.modules[{missing!r}] = None
        from dlpack_wire.cli import main as cli
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = cli.main({arguments!r})
        print(code, said.getvalue())
    """
    printed = run_python(script)
    assert extra in printed
    assert not printed.startswith("0")


# --- recovering, comparing, converting --------------------------------------------------------------------------------


def test_recover_writes_what_is_whole(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    with dw.open(file) as f:
        content[contents_of(f).locate("weights").entry.data_offset] ^= 1
    file.write_bytes(content)
    target = tmp_path / "saved.dlpw"
    said = run(capsys, "recover", file, target, code=1)
    assert "weights" in said
    assert f"{target}: 3 names are whole" in said
    dw.verify(target)
    with dw.open(target) as f:
        assert list(f) == [EVIL, "[bold]", "none"]


def test_recover_mends_a_cut_file_in_place(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])
    found = json.loads(run(capsys, "recover", file, "--json", code=1))
    assert found["names"] == ["weights", "tied", EVIL, "[bold]", "none"]
    dw.verify(file)


def test_compact_frees_what_info_calls_dead(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    with dw.open(file, "a") as f:
        f[EVIL] = np.ones(4)
        del f["none"]
    before = file.stat().st_size
    dead = json.loads(run(capsys, "info", file, "--json"))["dead_bytes"]
    assert dead > 160
    target = tmp_path / "smaller.dlpw"
    assert f"{target}: 4 names, {before} bytes before, " in run(capsys, "compact", file, target)
    assert json.loads(run(capsys, "info", target, "--json"))["dead_bytes"] == 0
    done = json.loads(run(capsys, "compact", file, "--json"))
    assert done == {
        "names": ["weights", "tied", "[bold]", EVIL],
        "before_bytes": before,
        "after_bytes": done["after_bytes"],
    }
    assert target.read_bytes() == file.read_bytes()
    assert done["after_bytes"] == file.stat().st_size <= before - dead


def test_diff_says_what_differs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x = np.arange(6.0)
    dw.save(tmp_path / "a.dlpw", {"same": x, EVIL: x, "a": x}, {"step": 1})
    dw.save(tmp_path / "b.dlpw", {"same": x, EVIL: x + 1, "b": x}, {"step": 2})
    lines = run(capsys, "diff", tmp_path / "a.dlpw", tmp_path / "b.dlpw", code=1).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["name", "(file)", SHOWN, "a", "b"]
    listed = json.loads(run(capsys, "diff", tmp_path / "a.dlpw", tmp_path / "b.dlpw", "--json", code=1))
    assert [d["kind"] for d in listed] == ["metadata", "values", "only in first", "only in second"]
    assert run(capsys, "diff", tmp_path / "a.dlpw", tmp_path / "a.dlpw") == ""


def test_convert_there_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"w": np.arange(6.0).reshape(2, 3)}, tmp_path / "x.safetensors")
    assert "1 tensors" in run(capsys, "convert", tmp_path / "x.safetensors", tmp_path / "x.dlpw")
    assert (dw.load_dict(tmp_path / "x.dlpw")["w"].numpy() == np.arange(6.0).reshape(2, 3)).all()
    run(capsys, "convert", tmp_path / "x.dlpw", tmp_path / "w.npy", "--only", "w", "--json")
    assert np.load(tmp_path / "w.npy").shape == (2, 3)


def test_convert_refuses_what_it_cannot_keep(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    assert cli.main(["convert", str(file), str(tmp_path / "x.npy")]) == 1
    assert "holds one tensor" in capsys.readouterr().err
    assert not (tmp_path / "x.npy").exists()


def test_convert_says_what_it_leaves_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    t = torch.ones(2)
    torch.save({"w": t, "tied": t, EVIL: None, "array": np.arange(2)}, tmp_path / "x.pt")
    source, target = str(tmp_path / "x.pt"), str(tmp_path / "y.npz")
    assert cli.main(["convert", source, target]) == 1
    printed = capsys.readouterr()
    assert f"left behind: {SHOWN}: None\n" in printed.err
    assert "left behind: array: numpy" in printed.err
    assert "note: w = tied: one tensor of 2 names, written 2 times\n" in printed.err
    assert printed.out == f"{target}: 2 tensors\n"
    with np.load(target) as found:
        assert found.files == ["w", "tied"]
    assert cli.main(["convert", source, target, "--drop", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["names"] == ["w", "tied"]
    assert listed["skipped"][0] == f"{EVIL}: None"
    assert listed["notes"] == ["w = tied: one tensor of 2 names, written 2 times"]
    # Whoever asks for one tensor asks for nothing else.
    assert run(capsys, "convert", source, target, "--only", "w") == f"{target}: 1 tensors\n"


def test_convert_takes_the_names_it_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dw.save(tmp_path / "x.dlpw", {"a": np.zeros(1), "b": np.ones(1), "c": np.full(1, 2.0)})
    run(capsys, "convert", tmp_path / "x.dlpw", tmp_path / "y.npz", "--only", "c", "--only", "a")
    with np.load(tmp_path / "y.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"a": [0], "c": [2]}
    run(capsys, "convert", tmp_path / "x.dlpw", tmp_path / "y.dlpw", "--only", "b")
    assert list(dw.load_dict(tmp_path / "y.dlpw")) == ["b"]
