"""A temporary file that replaces another one, or leaves no trace."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from typing import Any

_SUFFIX = ".dlpw-tmp"
_ATTEMPTS = 100
"""Temporaries made before giving up: each fails only if another writer removes it before it is locked."""


class Replacement:
    """A temporary file that replaces its target when it is published.

    It stands beside its target, is locked for as long as its writer lives, and is renamed over it. Temporaries
    of writers that died are removed by the next writer of the same target. A target that exists and is not a
    regular file (a pipe, a device) is written directly.

    Attributes:
        fd: Descriptor to write to.
        in_place: True if it is the target's own descriptor, which cannot be positioned.
    """

    def __init__(self, path: Any, durable: bool = True) -> None:
        """Create the temporary.

        Args:
            path: The target. Symlinks are followed.
            durable: Wait in `publish` until file and name are on disk.

        Raises:
            OSError: The folder cannot be written to, or the target is a folder.
        """
        target = os.path.realpath(os.fsdecode(path))
        self._target = target
        self._durable = durable
        self._folder, name = os.path.split(target)
        # The name of a temporary must fit where the target's own name may already be as long as is allowed.
        self._stem = f".{os.fsdecode(os.fsencode(name)[:100])}."
        self.fd = -1
        mode = _mode_of(target)
        self.in_place = mode is not None and not stat.S_ISREG(mode)
        if self.in_place:
            self.fd = os.open(target, os.O_WRONLY | os.O_CLOEXEC)  # a folder is refused here
            return
        self._remove_dead()
        try:
            self._path = self._create(0o666 if mode is None else stat.S_IMODE(mode) & 0o666)
        except OSError as error:
            error.filename = target  # the user knows that name, not the temporary's
            raise
        try:
            if mode is not None:
                os.fchmod(self.fd, stat.S_IMODE(mode))
        except BaseException:
            self.discard()
            raise

    def _create(self, mode: int) -> str:
        """Open a new locked temporary, at no moment readable by more than its target."""
        for _ in range(_ATTEMPTS):
            path = os.path.join(self._folder, f"{self._stem}{secrets.token_hex(8)}{_SUFFIX}")
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with contextlib.suppress(OSError):  # some network disks have no locks; then nothing is ever cleaned up
                fcntl.flock(self.fd, fcntl.LOCK_EX)
            # Before it was locked, another writer may have taken it for a dead one's.
            if os.fstat(self.fd).st_nlink:
                return path
            os.close(self.fd)
            self.fd = -1
        raise FileExistsError(errno.EEXIST, "every temporary file was removed by others", self._folder)

    def _remove_dead(self) -> None:
        try:
            names = [n for n in os.listdir(self._folder) if n.startswith(self._stem) and n.endswith(_SUFFIX)]
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            except OSError:
                pass  # its writer lives, or another one was quicker
            finally:
                os.close(fd)

    def publish(self, exclusive: bool = False) -> None:
        """Rename the temporary to the target.

        Args:
            exclusive: Only if there is no target.

        Raises:
            FileExistsError: `exclusive` is set and there is a target.
            OSError: Writing or renaming failed.
        """
        if self._durable and not self.in_place:
            os.fsync(self.fd)
        if not self.in_place:
            if exclusive:
                os.link(self._path, self._target)
                os.unlink(self._path)
            else:
                os.rename(self._path, self._target)
        fd, self.fd = self.fd, -1
        os.close(fd)
        if self._durable and not self.in_place:
            sync_folder(self._folder)

    def discard(self) -> None:
        """Remove the temporary."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            if not self.in_place:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
            os.close(fd)


def _mode_of(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def sync_folder(path: str) -> None:
    """Wait until a folder's entries are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
