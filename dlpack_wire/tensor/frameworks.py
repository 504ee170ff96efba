"""Tensors that frameworks export wrongly or not at all: lazy views, shells, tensors without numbers.

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
    """Return a function that prepares objects of this type for export (detach, resolve conj/neg, read variables).

    None if they need none.
    """
    if _is_torch(x):
        return _normalise_torch
    if type(x).__module__.startswith("tensorflow."):
        return _normalise_tensorflow
    return None


def storage_key(x: Any) -> int:
    """Return equal numbers for two torch tensors whose values lie in the same memory; 0 where that is not known."""
    if not _has_memory(x):
        return 0
    try:
        return hash(("storage", x.untyped_storage().data_ptr()))
    except (RuntimeError, NotImplementedError):  # wrappers and functional tensors have none
        return 0


def memory_key(x: Any) -> Hashable:
    """Return a key that living torch tensors of one address, shape, strides and dtype share; None if not known."""
    if not _has_memory(x) or not x.numel():
        return None
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def _has_memory(x: Any) -> bool:
    """Return True for a torch tensor whose values lie in memory as they are."""
    return _is_torch(x) and x.layout is _torch_strided() and not x.is_meta and not is_lazy(x)


def is_lazy(x: Any) -> bool:
    """Return True if the values of x are not those in its memory."""
    return _is_torch(x) and (x.is_conj() or x.is_neg())


def _is_torch(x: Any) -> bool:
    """Return True for a torch tensor; torch itself is never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _normalise_torch(x: Any) -> Any:
    """Return the logical values: without gradient, lazy conjugation or negation.

    Raises:
        UnsupportedTensorError: The tensor has no dense values in memory.
    """
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


@lru_cache(maxsize=1)  # found once torch is there: it need not be when this module is imported
def _torch_strided() -> Any:
    return sys.modules["torch"].strided


_TORCH_DTYPES: dict[Any, bool] = {}
"""torch dtypes that torch exports rightly, with True for the complex ones. Not a Memo: torch has only so many."""


def _check_torch_dtype(dtype: Any) -> bool:
    name = str(dtype).removeprefix("torch.")
    try:
        meant = DType("float4_e2m1fnx2" if name == "float4_e2m1fn_x2" else name)
    except EncodeError as error:
        raise UnsupportedTensorError(f"torch.{name} has no counterpart in DLPack: {error}", field="dtype") from None
    if meant.bits < 8 and meant.lanes == 1:
        # torch exports them as plain 8-bit integers, and says nothing of how many values a byte holds.
        raise UnsupportedTensorError(
            f"torch.{name} does not say how its values are packed; view the bytes as torch.uint8", field="dtype"
        )
    is_complex = _TORCH_DTYPES[dtype] = meant.code == COMPLEX
    return is_complex


def _normalise_tensorflow(x: Any) -> Any:
    """Return the value of a variable.

    Raises:
        UnsupportedTensorError: TensorFlow's own export would end the process for this dtype, or has none.
    """
    if not hasattr(type(x), "__dlpack__") and hasattr(x, "read_value"):
        x = x.read_value()
    name = getattr(getattr(x, "dtype", None), "name", "")
    if name in ("string", "resource", "variant"):
        raise UnsupportedTensorError(f"a TensorFlow tensor of {name} holds no numbers", field="dtype")
    if not hasattr(type(x), "__dlpack__"):
        raise UnsupportedTensorError(f"{type(x).__module__}.{type(x).__qualname__} is not a dense tensor")
    return x
