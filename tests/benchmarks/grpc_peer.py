"""The peer of the service's rows: gRPC from Python that passes ready bytes on and keeps them as our server does.

`python -m tests.benchmarks.grpc_peer` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import grpc
from dlpack_wire_server.app import CHANNEL_OPTIONS
from grpc import aio

CHUNK_BYTES = 2 << 20
SERVICE = "peer.Identity"


async def _put(_: object, context: Any) -> bytes:
    """Keep what comes in a fresh memfd."""
    fd = os.memfd_create("peer")
    try:
        while (message := await context.read()) is not aio.EOF:
            os.write(fd, message)
    finally:
        os.close(fd)
    return b""


async def _get(request: bytes, context: Any) -> None:
    """Send as many bytes as were asked for."""
    chunk = bytes(CHUNK_BYTES)
    for _ in range(int.from_bytes(request, "little") // CHUNK_BYTES):
        await context.write(chunk)


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _serve() -> None:
    server = aio.server(options=CHANNEL_OPTIONS)
    handlers = {
        "Put": grpc.stream_unary_rpc_method_handler(_put),
        "Get": grpc.unary_stream_rpc_method_handler(_get),
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_serve())
