"""Zip archives of tensors. Uncompressed members are read in place, out of the file's mapping.

Source: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7 for the header in front of each member. The
directory is parsed by Python's `zipfile`.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, cast

from ..errors import ChecksumError, DecodeError, LimitError
from ..file.storage import Storage
from ..tensor.memory import Buffer

_LOCAL_HEADER = struct.Struct("<26xHH")
"""Header in front of a member; read are the sizes of its name and of extra fields."""

_PIECE_BYTES = 1 << 20
"""Bytes that are decompressed at a time: bounds what an announced size can make the decompressor allocate."""


class Archive:
    """A zip archive. Its names are only names: nothing is ever extracted to a path."""

    def __init__(self, source: Storage, sums_optional: bool = False) -> None:
        """Read the directory.

        Args:
            source: The archive's bytes.
            sums_optional: Take an archive whose sums are all 0 for one without sums, as torch can be told to write.

        Raises:
            DecodeError: The bytes are not a zip archive, or two members have the same name.
        """
        self._source = source
        with _refusing("not a zip archive"):
            self._file = zipfile.ZipFile(_Raw(source))
        # Not `is_dir`, which fails for a member without a name. A folder that has bytes is no folder.
        members = [info for info in self._file.infolist() if info.file_size or not info.filename.endswith("/")]
        self._members = {info.filename: info for info in members}
        if len(self._members) != len(members):
            raise DecodeError("two members of the archive have the same name")
        self._has_sums = not sums_optional or any(info.CRC for info in members)
        self._summed: set[str] = set()

    def members(self) -> list[str]:
        """Return the names of all members, in the order of the directory."""
        return list(self._members)

    def read(self, member: str, limit: int) -> bytes:
        """Return the bytes of a small member.

        Raises:
            ChecksumError: The bytes do not match the member's sum.
            DecodeError: The member is missing or damaged.
            LimitError: The member is larger than `limit`.
        """
        size = self._info(member).file_size
        if size > limit:
            raise LimitError(f"{member!r} has {size} bytes; at most {limit} are read", declared=size, limit=limit)
        self.check_sum(member)
        source, begin, size = self.content(member)
        return bytes(source.read(begin, begin + size))

    def content(self, member: str) -> tuple[Storage, int, int]:
        """Return the storage in which the bytes of a member lie, their position in it, and their number.

        Raises:
            DecodeError: The member is missing, encrypted or lies outside the archive, or its header says otherwise
                than the directory.
        """
        info = self._info(member)
        with _refusing(f"{member!r} cannot be read"):
            self._file.open(info).close()  # zipfile compares the header with the directory
        if info.compress_type != zipfile.ZIP_STORED:
            return _CompressedBytes(self._file, info), 0, info.file_size
        begin = info.header_offset + _LOCAL_HEADER.size
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack(self._source.read(info.header_offset, begin))
        begin += name_bytes + extra_bytes
        if begin + info.file_size > self._source.size or info.compress_size != info.file_size:
            raise DecodeError(f"{member!r} lies outside the archive")
        return self._source, begin, info.file_size

    def check_sum(self, member: str, compressed: bool = False) -> None:
        """Check the CRC-32 of a member, once.

        Args:
            member: Its name.
            compressed: Check compressed members too; else leave them to their `content`, which checks them when it
                is read to its end.

        Raises:
            ChecksumError: The bytes do not match it.
            DecodeError: The member is missing, or lies outside the archive.
        """
        source, begin, size = self.content(member)
        if source is not self._source:
            if compressed:
                with _refusing(f"{member!r} cannot be decompressed"), self._file.open(self._info(member)) as content:
                    while content.read(_PIECE_BYTES):
                        pass
            return
        if member in self._summed or not self._has_sums:
            return
        expected = self._info(member).CRC
        actual = zlib.crc32(source.read(begin, begin + size))
        if actual != expected:
            raise ChecksumError(
                f"{member!r} does not match its checksum: stored {expected:08x}, computed {actual:08x}",
                expected=expected,
                actual=actual,
            )
        self._summed.add(member)

    def _info(self, member: str) -> zipfile.ZipInfo:
        info = self._members.get(member)
        if info is None:
            raise DecodeError(f"the archive has no {member!r}")
        return info


class _CompressedBytes:
    """A compressed member. It is decompressed anew for each read: kept, it would stay in memory with all the others."""

    def __init__(self, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._file = file
        self._info = info
        self.size = info.file_size

    def read(self, begin: int, end: int) -> Buffer:
        """Decompress everything up to `end`; reaching the end of the member checks its sum."""
        content = bytearray()
        with _refusing(f"{self._info.filename!r} cannot be decompressed"), self._file.open(self._info) as member:
            while len(content) < end:
                piece = member.read(min(end - len(content), _PIECE_BYTES))
                if not piece:
                    raise EOFError(f"it has {len(content)} bytes and announces {self.size}")
                content += piece
        return memoryview(content)[begin:]

    def memory(self, begin: int, end: int) -> tuple[Any, int]:
        """Decompress into fresh memory."""
        return self.read(begin, end), 0

    def close(self) -> None:
        """Do nothing: nothing is held."""


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn every error of `zipfile` into a DecodeError."""
    try:
        yield
    except DecodeError:
        raise
    except Exception as error:
        # It lets through whatever its decompressors and struct raise, and nothing lists these types.
        raise DecodeError(f"{what}: {str(error) or type(error).__name__}") from error


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
