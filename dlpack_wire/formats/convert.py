"""Conversion of tensor files to and from other formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import EncodeError, WireError
from . import dlpw, npy, onnx, safetensors, torch
from .items import Content, Item, check_names, payload_bytes


class Format(NamedTuple):
    """A kind of file.

    Attributes:
        suffixes: Suffixes of its files' names.
        read: Function that opens a file. It raises OSError, and DecodeError if the file is damaged.
        write: Function that writes a file: (path, content, durable). It raises OSError, EncodeError if the format
            cannot hold the content, and DecodeError if a tensor turns out to be damaged when it is loaded.
    """

    suffixes: tuple[str, ...]
    read: Callable[[str], AbstractContextManager[Content]]
    write: Callable[[str, Content, bool], None]


FORMATS = {
    "dlpw": Format((".dlpw",), dlpw.read, dlpw.write),
    "npy": Format((".npy",), npy.read_npy, npy.write_npy),
    "npz": Format((".npz",), npy.read_npz, npy.write_npz),
    "safetensors": Format((".safetensors",), safetensors.read, safetensors.write),
    "onnx": Format((".onnx",), onnx.read, onnx.write),
    "torch": Format((".pt", ".pth", ".jit"), torch.read, torch.write),
}


class Conversion(NamedTuple):
    """The result of a conversion.

    Attributes:
        names: Names of the tensors, in the order they were written.
        skipped: Descriptions of everything else in the source, which was left behind.
    """

    names: list[str]
    skipped: list[str]


def convert(
    source: Any,
    target: Any,
    *,
    source_format: str | None = None,
    target_format: str | None = None,
    only: str | None = None,
    without_metadata: bool = False,
    durable: bool = True,
    progress: Callable[[str, int], None] | None = None,
) -> Conversion:
    """Convert a file of tensors to another format, tensor by tensor.

    Every element, name and piece of metadata arrives unchanged, or the conversion is refused. The code of a model is
    left behind: of ONNX only the initializers are read, of torch files only the tensors and plain values, and nothing
    in a file is ever run.

    Args:
        source: Path of the file to read.
        target: Path of the file to write, replaced atomically. The data of ONNX models of about 1 GiB and more goes
            to a second file, named as this one with ".data" behind it.
        source_format: One of "dlpw", "npy", "npz", "safetensors", "onnx" and "torch"; by default, the suffix decides.
        target_format: Likewise.
        only: Convert this tensor alone, and leave its name behind: for one of several to become a .npy file.
        without_metadata: Leave all metadata behind, for a target that cannot hold it.
        durable: Wait until the target is on disk.
        progress: Called with the name of each tensor and its bytes before it is written. If it raises an exception,
            nothing is written.

    Returns:
        The names that were written, and descriptions of what was left behind.

    Raises:
        DecodeError: The source is damaged, or its format is another one than its suffix or `source_format` says.
        EncodeError: The target cannot hold the source's contents, a format is unknown, or `only` is not in the source.
        FileNotFoundError: The source does not exist.
        OSError: The source could not be read, or the target not written.
        TypeError: A path is neither text, bytes nor path-like.

    Memory:
        One tensor at a time. A tensor that lies in the source as it will be written takes none: it is mapped.
    """
    path_in, path_out = os.fsdecode(source), os.fsdecode(target)
    reader = FORMATS[_format_of(path_in, source_format)]
    writer = FORMATS[_format_of(path_out, target_format)]
    with reader.read(path_in) as content:
        content = _chosen(content, only, without_metadata)
        if progress is not None:
            content = replace(content, items=[_reporting(item, progress) for item in content.items])
        try:
            check_names(content)
            writer.write(path_out, content, durable)
        except WireError as error:
            error.at(path=path_out if isinstance(error, EncodeError) else path_in)
            raise
        return Conversion([item.name for item in content.items], content.skipped)


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


def _chosen(content: Content, only: str | None, without_metadata: bool) -> Content:
    items = content.items
    if only is not None:
        items = [replace(item, name="", identity=None) for item in items if item.name == only]
        if not items:
            raise EncodeError(f"the source has no tensor {only!r}", field="name")
    if without_metadata:
        return Content([replace(item, metadata={}) for item in items], {}, content.skipped)
    return replace(content, items=items)


def _reporting(item: Item, progress: Callable[[str, int], None]) -> Item:
    """Return the item, whose loading calls `progress` first."""

    def load() -> Any:
        progress(item.name, payload_bytes(item))
        return item.load()

    return replace(item, load=load)
