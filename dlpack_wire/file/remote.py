"""Tensor files behind URLs, by fsspec: read by ranges, written as a stream."""

from __future__ import annotations

import secrets
from typing import Any

from ..errors import TruncatedError
from .storage import FetchedBytes

RANGE_BYTES = 8 << 20
"""Large reads are cut into ranges of this size, which file systems fetch in parallel."""

RANGE_COUNT = 8
"""Ranges that are in flight at once: what bounds the memory that a read takes beyond its result."""


def is_url(path: Any) -> bool:
    """Whether a path names a place that fsspec has to reach."""
    return isinstance(path, str) and "://" in path


def _locate(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError("URLs need the extra: pip install 'dlpack-wire[remote]'", name=error.name) from error
    found: tuple[Any, str] = url_to_fs(url)
    return found


class RemoteBytes(FetchedBytes):
    """A file behind a URL. Only what is asked for travels, and a little more around small reads."""

    def __init__(self, url: str) -> None:
        """Ask for the file's size.

        Raises:
            OSError: It cannot be reached.
        """
        self._system, self._path = _locate(url)
        size = self._system.size(self._path)
        if size is None:
            raise OSError(f"{url}: the server does not tell the file's size")
        super().__init__(size)

    def fetch(self, into: memoryview, begin: int) -> None:
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
    """A file being written to a URL. What was there before stays until it is published.

    Attributes:
        stream: What to write to.
    """

    def __init__(self, url: str) -> None:
        """Begin it.

        Raises:
            OSError: It cannot be reached.
        """
        self._system, self._path = _locate(url)
        # Object stores show a file once its upload is committed. Where a file is seen as soon as it is begun, it is
        # written beside its place and moved there.
        self._temporary: str | None = f"{self._path}.{secrets.token_hex(8)}.dlpw-tmp"
        self.stream = self._system.open(self._temporary, "wb", autocommit=False)
        if not getattr(self.stream, "autocommit", True):
            self.stream.discard()
            self._temporary = None
            self.stream = self._system.open(self._path, "wb", autocommit=False)

    def publish(self) -> None:
        """Put the file in its place."""
        self.stream.close()
        if self._temporary is None:
            self.stream.commit()
        else:
            self._system.mv(self._temporary, self._path)

    def discard(self) -> None:
        """Drop what was written."""
        if self._temporary is None:
            self.stream.discard()
        else:
            self.stream.close()
            self._system.rm(self._temporary)
