"""A number of bytes that is given out and never exceeded."""

from __future__ import annotations

import threading
from collections import deque

from .status import Refusal


class Budget:
    """Bytes to be reserved and released.

    Attributes:
        limit: How many there are.
    """

    def __init__(self, limit: int, used: int = 0, flag: str = "--max-store-bytes") -> None:
        """Bytes of which some are given out already.

        Args:
            limit: How many there are.
            used: How many are given out; may be over the limit.
            flag: What sets the limit.
        """
        self.limit = limit
        self._flag = flag
        self._used = used
        self._lock = threading.Lock()
        # Bytes are often released by a finalizer, which may run anywhere, also in this thread while it has the lock.
        self._released: deque[int] = deque()

    @property
    def used(self) -> int:
        """How many are given out."""
        with self._lock:
            self._settle()
            return self._used

    def reserve(self, size: int) -> None:
        """Take bytes.

        Raises:
            Refusal: STORE_FULL: nothing stored is ever dropped to make room.
        """
        with self._lock:
            self._settle()
            used = self._used
            if used + size <= self.limit:
                self._used = used + size
                return
        text = f"{size} bytes do not fit: {used} of {self.limit} ({self._flag}) are in use"
        raise Refusal("STORE_FULL", text)

    def release(self, size: int) -> None:
        """Give bytes back. Takes no lock."""
        self._released.append(size)

    def _settle(self) -> None:
        while self._released:
            self._used -= self._released.popleft()
