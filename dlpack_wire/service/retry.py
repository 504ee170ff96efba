"""When a call is tried again after an error, and after which pause."""

from __future__ import annotations

from ..errors import RemoteError
from .script import Pause

RECONNECT_S = 4.0
"""Seconds that a client waits for a lost server unless it is told otherwise: a restart takes one or two."""


class Backoff:
    """Retry policy after a lost connection: pauses that grow, for a limited time, counted anew after progress."""

    _PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)
    _SCALE = 1.0  # of the pauses: 0 in tests

    def __init__(self, reconnect_s: float | None = RECONNECT_S) -> None:
        """Begin without errors.

        Args:
            reconnect_s: Seconds to wait in all, None: for ever.
        """
        self._reconnect_s = reconnect_s
        self.progress()

    def progress(self) -> None:
        """Note that something went well again."""
        self._tried = 0
        self._waited_s = 0.0

    def pause(self, error: RemoteError) -> Pause:
        """Return the pause before the next try.

        Raises:
            RemoteError: `error` itself: the time is over, or trying again cannot help.
        """
        seconds = self._PAUSES_S[min(self._tried, len(self._PAUSES_S) - 1)]
        if self._reconnect_s is not None:
            seconds = min(seconds, self._reconnect_s - self._waited_s)
        if not may_pass(error) or seconds <= 0:
            raise error
        self._tried += 1
        self._waited_s += seconds
        return Pause(seconds * self._SCALE)


def may_pass(error: RemoteError) -> bool:
    """Return True for an error after which the same call may succeed later."""
    return error.code == "UNAVAILABLE" or error.reason == "UPLOAD_IN_PROGRESS"
