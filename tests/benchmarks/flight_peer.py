"""An Arrow Flight server that keeps what is put and gives it back, in a process of its own: prints its port."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as flight


class Server(flight.FlightServerBase):
    """Tables in memory, by the first word of their path."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._tables: dict[bytes, pa.Table] = {}

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._tables[descriptor.path[0]] = reader.read_all()

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._tables[ticket.ticket])


if __name__ == "__main__":
    server = Server()
    print(server.port, flush=True)
    server.serve()
