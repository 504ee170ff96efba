"""Zip archives of tensors: members that are stored as they are lie in the file's mapping."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import cast

from ..errors import DecodeError
from ..file.storage import MemoryBytes, Storage

_LOCAL_HEADER = struct.Struct("<4s22xHH")


class Archive:
    """A zip archive. Its names are only names: nothing is ever extracted to a path."""

    def __init__(self, source: Storage) -> None:
        """Read the directory.

        Raises:
            DecodeError: It is no zip archive, or has a member twice.
        """
        self._source = source
        try:
            self._file = zipfile.ZipFile(_Raw(source))
        except (zipfile.BadZipFile, OSError, ValueError, struct.error) as error:
            raise DecodeError(f"not a zip archive: {error}") from None
        self._members = {info.filename: info for info in self._file.infolist() if not info.is_dir()}
        if len(self._members) != sum(not info.is_dir() for info in self._file.infolist()):
            raise DecodeError("two members of the archive have the same name")

    def members(self) -> list[str]:
        """Names of all members, in the order of the directory."""
        return list(self._members)

    def read(self, member: str, limit: int) -> bytes:
        """Return a small member.

        Raises:
            DecodeError: There is none, it is damaged, or larger than `limit`.
        """
        source, begin, size = self.content(member, limit)
        return bytes(source.read(begin, begin + size))

    def content(self, member: str, limit: int | None = None) -> tuple[Storage, int, int]:
        """Where the bytes of a member lie: (source, position, size).

        Raises:
            DecodeError: There is none, it is damaged, or larger than `limit`.
        """
        info = self._members.get(member)
        if info is None:
            raise DecodeError(f"the archive has no {member!r}")
        if limit is not None and info.file_size > limit:
            raise DecodeError(f"{member!r} has {info.file_size} bytes; at most {limit} are read")
        if info.compress_type != zipfile.ZIP_STORED:
            try:
                content = self._file.read(info)
            except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, OSError) as error:
                raise DecodeError(f"{member!r} cannot be decompressed: {error}") from None
            return MemoryBytes(bytearray(content)), 0, len(content)
        begin = info.header_offset + _LOCAL_HEADER.size
        if begin > self._source.size:
            raise DecodeError(f"{member!r} lies outside the archive")
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(self._source.read(info.header_offset, begin))
        begin += name_bytes + extra_bytes
        if signature != b"PK\x03\x04" or begin + info.file_size > self._source.size:
            raise DecodeError(f"{member!r} lies outside the archive")
        return self._source, begin, info.file_size


class _Raw(io.RawIOBase):
    """A file object over bytes, for the zip module."""

    def __init__(self, source: Storage) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError(f"position {base + offset} of a file")
        self._position = base + offset
        return self._position

    def readinto(self, into: object) -> int:
        view = memoryview(cast(bytearray, into)).cast("B")
        begin = min(self._position, self._source.size)
        end = min(begin + len(view), self._source.size)
        view[: end - begin] = self._source.read(begin, end)
        self._position = end
        return end - begin
