"""Conversion of tensor files to and from other formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import EncodeError, LimitError, WireError
from . import dlpw, npy, onnx, safetensors, torch
from .items import Content, Item, check_names, payload_bytes, ties


class Format(NamedTuple):
    """A kind of file.

    Attributes:
        suffixes: Suffixes of its files' names.
        read: Function that opens a file: (path, wanted). Tensors of names that are not in `wanted`, if it is not None,
            need not be looked at. It raises OSError, and DecodeError if the file is damaged.
        write: Function that writes a file: (path, content, durable). It raises OSError, EncodeError if the format
            cannot hold the content, and DecodeError if a tensor turns out to be damaged when it is loaded.
        keeps_ties: True if it writes a tensor of several names once.
        keeps_names: True if its tensors have names.
    """

    suffixes: tuple[str, ...]
    read: Callable[[str, Container[str] | None], AbstractContextManager[Content]]
    write: Callable[[str, Content, bool], None]
    keeps_ties: bool = False
    keeps_names: bool = True


FORMATS = {
    "dlpw": Format((".dlpw",), dlpw.read, dlpw.write, keeps_ties=True),
    "npy": Format((".npy",), npy.read_npy, npy.write_npy, keeps_names=False),
    "npz": Format((".npz",), npy.read_npz, npy.write_npz),
    "safetensors": Format((".safetensors",), safetensors.read, safetensors.write),
    "onnx": Format((".onnx",), onnx.read, onnx.write),
    "torch": Format((".pt", ".pth", ".jit"), torch.read, torch.write, keeps_ties=True),
}

MAX_GROWTH = 1032
"""Maximum bytes of tensors for each byte of the source: what DEFLATE makes of zeros, and so an honest archive."""

_SMALL_BYTES = 16 << 20
"""Size up to which tensors are written whatever the source's size: a small file may well hold an expanded view."""


class Conversion(NamedTuple):
    """The result of a conversion.

    Attributes:
        names: Names of the tensors, in the order they were written.
        skipped: Descriptions of everything else in the source, which was left behind.
        notes: Descriptions of what was lost although every tensor was written: a tensor of several names that became
            several, views of one storage that became separate, attributes of an OrderedDict.
    """

    names: list[str]
    skipped: list[str]
    notes: tuple[str, ...] = ()


def convert(
    source: Any,
    target: Any,
    *,
    source_format: str | None = None,
    target_format: str | None = None,
    only: str | Iterable[str] | None = None,
    without_metadata: bool = False,
    durable: bool = True,
    progress: Callable[[str, int], None] | None = None,
) -> Conversion:
    """Convert a file of tensors to another format, tensor by tensor.

    Every element, name and piece of metadata arrives unchanged, or the result says that it was left behind, or the
    conversion is refused. The code of a model is no part of this: of ONNX only the tensors and metadata are read, of
    torch files only the tensors and plain values, and nothing in a file is ever run.

    Args:
        source: Path of the file to read.
        target: Path of the file to write, replaced atomically; pipes and devices are written as it goes. The data of
            ONNX models of about 1 GiB and more goes to a second file, named as this one with ".data" behind it.
        source_format: One of "dlpw", "npy", "npz", "safetensors", "onnx" and "torch"; by default, the suffix decides.
        target_format: Likewise.
        only: Convert the tensors of this name or these names alone, and look at no others. If the target is a .npy
            file, which cannot hold a name, the one tensor is written without its name.
        without_metadata: Leave all metadata behind, for a target that cannot hold it.
        durable: Wait until the target is on disk.
        progress: Called with the name of each tensor and its bytes before it is written. If it raises an exception,
            nothing is written.

    Returns:
        The names that were written, and descriptions of what was left behind.

    Raises:
        DecodeError: The source is damaged, its format is another one than its suffix or `source_format` says, or its
            tensors are more than 1032 times as large as itself.
        EncodeError: The target cannot hold the source's contents, a format is unknown, or `only` is not in the source.
        FileNotFoundError: The source does not exist.
        OSError: The source could not be read, or the target not written.
        TypeError: A path is neither text, bytes nor path-like.
        ImportError: A URL needs the extra `dlpack-wire[remote]`.

    Memory:
        One tensor at a time. A tensor that lies in the source as it will be written takes none: it is mapped.
    """
    path_in, path_out = os.fsdecode(source), os.fsdecode(target)
    reader = FORMATS[_format_of(path_in, source_format)]
    writer = FORMATS[_format_of(path_out, target_format)]
    wanted = None if only is None else dict.fromkeys([only] if isinstance(only, str) else only)
    with reader.read(path_in, wanted) as content:
        content = _chosen(content, wanted, without_metadata, writer)
        if progress is not None:
            content = replace(content, items=[_reporting(item, progress) for item in content.items])
        try:
            check_names(content)
            _check_growth(content, writer)
            writer.write(path_out, content, durable)
        except WireError as error:
            error.at(path=path_out if isinstance(error, EncodeError) else path_in)
            raise
        return Conversion([item.name for item in content.items], content.skipped, tuple(_notes(content, writer)))


def _format_of(path: str, named: str | None) -> str:
    if named is not None:
        if named not in FORMATS:
            raise EncodeError(f"unknown format {named!r}; known are {', '.join(FORMATS)}", field="format")
        return named
    for name, kind in FORMATS.items():
        if path.lower().endswith(kind.suffixes):
            return name
    known = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
    raise EncodeError(f"{path!r} does not end with one of {known}; name its format", field="format")


def _chosen(content: Content, wanted: Collection[str] | None, without_metadata: bool, writer: Format) -> Content:
    if wanted is not None:
        items = [item for item in content.items if item.name in wanted]
        missing = [name for name in wanted if name not in {item.name for item in items}]
        if missing or not items:
            raise EncodeError(f"the source has no tensor {', '.join(map(repr, missing)) or 'of no name'}", field="name")
        if len(items) == 1 and not writer.keeps_names:
            items = [replace(items[0], name="")]
        content = replace(content, items=items, skipped=[], notes=[])
    if without_metadata:
        content = replace(content, items=[replace(item, metadata={}) for item in content.items], metadata={})
    return content


def _check_growth(content: Content, writer: Format) -> None:
    """Raise DecodeError if a small source would become a huge file: its tensors overlap, or were made to inflate."""
    written = [same[0] for same in ties(content.items)] if writer.keeps_ties else content.items
    size = sum(map(payload_bytes, written))
    limit = max(MAX_GROWTH * content.stored_bytes, _SMALL_BYTES)
    if size > limit:
        raise LimitError(
            f"{size} bytes of tensors in a source of {content.stored_bytes}; at most {limit} are written",
            declared=size,
            limit=limit,
        )


def _notes(content: Content, writer: Format) -> list[str]:
    tied = [] if writer.keeps_ties else [same for same in ties(content.items) if len(same) > 1]
    named = [(" = ".join(item.name for item in same[:5]), len(same)) for same in tied]
    return content.notes + [f"{names}: one tensor of {count} names, written {count} times" for names, count in named]


def _reporting(item: Item, progress: Callable[[str, int], None]) -> Item:
    """Return the item, whose loading calls `progress` first."""

    def load() -> Any:
        progress(item.name, payload_bytes(item))
        return item.load()

    return replace(item, load=load)
