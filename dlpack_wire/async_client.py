"""A client of a tensor server for asyncio.

The blocking client does the work in threads: payloads are hashed and copied outside of the event loop, and a refused
upload keeps the server's own status, which `grpc.aio` may replace by one of a failed write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from .client import Client, Drive
from .connection import Tls
from .exchange import ObjectInfo, Script, ServerInfo
from .metadata import Metadata
from .upload import Progress

_T = TypeVar("_T")


class AsyncClient:
    """A tensor server's objects, for asyncio. Operations are those of `Client`; they may run at the same time.

    A cancelled operation ends its call, and what a put had sent is dropped.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        max_operations: int = 64,
    ) -> None:
        """See `connect`.

        Args:
            max_operations: Most operations at the same time, each in a thread; further ones wait.
        """
        self._client = Client(address, token=token, tls=tls, timeout=timeout)
        self._threads = ThreadPoolExecutor(max_operations, thread_name_prefix="dlpack-wire-client")

    async def put(
        self,
        name: str,
        x: Any,
        *,
        metadata: Metadata | None = None,
        if_generation: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """As `Client.put`. `progress` is called in another thread."""
        return await self._run(self._client.exchange.put(name, x, metadata, if_generation, progress))

    async def get(
        self,
        name: str,
        *,
        out: Any = None,
        tensors: Sequence[str] = (),
        index: Any = None,
        generation: int | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """As `Client.get`. `progress` is called in another thread."""
        return await self._run(self._client.exchange.get(name, tensors, generation, index, out, progress))

    async def stat(self, name: str) -> ObjectInfo:
        """As `Client.stat`."""
        return await self._run(self._client.exchange.stat(name))

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """As `Client.list`."""
        token = ""
        while True:
            page, token = await self._run(self._client.exchange.list_page(prefix, token))
            for info in page:
                yield info
            if not token:
                return

    async def delete(self, name: str, *, if_generation: int | None = None) -> int:
        """As `Client.delete`."""
        return await self._run(self._client.exchange.delete(name, if_generation))

    async def server_info(self) -> ServerInfo:
        """As `Client.server_info`."""
        return await self._run(self._client.exchange.server_info())

    async def close(self) -> None:
        """End the connection. Tensors stay usable."""
        await asyncio.to_thread(self._client.close)
        self._threads.shutdown()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, script: Script[_T]) -> _T:
        drive = Drive(self._client, cancellable=True)
        future = asyncio.get_running_loop().run_in_executor(self._threads, drive.run, script)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            drive.cancel()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # asked for, so that asyncio does not report it as forgotten
            raise
