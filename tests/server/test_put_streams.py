"""Puts that break a rule, break off, are repeated, are continued: nothing half is ever seen."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hand_built_files import sums_of_blocks
from server_process import ServerProcess, eventually, running

import dlpack_wire as dw
from dlpack_wire.service.client import Client, connect
from dlpack_wire.service.grpc_transport import SERVICE
from dlpack_wire.tensor.checksum import xxh3
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb
from dlpack_wire.v1 import tensor_service_pb2_grpc as pb_grpc

MIB = 1 << 20
UINT8 = dlpack_pb2.DLDataType(code=1, bits=8, lanes=1)
PAYLOAD = np.random.default_rng(0).integers(0, 255, 3 * MIB, np.uint8)
BYTES = PAYLOAD.tobytes()
OLD = np.arange(3)


def start(name: str, upload_id: bytes = b"", **more: Any) -> pb.PutRequest:
    tensor = dw.to_proto(PAYLOAD[:0])
    tensor.shape[0] = len(BYTES)
    tensor.ClearField("data_sum")
    fields = {"record_count": 1, "payload_bytes": len(BYTES), **more}
    return pb.PutRequest(
        start=pb.PutStart(name=name, upload_id=upload_id, **fields),
        records=[tensor_file_pb2.TensorRecord(tensor=tensor)],
    )


def chunk(begin: int, end: int, **more: Any) -> pb.PutRequest:
    fields = {"offset": begin, "data": BYTES[begin:end], "block_sums": sums_of_blocks(BYTES[begin:end]), **more}
    return pb.PutRequest(chunk=pb.Chunk(**fields))


def chunks(begin: int = 0, size: int = MIB) -> list[pb.PutRequest]:
    made = [chunk(at, min(at + size, len(BYTES))) for at in range(begin, len(BYTES), size)]
    made[-1].finish = True
    return made


FINISH = pb.PutRequest(finish=True)
Build = Callable[[str], list[pb.PutRequest]]

WRONG: dict[str, tuple[Build, str, str]] = {
    "no start": (lambda n: chunks(), "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "nothing at all": (lambda n: [], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "two starts": (lambda n: [start(n), start(n), *chunks()], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "a start later": (lambda n: [start(n), *chunks()[:2], start(n)], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "no name": (lambda n: [start(""), *chunks()], "INVALID_ARGUMENT", "INVALID_NAME"),
    "chunk doubled": (
        lambda n: [start(n), chunks()[0], *chunks()],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "chunks reordered": (
        lambda n: [start(n), *reversed(chunks())],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "chunk missing": (lambda n: [start(n), chunks()[0], chunks()[2]], "INVALID_ARGUMENT", "CHUNK_OUT_OF_ORDER"),
    "chunk too many": (
        lambda n: [start(n), chunk(0, len(BYTES)), chunk(0, 1), FINISH],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "chunk of another tensor": (
        lambda n: [start(n), chunk(0, MIB, tensor_index=1)],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "chunk without bytes": (lambda n: [start(n), chunk(0, 0)], "INVALID_ARGUMENT", "CHUNK_OUT_OF_ORDER"),
    "wrong sum": (lambda n: [start(n), chunk(0, MIB, block_sums=[1])], "DATA_LOSS", "CHECKSUM_MISMATCH"),
    "two sums of one block": (
        lambda n: [start(n), chunk(0, MIB, block_sums=[1, 2])],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "half a block": (lambda n: [start(n), chunk(0, MIB // 2)], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "a block and a half": (lambda n: [start(n), chunk(0, MIB + MIB // 2)], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "chunk before the records": (
        lambda n: [start(n, record_count=2), chunk(0, MIB), FINISH],
        "INVALID_ARGUMENT",
        "CHUNK_OUT_OF_ORDER",
    ),
    "other bytes": (lambda n: [start(n), chunk(0, MIB, data=bytes(MIB))], "DATA_LOSS", "CHECKSUM_MISMATCH"),
    "no sum": (
        lambda n: [start(n), chunk(0, MIB, block_sums=[])],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "finish too early": (lambda n: [start(n), chunks()[0], FINISH], "ABORTED", "UPLOAD_INCOMPLETE"),
    "no finish": (lambda n: [start(n), *chunks()[:2], chunk(2 * MIB, 3 * MIB)], "ABORTED", "UPLOAD_INCOMPLETE"),
    "finish before records": (
        lambda n: [pb.PutRequest(start=start(n).start, finish=True)],
        "ABORTED",
        "UPLOAD_INCOMPLETE",
    ),
    "no records": (
        lambda n: [pb.PutRequest(start=start(n, record_count=0).start)],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "too many records": (
        lambda n: [start(n, record_count=1 << 40)],
        "RESOURCE_EXHAUSTED",
        "OBJECT_TOO_LARGE",
    ),
    "other size announced": (
        lambda n: [start(n, payload_bytes=5), *chunks()],
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
    ),
    "a terabyte announced": (lambda n: [terabyte(n)], "RESOURCE_EXHAUSTED", "STORE_FULL"),
    "upload id of another size": (lambda n: [start(n, b"short")], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "resume without id": (lambda n: [start(n, resume=True)], "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "resume of nothing": (
        lambda n: [pb.PutRequest(start=pb.PutStart(upload_id=secrets.token_bytes(16), resume=True))],
        "NOT_FOUND",
        "UPLOAD_NOT_FOUND",
    ),
    "wrong generation": (
        lambda n: [start(n, if_generation=7), *chunks()],
        "FAILED_PRECONDITION",
        "GENERATION_MISMATCH",
    ),
}


def terabyte(name: str) -> pb.PutRequest:
    request = start(name, payload_bytes=1 << 40)
    request.records[0].tensor.shape[0] = 1 << 40
    return request


@pytest.mark.parametrize(("build", "code", "reason"), WRONG.values(), ids=WRONG)
def test_what_breaks_a_rule_changes_nothing(
    client: Client, stub: Any, name: str, build: Build, code: str, reason: str
) -> None:
    generation = client.put(name, OLD)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Put(iter(build(name)), timeout=30)
    error: Any = caught.value
    assert (error.code().name, dict(error.trailing_metadata())["dlpack-wire-reason"]) == (code, reason), error.details()
    assert client.stat(name).generation == generation
    assert np.array_equal(client.get(name).numpy(), OLD)


def test_records_that_are_none(client: Client, stub: Any, name: str) -> None:
    for fault in ("dtype", "shape", "names", "duplicate"):
        request = start(name)
        if fault == "dtype":
            request.records[0].tensor.ClearField("dtype")
        elif fault == "shape":
            request.records[0].tensor.shape.append(-1)
        elif fault == "names":
            request.records[0].name = "a\0b"
        else:
            request.records[0].name = "a"
            request.records[0].aliases.append("a")
        with pytest.raises(grpc.RpcError) as caught:
            stub.Put(iter([request, *chunks()]), timeout=30)
        error: Any = caught.value
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, fault
        reason = dict(error.trailing_metadata())["dlpack-wire-reason"]
        assert reason == ("INVALID_TENSOR" if fault in ("dtype", "shape") else "INVALID_NAME")


def test_refused_early_the_rest_is_not_sent(client: Client, name: str) -> None:
    client.put(name, OLD)
    seen: list[int] = []
    with pytest.raises(dw.RemoteError) as caught:
        client.put(name, np.zeros(400 * MIB, np.uint8), if_generation=1, progress=lambda done, _: seen.append(done))
    assert caught.value.reason == "GENERATION_MISMATCH"
    assert max(seen, default=0) < 200 * MIB


def test_progress_that_raises_is_the_callers_own_error(client: Client, name: str) -> None:
    client.put(name, OLD)

    def give_up(done: int, total: int) -> None:
        if done > 4 * MIB:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        client.put(name, np.zeros(20 * MIB, np.uint8), progress=give_up)
    assert np.array_equal(client.get(name).numpy(), OLD)
    with pytest.raises(LookupError, match="enough"):
        client.get(client_put(client, name), progress=give_up)


def client_put(client: Client, name: str) -> str:
    client.put(name, np.zeros(20 * MIB, np.uint8))
    return name


def break_off(stub: Any, requests: list[pb.PutRequest], sent: Callable[[], bool]) -> None:
    """Send requests, and cancel once the server has them."""
    done = False

    def endless() -> Iterator[pb.PutRequest]:
        yield from requests
        while not done:
            if not call_is_active():
                return

    holder: list[Any] = []

    def call_is_active() -> bool:
        import time

        time.sleep(0.01)
        return not holder or holder[0].is_active()

    holder.append(stub.Put.future(endless()))
    eventually(sent)
    done = True
    holder[0].cancel()


def reason_of(error: Any) -> str:
    return str(dict(error.trailing_metadata())["dlpack-wire-reason"])


def status_of(stub: Any, upload_id: bytes) -> pb.GetUploadStatusResponse:
    response: pb.GetUploadStatusResponse = stub.GetUploadStatus(
        pb.GetUploadStatusRequest(upload_id=upload_id), timeout=10
    )
    return response


def test_a_broken_upload_is_continued(client: Client, stub: Any, name: str) -> None:
    upload_id = os.urandom(16)
    assert status_of(stub, upload_id).state == pb.GetUploadStatusResponse.UNKNOWN
    break_off(stub, [start(name, upload_id), chunk(0, MIB)], lambda: status_of(stub, upload_id).offset == MIB)
    resume = pb.PutRequest(start=pb.PutStart(upload_id=upload_id, resume=True))

    def resumable() -> bool:
        try:
            stub.Put(iter([resume]), timeout=10)
        except grpc.RpcError as error:
            return dict(error.trailing_metadata())["dlpack-wire-reason"] == "UPLOAD_INCOMPLETE"
        return False

    eventually(resumable)
    status = status_of(stub, upload_id)
    assert (status.state, status.tensor_index, status.offset) == (pb.GetUploadStatusResponse.RECEIVING, 0, MIB)
    assert status.held_sum == xxh3(xxh3(BYTES[:MIB]).to_bytes(8, "little"))
    with pytest.raises(dw.NotFoundError):
        client.get(name)
    done = stub.Put(iter([resume, *chunks(MIB)]), timeout=30)
    assert np.array_equal(client.get(name).numpy(), PAYLOAD)
    status = status_of(stub, upload_id)
    assert (status.state, status.generation) == (pb.GetUploadStatusResponse.COMMITTED, done.generation)
    again = stub.Put(iter([resume]), timeout=30)
    assert (again.already_committed, again.generation) == (True, done.generation)


def test_an_upload_is_received_once_at_a_time_and_can_be_discarded(stub: Any, name: str) -> None:
    upload_id = os.urandom(16)
    holder: list[Any] = []

    def slow() -> Iterator[pb.PutRequest]:
        yield start(name, upload_id)
        yield chunk(0, MIB)
        eventually(lambda: bool(holder) and not holder[0].is_active())

    holder.append(stub.Put.future(slow()))
    eventually(lambda: status_of(stub, upload_id).offset == MIB)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Put(iter([start(name, upload_id), *chunks()]), timeout=10)
    assert dict(caught.value.trailing_metadata())["dlpack-wire-reason"] == "UPLOAD_IN_PROGRESS"
    stub.DiscardUpload(pb.DiscardUploadRequest(upload_id=upload_id), timeout=10)
    error: Any = holder[0].exception(timeout=10)
    assert (error.code().name, reason_of(error)) == ("ABORTED", "UPLOAD_INCOMPLETE")
    assert status_of(stub, upload_id).state == pb.GetUploadStatusResponse.UNKNOWN
    with pytest.raises(grpc.RpcError) as caught:
        stub.DiscardUpload(pb.DiscardUploadRequest(upload_id=upload_id), timeout=10)
    assert (caught.value.code().name, reason_of(caught.value)) == ("NOT_FOUND", "UPLOAD_NOT_FOUND")
    with pytest.raises(grpc.RpcError) as caught:
        stub.DiscardUpload(pb.DiscardUploadRequest(upload_id=b"short"), timeout=10)
    assert (caught.value.code().name, reason_of(caught.value)) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


FAULTS: dict[str, tuple[pb.PutRequest, str]] = {
    "a damaged block": (chunk(MIB, 2 * MIB, data=bytes(MIB)), "CHECKSUM_MISMATCH"),
    "a chunk too early": (chunk(2 * MIB, 3 * MIB), "CHUNK_OUT_OF_ORDER"),
    "a chunk twice": (chunk(0, MIB), "CHUNK_OUT_OF_ORDER"),
    "the end too early": (pb.PutRequest(finish=True), "UPLOAD_INCOMPLETE"),
}


@pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)
def test_an_upload_goes_on_from_before_the_fault(
    client: Client, stub: Any, name: str, fault: pb.PutRequest, reason: str
) -> None:
    upload_id = os.urandom(16)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Put(iter([start(name, upload_id), chunk(0, MIB), fault]), timeout=10)
    assert reason_of(caught.value) == reason
    status = status_of(stub, upload_id)
    assert (status.state, status.offset) == (pb.GetUploadStatusResponse.RECEIVING, MIB)
    resume = pb.PutRequest(start=pb.PutStart(name=name, upload_id=upload_id, resume=True))
    stub.Put(iter([resume, *chunks(MIB)]), timeout=30)
    assert np.array_equal(client.get(name).numpy(), PAYLOAD)


def test_an_upload_is_of_one_name(stub: Any, name: str) -> None:
    upload_id = os.urandom(16)
    with pytest.raises(grpc.RpcError):
        stub.Put(iter([start(name, upload_id), chunk(0, MIB)]), timeout=10)

    def refused(other: str) -> None:
        resume = pb.PutRequest(start=pb.PutStart(name=other, upload_id=upload_id, resume=True))
        with pytest.raises(grpc.RpcError) as caught:
            stub.Put(iter([resume, *chunks(MIB)]), timeout=30)
        assert (caught.value.code().name, reason_of(caught.value)) == ("INVALID_ARGUMENT", "INVALID_REQUEST")

    refused("another")
    assert status_of(stub, upload_id).offset == MIB
    resume = pb.PutRequest(start=pb.PutStart(upload_id=upload_id, resume=True))
    stub.Put(iter([resume, *chunks(MIB)]), timeout=30)
    refused("another")
    again = pb.PutRequest(start=pb.PutStart(name=name, upload_id=upload_id, resume=True))
    assert stub.Put(iter([again]), timeout=30).already_committed


def test_given_up_puts_leave_nothing_behind(server: ServerProcess, client: Client, name: str) -> None:
    big = np.zeros(64 * MIB, np.uint8)
    client.put(name, big[: 2 * MIB])
    kept = server.memfd_count()

    def give_up(done: int, total: int) -> None:
        raise LookupError

    for _ in range(10):
        with pytest.raises(LookupError):
            client.put(name, big, progress=give_up)
    eventually(lambda: server.memfd_count() <= kept)


def test_interrupted_uploads_expire() -> None:
    with running("--upload-retention-s", "0.3") as server, grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.TensorServiceStub(channel)
        upload_id = os.urandom(16)
        assert status_of(stub, upload_id).state == pb.GetUploadStatusResponse.UNKNOWN
        kept = server.memfd_count()
        break_off(stub, [start("n", upload_id), chunk(0, MIB)], lambda: status_of(stub, upload_id).offset == MIB)
        eventually(lambda: status_of(stub, upload_id).state == pb.GetUploadStatusResponse.UNKNOWN)
        eventually(lambda: server.memfd_count() <= kept)


def test_a_full_store_refuses_and_keeps_what_it_has() -> None:
    with running("--max-store-bytes", "10MiB") as server, connect(server.address, timeout=30) as client:
        client.put("a", np.zeros(6 * MIB, np.uint8))
        for x in (np.zeros(6 * MIB, np.uint8), np.zeros(400 * MIB, np.uint8)):
            with pytest.raises(dw.RemoteError) as caught:
                client.put("b", x)
            assert (caught.value.code, caught.value.reason) == ("RESOURCE_EXHAUSTED", "STORE_FULL")
        client.put("b", np.zeros(3 * MIB, np.uint8))
        client.delete("a")
        eventually(lambda: bool(client.put("c", np.zeros(5 * MIB, np.uint8))))
        assert client.get("b").shape == (3 * MIB,)


def test_objects_over_the_limit_are_refused_at_once() -> None:
    with running("--max-object-bytes", "2MiB") as server, connect(server.address, timeout=30) as client:
        assert client.server_info().max_object_bytes == 2 * MIB
        client.put("a", np.zeros(2 * MIB, np.uint8))
        with pytest.raises(dw.RemoteError, match="at most 2097152") as caught:
            client.put("b", np.zeros(2 * MIB + 1, np.uint8))
        assert caught.value.reason == "OBJECT_TOO_LARGE"
    with running("--max-object-bytes", "1000") as server, connect(server.address, timeout=30) as client:
        client.put("a", np.zeros(1000, np.uint8))
        with pytest.raises(dw.RemoteError, match="1001 payload bytes; at most 1000") as caught:
            client.put("b", np.zeros(1001, np.uint8))
        assert caught.value.reason == "OBJECT_TOO_LARGE"


def test_puts_of_headers_alone_are_charged_and_leave_nothing() -> None:
    record = tensor_file_pb2.TensorRecord(name="n", tensor=dlpack_pb2.DLTensor(dtype=UINT8, shape=[1]))
    records = []
    for i in range(5000):
        record.name = f"{i}"
        records.append(tensor_file_pb2.TensorRecord.FromString(record.SerializeToString()))
    with (
        running("--max-store-bytes", "4MiB") as server,
        grpc.insecure_channel(server.address) as channel,
        connect(server.address, timeout=30) as client,
    ):
        stub = pb_grpc.TensorServiceStub(channel)
        begin = pb.PutStart(name="n", upload_id=bytes(16), record_count=20_001, payload_bytes=20_001)

        def requests() -> Iterator[pb.PutRequest]:
            yield pb.PutRequest(start=begin)
            for at in range(0, 20_000, 1000):
                part = records[at % 5000 : at % 5000 + 1000]
                yield pb.PutRequest(records=part)

        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Put(requests(), timeout=30)
            assert dict(caught.value.trailing_metadata())["dlpack-wire-reason"] == "STORE_FULL"
            assert status_of(stub, bytes(16)).state == pb.GetUploadStatusResponse.UNKNOWN
        client.put("whole", np.zeros(3 * MIB, np.uint8))  # nothing of them is left


def test_several_unfinished_puts_leave_half_of_the_store_to_others() -> None:
    with running("--max-store-bytes", "10MiB") as server, grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.TensorServiceStub(channel)
        ids = [os.urandom(16) for _ in range(2)]
        break_off(stub, [start("a", ids[0]), chunk(0, MIB)], lambda: status_of(stub, ids[0]).offset == MIB)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Put(iter([start("b", ids[1]), *chunks()]), timeout=10)
        assert "(--max-unfinished-bytes) are allowed" in (caught.value.details() or "")
        with connect(server.address, timeout=30) as client:
            client.put("small", np.zeros(MIB, np.uint8))


def test_a_get_that_nobody_reads_makes_space_for_a_put() -> None:
    large = np.ones(60 * MIB, np.uint8)
    with (
        running("--max-store-bytes", "100MiB") as server,
        grpc.insecure_channel(server.address) as channel,
        connect(server.address, timeout=60) as client,
    ):
        client.put("a", large)
        get = channel.unary_stream(f"/{SERVICE.full_name}/Get")
        held = get(pb.GetRequest(name="a").SerializeToString(), timeout=60)
        next(held)
        client.delete("a")  # its memory is still being read
        eventually(lambda: not refused(lambda: client.put("b", large)))
        with pytest.raises(grpc.RpcError) as caught:
            list(held)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "a message was not taken for" in (caught.value.details() or "")
        assert client.get("b").numpy().sum() == large.size


def test_a_reader_that_was_cut_off_goes_on() -> None:
    large = np.ones(60 * MIB, np.uint8)
    with running("--max-store-bytes", "100MiB") as server, connect(server.address, timeout=60) as other:
        other.put("a", large)
        refusals = []

        def stall(done: int, total: int) -> None:
            if not refusals:
                time.sleep(1.5)  # longer than the server waits when it is full
                refusals.append(refused(lambda: other.put("b", large)))

        with connect(server.address, timeout=60) as client:
            assert client.get("a", progress=stall).numpy().sum() == large.size
        assert refusals == [True]


def refused(call: Callable[[], object]) -> bool:
    """True if there is no space for what a call wants."""
    try:
        call()
    except dw.RemoteError as error:
        if error.reason != "STORE_FULL":
            raise
        return True
    return False
