"""Logs: what was written is read back by topic and time, here and by the reference reader; damage is noticed."""

from __future__ import annotations

import errno
import gc
import io
import os
import random
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from mcap.data_stream import RecordBuilder
from mcap.reader import make_reader
from mcap.records import Chunk, ChunkIndex, McapRecord, Message, Statistics
from mcap.stream_reader import StreamReader
from mcap.writer import CompressionType, IndexType, Writer
from strategies import arrays
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.log import LogReader, LogRecord, LogWriter
from dlpack_wire.log import mcap as mcap_format
from dlpack_wire.log.writer import Compression

COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zstd")
FOOTER_BYTES = 9 + 20 + 8


def read(path: Path, **wanted: Any) -> list[LogRecord]:
    with LogReader(path) as log:
        return list(log.read(**wanted))


def facts(records: list[LogRecord]) -> list[tuple[str, int, int, int]]:
    return [(r.topic, r.time_ns, r.sequence, int(r.tensor.numpy().flat[0])) for r in records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.mcap"


@pytest.fixture
def small(path: Path) -> Path:
    """A log of several chunks and two topics; tensor i has time 10 i."""
    with LogWriter(path, chunk_bytes=1000) as log:
        for i in range(30):
            log.write("odd" if i % 2 else "even", np.full(20, i, np.int32), time_ns=10 * i)
    return path


# --- what is written is read ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b/c", "глубина 🎥"]), arrays(), st.integers(0, 2**64 - 1)), max_size=8)
)
def test_every_tensor_comes_back_in_the_order_of_times(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, Any, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "property.mcap"
    with LogWriter(path, chunk_bytes=200, overwrite=True) as log:
        for topic, x, time_ns in messages:
            log.write(topic, x, time_ns)
    with LogReader(path) as back:
        assert back.topics() == list(dict.fromkeys(topic for topic, _, _ in messages))
        found = list(back.read())
    expected = sorted(messages, key=lambda m: m[2])
    assert [(r.topic, r.time_ns) for r in found] == [(topic, time_ns) for topic, _, time_ns in expected]
    # Read back, a tensor is in this machine's byte order.
    assert [dw.encode(r.tensor) for r in found] == [dw.encode(dw.decode(dw.encode(x))) for _, x, _ in expected]


def test_by_topic_and_time(small: Path) -> None:
    everything = [("odd" if i % 2 else "even", 10 * i, i // 2 + 1, i) for i in range(30)]
    assert facts(read(small)) == everything
    assert facts(read(small, topics=["odd"])) == everything[1::2]
    assert facts(read(small, topics="odd")) == everything[1::2]
    assert facts(read(small, topics=("odd", "even"), start_ns=0, end_ns=300)) == everything
    assert read(small, topics=["o", ""]) == []
    assert read(small, topics=[]) == []


def test_the_start_is_wanted_and_the_end_is_not(small: Path) -> None:
    assert [r.time_ns for r in read(small, start_ns=20, end_ns=50)] == [20, 30, 40]
    assert [r.time_ns for r in read(small, start_ns=21, end_ns=51)] == [30, 40, 50]
    assert [r.time_ns for r in read(small, start_ns=280)] == [280, 290]
    assert [r.time_ns for r in read(small, end_ns=10)] == [0]
    assert read(small, start_ns=50, end_ns=50) == []
    assert read(small, start_ns=50, end_ns=20) == []


def test_equal_times_stay_in_the_order_of_writing(path: Path) -> None:
    with LogWriter(path, chunk_bytes=300) as log:
        for i in range(100):
            log.write("t", np.array([i]), time_ns=5)
    assert [sequence for _, _, sequence, _ in facts(read(path))] == list(range(1, 101))


def test_clocks_that_disagree_need_little_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chunk spans all times, so each is read in turn, more than once."""
    monkeypatch.setattr(mcap_format, "_HELD_BYTES", 1 << 20)
    with LogWriter(path, chunk_bytes=1 << 20) as log:
        for i in range(200):
            log.write("since boot", np.full(1 << 15, i, np.int32), time_ns=i)
            log.write("since 1970", np.full(1 << 15, i, np.int32), time_ns=10**18 + i)
    tracemalloc.start()
    with LogReader(path) as log:
        count = 0
        last = -1
        for record in log.read():
            assert record.time_ns > last
            last = record.time_ns
            count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 400
    assert peak < 6 << 20 < path.stat().st_size


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensors_around_the_size_of_a_chunk(path: Path, compression: Compression) -> None:
    sizes = [1, 2000, 10_000, 9_900, 10_000 - 1, 100_000, 0, 3_000_000, 5]
    with LogWriter(path, compression=compression, chunk_bytes=10_000) as log:
        for i, size in enumerate(sizes):
            log.write("t", np.full(size, i, np.uint8), time_ns=i)
    for i, record in enumerate(read(path)):
        assert record.tensor.shape == (sizes[i],)
        assert (record.tensor.numpy() == i).all()
        assert facts(read(path, start_ns=5, end_ns=6)) == [("t", 5, 6, 5)]
    with path.open("rb") as stream:
        records = list(StreamReader(stream, emit_chunks=True, validate_crcs=True).records)
    indexes = [r for r in records if isinstance(r, ChunkIndex)]
    assert len(indexes) == len([r for r in records if isinstance(r, Chunk)]) > 2
    assert all(index.message_index_offsets for index in indexes)


def test_a_tensor_from_a_log_is_writable_memory_of_its_own(small: Path) -> None:
    first, second = read(small)[0].tensor, read(small)[0].tensor
    first.numpy()[:] = 99
    assert (second.numpy() == 0).all()
    assert torch.from_dlpack(second).sum() == 0


def test_an_empty_log(path: Path) -> None:
    LogWriter(path).close()
    with LogReader(path) as log:
        assert log.topics() == []
        assert list(log.read()) == []


def test_now_is_the_time_if_none_is_given(path: Path) -> None:
    with LogWriter(path) as log:
        log.write("t", np.zeros(1))
    assert 1.7e18 < read(path)[0].time_ns < 4e18


def test_two_readings_at_once(small: Path) -> None:
    with LogReader(small) as log:
        pairs = list(zip(log.read(), log.read(), strict=True))
    assert len(pairs) == 30
    assert all(dw.encode(a.tensor) == dw.encode(b.tensor) for a, b in pairs)


def test_a_reader_may_be_dropped_while_it_is_read(small: Path) -> None:
    assert len(list(LogReader(small).read())) == 30
    records = LogReader(small).read()
    next(records)
    del records


# --- the reference package --------------------------------------------------------------------------------------------


def embedded_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_reference_reader_sees_the_same_messages(path: Path, compression: Compression) -> None:
    x = np.array([[1.5, -0.0], [np.nan, np.inf]], np.float32)
    with LogWriter(path, compression=compression, chunk_bytes=500) as log:
        for i in range(20):
            log.write(f"cam/{i % 3}", x + i, time_ns=i)
    with path.open("rb") as stream:
        reader = make_reader(stream, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert summary.statistics.message_count == 20
        for i, (schema, channel, message) in enumerate(reader.iter_messages()):
            assert schema is not None
            assert (schema.name, schema.encoding) == ("dlpack_wire.v1.DLTensor", "protobuf")
            assert (channel.topic, channel.message_encoding) == (f"cam/{i % 3}", "protobuf")
            assert (message.log_time, message.publish_time, message.sequence) == (i, i, i // 3 + 1)
            assert message.data == dw.encode(x + i)
            parsed = embedded_class(schema.data, schema.name).FromString(message.data)
            assert list(parsed.shape) == [2, 2]
            assert (parsed.dtype.bits, parsed.data) == (32, (x + i).tobytes())


def write_by_reference(path: Path, **options: Any) -> None:
    """Two channels of one topic, and one of another schema."""
    with path.open("wb") as stream:
        writer = Writer(stream, chunk_size=500, **options)
        writer.start()
        tensor = writer.register_schema(mcap_format.SCHEMA_NAME, "protobuf", b"")
        other = writer.register_schema("foxglove.Log", "jsonschema", b"{}")
        channels = [writer.register_channel("t", "protobuf", tensor) for _ in range(2)]
        text = writer.register_channel("text", "json", other)
        for i in range(30):
            writer.add_message(channels[i % 2], i, dw.encode(np.array([i])), i)
            writer.add_message(text, i, b"{}", i)
        writer.finish()


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("index_types", [IndexType.ALL, IndexType.CHUNK])
def test_logs_of_the_reference_writer_are_read(
    path: Path, compression: CompressionType, index_types: IndexType
) -> None:
    write_by_reference(path, compression=compression, index_types=index_types)
    with LogReader(path) as log:
        assert log.topics() == ["t"]
        assert [(r.topic, r.time_ns, int(r.tensor.numpy()[0])) for r in log.read()] == [("t", i, i) for i in range(30)]
        assert list(log.read(["text"])) == []


@pytest.mark.parametrize(
    "options",
    [
        {"use_chunking": False},
        {"index_types": IndexType.NONE},
        {
            "use_chunking": False,
            "use_statistics": False,
            "repeat_channels": False,
            "repeat_schemas": False,
            "use_summary_offsets": False,
        },
    ],
)
def test_a_log_without_an_index_is_refused_not_taken_for_empty(path: Path, options: dict[str, bool]) -> None:
    write_by_reference(path, **options)
    with pytest.raises(dw.DecodeError, match="no index"):
        LogReader(path)


def test_a_channel_that_the_summary_does_not_know(path: Path) -> None:
    write_by_reference(path, repeat_channels=False)
    with pytest.raises(dw.DecodeError, match="channels"):
        LogReader(path)
    write_by_reference(path, repeat_channels=False, index_types=IndexType.CHUNK)
    with LogReader(path) as log, pytest.raises(dw.DecodeError, match="channel"):
        list(log.read())


# --- what does not go in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", "a\0b", "x" * 4097, "\ud800", b"bytes", 3])
def test_bad_topics(path: Path, topic: Any) -> None:
    with LogWriter(path) as log:
        with pytest.raises(dw.EncodeError, match="name"):
            log.write(topic, np.zeros(1))
        log.write("x" * 4096, np.zeros(1))
    assert len(read(path)) == 1


@pytest.mark.parametrize("time_ns", [-1, 2**64])
def test_bad_times(path: Path, time_ns: int) -> None:
    with LogWriter(path) as log, pytest.raises(dw.EncodeError, match=r"topic 't'.*time_ns") as caught:
        log.write("t", np.zeros(1), time_ns)
    assert (caught.value.topic, caught.value.tensor, caught.value.field) == ("t", None, "time_ns")
    with pytest.raises(TypeError), LogWriter(io.BytesIO()) as log:
        log.write("t", np.zeros(1), 1.5)  # type: ignore[arg-type]


def test_bad_tensors_name_their_topic_and_leave_the_log_usable(path: Path) -> None:
    with LogWriter(path) as log:
        log.write("t", np.zeros(1))
        with pytest.raises(dw.UnsupportedTensorError, match="topic 'times'") as caught:
            log.write("times", np.zeros(1, "M8[ns]"))
        assert (caught.value.topic, caught.value.tensor) == ("times", None)
        with pytest.raises(dw.EncodeError, match="save"):
            log.write("large", np.broadcast_to(np.float32(0), (1 << 29, 1)))
        log.write("t", np.ones(1))
    assert [r.topic for r in read(path)] == ["t", "t"]


def test_more_topics_than_a_log_can_number(path: Path) -> None:
    x = np.zeros(1)
    with LogWriter(path) as log:
        for i in range(65535):
            log.write(str(i), x, time_ns=i)
        with pytest.raises(dw.EncodeError, match="65535 topics") as caught:
            log.write("one more", x)
        assert (caught.value.declared, caught.value.limit, caught.value.topic) == (65536, 65535, "one more")
        log.write("7", x, time_ns=70_000)
    with LogReader(path) as back:
        assert len(back.topics()) == 65535
        assert [r.sequence for r in back.read(["7"])] == [1, 2]


def test_an_unknown_compression(path: Path) -> None:
    with pytest.raises(dw.EncodeError, match="compression"):
        LogWriter(path, compression="gzip")  # type: ignore[arg-type]
    assert not path.exists()


@pytest.mark.parametrize("target", [None, 3, 1.5, ["a"]])
def test_targets_and_paths_of_wrong_types(target: Any) -> None:
    with pytest.raises(TypeError):
        LogWriter(target)
    with pytest.raises(TypeError):
        LogReader(target)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogReader(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        LogReader(tmp_path)
    with pytest.raises(FileNotFoundError):
        LogWriter(tmp_path / "missing" / "run.mcap")
    with pytest.raises(OSError, match=r"exists|directory"):
        LogWriter(tmp_path)
    with pytest.raises(IsADirectoryError):
        LogWriter(tmp_path, overwrite=True)


# --- endings ----------------------------------------------------------------------------------------------------------


def test_an_existing_log_is_not_lost(small: Path) -> None:
    before = small.read_bytes()
    with pytest.raises(FileExistsError):
        LogWriter(small)
    assert small.read_bytes() == before
    LogWriter(small, overwrite=True).close()
    assert read(small) == []


def test_what_flush_returned_for_survives_a_kill(path: Path) -> None:
    script = f"""
import numpy as np, os, signal
from dlpack_wire.log import LogWriter
log = LogWriter({str(path)!r})
for i in range(5):
    log.write("t", np.full(10, i), time_ns=i)
log.flush()
log.write("t", np.full(10, 5), time_ns=5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    with path.open("rb") as stream:
        found = []
        for record in StreamReader(stream, validate_crcs=True).records:
            if isinstance(record, Message):
                found.append(int(dw.decode(record.data).numpy()[0]))
            if len(found) == 5:
                break
    assert found == [0, 1, 2, 3, 4]
    with pytest.raises(dw.DecodeError, match="not finalised, or is truncated") as caught:
        LogReader(path)
    assert caught.value.path == str(path)


def test_flushing_often_keeps_everything(path: Path) -> None:
    with LogWriter(path) as log:
        log.flush()
        for i in range(10):
            log.write("t", np.array([i]), time_ns=i)
            log.flush()
            log.flush()
    assert [value for _, _, _, value in facts(read(path))] == list(range(10))


def test_an_exception_finalises(path: Path) -> None:
    def fail() -> None:
        with LogWriter(path) as log:
            log.write("t", np.zeros(3))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert len(read(path)) == 1


def test_a_dropped_writer_finalises(path: Path) -> None:
    log = LogWriter(path)
    log.write("t", np.zeros(3))
    del log
    assert len(read(path)) == 1


def test_a_closed_log(small: Path, path: Path) -> None:
    log = LogWriter(io.BytesIO())
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.write("t", np.zeros(1))
    with pytest.raises(ValueError, match="closed"):
        log.flush()
    back = LogReader(small)
    records = back.read()
    next(records)
    back.close()
    back.close()
    with pytest.raises(ValueError, match="closed"):
        next(back.read())
    assert len(list(records)) == 29


def test_descriptors_are_given_back(small: Path) -> None:
    gc.collect()  # errors that other tests caught keep their readers in a circle with the test's frame
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        with LogReader(small) as log:
            next(log.read())
        list(LogReader(small).read())
        with pytest.raises(dw.DecodeError):
            LogReader(__file__)
        LogWriter(small.with_suffix(".other"), overwrite=True).close()
    assert os.listdir("/proc/self/fd") == before


class FullDisk(io.BytesIO):
    """Takes that many bytes and then none."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(content)


def test_a_full_disk_is_told_once_and_ends_the_log() -> None:
    log = LogWriter(FullDisk(60_000), chunk_bytes=10_000)

    def fill() -> None:
        for _ in range(100):
            log.write("t", np.zeros(1000, np.uint8))

    with pytest.raises(OSError, match="No space"), log:
        fill()
    log.close()
    log = LogWriter(FullDisk(60_000), chunk_bytes=10_000)
    with pytest.raises(OSError, match="No space"):
        fill()
    with pytest.raises(OSError, match="failed before"):
        log.write("t", np.zeros(1))
    with pytest.raises(OSError, match="failed before"):
        log.flush()
    with pytest.raises(OSError, match="not finalised"):
        log.close()


def test_close_reports_a_full_disk() -> None:
    for room in (5000, 10):
        with pytest.raises(OSError, match="No space"):
            log = LogWriter(FullDisk(room))
            log.write("t", np.zeros(10_000, np.uint8))
            log.close()


class Trickle:
    """A target that takes a few bytes at a time, and has nothing but `write`."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def write(self, content: memoryview) -> int:
        self.taken += content[:100]
        return min(len(content), 100)


def test_any_object_with_write_will_do(path: Path, small: Path) -> None:
    target = Trickle()
    with LogWriter(target, chunk_bytes=1000) as log:
        for i in range(30):
            log.write("odd" if i % 2 else "even", np.full(20, i, np.int32), time_ns=10 * i)
        log.flush()
    path.write_bytes(target.taken)
    assert len(read(path)) == 30


# --- damage -----------------------------------------------------------------------------------------------------------


def outcome(path: Path, content: bytes) -> list[tuple[str, int, int, int]] | dw.DecodeError:
    """What a file gives: messages, or a DecodeError that names it. Anything else fails the test."""
    path.write_bytes(content)
    try:
        return facts(read(path))
    except dw.DecodeError as error:
        problem = error
    assert problem.path == str(path)
    return problem


def test_cut_anywhere(small: Path, path: Path) -> None:
    content = small.read_bytes()
    for end in range(len(content)):
        error = outcome(path, content[:end])
        assert isinstance(error, dw.DecodeError)
        assert "not finalised" in str(error) or end < 8


@pytest.mark.parametrize("content", [b"", b"\xff" * 5000, b"\0" * 100, b"\x89MCAP0\r\n", b"\x89MCAP0\r\n" * 2])
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    assert isinstance(outcome(path, content), dw.DecodeError)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_flipped_bits_are_noticed_or_harmless(path: Path, compression: Compression) -> None:
    with LogWriter(path, compression=compression, chunk_bytes=600) as log:
        for i in range(10):
            log.write("t", np.full(30, i, np.int64), time_ns=i)
    content = path.read_bytes()
    expected = facts(read(path))
    dice = random.Random(0)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << dice.randrange(8)
        found = outcome(path, bytes(damaged))
        # Bytes that the index makes unnecessary (the file's header, message indexes) change nothing.
        assert isinstance(found, dw.DecodeError) or found == expected, at


def test_random_bytes_between_the_magics(path: Path) -> None:
    dice = random.Random(1)
    for size in (0, 29, 30, 200, 2000):
        for _ in range(50):
            content = dice.randbytes(size)
            footer = b"\x02" + struct.pack("<QQQI", 20, dice.randrange(8, 9 + size), 0, 0)
            magic = b"\x89MCAP0\r\n"
            assert isinstance(outcome(path, magic + content + footer + magic), dw.DecodeError)


def rewritten(path: Path, change: Callable[[McapRecord], McapRecord | None]) -> bytes:
    """The file with its summary's records changed and its sum made right again."""
    content = path.read_bytes()
    (begin,) = struct.unpack_from("<Q", content, len(content) - FOOTER_BYTES + 9)
    builder = RecordBuilder()
    for record in StreamReader(io.BytesIO(content[begin:]), skip_magic=True, emit_chunks=True).records:
        changed = change(record)
        if changed is not None and type(record).__name__ != "Footer":
            changed.write(builder)
    summary = builder.end() + content[-FOOTER_BYTES : -len("CRC ") - 8]
    return content[:begin] + summary + struct.pack("<I", zlib.crc32(summary)) + content[-8:]


def each_index(**changes: Any) -> Callable[[McapRecord], McapRecord]:
    def change(record: McapRecord) -> McapRecord:
        if isinstance(record, ChunkIndex):
            for name, value in changes.items():
                setattr(record, name, value(getattr(record, name)) if callable(value) else value)
        return record

    return change


def test_a_rewritten_summary_is_read(small: Path, path: Path) -> None:
    expected = facts(read(small))
    assert outcome(path, rewritten(small, lambda record: record)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_start_offset": 2**63},
        {"chunk_start_offset": 2**64 - 1},
        {"chunk_start_offset": 0},
        {"chunk_length": 2**64 - 1},
        {"chunk_length": 2**40},
        {"chunk_length": 0},
        {"chunk_length": lambda n: n - 1},
        {"chunk_start_offset": lambda n: n + 1},
        {"message_start_time": 2**64 - 1},
        {"message_end_time": 0},
    ],
)
def test_an_index_that_lies(small: Path, path: Path, changes: dict[str, Any]) -> None:
    expected = facts(read(small))
    tracemalloc.start()
    found = outcome(path, rewritten(small, each_index(**changes)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, dw.DecodeError) or (found != expected and "message_start_time" in changes)
    assert peak < 4 << 20


def test_one_chunk_listed_many_times(small: Path, path: Path) -> None:
    first: list[int] = []

    def change(record: McapRecord) -> McapRecord:
        if isinstance(record, ChunkIndex):
            first.append(record.chunk_start_offset)
            record.chunk_start_offset = first[0]
        return record

    error = outcome(path, rewritten(small, change))
    assert isinstance(error, dw.DecodeError)
    assert "overlap" in str(error)


def test_an_index_that_was_left_out(small: Path, path: Path) -> None:
    content = rewritten(small, lambda record: None if isinstance(record, (ChunkIndex, Statistics)) else record)
    error = outcome(path, content)
    assert isinstance(error, dw.DecodeError)
    assert "no index" in str(error)


def with_chunk(path: Path, chunk: Chunk) -> None:
    """A log of one chunk as given."""
    with path.open("wb") as stream:
        writer = Writer(stream, compression=CompressionType.NONE)
        writer.start()
        writer.register_channel("t", "protobuf", writer.register_schema(mcap_format.SCHEMA_NAME, "protobuf", b""))
        writer.add_message(1, 0, b"", 0)
        writer.finish()
    content = path.read_bytes()
    with path.open("rb") as stream:
        summary = make_reader(stream).get_summary()
    assert summary is not None
    [index] = summary.chunk_indexes
    builder = RecordBuilder()
    chunk.write(builder)
    written = builder.end()
    changed = rewritten(path, each_index(chunk_length=len(written)))
    (begin,) = struct.unpack_from("<Q", content, len(content) - FOOTER_BYTES + 9)
    data = content[: index.chunk_start_offset] + written
    summary_bytes = changed[begin:-FOOTER_BYTES]
    footer = b"\x02" + struct.pack("<QQQI", 20, len(data), 0, 0)
    path.write_bytes(data + summary_bytes + footer + content[-8:])


def bomb(compression: str, size: int) -> bytes:
    if compression == "zstd":
        import zstandard

        return zstandard.compress(bytes(size))
    import lz4.frame

    return bytes(lz4.frame.compress(bytes(size)))


@pytest.mark.parametrize("compression", ["zstd", "lz4", "", "brotli"])
@pytest.mark.parametrize(
    ("announced", "hidden"),
    [(10, 0), (2**31, 0), (0, 100), (2**63, 100), (2**64 - 1, 100), (0, 50 << 20), (10, 50 << 20), (2**31, 50 << 20)],
)
def test_a_chunk_that_lies_about_its_size(path: Path, compression: str, announced: int, hidden: int) -> None:
    data = bomb(compression, hidden) if compression in ("zstd", "lz4") else bytes(100)
    with_chunk(path, Chunk(compression, data, 0, 0, 0, announced))
    expect_little_memory_and_a_decode_error(path)


def expect_little_memory_and_a_decode_error(path: Path) -> None:
    tracemalloc.start()
    with LogReader(path, max_chunk_bytes=40 << 20) as log, pytest.raises(dw.DecodeError) as caught:
        list(log.read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.path == str(path)
    assert peak < 10 << 20


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_chunks_that_do_not_decompress(path: Path, compression: str) -> None:
    whole = bomb(compression, 5000)
    for data in (b"", b"\0" * 50, whole[:-3], whole[:8], whole[1:], b"\xff" * 20):
        with_chunk(path, Chunk(compression, data, 0, 0, 0, 5000))
        expect_little_memory_and_a_decode_error(path)


def test_a_chunk_over_the_readers_limit(path: Path) -> None:
    with LogWriter(path, compression="zstd") as writer:
        writer.write("t", np.zeros(1 << 20, np.uint8))
    with LogReader(path, max_chunk_bytes=1 << 20) as log, pytest.raises(dw.LimitError, match="max_chunk_byt") as caught:
        list(log.read())
    assert caught.value.limit == 1 << 20
    assert len(read(path)) == 1


@pytest.mark.parametrize("size", [0, 5, 21, 22, 2**63, 2**64 - 1])
def test_messages_that_lie_about_their_size(path: Path, size: int) -> None:
    with_chunk(path, Chunk("", b"\x05" + struct.pack("<Q", size) + struct.pack("<HIQQ", 1, 1, 0, 0), 0, 0, 0, 31))
    expect_little_memory_and_a_decode_error(path)


def test_a_damaged_tensor_names_its_topic(path: Path) -> None:
    message = bytearray(dw.encode(np.arange(5)))
    message[-1] ^= 1
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        writer.register_channel("left", "protobuf", writer.register_schema(mcap_format.SCHEMA_NAME, "protobuf", b""))
        writer.add_message(1, 0, bytes(message), 0)
        writer.finish()
    with LogReader(path) as log, pytest.raises(dw.ChecksumError, match="topic 'left'"):
        list(log.read())


def test_a_file_cut_while_it_is_read(path: Path) -> None:
    with LogWriter(path) as writer:
        for i in range(10):
            writer.write("t", np.zeros(1 << 20, np.uint8), time_ns=i)
    with LogReader(path) as log:
        records = log.read()
        next(records)
        with path.open("r+b") as stream:
            stream.truncate(3 << 20)
        with pytest.raises(dw.TruncatedError):
            list(records)


# --- without the extra ------------------------------------------------------------------------------------------------


def test_without_mcap_the_error_names_the_extra() -> None:
    script = """
        import sys
        sys.modules["mcap"] = None
        try:
            import dlpack_wire.log
        except ImportError as error:
            print(error)
    """
    assert "pip install 'dlpack-wire[log]'" in run_python(script)
