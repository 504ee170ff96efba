"""The server's log: lines for people, or JSON for programs."""

from __future__ import annotations

import json
import logging


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line of JSON."""
        entry: dict[str, object] = {
            "time_ns": int(record.created * 1e9),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _says_something(record: logging.LogRecord) -> bool:
    """Return False for what gRPC says when a caller is gone before it got its status: that is no fault of anybody."""
    return not str(record.msg).startswith("ExecuteBatchError raised in core")


def configure(form: str, level: str) -> None:
    """Send the log to standard error.

    Args:
        form: "text" or "json".
        level: Name of the least level shown.
    """
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_says_something)
