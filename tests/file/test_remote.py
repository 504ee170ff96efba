"""Files behind URLs: only what is asked for travels."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import dlpack_wire as dw
from dlpack_wire.file import entry
from dlpack_wire.file.storage import WINDOW_BYTES

MIB = 1 << 20

pytest.importorskip("aiohttp", reason="fsspec speaks HTTP through aiohttp")
# fsspec keeps one event loop in a thread for good, and its sessions are closed by the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class RangeServer(ThreadingHTTPServer):
    """Serves one file by ranges, and counts what it sends."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.ranges: list[tuple[int, int]] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.gate: threading.Barrier | None = None
        self.cut = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/t.dlpw"

    @property
    def sent_bytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


class _Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self) -> None:
        s = self.server
        wanted = self.headers.get("Range")
        assert wanted is not None, "the whole file was asked for"
        first, last = wanted.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last) + 1, len(s.content))
        with s.lock:
            s.in_flight += 1
            s.most_in_flight = max(s.most_in_flight, s.in_flight)
            s.ranges.append((begin, end))
        if s.gate is not None:
            s.gate.wait(10)  # nobody goes on before so many are here
        body = s.content[begin : end - s.cut]
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(s.content)}")
        self.end_headers()
        self.wfile.write(body)
        with s.lock:
            s.in_flight -= 1

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Any]:
    servers = []

    def start(content: bytes) -> RangeServer:
        server = RangeServer(content)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def saved(tmp_path: Path, tensors: dict[str, Any], metadata: dict[str, Any] | None = None) -> bytes:
    dw.save(tmp_path / "t.dlpw", tensors, metadata, durable=False)
    return (tmp_path / "t.dlpw").read_bytes()


SMALL, LARGE = np.arange(100.0), np.random.default_rng(0).integers(0, 255, (40, 1 << 18), np.uint8)  # rows of 256 KiB


def test_only_trailer_index_and_asked_for_bytes_travel(serve: Any, tmp_path: Path) -> None:
    content = saved(tmp_path, {"before": LARGE, "small": SMALL, "large": LARGE.copy(), "after": LARGE.copy()}, {"k": 1})
    server = serve(content)
    with dw.open(server.url) as f:
        assert list(f) == ["before", "small", "large", "after"]
        assert f.metadata == {"k": 1}
        opening = server.sent_bytes
        assert opening <= 2 * WINDOW_BYTES
        assert (f["small"].numpy() == SMALL).all()
        assert server.sent_bytes - opening <= WINDOW_BYTES + SMALL.nbytes
        before = server.sent_bytes
        assert f["large"].shape == LARGE.shape
        assert f.header("large").checksum is not None
        assert server.sent_bytes - before <= WINDOW_BYTES
        before = server.sent_bytes
        assert (f["large"][3:5].numpy() == LARGE[3:5]).all()
        assert server.sent_bytes - before == 2 << 20  # bytes 768 Ki to 1280 Ki: two blocks, whose sums are checked
        before = server.sent_bytes
        assert (f["large"][::13, 5:9].numpy() == LARGE[::13, 5:9]).all()
        assert server.sent_bytes - before == 4 << 20  # a block for each of the four rows
    assert server.sent_bytes < len(content) // 3


def test_large_tensors_are_read_by_parallel_ranges(serve: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 255, 40 << 20, np.uint8)
    server = serve(saved(tmp_path, {"x": x}))
    with dw.open(server.url, verify=True) as f:
        t = f["x"]
        f.header("x")
        server.ranges.clear()
        server.gate = threading.Barrier(5)
        assert (t.numpy() == x).all()
        assert server.most_in_flight == 5
        assert sum(end - begin for begin, end in server.ranges) == x.nbytes


def test_the_whole_file_is_loaded_and_verified(serve: Any, tmp_path: Path) -> None:
    content = saved(tmp_path, {"a": SMALL, "b": np.arange(3, dtype=">i4"), "empty": np.empty((0, 2))})
    found = dw.load_dict(serve(content).url)
    assert (found["a"].numpy() == SMALL).all()
    assert found["b"].numpy().tolist() == [0, 1, 2]
    assert found["empty"].shape == (0, 2)
    damaged = bytearray(content)
    damaged[content.index(SMALL.tobytes())] ^= 1
    with pytest.raises(dw.ChecksumError, match="tensor 'a'"):
        dw.load(serve(bytes(damaged)).url)


def test_what_is_no_tensor_file_is_refused_with_its_url(serve: Any) -> None:
    server = serve(b"something else" * 10)
    with pytest.raises(dw.DecodeError, match="not a tensor file") as caught:
        dw.open(server.url)
    assert caught.value.path == server.url


def test_an_answer_that_is_too_short_is_an_error(serve: Any, tmp_path: Path) -> None:
    server = serve(saved(tmp_path, {"x": LARGE}))
    with dw.open(server.url) as f:
        t = f["x"]
        server.cut = 1
        with pytest.raises((dw.TruncatedError, OSError)):
            t[2:5].numpy()


def test_a_missing_file_is_the_usual_error(serve: Any) -> None:
    with pytest.raises(FileNotFoundError):
        dw.open("memory://no/such/file")


def test_saving_to_a_url_publishes_only_what_is_whole() -> None:
    url = "memory://folder/t.dlpw"
    tensors = {"a": SMALL, "b": LARGE}
    dw.save(url, tensors)
    found = dw.load_dict(url)
    assert all((found[name].numpy() == x).all() for name, x in tensors.items())

    def failing() -> Iterator[tuple[str, Any]]:
        yield "a", SMALL
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dw.save(url, failing())
    assert dw.load_dict(url).keys() == {"a", "b"}
    with pytest.raises(ZeroDivisionError):
        dw.save("memory://folder/other.dlpw", failing())
    assert not fsspec.filesystem("memory").exists("/folder/other.dlpw")


def test_file_urls_are_files(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t.dlpw"
    dw.save(url, {"a": SMALL})
    assert (dw.load_dict(url)["a"].numpy() == SMALL).all()
    assert (dw.load_dict(tmp_path / "t.dlpw")["a"].numpy() == SMALL).all()
    assert os.listdir(tmp_path) == ["t.dlpw"]


def test_a_url_is_not_appended_to() -> None:
    with pytest.raises(dw.EncodeError, match="URL"):
        dw.open("memory://folder/t.dlpw", "a")


@pytest.mark.parametrize("at", [None, 0, 3 * MIB + 5, 7 * MIB - 1])
def test_verifying_holds_a_part_of_a_payload_at_a_time(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int | None
) -> None:
    monkeypatch.setattr(entry, "_PART_BYTES", 2 * MIB)
    payload = np.random.default_rng(0).integers(0, 255, 7 * MIB, np.uint8)
    dw.save(tmp_path / "t.dlpw", {"large": payload, "small": np.arange(5)})
    content = bytearray((tmp_path / "t.dlpw").read_bytes())
    if at is not None:
        content[content.index(payload[:64].tobytes()) + at] ^= 1
    server = serve(bytes(content))
    if at is None:
        dw.verify(server.url)
    else:
        with pytest.raises(dw.ChecksumError, match=f"block {at // MIB} of 7") as caught:
            dw.verify(server.url)
        assert caught.value.tensor == "large"
    assert max(end - begin for begin, end in server.ranges) <= 2 * MIB + WINDOW_BYTES
    assert server.sent_bytes < len(content) + 3 * MIB  # the damaged block a second time, and windows
