"""Clients on bad days: lost connections, silent servers, interrupts, forks, restarts; and the asynchronous one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting
from server_process import ServerProcess, eventually, running
from subprocesses import run_python

import dlpack_wire as dw
from dlpack_wire.service.async_client import AsyncClient
from dlpack_wire.service.client import Client, connect

MIB = 1 << 20
X = np.random.default_rng(0).integers(0, 255, 40 * MIB, np.uint8)


@pytest.mark.parametrize("address", ["", "localhost", "http://localhost:1", "grpc://", "/path"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        connect(address)


def test_addresses_of_every_form(server: ServerProcess) -> None:
    for form in ("{}", "grpc://{}", "grpc://{}/", "ipv4:{}", "dns:///{}"):
        with connect(form.format(server.address), timeout=20) as client:
            assert client.server_info().version == dw.__version__


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begin = time.monotonic()
    with connect(f"127.0.0.1:{port}") as client, pytest.raises(dw.RemoteError) as caught:
        client.get("a")
    assert caught.value.code == "UNAVAILABLE"
    assert str(caught.value).startswith(f"127.0.0.1:{port}: ")
    assert "`dlpack-wire serve`" in str(caught.value)
    assert time.monotonic() - begin < 5


def test_a_closed_client_says_so(server: ServerProcess) -> None:
    client = connect(server.address, timeout=20)
    client.server_info()
    client.close()
    client.close()
    with pytest.raises(ValueError, match="this client is closed"):
        client.get("a")


def test_one_name_is_not_a_list_of_names(client: Client, name: str) -> None:
    client.put(name, {"bias": X[:3], "b": X[:4]})
    with pytest.raises(TypeError, match=r"\['bias'\]"):
        client.get(name, tensors="bias")
    assert list(client.get(name, tensors=["bias"])) == ["bias"]


# --- lost connections -------------------------------------------------------------------------------------------------


def test_a_put_goes_on_where_the_connection_broke(server: ServerProcess, client: Client, name: str) -> None:
    sent: list[int] = []
    with cutting(server.address, 15 * MIB, 12 * MIB, 9 * MIB) as proxy, connect(proxy.address, timeout=60) as shaky:
        generation = shaky.put(
            name, {"a": X[: 30 * MIB], "b": X[30 * MIB :]}, progress=lambda done, _: sent.append(done)
        )
        assert proxy.connection_count >= 4
        assert not proxy.cuts_left
    info = client.stat(name)
    assert info.generation == generation
    got = client.get(name)
    assert np.array_equal(np.concatenate([got["a"].numpy(), got["b"].numpy()]), X)
    assert sum(now < before for before, now in pairwise(sent)) <= 3
    # Continued, not begun anew: the first break lost at most what was on its way.
    assert all(now > 0 for now in sent)


def test_a_strided_put_goes_on_too(server: ServerProcess, client: Client, name: str) -> None:
    x = np.arange(12 * MIB, dtype=np.int16).reshape(-1, 4)[:, 1:3]
    with cutting(server.address, 7 * MIB) as proxy, connect(proxy.address, timeout=60) as shaky:
        shaky.put(name, x)
        assert proxy.connection_count == 2
    assert np.array_equal(client.get(name).numpy(), x)


def test_a_get_goes_on_where_the_connection_broke(server: ServerProcess, client: Client, name: str) -> None:
    client.put(name, {"a": X[: 30 * MIB], "b": X[30 * MIB :]})
    received: list[int] = []
    with cutting(server.address, 15 * MIB, 12 * MIB, 9 * MIB) as proxy, connect(proxy.address, timeout=60) as shaky:
        got = shaky.get(name, progress=lambda done, _: received.append(done))
        assert proxy.connection_count == 4
        part = shaky.get(name, tensors=["a"], index=np.s_[5 : 20 * MIB : 2])
    assert np.array_equal(np.concatenate([got["a"].numpy(), got["b"].numpy()]), X)
    assert received == sorted(received)
    assert np.array_equal(part.numpy(), X[5 : 20 * MIB : 2])


def test_a_part_is_asked_for_again_from_its_start(server: ServerProcess, client: Client, name: str) -> None:
    client.put(name, X)
    with cutting(server.address, 5 * MIB) as proxy, connect(proxy.address, timeout=60) as shaky:
        assert np.array_equal(shaky.get(name, index=np.s_[::-1]).numpy(), X[::-1])
        assert proxy.connection_count == 2


def test_small_calls_are_repeated(server: ServerProcess, name: str) -> None:
    with cutting(server.address, 6000, 3000) as proxy, connect(proxy.address, timeout=60) as shaky:
        first = shaky.put(name, np.zeros(100))
        assert shaky.put(name, np.zeros(2000)) > first
        assert shaky.get(name).shape == (2000,)
        assert shaky.stat(name).payload_bytes == 16_000
        assert proxy.connection_count >= 3


def test_a_server_that_stays_away_is_told(name: str) -> None:
    with running() as server, connect(server.address) as client:
        client.put(name, np.zeros(3))
        server.stop()
        begin = time.monotonic()
        with pytest.raises(dw.RemoteError) as caught:
            client.get(name)
        assert caught.value.code == "UNAVAILABLE"
        assert time.monotonic() - begin < 20


def test_a_restarted_server_is_found_again(tmp_path: Path, name: str) -> None:
    first = ServerProcess("--dir", str(tmp_path))
    try:
        with connect(first.address, timeout=30) as client:
            client.put(name, X)
            seen: list[int] = []
            second: list[ServerProcess] = []

            def restart(done: int, total: int) -> None:
                seen.append(done)
                if done > 10 * MIB and not second:
                    first.stop(signal.SIGKILL)
                    second.append(ServerProcess("--dir", str(tmp_path), listen=first.address))

            assert np.array_equal(client.get(name, progress=restart).numpy(), X)
            assert seen == sorted(seen)
            second[0].stop()
    finally:
        first.stop(signal.SIGKILL)


# --- time and interrupts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["get", "put", "stat"])
def test_a_frozen_server_is_given_up_at_the_deadline(what: str) -> None:
    with running() as server:
        with connect(server.address, timeout=30) as client:
            client.put("a", X)
        server.send_signal(signal.SIGSTOP)
        try:
            calls: dict[str, Callable[[Client], Any]] = {
                "get": lambda c: c.get("a"),
                "put": lambda c: c.put("a", X),
                "stat": lambda c: c.stat("a"),
            }
            begin = time.monotonic()
            with connect(server.address, timeout=0.5) as client, pytest.raises(dw.RemoteError) as caught:
                calls[what](client)
            assert caught.value.code in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
            assert time.monotonic() - begin < 5
        finally:
            server.send_signal(signal.SIGCONT)


def test_frozen_in_the_middle(name: str) -> None:
    with running() as server, connect(server.address, timeout=2) as client:
        client.put(name, X)

        def freeze(done: int, total: int) -> None:
            if done > 4 * MIB:
                server.send_signal(signal.SIGSTOP)

        for call in (client.get, lambda n, **more: client.put(n, X, **more)):
            with pytest.raises(dw.RemoteError) as caught:
                call(name, progress=freeze)
            assert caught.value.code == "DEADLINE_EXCEEDED"
            server.send_signal(signal.SIGCONT)
        assert np.array_equal(client.get(name).numpy(), X)


def test_an_interrupt_ends_a_put_and_frees_what_was_sent(server: ServerProcess, client: Client, name: str) -> None:
    client.put(name, X[:10])
    kept = server.memfd_count()
    main = threading.main_thread().ident
    assert main is not None
    fired = False

    def interrupt(done: int, total: int) -> None:
        nonlocal fired
        if done > 4 * MIB and not fired:
            fired = True
            signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        client.put(name, np.zeros(800 * MIB, np.uint8), progress=interrupt)
    assert np.array_equal(client.get(name).numpy(), X[:10])
    eventually(lambda: server.memfd_count() <= kept)


# --- processes and threads --------------------------------------------------------------------------------------------

FORK = """
    import os, signal
    import numpy as np
    from dlpack_wire.service.client import connect
    client = connect({address!r}, timeout=20)
    client.put("fork", np.arange(4))
    child = os.fork()
    if not child:
        signal.alarm(5)
        told = 0
        for attempt in (lambda: client.get("fork"), lambda: connect({address!r})):
            try:
                attempt()
            except RuntimeError as error:
                told += "fork" in str(error)
        client.close()
        os._exit(told)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), client.get("fork").shape)
    client.close()
