"""Reading a tensor file: a mapping from names to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from weakref import WeakValueDictionary

from ..errors import DecodeError
from ..message.names import MAX_NAMES_BYTES, Value, decode_map, split_names
from ..tensor.header import Header
from ..tensor.tensor import Tensor, from_payload, is_foreign
from .contents import FileContents
from .entry import CheckedEntry
from .lazy import LazyTensor
from .storage import FetchedBytes, Storage


class FileReader(Mapping[str, Tensor]):
    """A tensor file open for reading: a mapping from names to tensors.

    `f["w"]` reads no payload; `f["w"][2:5]` only touches the elements it selects. Asked for twice, it is the same
    memory. The memory is writable and private: writing to it never changes the file. Not safe against another process
    that cuts the file short after it was opened: if the shorter size is seen before access, it is an error, else the
    access ends the process (SIGBUS); `mmap=False` always gives an error.

    Memory:
        Every tensor keeps the mapping alive, also after `close`.
    """

    def __init__(self, source: Storage, where: str, verify: bool = False) -> None:
        """Open bytes as a tensor file; users call `dlpack_wire.open`.

        Args:
            source: The file's bytes; closed with this object.
            where: Name of the file in errors.
            verify: Check the blocks of a payload that are used, once each. Behind a URL that is always done.

        Raises:
            DecodeError: Not a tensor file, or damaged at its end.
        """
        self._source = source
        self._where = where
        self._verify = verify
        self._closed = False
        self._checked: dict[int, set[int]] = {}  # blocks that have been verified, by ordinal
        # Tensors that are not views of one mapping, so that asking twice gives the same memory.
        self._held: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._metadata: dict[str, Value] | None = None
        try:
            self._contents = FileContents(source, where)
        except BaseException:
            self.close()
            raise

    # --- tensors ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor of a name, without reading its payload.

        With `verify=True`, with `mmap=False` and for a URL, the tensor reads its payload at its first use. That use
        raises DecodeError if the payload is cut short or, where it is verified, damaged, and OSError if reading fails.

        Raises:
            KeyError: The file has no such name.
            ChecksumError: Its header was damaged.
            DecodeError: Its record breaks a rule of the contract.
            ValueError: The file is closed.
            OSError: Reading failed.
        """
        ordinal = self._ordinal(name)
        try:
            return self._tensor(ordinal)
        except DecodeError as error:
            error.at(path=self._where, tensor=name)
            raise

    def read(self, name: str) -> Tensor:
        """Return a tensor whose whole payload has been read, and verified if this reader verifies.

        Raises:
            KeyError, DecodeError, ValueError, OSError: As for `f[name]`.
        """
        tensor = self[name]
        if isinstance(tensor, LazyTensor):
            try:
                tensor.load()
            except DecodeError as error:
                error.at(path=self._where, tensor=name)
                raise
        return tensor

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._contents.ordinals())

    def __len__(self) -> int:
        return len(self._contents)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._contents.ordinal_of(name) is not None

    def __repr__(self) -> str:
        return f"<FileReader {self._where!r} with {len(self)} names>"

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def torn_bytes(self) -> int:
        """Bytes after the last complete generation: an append that runs, or was killed."""
        return self._contents.torn_bytes

    @property
    def metadata(self) -> dict[str, Value]:
        """User metadata of the file.

        Raises:
            DecodeError: The metadata is malformed.
        """
        if self._metadata is None:
            self._metadata = self._contents.metadata()
        return self._metadata

    def header(self, name: str) -> Header:
        """Return a tensor's header, as recorded.

        Raises:
            KeyError: The file has no such name.
            DecodeError: The record or its entry is damaged.
            ValueError: The file is closed.
            OSError: Reading failed.
        """
        return self._entry(name).header

    def names_of(self, name: str) -> list[str]:
        """Return every name of the same tensor.

        Raises:
            KeyError: The file has no such name.
            DecodeError: The tensor's entry is damaged.
            ValueError: The file is closed.
        """
        ordinal = self._ordinal(name)
        try:
            return self._contents.names(ordinal)
        except DecodeError as error:
            error.at(path=self._where, tensor=name)
            raise

    def metadata_of(self, name: str) -> dict[str, Value]:
        """Return a tensor's user metadata.

        Raises:
            KeyError: The file has no such name.
            DecodeError: The record or its entry is damaged.
            ValueError: The file is closed.
            OSError: Reading failed.
        """
        entry = self._entry(name).entry
        try:
            return decode_map(split_names(entry.names)[1], MAX_NAMES_BYTES)
        except DecodeError as error:
            error.at(path=self._where, tensor=name)
            raise

    def _entry(self, name: str) -> CheckedEntry:
        self._check_open()
        return self._contents.locate(name)

    def _ordinal(self, name: str) -> int:
        self._check_open()
        return self._contents.ordinal(name)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._where} is closed")

    def _tensor(self, ordinal: int) -> Tensor:
        held = self._held.get(ordinal)
        if held is not None:
            return held
        located = self._contents.entry(ordinal)
        header, entry = located.header, located.entry
        source = self._source
        if entry.data_bytes and (self._verify or isinstance(source, FetchedBytes)):
            checked = self._checked.setdefault(ordinal, set()) if self._verify else None
            where = self._where, entry.names
            tensor: Tensor = LazyTensor(header, source, entry.data_offset, located.sums, checked, where)
            self._held[ordinal] = tensor
            return tensor
        buffer, begin = source.memory(entry.data_offset, entry.end)
        tensor = from_payload(header, None, buffer, begin)
        if is_foreign(header):
            self._held[ordinal] = tensor
        return tensor

    # --- ending -------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> str:
        raise TypeError("an open file cannot be sent to another process: send its path")

    def close(self) -> None:
        """Close the file. Tensors taken from it stay usable."""
        self._closed = True
        self._source.close()

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def contents_of(reader: FileReader) -> FileContents:
    """Return the contents behind a reader: for this package, not for users."""
    return reader._contents
