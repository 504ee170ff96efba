"""Collections of tensors: finding those that are the same memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from ..tensor.frameworks import memory_key, storage_key
from ..tensor.tensor import Tensor
from .names import MAX_ALIASES


def stored_once(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield (name, tensor, further names) of each tensor of a mapping; those that share memory and layout once."""
    stored = tied(tensors)
    for name, tensor in tensors.items():
        if stored is None:
            yield name, tensor, []
        elif name in stored:
            yield name, tensor, stored[name]


def tied(tensors: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """Return the further names of each tensor that is stored, by the name it is stored under; None if no two are equal.

    Two are the same if they are one object, or views of one memory with equal address, shape, strides and type.
    Only dicts are looked at: other mappings may create values on access, so two values can reuse one address.
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
    """Return equal numbers for two tensors that may share memory."""
    if type(x) is Tensor:
        x = x.storage
    if isinstance(x, np.ndarray):
        while x.base is not None:
            if not isinstance(x.base, np.ndarray):
                return id(x.base.obj if isinstance(x.base, memoryview) else x.base)
            x = x.base
        return id(x)
    return storage_key(x) or id(x)


def _key(x: Any) -> Hashable:
    """Return equal keys for two living tensors if and only if they are the same memory in the same layout.

    The key is taken from the tensor itself, never from an export of it, which may be a copy that is freed at once.
    """
    array, more = (x.storage, x.header) if type(x) is Tensor else (x, None)
    if isinstance(array, np.ndarray):
        if not array.size:
            return id(x)
        return array.ctypes.data, array.shape, array.strides, array.dtype.str, array.dtype.num, more
    return memory_key(x) or id(x)
