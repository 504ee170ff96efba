"""Client operations as scripts without I/O: each yields the calls to make and is sent the responses; see `script`."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ..errors import RemoteError, UnsupportedTensorError
from ..message.names import Metadata, Value, decode_value, encode_map, encode_name
from ..tensor.capsule import Borrowed, borrow_writable
from ..tensor.header import Header
from ..v1 import tensor_service_pb2 as pb
from .download import Download
from .messages import MAX_CHUNK_BYTES, MAX_METADATA_BYTES, MAX_SERVICE_MESSAGE_BYTES, parse
from .retry import RECONNECT_S, Backoff
from .script import Next, Notify, Open, Script, SendAll, Unary
from .upload import Outgoing, Progress, Upload

SENT_CHUNK_BYTES = 1 << 20
"""Payload bytes of a chunk, as long as the server takes that many. It is hashed, copied and sent while it is in the
cache; twice as many took a sixth longer for a large put."""


class ServerInfo(NamedTuple):
    """A server as it describes itself.

    Attributes:
        version: Of the server program.
        instance_id: 32 hex digits, new at each start of the server.
        inline_payload_bytes: Maximum payload bytes of an object that travels in one message.
        max_chunk_bytes: Largest chunk to send: the smaller of its limit and ours.
        max_object_bytes: Maximum payload bytes of an object; 0: no limit but the store's.
        max_tensor_count: Maximum number of tensors of an object.
        upload_retention_ns: How long it keeps an interrupted put.
        methods: Names of its methods.
        features: Parts of the contract that it knows beyond the first release's.
        max_frame_bytes: Maximum payload bytes of a frame.
    """

    version: str
    instance_id: str
    inline_payload_bytes: int
    max_chunk_bytes: int
    max_object_bytes: int
    max_tensor_count: int
    upload_retention_ns: int
    methods: tuple[str, ...]
    features: tuple[str, ...]
    max_frame_bytes: int


class ObjectInfo(NamedTuple):
    """A stored object without its payloads.

    Attributes:
        name: Its name.
        generation: Version of the name's value: grows with every put, never repeats.
        tensor_count: Number of tensors.
        payload_bytes: Sum of the sizes of all payloads.
        created_time_ns: When it was put, nanoseconds since 1970-01-01 UTC by the server's clock.
        metadata: Its user metadata.
        headers: Headers of the tensors by every name they have; empty in a list.
    """

    name: str
    generation: int
    tensor_count: int
    payload_bytes: int
    created_time_ns: int
    metadata: dict[str, Value]
    headers: dict[str, Header]


class Operations:
    """The operations on the objects of one server. Remembers what the server said of itself.

    Attributes:
        reconnect_s: Seconds that a lost server is waited for; None: for ever.
    """

    def __init__(self, reconnect_s: float | None = RECONNECT_S) -> None:
        """Know nothing of the server yet.

        Args:
            reconnect_s: Seconds that a lost server is waited for; None: for ever.
        """
        self.reconnect_s = reconnect_s
        self._info: ServerInfo | None = None

    def server_info(self) -> Script[ServerInfo]:
        """Ask the server for its version, limits and identity.

        Not tried again: an address at which nobody listens is an error at once.
        """
        response, _, _ = parse(pb.GetServerInfoResponse, (yield Unary("GetServerInfo", b"")))
        self._info = ServerInfo(
            response.server_version,
            response.instance_id,
            response.inline_payload_bytes,
            min(response.max_chunk_bytes, MAX_CHUNK_BYTES),
            response.max_object_bytes,
            response.max_tensor_count,
            response.upload_retention_ns,
            tuple(response.methods),
            tuple(response.features),
            response.max_frame_bytes,
        )
        return self._info

    def awaited(self) -> Script[None]:
        """Wait for the server, for at most as long as a lost connection would be retried."""
        backoff = Backoff(self.reconnect_s)
        while True:
            try:
                yield from self.server_info()
                return
            except RemoteError as error:
                pause = backoff.pause(error)
            yield pause

    def _known_info(self) -> Script[ServerInfo]:
        return self._info if self._info is not None else (yield from self.server_info())

    def _unary(self, method: str, request: bytes) -> Script[bytes]:
        """Make a call that is safe to repeat, and repeat it after a lost connection."""
        if self._info is None:
            yield from self.server_info()
        backoff: Backoff | None = None
        while True:
            try:
                response: bytes = yield Unary(method, request)
                return response
            except RemoteError as error:
                backoff = backoff or Backoff(self.reconnect_s)
                pause = backoff.pause(error)
            yield pause

    # --- put ----------------------------------------------------------------------------------------------------------

    def put(
        self, name: str, x: Any, metadata: Metadata | None, if_generation: int | None, progress: Progress | None
    ) -> Script[int]:
        """Put one tensor or a mapping of tensors, and return the generation that it got."""
        encode_name(name)
        with ExitStack() as held:
            tensors = Outgoing(x, held)
            info = yield from self._known_info()
            serialized = encode_map(4, metadata, MAX_METADATA_BYTES)
            if tensors.payload_bytes <= info.inline_payload_bytes:
                store = pb.StoreRequest(name=name, upload_id=secrets.token_bytes(16), if_generation=if_generation)
                request = b"".join([store.SerializeToString(), serialized, *tensors.inline_parts()])
                if len(request) <= MAX_SERVICE_MESSAGE_BYTES:
                    raw = yield from self._unary("Store", request)
                    if progress is not None:
                        progress(tensors.payload_bytes, tensors.payload_bytes)
                    return parse(pb.StoreResponse, raw)[0].generation
            start = pb.PutStart(
                name=name,
                upload_id=secrets.token_bytes(16),
                if_generation=if_generation,
                record_count=len(tensors),
                payload_bytes=tensors.payload_bytes,
            )
            upload = Upload(start, serialized, tensors, min(info.max_chunk_bytes, SENT_CHUNK_BYTES), progress)
            try:
                return (yield from self._stream(upload))
            except BaseException:
                yield Notify("DiscardUpload", upload.discard_request())
                raise

    def _stream(self, upload: Upload) -> Script[int]:
        backoff = Backoff(self.reconnect_s)
        requests = upload.requests()
        while True:
            try:
                raw = yield SendAll("Put", requests)
                return parse(pb.PutResponse, raw)[0].generation
            except RemoteError as error:
                if upload.failure is not None:
                    raise upload.take_failure() from None
                pause = backoff.pause(error)
            yield pause
            raw = yield from self._unary("GetUploadStatus", upload.status_request())
            status, _, _ = parse(pb.GetUploadStatusResponse, raw)
            if status.state == pb.GetUploadStatusResponse.COMMITTED:
                return status.generation
            if status.state == pb.GetUploadStatusResponse.RECEIVING:
                if upload.has_moved(status):
                    backoff.progress()
                requests = upload.remaining(status)
            else:
                requests = upload.requests()

    # --- get ----------------------------------------------------------------------------------------------------------

    def get(
        self,
        name: str,
        tensors: Sequence[str],
        generation: int | None,
        index: Any,
        out: Any,
        progress: Progress | None,
    ) -> Script[Any]:
        """Get what was put, or parts of it."""
        encode_name(name)
        if isinstance(tensors, str):
            raise TypeError(f"tensors= takes a list of names: [{tensors!r}]")
        yield from self._known_info()
        once = dict.fromkeys(tensors)  # a tensor that is asked for twice comes once
        request = pb.GetRequest(name=name, tensors=once, generation=generation)
        axes = (yield from self._select(request, index)) if index is not None else None
        with ExitStack() as held:
            taken = held.enter_context(_memory_of(out)) if out is not None else None
            fetch = generation is None and index is None
            restarts = 0
            while True:
                download = Download(request, taken, progress)
                try:
                    yield from self._receive(download, fetch)
                    break
                except RemoteError as error:
                    if index is not None and error.code == "OUT_OF_RANGE":
                        raise IndexError(str(error)) from error
                    # Replaced between two calls: one stream reads one object to its end.
                    replaced = generation is None and error.reason == "GENERATION_MISMATCH" and restarts < 5
                    if not replaced and not (error.reason == "HEADERS_TOO_LARGE" and fetch):
                        raise
                    restarts += 1 if replaced else 0
                    fetch = False
            if taken is not None:
                download.fill()
                return out
        found = download.tensors()
        records = download.arrival.records
        if len(found) == 1 and (index is not None or not records[0].names[0]):
            return found[0] if axes is None else found[0][axes]
        if request.tensors:
            return dict(zip(request.tensors, found, strict=True))
        return {name: tensor for record, tensor in zip(records, found, strict=True) for name in record.names}

    def _receive(self, download: Download, fetch: bool) -> Script[None]:
        if fetch:
            # Of this request only the fields are set that a FetchRequest has too, with the same numbers.
            download.take_fetched((yield from self._unary("Fetch", download.request.SerializeToString())))
        backoff = Backoff(self.reconnect_s)
        while not download.complete:
            try:
                yield Open("Get", download.next_request())
                while (raw := (yield Next())) is not None:
                    download.take(raw)
                    backoff.progress()
                download.arrival.end()
                return
            except RemoteError as error:
                pause = backoff.pause(error)
            yield pause

    def _select(self, request: pb.GetRequest, index: Any) -> Script[tuple[Any, ...] | None]:
        """Add an index's selections to a request; return the keys that are left to be applied to the result."""
        keys = index if isinstance(index, tuple) else (index,)
        if any(key is None or key is Ellipsis for key in keys):
            info = yield from self.stat(request.name)
            names = request.tensors or list(info.headers)
            if len(names) != 1 or names[0] not in info.headers:
                raise IndexError("an index is for one tensor: name it with tensors=[...]")
            keys = _spelled_out(keys, len(info.headers[names[0]].shape))
        for key in keys:
            if key is not None:
                request.selections.append(_selection(key))
        if None not in keys:
            return None
        return tuple(None if key is None else slice(None) for key in keys if key is None or isinstance(key, slice))

    # --- the rest -----------------------------------------------------------------------------------------------------

    def stat(self, name: str) -> Script[ObjectInfo]:
        """Describe an object."""
        encode_name(name)
        found: dict[str, Header] = {}
        first, generation = 0, None
        while True:
            request = pb.StatRequest(name=name, first_record=first)
            raw = yield from self._unary("Stat", request.SerializeToString())
            response, records, _ = parse(pb.StatResponse, raw)
            if generation not in (None, response.object.generation):
                found, first, generation = {}, 0, None  # replaced between two pages
                continue
            generation = response.object.generation
            for record in records:
                found.update(dict.fromkeys(record.names, record.header))
            first = response.next_record
            if not first:
                return _object_info(response.object, found)

    def list_page(self, prefix: str, token: str) -> Script[tuple[list[ObjectInfo], str]]:
        """Return a page of the list of objects, and the token of the next one."""
        request = pb.ListRequest(prefix=prefix, page_token=token, page_size=1000)
        response, _, _ = parse(pb.ListResponse, (yield from self._unary("List", request.SerializeToString())))
        return [_object_info(message, {}) for message in response.objects], response.next_page_token

    def delete(self, name: str, if_generation: int | None) -> Script[int]:
        """Remove an object. Not repeated: if a second try found none, it would be unknown who removed it."""
        encode_name(name)
        yield from self._known_info()
        request = pb.DeleteRequest(name=name, if_generation=if_generation)
        return parse(pb.DeleteResponse, (yield Unary("Delete", request.SerializeToString())))[0].generation


