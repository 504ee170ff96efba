"""The methods of `TensorService` over a store.

Messages are handed over as bytes and parsed here, so that a bad one is answered with its own status. Work that takes
long or waits for a disk is done in threads; the event loop only passes messages on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import grpc
from grpc import aio

import dlpack_wire
from dlpack_wire.errors import DecodeError, LimitError
from dlpack_wire.message.names import MAX_NAME_BYTES, decode_value, encode_map, encode_name
from dlpack_wire.service.arrival import Arrival, Stage, check_distinct_names
from dlpack_wire.service.frames import FrameHead, frame_metadata, parse_frame
from dlpack_wire.service.messages import (
    INLINE_BYTES,
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_METADATA_BYTES,
    QUICK_BYTES,
    Chunk,
    Record,
    only_chunk,
    parse,
    parses_quickly,
)
from dlpack_wire.tensor import header as headers
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .auth import Authorizer, Caller
from .frame import Intake
from .frame_queue import FrameQueue
from .hub import STALL_S, Hub, overhead
from .metrics import Metrics
from .responses import PAGE_BYTES, fetch_response, get_messages, object_field, select, stat_response
from .status import Refusal, status_of
from .store import Commit, Serialized, Store, StoredObject, check_generation
from .unfinished import UnfinishedPut, UnfinishedPuts

SERVICE = pb.DESCRIPTOR.services_by_name["TensorService"]

CHUNK_BYTES = 2 << 20
"""Chunk size of a Get whose client has no wish."""

_QUICK_BYTES = 256 << 10
"""Work on fewer bytes than these is done in the event loop: handing it to a thread would take longer."""

_QUICK_RECORDS = 256

_UPLOAD_ID_BYTES = 16

_LONG = ("Publish", "Subscribe")
"""Calls that go on until either side ends them."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Context = aio.ServicerContext[Any, Any]


class Limits(NamedTuple):
    """What the service accepts.

    Attributes:
        object_bytes: Most payload bytes of one object; 0: whatever the store has room for.
        tensor_count: Most tensors of one object.
        header_bytes: Most bytes of all headers, names and metadata of one object.
        caller_calls: Most calls of one caller at the same time; Publish has as many for itself.
        caller_subscriptions: Most subscriptions of one caller.
    """

    object_bytes: int = 0
    tensor_count: int = 1 << 16
    header_bytes: int = 16 << 20
    caller_calls: int = 1000
    caller_subscriptions: int = 10_000


