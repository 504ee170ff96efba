"""Tags of the fields of a tensor file, by the names of the schema; see `message.tags`."""

from __future__ import annotations

from ..message.tags import packed_tag, tag
from ..v1 import tensor_file_pb2

_FILE = tensor_file_pb2.TensorFile.DESCRIPTOR
_RECORD = tensor_file_pb2.TensorRecord.DESCRIPTOR
_INDEX = tensor_file_pb2.TensorFileIndex.DESCRIPTOR
_ENTRY = tensor_file_pb2.TensorFileIndex.Entry.DESCRIPTOR

MAGIC = tag(_FILE, "magic")
RECORD = tag(_FILE, "records")
INDEX = tag(_FILE, "indexes")
INDEX_OFFSET = tag(_FILE, "index_offset")
INDEX_SUM = tag(_FILE, "index_xxh3_64")
END_MAGIC = tag(_FILE, "end_magic")

NAME = tag(_RECORD, "name")
ALIAS = tag(_RECORD, "aliases")
METADATA = tag(_RECORD, "metadata")
HEADER_SUM = tag(_RECORD, "header_xxh3_64")
TENSOR = tag(_RECORD, "tensor")

REPEATED_NUMBERS = (ALIAS >> 3, METADATA >> 3)
"""Numbers of the fields that may stand several times in a record or entry; `NAMES_END` is the last of them."""

NAMES_END = METADATA >> 3
"""Number of the last field of names and metadata."""

ENTRY = tag(_INDEX, "entries")
FILE_METADATA = tag(_INDEX, "metadata")
BASE_OFFSET = tag(_INDEX, "base_index_offset")
BASE_SUM = tag(_INDEX, "base_index_xxh3_64")

ENTRY_HEADER = tag(_ENTRY, "header")
BLOCK_SUMS = packed_tag(_ENTRY, "block_sums")
RECORD_OFFSET = tag(_ENTRY, "record_offset")
DATA_OFFSET = tag(_ENTRY, "data_offset")
DATA_BYTES = tag(_ENTRY, "data_bytes")

ENTRY_CRITICAL = range(6, 9)
"""Reserved fields of an entry that a reader must understand or refuse; 9 to 12 may be ignored."""
