"""Collections of tensors: which of them are the same memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _abi
from .codec import source_of
from .errors import WireError
from .metadata import MAX_ALIASES
from .tensor import Tensor
from .v1 import dlpack_pb2


def is_tensor(x: Any) -> bool:
    """Whether x is one tensor rather than a collection of them."""
    if isinstance(x, (np.ndarray, np.generic, Tensor, dlpack_pb2.DLTensor)) or _abi.is_capsule(x):
        return True
    return hasattr(type(x), "__dlpack__") or (hasattr(type(x), "to_dlpack") and not isinstance(x, Mapping))


def tied(tensors: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """The further names of each tensor that is stored, by the name it is stored under; None if no two are the same.

    Only tensors that could share memory are compared: the same object, or views of one array.
    """
    roots = {name: _root(x) for name, x in tensors.items()}
    common = {root for root, count in Counter(roots.values()).items() if count > 1}
    if not common:
        return None
    stored: dict[str, list[str]] = {}
    first: dict[Any, str] = {}
    for name, x in tensors.items():
        key = None
        if roots[name] in common:
            try:
                with source_of(x) as source:
                    key = source.identity()
            except WireError as error:
                raise error.at(tensor=name) from error.__cause__
        if key is not None and key in first and len(stored[first[key]]) < MAX_ALIASES:
            stored[first[key]].append(name)
        else:
            stored[name] = []
            if key is not None:
                first[key] = name
    return stored


def _root(x: Any) -> int:
    """Equal for two tensors if they may share memory."""
    if isinstance(x, Tensor):
        x = x._array
    if isinstance(x, np.ndarray):
        while x.base is not None:
            if not isinstance(x.base, np.ndarray):
                return id(x.base.obj if isinstance(x.base, memoryview) else x.base)
            x = x.base
        return id(x)
    storage = getattr(x, "untyped_storage", None)  # torch
    if storage is not None and not getattr(x, "is_sparse", False):
        return hash(("storage", storage().data_ptr()))
    return id(x)
