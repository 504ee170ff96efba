"""Whose unfinished uploads are kept, how many, and for how long; told by a clock of the test's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlpack_wire_server.backing import Charge
from dlpack_wire_server.budget import Budget
from dlpack_wire_server.memory_store import MemoryStore, Serialized
from dlpack_wire_server.status import Refusal
from dlpack_wire_server.unfinished import UnfinishedPut, UnfinishedPuts

from dlpack_wire.service.arrival import Arrival
from dlpack_wire.service.messages import Record
from dlpack_wire.tensor.source import Source

RETENTION_NS = 1000


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(1 << 30, RETENTION_NS)


def upload(key: bytes | None, owner: str = "me") -> UnfinishedPut:
    return UnfinishedPut(key, owner, "name", None, Serialized(b"", b""), Arrival(), Charge(Budget(1 << 30), 0, 0))


def with_draft(made: UnfinishedPut, store: MemoryStore, size: int = 1000) -> UnfinishedPut:
    with Source(np.zeros(size, np.uint8)) as source:
        record = Record(("",), {}, source.header, b"")
    made.draft = store.draft([record], Serialized(b"", b""))
    return made


def reason(call: Any) -> str:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.reason


def test_paused_uploads_are_found_until_their_time_is_over(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, clock=clock)
    mine = with_draft(upload(b"1"), store)
    uploads.add(mine)
    assert reason(lambda: uploads.resume(b"1")) == "UPLOAD_IN_PROGRESS"
    assert reason(lambda: uploads.resume(b"2")) == "UPLOAD_NOT_FOUND"
    clock.now = 10**9
    assert uploads.find(b"1") is mine  # while it is being received it has all the time it needs
    uploads.pause(mine)
    clock.now += RETENTION_NS - 1
    assert uploads.resume(b"1") is mine
    uploads.pause(mine)
    clock.now += RETENTION_NS
    assert uploads.find(b"1") is None
    assert (len(uploads), store.budget.used) == (0, 0)


def test_uploads_without_headers_or_without_a_key_are_not_kept(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, clock=clock)
    bare = upload(b"1")
    uploads.add(bare)
    assert uploads.find(b"1") is None
    uploads.pause(bare)
    nameless = with_draft(upload(None), store)
    uploads.add(nameless)
    uploads.pause(nameless)
    assert len(uploads) == 0


def test_a_key_given_anew_drops_the_paused_upload(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, clock=clock)
    first, second = with_draft(upload(b"1"), store), with_draft(upload(b"1"), store)
    uploads.add(first)
    assert reason(lambda: uploads.add(second)) == "UPLOAD_IN_PROGRESS"
    uploads.pause(first)
    uploads.add(second)
    assert uploads.find(b"1") is second
    uploads.drop(first)
    assert uploads.find(b"1") is second


def test_discarded_uploads_are_dropped_now_or_when_their_call_ends(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, clock=clock)
    for paused in (True, False):
        made = with_draft(upload(b"1"), store)
        uploads.add(made)
        if paused:
            uploads.pause(made)
        uploads.discard(b"1")
        assert len(uploads) == (not paused)
        if not paused:
            uploads.pause(made)
        assert (len(uploads), made.draft) == (0, None)
    assert reason(lambda: uploads.discard(b"1")) == "UPLOAD_NOT_FOUND"


def test_each_owner_has_a_share(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 5000, max_count=3, clock=clock)
    for i in range(3):
        uploads.add(with_draft(upload(bytes([i])), store))
    assert reason(lambda: uploads.add(upload(b"x"))) == "TOO_MANY_REQUESTS"
    uploads.add(upload(b"x", "you"))
    me, you = upload(b"y"), upload(b"z", "you")
    assert reason(lambda: uploads.admit(me, 2000)) == "STORE_FULL"
    uploads.admit(you, 2000)


def test_one_message_is_stored_once_at_a_time(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, max_count=1, clock=clock)
    idle = with_draft(upload(b"2"), store)
    uploads.add(idle)
    first = upload(b"1")
    uploads.hold(first)  # not counted
    assert reason(lambda: uploads.hold(upload(b"1"))) == "UPLOAD_IN_PROGRESS"
    assert reason(lambda: uploads.hold(upload(b"2"))) == "UPLOAD_IN_PROGRESS"
    uploads.pause(idle)
    uploads.hold(upload(b"2"))  # takes the place of the idle one
    uploads.drop(idle)
    assert reason(lambda: uploads.hold(upload(b"2"))) == "UPLOAD_IN_PROGRESS"
    uploads.drop(first)
    uploads.hold(upload(b"1"))
    uploads.hold(upload(None))
    uploads.hold(upload(None))


def test_uploads_without_an_id_count_too(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 2500, max_count=3, clock=clock)
    made = [with_draft(upload(None), store) for _ in range(3)]
    for one in made:
        uploads.add(one)
    assert reason(lambda: uploads.add(upload(None))) == "TOO_MANY_REQUESTS"
    assert reason(lambda: uploads.admit(upload(None), 1000)) == "STORE_FULL"
    for one in made:
        uploads.pause(one)
    uploads.admit(upload(None), 1000)
    assert len(uploads._of("me")) == 0


def test_what_is_being_published_cannot_be_discarded(clock: Clock, store: MemoryStore) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, clock=clock)
    mine = with_draft(upload(b"1"), store)
    uploads.add(mine)
    mine.publishing = True
    assert reason(lambda: uploads.discard(b"1")) == "UPLOAD_NOT_FOUND"
    assert not mine.unwanted


def test_an_upload_that_another_takes_the_place_of_gives_its_memory_back_at_once(
    clock: Clock, store: MemoryStore
) -> None:
    uploads = UnfinishedPuts(RETENTION_NS, 1 << 30, clock=clock)
    mine = with_draft(upload(b"1"), store)
    uploads.add(mine)
    uploads.pause(mine)
    uploads.add(upload(b"1"))
    assert mine.draft is None
