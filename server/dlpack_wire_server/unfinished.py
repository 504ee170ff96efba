"""Unfinished puts: whose they are, how far they have come, and how long they are kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlpack_wire.service.arrival import Arrival
from dlpack_wire.service.messages import Chunk, Record

from .backing import Charge
from .status import Refusal
from .store import Draft, Serialized, held_bytes


@dataclass(eq=False)
class UnfinishedPut:
    """One upload.

    Attributes:
        key: Owner and id, or None if it cannot be resumed.
        owner: The caller that sends it.
        name: Name of the object.
        if_generation: Precondition on the name's generation.
        metadata: The object's metadata.
        arrival: The parts that have come.
        held: What the descriptions of its tensors are charged to.
        draft: The object being written, once all headers have come.
        busy: True while a call is receiving it.
        reader: The call that waits for its next message, to be cancelled if the upload is discarded.
        unwanted: True if it was discarded while a call was receiving it.
        publishing: True once it is being published: it cannot be discarded any more; its id tells the outcome.
        expires_ns: Monotonic time at which it will be dropped.
    """

    key: bytes | None
    owner: str
    name: str
    if_generation: int | None
    metadata: Serialized
    arrival: Arrival
    held: Charge
    draft: Draft | None = None
    busy: bool = True
    reader: asyncio.Task[Any] | None = None
    unwanted: bool = False
    publishing: bool = False
    expires_ns: int = 0

    def describe(self, record: Record) -> None:
        """Check the description of a tensor, and keep it.

        Raises:
            Refusal: STORE_FULL, if there is no memory for it.
        """
        self.held.add(held_bytes(record))
        self.arrival.record(record)

    def describe_all(self, records: Sequence[Record]) -> None:
        """Check the descriptions of several tensors, and keep them; see `describe`."""
        for record in records:
            self.describe(record)

    def take(self, piece: Chunk) -> None:
        """Check a chunk and write it to the draft."""
        self.arrival.chunk(piece)
        assert self.draft is not None  # a chunk is legal only after all records
        self.draft.write(piece.tensor_index, piece.offset, piece.data)


class UnfinishedPuts:
    """The uploads that can be resumed. Each is seen by its owner alone."""

    def __init__(
        self,
        retention_ns: int,
        max_bytes: int,
        several_bytes: int | None = None,
        max_count: int = 64,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin without uploads.

        Args:
            retention_ns: How long an interrupted upload is kept.
            max_bytes: Maximum bytes that the images of one owner's uploads will have.
            several_bytes: The same if it has more than one; `max_bytes` if not given.
            max_count: Maximum number of uploads of one owner.
            clock: Monotonic clock, in nanoseconds.
        """
        self.retention_ns = retention_ns
        self._max_count = max_count
        self.max_bytes = max_bytes
        self._several_bytes = max_bytes if several_bytes is None else several_bytes
        self._clock = clock
        self._uploads: dict[bytes, UnfinishedPut] = {}
        self._without_key: set[UnfinishedPut] = set()

    def __len__(self) -> int:
        return len(self._uploads)

    def add(self, upload: UnfinishedPut) -> None:
        """Keep a new upload, if it has a key. One of the same key that nobody is receiving is dropped.

        Raises:
            Refusal: UPLOAD_IN_PROGRESS, or TOO_MANY_REQUESTS if the owner has too many.
        """
        present = self._idle(upload.key) if upload.key is not None else None
        owned = len(self._of(upload.owner) - {present})
        if owned >= self._max_count:
            raise Refusal("TOO_MANY_REQUESTS", f"{owned} unfinished uploads; at most {self._max_count} are allowed")
        if present is not None:
            self.drop(present)
        if upload.key is None:
            self._without_key.add(upload)
        else:
            self._uploads[upload.key] = upload

    def _of(self, owner: str) -> set[UnfinishedPut]:
        """Return the uploads of a caller. A copy of them: this may run in a thread."""
        return {upload for upload in (*self._uploads.values(), *self._without_key) if upload.owner == owner}

    def hold(self, upload: UnfinishedPut) -> None:
        """Keep an upload that came in one message while it is being stored: it is in memory already, and not counted.

        Raises:
            Refusal: UPLOAD_IN_PROGRESS, if another call is receiving or storing it.
        """
        if upload.key is not None:
            present = self._idle(upload.key)
            if present is not None:
                self.drop(present)
            self._uploads[upload.key] = upload

    def _idle(self, key: bytes) -> UnfinishedPut | None:
        """Return the upload of this key that nobody is receiving, if there is one."""
        present = self._uploads.get(key)
        if present is not None and present.busy:
            raise _in_progress()
        return present

    def admit(self, upload: UnfinishedPut, size: int) -> None:
        """Refuse an upload whose image would take its owner over the limit.

        Raises:
            Refusal: STORE_FULL, if unfinished uploads hold all they may.
        """
        drafts = [other.draft for other in self._of(upload.owner)]
        others = sum(draft.backing.size for draft in drafts if draft is not None)
        total, limit = size + others, self._several_bytes if others else self.max_bytes
        if total > limit:
            text = f"unfinished uploads would take {total} bytes; {limit} (--max-unfinished-bytes) are allowed"
            raise Refusal("STORE_FULL", text)

    def resume(self, key: bytes) -> UnfinishedPut:
        """Go on receiving an upload.

        Raises:
            Refusal: UPLOAD_NOT_FOUND; UPLOAD_IN_PROGRESS, if another call is sending it.
        """
        upload = self.find(key)
        if upload is None:
            raise _not_found()
        if upload.busy:
            raise _in_progress()
        upload.busy = True
        return upload

    def find(self, key: bytes) -> UnfinishedPut | None:
        """Return the upload of this key, or None if it is unknown or its headers are incomplete."""
        self.expire()
        upload = self._uploads.get(key)
        return upload if upload is not None and upload.draft is not None else None

    def pause(self, upload: UnfinishedPut) -> None:
        """Keep an upload that no call receives any more, if its headers have come."""
        upload.busy = False
        upload.expires_ns = self._clock() + self.retention_ns
        if upload.draft is None or upload.unwanted or upload.key is None:
            self.drop(upload)

    def discard(self, key: bytes) -> None:
        """Drop an upload; if a call is receiving it, that call ends and drops it.

        Raises:
            Refusal: UPLOAD_NOT_FOUND, if this caller has no such upload.
        """
        self.expire()
        upload = self._uploads.get(key)
        if upload is None or upload.publishing:
            raise _not_found()
        upload.unwanted = True
        if not upload.busy:
            self.drop(upload)
        elif upload.reader is not None:
            upload.reader.cancel()

    def drop(self, upload: UnfinishedPut) -> None:
        """Forget an upload and release its memory or file."""
        if upload.draft is not None:
            upload.draft.discard()  # now, not when the last traceback that knows the draft is gone
            upload.draft = None
        upload.held.give_back()
        self._without_key.discard(upload)
        if upload.key is not None and self._uploads.get(upload.key) is upload:
            del self._uploads[upload.key]

    def expire(self) -> None:
        """Drop the uploads whose time is over."""
        now = self._clock()
        for upload in [u for u in self._uploads.values() if not u.busy and u.expires_ns <= now]:
            self.drop(upload)


def _in_progress() -> Refusal:
    return Refusal("UPLOAD_IN_PROGRESS", "the same upload is being received by another call")


def _not_found() -> Refusal:
    return Refusal("UPLOAD_NOT_FOUND", "no such upload: never seen, expired, or somebody else's")
