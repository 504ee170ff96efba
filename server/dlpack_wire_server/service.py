"""The methods of `TensorService` over a store, whichever transport brings the calls.

Messages are handed over as bytes and parsed here, so that a bad one is answered with its own status. Work that takes
long or waits for a disk is done in threads; the event loop only passes messages on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import dlpack_wire
from dlpack_wire.errors import DecodeError, LimitError
from dlpack_wire.message.names import encode_name
from dlpack_wire.service.messages import (
    INLINE_BYTES,
    MAX_CHUNK_BYTES,
    MAX_METADATA_BYTES,
    MAX_SERVICE_MESSAGE_BYTES,
    parse,
    parses_quickly,
)
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .auth import Authorizer, Caller
from .backing import Charge
from .calls import Answer, Call, CallLimits, Calls, finished
from .frame_queue import MAX_QUEUE_BYTES, MAX_QUEUE_FRAMES, QUEUE_BYTES, QUEUE_FRAMES
from .hub import MAX_PATTERNS, Hub
from .metrics import Metrics
from .puts import QUICK_COPY_BYTES, QUICK_RECORDS, ObjectLimits, Puts
from .responses import (
    PAGE_BYTES,
    PageTokens,
    fetch_response,
    get_messages,
    object_field,
    select,
    stat_response,
)
from .store import Store, StoredObject
from .topics import Topics
from .unfinished import UnfinishedPuts

SERVICE = pb.DESCRIPTOR.services_by_name["TensorService"]

CONTRACT_REVISION = 2
"""Revision of proto/README.md that this server was made for; that text states it."""

GET_CHUNK_BYTES = 2 << 20
"""Default chunk size for Get: fewer messages than with 1 MiB, and still in the cache between hashing and sending."""

MAX_REQUEST_BYTES = 64 << 10
"""Largest request of a method that takes no tensors and no lists of their names. Subscribe keeps its request until the
end of the call; there this is room for all patterns that one may have."""

_LISTS_TENSORS = ("Store", "Fetch", "Get")
_STREAMS = {name for name, method in SERVICE.methods_by_name.items() if method.client_streaming}

Method = Callable[[Caller, Call, bytes], Awaitable[bytes | None]]
"""(caller, call, request) to the response. The request of a method that takes a stream is empty, and the response of
one that returns a stream None: those go through the call."""


class TensorService:
    """The service. It owns neither the store nor the unfinished puts nor the hub that it is given.

    Attributes:
        methods: The methods by name.
    """

    def __init__(
        self,
        store: Store,
        unfinished: UnfinishedPuts,
        hub: Hub,
        authorizer: Authorizer,
        metrics: Metrics,
        instance_id: str,
        limits: ObjectLimits,
        call_limits: CallLimits,
    ) -> None:
        self._store = store
        self._hub = hub
        self._unfinished = unfinished
        self._metrics = metrics
        self._instance_id = instance_id
        self._limits = limits
        self._tokens = PageTokens()
        self._calls = Calls(authorizer, metrics, call_limits, store.on_disk)
        self._puts = Puts(store, unfinished, self._calls, metrics, limits)
        self._topics = Topics(hub, self._calls, authorizer, metrics, instance_id)
        self.methods: dict[str, Method] = {
            "GetServerInfo": self._get_server_info,
            "Store": self._puts.store,
            "Fetch": self._fetch,
            "Put": self._puts.put,
            "GetUploadStatus": self._puts.status,
            "DiscardUpload": self._puts.discard,
            "Get": self._get,
            "Stat": self._stat,
            "List": self._list,
            "Delete": self._delete,
            "Publish": self._topics.publish,
            "Subscribe": self._topics.subscribe,
        }

    async def answer(self, method: str, call: Call) -> Answer:
        """Answer one call of a method that there is."""
        return await self._calls.answer(method, call, lambda caller: self._run(method, caller, call))

    async def _run(self, method: str, caller: Caller, call: Call) -> bytes | None:
        run = self.methods[method]
        if method in _STREAMS:
            return await run(caller, call, b"")
        # Read only now: nobody without permission makes the server hold a request.
        request = await self._calls.request(call)
        size = len(request)
        if size > MAX_REQUEST_BYTES and method not in _LISTS_TENSORS:
            text = f"{method} of {size} bytes; at most {MAX_REQUEST_BYTES} are allowed"
            raise LimitError(text, declared=size, limit=MAX_REQUEST_BYTES)
        charged = size if size > MAX_REQUEST_BYTES else 0
        charge = Charge(self._store.memory, charged, charged)
        try:
            return await run(caller, call, request)
        finally:
            charge.give_back()

    def sweep(self) -> None:
        """End calls whose messages nobody takes, and those whose callers may not have them any more."""
        self._calls.sweep()
        self._topics.sweep()

    @property
    def stalled_count(self) -> int:
        """Calls that were ended because a message did not come, or was not taken."""
        return self._calls.stalled_count

    def drain(self) -> None:
        """End the calls that never end by themselves."""
        self._topics.drain()

    async def quiet(self, seconds: float) -> None:
        """Wait until no other calls are running, for at most so long."""
        await self._calls.quiet(seconds)

    def close(self) -> None:
        """Wait for the threads."""
        self._calls.close()

    async def _get_server_info(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        parse(pb.GetServerInfoRequest, raw)
        return pb.GetServerInfoResponse(
            server_version=dlpack_wire.__version__,
            instance_id=self._instance_id,
            max_message_bytes=MAX_SERVICE_MESSAGE_BYTES,
            inline_payload_bytes=INLINE_BYTES,
            max_chunk_bytes=MAX_CHUNK_BYTES,
            max_object_bytes=self._limits.payload_bytes,
            max_tensor_count=self._limits.tensor_count,
            upload_retention_ns=self._unfinished.retention_ns,
            methods=self.methods,
            contract_revision=CONTRACT_REVISION,
            max_frame_bytes=self._hub.max_frame_bytes,
            default_queue_frame_count=QUEUE_FRAMES,
            max_queue_frame_count=MAX_QUEUE_FRAMES,
            default_queue_bytes=QUEUE_BYTES,
            max_queue_bytes=MAX_QUEUE_BYTES,
            max_pattern_count=MAX_PATTERNS,
            max_metadata_bytes=MAX_METADATA_BYTES,
            max_unfinished_bytes=self._unfinished.max_bytes,
        ).SerializeToString()

    async def _fetch(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        request, _, _ = await self._calls.parse(parses_quickly(raw, 1), parse, pb.FetchRequest, raw)
        stored = await self._find(caller, request.name, None)
        records = await self._calls.parse(_is_quick(stored, request.tensors), select, stored, request.tensors)
        quick = min(stored.info.payload_bytes, INLINE_BYTES) < QUICK_COPY_BYTES and len(records) < QUICK_RECORDS
        response = await self._calls.run(quick, fetch_response, stored, records)
        self._metrics.sent_bytes += len(response)
        return response

    async def _get(self, caller: Caller, call: Call, raw: bytes) -> None:
        request, _, _ = await self._calls.parse(parses_quickly(raw, 1), parse, pb.GetRequest, raw)
        stored = await self._find(caller, request.name, request.generation if request.HasField("generation") else None)
        records = await self._calls.parse(_is_quick(stored, request.tensors), select, stored, request.tensors)
        size = min(request.max_chunk_bytes or GET_CHUNK_BYTES, MAX_CHUNK_BYTES)
        messages = get_messages(stored, records, request, size)
        quick = stored.info.payload_bytes < QUICK_COPY_BYTES and len(records) < QUICK_RECORDS
        message = await self._calls.run(quick, next, messages, None)
        watch = self._calls.watch(caller, call)
        while message is not None:
            watch.check()
            # The next message is made while this one is being sent.
            following = asyncio.ensure_future(self._calls.run(quick, next, messages, None))
            try:
                await self._calls.write(call, message)
                self._metrics.sent_bytes += len(message)
            finally:
                await finished(following)
            message = following.result()

    async def _stat(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        request, _, _ = parse(pb.StatRequest, raw)
        stored = await self._find(caller, request.name, None)
        return await self._calls.run(len(stored.records) < QUICK_RECORDS, stat_response, stored, request)

    async def _list(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        request, _, _ = parse(pb.ListRequest, raw)
        if request.page_size > 1000:
            raise DecodeError(f"{request.page_size}; at most 1000 are allowed", field="page_size")
        after = self._tokens.begin(request.prefix, request.page_token) if request.page_token else ""
        left = request.page_size or 100
        left_bytes = PAGE_BYTES
        parts: list[bytes] = []
        for prefix in caller.readable(request.prefix):
            while found := await self._calls.run(True, self._store.list, prefix, after, 100):
                for info in found:
                    entry = object_field(1, info)
                    left_bytes -= len(entry)
                    if not left or (left_bytes < 0 and parts):
                        token = self._tokens.token(request.prefix, after)
                        return b"".join(parts) + pb.ListResponse(next_page_token=token).SerializeToString()
                    parts.append(entry)
                    after = info.name
                    left -= 1
                await asyncio.sleep(0)
        return b"".join(parts)

    async def _delete(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        request, _, _ = parse(pb.DeleteRequest, raw)
        encode_name(request.name)
        caller.require_write(request.name)
        if_generation = request.if_generation if request.HasField("if_generation") else None
        generation = await self._calls.run(True, self._store.delete, request.name, if_generation)
        return pb.DeleteResponse(generation=generation).SerializeToString()

    async def _find(self, caller: Caller, name: str, generation: int | None) -> StoredObject:
        encode_name(name)
        caller.require_read(name)
        return await self._calls.run(True, self._store.get, name, generation)


def _is_quick(stored: StoredObject, names: Sequence[str]) -> bool:
    """Return True if choosing these tensors of an object takes no time worth a thread."""
    return not names or max(len(stored.records), len(names)) < QUICK_RECORDS
