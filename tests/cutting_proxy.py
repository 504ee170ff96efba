"""A way to a server that breaks when it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class CuttingProxy:
    """Passes bytes between clients and one server, and cuts connections after so many bytes.

    Attributes:
        address: Where clients connect to.
        cuts_left: After how many bytes in either direction the next connections break.
        connection_count: Connections made so far.
    """

    def __init__(self, target: str, cuts: Sequence[int]) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.cuts_left = list(cuts)
        self.connection_count = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self.connection_count += 1
                self._sockets += [client, server]
                room = [self.cuts_left.pop(0) if self.cuts_left else 1 << 60]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, room), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, room: list[int]) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                room[0] -= len(content)
                if room[0] < 0:
                    break
                sink.sendall(content)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()  # with bytes unread this is a reset, as when a server dies

    def close(self) -> None:
        """Break everything."""
        with self._lock:
            ends = [self._listener, *self._sockets]
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def cutting(target: str, *cuts: int) -> Iterator[CuttingProxy]:
    """A proxy whose first connections break after `cuts` bytes, later ones never."""
    proxy = CuttingProxy(target, cuts)
    try:
        yield proxy
    finally:
        proxy.close()
