"""Calls that come over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
from grpc import aio

from dlpack_wire.service.transport import REASON_KEY

from .auth import Credentials
from .calls import Answer, CallerGoneError
from .service import SERVICE, TensorService
from .status import Status

_Context = aio.ServicerContext[Any, Any]


class GrpcCall:
    """One call, with gRPC's context of it."""

    def __init__(self, context: _Context) -> None:
        self._context = context

    @property
    def credentials(self) -> Credentials:
        """The bearer token, the peer without its port, and the name in the peer's certificate."""
        token = None
        for key, value in self._context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
                token = value[7:]
        peer = self._context.peer()
        identities = self._context.peer_identities() or ()
        certified = next((name.decode("utf-8", "replace") for name in identities), None)
        return Credentials(token, peer.rpartition(":")[0] if peer.startswith("ipv") else peer, certified)

    async def read(self) -> bytes | None:
        """Return the next request, or None after the last one."""
        try:
            message = await self._context.read()
        except aio.InternalError:  # raised by gRPC if the caller is gone and the call is not cancelled yet
            raise CallerGoneError from None
        return None if message is aio.EOF else message

    async def write(self, message: bytes) -> None:
        """Send a response; wait while the caller does not read."""
        try:
            await self._context.write(message)
        except aio.InternalError:
            raise CallerGoneError from None

    def end(self, answer: Answer) -> bytes:
        """Tell gRPC the status, and return the response.

        Not by `abort`: it raises an error that the call keeps, and which by its traceback keeps the call, with all that
        has come and was not read, until the garbage collector finds them.
        """
        status = answer.status
        if status is not None:
            self._context.set_code(grpc.StatusCode[status.code])
            self._context.set_details(status.text)
            self._context.set_trailing_metadata(trailers(status))
        return answer.response


def trailers(status: Status) -> tuple[tuple[str, str], ...]:
    """Return a status's reason as trailing metadata."""
    return ((REASON_KEY, status.reason),) if status.reason else ()


def handlers(service: TensorService) -> grpc.GenericRpcHandler:
    """Return the service's methods for a `grpc.aio` server, which answers UNIMPLEMENTED for all others."""
    made = {name: _handler(service, name) for name in service.methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, made)


def _handler(service: TensorService, name: str) -> grpc.RpcMethodHandler[Any, Any]:
    method = SERVICE.methods_by_name[name]

    async def answer(_: Any, context: _Context) -> bytes:
        call = GrpcCall(context)
        return call.end(await service.answer(name, call))

    async def answer_by_stream(_: Any, context: _Context) -> None:
        await answer(_, context)

    # Every method is registered as taking a stream. For a method with one request gRPC would read that request before
    # it calls us: from callers without permission too, and without a time limit.
    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(answer_by_stream)
    return grpc.stream_unary_rpc_method_handler(answer)
