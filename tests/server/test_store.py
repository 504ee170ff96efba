"""Both stores behave alike: one suite, run on each."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_wire_server.directory_store import DirectoryStore
from dlpack_wire_server.memory_store import MemoryStore
from dlpack_wire_server.status import Refusal
from dlpack_wire_server.store import Commit, Draft, Serialized, Store, StoredObject

import dlpack_wire as dw
from dlpack_wire.message.names import encode_map
from dlpack_wire.service.messages import Record
from dlpack_wire.tensor.source import Source

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
    return [bytes(stored.payload(record)) for record in stored.records]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.reason


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
            payload = reader.payload(reader.records[0])
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
        assert [len(store.get(f"n{i:03}").payload(store.get(f"n{i:03}").records[0])) for i in range(200)] == list(
            range(200)
        )


class TestMemoryStore(StoreSuite):
    def open(self, folder: Path, limit_bytes: int = 1 << 30) -> MemoryStore:
        return MemoryStore(limit_bytes, RETENTION_NS)

    def test_remembers_a_bounded_number_of_uploads(self) -> None:
        store = MemoryStore(1 << 30, RETENTION_NS, max_remembered=3)
        for i in range(5):
            put(store, "a", np.zeros(1), upload=bytes([i]))
        assert [store.committed(bytes([i])) is None for i in range(5)] == [True, True, False, False, False]

    def test_sealed_memory_cannot_change(self, store: MemoryStore) -> None:
        put(store, "a", np.zeros(MIB, np.uint8))
        room: Any = store.get("a")._backing
        with pytest.raises(PermissionError):
            os.pwrite(room.fd, b"x", 0)


class TestDirectoryStore(StoreSuite):
    def open(self, folder: Path, limit_bytes: int = 1 << 30) -> DirectoryStore:
        return DirectoryStore(str(folder), limit_bytes, RETENTION_NS)

    def test_remembers_a_bounded_number_of_uploads(self, tmp_path: Path) -> None:
        store = DirectoryStore(str(tmp_path), 0, RETENTION_NS, max_remembered=3)
        for i in range(5):
            put(store, "a", np.zeros(1), upload=bytes([i]))
        assert [store.committed(bytes([i])) is None for i in range(5)] == [True, True, False, False, False]
        store.close()

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
        assert len([r for r in caplog.records if "left behind" in r.message]) == 2
        assert store.get("a").records[0].header.shape == (3,)
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
        with pytest.raises(FileNotFoundError):
            store.get("a")
        store.close()
