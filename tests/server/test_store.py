"""Both stores behave alike: one suite, run on each."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_wire_server.directory_store import DirectoryStore
from dlpack_wire_server.memory_store import MemoryStore
from dlpack_wire_server.status import Refusal, StoreDamagedError
from dlpack_wire_server.store import Commit, Draft, Serialized, Store, StoredObject, held_bytes
from server_process import running

import dlpack_wire as dw
from dlpack_wire.message.names import encode_map
from dlpack_wire.service.messages import Record, parse
from dlpack_wire.tensor.source import Source
from dlpack_wire.v1 import dlpack_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
RETENTION_NS = 10**12


def draft(store: Store, x: Any, metadata: dict[str, Any] | None = None) -> tuple[Draft, list[bytes]]:
    """A draft with its payloads written, and their sums."""
    tensors = x if isinstance(x, dict) else {"": x}
    sources = [Source(t) for t in tensors.values()]
    records = [Record((name,), {}, source.header, b"") for name, source in zip(tensors, sources, strict=True)]
    made = store.draft(records, Serialized(encode_map(6, metadata, MIB), encode_map(2, metadata, MIB)))
    for index, source in enumerate(sources):
        offset = 0
        for piece in source.pieces(100_000):
            made.write(index, offset, piece)
            offset += len(piece)
    return made, [source.block_sums() for source in sources]


def put(store: Store, name: str, x: Any, if_generation: int | None = None, upload: bytes | None = None) -> Commit:
    made, sums = draft(store, x)
    return store.publish(made, sums, name, if_generation, upload)


def values(stored: StoredObject) -> list[bytes]:
    return [bytes(stored.read(record, 0, record.header.payload_bytes)) for record in stored.records]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.reason


def described(count: int = 1, name: str = "t", ndim: int = 1, aliases: int = 0, metadata: int = 0) -> list[Record]:
    """Descriptions of tensors without elements, as they come in."""
    request = pb.PutRequest()
    for i in range(count):
        tensor = dlpack_pb2.DLTensor(dtype=dlpack_pb2.DLDataType(code=1, bits=8, lanes=1), shape=[*[1] * (ndim - 1), 0])
        record = request.records.add(
            name=f"{name}{i}", aliases=[f"{i} alias {j}" for j in range(aliases)], tensor=tensor
        )
        for j in range(metadata):
            record.metadata[f"key {j}"].string_value = f"value {j} of {i}"
    return parse(pb.PutRequest, request.SerializeToString())[1]


DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "one": {},
    "many": {"count": 200},
    "long names": {"count": 20, "name": "n" * 4000, "metadata": 1},  # without metadata a cache holds it too
    "many axes": {"count": 20, "ndim": 64},
    "aliases": {"count": 20, "aliases": 64},
    "metadata": {"count": 20, "metadata": 50},
}


SIZES = [0, 5, 60_000, 70_000, 3 * MIB]


class StoreSuite:
    """What every store must do. A store's own class says how to open it."""

    def open(self, folder: Path, limit_bytes: int = 1 << 30) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        opened = self.open(tmp_path)
        yield opened
        opened.close()

    @pytest.mark.parametrize("size", SIZES)
    def test_gives_back_what_was_put(self, store: Store, size: int) -> None:
        x = np.random.default_rng(0).integers(0, 255, size, np.uint8)
        commit = put(store, "a", {"x": x, "y": x[::2]})
        stored = store.get("a")
        assert stored.info[:4] == ("a", commit.generation, 2, size + (size + 1) // 2)
        assert [record.names for record in stored.records] == [("x",), ("y",)]
        assert values(stored) == [x.tobytes(), x[::2].tobytes()]
        assert [record.header.shape for record in stored.records] == [(size,), ((size + 1) // 2,)]
        assert all(record.header.checksum is not None for record in stored.records)
        assert stored.by_name["y"] is stored.records[1]

    def test_replaced_and_deleted_objects_stay_with_their_readers(self, store: Store) -> None:
        for size in SIZES:
            old = np.full(size, 1, np.uint8)
            put(store, "a", old)
            reader = store.get("a")
            payload = reader.read(reader.records[0], 0, reader.records[0].header.payload_bytes)
            put(store, "a", np.full(size + 1, 2, np.uint8))
            store.delete("a", None)
            assert values(reader) == [old.tobytes()]
            del reader
            gc.collect()
            assert bytes(payload) == old.tobytes()

    def test_generations_grow_and_are_preconditions(self, store: Store) -> None:
        assert store.generation("a") == 0
        first = put(store, "a", np.zeros(1), 0).generation
        assert store.generation("a") == first
        for wrong in (0, first - 1, first + 1):
            assert refusal(lambda wrong=wrong: put(store, "a", np.zeros(2), wrong)) == "GENERATION_MISMATCH"
            assert refusal(lambda wrong=wrong: store.delete("a", wrong)) == "GENERATION_MISMATCH"
        second = put(store, "a", np.zeros(3), first).generation
        other = put(store, "b", np.zeros(3)).generation
        assert first < second < other
        assert store.delete("a", second) == second
        assert put(store, "a", np.zeros(1), 0).generation > other

    def test_past_generations_as_long_as_somebody_reads_them(self, store: Store) -> None:
        first = put(store, "a", np.zeros(1)).generation
        reader = store.get("a")
        second = put(store, "a", np.ones(1)).generation
        assert store.get("a", first) is reader
        assert store.get("a", second).info.generation == second
        assert refusal(lambda: store.get("b", first)) == "GENERATION_MISMATCH"
        assert refusal(lambda: store.get("a", first - 1)) == "GENERATION_MISMATCH"

    def test_what_is_not_there(self, store: Store) -> None:
        assert refusal(lambda: store.get("a")) == "OBJECT_NOT_FOUND"
        assert refusal(lambda: store.delete("a", None)) == "OBJECT_NOT_FOUND"
        assert refusal(lambda: store.delete("a", 5)) == "OBJECT_NOT_FOUND"
        assert store.list("", "", 10) == []
        assert store.committed(b"x") is None

    def test_repeated_uploads_change_nothing(self, store: Store) -> None:
        first = put(store, "a", np.zeros(1), upload=b"u")
        assert (first.repeated, store.committed(b"u")) == (False, ("a", first.generation))
        put(store, "a", np.ones(2), upload=b"v")
        assert put(store, "a", np.zeros(1), 0, upload=b"u") == Commit(first.generation, True)
        assert store.get("a").records[0].header.shape == (2,)

    def test_lists(self, store: Store) -> None:
        names = ["b", "a", "a/1", "a/10", "a/2", "ä", "~", "../x", "𝄞"]
        for name in names:
            made, sums = draft(store, np.zeros(3), {"of": name})
            store.publish(made, sums, name, None, None)
        ordered = sorted(names, key=lambda n: n.encode())
        assert [info.name for info in store.list("", "", 100)] == ordered
        assert [info.name for info in store.list("a/", "", 100)] == ["a/1", "a/10", "a/2"]
        assert [info.name for info in store.list("a/", "a/1", 1)] == ["a/10"]
        assert [info.name for info in store.list("", "a/2", 2)] == ordered[ordered.index("a/2") + 1 :][:2]
        assert store.list("", "𝄞", 5) == []
        info = store.list("b", "", 1)[0]
        assert (info.tensor_count, info.payload_bytes) == (1, 24)
        assert info.metadata == encode_map(6, {"of": "b"}, MIB)
        store.delete("a/10", None)
        assert [info.name for info in store.list("a/", "", 100)] == ["a/1", "a/2"]

    def test_space_is_bounded_and_given_back(self, tmp_path: Path) -> None:
        store = self.open(tmp_path / "small", 4 * MIB)
        x = np.zeros(MIB, np.uint8)
        for name in "abc":
            put(store, name, x)
        assert refusal(lambda: put(store, "d", x)) == "STORE_FULL"
        assert [info.name for info in store.list("", "", 9)] == ["a", "b", "c"]
        store.delete("a", None)
        gc.collect()
        put(store, "d", x)
        for name in "bcd":
            store.delete(name, None)
        gc.collect()
        assert store.budget.used == 0
        store.close()

    def test_drafts_that_are_dropped_leave_nothing(self, store: Any) -> None:
        files = len(os.listdir("/proc/self/fd"))
        made, _ = draft(store, np.zeros(MIB, np.uint8))
        assert store.budget.used > MIB
        del made
        gc.collect()
        assert store.budget.used == 0
        assert len(os.listdir("/proc/self/fd")) == files
        assert store.list("", "", 9) == []

    def test_many_objects(self, store: Store) -> None:
        files = len(os.listdir("/proc/self/fd"))
        for i in range(200):
            put(store, f"n{i:03}", np.full(i, i, np.uint8))
        assert len(os.listdir("/proc/self/fd")) - files < 100
        assert [len(values(store.get(f"n{i:03}"))[0]) for i in range(200)] == list(range(200))


class TestMemoryStore(StoreSuite):
    def open(self, folder: Path, limit_bytes: int = 1 << 30) -> MemoryStore:
        return MemoryStore(limit_bytes, RETENTION_NS)

    def test_remembers_a_bounded_number_of_uploads(self) -> None:
        store = MemoryStore(1 << 30, RETENTION_NS, max_remembered=3)
        for i in range(5):
            put(store, "a", np.zeros(1), upload=bytes([i]))
        assert [store.committed(bytes([i])) is None for i in range(5)] == [True, True, False, False, False]

    @pytest.mark.parametrize("kind", DESCRIPTIONS)
    def test_objects_are_charged_near_their_real_size(self, kind: str) -> None:
        store = MemoryStore(1 << 30, RETENTION_NS)
        count = 400 if kind == "one" else 10
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for i in range(count):
                records = described(**DESCRIPTIONS[kind])
                made = store.draft(records, Serialized(b"", encode_map(2, {"name": f"{i}" * 500}, MIB)))
                store.publish(made, [b""] * len(records), f"{i}" * 500, None, None)
                del made, records
            real = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert 0.9 * real < store.budget.used < 2.5 * real

    @pytest.mark.parametrize("kind", DESCRIPTIONS)
    def test_descriptions_are_charged_near_their_real_size(self, kind: str) -> None:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            held = [described(**DESCRIPTIONS[kind]) for _ in range(10)]
            real = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        charged = sum(held_bytes(record) for records in held for record in records)
        assert 0.6 * real < charged < 2.5 * real

    def test_names_of_uploads_are_remembered_in_bounded_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dlpack_wire_server.memory_store._REMEMBERED_BYTES", 1000)
        store = MemoryStore(1 << 30, RETENTION_NS)
        for i in range(5):
            put(store, f"{i}" * 400, np.zeros(1), upload=bytes([i]))
        assert [store.committed(bytes([i])) is None for i in range(5)] == [True, True, True, False, False]

    def test_sealed_memory_cannot_change(self, store: MemoryStore) -> None:
        put(store, "a", np.zeros(MIB, np.uint8))
        source: Any = store.get("a")._source
        with pytest.raises(PermissionError):
            os.pwrite(source._backing.fd, b"x", 0)


class TestDirectoryStore(StoreSuite):
    def open(self, folder: Path, limit_bytes: int = 1 << 30) -> DirectoryStore:
        return DirectoryStore(str(folder), limit_bytes, RETENTION_NS)

    def test_remembers_a_bounded_number_of_uploads(self, tmp_path: Path) -> None:
        store = DirectoryStore(str(tmp_path), 0, RETENTION_NS, max_remembered=3)
        for i in range(5):
            put(store, "a", np.zeros(1), upload=bytes([i]))
        assert [store.committed(bytes([i])) is None for i in range(5)] == [True, True, False, False, False]
        store.close()

    def test_objects_are_kept_open_in_bounded_memory(
        self, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for i in range(6):
            put(store, f"{i}", {f"t{j}": np.zeros(1) for j in range(100)})
        held = store.get("0").held_bytes
        assert 50_000 < held < 200_000
        monkeypatch.setattr("dlpack_wire_server.directory_store._MAX_OPEN_BYTES", 3 * held)
        for i in range(6):
            store.get(f"{i}")
            store.get(f"{i}")
        gc.collect()
        assert sum(stored.held_bytes for stored in store._alive.values()) == 3 * held
        monkeypatch.setattr("dlpack_wire_server.directory_store._MAX_OPEN_BYTES", 1)
        store.get("0")
        gc.collect()
        assert [stored.info.name for stored in store._alive.values()] == ["0"]  # one may be larger

    def test_everything_is_there_after_a_restart(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        tensors = {f"t{i}": np.random.default_rng(i).standard_normal((i, 7)) for i in range(5)}
        generation = put(store, "set", tensors, upload=b"u").generation
        last = put(store, "gone", np.zeros(9)).generation
        store.delete("gone", None)
        used = store.budget.used
        store.close()
        store = self.open(tmp_path)
        assert store.budget.used == used
        assert store.committed(b"u") == ("set", generation)
        stored = store.get("set")
        assert values(stored) == [x.tobytes() for x in tensors.values()]
        assert [record.names for record in stored.records] == [(name,) for name in tensors]
        assert put(store, "new", np.zeros(1)).generation > last
        store.close()

    def test_files_are_tensor_files_named_by_generation(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        x = np.arange(100_000.0)
        generation = put(store, "../../etc/passwd", {"x": x}).generation
        (file,) = (tmp_path / "objects").iterdir()
        assert file.name == f"{generation}.dlpw"
        dw.verify(file)
        assert np.array_equal(dw.load_dict(file)["x"].numpy(), x)
        put(store, "../../etc/passwd", x)
        assert len(list((tmp_path / "objects").iterdir())) == 1
        store.close()

    def test_what_a_killed_server_left_is_removed_and_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = self.open(tmp_path)
        put(store, "a", np.zeros(3))
        store.close()
        objects = tmp_path / "objects"
        (objects / "7.dlpw").write_bytes(b"orphan")
        (objects / "ab.draft").write_bytes(b"half")
        (objects / "keep.txt").write_bytes(b"not ours")
        store = self.open(tmp_path)
        assert sorted(f.suffix for f in objects.iterdir()) == [".dlpw", ".txt"]
        assert len([r for r in caplog.records if "left behind" in r.message]) == 1
        assert len([r for r in caplog.records if "moved to" in r.message]) == 1
        assert (tmp_path / "lost+found" / "7.dlpw").read_bytes() == b"orphan"
        assert store.get("a").records[0].header.shape == (3,)
        store.close()

    def test_a_file_of_an_object_says_whose_it_is(self, tmp_path: Path) -> None:
        with running("--dir", str(tmp_path)) as server, dw.connect(server.address) as client:
            client.put("a/\u00e9", np.arange(3), metadata={"unit": "m"})
            assert client.stat("a/\u00e9").metadata == {"unit": "m"}
        with dw.open(next((tmp_path / "objects").iterdir())) as f:
            assert f.metadata == {"dlpack_wire.object": "a/\u00e9", "unit": "m"}

    @pytest.mark.parametrize("lost", ["wal", "older index"])
    def test_objects_that_the_index_lost_are_put_aside(self, tmp_path: Path, lost: str) -> None:
        """The index is of an earlier moment: the later objects were acknowledged, and must not be removed."""
        store = self.open(tmp_path / "a")
        put(store, "kept", np.zeros(3))
        if lost == "older index":
            store.close()
            for file in (tmp_path / "a").glob("index.sqlite*"):
                shutil.copy(file, tmp_path)
            store = self.open(tmp_path / "a")
        last = [put(store, f"later {i}", np.arange(i)).generation for i in range(5)][-1]
        if lost == "wal":
            copied = shutil.copytree(tmp_path / "a", tmp_path / "b")  # as a kill would leave it
            (copied / "index.sqlite-wal").unlink()
            (copied / "index.sqlite-shm").unlink()
        else:
            store.close()
            copied = tmp_path / "a"
            for file in tmp_path.glob("index.sqlite*"):
                shutil.copy(file, copied)
        again = self.open(copied)
        assert len(list((copied / "lost+found").iterdir())) >= 5
        assert put(again, "new", np.zeros(1)).generation > last
        again.close()

    def test_the_lock_cannot_be_removed(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        for file in tmp_path.iterdir():
            if file.is_file() and not file.name.startswith("index"):
                file.unlink()
        with pytest.raises(OSError, match="another server"):
            self.open(tmp_path)
        store.close()

    def test_nobody_else_may_read_the_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        folder.mkdir(mode=0o755)
        store = self.open(folder)
        put(store, "a", np.zeros(9))
        store.delete("a", None)
        put(store, "b", np.zeros(9))
        modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}
        assert {mode for name, mode in modes.items() if (folder / name).is_dir() or name in ("store", "objects")} == {
            0o700
        }
        assert {mode for name, mode in modes.items() if "." in name or name == "reserve"} == {0o600}, modes
        store.close()

    def test_damage_is_an_error_that_names_the_block(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        x = np.zeros((3, MIB), np.uint8)
        put(store, "a", {"x": x})
        file = next((tmp_path / "objects").iterdir())
        with open(file, "r+b") as f:
            f.seek(2 * MIB + 5000)
            f.write(b"\1")
        stored = store.get("a")
        record = stored.records[0]
        assert bytes(stored.read(record, 0, MIB)) == bytes(MIB)
        with pytest.raises(StoreDamagedError, match=r"object 'a', tensor 'x': .*block [12] of 3"):
            stored.read(record, 0, 3 * MIB)
        assert stored.select(record, record.header, (0, slice(0, 5))).shape == (5,)
        with pytest.raises(StoreDamagedError, match=r"block [12] of 3"):
            stored.select(record, record.header, (slice(None), 7))
        store.close()

    @pytest.mark.parametrize("size", [0, 100, MIB + 1000])
    def test_a_file_that_was_cut_is_an_error_and_nothing_worse(self, tmp_path: Path, size: int) -> None:
        store = self.open(tmp_path)
        put(store, "a", {"x": np.zeros((3, MIB), np.uint8)})
        os.truncate(next((tmp_path / "objects").iterdir()), size)
        stored = store.get("a")
        record = stored.records[0]
        with pytest.raises(StoreDamagedError, match="object 'a', tensor 'x'"):
            stored.read(record, 2 * MIB, 3 * MIB)
        with pytest.raises(StoreDamagedError):
            stored.select(record, record.header, (2,))
        store.close()
        store = self.open(tmp_path)
        with pytest.raises(StoreDamagedError, match="object 'a'"):
            store.get("a")
        store.close()

    def test_a_damaged_row_of_the_index_is_an_error(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        put(store, "aaaa", np.zeros(3))
        put(store, "b", np.zeros(3))
        store.close()
        index = sqlite3.connect(tmp_path / "index.sqlite")
        index.execute("UPDATE objects SET name = ? WHERE name = ?", (b"aaba", b"aaaa"))
        index.commit()
        index.close()
        store = self.open(tmp_path)
        with pytest.raises(StoreDamagedError, match="index entry"):
            store.get("aaba")
        with pytest.raises(StoreDamagedError):
            store.list("", "", 10)
        assert store.get("b").records[0].header.shape == (3,)
        store.close()

    @pytest.mark.parametrize("content", [b"", b"nothing that SQLite wrote" * 400])
    def test_an_index_that_is_damaged_is_named_at_the_start(self, tmp_path: Path, content: bytes) -> None:
        store = self.open(tmp_path)
        put(store, "a", np.zeros(3))
        store.close()
        for file in tmp_path.glob("index.sqlite-*"):
            file.unlink()
        (tmp_path / "index.sqlite").write_bytes(content)
        if content:
            with pytest.raises(OSError, match=r"index.sqlite: the index cannot be read: .*store repair"):
                self.open(tmp_path)
        else:
            self.open(tmp_path).close()
        assert [f.suffix for f in (tmp_path / ("objects" if content else "lost+found")).iterdir()] == [".dlpw"]

    def test_a_file_that_cannot_be_removed_does_not_fail_what_was_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = self.open(tmp_path)
        put(store, "a", np.zeros(3))
        put(store, "b", np.zeros(3))
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(1, "no")))
            put(store, "a", np.ones(3))
            store.delete("b", None)
        assert len(list((tmp_path / "objects").iterdir())) == 3
        store.close()
        store = self.open(tmp_path)
        assert len(list((tmp_path / "objects").iterdir())) == 1
        assert not (tmp_path / "lost+found").exists()
        assert values(store.get("a")) == [np.ones(3).tobytes()]
        store.close()

    def test_a_file_is_on_disk_before_its_name_and_its_name_before_the_index(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a kill cannot show, a loss of power can."""
        store = self.open(tmp_path)
        made, sums = draft(store, np.zeros(3))
        seen: list[str] = []
        fsync, rename = os.fsync, os.rename

        def note_fsync(fd: int) -> None:
            seen.append("sync " + Path(os.readlink(f"/proc/self/fd/{fd}")).suffix)
            fsync(fd)

        def note_rename(old: Path, new: Path) -> None:
            seen.append("rename")
            rename(old, new)

        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "rename", note_rename)
        index: Any = store._index
        monkeypatch.setattr(index, "put", lambda *_: seen.append("index"))
        store.publish(made, sums, "a", None, None)
        assert seen == ["sync .draft", "rename", "sync ", "index"]
        store.close()

    def test_space_is_charged_as_it_comes(self, tmp_path: Path) -> None:
        store = self.open(tmp_path, 10 * MIB)
        source = Source(np.zeros(9 * MIB, np.uint8))
        record = Record(("",), {}, source.header, b"")
        made = [store.draft([record], Serialized(b"", b"")) for _ in range(3)]
        assert store.budget.used < 3 * 4096
        made[0].write(0, 0, bytes(8 * MIB))
        assert refusal(lambda: made[1].write(0, 0, bytes(2 * MIB))) == "STORE_FULL"
        assert refusal(lambda: store.draft([record], Serialized(b"", b""))) == "STORE_FULL"
        for draft in made:
            draft.discard()
        assert (store.budget.used, list((tmp_path / "objects").iterdir())) == (0, [])
        store.close()

    def test_one_server_a_folder(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        with pytest.raises(OSError, match="another server"):
            self.open(tmp_path)
        store.close()
        self.open(tmp_path).close()

    def test_a_lost_index_is_no_reason_to_remove_everything(self, tmp_path: Path) -> None:
        store = self.open(tmp_path)
        put(store, "a", np.zeros(3))
        store.close()
        for file in tmp_path.glob("index.sqlite*"):
            file.unlink()
        with pytest.raises(OSError, match="is missing"):
            self.open(tmp_path)
        assert len(list((tmp_path / "objects").iterdir())) == 1

    def test_a_file_that_somebody_removed_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        store = self.open(tmp_path)
        put(store, "a", np.zeros(3))
        store.close()
        next((tmp_path / "objects").iterdir()).unlink()
        store = self.open(tmp_path)
        assert [r.levelname for r in caplog.records] == ["ERROR"]
        with pytest.raises(StoreDamagedError, match="its file is missing"):
            store.get("a")
        store.close()
