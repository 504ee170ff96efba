"""encode and decode against onnx, safetensors and one memory copy."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import onnx
import onnx.numpy_helper as onnx_numpy
import safetensors.numpy
import torch

import dlpack_wire as dw
from dlpack_wire.message import codec, reading, writing
from dlpack_wire.tensor import capsule, source

from .measure import Row, interleaved, once_each, rate_row, time_row, told_row


def rows() -> Iterator[Row]:
    yield from _small()
    yield from _distinct_shapes()
    yield from _large()


def _onnx_encode(x: np.ndarray) -> bytes:
    return onnx_numpy.from_array(x).SerializeToString()


def _onnx_decode(message: bytes) -> np.ndarray:
    return onnx_numpy.to_array(onnx.TensorProto.FromString(message))


def _small() -> Iterator[Row]:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    t = torch.from_numpy(x.copy())
    j = jnp.asarray(x)
    message, theirs, safe = dw.encode(x), _onnx_encode(x), safetensors.numpy.save({"x": x})
    took = interleaved(
        {
            "numpy": lambda: dw.encode(x),
            "torch": lambda: dw.encode(t),
            "jax": lambda: dw.encode(j),
            "onnx of jax": lambda: _onnx_encode(np.asarray(j)),
            "onnx": lambda: _onnx_encode(x),
            "decode": lambda: dw.decode(message).numpy(),
            "onnx decode": lambda: _onnx_decode(theirs),
            "safetensors decode": lambda: safetensors.numpy.load(safe),
        },
        rounds=21,
        loops=5000,
    )
    yield time_row("encode 2x4 float32, numpy", took["numpy"], "onnx from_array + serialize", took["onnx"], 0.5)
    yield time_row("encode 2x4 float32, torch", took["torch"], "onnx from_array + serialize", took["onnx"], 1.5)
    yield told_row("encode 2x4 float32, jax", took["jax"], "onnx of its np.asarray", took["onnx of jax"])
    yield time_row("decode 2x4 float32 to numpy", took["decode"], "onnx parse + to_array", took["onnx decode"], 0.6)
    yield time_row("decode 2x4 float32 to numpy", took["decode"], "safetensors load", took["safetensors decode"], 0.8)


def _forget() -> None:
    capsule._PLAIN.clear()
    codec._SEEN.clear()
    source.PLAIN_ARRAYS.clear()
    writing.fixed_fields.cache_clear()
    reading._OPENINGS.clear()


def _distinct_shapes() -> Iterator[Row]:
    shapes = [(a, b) for a in range(1, 51) for b in range(1, 21)]
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    tensors = [torch.zeros(shape) for shape in shapes]
    messages = [dw.encode(x) for x in arrays]
    theirs = [_onnx_encode(x) for x in arrays]
    safe = [safetensors.numpy.save({"x": x}) for x in arrays]
    took = once_each(
        {
            "numpy": (_forget, dw.encode, arrays),
            "torch": (_forget, dw.encode, tensors),
            "onnx": (_forget, _onnx_encode, arrays),
            "decode": (_forget, lambda m: dw.decode(m).numpy(), messages),
            "onnx decode": (_forget, _onnx_decode, theirs),
            "safetensors decode": (_forget, safetensors.numpy.load, safe),
        },
        rounds=15,
    )
    many = "1000 distinct shapes, once each"
    yield time_row(f"encode {many}, numpy", took["numpy"], "onnx from_array + serialize", took["onnx"], 2.0)
    yield time_row(f"encode {many}, torch", took["torch"], "onnx from_array + serialize", took["onnx"], 2.0)
    yield time_row(f"decode {many}", took["decode"], "onnx parse + to_array", took["onnx decode"], 2.0)
    yield time_row(f"decode {many}", took["decode"], "safetensors load", took["safetensors decode"], 2.0)


def _large() -> Iterator[Row]:
    x = np.random.default_rng(0).integers(0, 255, 256 << 20, dtype=np.uint8)
    view = x.data
    t, j = torch.from_numpy(x), jnp.asarray(x)
    took = interleaved(
        {
            "plain": lambda: dw.encode(x, checksum=False),
            "checked": lambda: dw.encode(x),
            "torch": lambda: dw.encode(t),
            "jax": lambda: dw.encode(j),
            "copy": lambda: bytes(view),
        },
        rounds=7,
    )
    yield rate_row("encode 256 MiB, no checksum", took["plain"], "one bytes(memoryview)", took["copy"], 0.9)
    yield rate_row("encode 256 MiB, checksum", took["checked"], "one bytes(memoryview)", took["copy"], 0.75)
    for library in ("torch", "jax"):
        said = f"encode 256 MiB, checksum, {library}"
        yield rate_row(said, took[library], "one bytes(memoryview)", took["copy"], 0.75)
    message = dw.encode(x)
    begin = time.perf_counter()
    dw.decode(message)
    seconds = time.perf_counter() - begin
    yield rate_row("decode 256 MiB, checksum verified", seconds, "one bytes(memoryview)", took["copy"], 1.0)
