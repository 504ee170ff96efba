"""The blocking client of a tensor server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from ..errors import RemoteError
from ..message.names import Metadata
from ..tensor.tensor import Tensor
from .connection import Connected, Connection
from .drivers import Driver
from .operations import ObjectInfo, ServerInfo
from .retry import RECONNECT_S
from .script import Script
from .tls import Tls
from .topics import Frame, Policy, Publishing, Subscribing
from .upload import Progress

_T = TypeVar("_T")


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: Tls | None = None,
    timeout: float | None = None,
    reconnect_s: float | None = RECONNECT_S,
) -> Client:
    """Make a client of a tensor server. The connection itself is made by the first operation.

    Args:
        address: `host:port`, `unix:/path`, or a URL: `grpc://host:port`, or `grpcs://host:port` for TLS.
        token: Bearer token, if the server asks for one.
        tls: Speak TLS; `Tls()` trusts the system's authorities.
        timeout: Maximum seconds that one operation may take; None: as long as the server answers at all.
        reconnect_s: Seconds that operations and subscriptions wait for a server that was lost; None: for ever.

    Returns:
        A client to be closed, best by `with`.

    Raises:
        ValueError: The address has another form, the token is not printable ASCII, `tls` has only one of certificate
            and key, or `reconnect_s` is negative.
        TypeError: `address` is not a str, or `tls` is not a `Tls`.
        OSError: A file of `tls` cannot be read.
        RuntimeError: This process was forked from one that had a client, which gRPC does not survive.
    """
    return Client(address, token=token, tls=tls, timeout=timeout, reconnect_s=reconnect_s)


class Client(Connected):
    """The objects and topics of a tensor server. May be used by several threads; not by a child process after a fork.

    Every operation raises `RemoteError` with the server's status, `DecodeError` for a malformed answer, `ValueError`
    after `close`, and `RuntimeError` in a forked child. After a lost connection `put`, `get`, `stat` and `list` try
    again for `reconnect_s`; `delete` and `server_info` do not.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        reconnect_s: float | None = RECONNECT_S,
    ) -> None:
        """See `connect`."""
        self._connection = Connection(address, token=token, tls=tls, timeout=timeout, reconnect_s=reconnect_s)

    # --- objects ------------------------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        x: Any,
        *,
        metadata: Metadata | None = None,
        if_generation: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Put a tensor, or a mapping of tensors that are replaced as one, under a name.

        Args:
            name: 1 to 4096 bytes of UTF-8 without NUL.
            x: Anything that `encode` takes, or a mapping from names to such.
            metadata: User metadata of the object.
            if_generation: Put only if the name is at this generation; 0: only if it does not exist.
            progress: Called with payload bytes sent and their total, possibly from another thread. An exception that
                it raises ends the put, and is raised here.

        Returns:
            The generation that the name has now.

        Raises:
            EncodeError: A tensor or name cannot go on the wire.
            RemoteError: The server refused, and the name keeps its old value; or the connection was lost, and it is
                unknown whether the put took effect.

        Memory:
            No copy of a dense payload beyond the chunk being sent. Holds `x` during the call.
        """
        return self._run(self._connection.operations.put(name, x, metadata, if_generation, progress))

    @overload
    def get(
        self,
        name: str,
        *,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor | dict[str, Tensor]: ...

    @overload
    def get(
        self,
        name: str,
        *,
        index: Any,
        tensors: Sequence[str] = (),
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor: ...

    @overload
    def get(
        self,
        name: str,
        *,
        tensors: Sequence[str],
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Tensor]: ...

    @overload
    def get(
        self,
        name: str,
        *,
        out: _T,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> _T: ...

    def get(
        self,
        name: str,
        *,
        out: Any = None,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Get what was put under a name: a tensor, or a dict of tensors.

        Args:
            name: The object's name.
            out: A writable array of numpy or tensor of torch, of the same type and shape, to receive into and
                to return. After an error its contents are undefined.
            tensors: Only these tensors of the object; a dict is returned.
            index: Only this part of the one tensor asked for, selected by the server: integers, slices, `...` and
                None, as numpy does it (`np.s_[0:10, ...]`). A tensor is returned.
            generation: Only this generation.
            progress: Called with payload bytes received and their total.

        Returns:
            A tensor if one was put, or if `index` is given; `out` if it is given; else a dict of tensors by name.

        Raises:
            NotFoundError: There is no such object or tensor (also a KeyError).
            RemoteError: The server refused, or was lost.
            IndexError: `index` is malformed, or lies outside of the tensor.
            TypeError: `tensors` is one string instead of a list of them.
            ValueError: `out` does not fit, cannot be written into, or is given for several tensors.
            EncodeError: The name is malformed.
            ChecksumError: Bytes were damaged on the way.

        Memory:
            Received straight into fresh memory aligned to 64 bytes, or into `out`.
        """
        return self._run(self._connection.operations.get(name, tensors, generation, index, out, progress))

    def stat(self, name: str) -> ObjectInfo:
        """Describe an object and its tensors without their payloads.

        Raises:
            NotFoundError: There is no such object (also a KeyError).
            EncodeError: The name is malformed.
            RemoteError: The server refused, or was lost.
        """
        return self._run(self._connection.operations.stat(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose names begin with a prefix, in the byte order of their names.

        Objects that the caller may not read are left out. Pages are asked for as the iteration comes to them.

        Raises:
            RemoteError: The server refused, or was lost.
        """
        token = ""
        while True:
            page, token = self._run(self._connection.operations.list_page(prefix, token))
            yield from page
            if not token:
                return

    def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """Remove an object, if it is at that generation, and return the generation it had.

        Raises:
            NotFoundError: There is no such object (also a KeyError).
            EncodeError: The name is malformed.
            RemoteError: The server refused (FAILED_PRECONDITION: another generation), or was lost; then it is not
                known whether the object was removed.
        """
        return self._run(self._connection.operations.delete(name, if_generation))

    def server_info(self) -> ServerInfo:
        """Return version, limits and identity of the server.

        Raises:
            RemoteError: The server refused, or cannot be reached.
        """
        return self._run(self._connection.operations.server_info())

    # --- topics -------------------------------------------------------------------------------------------------------

    def publisher(self, topic: str) -> Publisher:
        """Return a sender of frames onto a topic: `with client.publisher("cam/left") as p: p.send(x)`.

        Args:
            topic: 1 to 4096 bytes of UTF-8 without NUL and `*`.

        Raises:
            EncodeError: The topic is malformed.
        """
        return Publisher(self._connection, topic)

    def subscribe(
        self,
        patterns: str | Sequence[str],
        *,
        policy: Policy = "latest",
        queue_frame_count: int = 0,
        queue_bytes: int = 0,
        skip_retained: bool = False,
    ) -> Subscription:
        """Subscribe to the frames of topics from now on: `for frame in client.subscribe("cam/*"): frame.tensor`.

        The first frames are those that topics retain: of each topic the newest one published before the subscription.
        The server's queue for a subscriber that does not keep up is bounded; neither publishers nor other subscribers
        ever wait for it. `timeout` does not limit the wait for a frame.

        Args:
            patterns: A topic, or a prefix of topics and a final `*`; or several of these.
            policy: What a subscriber that falls behind gets: "latest", the newest frame of each topic; "drop_oldest",
                the newest frames that fit the queue; "reliable", the frames that were queued, and then an error.
            queue_frame_count: Maximum frames queued; 0: the server's default, which is 64, or 4096 with "latest".
            queue_bytes: Maximum bytes queued; 0: the server's default, which is 64 MiB.
            skip_retained: Do not begin with the newest frame that each topic has already.

        Raises:
            EncodeError: A pattern is malformed, or none was given.
            ValueError: The policy is unknown, or a bound is negative.
            RemoteError: The server refused, or cannot be reached.
        """
        subscribing = Subscribing(
            patterns, policy, queue_frame_count, queue_bytes, skip_retained, self._connection.operations.reconnect_s
        )
        return Subscription(self._connection, subscribing)

    # --- ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection. Tensors stay usable."""
        if self._connection.is_inherited:
            return  # the parent's connection; gRPC would wait here for threads that a child does not have
        self._connection.closed = True
        self._connection.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _run(self, script: Script[_T]) -> _T:
        connection = self._connection
        connection.check_usable()
        driver = Driver(connection.transport)
        try:
            return driver.run(script, connection.timeout)
        finally:
            driver.end()


class Publisher:
    """Sends frames onto one topic. May be used by several threads.

    Memory:
        Of a tensor being sent a few chunks are copied at a time. It may be changed as soon as `send` has returned.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        """See `Client.publisher`."""
        self._publishing = Publishing(connection.operations, topic)
        self._connection = connection
        self._driver = Driver(connection.transport)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def topic(self) -> str:
        """The topic."""
        return self._publishing.topic

    @property
    def subscriber_count(self) -> int:
        """Number of subscribers that the frame sent last was queued for."""
        return self._publishing.subscriber_count

    def __repr__(self) -> str:
        return f"<Publisher on {self.topic!r} of {self._connection!r}>"

    def send(self, x: Any, *, metadata: Metadata | None = None, time_ns: int | None = None) -> int:
        """Send a tensor, and wait until the server has it.

        Args:
            x: Anything that `encode` takes.
            metadata: User metadata of the frame.
            time_ns: When it was made, nanoseconds since 1970-01-01 UTC; None: now, by the server's clock.

        Returns:
            The frame's sequence: its number on the topic.

        Raises:
            EncodeError: The tensor or metadata cannot go on the wire.
            RemoteError: The server refused the frame, or was lost while it was being sent: whether it was accepted is
                then unknown. The next `send` waits for the server to come back, some seconds at most.
            ValueError: This publisher or its client is closed.
        """
        with self._lock:
            self._connection.check_usable()
            if self._closed:
                raise ValueError("this publisher is closed")
            return self._driver.run(self._publishing.send(x, metadata, time_ns), self._connection.timeout)

    def close(self) -> None:
        """End the call. Every frame whose `send` returned is with the server."""
        with self._lock:
            self._closed = True
            self._driver.finish()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Subscription:
    """Frames of topics, one by one. Iterating ends with `close`, also when another thread calls it.

    A lost connection is mended if the server comes back within the client's `reconnect_s`; else it is an error, and the
    next wait tries again. Frames missed meanwhile are counted as dropped, unless the server has restarted: it forgets
    its frames. With "reliable", a missed frame or a restart is an error.
    """

    def __init__(self, connection: Connection, subscribing: Subscribing) -> None:
        """See `Client.subscribe`."""
        connection.check_usable()
        self._connection = connection
        self._subscribing = subscribing
        self._driver = Driver(connection.transport)
        self._closed = False
        self._failure: Exception | None = None
        try:
            self._driver.run(subscribing.open(), connection.timeout)
        except BaseException:
            self._driver.end()
            raise

    @property
    def instance_id(self) -> str:
        """32 hex digits that identify the running server; sequences start anew with another one."""
        return self._subscribing.instance_id

    def __repr__(self) -> str:
        return f"<Subscription of {self._connection!r}{', closed' if self._closed else ''}>"

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Frame:
        """Wait for the next frame.

        Raises:
            StopIteration: The subscription was closed.
            RemoteError: The server was lost (UNAVAILABLE): the next wait tries again. Or the subscription has ended
                (RESOURCE_EXHAUSTED: "reliable" and too slow; DATA_LOSS: "reliable" frames were lost): every later wait
                raises the same error.
            DecodeError: What came is malformed.
        """
        self._connection.check_process()
        if self._failure is not None and not self._closed:
            raise self._failure
        frame: Frame | None = None
        try:
            if not self._closed:
                frame = self._driver.run(self._subscribing.next(), self._connection.timeout)
        except BaseException as error:
            self._driver.end()
            if isinstance(error, RemoteError) and (self._closed or self._connection.closed):
                raise StopIteration from None
            if isinstance(error, Exception) and not self._subscribing.may_go_on:
                self._failure = error
            raise
        if frame is None:
            raise StopIteration
        return frame

    def close(self) -> None:
        """End the subscription."""
        self._closed = True
        self._driver.stop()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
