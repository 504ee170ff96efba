"""Numbers for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _MethodMetrics(NamedTuple):
    """The metrics of one method."""

    running: Gauge
    seconds: Histogram
    ended: dict[str, Counter]


class _Count(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._text, value=self._read())


class Metrics:
    """What one server counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "dlpack_wire_calls", "Calls that ended, by method and status.", ["method", "code"], registry=self._registry
        )
        self._seconds = Histogram(
            "dlpack_wire_call_seconds",
            "How long calls took.",
            ["method"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._running = Gauge(
            "dlpack_wire_running_calls", "Calls that are running.", ["method"], registry=self._registry
        )
        self._received = Counter(
            "dlpack_wire_received_payload_bytes", "Payload bytes taken in.", registry=self._registry
        )
        self._sent = Counter(
            "dlpack_wire_sent_bytes", "Bytes of the messages that hand out payloads.", registry=self._registry
        )
        self._methods: dict[str, _MethodMetrics] = {}

    def begin(self, method: str) -> float:
        """A call begins; what is returned is for `end`."""
        self._of(method).running.inc()
        return time.perf_counter()

    def end(self, method: str, begun: float, code: str) -> None:
        """It ended with that status."""
        of = self._of(method)
        of.running.dec()
        of.seconds.observe(time.perf_counter() - begun)
        ended = of.ended.get(code)
        if ended is None:
            ended = of.ended[code] = self._calls.labels(method, code)
        ended.inc()

    def _of(self, method: str) -> _MethodMetrics:
        # Looking labels up takes longer than counting.
        found = self._methods.get(method)
        if found is None:
            found = _MethodMetrics(self._running.labels(method), self._seconds.labels(method), {})
            self._methods[method] = found
        return found

    def received(self, size: int) -> None:
        """Payload bytes came in."""
        self._received.inc(size)

    def sent(self, size: int) -> None:
        """A message with payload went out."""
        self._sent.inc(size)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a number that somebody else keeps."""
        Gauge(f"dlpack_wire_{name}", text, registry=self._registry).set_function(read)

    def count(self, name: str, text: str, read: Callable[[], float]) -> None:
        """As `watch`, for a number that only grows."""
        self._registry.register(_Count(f"dlpack_wire_{name}", text, read))

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve all numbers over HTTP at `/metrics`; returns the port and what ends it.

        Raises:
            OSError: The address cannot be had.
        """
        server, thread = start_http_server(port, host, self._registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, end
