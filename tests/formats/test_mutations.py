"""Damaged files of every format: an error of ours, or tensors, in memory that the file's own size explains."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_files
import numpy as np
import pytest
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.formats.convert import convert

# What parsers of text, of numbers and of pickles stumble over.
FRAGMENTS = (
    *(b"Infinity", b"NaN", b"-1", b"-0", b"1e999", b"9" * 30, b"9" * 5000, b"2**99", b"1.5", b"1j", b"1L", b"\\ud800"),
    *(b"[[[[", b"(" * 900, b"-" * 3000, b"'", b'"', b"\\", b"\0", b"\xff", b"\n", b"#", b"\t", b"x" * 70000),
    *(b"True", b"None", b"{}", b"[]", b"b''", b"<f8", b"|O", b"|V0", b"<U0", b"M8[s]", b"'a':", b"('<f4', (2,))"),
    *(b"\x80\x02", b"((lp0\n", b"\x94", b"R", b"b", b"u", b"a", b"Q", b"e", b"t", b"h\0", b"\x93", b"\x92", b"\x91"),
    *(b"G\x7f\xf0\0\0\0\0\0\0", b"\x8f", b"\x90", b"\x8a\x09" + b"\xff" * 9, b"I9999999999999999999999\n"),
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to four changes."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        kind = rng.randrange(8)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            changed[at : at + rng.choice((0, 1, 3))] = rng.choice(FRAGMENTS)
        elif kind == 5:
            number = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
            changed[at : at + 4] = number.to_bytes(4, "little")
        elif kind == 6:
            other = rng.randrange(len(changed))
            changed[at:at] = changed[other : other + rng.randrange(1, 30)]
        else:
            changed[at] = rng.choice(b"0123456789()[]{},:'\" .")
    return bytes(changed)


def inside(suffix: str, content: bytes, rng: random.Random) -> bytes:
    """Return the file with a change in one of its parts, whose sizes and sums fit: else few would get past these."""
    if suffix in ("npz", "pt"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        pickles = [name for name in members if name.endswith(".pkl")]
        name = rng.choice(pickles if pickles and rng.random() < 0.7 else list(members))
        members[name] = mutated(members[name], rng)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, member)
        return packed.getvalue()
    if suffix == "safetensors":
        size = int.from_bytes(content[:8], "little")
        header = mutated(content[8 : 8 + size], rng)
        return len(header).to_bytes(8, "little") + header + content[8 + size :]
    if suffix == "npy":
        header = mutated(content[10:128], rng)[:65535]
        return content[:8] + len(header).to_bytes(2, "little") + header + content[128:]
    return mutated(content, rng)


def seeds(suffix: str, folder: Path) -> list[bytes]:
    """Return good files, which have something of everything that the format's reader looks at."""
    path = folder / f"seed.{suffix}"
    found = []
    x = np.arange(6.0).reshape(2, 3)
    for tensors, metadata in (
        ({"a": x, "b": np.ones((2, 2), "f4")}, {"k": "v"}),
        ({"a": np.asfortranarray(x.astype(">i2"))}, {}),
    ):
        if suffix in ("npy", "npz"):
            metadata = {}
        if suffix in ("npy", "npz", "dlpw") or not any(t.dtype.byteorder == ">" for t in tensors.values()):
            foreign_files.write(path, tensors, metadata)
            found.append(path.read_bytes())
    if suffix == "npz":
        np.savez_compressed(path, a=np.arange(300))
        found.append(path.read_bytes())
    elif suffix == "pt":
        torch = foreign_files.installed("torch")
        t = torch.arange(6.0).reshape(2, 3)
        z = torch.ones(2, dtype=torch.complex64)
        state = {"a": t, "c": [t.t(), torch.nn.Parameter(t)], "z": z.conj(), "n": {(1, 2): t, "l": (1, 2.5, b"z", {3})}}
        for protocol in (2, 4):
            torch.save(state, path, pickle_protocol=protocol)
            found.append(path.read_bytes())
        torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), path)
        found.append(path.read_bytes())
    elif suffix == "onnx":
        onnx = foreign_files.installed("onnx")
        inner = onnx.helper.make_tensor("i", 7, [3], [1, 2, -3])
        branch = onnx.helper.make_graph([], "b", [], [], [inner])
        nodes = [
            onnx.helper.make_node("Constant", [], ["c"], value=onnx.helper.make_tensor("", 1, [2], [1.5, 2])),
            onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
        ]
        model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], [inner]))
        found.append(model.SerializeToString())
    return found


