"""The attacks. Each runs in a process of its own, for a bounded time, with rights to `junk/` or with none."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from dlpack_wire.service.grpc_transport import SERVICE
from dlpack_wire.tensor.checksum import block_sums
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2
from dlpack_wire.v1 import tensor_service_pb2 as pb

MIB = 1 << 20
UINT8 = dlpack_pb2.DLDataType(code=1, bits=8, lanes=1)
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Attacker:
    """Calls by raw messages.

    Attributes:
        address: The server's.
        end_s: Monotonic time at which the attack should be over.
    """

    def __init__(self, address: str, metrics: str, token: str, seconds: float) -> None:
        self.address = address
        self.metrics = metrics
        self.end_s = time.monotonic() + seconds
        self.said = [("authorization", f"Bearer {token}")]
        self.channel = grpc.insecure_channel(address, OPTIONS)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end_s

    def left_s(self) -> float:
        return max(self.end_s - time.monotonic(), 0.1)

    def unary(self, method: str, request: bytes, channel: grpc.Channel | None = None) -> bytes:
        call = (channel or self.channel).unary_unary(f"/{SERVICE.full_name}/{method}")
        response: bytes = call(request, timeout=self.left_s() + 5, metadata=self.said)
        return response

    def put(self, requests: Iterator[bytes], channel: grpc.Channel | None = None) -> bytes:
        call = (channel or self.channel).stream_unary(f"/{SERVICE.full_name}/Put")
        response: bytes = call(requests, timeout=self.left_s() + 5, metadata=self.said)
        return response

    def publish(self, requests: Iterator[bytes], channel: grpc.Channel | None = None) -> Iterator[bytes]:
        call = (channel or self.channel).stream_stream(f"/{SERVICE.full_name}/Publish")
        return iter(call(requests, timeout=self.left_s() + 5, metadata=self.said))

    def get(self, name: str) -> Iterator[bytes]:
        call = self.channel.unary_stream(f"/{SERVICE.full_name}/Get")
        return iter(call(pb.GetRequest(name=name).SerializeToString(), timeout=600, metadata=self.said))

    def subscribe(self, *patterns: str) -> Iterator[bytes]:
        call = self.channel.unary_stream(f"/{SERVICE.full_name}/Subscribe")
        request = pb.SubscribeRequest(patterns=patterns, policy=pb.DELIVERY_POLICY_DROP_OLDEST)
        return iter(call(request.SerializeToString(), timeout=600, metadata=self.said))

    def wait(self) -> None:
        time.sleep(self.left_s())

    def many(self, count: int, work: Callable[[int], object]) -> None:
        """Do something many times at once, whatever comes of it."""

        def once(i: int) -> None:
            with suppress(grpc.RpcError, OSError):
                work(i)

        with ThreadPoolExecutor(count) as threads:
            list(threads.map(once, range(count)))


def tensor(size: int, name: str = "", data: bytes = b"") -> tensor_file_pb2.TensorRecord:
    header = dlpack_pb2.DLTensor(dtype=UINT8, shape=[size], data=data)
    return tensor_file_pb2.TensorRecord(name=name, tensor=header)


def store(attacker: Attacker, name: str, size: int) -> None:
    attacker.unary("Store", pb.StoreRequest(name=name, records=[tensor(size, "", bytes(size))]).SerializeToString())


def put_of(name: str, size: int) -> Iterator[bytes]:
    start = pb.PutStart(name=name, record_count=1, payload_bytes=size)
    yield pb.PutRequest(start=start, records=[tensor(size)]).SerializeToString()
    part = bytes(MIB)
    sums = int.from_bytes(block_sums(part), "little")
    for offset in range(0, size, MIB):
        chunk = pb.Chunk(offset=offset, data=part, block_sums=[sums])
        yield pb.PutRequest(chunk=chunk).SerializeToString()
    yield pb.PutRequest(finish=True).SerializeToString()


def frame(topic: str, size: int) -> Iterator[bytes]:
    part = bytes(min(size, MIB))
    sums = int.from_bytes(block_sums(part), "little") if size else 0
    head = pb.Frame(topic=topic, header=dlpack_pb2.DLTensor(dtype=UINT8, shape=[size]))
    first = pb.Chunk(data=part, block_sums=[sums]) if size else None
    yield pb.PublishRequest(frame=head, chunk=first).SerializeToString()
    for offset in range(MIB, size, MIB):
        chunk = pb.Chunk(offset=offset, data=part, block_sums=[sums])
        yield pb.PublishRequest(chunk=chunk).SerializeToString()


def publish_many(attacker: Attacker, count: int, size: int) -> None:
    def requests() -> Iterator[bytes]:
        for i in range(count):
            yield from frame(f"junk/{i:06}", size)

    with suppress(grpc.RpcError):
        for _ in attacker.publish(requests()):
            pass


# --- without a token --------------------------------------------------------------------------------------------------


def watches(attacker: Attacker) -> None:
    """Health.Watch of long names, without a token."""
    name = b"\x0a" + b"\xf0\x80\x10" + ("\U0001f4f7" + "x" * (256 << 10)).encode()[: (16 << 10) * 16 + 112]

    def watch(i: int) -> None:
        for _ in attacker.channel.unary_stream("/grpc.health.v1.Health/Watch")(name, timeout=attacker.left_s()):
            pass

    attacker.many(60, watch)


def silent_connections(attacker: Attacker) -> None:
    """700 connections that say nothing."""
    host, _, port = attacker.address.rpartition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(700)]
    attacker.wait()
    del held


def metrics_connections(attacker: Attacker) -> None:
    """500 connections to the metrics that say nothing, or half of a request."""
    host, _, port = attacker.metrics.rpartition(":")
    held = []
    for i in range(500):
        with suppress(OSError):
            held.append(socket.create_connection((host, int(port)), timeout=1))
            if i % 2:
                held[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    attacker.wait()
    del held


def half_requests(attacker: Attacker) -> None:
    """100 calls without a token, each of which sends nearly all of 4 MiB and then nothing."""
    _half_messages(attacker, [])


def compressed(attacker: Attacker) -> None:
    """gzip bombs of 4 MiB of zeros without a token, and of 400 MiB."""

    def bomb(i: int) -> None:
        call = attacker.channel.unary_unary(f"/{SERVICE.full_name}/Store")
        while not attacker.is_over:
            with suppress(grpc.RpcError):
                call(bytes(400 * MIB if i == 0 else 3 * MIB), timeout=5, compression=grpc.Compression.Gzip)

    attacker.many(4, bomb)


# --- with a token -----------------------------------------------------------------------------------------------------


def _half_messages(attacker: Attacker, said: list[tuple[str, str]]) -> None:
    """HTTP/2 by hand: a request whose length prefix promises 4 MiB, and all but the last byte of it."""
    host, _, port = attacker.address.rpartition(":")

    def header_field(name: str, value: str) -> bytes:
        assert len(name) < 127
        return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()

    def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def half(i: int) -> None:
        with socket.create_connection((host, int(port)), timeout=attacker.left_s()) as one:
            fields = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{SERVICE.full_name}/Store"),
                (":authority", attacker.address),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                *said,
            ]
            block = b"".join(header_field(*field) for field in fields)
            one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b"") + http2(1, 4, 1, block))
            body = b"\0" + (4 * MIB - 5).to_bytes(4, "big") + bytes(4 * MIB - 11)
            threading.Thread(target=_drain, args=(one,), daemon=True).start()
            for at in range(0, len(body), 16384):
                one.sendall(http2(0, 0, 1, body[at : at + 16384]))
            attacker.wait()

    attacker.many(100, half)


def _drain(one: socket.socket) -> None:
    with suppress(OSError):
        while one.recv(1 << 16):
            pass


def half_requests_with_a_token(attacker: Attacker) -> None:
    """100 calls that each send nearly all of 4 MiB and then nothing."""
    _half_messages(attacker, attacker.said)


def headers_only(attacker: Attacker) -> None:
    """8 puts of 65 000 tensors whose headers come, and nothing else."""
    records = [tensor(1, f"{i:06}") for i in range(65_000)]
    parts = [pb.PutRequest(records=records[i : i + 5000]).SerializeToString() for i in range(0, 65_000, 5000)]

    def requests(i: int) -> Iterator[bytes]:
        start = pb.PutStart(name=f"junk/{i}", upload_id=i.to_bytes(16, "big"), record_count=65_001)
        yield pb.PutRequest(start=start).SerializeToString()
        yield from parts
        attacker.wait()

    attacker.many(8, lambda i: attacker.put(requests(i)))


def announced_bytes(attacker: Attacker) -> None:
    """60 puts that announce a GiB each and send a little."""

    def requests(i: int) -> Iterator[bytes]:
        start = pb.PutStart(name=f"junk/{i}", upload_id=i.to_bytes(16, "big"), record_count=1, payload_bytes=200 * MIB)
        yield pb.PutRequest(start=start, records=[tensor(200 * MIB)]).SerializeToString()
        attacker.wait()

    attacker.many(60, lambda i: attacker.put(requests(i)))


def drafts_without_an_id(attacker: Attacker) -> None:
    """113 puts of 9 MiB that lack their last byte."""

    def requests(i: int) -> Iterator[bytes]:
        *parts, _ = put_of(f"junk/{i}", 9 * MIB)
        yield from parts
        attacker.wait()

    attacker.many(113, lambda i: attacker.put(requests(i)))


def small_objects(attacker: Attacker) -> None:
    """As many small objects as fit, with long names."""

    def fill(worker: int) -> None:
        i = 0
        while not attacker.is_over:
            i += 1
            name = f"junk/{worker}/{i:06}/" + "n" * 4000
            key = i.to_bytes(8, "big") + worker.to_bytes(8, "big")
            request = pb.StoreRequest(name=name, upload_id=key, records=[tensor(1, "t", b"1")])
            attacker.unary("Store", request.SerializeToString())

    attacker.many(8, fill)


def sets(attacker: Attacker) -> None:
    """Sets of 20 000 empty tensors, until the store is full."""
    records = [tensor(0, f"{i}") for i in range(20_000)]
    body = pb.StoreRequest(records=records).SerializeToString()

    def fill(worker: int) -> None:
        i = 0
        while not attacker.is_over:
            i += 1
            attacker.unary("Store", pb.StoreRequest(name=f"junk/{worker}/{i}").SerializeToString() + body)

    attacker.many(4, fill)


def empty_tensors(attacker: Attacker) -> None:
    """Stores of 65 536 empty tensors, one after the other, under one name."""
    body = pb.StoreRequest(name="junk/a", records=[tensor(0, f"{i}") for i in range(65_536)]).SerializeToString()

    def fill(worker: int) -> None:
        while not attacker.is_over:
            attacker.unary("Store", body)

    attacker.many(4, fill)


def large_requests(attacker: Attacker) -> None:
    """GetServerInfo requests of 300 KB, 60 at a time."""

    def ask(worker: int) -> None:
        while not attacker.is_over:
            with suppress(grpc.RpcError):
                attacker.unary("GetServerInfo", b"\x38\x01" * 150_000)

    attacker.many(60, ask)


def many_names(attacker: Attacker) -> None:
    """Fetches that name 75 000 tensors, 20 at a time."""
    store(attacker, "junk/one", 10)
    request = pb.FetchRequest(name="junk/one", tensors=["ab"] * 75_000).SerializeToString()

    def ask(worker: int) -> None:
        while not attacker.is_over:
            with suppress(grpc.RpcError):
                attacker.unary("Fetch", request)

    attacker.many(20, ask)


def lists(attacker: Attacker) -> None:
    """200 lists at a time of a store with 20 000 objects of somebody else."""
    request = pb.ListRequest(prefix="", page_size=1000).SerializeToString()

    def ask(worker: int) -> None:
        while not attacker.is_over:
            attacker.unary("List", request)

    attacker.many(200, ask)


def stalled_gets(attacker: Attacker) -> None:
    """Gets of 21 objects that nobody reads, each replaced after that."""
    held = []
    for i in range(21):
        with suppress(grpc.RpcError):
            attacker.put(put_of(f"junk/{i}", 9 * MIB))
            held.append(attacker.get(f"junk/{i}"))
            next(held[-1])
    for i in range(21):
        with suppress(grpc.RpcError):
            attacker.unary("Delete", pb.DeleteRequest(name=f"junk/{i}").SerializeToString())
    attacker.wait()


def topics(attacker: Attacker) -> None:
    """New topics for ever, with a subscription to hundreds of prefixes."""
    held = attacker.subscribe(*(f"junk/{'x' * i}*" for i in range(340)))
    next(held)
    while not attacker.is_over:
        publish_many(attacker, 70_000, 0)


def kept_frames(attacker: Attacker) -> None:
    """Tens of thousands of small kept frames, then frames of 60 MiB."""
    publish_many(attacker, 30_000, 10)
    while not attacker.is_over:
        with suppress(grpc.RpcError):
            list(attacker.publish(frame("junk/large", 60 * MIB)))


def subscriptions(attacker: Attacker) -> None:
    """Subscriptions with 1000 patterns against 30 000 topics."""
    publish_many(attacker, 30_000, 10)

    def ask(worker: int) -> None:
        while not attacker.is_over:
            held = attacker.subscribe(*(f"junk/{i:04}{worker:03}*" for i in range(1000)))
            next(held)
            held.cancel()  # type: ignore[attr-defined]

    attacker.many(8, ask)


def idle(attacker: Attacker) -> None:
    """Nothing."""
    attacker.wait()


def busy(attacker: Attacker) -> None:
    """8 callers that put and get 1 MiB as fast as they can, as they may."""

    def work(worker: int) -> None:
        while not attacker.is_over:
            attacker.put(put_of(f"junk/{worker}", MIB))
            for _ in attacker.get(f"junk/{worker}"):
                pass

    attacker.many(8, work)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack
    for attack in (
        *(idle, busy),
        *(watches, silent_connections, metrics_connections, half_requests, compressed),
        *(half_requests_with_a_token, headers_only, announced_bytes, drafts_without_an_id, small_objects, sets),
        *(empty_tensors, large_requests, many_names, lists, stalled_gets, topics, kept_frames, subscriptions),
    )
}


if __name__ == "__main__":
    chosen, address, metrics, token, seconds = sys.argv[1:]
    ATTACKS[chosen](Attacker(address, metrics, token, float(seconds)))
