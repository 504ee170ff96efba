"""Objects coming in: Store, Put, and how far an upload has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from dlpack_wire.errors import DecodeError
from dlpack_wire.message.names import MAX_NAME_BYTES, decode_value, encode_map, encode_name
from dlpack_wire.service.arrival import Arrival, Stage, check_distinct_names
from dlpack_wire.service.messages import (
    INLINE_BYTES,
    MAX_METADATA_BYTES,
    Chunk,
    Record,
    only_chunk,
    parse,
    parses_quickly,
)
from dlpack_wire.tensor import header as headers
from dlpack_wire.tensor.checksum import SUM_BYTES, block_sums
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .auth import Caller
from .backing import Charge
from .calls import SHORT_STALL_S, STALL_S, Call, CallerGoneError, Calls, finished
from .metrics import Metrics
from .status import Refusal, status_of
from .store import OBJECT_KEY, Commit, Serialized, Store, check_generation
from .unfinished import UnfinishedPut, UnfinishedPuts

QUICK_COPY_BYTES = 256 << 10
"""Work on fewer payload bytes than these is done in the event loop: hashing and copying them takes less than handing
them to a thread and back, about 0.1 ms."""

QUICK_RECORDS = 256
"""The same for headers: making one ready takes about 10 us."""

_TRIES, _FULL_PAUSE_S = 10, 0.02
"""How often a put without space is tried again once stalled calls were ended, and the pause before each try in seconds:
ended calls give their memory back within moments."""

_UPLOAD_ID_BYTES = 16

_RESUMABLE = {"CHUNK_OUT_OF_ORDER", "CHECKSUM_MISMATCH", "UPLOAD_INCOMPLETE"}
"""Errors after which an upload keeps what it holds: what came before the fault is good."""

_T = TypeVar("_T")


class ObjectLimits(NamedTuple):
    """Sizes of objects that a put may have.

    Attributes:
        payload_bytes: Maximum payload bytes of one object; 0: whatever fits the store.
        tensor_count: Maximum number of tensors of one object.
        header_bytes: Maximum bytes of all headers, names and metadata of one object.
    """

    payload_bytes: int = 0
    tensor_count: int = 1 << 16
    header_bytes: int = 16 << 20


class Puts:
    """Receives objects for a store."""

    def __init__(
        self, store: Store, unfinished: UnfinishedPuts, calls: Calls, metrics: Metrics, limits: ObjectLimits
    ) -> None:
        """Use a store and its unfinished puts, of which this object owns neither."""
        self._store = store
        self._unfinished = unfinished
        self._calls = calls
        self._metrics = metrics
        self._limits = limits

    async def store(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        """Store an object that came in one message."""
        request, records, _ = await self._calls.parse(parses_quickly(raw, 3), self._parse_store, raw)
        key = _upload_key(caller, request.upload_id)
        commit = self._committed(caller, request.name, key)
        if commit is None:
            payload_bytes = sum(len(record.payload) for record in records)
            if payload_bytes > INLINE_BYTES:
                raise Refusal("INVALID_REQUEST", f"{payload_bytes} payload bytes; over {INLINE_BYTES} use Put")
            are_few = len(records) < QUICK_RECORDS
            upload = self._begin(caller, request, payload_bytes, key)
            self._unfinished.hold(upload)
            try:
                upload.arrival.begin(len(records))
                await self._calls.parse(are_few, _describe_whole, upload, records)
                is_quick = are_few and payload_bytes < QUICK_COPY_BYTES
                commit = await self._with_space(is_quick, self._store_all, upload, records)
            finally:
                self._unfinished.drop(upload)
            self._metrics.received_bytes += payload_bytes
        response = pb.StoreResponse(generation=commit.generation, already_committed=commit.repeated)
        return response.SerializeToString()

    def _parse_store(self, raw: bytes) -> tuple[pb.StoreRequest, list[Record], list[Chunk]]:
        return parse(pb.StoreRequest, raw, self._limits.tensor_count)

    def _store_all(self, upload: UnfinishedPut, records: Sequence[Record]) -> Commit:
        self._make_draft(upload)
        for index, record in enumerate(records):
            if record.payload:
                # At most one block, whose sum is that of the payload.
                stated = record.header.checksum
                sums = block_sums(record.payload) if stated is None else stated.to_bytes(SUM_BYTES, "little")
                upload.take(Chunk(index, 0, sums, record.payload))
        upload.arrival.end()
        return self._publish(upload)

    async def put(self, caller: Caller, call: Call, _: bytes) -> bytes:
        """Receive an object as a stream of headers and chunks."""
        upload: UnfinishedPut | None = None
        writing: asyncio.Future[None] | None = None
        keep = True
        watch = self._calls.watch(caller, call)
        try:
            header_bytes = 0
            while (raw := await self._read(call, upload)) is not None:
                request, records, chunks = await self._calls.parse(parses_quickly(raw, 2), self._parse_put, raw)
                chunk = only_chunk(chunks)
                if request.HasField("start"):
                    if upload is not None:
                        raise DecodeError("a second start")
                    key = _upload_key(caller, request.start.upload_id)
                    commit = self._committed(caller, request.start.name, key)
                    if commit is not None:
                        return _put_response(commit)
                    if request.start.resume:
                        _check_resume(request.start)
                        upload = self._resume(caller, request.start.name, key)
                    else:
                        upload = self._start(caller, request, key)
                if upload is None:
                    raise DecodeError("the first message has no start")
                header_bytes += len(raw) - (len(chunk.data) if chunk is not None else 0)
                if header_bytes > self._limits.header_bytes and upload.draft is None:
                    raise Refusal("OBJECT_TOO_LARGE", f"headers of over {self._limits.header_bytes} bytes")
                await self._calls.parse(len(records) < QUICK_RECORDS, upload.describe_all, records)
                if upload.draft is None and upload.arrival.stage is not Stage.RECORDS:
                    await self._with_space(len(upload.arrival.records) < QUICK_RECORDS, self._make_draft, upload)
                if writing is not None:
                    await writing
                    writing = None
                if chunk is not None:
                    self._metrics.received_bytes += len(chunk.data)
                    # The next message is read while this chunk is being hashed and written.
                    if len(chunk.data) < QUICK_COPY_BYTES and not self._store.on_disk:
                        upload.take(chunk)
                    else:
                        writing = asyncio.ensure_future(self._calls.run(False, upload.take, chunk))
                if request.finish:
                    if writing is not None:
                        await writing
                    watch.check()
                    upload.arrival.end()
                    if upload.unwanted:
                        raise _discarded()
                    upload.publishing = True  # from here on it cannot be discarded any more
                    keep = False
                    arrival = upload.arrival
                    is_quick = len(arrival.records) < QUICK_RECORDS and arrival.payload_bytes < QUICK_COPY_BYTES
                    commit = await self._calls.run(is_quick, self._publish, upload)
                    return _put_response(commit)
            if upload is None:
                raise DecodeError("the stream ended without a start")
            if writing is not None:
                await writing
            raise Refusal("UPLOAD_INCOMPLETE", f"ended without `finish`, expecting {upload.arrival.stage.value}")
        except Exception as error:
            keep = isinstance(error, CallerGoneError) or status_of(error).reason in _RESUMABLE
            raise
        finally:
            try:
                if writing is not None:
                    await finished(writing)
            finally:
                if upload is not None and keep:
                    self._unfinished.pause(upload)
                elif upload is not None:
                    self._unfinished.drop(upload)

    async def _with_space(self, quick: bool, work: Callable[..., _T], *args: Any) -> _T:
        """Do work that begins with a draft. If there is no space, first end calls that hold objects and do not move."""
        tries = 0
        while True:
            try:
                return await self._calls.run(quick, work, *args)
            except Refusal as refusal:
                if refusal.reason != "STORE_FULL" or (not tries and not self._calls.end_stalled(SHORT_STALL_S)):
                    raise
                if tries == _TRIES:
                    raise
            tries += 1
            await asyncio.sleep(_FULL_PAUSE_S)  # what has ended gives its memory back in a moment

    async def _read(self, call: Call, upload: UnfinishedPut | None) -> bytes | None:
        """Wait for the next message, at most until the upload is discarded."""
        if upload is None:
            return await self._calls.request(call)
        upload.reader = asyncio.current_task()
        try:
            message = await self._calls.read(call, STALL_S)
        except asyncio.CancelledError:
            if not upload.unwanted:
                raise
        finally:
            upload.reader = None
        if upload.unwanted:
            raise _discarded()
        return message

    async def discard(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        """Drop an upload."""
        request, _, _ = parse(pb.DiscardUploadRequest, raw)
        self._unfinished.discard(_required_key(caller, request.upload_id))
        return b""

    def _parse_put(self, raw: bytes) -> tuple[pb.PutRequest, list[Record], list[Chunk]]:
        return parse(pb.PutRequest, raw, self._limits.tensor_count)

    def _committed(self, caller: Caller, name: str, key: bytes | None) -> Commit | None:
        """Check write permission; return the commit of an upload id that was committed before, or None."""
        if name:
            caller.require_write(name)
        committed = self._store.committed(key) if key is not None else None
        if committed is None:
            return None
        _check_name(name or committed.name, committed.name)
        return Commit(committed.generation, True)

    def _start(self, caller: Caller, request: pb.PutRequest, key: bytes | None) -> UnfinishedPut:
        start = request.start
        if start.record_count > self._limits.tensor_count:
            raise Refusal("OBJECT_TOO_LARGE", f"{start.record_count} tensors; at most {self._limits.tensor_count}")
        upload = self._begin(caller, start, start.payload_bytes, key)
        upload.arrival.begin(start.record_count, start.payload_bytes)
        self._unfinished.add(upload)
        return upload

    def _begin(
        self, caller: Caller, start: pb.PutStart | pb.StoreRequest, payload_bytes: int, key: bytes | None
    ) -> UnfinishedPut:
        encode_name(start.name)
        caller.require_write(start.name)
        if_generation = start.if_generation if start.HasField("if_generation") else None
        if if_generation is not None:
            check_generation(start.name, if_generation, self._store.generation(start.name))
        if start.ByteSize() > MAX_METADATA_BYTES + MAX_NAME_BYTES + 64:
            raise DecodeError(f"over {MAX_METADATA_BYTES} bytes", field="metadata")
        if start.metadata:
            metadata = {name: decode_value(value) for name, value in start.metadata.items()}
            shown = encode_map(6, metadata, MAX_METADATA_BYTES)
        else:
            metadata, shown = {}, b""
        named = {**metadata, OBJECT_KEY: start.name}
        serialized = Serialized(shown, encode_map(2, named, MAX_METADATA_BYTES + MAX_NAME_BYTES + 64))
        limit = self._limits.payload_bytes
        if limit and payload_bytes > limit:
            text = f"{payload_bytes} payload bytes; at most {limit} (--max-object-bytes) are allowed"
            raise Refusal("OBJECT_TOO_LARGE", text)
        held = Charge(self._store.memory, 0, 0)
        return UnfinishedPut(key, caller.owner, start.name, if_generation, serialized, Arrival(), held)

    def _resume(self, caller: Caller, name: str, key: bytes | None) -> UnfinishedPut:
        if key is None:
            raise DecodeError("only an upload with an id can be resumed")
        upload = self._unfinished.resume(key)
        try:
            caller.require_write(upload.name)
            _check_name(name or upload.name, upload.name)
        except Refusal:
            self._unfinished.pause(upload)
            raise
        return upload

    def _make_draft(self, upload: UnfinishedPut) -> None:
        records = upload.arrival.records
        check_distinct_names(records)
        draft = self._store.draft(records, upload.metadata)
        self._unfinished.admit(upload, draft.backing.size)
        upload.draft = draft

    def _publish(self, upload: UnfinishedPut) -> Commit:
        assert upload.draft is not None
        return self._store.publish(upload.draft, upload.arrival.sums, upload.name, upload.if_generation, upload.key)

    async def status(self, caller: Caller, call: Call, raw: bytes) -> bytes:
        """Tell how far an upload has come."""
        request, _, _ = parse(pb.GetUploadStatusRequest, raw)
        key = _required_key(caller, request.upload_id)
        response = pb.GetUploadStatusResponse()
        committed = self._store.committed(key)
        upload = self._unfinished.find(key)
        if committed is not None:
            response.state, response.generation = pb.GetUploadStatusResponse.COMMITTED, committed.generation
        elif upload is not None:
            arrival = upload.arrival
            response.state = pb.GetUploadStatusResponse.RECEIVING
            response.tensor_index, response.offset = arrival.tensor_index, arrival.offset
            response.held_sum = arrival.held_sum
        return response.SerializeToString()


def _describe_whole(upload: UnfinishedPut, records: Sequence[Record]) -> None:
    """Take the descriptions of tensors that have their payloads beside them."""
    for record in records:
        try:
            headers.check_payload_size(record.header, len(record.payload))
        except DecodeError as error:
            error.at(tensor=record.names[0])
            raise
        upload.describe(record._replace(payload=b""))


def _upload_key(caller: Caller, upload_id: bytes) -> bytes | None:
    """Return the key of one caller's upload: ids of different callers are different."""
    if not upload_id:
        return None
    if len(upload_id) != _UPLOAD_ID_BYTES:
        raise DecodeError(f"{len(upload_id)} bytes, not {_UPLOAD_ID_BYTES}", field="upload_id")
    return upload_id + caller.owner.encode()


def _required_key(caller: Caller, upload_id: bytes) -> bytes:
    key = _upload_key(caller, upload_id)
    if key is None:
        raise DecodeError(f"an upload id has {_UPLOAD_ID_BYTES} bytes", field="upload_id")
    return key


def _check_resume(start: pb.PutStart) -> None:
    """Refuse what a resumed upload would not heed: it keeps what its first start said."""
    given = sorted({field.name for field, _ in start.ListFields()} - {"name", "upload_id", "resume"})
    if given:
        raise DecodeError(f"{', '.join(given)}: stated once, when the upload was begun", field="resume")


def _discarded() -> Refusal:
    return Refusal("UPLOAD_INCOMPLETE", "the upload was discarded")


def _check_name(name: str, own: str) -> None:
    if name != own:
        raise Refusal("INVALID_REQUEST", f"this upload is of {own!r}, not of {name!r}")


def _put_response(commit: Commit) -> bytes:
    return pb.PutResponse(generation=commit.generation, already_committed=commit.repeated).SerializeToString()