class TensorService:
    """The service. It owns neither the store nor the uploads nor the hub that it is given."""

    def __init__(
        self,
        store: Store,
        uploads: UnfinishedPuts,
        hub: Hub,
        authorizer: Authorizer,
        metrics: Metrics,
        instance_id: str,
        limits: Limits,
    ) -> None:
        self._store = store
        self._uploads = uploads
        self._hub = hub
        self._reading: set[asyncio.Task[Any]] = set()  # publishers that wait for their next message
        self._watches: dict[FrameQueue, _Watch] = {}
        self._authorizer = authorizer
        self._metrics = metrics
        self._instance_id = instance_id
        self._limits = limits
        self._calls: Counter[tuple[str, str]] = Counter()
        self._brief_calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._threads = ThreadPoolExecutor(thread_name_prefix="dlpack-wire")
        self._methods: dict[str, Callable[..., Any]] = {
            "GetServerInfo": self._get_server_info,
            "Store": self._store_object,
            "Fetch": self._fetch,
            "Put": self._put,
            "GetUploadStatus": self._get_upload_status,
            "Get": self._get,
            "Stat": self._stat,
            "List": self._list,
            "Delete": self._delete,
            "Publish": self._publish_frames,
            "Subscribe": self._subscribe,
        }

    def handlers(self) -> grpc.GenericRpcHandler:
        """The methods for a `grpc.aio` server. Those not offered are answered UNIMPLEMENTED by it."""
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, run in self._methods.items():
            method = SERVICE.methods_by_name[name]
            if method.client_streaming and method.server_streaming:
                made[name] = grpc.stream_stream_rpc_method_handler(self._streaming_both(name, run))
            elif method.client_streaming:
                made[name] = grpc.stream_unary_rpc_method_handler(self._streaming_in(name, run))
            elif method.server_streaming:
                made[name] = grpc.unary_stream_rpc_method_handler(self._streaming_out(name, run))
            else:
                made[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, run))
        return grpc.method_handlers_generic_handler(SERVICE.full_name, made)

    def drain(self) -> None:
        """End the calls that never end by themselves."""
        self._hub.close()
        for publisher in self._reading:
            publisher.cancel()

    async def quiet(self, seconds: float) -> None:
        """Wait until no other calls are running, so long at most."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)

    def close(self) -> None:
        """Wait for the threads."""
        self._threads.shutdown()

    # --- around every call --------------------------------------------------------------------------------------------

    def _unary(self, name: str, run: Callable[[Caller, bytes], Awaitable[bytes]]) -> Any:
        async def handle(request: bytes, context: _Context) -> bytes:
            return await self._answer(name, context, lambda caller: run(caller, request)) or b""

        return handle

    def _streaming_in(self, name: str, run: Callable[[Caller, _Context], Awaitable[bytes]]) -> Any:
        async def handle(_: object, context: _Context) -> bytes:
            return await self._answer(name, context, lambda caller: run(caller, context)) or b""

        return handle

    def _streaming_out(self, name: str, run: Callable[[Caller, bytes, _Context], Awaitable[None]]) -> Any:
        async def handle(request: bytes, context: _Context) -> None:
            await self._answer(name, context, lambda caller: run(caller, request, context))

        return handle

    def _streaming_both(self, name: str, run: Callable[[Caller, _Context], Awaitable[None]]) -> Any:
        async def handle(_: object, context: _Context) -> None:
            await self._answer(name, context, lambda caller: run(caller, context))

        return handle

    async def _answer(self, method: str, context: _Context, run: Callable[[Caller], Awaitable[_T]]) -> _T | None:
        """Let the caller in, run the call, and answer what it raises by the table."""
        owner = ""
        counted: tuple[str, str] | None = None
        code = "CANCELLED"
        begun = self._metrics.begin(method)
        brief = method not in _LONG
        if brief:
            self._brief_calls += 1
            self._quiet.clear()
        try:
            caller = self._authorizer.caller(context)
            owner = caller.owner
            key = owner, "" if brief else method  # long ones must not keep others out
            limit = self._limits.caller_subscriptions if method == "Subscribe" else self._limits.caller_calls
            if self._calls[key] >= limit:
                what = "calls" if brief else f"calls of {method}"
                raise Refusal("TOO_MANY_REQUESTS", f"{limit} {what} by {owner} run already")
            self._calls[key] += 1
            counted = key
            answer = await run(caller)
            code = "OK"
            return answer
        except aio.InternalError:
            # The caller is gone: gRPC says so to who reads or writes before it cancels the call.
            return None
        except Exception as error:
            status = status_of(error)
            code = status.code.name
            if status.reason == "INTERNAL":
                _log.exception("%s of %s failed", method, owner)
            else:
                _log.debug("%s of %s: %s: %s", method, owner, status.reason, status.text)
            # Not `abort`: it raises an error that the call keeps, and which by its traceback keeps the call, with all
            # that has come and was not read, until the garbage collector finds them.
            context.set_code(status.code)
            context.set_details(status.text)
            context.set_trailing_metadata(status.trailers)
            return None
        finally:
            self._metrics.end(method, begun, code)
            if brief:
                self._brief_calls -= 1
                if not self._brief_calls:
                    self._quiet.set()
            if counted is not None:
                self._calls[counted] -= 1
                if not self._calls[counted]:
                    del self._calls[counted]

    async def _run(self, quick: bool, work: Callable[..., _T], *args: Any) -> _T:
        """Do work, in a thread if it may take long. When cancelled, first wait for the thread to let go of it."""
        if quick and not self._store.on_disk:
            return work(*args)
        return await self._in_thread(work, *args)

    async def _in_thread(self, work: Callable[..., _T], *args: Any) -> _T:
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        finally:
            del future  # it has the error, whose traceback has this frame: a circle that would keep `args`

    # --- server -------------------------------------------------------------------------------------------------------

    async def _get_server_info(self, caller: Caller, raw: bytes) -> bytes:
        parse(pb.GetServerInfoRequest, raw)
        return pb.GetServerInfoResponse(
            server_version=dlpack_wire.__version__,
            instance_id=self._instance_id,
            max_message_bytes=MAX_MESSAGE_BYTES,
            inline_payload_bytes=INLINE_BYTES,
            max_chunk_bytes=MAX_CHUNK_BYTES,
            max_object_bytes=self._limits.object_bytes,
            max_tensor_count=self._limits.tensor_count,
            upload_retention_ns=self._uploads.retention_ns,
            methods=self._methods,
        ).SerializeToString()

    # --- in -----------------------------------------------------------------------------------------------------------

    async def _store_object(self, caller: Caller, raw: bytes) -> bytes:
        request, records, _ = await self._quick_or_not(raw, self._parse_store, 3)
        key = _upload_key(caller, request.upload_id)
        commit = self._committed(caller, request.name, key)
        if commit is None:
            payload_bytes = sum(len(record.payload) for record in records)
            if payload_bytes > INLINE_BYTES:
                raise Refusal("INVALID_REQUEST", f"{payload_bytes} payload bytes; over {INLINE_BYTES} use Put")
            upload = self._begin(caller, request, payload_bytes, key, sums_required=False)
            upload.arrival.begin(len(records))
            for record in records:
                headers.check_payload_size(record.header, len(record.payload))
                upload.arrival.record(Record(record.names, record.metadata, record.header, b""))
            commit = await self._run(payload_bytes < _QUICK_BYTES, self._store_all, upload, records)
            self._metrics.received_bytes += payload_bytes
        response = pb.StoreResponse(generation=commit.generation, already_committed=commit.repeated)
        return response.SerializeToString()

    def _parse_store(self, raw: bytes) -> tuple[pb.StoreRequest, list[Record], list[Chunk]]:
        return parse(pb.StoreRequest, raw, self._limits.tensor_count)

    def _store_all(self, upload: UnfinishedPut, records: Sequence[Record]) -> Commit:
        self._make_draft(upload)
        for index, record in enumerate(records):
            if record.payload:
                upload.take(Chunk(index, 0, None, record.payload))
        upload.arrival.end()
        return self._publish(upload)

    async def _put(self, caller: Caller, context: _Context) -> bytes:
        upload: UnfinishedPut | None = None
        writing: asyncio.Future[None] | None = None
        keep = True
        try:
            header_bytes = 0
            while (raw := await context.read()) is not aio.EOF:
                request, records, chunks = await self._quick_or_not(raw, self._parse_put)
                chunk = only_chunk(chunks)
                if request.HasField("start"):
                    if upload is not None:
                        raise DecodeError("a second start")
                    key = _upload_key(caller, request.start.upload_id)
                    commit = self._committed(caller, request.start.name, key)
                    if commit is not None:
                        return _put_response(commit)
                    if request.start.discard and key is not None:
                        self._uploads.discard(key)
                        raise Refusal("UPLOAD_INCOMPLETE", "discarded, as asked")
                    upload = self._resume(caller, key) if request.start.resume else self._start(caller, request, key)
                if upload is None:
                    raise DecodeError("the first message has no start")
                header_bytes += len(raw) - (len(chunk.data) if chunk is not None else 0)
                if header_bytes > self._limits.header_bytes and upload.draft is None:
                    raise Refusal("OBJECT_TOO_LARGE", f"headers of over {self._limits.header_bytes} bytes")
                for record in records:
                    upload.arrival.record(record)
                if upload.draft is None and upload.arrival.stage is not Stage.RECORDS:
                    await self._run(len(upload.arrival.records) < _QUICK_RECORDS, self._make_draft, upload)
                if writing is not None:
                    await writing
                    writing = None
                if chunk is not None:
                    self._metrics.received_bytes += len(chunk.data)
                    # The next message is read while this chunk is being hashed and written.
                    if len(chunk.data) < _QUICK_BYTES and not self._store.on_disk:
                        upload.take(chunk)
                    else:
                        writing = asyncio.ensure_future(self._run(False, upload.take, chunk))
                if request.finish:
                    if writing is not None:
                        await writing
                    upload.arrival.end()
                    keep = False
                    commit = await self._run(upload.arrival.payload_bytes < _QUICK_BYTES, self._publish, upload)
                    return _put_response(commit)
            if upload is None:
                raise DecodeError("the stream ended without a start")
            if writing is not None:
                await writing
            raise Refusal("UPLOAD_INCOMPLETE", f"ended without `finish`, expecting {upload.arrival.stage.value}")
        except Exception as error:
            keep = isinstance(error, Refusal) and error.reason == "UPLOAD_INCOMPLETE"
            raise
        finally:
            try:
                if writing is not None:
                    await _settle(writing)
            finally:
                if upload is not None and keep:
                    self._uploads.pause(upload)
                elif upload is not None:
                    self._uploads.drop(upload)

    def _parse_put(self, raw: bytes) -> tuple[pb.PutRequest, list[Record], list[Chunk]]:
        return parse(pb.PutRequest, raw, self._limits.tensor_count)

    def _committed(self, caller: Caller, name: str, key: bytes | None) -> Commit | None:
        """What a put may know at once: that the caller may not, or that the same upload was done before."""
        if name:
            caller.require_write(name)
        generation = self._store.committed(key) if key is not None else None
        return Commit(generation, True) if generation is not None else None

    def _start(self, caller: Caller, request: pb.PutRequest, key: bytes | None) -> UnfinishedPut:
        start = request.start
        if start.record_count > self._limits.tensor_count:
            raise Refusal("OBJECT_TOO_LARGE", f"{start.record_count} tensors; at most {self._limits.tensor_count}")
        upload = self._begin(caller, start, start.payload_bytes, key, sums_required=True)
        upload.arrival.begin(start.record_count, start.payload_bytes)
        self._uploads.add(upload)
        return upload

    def _begin(
        self,
        caller: Caller,
        start: pb.PutStart | pb.StoreRequest,
        payload_bytes: int,
        key: bytes | None,
        sums_required: bool,
    ) -> UnfinishedPut:
        encode_name(start.name)
        caller.require_write(start.name)
        if_generation = start.if_generation if start.HasField("if_generation") else None
        if if_generation is not None:
            check_generation(start.name, if_generation, self._store.generation(start.name))
        if start.ByteSize() > MAX_METADATA_BYTES + MAX_NAME_BYTES + 64:
            raise DecodeError(f"over {MAX_METADATA_BYTES} bytes", field="metadata")
        serialized = Serialized(b"", b"")
        if start.metadata:
            metadata = {name: decode_value(name, value) for name, value in start.metadata.items()}
            shown, stored = (encode_map(number, metadata, MAX_METADATA_BYTES) for number in (6, 2))
            serialized = Serialized(shown, stored)
        limit = self._limits.object_bytes
        if limit and payload_bytes > limit:
            text = f"{payload_bytes} payload bytes; at most {limit} (--max-object-bytes) are allowed"
            raise Refusal("OBJECT_TOO_LARGE", text)
        return UnfinishedPut(key, caller.owner, start.name, if_generation, serialized, Arrival(sums_required))

    def _resume(self, caller: Caller, key: bytes | None) -> UnfinishedPut:
        if key is None:
            raise DecodeError("only an upload with an id can be resumed")
        upload = self._uploads.resume(key)
        try:
            caller.require_write(upload.name)
        except Refusal:
            self._uploads.pause(upload)
            raise
        return upload

    def _make_draft(self, upload: UnfinishedPut) -> None:
        records = upload.arrival.records
        check_distinct_names(records)
        draft = self._store.draft(records, upload.metadata)
        self._uploads.admit(upload, draft.backing.size)
        upload.draft = draft

    def _publish(self, upload: UnfinishedPut) -> Commit:
        assert upload.draft is not None
        return self._store.publish(upload.draft, upload.arrival.sums, upload.name, upload.if_generation, upload.key)

    async def _get_upload_status(self, caller: Caller, raw: bytes) -> bytes:
        request, _, _ = parse(pb.GetUploadStatusRequest, raw)
        key = _upload_key(caller, request.upload_id)
        if key is None:
            raise DecodeError(f"an upload id has {_UPLOAD_ID_BYTES} bytes", field="upload_id")
        response = pb.GetUploadStatusResponse()
        generation = self._store.committed(key)
        upload = self._uploads.find(key)
        if generation is not None:
            response.state, response.generation = pb.GetUploadStatusResponse.COMMITTED, generation
        elif upload is not None:
            arrival = upload.arrival
            response.state = pb.GetUploadStatusResponse.RECEIVING
            response.tensor_index, response.offset = arrival.tensor_index, arrival.offset
            response.running_xxh3_64 = arrival.running_sum
        return response.SerializeToString()

    # --- out ----------------------------------------------------------------------------------------------------------

    async def _fetch(self, caller: Caller, raw: bytes) -> bytes:
        request, _, _ = parse(pb.FetchRequest, raw)
        stored = await self._find(caller, request.name, None)
        records = select(stored, request.tensors)
        quick = min(stored.info.payload_bytes, INLINE_BYTES) < _QUICK_BYTES and len(records) < _QUICK_RECORDS
        response = await self._run(quick, fetch_response, stored, records)
        self._metrics.sent_bytes += len(response)
        return response

    async def _get(self, caller: Caller, raw: bytes, context: _Context) -> None:
        request, _, _ = parse(pb.GetRequest, raw)
        stored = await self._find(caller, request.name, request.generation if request.HasField("generation") else None)
        records = select(stored, request.tensors)
        size = min(request.max_chunk_bytes or CHUNK_BYTES, MAX_CHUNK_BYTES)
        messages = get_messages(stored, records, request, size)
        quick = stored.info.payload_bytes < _QUICK_BYTES and len(records) < _QUICK_RECORDS
        message = await self._run(quick, next, messages, None)
        while message is not None:
            # The next message is made while this one is being sent.
            following = asyncio.ensure_future(self._run(quick, next, messages, None))
            try:
                await context.write(message)
                self._metrics.sent_bytes += len(message)
            finally:
                await _settle(following)
            message = following.result()

    async def _stat(self, caller: Caller, raw: bytes) -> bytes:
        request, _, _ = parse(pb.StatRequest, raw)
        stored = await self._find(caller, request.name, None)
        return await self._run(len(stored.records) < _QUICK_RECORDS, stat_response, stored, request)

    async def _list(self, caller: Caller, raw: bytes) -> bytes:
        request, _, _ = parse(pb.ListRequest, raw)
        if request.page_size > 1000:
            raise DecodeError(f"{request.page_size}; at most 1000 are allowed", field="page_size")
        if request.page_token and not request.page_token.startswith(request.prefix):
            raise DecodeError("not one that this list gave out", field="page_token")
        left = request.page_size or 100
        after, room = request.page_token, PAGE_BYTES
        parts: list[bytes] = []
        while True:
            found = await self._run(True, self._store.list, request.prefix, after, 100)
            if not found:
                return b"".join(parts)
            for info in found:
                if caller.may_read(info.name):
                    entry = object_field(1, info)
                    room -= len(entry)
                    if not left or (room < 0 and parts):
                        return b"".join(parts) + pb.ListResponse(next_page_token=after).SerializeToString()
                    parts.append(entry)
                    left -= 1
                after = info.name
            await asyncio.sleep(0)

    async def _delete(self, caller: Caller, raw: bytes) -> bytes:
        request, _, _ = parse(pb.DeleteRequest, raw)
        encode_name(request.name)
        caller.require_write(request.name)
        if_generation = request.if_generation if request.HasField("if_generation") else None
        generation = await self._run(True, self._store.delete, request.name, if_generation)
        return pb.DeleteResponse(generation=generation).SerializeToString()

    # --- topics -------------------------------------------------------------------------------------------------------

    async def _publish_frames(self, caller: Caller, context: _Context) -> None:
        watch, owner = _Watch(self._authorizer, caller, context), caller.owner
        intake: Intake | None = None
        try:
            while True:
                # A publisher may be silent between its frames, not within one.
                raw = await self._read_frame(context, STALL_S if intake is not None else None)
                if raw is aio.EOF:
                    break
                head, metadata, chunk = await self._quick_or_not(raw, _parse_publish)
                if head is not None:
                    if intake is not None:
                        raise DecodeError("a frame came before the one before it was whole", field="frame")
                    watch.check().require_write(head.topic)
                    intake = self._hub.intake(head, metadata)
                    await self._hub.reserve(intake, overhead(head.topic, metadata), owner)
                if chunk is not None:
                    if intake is None:
                        raise DecodeError("a chunk came without a frame", field="chunk")
                    await self._hub.reserve(intake, len(chunk.data), owner)
                    if len(chunk.data) < _QUICK_BYTES:
                        intake.take(chunk)
                    else:
                        await self._in_thread(intake.take, chunk)
                    self._metrics.received_bytes += len(chunk.data)
                if intake is not None and intake.complete:
                    topic = intake.topic
                    sequence, count = self._hub.publish(intake, owner)
                    intake = None
                    response = pb.PublishResponse(topic=topic, last_sequence=sequence, subscriber_count=count)
                    await context.write(response.SerializeToString())
            if intake is not None:
                raise DecodeError("the stream ended inside a frame", field="finish")
        except asyncio.TimeoutError:
            raise DecodeError(f"nothing more of a frame came for {STALL_S:g} s", field="finish") from None
        finally:
            if intake is not None:
                self._hub.drop(intake, owner)

    async def _read_frame(self, context: _Context, seconds: float | None) -> Any:
        """The next message of a publisher, which is waited for until `drain`."""
        self._hub.require_open()
        task = asyncio.current_task()
        assert task is not None
        # Only here may it be cancelled: gRPC cannot answer a call while a message of ours is being sent.
        self._reading.add(task)
        try:
            return await (context.read() if seconds is None else asyncio.wait_for(context.read(), seconds))
        except asyncio.CancelledError:
            self._hub.require_open()  # because the server ends, not because the caller has gone
            raise
        finally:
            self._reading.discard(task)

    async def _quick_or_not(self, raw: bytes, parse: Callable[[bytes], _T], depth: int = 2) -> _T:
        """Parse a message, in a thread if it has much but a payload; see `parses_quickly`."""
        if parses_quickly(raw, depth):
            return parse(raw)
        return await self._in_thread(parse, raw)

    async def _subscribe(self, caller: Caller, raw: bytes, context: _Context) -> None:
        if len(raw) > QUICK_BYTES:  # it is kept until the end of the call
            text = f"{len(raw)} bytes; at most {QUICK_BYTES} are allowed"
            raise LimitError(text, declared=len(raw), limit=QUICK_BYTES, field="patterns")
        request, _, _ = parse(pb.SubscribeRequest, raw)
        task = asyncio.current_task()
        assert task is not None
        subscription = self._hub.subscribe(request, caller, task.cancel)
        self._watches[subscription] = _Watch(self._authorizer, caller, context)
        del request
        try:
            count, size = subscription.bounds
            start = pb.SubscribeStart(instance_id=self._instance_id, queue_frame_count=count, queue_bytes=size)
            await context.write(pb.SubscribeResponse(start=start).SerializeToString())
            while True:
                frame, dropped_count = await subscription.next()
                if frame is None:
                    await context.write(pb.SubscribeResponse(caught_up=True).SerializeToString())
                    continue
                for message in frame.messages(dropped_count):
                    with subscription.writing():
                        await context.write(message)
                    self._metrics.sent_bytes += len(message)
                del frame, message  # not kept while waiting for the next one
        finally:
            del self._watches[subscription]
            self._hub.unsubscribe(subscription)

    def sweep(self) -> None:
        """End subscriptions that nobody reads, and those whose callers may not have them any more."""
        self._hub.end_stalled(STALL_S)
        self._authorizer.refresh()
        for subscription, watch in list(self._watches.items()):
            try:
                watch.check()
            except Refusal as error:
                self._hub.end(subscription, error.reason, str(error))

    async def _find(self, caller: Caller, name: str, generation: int | None) -> StoredObject:
        encode_name(name)
        caller.require_read(name)
        return await self._run(True, self._store.get, name, generation)


class _Watch:
    """Sees to it that a call that goes on for long ends when its caller's permissions do.

    Attributes:
        caller: Who made it.
    """

    def __init__(self, authorizer: Authorizer, caller: Caller, context: _Context) -> None:
        self.caller = caller
        self._authorizer = authorizer
        self._context = context
        self._version = authorizer.version

    def check(self) -> Caller:
        """The caller, who still is who it was.

        Raises:
            Refusal: UNAUTHENTICATED.
        """
        if self._authorizer.version != self._version:
            self._version = self._authorizer.version
            if self._authorizer.still(self._context) != self.caller:
                raise Refusal("UNAUTHENTICATED", "the permissions of this token have changed: call again")
        return self.caller


def _parse_publish(raw: bytes) -> tuple[FrameHead | None, bytes, Chunk | None]:
    """A message of Publish: the frame, its metadata serialized, and the chunk."""
    _, head, chunk = parse_frame(pb.PublishRequest, raw)
    if head is None:
        return None, b"", chunk
    encode_name(head.topic)
    return head._replace(metadata={}), frame_metadata(head.metadata), chunk


async def _settle(task: asyncio.Future[Any]) -> None:
    """Wait for the end of a task, whatever came of it."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio does not report it as forgotten


def _upload_key(caller: Caller, upload_id: bytes) -> bytes | None:
    """The key of one caller's upload: ids of different callers are different."""
    if not upload_id:
        return None
    if len(upload_id) != _UPLOAD_ID_BYTES:
        raise DecodeError(f"{len(upload_id)} bytes, not {_UPLOAD_ID_BYTES}", field="upload_id")
    return upload_id + caller.owner.encode()


def _put_response(commit: Commit) -> bytes:
    return pb.PutResponse(generation=commit.generation, already_committed=commit.repeated).SerializeToString()
