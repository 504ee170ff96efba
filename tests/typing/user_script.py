"""A user's program, checked by mypy --strict. A comment says the type that a line reveals, without modules."""

from __future__ import annotations

import numpy as np
from typing_extensions import reveal_type

import dlpack_wire as dw

x = np.arange(6.0)

reveal_type(dw.encode(x))  # -> bytes
t = dw.decode(dw.encode(x))
reveal_type(t)  # -> Tensor
reveal_type(t[0:1])  # -> Tensor
reveal_type(t.shape)  # -> tuple[int, ...]
reveal_type(dw.from_proto(dw.to_proto(x)))  # -> Tensor

metadata: dw.Metadata = {"step": 7, "note": "x", "rate": 0.5, "done": True, "raw": b"x"}
dw.save("model.dlpw", {"w": x}, metadata=metadata)
reveal_type(dw.load_one("model.dlpw"))  # -> Tensor
reveal_type(dw.load_dict("model.dlpw"))  # -> dict[str, Tensor]
with dw.open("model.dlpw") as reader:
    reveal_type(reader)  # -> FileReader
    reveal_type(reader["w"])  # -> Tensor
    reveal_type(reader.header("w"))  # -> Header
with dw.open("model.dlpw", "w") as writer:
    reveal_type(writer)  # -> FileWriter
    writer["w"] = x
with dw.open("model.dlpw", "a") as appender:
    reveal_type(appender)  # -> FileAppender
    appender.flush()
recovery: dw.Recovery = dw.recover("model.dlpw", "whole.dlpw")
reveal_type(recovery.names)  # -> list[str]
for difference in dw.diff("model.dlpw", "whole.dlpw"):
    reveal_type(difference)  # -> Difference
conversion: dw.Conversion = dw.convert("model.dlpw", "model.npz")


def progress(done: int, total: int) -> None:
    print(done, total)


def blocking() -> None:
    report: dw.Progress = progress
    with dw.connect("127.0.0.1:7070", token=None, tls=dw.Tls(), timeout=5) as client:
        reveal_type(client)  # -> Client
        reveal_type(client.put("w", x, progress=report))  # -> int
        reveal_type(client.get("w"))  # -> Tensor | dict[str, Tensor]
        reveal_type(client.get("w", index=np.s_[0:1]))  # -> Tensor
        reveal_type(client.get("w", tensors=["a"]))  # -> dict[str, Tensor]
        out = [1]
        reveal_type(client.get("w", out=out))  # -> list[int]
        info: dw.ObjectInfo = client.stat("w")
        server: dw.ServerInfo = client.server_info()
        for listed in client.list("w/"):
            reveal_type(listed)  # -> ObjectInfo
        reveal_type(client.delete("w", if_generation=info.generation))  # -> int
        policy: dw.Policy = "reliable"
        with client.publisher("cam/left") as publisher:
            reveal_type(publisher)  # -> Publisher
            reveal_type(publisher.send(x))  # -> int
        with client.subscribe("cam/*", policy=policy) as frames:
            for frame in frames:
                reveal_type(frame)  # -> Frame
                reveal_type(frame.tensor)  # -> Tensor
        print(server.version)


async def asynchronous() -> None:
    async with dw.AsyncClient("127.0.0.1:7070") as client:
        reveal_type(await client.put("w", x))  # -> int
        reveal_type(await client.get("w"))  # -> Tensor | dict[str, Tensor]
        reveal_type(await client.get("w", index=0))  # -> Tensor
        reveal_type(await client.get("w", tensors=["a"]))  # -> dict[str, Tensor]
        reveal_type(await client.get("w", out=x))  # -> ndarray[...]
        publisher: dw.AsyncPublisher = client.publisher("cam/left")
        await publisher.send(x)
        subscription: dw.AsyncSubscription = client.subscribe("cam/*")
        async with subscription as frames:
            async for frame in frames:
                reveal_type(frame.sequence)  # -> int


def logging() -> None:
    with dw.LogWriter("run.mcap") as log:
        log.write("cam/left", x, time_ns=1)
    with dw.LogReader("run.mcap") as reader:
        for record in reader.read(topics=["cam/left"], start_ns=0, end_ns=2):
            reveal_type(record)  # -> LogRecord
            reveal_type(record.tensor)  # -> Tensor


try:
    dw.decode(b"")
except dw.TruncatedError as error:
    reveal_type(error.needed)  # -> int
except dw.LimitError as error:
    reveal_type(error.limit)  # -> int
