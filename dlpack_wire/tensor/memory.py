"""Host memory: the type of buffers, and fresh memory with the alignment that consumers expect."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview

MEMORY_ALIGNMENT = 64
"""Alignment in bytes of memory that this package allocates: a cache line, and every vector register."""

# Python has the constant from 3.11 on; the value is Linux's. Without it the kernel refuses maps larger than RAM.
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def empty_aligned(size: int) -> np.ndarray[Any, Any]:
    """Return fresh memory of `size` bytes, aligned to 64."""
    block = np.empty(size + MEMORY_ALIGNMENT, np.uint8)
    begin = -block.ctypes.data % MEMORY_ALIGNMENT
    return block[begin : begin + size]


def unreserved(size: int) -> memoryview:
    """Return zeroed memory, of any size, whose pages are allocated when they are written to."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE))