@pytest.mark.parametrize("suffix", foreign_files.TYPES)
def test_damaged_files_raise_our_errors_alone(suffix: str, tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    rng = random.Random(f"damage to {suffix}")
    good = seeds(suffix, tmp_path)
    source = tmp_path / f"x.{suffix}"
    targets = [tmp_path / f"y.{other}" for other in ("dlpw", "dlpw", "npz", "pt", "safetensors", "onnx")]
    taken = refused = 0
    for _ in range(rounds(1500, 100_000)):
        content = rng.choice(good)
        source.write_bytes(inside(suffix, content, rng) if rng.random() < 0.75 else mutated(content, rng))
        target = rng.choice(targets)
        target.unlink(missing_ok=True)
        before = refused
        try:
            convert(source, target, durable=False)
        except (dw.DecodeError, dw.EncodeError) as error:
            refused += 1
            where = error.path
        else:
            taken += 1
            where = str(source)
        assert where in (str(source), str(target))
        assert target.exists() == (refused == before)
    assert taken
    assert refused


BOMBS: dict[str, Callable[[], Any]] = {
    # A list in a list, each twice the one before: forty of them are 2^40 characters of text, as a global's name ...
    "nested global": lambda: (
        b"]q\0" + b"".join(b"(h%ch%cl" % (i, i) + b"q%c" % (i + 1) for i in range(40)) + b"h(\x93."
    ),
    # ... as the key of a storage, ...
    "nested storage key": lambda: (
        b"]q\0"
        + b"".join(b"(h%ch%cl" % (i, i) + b"q%c" % (i + 1) for i in range(40))
        + b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + b"X\x07\0\0\0storagectorch\nFloatStorage\nh(X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89}tR."
    ),
    # ... and one key of a megabyte in front of a hundred thousand numbers: 100 GB of names.
    "long names": lambda: b"}X\0\0\x10\0" + b"k" * (1 << 20) + b"(" + b"K\x01" * 100_000 + b"ls.",
    "long values": lambda: b"X\0\0\x10\0" + b"k" * (1 << 20) + b"q\0(" + b"h\0" * 100_000 + b"l.",
    "many keys": lambda: b"}X\0\0\x01\0" + b"k" * 65536 + b"q\0" + b"}h\0" * 90 + b"K\x01" + b"s" * 91 + b".",
    # 32 MiB of empty lists, of 56 bytes each, in an archive of 32 KiB.
    "many lists": lambda: b"(" + b"]" * (32 << 20) + b"l.",
    "infinite offset": lambda: (
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
        b"G\x7f\xf0\0\0\0\0\0\0K\x04\x85K\x01\x85\x89}tR."
    ),
}


def test_warnings_that_are_errors_are_ours_too(tmp_path: Path) -> None:
    """The parsers of pickles and of numpy's headers warn of odd escapes and of old spellings."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02ctorch\n\\ensor\n.")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1L,)}"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(8))
    for suffix in ("pt", "npy"):
        with pytest.raises(dw.DecodeError, match="Warning"):
            convert(tmp_path / f"x.{suffix}", tmp_path / "y.dlpw")


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_pickle_takes_little_memory(bomb: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        compression = zipfile.ZIP_DEFLATED if bomb == "many lists" else zipfile.ZIP_STORED
        archive.writestr("archive/data.pkl", BOMBS[bomb](), compression)
        archive.writestr("archive/data/0", bytes(16))
    script = f"""
        import resource
        import dlpack_wire as dw
        from dlpack_wire.formats.convert import convert

        with open("/proc/self/status") as status:
            size = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
        resource.setrlimit(resource.RLIMIT_AS, (size + (400 << 20),) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        try:
            convert({str(tmp_path / "x.pt")!r}, {str(tmp_path / "y.dlpw")!r}, durable=False)
        except dw.DecodeError:
            print("refused")
    """
    assert run_python(script) == "refused\n"
    assert not (tmp_path / "y.dlpw").exists()


def test_a_small_model_takes_little_memory(tmp_path: Path) -> None:
    """Thousands of tensors of a few bytes, in a graph and in attributes of a node whose name has a megabyte."""
    onnx = foreign_files.installed("onnx")
    tiny = onnx.TensorProto(data_type=onnx.TensorProto.INT8, dims=[0])
    inner = onnx.helper.make_graph([], "", [], [], [])
    for number in range(2000):
        inner.initializer.add(name=str(number)).MergeFrom(tiny)
    graphs = onnx.helper.make_node("If", [], ["y"], name="n" * (1 << 20), then_branch=inner)
    lists = onnx.helper.make_node("Custom", [], ["y"], name="n" * (1 << 20), parts=[tiny] * 2000)
    notes = onnx.helper.make_node("Constant", [], ["y"], name="n" * (1 << 20))
    for number in range(2000):
        notes.attribute.add(name=str(number), type=onnx.AttributeProto.INT, i=1)
    for node in (graphs, lists, notes):
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "", [], []))
        (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(dw.DecodeError, match="its names, put together"):
            convert(tmp_path / "x.onnx", tmp_path / "y.dlpw")


def test_tensors_that_overlap_do_not_grow_beyond_the_stated_factor(tmp_path: Path) -> None:
    torch = foreign_files.installed("torch")
    t = torch.zeros(1 << 16)
    torch.save({str(i): t[i:].expand(64, -1) for i in range(64)}, tmp_path / "x.pt")  # 1 GiB out of 256 KiB
    with pytest.raises(dw.LimitError, match="bytes of tensors in a source of") as caught:
        convert(tmp_path / "x.pt", tmp_path / "y.npz")
    assert caught.value.limit == 1032 * (tmp_path / "x.pt").stat().st_size
    assert caught.value.declared > caught.value.limit
    assert not (tmp_path / "y.npz").exists()
    torch.save({"a": torch.ones(1).expand(1000, 1000)}, tmp_path / "x.pt")  # small enough whatever it is made of
    convert(tmp_path / "x.pt", tmp_path / "y.npz", durable=False)
    np.savez_compressed(tmp_path / "z.npz", a=np.zeros(1 << 24))
    assert (tmp_path / "z.npz").stat().st_size < 1 << 18
    convert(tmp_path / "z.npz", tmp_path / "y.npz", durable=False)


def test_a_header_of_safetensors_cannot_make_one_range_many_tensors(tmp_path: Path) -> None:
    entry = {"dtype": "U8", "shape": [1 << 18], "data_offsets": [0, 1 << 18]}
    header = json.dumps({str(i): entry for i in range(1000)}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1 << 18))
    with pytest.raises(dw.DecodeError, match="begins at byte 0"):
        convert(tmp_path / "x.safetensors", tmp_path / "y.dlpw")
    assert not (tmp_path / "y.dlpw").exists()
