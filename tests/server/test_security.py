"""Who is let in, what they may do, and what they are told when they may not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from certificates import make_certificates
from dlpack_wire_server.auth import MAX_FAILURES, Authorizer
from dlpack_wire_server.certificates import Certificates
from dlpack_wire_server.status import CODES, MAX_TEXT_BYTES, Refusal, cut, status_of
from grpc_health.v1 import health_pb2, health_pb2_grpc
from server_process import ServerProcess, eventually, running
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.service.client import connect
from dlpack_wire.service.tls import Tls
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
ROBOT, ADMIN, READER = "robot-token-123456", "admin-token-123456", "reader-token-12345"
TOKENS = {
    "tokens": [
        {"name": "robot", "token": ROBOT, "read": ["cam/", "map"], "write": ["cam/left"]},
        {"name": "admin", "token": ADMIN, "read": [""], "write": [""]},
        {"name": "reader", "token": READER, "read": [""]},
    ]
}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(TOKENS))
    return path


@pytest.fixture
def guarded(token_file: Path) -> Iterator[ServerProcess]:
    with running("--token-file", str(token_file)) as server:
        yield server


def denied(error: pytest.ExceptionInfo[dw.RemoteError]) -> tuple[str, str]:
    return error.value.code, error.value.reason


PERMISSION = ("PERMISSION_DENIED", "PERMISSION_DENIED")


def test_tokens_allow_what_their_prefixes_say(guarded: ServerProcess) -> None:
    large = np.zeros(3 * MIB, np.uint8)
    with connect(guarded.address, token=ADMIN, timeout=20) as admin:
        for name in ("cam/left", "cam/right", "map", "secret"):
            admin.put(name, np.zeros(3))
    with connect(guarded.address, token=ROBOT, timeout=20) as robot:
        robot.put("cam/left", large)
        robot.put("cam/left/2", np.zeros(3))
        assert robot.get("cam/right").shape == (3,)
        for call in (
            lambda: robot.put("cam/right", np.zeros(3)),
            lambda: robot.put("cam/right", large),
            lambda: robot.delete("map"),
            lambda: robot.get("secret"),
            lambda: robot.get("secret", index=0),
            lambda: robot.stat("secret"),
            lambda: robot.get("nothing is called so"),
        ):
            with pytest.raises(dw.RemoteError) as caught:
                call()
            assert denied(caught) == PERMISSION
        assert [info.name for info in robot.list()] == ["cam/left", "cam/left/2", "cam/right", "map"]
        assert list(robot.list("sec")) == []
    with connect(guarded.address, token=READER, timeout=20) as reader:
        assert reader.get("secret").shape == (3,)
        with pytest.raises(dw.RemoteError) as caught:
            reader.put("x", np.zeros(1))
        assert denied(caught) == PERMISSION


def test_without_a_token_there_is_nothing_but_health(guarded: ServerProcess) -> None:
    for token in (None, "wrong", ROBOT + "x"):
        with connect(guarded.address, token=token, timeout=20) as client, pytest.raises(dw.RemoteError) as caught:
            client.put("a", np.zeros(1))
        assert denied(caught) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    for token in ("ü", "a\nb", ""):
        with pytest.raises(ValueError, match="printable"):
            connect(guarded.address, token=token)
    with grpc.insecure_channel(guarded.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1
        reflection = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as refused:
            list(reflection(iter([b""]), timeout=10))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_uploads_belong_to_who_began_them(guarded: ServerProcess) -> None:
    with connect(guarded.address, token=ADMIN, timeout=20) as admin:
        upload_id = bytes(range(16))
        call = admin._connection.transport.callable("Store")
        store = pb.StoreRequest(name="cam/left", upload_id=upload_id)
        record = store.records.add()
        record.tensor.CopyFrom(dw.to_proto(np.zeros(2)))
        call(store.SerializeToString(), metadata=admin._connection.transport._metadata, timeout=10)
    states = []
    for token in (ADMIN, READER):
        with connect(guarded.address, token=token, timeout=20) as client:
            ask = client._connection.transport.callable("GetUploadStatus")
            request = pb.GetUploadStatusRequest(upload_id=upload_id).SerializeToString()
            raw = ask(request, metadata=client._connection.transport._metadata)
            states.append(pb.GetUploadStatusResponse.FromString(raw).state)
    assert states == [pb.GetUploadStatusResponse.COMMITTED, pb.GetUploadStatusResponse.UNKNOWN]


def test_the_token_file_is_read_again(guarded: ServerProcess, token_file: Path) -> None:
    with connect(guarded.address, token="new-token-12345678", timeout=20) as client:
        with pytest.raises(dw.RemoteError):
            client.server_info()
        token_file.write_text(json.dumps({"tokens": [{"name": "new", "token": "new-token-12345678", "read": [""]}]}))

        def let_in() -> bool:
            try:
                client.server_info()
            except dw.RemoteError:
                time.sleep(0.3)  # failures are counted
                return False
            return True

        eventually(let_in)
    with connect(guarded.address, token=ADMIN, timeout=20) as client, pytest.raises(dw.RemoteError) as caught:
        client.server_info()
    assert caught.value.code == "UNAUTHENTICATED"


def test_a_broken_token_file_leaves_the_old_tokens(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    authorizer = Authorizer(str(token_file))
    token_file.write_text("{")
    authorizer._looked_ns = 0
    assert authorizer.identify(ADMIN, "peer", None).owner == "admin"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"tokens": {}}',
        '{"tokens": [1]}',
        '{"tokens": [{"token": "0123456789abcdef"}]}',
        '{"tokens": [{"name": "a", "token": "short"}]}',
        '{"tokens": [{"name": "a", "token": "0123456789abcdef", "read": "all"}]}',
        '{"tokens": [{"name": "a", "token": "0123456789abcdef", "writes": [""]}]}',
        '{"tokens": [{"name": "a", "sha256": "zz"}]}',
        '{"tokens": [{"name": "a", "sha256": "' + " " * 64 + '"}]}',
        '{"tokens": [{"name": "a", "token": "0123456789abcdef"}, {"name": "b", "token": "0123456789abcdef"}]}',
        '{"tokens": [{"name": "a", "token": "0123456789abcdef"}, {"name": "a", "token": "0123456789abcdeg"}]}',
    ],
)
def test_token_files_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="token"):
        Authorizer(str(path))


def test_a_token_file_that_others_can_change_is_refused(token_file: Path) -> None:
    token_file.chmod(0o666)
    with pytest.raises(ValueError, match="chmod go-w"):
        Authorizer(str(token_file))


def test_content_decides_whether_tokens_are_new(token_file: Path) -> None:
    """Of the same size, at the same time: a restored backup, or two changes within a clock's tick."""
    authorizer = Authorizer(str(token_file))
    before = token_file.stat()
    token_file.write_text(token_file.read_text().replace(ADMIN, ADMIN[:-1] + "!"))
    os.utime(token_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    authorizer._looked_ns = 0
    assert authorizer.identify(ADMIN[:-1] + "!", "peer", None).owner == "admin"
    version = authorizer.version
    token_file.touch()
    authorizer.reload()
    assert authorizer.version == version


def test_hashes_in_place_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    digest = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
    path.write_text(json.dumps({"tokens": [{"name": "a", "sha256": digest, "write": ["x"]}]}))
    caller = Authorizer(str(path)).identify("password", "peer", None)
    assert (caller.owner, caller.may_read("x")) == ("a", False)
    caller.require_write("x/y")


def test_a_peer_that_guesses_does_not_keep_valid_tokens_out(token_file: Path) -> None:
    authorizer = Authorizer(str(token_file))

    def reason(token: str, peer: str) -> str:
        with pytest.raises(Refusal) as caught:
            authorizer.identify(token, peer, None)
        return caught.value.reason

    reasons = [reason(f"guess {i}", "bad") for i in range(MAX_FAILURES + 2)]
    assert reasons == ["UNAUTHENTICATED"] * MAX_FAILURES + ["TOO_MANY_REQUESTS"] * 2
    assert authorizer.identify(ADMIN, "bad", None).owner == "admin"
    assert authorizer.identify(ADMIN, "good", None).owner == "admin"
    for i in range(10_000):
        reason("guess", f"peer {i}")
    assert len(authorizer._failures) <= 4096


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make certificates")
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def test_tls(certificates: Path) -> None:
    at = str(certificates)
    with running("--tls-cert", f"{at}/server.pem", "--tls-key", f"{at}/server.key") as server:
        port = server.address.rpartition(":")[2]
        for address, tls in (
            (server.address, Tls(ca=f"{at}/ca.pem")),
            (f"grpcs://localhost:{port}", Tls(ca=f"{at}/ca.pem")),
            (server.address, Tls(ca=f"{at}/ca.pem", server_name="server")),
        ):
            with connect(address, tls=tls, timeout=20) as client:
                x = np.arange(2 * MIB)
                client.put("x", x)
                assert np.array_equal(client.get("x").numpy(), x)
        for tls in (None, Tls(ca=f"{at}/other.pem"), Tls(ca=f"{at}/ca.pem", server_name="stranger"), Tls()):
            with connect(server.address, tls=tls, timeout=5) as client, pytest.raises(dw.RemoteError) as caught:
                client.server_info()
            assert caught.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def test_mutual_tls(certificates: Path) -> None:
    at = str(certificates)
    flags = ("--tls-cert", f"{at}/server.pem", "--tls-key", f"{at}/server.key", "--tls-client-ca", f"{at}/ca.pem")
    with running(*flags) as server:
        ca = f"{at}/ca.pem"
        with connect(server.address, tls=Tls(ca, f"{at}/client.pem", f"{at}/client.key"), timeout=20) as client:
            client.put("x", np.zeros(3))
        for tls in (Tls(ca), Tls(ca, f"{at}/stranger.pem", f"{at}/stranger.key")):
            with connect(server.address, tls=tls, timeout=5) as client, pytest.raises(dw.RemoteError):
                client.server_info()


@pytest.mark.parametrize(
    ("cert", "key", "ca", "says"),
    [
        ("server.pem", "client.key", None, r"server.pem and .*client.key: the key is another certificate's"),
        ("server.key", "server.pem", None, r"server.key: not a PEM file with a certificate"),
        ("server.pem", "empty", None, r"empty: not a PEM file with a private key"),
        ("empty", "server.key", None, r"empty: not a PEM file with a certificate"),
        ("garbage", "server.key", None, r"garbage"),
        ("server.pem", "server.key", "empty", r"empty: not a PEM file with a certificate"),
        ("server.pem", "server.key", "garbage", r"garbage"),
        ("none", "server.key", None, r"none"),
    ],
)
def test_certificates_that_are_wrong_are_named(
    certificates: Path, cert: str, key: str, ca: str | None, says: str
) -> None:
    (certificates / "empty").touch()
    (certificates / "garbage").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises((ValueError, OSError), match=says):
        Certificates(str(certificates / cert), str(certificates / key), None if ca is None else str(certificates / ca))


def test_renewed_certificates_are_used_without_a_restart(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "cert.key"

    def use(name: str) -> None:
        shutil.copy(certificates / f"{name}.key", key)
        shutil.copy(certificates / f"{name}.pem", cert)

    def reached(authority: str) -> bool:
        tls = Tls(ca=str(certificates / authority), server_name="localhost")
        with connect(server.address, tls=tls, timeout=5) as client:
            try:
                client.server_info()
            except dw.RemoteError:
                return False
            return True

    use("server")
    with running("--tls-cert", str(cert), "--tls-key", str(key)) as server:
        assert reached("ca.pem")
        use("stranger")
        assert reached("other.pem")
        assert not reached("ca.pem")
        os.kill(server.pid, signal.SIGHUP)
        use("server")
        assert reached("ca.pem")


def test_certificates_that_broke_leave_the_old_ones_in_force(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for suffix in ("pem", "key"):
        shutil.copy(certificates / f"server.{suffix}", tmp_path / f"cert.{suffix}")
    made = Certificates(str(tmp_path / "cert.pem"), str(tmp_path / "cert.key"), None)
    assert made.renewed() is None
    (tmp_path / "cert.key").write_text("broken")
    assert made.renewed() is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    shutil.copy(certificates / "stranger.key", tmp_path / "cert.key")
    assert made.renewed() is None  # half of a renewal
    shutil.copy(certificates / "stranger.pem", tmp_path / "cert.pem")
    assert made.renewed() is not None
    assert made.renewed() is None


def test_tls_needs_both_certificate_and_key() -> None:
    for tls in (Tls(cert="a"), Tls(key="a")):
        with pytest.raises(ValueError, match=r"both cert= and key="):
            connect("localhost:1", tls=tls)
    for wrong in (True, "ca.pem"):
        with pytest.raises(TypeError, match=r"dw\.Tls"):
            connect("localhost:1", tls=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an address is a str"):
        connect(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_proxy_sees_a_call(variable: str) -> None:
    with running() as server, socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        port = proxy.getsockname()[1]
        run_python(
            f"""
            import numpy
            import dlpack_wire as dw
            with dw.connect({server.address!r}, timeout=10) as client:
                client.put("x", numpy.zeros(3))
            """,
            **{variable: f"http://127.0.0.1:{port}"},
        )
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_rights_that_are_withdrawn_end_puts_and_gets(token_file: Path) -> None:
    with running("--token-file", str(token_file)) as server:
        with connect(server.address, token=ADMIN, timeout=30) as admin:
            admin.put("big", np.zeros(64 * MIB, np.uint8))
        withdrawn = json.loads(token_file.read_text())
        withdrawn["tokens"] = [t for t in withdrawn["tokens"] if t["name"] != "admin"]

        def withdraw(done: int, total: int) -> None:
            token_file.write_text(json.dumps(withdrawn))
            if done < total:
                time.sleep(0.05)

        before = token_file.read_text()
        with connect(server.address, token=ADMIN, timeout=30) as admin:
            with pytest.raises(dw.RemoteError) as caught:
                admin.put("late", np.zeros(48 * MIB, np.uint8), progress=withdraw)
            assert caught.value.reason == "UNAUTHENTICATED"
        token_file.write_text(before)
        time.sleep(1.1)  # tokens are read again once a second
        with connect(server.address, token=ADMIN, timeout=30) as admin:
            with pytest.raises(dw.NotFoundError):
                admin.stat("late")
            with pytest.raises(dw.RemoteError) as caught:
                admin.get("big", progress=withdraw)
            assert caught.value.reason == "UNAUTHENTICATED"


# --- what callers are told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "ü" * 5000, "𝄞" * 600, "a" + "𝄞" * 600, "\ud800" * 1000])
def test_texts_are_cut_between_characters(text: str) -> None:
    safe = cut(text)
    assert len(safe.encode()) <= MAX_TEXT_BYTES
    whole = text.encode("utf-8", "backslashreplace").decode()
    assert safe == whole or (safe.endswith("...") and whole.startswith(safe[:-3]))


def test_long_texts_reach_the_caller(guarded: ServerProcess) -> None:
    with connect(guarded.address, token=ROBOT, timeout=20) as robot, pytest.raises(dw.RemoteError) as caught:
        robot.get("é" * 2000)
    assert "may not read" in str(caught.value)
    assert denied(caught) == PERMISSION


def test_the_table_answers_for_every_reason_and_hides_the_rest() -> None:
    for reason, code in CODES.items():
        status = status_of(Refusal(reason, "why"))
        assert (status.code, status.reason, status.text) == (code, reason, "why")
    status = status_of(RuntimeError("secret /path"))
    assert (status.reason, "secret" in status.text) == ("INTERNAL", False)
    assert status_of(OSError(28, "No space left on device")).reason == "STORE_FULL"
