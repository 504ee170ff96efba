"""Starting, listening, draining, ending, and what can be seen from outside."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_wire_server import metrics
from dlpack_wire_server.app import StartError, described, serve
from dlpack_wire_server.listen import AddressError, check_free, claim_unix, is_private, split
from dlpack_wire_server.options import Options, add_flags, from_flags, parse, seconds, size
from server_process import ServerProcess, eventually, running

import dlpack_wire as dw
from dlpack_wire.service.client import connect

MIB = 1 << 20


def fails(*flags: str, **environment: str) -> str:
    """What a server that does not start says."""
    with pytest.raises(AssertionError, match="did not start") as caught:
        ServerProcess(*flags, **environment)
    return str(caught.value)


# --- listening --------------------------------------------------------------------------------------------------------


def test_a_port_is_never_shared() -> None:
    with running() as first:
        assert "in use" in fails("--listen", first.address)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "in use" in fails("--listen", f"127.0.0.1:{other.getsockname()[1]}")


def test_several_addresses(tmp_path: Path) -> None:
    with running("--listen", f"unix:{tmp_path}/s", "--listen", "[::1]:0") as server:
        with connect(server.address, timeout=10) as client:
            client.put("a", np.zeros(3))
        with connect(f"unix:{tmp_path}/s", timeout=10) as client:
            assert client.get("a").shape == (3,)


def test_plain_text_off_loopback_must_be_meant() -> None:
    assert "--insecure" in fails("--listen", "0.0.0.0:0")
    with running("--insecure", listen="0.0.0.0:0") as server:
        port = server.address.rpartition(":")[2]
        with connect(f"127.0.0.1:{port}", timeout=10) as client:
            client.server_info()


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:x", "127.0.0.1:70000", ":", "256.0.0.1:0", "192.0.2.1:0"])
def test_addresses_that_cannot_be_had(address: str) -> None:
    with pytest.raises(AddressError):
        check_free(address)


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        (":1", False),
        ("example.org:1", False),
    ],
)
def test_which_addresses_other_machines_reach(address: str, private: bool) -> None:
    assert is_private(address) is private


def test_hosts_and_ports() -> None:
    assert split("a.b:7") == ("a.b", 7)
    assert split("[::1]:0") == ("::1", 0)


def test_a_live_unix_socket_is_never_stolen_and_a_dead_one_is_reclaimed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen = f"unix:{path}"
    with running(listen=listen):
        assert "in use" in fails("--listen", listen)
        with connect(listen, timeout=10) as client:
            client.server_info()
    server = ServerProcess(listen=listen)
    server.stop(signal.SIGKILL)
    assert path.exists()
    with running(listen=listen), connect(listen, timeout=10) as client:
        client.server_info()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        assert "in use" in fails("--listen", listen)
    path.unlink()
    path.write_text("a file")
    with pytest.raises(AddressError, match="not a socket"), claim_unix(str(path)):
        pass
    assert path.read_text() == "a file"


# --- configuration ----------------------------------------------------------------------------------------------------


def test_flags_and_environment() -> None:
    assert parse([]) == Options()
    options = parse(
        ["--listen", "a:1", "--listen", "b:2", "--max-store-bytes", "8GiB", "--grace-s", "2.5", "--insecure"]
    )
    assert options.listen == ("a:1", "b:2")
    assert (options.max_store_bytes, options.grace_s, options.insecure) == (8 << 30, 2.5, True)
    parser = argparse.ArgumentParser()
    environment = {
        "DLPACK_WIRE_LISTEN": "c:3,d:4",
        "DLPACK_WIRE_MAX_OBJECT_BYTES": "2MB",
        "DLPACK_WIRE_INSECURE": "1",
        "DLPACK_WIRE_DIR": "/data",
    }
    add_flags(parser, environment)
    options = from_flags(parser.parse_args([]))
    assert (list(options.listen), options.max_object_bytes) == (["c:3", "d:4"], 2_000_000)
    assert (options.insecure, options.dir) == (True, "/data")
    assert from_flags(parser.parse_args(["--listen", "e:5"])).listen == ("e:5",)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("INSECURE", "maybe", "DLPACK_WIRE_INSECURE: must be 1 or 0"),
        ("TOKN_FILE", "/x", "no flag has the environment variable DLPACK_WIRE_TOKN_FILE"),
        ("LOG_LEVEL", "verbose", "DLPACK_WIRE_LOG_LEVEL: must be one of debug, info, warning, error, not 'verbose'"),
        ("LOG_FORMAT", "xml", "DLPACK_WIRE_LOG_FORMAT: must be one of text, json, not 'xml'"),
        ("MAX_STORE_BYTES", "much", "DLPACK_WIRE_MAX_STORE_BYTES: 'much' is not a size"),
    ],
)
def test_an_environment_that_is_wrong_starts_no_server(
    variable: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        add_flags(argparse.ArgumentParser(), {f"DLPACK_WIRE_{variable}": value})
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("value", "insecure"), [("no", False), ("0", False), ("", False), ("YES", True), ("on", True)])
def test_insecure_means_what_it_says(value: str, insecure: bool) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, {"DLPACK_WIRE_INSECURE": value, "DLPACK_WIRE_TOKEN": "a client's"})
    assert from_flags(parser.parse_args([])).insecure is insecure


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(), "objects in memory; plain text; no tokens: open to every user of this machine"),
        (Options(listen=("unix:/s",)), "objects in memory; plain text; no tokens: open to this user"),
        (
            Options(listen=("0.0.0.0:1",), dir="/d"),
            "objects in /d; plain text; no tokens: open to everybody who can connect",
        ),
        (Options(token_file="t", tls_cert="c"), "objects in memory; TLS; tokens of t"),
    ],
)
def test_a_start_says_who_may_connect(options: Options, says: str) -> None:
    assert described(options) == says


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("4096", 4096), ("1.5k", 1500), ("2 MiB", 2 << 20), ("1tb", 10**12)]
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


def test_sizes_that_are_none() -> None:
    for text in ("", "x", "-1", "1 XB", "1e9"):
        with pytest.raises(Exception, match="not a size"):
            size(text)
    for text in ("", "x", "-1", "nan", "inf"):
        with pytest.raises(Exception, match="not a number of seconds"):
            seconds(text)


def test_configurations_that_make_no_sense(tmp_path: Path) -> None:
    for options in (
        Options(listen=("127.0.0.1:0",), tls_cert="only.pem"),
        Options(listen=("127.0.0.1:0",), tls_cert="no.pem", tls_key="no.key"),
        Options(listen=("127.0.0.1:0",), token_file=str(tmp_path / "none")),
        Options(listen=("nonsense",)),
        Options(listen=("127.0.0.1:0",), dir="/proc/none"),
    ):
        with pytest.raises(StartError):
            serve(options, lambda addresses: None)


def test_the_command_line_says_what_is_wrong() -> None:
    for flags, code, text in (
        (("--dir", "/proc/none"), 3, "/proc/none"),
        (("--token-file", "/none"), 3, "/none: No such file"),
        (("--listen", "foo"), 2, "'foo' is neither host:port"),
        (("--listen", "0.0.0.0:0"), 2, "--insecure"),
        (("--listen", "unix:/none/s.sock"), 5, "/none/s.sock"),
        (("--metrics-listen", "unix:/s.sock"), 2, "takes host:port"),
        (("--tls-cert", "x"), 2, "--tls-key"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "dlpack_wire_server", "--listen", "127.0.0.1:0", *flags],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (done.returncode, done.stdout) == (code, ""), flags
        assert text in done.stderr
        assert "Traceback" not in done.stderr


# --- ending -----------------------------------------------------------------------------------------------------------


def test_a_put_in_progress_is_finished_before_the_end(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, 60 * MIB, np.uint8)
    server = ServerProcess("--grace-s", "20", "--dir", str(tmp_path))
    stopped: list[Any] = []

    def stop() -> None:
        stopped.append(server.stop())

    stopper = threading.Thread(target=stop)

    def ask_to_end(done: int, total: int) -> None:
        if done > 10 * MIB and not stopper.is_alive() and not stopped:
            stopper.start()
            time.sleep(0.3)  # the transfer goes on after the server was asked to end

    with connect(server.address, timeout=30) as client:
        client.put("x", x, progress=ask_to_end)
        stopper.join(30)
        assert stopped[0][0] == 0
    with running("--dir", str(tmp_path)) as again, connect(again.address, timeout=30) as client:
        assert np.array_equal(client.get("x").numpy(), x)


def test_what_does_not_finish_in_time_is_cut(tmp_path: Path) -> None:
    server = ServerProcess("--grace-s", "0.5", "--dir", str(tmp_path))
    stopped: list[float] = []

    def stall(done: int, total: int) -> None:
        if done > 10 * MIB and not stopped:
            begin = time.monotonic()
            code, _ = server.stop()
            stopped.append(time.monotonic() - begin)
            assert code == 0

    with connect(server.address, timeout=20) as client, pytest.raises(dw.RemoteError):
        client.put("x", np.zeros(60 * MIB, np.uint8), progress=stall)
    assert 0.4 < stopped[0] < 5
    with running("--dir", str(tmp_path)) as again, connect(again.address, timeout=10) as client:
        assert list(client.list()) == []
    assert list((tmp_path / "objects").iterdir()) == []


def test_asked_twice_it_ends_at_once() -> None:
    server = ServerProcess("--grace-s", "60")
    ended: list[float] = []

    def stall(done: int, total: int) -> None:
        if done > 10 * MIB and not ended:
            begin = time.monotonic()
            server.send_signal(signal.SIGTERM)
            time.sleep(0.3)  # this client is silent for longer than the server waits for it
            assert server.stop()[0] == 1
            ended.append(time.monotonic() - begin)

    with connect(server.address, timeout=5) as client, pytest.raises(dw.RemoteError):
        client.put("x", np.zeros(60 * MIB, np.uint8), progress=stall)
    assert ended[0] < 5


# --- seen from outside ------------------------------------------------------------------------------------------------


def test_connections_to_the_metrics_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._HttpRequest, "timeout", 0.5)
    port, end = metrics.Metrics().serve("127.0.0.1", 0)

    def page() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return bytes(answer.read())

    try:
        with contextlib.ExitStack() as held:
            silent = [
                held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                for _ in range(metrics.MAX_HTTP_CONNECTIONS + 20)
            ]
            silent[0].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            assert [one.recv(1) for one in silent] == [b""] * len(silent)  # each is closed, sooner or later
            assert b"received_payload_bytes" in page()
    finally:
        end()


def test_metrics() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running("--metrics-listen", f"127.0.0.1:{port}") as server, connect(server.address, timeout=10) as client:
        client.put("a", np.zeros(3 * MIB, np.uint8))
        client.put("b", np.zeros(1000, np.uint8))
        client.get("a")
        with pytest.raises(dw.NotFoundError):
            client.get("c")
        frames, publisher = client.subscribe("t", policy="drop_oldest", queue_frame_count=1), client.publisher("t")
        for _ in range(6):
            publisher.send(np.zeros(1 << 20, np.uint8))

        def page() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        eventually(lambda: 'dlpack_wire_calls_total{code="OK",method="Get"} 1.0' in page())
        numbers = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page().splitlines() if line[0] != "#"
        }
        for name, value in {
            'calls_total{code="OK",method="Put"}': 1,
            'calls_total{code="NOT_FOUND",method="Fetch"}': 1,
            "received_payload_bytes_total": 9 * MIB + 1000,
            "subscribers": 1,
            'running_calls{method="Subscribe"}': 1,
            "topics": 1,
            "frames_total": 6,
            'running_calls{method="Put"}': 0,
            'call_seconds_count{method="Store"}': 1,
            "unfinished_uploads": 0,
        }.items():
            assert numbers[f"dlpack_wire_{name}"] == value, name
        assert 3 * MIB < numbers["dlpack_wire_store_bytes"] < 4 * MIB
        assert 1 <= numbers["dlpack_wire_dropped_frames_total"] <= 5
        assert MIB < numbers["dlpack_wire_topic_bytes"] < 4 * MIB
        frames.close()
        publisher.close()
        eventually(lambda: "dlpack_wire_subscribers 0.0" in page())


def test_logs_for_programs() -> None:
    server = ServerProcess("--log-format", "json", "--log-level", "debug")
    with connect(server.address, timeout=10) as client, pytest.raises(dw.NotFoundError):
        client.get("nothing")
    _, said = server.stop()
    entries = [json.loads(line) for line in said.splitlines()]
    assert any("OBJECT_NOT_FOUND" in entry["message"] for entry in entries)
    assert all({"time_ns", "level", "logger", "message"} <= entry.keys() for entry in entries)
