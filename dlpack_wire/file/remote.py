"""Tensor files behind URLs, by fsspec: read by ranges, written as a stream."""

from __future__ import annotations

import secrets
from typing import Any

from ..errors import TruncatedError
from .storage import FetchedBytes

RANGE_BYTES = 8 << 20
"""Large reads are cut into ranges of this size, which file systems fetch in parallel. Object stores advise 8 to 16 MiB:
less costs more requests, more fetches fewer ranges at once.
"""

RANGE_COUNT = 8
"""Ranges in flight at once; with their size they bound the memory that a read takes beyond its result."""


def is_url(path: Any) -> bool:
    """Return True if a path is a URL, which fsspec has to reach."""
    return isinstance(path, str) and "://" in path


def _locate(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError("URLs need the extra: pip install 'dlpack-wire[remote]'", name=error.name) from error
    found: tuple[Any, str] = url_to_fs(url)
    return found


class RemoteBytes(FetchedBytes):
    """A file behind a URL. Only the bytes asked for travel, and a little more around small reads."""

    def __init__(self, url: str) -> None:
        """Ask for the file's size.

        Raises:
            OSError: The URL cannot be reached.
            ImportError: fsspec or the URL's own package is not installed.
        """
        self._system, self._path = _locate(url)
        size = self._system.size(self._path)
        if size is None:
            raise OSError(f"{url}: the server does not tell the file's size")
        super().__init__(size)

    def fetch(self, into: memoryview, begin: int) -> None:
        """Fill memory with ranges fetched in parallel."""
        for group in range(0, len(into), RANGE_BYTES * RANGE_COUNT):
            stop = min(group + RANGE_BYTES * RANGE_COUNT, len(into))
            starts = list(range(group, stop, RANGE_BYTES))
            ends = [*starts[1:], stop]
            parts = self._system.cat_ranges(
                [self._path] * len(starts),
                [begin + start for start in starts],
                [begin + end for end in ends],
                on_error="raise",
            )
            for start, end, part in zip(starts, ends, parts, strict=True):
                if len(part) != end - start:
                    raise TruncatedError(
                        f"asked for {end - start} bytes at {begin + start}, got {len(part)}",
                        needed=end - start,
                        available=len(part),
                        offset=begin + start,
                    )
                into[start:end] = part


class RemoteTarget:
    """A file being written to a URL. The old file stays until this one is published.

    Attributes:
        stream: Stream to write to.
    """

    def __init__(self, url: str) -> None:
        """Begin the file.

        Raises:
            OSError: The URL cannot be reached.
            ImportError: fsspec or the URL's own package is not installed.
        """
        self._system, self._path = _locate(url)
        # Object stores show a file once its upload is committed. Elsewhere a file is seen as soon as it is begun, so it
        # is written under another name and moved.
        self._temporary: str | None = f"{self._path}.{secrets.token_hex(8)}.dlpw-tmp"
        self.stream = self._system.open(self._temporary, "wb", autocommit=False)
        if not getattr(self.stream, "autocommit", True):
            self.stream.discard()
            self._temporary = None
            self.stream = self._system.open(self._path, "wb", autocommit=False)

    def publish(self) -> None:
        """Commit the upload, or move the file to its path."""
        self.stream.close()
        if self._temporary is None:
            self.stream.commit()
        else:
            self._system.mv(self._temporary, self._path)

    def discard(self) -> None:
        """Drop the written bytes."""
        if self._temporary is None:
            self.stream.discard()
        else:
            self.stream.close()
            self._system.rm(self._temporary)
