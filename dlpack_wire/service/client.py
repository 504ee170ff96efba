"""A blocking client of a tensor server: does what the generators of `exchange` ask for."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

import grpc

from ..errors import RemoteError
from ..message.names import Metadata
from ..tensor.tensor import Tensor
from .connection import FAREWELL_S, SERVICE, Clock, Connection, Tls
from .operations import Farewell, Next, ObjectInfo, Open, Pause, Script, SendAll, ServerInfo, Unary
from .topics import Policy, Publisher, Subscription
from .upload import Progress

__all__ = ["Client", "Tls", "connect"]

_T = TypeVar("_T")


def connect(address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None) -> Client:
    """Make a client of a tensor server. The connection itself is made by the first operation.

    Args:
        address: `host:port`, `unix:/path`, or a URL: `grpc://host:port`, or `grpcs://host:port` for TLS.
        token: Bearer token, if the server wants one.
        tls: Speak TLS; `Tls()` trusts the system's authorities.
        timeout: Most seconds that one operation may take; None: as long as the server answers at all.

    Raises:
        ValueError: The address is in none of these forms, or the token is not printable ASCII.
        OSError: A file of `tls` cannot be read.
    """
    return Client(address, token=token, tls=tls, timeout=timeout)


class Client(Connection):
    """A tensor server's objects. May be used by several threads; not by a child process after a fork.

    Every operation raises `RemoteError` with the server's status, or `NotFoundError`. A lost connection is mended: the
    operation goes on where it was, as long as the server comes back within seconds.
    """

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None
    ) -> None:
        """See `connect`."""
        super().__init__(address, token=token, tls=tls, timeout=timeout)
        self._channel = self.channel()
        self._frames_channel: grpc.Channel | None = None
        self._making = threading.Lock()
        self._calls: dict[tuple[str, str], Any] = {}
        self._farewells: list[Any] = []

    # --- operations ---------------------------------------------------------------------------------------------------

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
            if_generation: Only if the name is at this generation; 0: only if it does not exist.
            progress: Called with payload bytes sent and their total, possibly from another thread.

        Returns:
            The generation that the name has now.

        Raises:
            EncodeError: A tensor or name cannot go on the wire.
            RemoteError: The server refused, or was lost. The name then keeps its old value.

        Memory:
            No copy of a dense payload beyond the chunk being sent. Holds `x` during the call.
        """
        return self._run(self.exchange.put(name, x, metadata, if_generation, progress))

    @overload
    def get(
        self,
        name: str,
        *,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Tensor | dict[str, Tensor]: ...

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

        Raises:
            NotFoundError: There is no such object or tensor (also a KeyError).
            IndexError: `index` lies outside of the tensor.
            ValueError: `out` does not fit.
            ChecksumError: Bytes were damaged on the way.

        Memory:
            Received straight into fresh memory aligned to 64 bytes, or into `out`.
        """
        return self._run(self.exchange.get(name, tensors, generation, index, out, progress))

    def stat(self, name: str) -> ObjectInfo:
        """Describe an object and its tensors without their payloads."""
        return self._run(self.exchange.stat(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with a prefix, in the byte order of their names."""
        token = ""
        while True:
            page, token = self._run(self.exchange.list_page(prefix, token))
            yield from page
            if not token:
                return

    def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """Remove an object, if it is at that generation, and return the generation it had."""
        return self._run(self.exchange.delete(name, if_generation))

    def server_info(self) -> ServerInfo:
        """Version, limits and identity of the server."""
        return self._run(self.exchange.server_info())

    # --- topics -------------------------------------------------------------------------------------------------------

    def publisher(self, topic: str) -> Publisher:
        """What sends frames onto a topic: `with client.publisher("cam/left") as p: p.send(x)`.

        Args:
            topic: 1 to 4096 bytes of UTF-8 without NUL and `*`.

        Raises:
            EncodeError: That is no topic.
        """
        return Publisher(self, topic)

    def subscribe(
        self,
        patterns: str | Sequence[str],
        *,
        policy: Policy = "latest",
        queue_frame_count: int = 0,
        queue_bytes: int = 0,
        skip_retained: bool = False,
    ) -> Subscription:
        """Get the frames of topics from now on: `for frame in client.subscribe("cam/*"): frame.tensor`.

        The newest frame that each topic has already comes first. What the server queues for a subscriber that does not
        keep up is bounded; neither publishers nor other subscribers ever wait for it. `timeout` does not hold for the
        wait for a frame.

        Args:
            patterns: A topic, or a prefix of topics and a final `*`; or several of these.
            policy: When behind: "latest" gets the newest frame of each topic, "drop_oldest" the newest ones that fit
                the queue, "reliable" all, or after those that were queued an error.
            queue_frame_count: Most frames queued; 0: the server's default, which is 64, or 4096 with "latest".
            queue_bytes: Most bytes queued; 0: the server's default, which is 64 MiB.
            skip_retained: Do not begin with the newest frame that each topic has already.

        Raises:
            EncodeError: A pattern is none.
            RemoteError: The server refused, or was not found.
        """
        return Subscription(self, patterns, policy, queue_frame_count, queue_bytes, skip_retained)

    def await_server(self) -> None:
        """Wait until the server answers, as long as it is waited for after a lost connection."""
        self._run(self.exchange.awaited())

    # --- ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection. Tensors stay usable."""
        if self._process != os.getpid():
            return  # the parent's connection; the library would wait here for threads that a child does not have
        self.closed = True
        for farewell in self._farewells:
            with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
                farewell.exception(timeout=FAREWELL_S)
        self._channel.close()
        if self._frames_channel is not None:
            self._frames_channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _run(self, script: Script[_T]) -> _T:
        return Drive(self).run(script)

    def call(self, kind: str, method: str) -> Any:
        """The channel's callable for a method; bytes go in and out."""
        made = self._calls.get((kind, method))
        if made is None:
            channel = self._channel if method != "Subscribe" else self._channel_for_frames()
            made = self._calls[kind, method] = getattr(channel, kind)(f"/{SERVICE}/{method}")
        return made

    def _channel_for_frames(self) -> grpc.Channel:
        """A connection that reads ahead little: what is on its way to a slow subscriber cannot be dropped any more."""
        with self._making:
            if self._frames_channel is None:
                self._frames_channel = self.channel(lookahead_bytes=64 << 10)
            return self._frames_channel

    def say_farewell(self, farewell: Farewell) -> None:
        """Make a call whose answer matters to nobody; `close` waits for it a little."""
        call = self.call("stream_unary", farewell.method)
        self._farewells = [other for other in self._farewells if not other.done()]
        self._farewells.append(call.future(iter((farewell.request,)), timeout=FAREWELL_S, metadata=self.metadata))


class Drive:
    """Does what one script asks for, within its time."""

    def __init__(self, client: Client, cancellable: bool = False) -> None:
        """Make ready for one script.

        Args:
            client: Whose connection to use.
            cancellable: Whether another thread may call `cancel`; small calls then take longer.
        """
        client.check_usable()
        self._client = client
        self._clock = Clock(client.timeout)
        self._cancelled = threading.Event() if cancellable else None
        self._call: Any = None

    def run(self, script: Script[_T]) -> _T:
        """Run a script to its end."""
        try:
            command = next(script)
            while True:
                try:
                    answer = self._do(command)
                except BaseException as error:
                    command = script.throw(error)
                else:
                    command = script.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:
            self._end_call()

    def cancel(self) -> None:
        """End the call that is running; what comes after it in the script fails too."""
        assert self._cancelled is not None
        self._cancelled.set()
        self._end_call()

    def _do(self, command: Any) -> Any:
        if isinstance(command, Farewell):
            self._client.say_farewell(command)
            return None
        if isinstance(command, Pause):
            seconds = self._clock.cut(command.seconds)
            if self._cancelled is None:
                time.sleep(seconds)
            else:
                self._cancelled.wait(seconds)
            return None
        try:
            if isinstance(command, Next):
                return next(self._running(), None)
            if isinstance(command, Open):
                self._begin("unary_stream", command.method, command.request)
                return None
            if isinstance(command, Unary) and self._cancelled is None:
                call = self._client.call("unary_unary", command.method)
                return call(command.request, timeout=self._clock.left(), metadata=self._client.metadata)
            if isinstance(command, Unary):
                self._begin("unary_unary", command.method, command.request)
            else:
                assert isinstance(command, SendAll)
                self._begin("stream_unary", command.method, command.requests)
            return self._running().result()
        except grpc.FutureCancelledError:
            raise RemoteError("cancelled", code="CANCELLED") from None
        except grpc.RpcError as error:
            raise self._client.error(error) from None

    def _begin(self, kind: str, method: str, request: Any) -> None:
        """Start a call in place of the one before it."""
        self._end_call()
        call = self._client.call(kind, method)
        start = call if kind == "unary_stream" else call.future
        self._call = start(request, timeout=self._clock.left(), metadata=self._client.metadata)
        if self._cancelled is not None and self._cancelled.is_set():
            self._end_call()

    def _running(self) -> Any:
        call = self._call
        if call is None:
            raise grpc.FutureCancelledError
        return call

    def _end_call(self) -> None:
        call, self._call = self._call, None  # a failed call knows by its traceback who made it
        if call is not None:
            call.cancel()
