"""A reader, a writer and a client in C++, made from proto/ alone with stock tools, against ours: `make interop`."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from interop.comparison import differences, file_verdict, files, message_verdict, messages
from server_process import running

import dlpack_wire as dw

HERE = Path(__file__).parent / "cpp"
DATA = Path(__file__).parents[1] / "data"
PACKAGES = {
    "g++": ["g++", "--version"],
    "protobuf-compiler": ["protoc", "--version"],
    "protobuf-compiler-grpc": ["which", "grpc_cpp_plugin"],
    "pkg-config": ["pkg-config", "--version"],
    "libprotobuf-dev": ["pkg-config", "--exists", "protobuf"],
    "libgrpc++-dev": ["pkg-config", "--exists", "grpc++"],
    "libxxhash-dev": ["pkg-config", "--exists", "libxxhash"],
    "nlohmann-json3-dev": ["pkg-config", "--exists", "nlohmann_json"],
}
"""Debian packages, each with a command that succeeds if it is installed."""
INPUTS = 20_000

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def _succeeds(command: list[str]) -> bool:
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ program, built outside the checkout."""
    missing = [package for package, command in PACKAGES.items() if not _succeeds(command)]
    if missing:
        pytest.skip(f"not installed: {' '.join(missing)}")
    build = tmp_path_factory.mktemp("cpp")
    command = ["make", "--silent", "-j2", "-C", str(HERE), f"BUILD={build}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return build / "interop"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.config.getoption("seed"))


def run(program: Path, *arguments: object, said: str = "") -> list[str]:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_vector_has_the_stated_verdict(program: Path) -> None:
    (line,) = run(program, "vectors", DATA)
    print(line)
    assert line.endswith(" 0 differences")


def test_what_it_writes_is_whole(program: Path, tmp_path: Path) -> None:
    run(program, "write", tmp_path / "x.dlpw")
    dw.verify(tmp_path / "x.dlpw")
    with dw.open(tmp_path / "x.dlpw") as f:
        print(f"{len(f)} tensors")
        assert len(f) > 1
        for name in f:
            assert f[name].header.checksum is not None, name


def test_its_client_does_every_call_of_the_service(program: Path) -> None:
    with running() as server:
        lines = run(program, "client", server.address)
    print(*lines, sep="\n")
    assert [line.split()[0] for line in lines] == ["ok"] * 19


def test_mutated_messages_get_the_same_verdicts(program: Path, chance: random.Random) -> None:
    made = list(messages(INPUTS, chance))
    found = run(program, "messages", said="".join(message.hex() + "\n" for message in made))
    theirs = [" ".join(line.split()[:5]) for line in found]  # without the payload's sum
    different = differences(theirs, list(map(message_verdict, made)))
    assert not different, made[different[0]].hex()


def test_crafted_files_with_right_sums_get_the_same_verdicts(
    program: Path, chance: random.Random, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{i}.dlpw" for i in range(INPUTS)]
    for path, content in zip(paths, files(INPUTS, chance), strict=True):
        path.write_bytes(content)
    theirs = run(program, "files", said="".join(f"{path}\n" for path in paths))
    different = differences(theirs, list(map(file_verdict, paths)))
    assert not different, f"{theirs[different[0]]} in C++: {paths[different[0]]}"
