"""The program: a server put together from its options, started, and brought to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from grpc import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

import dlpack_wire

from . import heap
from .auth import Authorizer
from .calls import CallLimits
from .certificates import Certificates
from .directory_store import DirectoryStore
from .grpc_calls import GrpcCall, handlers, trailers
from .health import SERVICE_NAME, Health
from .hub import Hub
from .listen import UNIX, AddressError, NoAddressError, check_free, claim_unix, is_private, split
from .log_output import configure
from .memory_store import MemoryStore
from .metrics import Metrics
from .options import Options, parse
from .puts import ObjectLimits
from .scrub import Scrub
from .service import SERVICE, TensorService
from .status import Refusal, status_of
from .store import Store
from .unfinished import UnfinishedPuts

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),  # two servers on one port would share its clients at random
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_concurrent_streams", 2000),
    # When a fleet comes back all at once, gRPC would otherwise cancel some of the calls that wait to be taken up.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 30_000),
    # Accept uncompressed messages only: a few kilobytes could inflate to megabytes before any check of ours.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.server_handshake_timeout_ms", 10_000),  # for connections that say nothing
    # Clients ping after 30 s of silence; more often than every 10 s is too eager and ends the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # newer versions of gRPC go by this one
]

_log = logging.getLogger(__name__)


_TRIM_S = 5.0
"""Seconds between returns of free memory to the system. A trim takes a millisecond; a peak is gone soon enough."""

_SWEEP_S = 1.0
"""Seconds between looks for stalled and revoked calls to end."""

_COLLECT_S = 1.0
"""Seconds between collections of unreachable objects: what comes in a second takes milliseconds to look through."""

_COLLECT_ALL_S = 600.0
"""The same for collections of all. One takes 0.2 s for a million objects."""

_FAREWELL_S = 0.5
"""Seconds that publishers and subscribers have to hear that the server ends: many round trips in a data centre."""


_SWITCH_S = 0.001
"""Seconds that a thread may run Python while the event loop waits; by default 5 ms, times the number of threads."""


class StartError(Exception):
    """The server cannot start as it is configured.

    Attributes:
        code: Exit code: 2 for an invalid configuration, 3 for a missing file, 5 if the system refused.
    """

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def _start_error(error: Exception) -> StartError:
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return StartError(f"{where}{error.strerror or error}", 3 if isinstance(error, FileNotFoundError) else 5)
    usage = isinstance(error, (NoAddressError, ValueError))
    return StartError(str(error), 2 if usage else 5)


class Server:
    """A server: start it, stop it.

    Attributes:
        addresses: Addresses it listens on, with the real ports.
        metrics_address: Address it serves metrics on, or None.
        instance_id: 32 hex digits, new at each start.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ending = contextlib.ExitStack()
        self._chores: list[asyncio.Task[None]] = []
        self.addresses: list[str] = []
        self.metrics_address: str | None = None
        self.instance_id = secrets.token_hex(16)

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: The options contradict each other, a file cannot be used, or an address cannot be bound.
        """
        options = self._options
        retention_ns = int(options.upload_retention_s * 1e9)
        try:
            self._authorizer = authorizer = Authorizer(options.token_file, options.tls_client_ca is not None)
            credentials = _tls_credentials(options)
        except (OSError, ValueError) as error:
            raise _start_error(error) from None
        self._server = aio.server(options=CHANNEL_OPTIONS)
        try:
            store = _open_store(options, retention_ns)
            pace = options.scrub_bytes_per_s
            scrub = Scrub(store, pace) if pace and isinstance(store, DirectoryStore) else None
            self._ending.callback(store.close)
            self._unfinished = _unfinished_puts(options, store, retention_ns)
            hub = Hub(options.max_topic_bytes or _physical_memory() // 4, options.max_subscribers)
            metrics = self._open_metrics(store, hub)
            limits = ObjectLimits(payload_bytes=options.max_object_bytes)
            self._service = TensorService(
                store, self._unfinished, hub, authorizer, metrics, self.instance_id, limits, CallLimits()
            )
            self._ending.callback(self._service.close)
            self._add_services(self._service, authorizer)
            self.addresses = [self._listen(address, credentials) for address in options.listen]
            await self._server.start()
        except (AddressError, OSError) as error:
            await self._abandon()
            raise _start_error(error) from None
        except BaseException:
            await self._abandon()
            raise
        self._health.serve()
        if scrub is not None:
            metrics.count("scrubbed_bytes", "Payload bytes read and checked.", lambda: scrub.checked_bytes)
            metrics.watch("damaged_objects", "Objects found damaged.", lambda: scrub.damaged_count)
            self._chores.append(asyncio.create_task(scrub.run()))
        self._chores += [
            asyncio.create_task(self._expire(options.upload_retention_s)),
            asyncio.create_task(self._trim()),
            asyncio.create_task(self._sweep()),
        ]

    def reload(self) -> None:
        """Read the tokens again."""
        self._authorizer.reload()

    def _open_metrics(self, store: Store, hub: Hub) -> Metrics:
        metrics = Metrics()
        metrics.watch("store_bytes", "Bytes of all objects in the store.", lambda: store.budget.used)
        metrics.watch(
            "store_limit_bytes",
            "Maximum bytes of all objects: the limit, or less if the disk has less space.",
            lambda: store.limit_bytes,
        )
        metrics.watch("unfinished_uploads", "Unfinished puts that can be resumed.", lambda: len(self._unfinished))
        metrics.count("stalled_calls", "Calls ended because nobody sent or took.", lambda: self._service.stalled_count)
        metrics.watch("subscribers", "Subscriptions that are open.", lambda: len(hub.subscriptions))
        metrics.watch("topics", "Topics that frames were published on.", lambda: hub.topic_count)
        metrics.watch("topic_bytes", "Bytes of all frames that are kept.", lambda: hub.budget.used)
        metrics.count("frames", "Frames published.", lambda: hub.frame_count)
        metrics.count("dropped_frames", "Frames that a subscriber did not get.", lambda: hub.dropped_count)
        if self._options.metrics_listen is not None:
            if self._options.metrics_listen.startswith(UNIX):
                raise NoAddressError("--metrics-listen takes host:port, and no Unix socket")
            host, port = split(self._options.metrics_listen)
            bound, end = metrics.serve(host, port)
            self._ending.callback(end)
            self.metrics_address = f"{self._options.metrics_listen.rpartition(':')[0]}:{bound}"
        return metrics

    def _add_services(self, service: TensorService, authorizer: Authorizer) -> None:
        self._health = Health(("", SERVICE.full_name))
        self._server.add_generic_rpc_handlers((handlers(service),))
        self._server.add_generic_rpc_handlers((self._health.handlers(),))
        names = (SERVICE.full_name, SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names, authorizer), self._server)

    def _listen(self, address: str, credentials: grpc.ServerCredentials | None) -> str:
        if address.startswith(UNIX):
            path = address.removeprefix(UNIX)
            self._ending.enter_context(claim_unix(path))
            mask = os.umask(0o177)  # the socket is for its owner alone, from its first moment
            try:
                self._server.add_insecure_port(address)
            finally:
                os.umask(mask)
            return address
        if credentials is None and not self._options.insecure and not is_private(address):
            raise NoAddressError(
                f"{address} would be open to other machines in plain text: give --tls-cert and --tls-key, "
                "or --insecure if that is meant"
            )
        check_free(address)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0  # what older versions answer
        if port == 0:
            raise AddressError(f"cannot listen on {address}")
        return f"{address.rpartition(':')[0]}:{port}"

    async def _abandon(self) -> None:
        await self._server.stop(None)
        self._ending.close()

    async def _expire(self, retention_s: float) -> None:
        while True:
            await asyncio.sleep(min(max(retention_s / 4, 0.05), 10))
            self._unfinished.expire()

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(_TRIM_S)
            await asyncio.to_thread(heap.trim)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._service.sweep()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those that are running go on for a while, then end."""
        for chore in self._chores:
            chore.cancel()
        self._health.drain()
        self._service.drain()
        stopping = asyncio.create_task(self._server.stop(grace_s))
        await self._service.quiet(grace_s)
        # Publishers and subscribers have been told to go; those who do not listen are cut.
        await asyncio.wait([stopping], timeout=min(grace_s, _FAREWELL_S))
        await self._server.stop(None)
        await stopping
        self._ending.close()


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Reflection for callers with credentials. Health, which anybody may ask, is open."""

    def __init__(self, names: Iterable[str], authorizer: Authorizer) -> None:
        super().__init__(names)
        self._authorizer = authorizer

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        try:
            self._authorizer.caller(GrpcCall(context))
        except Refusal as error:
            status = status_of(error)
            await context.abort(grpc.StatusCode[status.code], status.text, trailers(status))
        async for response in super().ServerReflectionInfo(request_iterator, context):
            yield response


def described(options: Options) -> str:
    """Return what a start says of the store and of who may connect."""
    store = "objects in memory" if options.dir is None else f"objects in {options.dir}"
    tls = "plain text" if options.tls_cert is None else "TLS"
    if options.tls_client_ca is not None:
        tls += " with client certificates"
    if options.token_file is not None:
        access = f"tokens of {options.token_file}"
    elif options.tls_client_ca is not None:
        access = "no tokens: open to every client with a certificate"
    elif all(address.startswith(UNIX) for address in options.listen):
        access = "no tokens: open to this user"
    elif all(address.startswith(UNIX) or is_private(address) for address in options.listen):
        access = "no tokens: open to every user of this machine"
    else:
        access = "no tokens: open to everybody who can connect"
    return f"{store}; {tls}; {access}"


def _open_store(options: Options, retention_ns: int) -> Store:
    if options.dir is not None:
        return DirectoryStore(options.dir, options.max_store_bytes, retention_ns)
    return MemoryStore(options.max_store_bytes or _physical_memory() // 2, retention_ns)


def _unfinished_puts(options: Options, store: Store, retention_ns: int) -> UnfinishedPuts:
    if options.max_unfinished_bytes:
        return UnfinishedPuts(retention_ns, options.max_unfinished_bytes)
    # One object may fill the store, but several that never end must leave others some of it.
    return UnfinishedPuts(retention_ns, store.budget.limit, store.limit_bytes // 2)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _tls_credentials(options: Options) -> grpc.ServerCredentials | None:
    if options.tls_cert is None and options.tls_key is None and options.tls_client_ca is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise StartError("TLS needs both --tls-cert and --tls-key")
    return Certificates(options.tls_cert, options.tls_key, options.tls_client_ca).credentials()


def serve(options: Options, ready: Callable[[list[str]], None]) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends at once.

    Args:
        options: The configuration.
        ready: Called once, with the addresses that are listened on.

    Raises:
        StartError: The server cannot start.
    """
    configure(options.log_format, options.log_level)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every large object takes a descriptor
    sys.setswitchinterval(_SWITCH_S)
    asyncio.run(_serve(options, ready))


