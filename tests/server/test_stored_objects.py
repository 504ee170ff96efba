"""What is put is what is got: types, layouts, sizes, sets, parts, versions."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from server_process import ServerProcess
from strategies import arrays, logical_bytes

import dlpack_wire as dw
from dlpack_wire.errors import EncodeError, NotFoundError, RemoteError
from dlpack_wire.service.client import Client, connect

MIB = 1 << 20


def test_any_tensor_comes_back_bit_for_bit(server: ServerProcess) -> None:
    with connect(server.address, timeout=60) as client:

        @settings(max_examples=60)
        @given(arrays())
        def round_trip(x: Any) -> None:
            client.put("any", x)
            got = client.get("any")
            assert isinstance(got, dw.Tensor)
            assert (got.shape, got.header.dtype) == (x.shape, dw.decode(dw.encode(x)).dtype)
            assert logical_bytes(np.asarray(got)) == logical_bytes(x)

        round_trip()


@pytest.mark.parametrize(
    "size", [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 64 * MIB], ids=str
)
def test_sizes_around_every_limit(client: Client, name: str, size: int) -> None:
    x = np.frombuffer(random.Random(size).randbytes(size), np.uint8)
    client.put(name, x)
    got = client.get(name)
    assert isinstance(got, dw.Tensor)
    assert np.array_equal(got.numpy(), x)
    assert got.numpy().flags.writeable
    assert size == 0 or got.numpy().ctypes.data % 64 == 0
    client.delete(name)


def test_a_set_is_one_object(client: Client, name: str) -> None:
    tensors = {
        "weights": np.random.default_rng(0).standard_normal((700, 500)),
        "fortran": np.asfortranarray(np.arange(600_000, dtype=np.float32).reshape(600, 1000)),
        "strided": np.arange(900_000, dtype=np.int16).reshape(900, 1000)[::2, 1:],
        "big endian": np.arange(7, dtype=">f8"),
        "bf16": np.arange(9).astype(ml_dtypes.bfloat16),
        "flags": np.array([True, False, True]),
        "empty": np.empty((3, 0), np.int64),
        "scalar": np.float32(2.5),
        "ünïcode/../x": np.arange(3),
    }
    generation = client.put(name, tensors, metadata={"step": 7, "note": "a"})
    got = client.get(name)
    assert isinstance(got, dict)
    assert list(got) == list(tensors)
    for key, x in tensors.items():
        assert logical_bytes(np.asarray(got[key])) == logical_bytes(np.asarray(x))
        assert got[key].shape == np.shape(x)
    info = client.stat(name)
    assert (info.generation, info.tensor_count, info.metadata) == (generation, len(tensors), {"step": 7, "note": "a"})
    assert info.payload_bytes == sum(h.payload_bytes for h in info.headers.values())
    assert info.headers["fortran"].strides == (1, 600)
    some = client.get(name, tensors=["bf16", "weights"])
    assert list(some) == ["bf16", "weights"]
    replaced = client.put(name, {"weights": np.zeros(1)})
    assert replaced > generation
    assert list(client.get(name)) == ["weights"]


def test_tied_weights_travel_once(client: Client, name: str) -> None:
    w = np.random.default_rng(0).standard_normal((500, 500))
    client.put(name, {"embed": w, "norm": np.ones(3), "head": w, "part": w[:2]})
    info = client.stat(name)
    assert (info.tensor_count, info.payload_bytes) == (3, w.nbytes + 24 + 2 * 500 * 8)
    got = client.get(name)
    assert sorted(got) == ["embed", "head", "norm", "part"]
    assert got["head"] is got["embed"]
    assert np.array_equal(client.get(name, tensors=["head"])["head"].numpy(), w)
    both = client.get(name, tensors=["head", "embed"])
    assert all(np.array_equal(both[key].numpy(), w) for key in ("head", "embed"))


def test_messages_are_put_as_the_tensors_they_are(client: Client, name: str) -> None:
    client.put(name, {"m": dw.to_proto(np.arange(5)), "t": dw.decode(dw.encode(np.arange(3.0)))})
    assert np.array_equal(client.get(name)["m"].numpy(), np.arange(5))
    assert client.put(name, dw.to_proto(np.arange(6)))
    assert client.get(name).shape == (6,)


def test_many_tensors_in_one_object(client: Client, name: str) -> None:
    tensors = {f"layer {i}/weight": np.full((i % 7,), i, np.int32) for i in range(20_000)}
    client.put(name, tensors)
    got = client.get(name)
    assert list(got) == list(tensors)
    assert all(np.array_equal(got[key].numpy(), x) for key, x in tensors.items())
    assert len(client.stat(name).headers) == len(tensors)


PARTS = [
    np.s_[0],
    np.s_[-1],
    np.s_[1:100],
    np.s_[..., 2],
    np.s_[None, ...],
    np.s_[1, ..., None, ::-1],
    np.s_[::-1, 1:4:2, 3],
    np.s_[5:2],
    np.s_[...],
    np.s_[:, None, -2:, ::3],
    np.s_[1, 2, 3],
]


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_parts_are_numpys(client: Client, part: Any, order: str) -> None:
    x = np.arange(105, dtype=np.float64).reshape(3, 5, 7)
    client.put(f"parts {order}", np.asarray(x, order=order))
    got = client.get(f"parts {order}", index=part)
    assert isinstance(got, dw.Tensor)
    assert got.shape == x[part].shape
    assert np.array_equal(got.numpy(), x[part])


def test_parts_of_a_set_and_of_other_byte_orders(client: Client, name: str) -> None:
    x = np.arange(2_000_000, dtype=">i4").reshape(1000, 2000)
    client.put(name, {"x": x, "y": np.arange(3)})
    got = client.get(name, tensors=["x"], index=np.s_[10:900:3, 5:])
    assert np.array_equal(got.numpy(), x[10:900:3, 5:])
    assert got.header.byte_order == dw.ByteOrder.BIG


def test_parts_that_are_not_there(client: Client, name: str) -> None:
    client.put(name, np.zeros((3, 5)))
    for wrong in (np.s_[3], np.s_[0, -6], np.s_[[0, 1]], np.s_[..., ...]):
        with pytest.raises(IndexError):
            client.get(name, index=wrong)
    with pytest.raises(RemoteError, match="3 selections for 2 axes"):
        client.get(name, index=np.s_[0, 0, 0])
    with pytest.raises(RemoteError, match="step"):
        client.get(name, index=np.s_[::0])
    client.put(name, np.arange(4).astype(ml_dtypes.int4))
    with pytest.raises(RemoteError, match="whole tensor"):
        client.get(name, index=0)


def test_received_into_memory_that_is_given(client: Client, name: str) -> None:
    x = np.random.default_rng(1).standard_normal((600, 700))
    for stored in (x, np.asfortranarray(x), x.astype(">f8")):
        client.put(name, stored)
        for out in (np.zeros_like(x), np.zeros_like(x, order="F"), np.zeros((1200, 700))[::2]):
            assert client.get(name, out=out) is out
            assert np.array_equal(out, x)
    part = np.zeros((10, 700))
    client.get(name, index=np.s_[:10], out=part)
    assert np.array_equal(part, x[:10])
    read_only = np.zeros_like(x)
    read_only.flags.writeable = False
    for wrong in (np.zeros((600, 699)), np.zeros((600, 700), np.float32), read_only):
        with pytest.raises(ValueError, match="out="):
            client.get(name, out=wrong)


def test_received_into_torch(client: Client, name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(300_000, dtype=torch.float32).reshape(300, 1000)
    client.put(name, x)
    out = torch.zeros_like(x)
    client.get(name, out=out)
    assert torch.equal(out, x)
    assert torch.equal(torch.from_dlpack(client.get(name)), x)
    with pytest.raises(ValueError, match="float32"):
        client.get(name, out=x.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "bool", "complex64"])
def test_received_into_torch_of_types_that_numpy_lacks_too(client: Client, name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = (torch.arange(300_000) % 2).to(getattr(torch, dtype)).reshape(300, 1000)
    client.put(name, x)
    out = torch.zeros_like(x)
    assert client.get(name, out=out) is out
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))
    with pytest.raises(ValueError, match="written into"):
        client.get(name, out=torch.zeros(3, dtype=torch.complex64).conj())


def test_generations(client: Client, name: str) -> None:
    first = client.put(name, np.arange(3), if_generation=0)
    with pytest.raises(RemoteError, match="is at generation") as caught:
        client.put(name, np.arange(4), if_generation=0)
    assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "GENERATION_MISMATCH")
    with pytest.raises(RemoteError):
        client.put(name, np.zeros(MIB), if_generation=first + 1)
    second = client.put(name, np.arange(5), if_generation=first)
    assert second > first
    with pytest.raises(RemoteError) as caught:
        client.get(name, generation=first)
    assert caught.value.reason == "GENERATION_MISMATCH"
    assert client.get(name, generation=second).shape == (5,)
    with pytest.raises(RemoteError):
        client.delete(name, if_generation=first)
    assert client.delete(name, if_generation=second) == second
    third = client.put(name, np.zeros(MIB), if_generation=0)
    assert third > second


def test_what_is_not_there(client: Client, name: str) -> None:
    for ask in (client.get, client.stat, client.delete):
        with pytest.raises(NotFoundError) as caught:
            ask(name)
        assert (caught.value.code, caught.value.reason) == ("NOT_FOUND", "OBJECT_NOT_FOUND")
    client.put(name, {"w": np.zeros(2)})
    with pytest.raises(KeyError, match="no tensor 'v'"):
        client.get(name, tensors=["v"])


@pytest.mark.parametrize("bad", ["", "a\0b", "x" * 4097])
def test_names_that_are_none(client: Client, bad: str) -> None:
    for ask in (client.get, client.stat, client.delete, lambda name: client.put(name, np.zeros(1))):
        with pytest.raises(EncodeError):
            ask(bad)
    with pytest.raises(EncodeError):
        client.put("fine", {bad: np.zeros(1), "other": np.zeros(1)})


def test_tensors_that_are_none(client: Client, name: str) -> None:
    with pytest.raises(EncodeError):
        client.put(name, np.array(["text"]))
    with pytest.raises(EncodeError, match="'b'"):
        client.put(name, {"a": np.zeros(1), "b": [1, 2]})
    with pytest.raises(EncodeError):
        client.put(name, {})
    with pytest.raises(NotFoundError):
        client.stat(name)


def test_lists_are_in_order_and_by_prefix(client: Client) -> None:
    names = [f"list/{c}{i:03}" for c in "äbB~" for i in range(300)]
    for each in random.Random(0).sample(names, len(names)):
        client.put(each, np.zeros(1))
    listed = [info.name for info in client.list("list/")]
    assert listed == sorted(names, key=lambda n: n.encode())
    assert [info.name for info in client.list("list/b00")] == [f"list/b00{i}" for i in range(10)]
    assert list(client.list("list/c")) == []
    info = next(client.list("list/b000"))
    assert (info.tensor_count, info.payload_bytes, info.headers) == (1, 8, {})


def test_lists_with_large_metadata_still_fit_their_messages(client: Client) -> None:
    for i in range(8):
        client.put(f"heavy/{i}", np.zeros(1), metadata={"blob": bytes(900_000)})
    listed = list(client.list("heavy/"))
    assert [info.name for info in listed] == [f"heavy/{i}" for i in range(8)]
    assert all(len(info.metadata["blob"]) == 900_000 for info in listed)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="at most"):
        client.put("heavy/9", np.zeros(1), metadata={"blob": bytes(MIB)})


def test_progress_is_told(client: Client, name: str) -> None:
    seen: list[tuple[int, int]] = []
    client.put(name, np.zeros(8 * MIB, np.uint8), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (8 * MIB, 8 * MIB)
    seen.clear()
    client.get(name, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8 * MIB, 8 * MIB)
    assert len(seen) > 3


def test_who_reads_keeps_what_was_there(client: Client, name: str) -> None:
    old = np.full(40 * MIB, 1, np.uint8)
    client.put(name, old)
    replaced = False

    def replace(done: int, total: int) -> None:
        nonlocal replaced
        if done > 20 * MIB and not replaced:
            replaced = True
            with connect(client.address, timeout=60) as other:
                other.put(name, np.full(10, 2, np.uint8))
                other.delete(name)

    got = client.get(name, progress=replace)
    assert replaced
    assert np.array_equal(got.numpy(), old)
    with pytest.raises(NotFoundError):
        client.get(name)
