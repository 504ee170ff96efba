"""Large files, many tensors, hostile indexes: memory follows what is asked for. Each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hand_built_files import (
    BLOCK,
    END,
    CraftedFile,
    entry,
    field,
    fixed,
    header_of,
    listed,
    names_of,
    varint,
    with_sum,
    xxh3,
)
from subprocesses import run_python

import dlpack_wire as dw

PEAK = """
import numpy as np
import dlpack_wire as dw

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
"""


def sparse_file(path: Path, size: int) -> None:
    """A file of one uint8 matrix with `size` rows of 4096, whole blocks, of which only the last row is not a hole."""
    sums = xxh3(bytes(BLOCK)).to_bytes(8, "little") * (size // 256 - 1)
    sums += xxh3(bytes(BLOCK - 4096) + bytes(range(256)) * 16).to_bytes(8, "little")
    header = header_of([size, 4096], payload_sum=xxh3(sums))
    payload_bytes = size * 4096
    for padding in range(1, 200):
        middle = header + field(14, bytes(padding)) + b"\x7a" + varint(payload_bytes)
        tensor = b"\x7a" + varint(len(middle) + payload_bytes) + middle
        inner = names_of("w") + b"\x71" + bytes(8) + tensor
        head = b"\x12" + varint(len(inner) + payload_bytes) + inner
        if (9 + len(head)) % 64 == 0:
            break
    f = CraftedFile()
    f.content += with_sum(head, names_of("w"))
    data_offset = len(f.content)
    end = data_offset + payload_bytes
    f.lines.append(entry(names_of("w"), header, 9, data_offset, payload_bytes, listed(sums)))
    index = field(3, f.lines[0])
    covered = index + fixed(4, end)
    with path.open("wb") as file:
        file.write(f.content)
        file.seek(end - 4096)
        file.write(bytes(range(256)) * 16)
        file.write(covered + fixed(5, xxh3(covered)) + END)


def test_a_file_of_four_times_the_memory_opens_and_slices(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    path = tmp_path / "sparse.dlpw"
    rows = 4 * memory // BLOCK * 256
    sparse_file(path, rows)
    assert path.stat().st_blocks * 512 < 1 << 20
    script = (
        PEAK
        + f"""
for mmap in (True, False):
    with dw.open({str(path)!r}, mmap=mmap) as f:
        before = peak()
        assert f["w"].shape == ({rows}, 4096)
        assert f["w"][-1].numpy().tolist() == list(range(256)) * 16
        assert f["w"][{rows // 2}, 5:9].numpy().tolist() == [0] * 4
        assert f["w"][-1:, ::-1][0, 0].numpy() == 255
        assert f["w"][::{rows - 1}, 7].numpy().tolist() == [0, 7]
        assert peak() - before < 16 << 20
print("fine")
"""
    )
    assert run_python(script) == "fine\n"


def test_a_tensor_of_five_gigabytes_is_written_and_read(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    """A stream that forgets stands for the disk in short runs."""
    in_full = rounds(0, 1)
    script = (
        PEAK
        + f"""
from dlpack_wire.file.audit import problems
from dlpack_wire.file.reader import contents_of
size = 5 << 30
x = np.zeros(size, np.uint8)  # pages that nothing writes to take no memory
path = {str(tmp_path / "large.dlpw")!r}
if {in_full}:
    dw.save(path, {{"x": x, "after": np.arange(3)}}, durable=False)
    with dw.open(path) as f:
        assert f["x"].shape == (size,)
        assert f["x"][-5:].numpy().tolist() == [0] * 5
        assert f["after"].numpy().tolist() == [0, 1, 2]
        assert list(problems(contents_of(f))) == []
else:
    class Forgetful:
        count, end = 0, b""
        def write(self, piece):
            self.count += len(piece)
            self.end = (self.end + bytes(piece[-64:]))[-64:]
            return len(piece)
    stream = Forgetful()
    dw.save(stream, {{"x": x, "after": np.arange(3)}})
    assert size + 5 * 1024 * 8 < stream.count < size + 5 * 1024 * 8 + 1000  # 8 bytes for each block in the index
    assert stream.end.endswith(b"DLPWIREE")
    assert peak() < 400 << 20, peak()
print("fine")
"""
    )
    assert run_python(script) == "fine\n"


def test_an_iterator_takes_the_memory_of_one_tensor(tmp_path: Path) -> None:
    script = (
        PEAK
        + f"""
def tensors():
    for i in range(24):
        yield f"t{{i}}", np.full(4 << 20, i, np.int64)  # 32 MiB

path = {str(tmp_path / "many.dlpw")!r}
dw.save(path, {{}})
before = peak()
dw.save(path, tensors(), durable=False)
assert peak() - before < 80 << 20, peak() - before
with dw.open(path) as f:
    assert [int(t[-1].numpy()) for t in f.values()] == list(range(24))
print("fine")
"""
    )
    assert run_python(script) == "fine\n"


OPENING = (
    PEAK
    + """
path, index_bytes, wanted = {path!r}, {index_bytes}, {wanted!r}
before = peak()
with dw.open(path, mmap={mmap}) as f:
    assert wanted in f
    assert "no such name" not in f
    assert peak() - before < 4 * index_bytes + (6 << 20), (peak() - before, index_bytes)
print("fine")
"""
)


def index_bytes_of(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-26, 2)
        return path.stat().st_size - int.from_bytes(file.read(8), "little")


def test_a_million_tiny_tensors_in_one_file(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count = rounds(100_000, 1_000_000)
    path = tmp_path / "many.dlpw"
    x = np.arange(4, dtype="i4")
    dw.save(path, ((f"tensor.{i}", x) for i in range(count)), durable=False)
    with dw.open(path) as f:
        assert len(f) == sum(1 for _ in f) == count
    for mmap in (True, False):
        script = OPENING.format(path=str(path), index_bytes=index_bytes_of(path), wanted="tensor.777", mmap=mmap)
        assert run_python(script) == "fine\n"


@pytest.mark.parametrize("aliases", [0, 64])
def test_a_hostile_index_takes_at_most_four_times_its_size(aliases: int, tmp_path: Path) -> None:
    """Names as short and as many as the rules allow; not one record behind them."""
    f = CraftedFile()
    f.content += field(99, bytes(1 << 20))
    count = 200_000 // (aliases // 4 + 1)
    f.lines = [
        entry(names_of(f"{i:x}", [f"{i:x}.{j}" for j in range(aliases)]), header_of([0]), 64 + i, 65 + i, 0)
        for i in range(1, count)
    ]
    f.add("wanted", b"")
    path = tmp_path / "hostile.dlpw"
    path.write_bytes(f.finish())
    assert index_bytes_of(path) > 5_000_000
    script = OPENING.format(path=str(path), index_bytes=index_bytes_of(path), wanted="wanted", mmap=True)
    assert run_python(script) == "fine\n"


def test_appending_for_long_takes_no_more_memory(tmp_path: Path) -> None:
    script = (
        PEAK
        + f"""
x = np.zeros(16 << 10, "i4")
with dw.open({str(tmp_path / "log.dlpw")!r}, "a", durable=False) as f:
    for i in range(3000):
        f[f"step/{{i}}"] = x
        f.flush()
        if i == 500:
            before = peak()
assert peak() - before < 8 << 20, peak() - before
print("fine")
"""
    )
    assert run_python(script) == "fine\n"
