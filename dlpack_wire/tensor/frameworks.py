"""What frameworks' own exports leave to the caller: lazy views, shells, and tensors without numbers.

No framework is imported here; one that a program does not use costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

from ..errors import EncodeError, UnsupportedTensorError
from .dtype import COMPLEX, DType


def normaliser(x: Any) -> Callable[[Any], Any] | None:
    """What turns objects of such a type into ones whose export says all; None if they are so already."""
    if _is_torch(x):
        return _settle_torch
    if type(x).__module__.startswith("tensorflow."):
        return _settle_tensorflow
    return None


def storage_key(x: Any) -> int:
    """Equal for two torch tensors if their values lie in the same memory; 0 where that cannot be told."""
    if not _has_place(x):
        return 0
    try:
        return hash(("storage", x.untyped_storage().data_ptr()))
    except (RuntimeError, NotImplementedError):  # wrappers and functional tensors have none
        return 0


def memory_key(x: Any) -> Hashable:
    """Equal for two living torch tensors if and only if they are the same memory; None where it cannot be told."""
    if not _has_place(x) or not x.numel():
        return None
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def _has_place(x: Any) -> bool:
    """Whether x is a torch tensor whose values lie in memory as they are."""
    return _is_torch(x) and x.layout is _torch_strided() and not x.is_meta and not is_lazy(x)


def is_lazy(x: Any) -> bool:
    """Whether x shows other values than its memory holds."""
    return _is_torch(x) and (x.is_conj() or x.is_neg())


def _is_torch(x: Any) -> bool:
    """Whether x is a torch tensor; torch itself is never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _settle_torch(x: Any) -> Any:
    """The tensor's logical values: no gradient, no lazy conjugation or negation; or a clear refusal."""
    is_complex = _TORCH_DTYPES.get(x.dtype)
    if is_complex is None:
        is_complex = _check_torch_dtype(x.dtype)
    if x.requires_grad:
        x = x.detach()
    if is_complex and x.is_conj():
        x = x.resolve_conj()
    if x.is_neg():
        x = x.resolve_neg()
    if x.layout is not _torch_strided():
        raise UnsupportedTensorError(f"{x.layout} tensor: convert it with `.to_dense()` first")
    if x.is_meta:
        raise UnsupportedTensorError("a meta tensor has no values", field="device")
    return x


@lru_cache(maxsize=1)
def _torch_strided() -> Any:
    return sys.modules["torch"].strided


_TORCH_DTYPES: dict[Any, bool] = {}
"""torch dtypes whose export says what they are, and whether they are complex."""


def _check_torch_dtype(dtype: Any) -> bool:
    name = str(dtype).removeprefix("torch.")
    try:
        meant = DType("float4_e2m1fnx2" if name == "float4_e2m1fn_x2" else name)
    except EncodeError as error:
        raise UnsupportedTensorError(f"torch.{name} has no place in DLPack: {error}", field="dtype") from None
    if meant.bits < 8 and meant.lanes == 1:
        # torch exports them as plain 8-bit integers, and says nothing of how many values a byte holds.
        raise UnsupportedTensorError(
            f"torch.{name} is a shell without a stated packing; view the bytes as torch.uint8", field="dtype"
        )
    is_complex = _TORCH_DTYPES[dtype] = meant.code == COMPLEX
    return is_complex


def _settle_tensorflow(x: Any) -> Any:
    """The value of a variable; a refusal of what TensorFlow's own export answers by ending the process."""
    if not hasattr(type(x), "__dlpack__") and hasattr(x, "read_value"):
        x = x.read_value()
    name = getattr(getattr(x, "dtype", None), "name", "")
    if name in ("string", "resource", "variant"):
        raise UnsupportedTensorError(f"a TensorFlow tensor of {name} holds no numbers", field="dtype")
    if not hasattr(type(x), "__dlpack__"):
        raise UnsupportedTensorError(f"{type(x).__module__}.{type(x).__qualname__} is no dense tensor")
    return x
