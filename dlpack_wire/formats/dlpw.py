"""Our own tensor files, as one format among the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import EncodeError
from ..file import open as open_file
from ..file.reader import FileReader, contents_of
from ..file.writer import FileWriter
from ..message.names import MAX_ALIASES
from .items import Content, Item


@contextlib.contextmanager
def read(path: str) -> Iterator[Content]:
    """Open a tensor file. Each tensor is verified when it is loaded."""
    with open_file(path, verify=True) as f:
        yield Content([_item(f, name, ordinal) for name, ordinal in contents_of(f).ordinals()], dict(f.metadata))


def _item(f: FileReader, name: str, ordinal: int) -> Item:
    header = f.header(name)
    return Item(name, header.dtype, header.shape, lambda: f[name], f.metadata_of(name), ordinal)


def write(path: str, content: Content, durable: bool) -> None:
    """Write all tensors, each once, however many names it has."""
    names: dict[object, list[Item]] = {}
    for item in content.items:
        same = names.setdefault((item.identity,) if item.identity is not None else item.name, [])
        if len(same) > MAX_ALIASES:  # a record has no more: the next names get a copy each
            same = names.setdefault((item.identity, item.name), [])
        same.append(item)
    if len(content.items) > 1 and any(not item.name for item in content.items):
        raise EncodeError("one of several tensors has no name", field="name")
    with FileWriter(path, metadata=content.metadata, durable=durable) as f:
        for same in names.values():
            aliases = [item.name for item in same[1:]]
            f.write(same[0].name, same[0].load(), aliases=aliases, metadata=same[0].metadata)
