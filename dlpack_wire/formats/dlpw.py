"""Our own tensor files, as one format among the others."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator

from ..errors import EncodeError
from ..file import open as open_file
from ..file.reader import FileReader, contents_of
from ..file.remote import is_url
from ..file.writer import FileWriter
from ..message.names import MAX_ALIASES
from .items import Content, Item, ties
from .paths import is_stream, open_source, replaced


@contextlib.contextmanager
def read(path: str, wanted: Container[str] | None = None) -> Iterator[Content]:
    """Open a tensor file. Each tensor is verified when it is loaded."""
    with open_file(path, verify=True) if is_url(path) else FileReader(open_source(path), path, verify=True) as f:
        items = [_item(f, name, ordinal) for name, ordinal in contents_of(f).ordinals()]
        yield Content(items, dict(f.metadata), stored_bytes=contents_of(f).source.size)


def _item(f: FileReader, name: str, ordinal: int) -> Item:
    header = f.header(name)
    return Item(name, header.dtype, header.shape, lambda: f[name], f.metadata_of(name), ordinal)


def write(path: str, content: Content, durable: bool) -> None:
    """Write all tensors, each once, however many names it has."""
    if len(content.items) > 1 and any(not item.name for item in content.items):
        raise EncodeError("one of several tensors has no name", field="name")
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(replaced(path, durable)) if is_stream(path) else path
        f = stack.enter_context(FileWriter(target, metadata=content.metadata, durable=durable))
        for same in ties(content.items):
            # A record has no more names than that: the next ones get a copy.
            for begin in range(0, len(same), MAX_ALIASES + 1):
                first, *others = same[begin : begin + MAX_ALIASES + 1]
                f.write(first.name, first.load(), aliases=[o.name for o in others], metadata=first.metadata)