async def _serve(options: Options, ready: Callable[[list[str]], None]) -> None:
    server = Server(options)
    await server.start()
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            os._exit(1)  # asked twice: nothing may hold it up any more
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    # Certificates are read at each handshake anyhow. Without a handler this signal would end the server undrained.
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    _log.info("dlpack-wire %s: %s", dlpack_wire.__version__, described(options))
    if server.metrics_address is not None:
        _log.info("metrics at http://%s/metrics", server.metrics_address)
    collecting = asyncio.create_task(_collect())
    ready(server.addresses)
    await asked.wait()
    collecting.cancel()
    _log.info("draining for up to %g s", options.grace_s)
    await server.stop(options.grace_s)


async def _collect() -> None:
    """Free unreachable objects as long as the process lives; not in `Server`, which may run in another's process."""
    heap.tend()
    all_at_s = time.monotonic() + _COLLECT_ALL_S
    while True:
        await asyncio.sleep(_COLLECT_S)
        now = time.monotonic()
        heap.collect(everything=now > all_at_s)
        if now > all_at_s:
            all_at_s = now + _COLLECT_ALL_S


def main(arguments: list[str] | None = None) -> int:
    """Run the server from its command line; return the exit code."""
    options = parse(arguments)

    def ready(addresses: list[str]) -> None:
        for address in addresses:
            print(f"listening on {address}", flush=True)

    try:
        serve(options, ready)
    except StartError as error:
        print(f"dlpack-wire serve: {error}", file=sys.stderr)
        return error.code
    return 0
