"""Frames coming in and going out: Publish and Subscribe."""

from __future__ import annotations

import asyncio
from typing import Any

from dlpack_wire.errors import DecodeError
from dlpack_wire.message.names import encode_name
from dlpack_wire.service.arrival import OutOfOrderError
from dlpack_wire.service.frames import FrameHead, frame_metadata, parse_frame
from dlpack_wire.service.messages import Chunk, parse, parses_quickly
from dlpack_wire.v1 import tensor_service_pb2 as pb

from .auth import Authorizer, Caller
from .calls import STALL_S, Call, Calls, PermissionWatch
from .frame_queue import FrameQueue
from .hub import Hub, overhead
from .kept_frame import Intake
from .metrics import Metrics
from .puts import QUICK_COPY_BYTES
from .status import Refusal


class Topics:
    """Passes frames between calls and a hub."""

    def __init__(self, hub: Hub, calls: Calls, authorizer: Authorizer, metrics: Metrics, instance_id: str) -> None:
        """Use a hub, which this object does not own."""
        self._hub = hub
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics
        self._instance_id = instance_id
        self._reading: set[asyncio.Task[Any]] = set()  # publishers that wait for their next message
        self._watches: dict[FrameQueue, PermissionWatch] = {}

    def drain(self) -> None:
        """End all calls."""
        self._hub.close()
        for publisher in self._reading:
            publisher.cancel()

    async def publish(self, caller: Caller, call: Call, _: bytes) -> None:
        """Take frames in, and tell the sequence of each."""
        watch, owner = PermissionWatch(self._authorizer, caller, call), caller.owner
        intake: Intake | None = None
        loop = asyncio.get_running_loop()
        stalls = 0.0
        try:
            while True:
                # A publisher may be silent between frames, but not within one. A message without a part of the frame
                # does not extend the time it has.
                raw = await self._read(call, max(stalls - loop.time(), 0) if intake is not None else None)
                if raw is None:
                    break
                head, metadata, chunk = await self._calls.parse(parses_quickly(raw, 2), _parse_publish, raw)
                if head is not None or chunk is not None:
                    stalls = loop.time() + STALL_S
                if head is not None:
                    if intake is not None:
                        raise DecodeError("a frame came before the one before it was whole", field="frame")
                    watch.check().require_write(head.topic)
                    intake = self._hub.intake(head, metadata, owner)
                    await self._hub.reserve(intake, overhead(head.topic, metadata), owner)
                if chunk is not None:
                    if intake is None:
                        raise OutOfOrderError("a chunk came without a frame", field="chunk")
                    await self._hub.reserve(intake, len(chunk.data), owner)
                    if len(chunk.data) < QUICK_COPY_BYTES:
                        intake.take(chunk)
                    else:
                        await self._calls.in_thread(intake.take, chunk)
                    self._metrics.received_bytes += len(chunk.data)
                if intake is not None and intake.complete:
                    topic = intake.topic
                    sequence, count = self._hub.publish(intake, owner)
                    intake = None
                    response = pb.PublishResponse(topic=topic, last_sequence=sequence, subscriber_count=count)
                    await self._calls.write(call, response.SerializeToString())
            if intake is not None:
                raise Refusal("UPLOAD_INCOMPLETE", "the stream ended inside a frame")
        finally:
            if intake is not None:
                self._hub.drop(intake, owner)

    async def _read(self, call: Call, seconds: float | None) -> bytes | None:
        """Wait for the next message of a publisher, at most until `drain`."""
        self._hub.require_open()
        task = asyncio.current_task()
        assert task is not None
        # Only here may it be cancelled: gRPC cannot answer a call while a message of ours is being sent.
        self._reading.add(task)
        try:
            return await (call.read() if seconds is None else self._calls.read(call, seconds))
        except asyncio.CancelledError:
            self._hub.require_open()  # because the server ends, not because the caller has gone
            raise
        finally:
            self._reading.discard(task)

    async def subscribe(self, caller: Caller, call: Call, raw: bytes) -> None:
        """Send the frames of topics until either side ends the call."""
        request, _, _ = parse(pb.SubscribeRequest, raw)
        task = asyncio.current_task()
        assert task is not None
        subscription = self._hub.subscribe(request, caller, task.cancel)
        self._watches[subscription] = PermissionWatch(self._authorizer, caller, call)
        del request
        try:
            count, size = subscription.bounds
            start = pb.SubscribeStart(instance_id=self._instance_id, queue_frame_count=count, queue_bytes=size)
            await self._calls.write(call, pb.SubscribeResponse(start=start).SerializeToString())
            while True:
                frame, dropped_count = await subscription.next()
                if frame is None:
                    await self._calls.write(call, pb.SubscribeResponse(caught_up=True).SerializeToString())
                    continue
                for message in frame.messages(dropped_count):
                    with subscription.writing():
                        await call.write(message)
                    self._metrics.sent_bytes += len(message)
                del frame, message  # not kept while waiting for the next one
        except asyncio.CancelledError:
            subscription.require_open()
            raise
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


def _parse_publish(raw: bytes) -> tuple[FrameHead | None, bytes, Chunk | None]:
    """Parse a message of Publish; return the frame, its metadata serialized, and the chunk."""
    _, head, chunk = parse_frame(pb.PublishRequest, raw)
    if head is None:
        return None, b"", chunk
    encode_name(head.topic)
    return head._replace(metadata={}), frame_metadata(head.metadata), chunk
