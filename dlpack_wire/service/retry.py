"""When a call is tried again after an error, and after which pause."""

from __future__ import annotations

from ..errors import RemoteError
from .script import Pause


class Backoff:
    """Retry policy after a lost connection: five tries with growing delays, counted anew after progress."""

    _DELAYS = (0.05, 0.2, 0.5, 1.0, 2.0)

    def __init__(self) -> None:
        self._tried = 0

    def progress(self) -> None:
        """Note that something went well again."""
        self._tried = 0

    def pause(self, error: RemoteError) -> Pause:
        """Return the pause before the next try.

        Raises:
            RemoteError: `error` itself: no try is left, or trying again cannot help.
        """
        may_pass = error.code == "UNAVAILABLE" or error.reason == "UPLOAD_IN_PROGRESS"
        if not may_pass or self._tried == len(self._DELAYS):
            raise error
        self._tried += 1
        return Pause(self._DELAYS[self._tried - 1])
