"""Whatever bytes come in, a status goes out, and the server lives, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dlpack_wire_server.health import MAX_WATCHES
from server_process import ServerProcess, eventually, running

import dlpack_wire as dw
from dlpack_wire.message.wire import varint
from dlpack_wire.service.client import connect
from dlpack_wire.service.grpc_transport import SERVICE
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
RECORD = tensor_file_pb2.TensorRecord(name="w", aliases=["v"], tensor=dw.to_proto(np.arange(6.0)))
RECORD.metadata["k"].double_value = 1.5
HEADER = tensor_file_pb2.TensorRecord()
HEADER.CopyFrom(RECORD)
HEADER.tensor.ClearField("data")
START = pb.PutStart(name="n", upload_id=bytes(16), record_count=1, payload_bytes=48, if_generation=3)
FRAME = pb.Frame(topic="n", sequence=1, time_ns=-1, metadata=RECORD.metadata, header=HEADER.tensor)
SELECTION = pb.AxisSelection(range=pb.AxisSelection.Range(start=1, step=-1))

VALID: dict[str, Any] = {
    "GetServerInfo": pb.GetServerInfoRequest(),
    "Store": pb.StoreRequest(name="n", upload_id=bytes(16), records=[RECORD], metadata=RECORD.metadata),
    "Fetch": pb.FetchRequest(name="n", tensors=["w"]),
    "Put": pb.PutRequest(
        start=START, records=[HEADER], chunk=pb.Chunk(data=RECORD.tensor.data, block_sums=[1]), finish=True
    ),
    "GetUploadStatus": pb.GetUploadStatusRequest(upload_id=bytes(16)),
    "Get": pb.GetRequest(name="n", tensors=["w"], generation=4, selections=[SELECTION], start_offset=7),
    "Stat": pb.StatRequest(name="n", first_record=1, max_record_count=2),
    "List": pb.ListRequest(prefix="n", page_size=3, page_token="n"),
    "Delete": pb.DeleteRequest(name="n", if_generation=1),
    "Publish": pb.PublishRequest(frame=FRAME, chunk=pb.Chunk(data=RECORD.tensor.data, block_sums=[1])),
    "Subscribe": pb.SubscribeRequest(patterns=["n", "m*"], policy=pb.DELIVERY_POLICY_RELIABLE, queue_bytes=7),
}


def mutations(message: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The message cut short, with flipped bits, doubled, and random bytes."""
    chance = random.Random(seed)
    for _ in range(count):
        yield message[: chance.randrange(len(message) + 1)]
        if message:
            flipped = bytearray(message)
            for _ in range(chance.choice((1, 1, 2, 5))):
                flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            yield bytes(flipped)
        yield chance.randbytes(chance.randrange(60))
        yield message + message[chance.randrange(len(message) + 1) :]


def call(channel: grpc.Channel, method: str, request: bytes) -> grpc.StatusCode:
    """The status that raw bytes are answered with."""
    descriptor = pb.DESCRIPTOR.services_by_name["TensorService"].methods_by_name[method]
    path = f"/{SERVICE.full_name}/{method}"
    try:
        if descriptor.client_streaming and descriptor.server_streaming:
            list(channel.stream_stream(path)(iter([request]), timeout=10))
        elif method == "Subscribe":  # which does not end by itself
            frames = channel.unary_stream(path)(request, timeout=10)
            next(frames)
            frames.cancel()
        elif descriptor.client_streaming:
            channel.stream_unary(path)(iter([request]), timeout=10)
        elif descriptor.server_streaming:
            list(channel.unary_stream(path)(request, timeout=10))
        else:
            channel.unary_unary(path)(request, timeout=10)
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
    else:
        code, details = grpc.StatusCode.OK, ""
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (method, request, details)
    assert "Traceback" not in details
    return code


def bombard(server: ServerProcess, method: str, count: int, seed: int = 0) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for request in mutations(VALID[method].SerializeToString(), count, seed):
            code = call(channel, method, request)
            assert code not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE), (method, request)
    with connect(server.address, timeout=10) as client:
        client.put("alive", np.arange(3))
        assert client.get("alive").shape == (3,)


@pytest.mark.parametrize("method", VALID)
def test_any_bytes_are_answered(server: ServerProcess, method: str) -> None:
    bombard(server, method, 60)


@pytest.mark.soak
@pytest.mark.parametrize("method", VALID)
def test_many_more_bytes_are_answered(server: ServerProcess, method: str) -> None:
    for seed in range(20):
        bombard(server, method, 500, seed)


