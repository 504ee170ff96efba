"""The C heap of this process. glibc does not return memory after a peak by itself."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Return free pages of the heap to the system, where its C library can."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