def _object_info(message: pb.ObjectInfo, found: dict[str, Header]) -> ObjectInfo:
    return ObjectInfo(
        message.name,
        message.generation,
        message.tensor_count,
        message.payload_bytes,
        message.created_time_ns,
        {key: decode_value(value) for key, value in message.metadata.items()},
        found,
    )


def _memory_of(out: Any) -> Borrowed:
    """Borrow the memory of a tensor to receive into."""
    try:
        return borrow_writable(out)
    except UnsupportedTensorError as error:
        raise ValueError(f"out= must be memory that may be written into: {error}") from error


def _spelled_out(keys: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Keys of an index with its Ellipsis, if there is one, replaced by whole axes."""
    at = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(at) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    whole = (slice(None),) * (ndim - sum(key is not None and key is not Ellipsis for key in keys))
    return (*keys[: at[0]], *whole, *keys[at[0] + 1 :]) if at else keys


def _selection(key: Any) -> pb.AxisSelection:
    """One key of an index as the message has it."""
    if isinstance(key, slice):
        bounds = {n: getattr(key, n) for n in ("start", "stop", "step")}
        return pb.AxisSelection(
            range=pb.AxisSelection.Range(**{n: _clamped(v) for n, v in bounds.items() if v is not None})
        )
    if isinstance(key, (bool, np.bool_, np.ndarray)) or not hasattr(type(key), "__index__"):
        raise IndexError(f"only integers, slices, `...` and None select parts of a tensor, not {type(key).__name__}")
    return pb.AxisSelection(index=_clamped(key))


def _clamped(value: Any) -> int:
    """Return a bound or index within 64 bits: what is beyond them is beyond every axis."""
    return max(min(operator.index(value), (1 << 63) - 1), -(1 << 63))
