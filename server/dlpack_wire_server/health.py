"""gRPC's health service.

The packaged one answers malformed requests by an exception, and keeps what callers without credentials sent it for as
long as they stay.

Source of the service: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

SERVICE_NAME = "grpc.health.v1.Health"

MAX_WATCHES = 256
"""Watches at the same time: they need no credentials. Each holds a call of gRPC, some 20 KiB."""

_MAX_REQUEST_BYTES = 1024  # the names that can be asked for are shorter
_Status = health_pb2.HealthCheckResponse


class Health:
    """Tells anybody whether this server serves."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Begin with NOT_SERVING.

        Args:
            names: Services that can be asked for.
        """
        self._names = {name.encode() for name in names}
        self._status = _Status.NOT_SERVING
        self._changed = asyncio.Event()
        self._watch_count = 0

    def serve(self) -> None:
        """Say SERVING from now on."""
        self._set(_Status.SERVING)

    def drain(self) -> None:
        """Say NOT_SERVING from now on."""
        self._set(_Status.NOT_SERVING)

    def _set(self, status: int) -> None:
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods for a `grpc.aio` server."""
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, made)

    async def _check(self, request: bytes, context: Any) -> bytes:
        if await self._service(request, context) not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return bytes(_Status(status=self._status).SerializeToString())

    async def _watch(self, request: bytes, context: Any) -> None:
        is_known = await self._service(request, context) in self._names
        del request
        if self._watch_count == MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} watches are running")
        self._watch_count += 1
        try:
            while True:
                changed = self._changed
                status = self._status if is_known else _Status.SERVICE_UNKNOWN
                await context.write(_Status(status=status).SerializeToString())
                await changed.wait()
        finally:
            self._watch_count -= 1

    async def _service(self, request: bytes, context: Any) -> bytes:
        """Return the name that is asked for."""
        if len(request) > _MAX_REQUEST_BYTES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"over {_MAX_REQUEST_BYTES} bytes")
        try:
            name: str = health_pb2.HealthCheckRequest.FromString(request).service
            return name.encode()
        except (DecodeError, UnicodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
            raise
