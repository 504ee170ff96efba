"""A log of tensors: (topic, time, tensor) appended to an MCAP file, which existing tools open.

Every message is a serialized `DLTensor`; its schema stands in the file. Needs the extra `dlpack-wire[log]`.
"""

from __future__ import annotations

try:
    import mcap  # noqa: F401
except ImportError as error:
    raise ImportError("logs need the extra: pip install 'dlpack-wire[log]'", name=error.name) from error

from .reader import LogReader, LogRecord
from .writer import LogWriter

__all__ = ["LogReader", "LogRecord", "LogWriter"]
