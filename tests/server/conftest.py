"""One server for all tests that do not need one of their own; each test has names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from server_process import ServerProcess, running

from dlpack_wire.service.client import Client, connect
from dlpack_wire.v1 import tensor_service_pb2_grpc as pb_grpc


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with running("--max-store-bytes", "2GiB", "--upload-retention-s", "60") as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with connect(server.address, timeout=60) as made:
        yield made


@pytest.fixture
def stub(server: ServerProcess) -> Iterator[pb_grpc.TensorServiceStub]:
    """What plain protoc generates, on a channel with gRPC's default options."""
    with grpc.insecure_channel(server.address) as channel:
        yield pb_grpc.TensorServiceStub(channel)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return str(request.node.nodeid)