def length_delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def greedy() -> Iterator[tuple[str, bytes]]:
    """Small or legal-sized messages that would take much memory if they were believed."""
    exabyte = dlpack_pb2.DLTensor(dtype=dlpack_pb2.DLDataType(code=1, bits=8, lanes=1), shape=[1 << 60])
    record = tensor_file_pb2.TensorRecord(tensor=exabyte)
    yield "Store", pb.StoreRequest(name="n", records=[record]).SerializeToString()
    start = pb.PutStart(name="n", record_count=1, payload_bytes=1 << 60)
    yield "Put", pb.PutRequest(start=start, records=[record]).SerializeToString()
    start.record_count = 1 << 60
    yield "Put", pb.PutRequest(start=start).SerializeToString()
    many = length_delimited(1, b"n") + length_delimited(15, b"") * (MIB // 2)
    yield "Store", many
    small = length_delimited(15, exabyte.SerializeToString())
    yield "Store", length_delimited(1, b"n") + length_delimited(15, small) * 100_000
    yield "Store", length_delimited(1, b"n") + length_delimited(4, b"") * MIB
    yield "Store", length_delimited(1, b"n") + length_delimited(15, length_delimited(2, b"") * MIB)
    yield "Store", length_delimited(1, b"n") + length_delimited(15, length_delimited(3, b"") * (MIB // 4))
    shape = length_delimited(5, b"\x01" * (3 * MIB))
    yield (
        "Store",
        length_delimited(1, b"n")
        + length_delimited(15, length_delimited(15, b"\x22\x06\x08\x01\x10\x08\x18\x01" + shape)),
    )
    yield "Fetch", length_delimited(1, b"n") + length_delimited(2, b"") * MIB
    yield "Get", length_delimited(1, b"n") + length_delimited(4, b"") * MIB
    yield "List", pb.ListRequest(page_size=1 << 31).SerializeToString()
    yield "Publish", pb.PublishRequest(frame=pb.Frame(topic="n", header=exabyte)).SerializeToString()
    yield "Publish", length_delimited(1, length_delimited(1, b"n") + length_delimited(4, b"") * MIB)
    yield "Subscribe", length_delimited(1, b"n") * MIB


def test_memory_is_bounded_by_what_really_came() -> None:
    with running("--max-store-bytes", "1GiB") as server, grpc.insecure_channel(server.address) as channel:
        call(channel, "GetServerInfo", b"")
        before = server.peak_bytes()
        for method, request in greedy():
            assert len(request) < 4 * MIB
            assert call(channel, method, request) != grpc.StatusCode.OK, (method, request[:50])
        assert server.peak_bytes() - before < 160 * MIB


def test_requests_that_name_no_tensors_are_small(server: ServerProcess) -> None:
    padding = b"\x3a\x80\x80\x04" + bytes(64 << 10)  # an unknown field
    with grpc.insecure_channel(server.address) as channel:
        for method in ("GetServerInfo", "Stat", "List", "Delete", "GetUploadStatus", "DiscardUpload", "Subscribe"):
            for extra in (b"", padding):
                request = VALID.get(method, pb.DiscardUploadRequest(upload_id=bytes(16))).SerializeToString() + extra
                path = f"/{SERVICE.full_name}/{method}"
                call = channel.unary_stream(path) if method == "Subscribe" else channel.unary_unary(path)
                try:
                    answer = call(request, timeout=10)
                    if method == "Subscribe":
                        next(answer)
                        answer.cancel()
                    said = ""
                except grpc.RpcError as error:
                    said = error.details() or ""
                assert ("at most 65536 are allowed" in said) == bool(extra), (method, said)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_refused_unseen(server: ServerProcess, compression: grpc.Compression) -> None:
    before = server.private_bytes()
    with grpc.insecure_channel(server.address) as channel:
        store = channel.unary_unary(f"/{SERVICE.full_name}/Store")
        for size in (100 << 10, 3 * MIB, 400 * MIB):
            with pytest.raises(grpc.RpcError) as caught:
                store(bytes(size), compression=compression, timeout=30)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert server.private_bytes() - before < 32 * MIB


def test_nobody_without_permission_is_listened_to(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"tokens": [{"name": "a", "token": "0123456789abcdef", "read": [""]}]}))
    tokens.chmod(0o600)
    with running("--token-file", str(tokens)) as guarded, grpc.insecure_channel(guarded.address) as channel:
        ended = threading.Event()
        for method in ("Stat", "Store", "Put"):
            # The request never comes, so a server that read it first would not answer.
            call = channel.stream_unary(f"/{SERVICE.full_name}/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(iter(lambda: ended.wait(30) and b"", None), timeout=10)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED, method
        ended.set()


def test_connections_that_say_nothing_are_closed() -> None:
    with running() as server, contextlib.ExitStack() as held:
        host, _, port = server.address.rpartition(":")
        before = server.descriptor_count()
        for _ in range(40):
            held.enter_context(socket.create_connection((host, int(port))))
        eventually(lambda: server.descriptor_count() > before + 30)
        eventually(lambda: server.descriptor_count() <= before + 3, timeout_s=30)


def test_messages_over_the_limit_leave_the_connection_usable(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        assert call(channel, "Store", bytes(5 * MIB)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(channel, "GetServerInfo", b"") == grpc.StatusCode.OK


# --- health, which needs no credentials -------------------------------------------------------------------------------


def test_health_answers_junk_by_a_status_and_says_who_is_unknown(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for request, code in (
            (b"\xff", "INVALID_ARGUMENT"),
            (b"\x0a\x01\xff", "INVALID_ARGUMENT"),
            (bytes(5000), "INVALID_ARGUMENT"),
            (b"\x0a\x01x", "NOT_FOUND"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                check(request, timeout=10)
            assert caught.value.code().name == code
        assert check(b"", timeout=10) == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x01x", timeout=10)
        assert next(watch) == b"\x08\x03"
        watch.cancel()


def test_health_watches_are_bounded() -> None:
    with running() as server, grpc.insecure_channel(server.address) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        calls = [watch(b"", timeout=30) for _ in range(MAX_WATCHES)]
        assert [next(call) for call in calls] == [b"\x08\x01"] * MAX_WATCHES
        with pytest.raises(grpc.RpcError) as caught:
            next(watch(b"", timeout=30))
        assert caught.value.code().name == "RESOURCE_EXHAUSTED"
        calls[0].cancel()
        eventually(lambda: next(watch(b"", timeout=30), None) == b"\x08\x01")
