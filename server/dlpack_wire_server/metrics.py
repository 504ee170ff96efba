"""Numbers for Prometheus."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Histogram, Metric, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PREFIX = "dlpack_wire_"

MAX_HTTP_CONNECTIONS = 16
"""Connections to the metrics at a time: each has a thread, and few programs ask."""

_HTTP_TIMEOUT_S = 5.0
"""Seconds that a request for the metrics may take to come. It is one packet."""


class Metrics(Collector):
    """The counters of one server, kept as plain numbers, because those of the library take a lock for each update.

    Attributes:
        received_bytes: Payload bytes that came in.
        sent_bytes: Bytes of the messages that hand out payloads.
    """

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self._running: Counter[str] = Counter()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._watched: list[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[], float]]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._seconds = Histogram(
            f"{_PREFIX}call_seconds", "How long calls took.", ["method"], buckets=_SECONDS, registry=self._registry
        )
        self._seconds_of: dict[str, Histogram] = {}  # looking labels up takes longer than counting
        self.count("received_payload_bytes", "Payload bytes taken in.", lambda: self.received_bytes)
        self.count("sent_bytes", "Bytes of the messages that hand out payloads.", lambda: self.sent_bytes)

    def begin(self, method: str) -> float:
        """Note the begin of a call; return its time, for `end`."""
        self._running[method] += 1
        return time.perf_counter()

    def end(self, method: str, begun: float, code: str) -> None:
        """Note the end of a call and its status."""
        self._running[method] -= 1
        self._ended[method, code] += 1
        seconds = self._seconds_of.get(method)
        if seconds is None:
            seconds = self._seconds_of[method] = self._seconds.labels(method)
        seconds.observe(time.perf_counter() - begun)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a number that another object keeps."""
        self._watched.append((GaugeMetricFamily, name, text, read))

    def count(self, name: str, text: str, read: Callable[[], float]) -> None:
        """As `watch`, for a number that only grows."""
        self._watched.append((CounterMetricFamily, name, text, read))

    def collect(self) -> Iterator[Metric]:
        """Yield all numbers as they are now; called by the library in a thread of its own."""
        running = GaugeMetricFamily(f"{_PREFIX}running_calls", "Calls that are running.", labels=["method"])
        for method, count in list(self._running.items()):
            running.add_metric([method], count)
        yield running
        ended = CounterMetricFamily(
            f"{_PREFIX}calls", "Calls that ended, by method and status.", labels=["method", "code"]
        )
        for labels, count in list(self._ended.items()):
            ended.add_metric(labels, count)
        yield ended
        for family, name, text, read in self._watched:
            yield family(f"{_PREFIX}{name}", text, value=read())

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve all numbers over HTTP at `/metrics`; return the port and a function that ends it.

        Raises:
            OSError: The address cannot be bound.
        """
        server = _HttpServer((host, port), _HttpRequest)
        server.set_app(make_wsgi_app(self._registry))
        thread = threading.Thread(target=server.serve_forever, name="dlpack-wire-metrics", daemon=True)
        thread.start()

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, end


class _HttpRequest(WSGIRequestHandler):
    """A request to the metrics, ended if it does not come in time."""

    timeout = _HTTP_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: whoever asks, asks every few seconds."""


class _HttpServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics, in a thread for each connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(MAX_HTTP_CONNECTIONS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, without asking DNS for the name of this machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, or close it if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then let another one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()
