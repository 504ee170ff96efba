"""A byte budget: reserve, release, never exceeded."""

from __future__ import annotations

import threading
from collections import deque

from .status import Refusal


class Budget:
    """Bytes to be reserved and released.

    Attributes:
        limit: Maximum bytes that may be reserved at the same time.
    """

    def __init__(self, limit: int, used: int = 0, what: str = "--max-store-bytes") -> None:
        """Begin with some bytes reserved already.

        Args:
            limit: Maximum bytes.
            used: Bytes reserved already; may be over the limit.
            what: For the error: flag that sets the limit, or what the bytes are.
        """
        self.limit = limit
        self._what = what
        self._used = used
        self._lock = threading.Lock()
        # Bytes are often released by a finalizer, which may run anywhere, also in this thread while it has the lock.
        self._released: deque[int] = deque()

    @property
    def used(self) -> int:
        """Bytes reserved now."""
        with self._lock:
            self._apply_releases()
            return self._used

    def reserve(self, size: int) -> None:
        """Reserve bytes.

        Raises:
            Refusal: STORE_FULL, if fewer bytes are free. Stored objects are never dropped.
        """
        with self._lock:
            self._check(size)
            self._used += size

    def check(self, size: int) -> None:
        """Refuse bytes that would not fit now, without reserving them.

        Raises:
            Refusal: STORE_FULL, if fewer bytes are free.
        """
        with self._lock:
            self._check(size)

    def _check(self, size: int) -> None:
        self._apply_releases()
        if self._used + size > self.limit:
            text = f"{size} bytes do not fit: {self._used} of {self.limit} ({self._what}) are in use"
            raise Refusal("STORE_FULL", text)

    def release(self, size: int) -> None:
        """Return bytes. Takes no lock."""
        self._released.append(size)

    def _apply_releases(self) -> None:
        while self._released:
            self._used -= self._released.popleft()
