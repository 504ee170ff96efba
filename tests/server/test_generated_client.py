"""A client made by plain protoc, with gRPC's default options, puts and gets everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hand_built_files import payload_sum_of, sums_of_blocks
from server_process import ServerProcess

import dlpack_wire as dw
from dlpack_wire.service.client import Client
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20


def header_of(x: Any) -> dlpack_pb2.DLTensor:
    message = dw.to_proto(x)
    message.ClearField("data")
    message.ClearField("padding")
    return message


def put_requests(name: str, x: Any, size: int) -> Iterator[pb.PutRequest]:
    payload = x.tobytes()
    start = pb.PutStart(name=name, upload_id=b"generated client", record_count=1, payload_bytes=len(payload))
    yield pb.PutRequest(start=start)
    yield pb.PutRequest(records=[tensor_file_pb2.TensorRecord(tensor=header_of(x))])
    for begin in range(0, len(payload), size):
        data = payload[begin : begin + size]
        chunk = pb.Chunk(offset=begin, data=data, block_sums=sums_of_blocks(data))
        yield pb.PutRequest(chunk=chunk, finish=begin + size >= len(payload))


def test_put_and_get(stub: Any, client: Client, name: str) -> None:
    x = np.random.default_rng(0).standard_normal(3 * MIB)
    response = stub.Put(put_requests(name, x, 3 * MIB), timeout=60)
    assert not response.already_committed
    assert np.array_equal(client.get(name).numpy(), x)

    messages = list(stub.Get(pb.GetRequest(name=name), timeout=60))
    assert all(message.ByteSize() <= 4 * MIB for message in messages)
    assert (messages[0].object.name, messages[0].record_count) == (name, 1)
    assert messages[0].object.generation == response.generation
    (record,) = [record for message in messages for record in message.records]
    chunks = [message.chunk for message in messages if message.HasField("chunk")]
    payload = b"".join(chunk.data for chunk in chunks)
    assert payload == x.tobytes()
    assert [s for chunk in chunks for s in chunk.block_sums] == sums_of_blocks(payload)
    assert record.tensor.data_sum == payload_sum_of(payload)
    record.tensor.data = payload
    assert np.array_equal(dw.from_proto(record.tensor).numpy(), x)

    again = stub.Put(put_requests(name, x, MIB), timeout=60)
    assert (again.already_committed, again.generation) == (True, response.generation)


def test_get_from_an_offset_and_in_the_wanted_chunks(stub: Any, client: Client, name: str) -> None:
    random = np.random.default_rng(0)
    a, b = random.bytes(3 * MIB + 5), random.bytes(2 * MIB)
    client.put(name, {"a": np.frombuffer(a, np.uint8), "b": np.frombuffer(b, np.uint8), "c": np.zeros(7, np.uint8)})
    request = pb.GetRequest(
        name=name, tensors=["c", "a", "b"], start_tensor_index=1, start_offset=MIB, max_chunk_bytes=2 * MIB - 1
    )
    messages = list(stub.Get(request, timeout=10))
    found = [m.chunk for m in messages if m.HasField("chunk")]
    assert [(c.tensor_index, c.offset) for c in found] == [(1, MIB), (1, 2 * MIB), (1, 3 * MIB), (2, 0), (2, MIB)]
    assert b"".join(c.data for c in found) == a[MIB:] + b
    assert [s for c in found for s in c.block_sums] == sums_of_blocks(a[MIB:]) + sums_of_blocks(b)
    for offset in (1, MIB - 1, 3 * MIB + 4):
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Get(pb.GetRequest(name=name, start_offset=offset), timeout=10))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not [m for m in stub.Get(pb.GetRequest(name=name, start_tensor_index=3), timeout=10) if m.chunk.data]
    for index, offset in ((0, 3 * MIB + 6), (3, 1), (4, 0)):
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Get(pb.GetRequest(name=name, start_tensor_index=index, start_offset=offset), timeout=10))
        assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE


def test_store_and_fetch(stub: Any, name: str) -> None:
    tensors = {"a": np.arange(12, dtype=np.int32).reshape(3, 4), "b": np.array([1.5])}
    records = [tensor_file_pb2.TensorRecord(name=key, tensor=dw.to_proto(x)) for key, x in tensors.items()]
    metadata = {"k": tensor_file_pb2.MetadataValue(int_value=3)}
    stored = stub.Store(pb.StoreRequest(name=name, records=records, metadata=metadata), timeout=10)
    fetched = stub.Fetch(pb.FetchRequest(name=name), timeout=10)
    assert fetched.complete
    assert (fetched.object.generation, fetched.object.metadata["k"].int_value) == (stored.generation, 3)
    for record, chunk, original in zip(fetched.records, fetched.chunks, records, strict=True):
        assert (record.name, record.tensor.shape) == (original.name, original.tensor.shape)
        assert chunk.data == original.tensor.data
        assert list(chunk.block_sums) == [record.tensor.data_sum] == [original.tensor.data_sum]


def test_fetch_of_a_large_object_is_its_beginning(stub: Any, client: Client, name: str) -> None:
    x = np.random.default_rng(0).integers(0, 255, 3 * MIB, np.uint8)
    client.put(name, {"small": x[:10], "large": x, "last": x[:5]})
    fetched = stub.Fetch(pb.FetchRequest(name=name), timeout=10)
    assert not fetched.complete
    assert fetched.ByteSize() < 4 * MIB
    assert [chunk.data for chunk in fetched.chunks] == [x[:10].tobytes()]  # no room for a whole block of the next one
    assert [record.name for record in fetched.records] == ["small", "large", "last"]
    client.put(name, {"large": x})
    fetched = stub.Fetch(pb.FetchRequest(name=name), timeout=10)
    assert not fetched.complete
    assert [chunk.data for chunk in fetched.chunks] == [x[:MIB].tobytes()]


def test_stat_in_pages(stub: Any, client: Client, name: str) -> None:
    client.put(name, {f"t{i}": np.zeros(i) for i in range(10)})
    seen, first = [], 0
    while True:
        page = stub.Stat(pb.StatRequest(name=name, first_record=first, max_record_count=4), timeout=10)
        seen += [record.name for record in page.records]
        first = page.next_record
        if not first:
            break
    assert seen == [f"t{i}" for i in range(10)]
    assert not stub.Stat(pb.StatRequest(name=name, first_record=99), timeout=10).records


def test_server_info(stub: Any, server: ServerProcess) -> None:
    info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)
    assert info.server_version == dw.__version__
    assert len(info.instance_id) == 32
    assert set(info.instance_id) <= set("0123456789abcdef")
    assert info.max_chunk_bytes < info.max_message_bytes == 4 * MIB
    assert {"Put", "Get", "Store", "Fetch", "Stat", "List", "Delete"} <= set(info.methods)


def test_methods_that_are_not_offered_say_so(stub: Any) -> None:
    offered = set(stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10).methods)
    every = {method.name for method in pb.DESCRIPTOR.services_by_name["TensorService"].methods}
    if "Subscribe" in every - offered:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Subscribe(pb.SubscribeRequest(patterns=["*"]), timeout=10))
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_health_and_reflection(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "dlpack_wire.v1.TensorService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
        assert "dlpack_wire.v1.TensorService" in services


def test_the_reason_is_in_the_trailers(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Stat(pb.StatRequest(name="nothing is called so"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert ("dlpack-wire-reason", "OBJECT_NOT_FOUND") in caught.value.trailing_metadata()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Stat(pb.StatRequest(name="ü" * 2000 + "\0"), timeout=10)
    assert ("dlpack-wire-reason", "INVALID_NAME") in caught.value.trailing_metadata()
    assert len(caught.value.details().encode()) <= 1000
