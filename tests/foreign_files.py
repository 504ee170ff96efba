"""Files of each format, written and read by the library that the format comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dlpack_wire as dw

NATIVE = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bool"),
)
TYPES = {
    "npy": (*NATIVE, "complex64", "complex128"),
    "npz": (*NATIVE, "complex64", "complex128"),
    "safetensors": (*NATIVE, "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    "onnx": (*NATIVE, "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
    "pt": (*NATIVE, "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    "dlpw": (*NATIVE, "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e3m4", "int4", "float6_e2m3fn"),
}
"""Element types that each library writes, by the format's suffix."""

Facts = tuple[str, tuple[int, ...], bytes]
"""Element type, shape and bytes of a tensor."""


def installed(name: str) -> Any:
    """Import a library, or skip the test and say so."""
    return pytest.importorskip(name, reason=f"{name} is not installed, which judges its own files")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(name if name in NATIVE else getattr(ml_dtypes, name, name))


def to_torch(x: np.ndarray[Any, Any]) -> Any:
    torch = installed("torch")
    kind = getattr(torch, x.dtype.name)
    if not x.size:
        return torch.empty(x.shape, dtype=kind)
    raw = torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8).copy())
    return raw.view(kind).reshape(x.shape)


def torch_facts(t: Any) -> Facts:
    torch = installed("torch")
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
    return str(t.dtype).removeprefix("torch."), tuple(t.shape), raw


def numpy_facts(x: np.ndarray[Any, Any]) -> Facts:
    return x.dtype.name, x.shape, x.astype(x.dtype.newbyteorder("="), copy=False).tobytes()


def write(path: Path, tensors: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any]) -> None:
    """Write a file as a user of the format's library would; formats without metadata drop it."""
    if path.suffix == ".npy":
        np.save(path, next(iter(tensors.values())))
    elif path.suffix == ".npz":
        np.savez(path, **tensors)
    elif path.suffix == ".safetensors":
        installed("safetensors.torch").save_file({k: to_torch(x) for k, x in tensors.items()}, path, metadata or None)
    elif path.suffix == ".onnx":
        onnx = installed("onnx")
        installed("onnx.numpy_helper")
        initializers = [onnx.numpy_helper.from_array(x, name) for name, x in tensors.items()]
        model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], initializers))
        for key, value in metadata.items():
            model.metadata_props.add(key=key, value=value)
        path.write_bytes(model.SerializeToString())
    elif path.suffix == ".pt":
        installed("torch").save({**metadata, **{k: to_torch(x) for k, x in tensors.items()}}, path)
    else:
        dw.save(path, tensors, metadata, durable=False)


def read(path: Path) -> tuple[dict[str, Facts], dict[str, Any]]:
    """Read the tensors and the metadata that the format's library gives."""
    if path.suffix == ".npy":
        return {"": numpy_facts(np.load(path))}, {}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: numpy_facts(arrays[name]) for name in arrays.files}, {}
    if path.suffix == ".safetensors":
        with installed("safetensors").safe_open(path, "pt") as f:
            return {name: torch_facts(f.get_tensor(name)) for name in f.keys()}, f.metadata() or {}  # noqa: SIM118
    if path.suffix == ".onnx":
        onnx = installed("onnx")
        installed("onnx.numpy_helper")
        model = onnx.load(path)
        found = {t.name: numpy_facts(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
        return found, {p.key: p.value for p in model.metadata_props}
    if path.suffix == ".pt":
        torch = installed("torch")
        held = torch.load(path, weights_only=True)
        tensors = {k: torch_facts(v) for k, v in held.items() if isinstance(v, torch.Tensor)}
        return tensors, {k: v for k, v in held.items() if not isinstance(v, torch.Tensor)}
    with dw.open(path, verify=True) as f:
        return {name: numpy_facts(np.asarray(f[name].numpy())) for name in f}, dict(f.metadata)
