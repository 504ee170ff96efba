"""Collections of tensors: which of them are the same memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from ..tensor import abi
from ..tensor.frameworks import memory_key, storage_key
from ..tensor.tensor import Tensor
from ..v1 import dlpack_pb2
from .names import MAX_ALIASES


def is_tensor(x: Any) -> bool:
    """Whether x is one tensor rather than a collection of them."""
    if isinstance(x, (np.ndarray, np.generic, Tensor, dlpack_pb2.DLTensor)) or abi.is_capsule(x):
        return True
    return hasattr(type(x), "__dlpack__") or (hasattr(type(x), "to_dlpack") and not isinstance(x, Mapping))


def tied(tensors: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """The further names of each tensor that is stored, by the name it is stored under; None if no two are the same.

    Two are the same if they are one object, or views of one memory with equal place, shape, strides and type. Only a
    dict is looked at: another mapping may make its values anew whenever it is asked, at addresses that come again.
    """
    if not isinstance(tensors, dict):
        return None
    roots = {name: _root(x) for name, x in tensors.items()}
    common = {root for root, count in Counter(roots.values()).items() if count > 1}
    if not common:
        return None
    stored: dict[str, list[str]] = {}
    first: dict[Hashable, str] = {}
    for name, x in tensors.items():
        key = _key(x) if roots[name] in common else None
        if key is not None and key in first and len(stored[first[key]]) < MAX_ALIASES:
            stored[first[key]].append(name)
        else:
            stored[name] = []
            if key is not None:
                first[key] = name
    return stored


def _root(x: Any) -> int:
    """Equal for two tensors if they may share memory."""
    if type(x) is Tensor:
        x = x._array
    if isinstance(x, np.ndarray):
        while x.base is not None:
            if not isinstance(x.base, np.ndarray):
                return id(x.base.obj if isinstance(x.base, memoryview) else x.base)
            x = x.base
        return id(x)
    return storage_key(x) or id(x)


def _key(x: Any) -> Hashable:
    """Equal for two tensors, both alive, if and only if they are the same memory in the same layout.

    It is taken from the tensor itself, never from an export of it, which may be a copy that is gone at once.
    """
    array, more = (x._array, x.header) if type(x) is Tensor else (x, None)
    if isinstance(array, np.ndarray):
        if not array.size:
            return id(x)
        return array.ctypes.data, array.shape, array.strides, array.dtype.str, array.dtype.num, more
    return memory_key(x) or id(x)
