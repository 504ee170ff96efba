"""Plays the transcripts in data/transcripts against a server, through nothing but gRPC and the generated messages."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hand_built_files import BLOCK, field, number, sums_of_blocks
from message_vectors import joined

from dlpack_wire.v1 import tensor_service_pb2 as pb

FOLDER = Path(__file__).parent / "data" / "transcripts"
TRANSCRIPTS: list[dict[str, Any]] = json.loads((FOLDER / "service.json").read_text())
SERVICE = pb.DESCRIPTOR.services_by_name["TensorService"]
TIMEOUT_S = 30.0
UNTIL_S = 10.0


class Requests:
    """The requests of a call, until they are ended."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            self._queue.put(message)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._queue.get, None)


class Call:
    """A call that runs.

    Attributes:
        requests: Its requests, if they are a stream.
        running: gRPC's object for it.
    """

    def __init__(self, channel: grpc.Channel, method: str, messages: list[bytes]) -> None:
        described = SERVICE.methods_by_name[method]
        path = f"/{SERVICE.full_name}/{method}"
        self.requests = Requests()
        self.requests.send(messages)
        self._answers = described.server_streaming
        self._type = pb.DESCRIPTOR.message_types_by_name[described.output_type.name]._concrete_class  # type: ignore[attr-defined]
        if described.client_streaming and described.server_streaming:
            self.running: Any = channel.stream_stream(path)(iter(self.requests), timeout=TIMEOUT_S)
        elif described.client_streaming:
            self.running = channel.stream_unary(path).future(iter(self.requests), timeout=TIMEOUT_S)
        elif described.server_streaming:
            self.running = channel.unary_stream(path)(messages[0], timeout=TIMEOUT_S)
        else:
            self.running = channel.unary_unary(path).future(messages[0], timeout=TIMEOUT_S)

    def next(self) -> Message:
        """Return the next answer of a stream."""
        message: Message = self._type.FromString(next(self.running))
        return message

    def result(self) -> tuple[str, str | None, list[Message]]:
        """Wait for the end; return the status, its reason and the answers."""
        answers = []
        try:
            if self._answers:
                answers += map(self._type.FromString, self.running)
            else:
                answers.append(self._type.FromString(self.running.result()))
        except grpc.RpcError as error:
            found = dict(error.trailing_metadata() or ())  # type: ignore[attr-defined]
            return error.code().name, found.get("dlpack-wire-reason"), answers  # type: ignore[attr-defined]
        return "OK", None, answers