"""


def test_a_forked_child_is_told_at_once(server: ServerProcess) -> None:
    script = FORK.format(address=server.address)
    assert run_python(script, GRPC_ENABLE_FORK_SUPPORT="0") == "2 (4,)\n"


def test_several_threads_share_a_client(client: Client, name: str) -> None:
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for size in (10, 3 * MIB):
                x = np.full(size, i, np.uint8)
                client.put(f"{name}{i}", x)
                assert np.array_equal(client.get(f"{name}{i}").numpy(), x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


# --- asynchronous -----------------------------------------------------------------------------------------------------


def test_the_asynchronous_client_does_the_same(server: ServerProcess, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(server.address, timeout=60) as client:
            assert (await client.server_info()).version == dw.__version__
            generation = await client.put(name, {"x": X, "y": np.arange(3)}, metadata={"k": 1})
            got = await client.get(name)
            assert np.array_equal(got["x"].numpy(), X)
            assert (await client.stat(name)).generation == generation
            part = await client.get(name, tensors=["x"], index=np.s_[10:20])
            assert np.array_equal(part.numpy(), X[10:20])
            assert [info.name async for info in client.list(name)] == [name]
            small = await asyncio.gather(*(client.put(f"{name}/{i}", np.full(3, i)) for i in range(50)))
            assert len(set(small)) == 50
            assert await client.delete(name, if_generation=generation) == generation
            with pytest.raises(dw.NotFoundError):
                await client.get(name)

    asyncio.run(work())


def test_the_asynchronous_client_on_bad_days(server: ServerProcess, client: Client, name: str) -> None:
    async def work() -> None:
        with cutting(server.address, 15 * MIB, 20 * MIB) as proxy:
            async with AsyncClient(proxy.address, timeout=60) as shaky:
                await shaky.put(name, X)
                assert np.array_equal((await shaky.get(name)).numpy(), X)
                assert proxy.connection_count == 3

    asyncio.run(work())


def test_cancelling_an_asynchronous_put_frees_what_was_sent(server: ServerProcess, client: Client, name: str) -> None:
    client.put(name, X[:10])
    kept = server.memfd_count()

    async def work() -> None:
        async with AsyncClient(server.address) as other:
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(
                other.put(
                    name,
                    np.zeros(800 * MIB, np.uint8),
                    progress=lambda done, _: loop.call_soon_threadsafe(begun.set),
                )
            )
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            def fail(done: int, total: int) -> None:
                raise LookupError("mine")

            with pytest.raises(LookupError, match="mine"):
                await other.put(name, X, progress=fail)
            get = asyncio.create_task(other.get(name))
            get.cancel()
            with pytest.raises(asyncio.CancelledError):
                await get

    asyncio.run(work())
    assert np.array_equal(client.get(name).numpy(), X[:10])
    eventually(lambda: server.memfd_count() <= kept)


def test_unix_sockets(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/s.sock"
    with running(listen=path) as server:
        assert server.address == path
        assert os.stat(tmp_path / "s.sock").st_mode & 0o777 == 0o600
        with connect(path, timeout=30) as client:
            client.put("a", X)
            assert np.array_equal(client.get("a").numpy(), X)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["localhost:0", "localhost:99999", "grpcs://localhost:65536/"])
def test_a_port_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="65535"):
        connect(address)
