"""The memory of this process: what Python's collector looks through, and what the C library gives back."""

from __future__ import annotations

import ctypes
import gc

_NEVER = 1 << 30


def tend() -> None:
    """Leave the collection of old objects to `collect`.

    Python looks through all objects whenever a quarter of them is new. A store of a few million tensors' descriptions
    would hold up every call for a second.
    """
    gc.set_threshold(700, 10, _NEVER)


def collect(everything: bool = False) -> None:
    """Free unreachable cycles among the objects that came since the last time, and look at the others no more.

    Args:
        everything: Look at all objects. Some became unreachable after they were looked at.
    """
    if everything:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def trim() -> None:
    """Return free pages of the C heap to the system, where its library can: glibc does not by itself."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