class Player:
    """Plays one transcript."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, Call] = {}
        self._values: dict[str, Any] = {}

    def play(self, transcript: dict[str, Any]) -> None:
        for at, step in enumerate(transcript["steps"]):
            try:
                self._play_until(step) if step.get("until") else self._play(step)
            except AssertionError as error:
                raise AssertionError(f"step {at}, {step['method']}: {error}\n{json.dumps(step)[:1500]}") from error

    def _play_until(self, step: dict[str, Any]) -> None:
        deadline = time.monotonic() + UNTIL_S
        while True:
            try:
                return self._play(step)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _play(self, step: dict[str, Any]) -> None:
        messages = [self._message(parts) for parts in step["send"]]
        name = step.get("call")
        call = self._calls.pop(name, None) if name else None
        if call is None:
            call = Call(self._channel, step["method"], messages)
        else:
            call.requests.send(messages)
        for event in step.get("events", ()):
            self._expect(call, event)
        if step.get("end") == "open":
            self._calls[step["call"]] = call
            return
        if step.get("end") == "cancel":
            call.running.cancel()
            return
        call.requests.end()
        status, reason, answers = call.result()
        assert (status, reason) == (step["status"], step["reason"]), f"{status} {reason}"
        if "answer" in step:
            self._check(answers[0], step["answer"])
        if "answers" in step:
            self._check(answers[-1], step["answers"][-1])
        if "records" in step:
            self._check_stream(answers, step["records"], step["payloads"])

    def _message(self, parts: list[Any]) -> bytes:
        return b"".join(self._part(part) for part in parts)

    def _part(self, part: Any) -> bytes:
        if not isinstance(part, dict):
            return joined(part)
        value = self._values[part["value"]]
        return field(part["field"], value.encode()) if isinstance(value, str) else number(part["field"], value)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _check(self, message: Message, expected: dict[str, Any]) -> None:
        for name, value in expected.items():
            described = message.DESCRIPTOR.fields_by_name[name]
            found = getattr(message, name)
            if value is None:
                assert not message.HasField(name), f"{name} is there"
            elif described.message_type is not None and described.message_type.GetOptions().map_entry:
                assert found.keys() == value.keys(), name
                for key, inner in value.items():
                    self._check(found[key], inner)
            elif isinstance(value, dict) and "any order" in value:
                assert sorted(found) == sorted(value["any order"]), f"{name}: {found}"
            elif isinstance(value, list) and not _is_bytes(described):
                assert len(found) == len(value), f"{name}: {len(found)} of {len(value)}"
                for one, other in zip(found, value, strict=True):
                    self._compare(described, one, other)
            else:
                self._compare(described, found, value)

    def _compare(self, described: FieldDescriptor, found: Any, expected: Any) -> None:
        if described.message_type is not None:
            self._check(found, expected)
            return
        if isinstance(expected, dict):
            [(how, name)] = expected.items()
            if how == "set":
                assert found, f"{described.name} is empty"
                self._values[name] = found
            elif how == "is":
                assert found == self._values[name], f"{described.name}: {found}, not {self._values[name]}"
            else:
                assert how == "above"
                assert found > self._values[name], f"{described.name}: {found}"
            return
        if _is_bytes(described):
            assert found == joined(expected), f"{described.name} differs"
        elif described.enum_type is not None:
            assert described.enum_type.values_by_number[found].name == expected, f"{described.name}: {found}"
        elif isinstance(expected, bool) or described.type == FieldDescriptor.TYPE_STRING:
            assert found == expected, f"{described.name}: {found!r}, not {expected!r}"
        else:
            assert str(found) == expected, f"{described.name}: {found}, not {expected}"

    def _check_stream(self, answers: list[Any], records: list[Any], payloads: dict[str, Any]) -> None:
        """Check the answers of a Get: all records, then whole blocks in order, each with its sum."""
        assert answers[0].HasField("object")
        assert answers[0].record_count == len(records)
        found = [record for answer in answers for record in answer.records]
        assert len(found) == len(records)
        for record, expected in zip(found, records, strict=True):
            self._check(record, expected)
        seen: dict[str, list[Any]] = {}
        count = 0
        for answer in answers:
            count += len(answer.records)
            if not answer.HasField("chunk"):
                continue
            assert count == len(records), "a chunk before the last record"
            chunk = answer.chunk
            begin, pieces = seen.setdefault(str(chunk.tensor_index), [chunk.offset, bytearray()])
            assert chunk.offset == begin + len(pieces)
            assert chunk.offset % BLOCK == 0
            check_chunk(chunk)
            pieces += chunk.data
        assert list(seen) == sorted(seen, key=int)
        assert seen.keys() == payloads.keys(), f"payloads of {list(seen)}"
        for key, (begin, pieces) in seen.items():
            offset, content = payloads[key]
            assert str(begin) == offset, f"payload {key} begins at {begin}"
            assert pieces == joined(content), f"payload {key} of {len(pieces)} bytes differs"

    # --- events of a subscription -------------------------------------------------------------------------------------

    def _expect(self, call: Call, event: Any) -> None:
        if event == "start" or (isinstance(event, dict) and "start" in event):
            message: Any = call.next()
            assert message.HasField("start")
            if event != "start":
                self._check(message.start, event["start"])
        elif event == "caught up":
            message = call.next()
            assert message.caught_up
            assert not message.HasField("frame")
        elif "any order" in event:
            frames = {frame["topic"]: frame for frame in event["any order"]}
            for _ in event["any order"]:
                message = call.next()
                self._frame(call, message, frames.pop(message.frame.topic))
        else:
            self._frame(call, call.next(), event)

    def _frame(self, call: Call, message: Any, expected: dict[str, Any]) -> None:
        assert message.HasField("frame")
        payload = joined(expected["payload"])
        self._check(message.frame, {key: value for key, value in expected.items() if key != "payload"})
        pieces = bytearray()
        while len(pieces) < len(payload):
            if message.HasField("chunk"):
                assert message.chunk.offset == len(pieces)
                check_chunk(message.chunk)
                pieces += message.chunk.data
            if len(pieces) < len(payload):
                message = call.next()
        assert pieces == payload


def check_chunk(chunk: Any) -> None:
    assert chunk.data, "an empty chunk"
    assert list(chunk.block_sums) == sums_of_blocks(chunk.data)


def _is_bytes(described: FieldDescriptor) -> bool:
    return described.type == FieldDescriptor.TYPE_BYTES
