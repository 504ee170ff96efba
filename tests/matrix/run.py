"""Sending every truth from every producer to every consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import dlpack_wire as dw
from dlpack_wire.v1 import dlpack_pb2

from .frameworks import Framework, Lent, Taken
from .truth import KINDS, LAYOUTS, Cannot, Kind, Layout, Truth, cells

NOTHING_SENT = "has nothing to take: no producer can say it"


def send(producer: Framework, truth: Truth) -> bytes:
    """The message of what a producer makes, after a look at what arrives with it.

    Raises:
        Cannot: The producer has no way to make it.
    """
    x = producer.make(truth)
    message = dw.encode(x)
    t = dw.decode(message)
    arrived = t.dtype, t.header.padded, t.shape, cells(truth.kind, t.shape, bytes(t.payload))
    assert arrived == (truth.kind.dtype, truth.kind.padded, truth.layout.shape, truth.elements)
    assert dw.to_proto(x).SerializeToString() == message
    return message


class Taking:
    """Consumers taking what messages hold: all that they see of a producer, so each message is taken once."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, bytes], str | None] = {}

    def take(self, consumer: Framework, message: bytes, truth: Truth) -> str | None:
        """Why the consumer cannot take a message of this truth; None if it has taken all of it, bit for bit."""
        key = consumer.name, message
        if key not in self._outcomes:
            self._outcomes[key] = self._take(consumer, message, truth)
        return self._outcomes[key]

    def _take(self, consumer: Framework, message: bytes, truth: Truth) -> str | None:
        try:
            taken = consumer.take(dw.decode(bytearray(message)))
        except Cannot as hole:
            assert_own_fault(consumer, message, truth)
            return str(hole)
        assert_taken(taken, truth)
        return None


def assert_taken(taken: Taken, truth: Truth) -> None:
    assert taken.dtype in (truth.kind.name, truth.kind.dtype.name)
    assert taken.shape == truth.layout.shape
    assert taken.elements == truth.elements


def assert_own_fault(consumer: Framework, message: bytes, truth: Truth) -> None:
    """A hole is the consumer's own if it cannot take the same tensor out of a hand-made capsule either."""
    t = dw.decode(message)
    memory = dlpack_pb2.DLTensor.FromString(message).data
    try:
        taken = consumer.take(Lent(truth.kind, t.shape, t.strides, 0, memory, destructor=False))
    except Cannot:
        return
    assert taken.elements != truth.elements, f"{consumer.name} takes {truth.kind.name} from others, but not from us"


Why = str | None
"""Why a framework and a truth do not go together; None where they do."""


@dataclass
class Findings:
    """What a run found, by framework, kind and layout."""

    made: dict[tuple[str, Kind, Layout], Why] = field(default_factory=dict)
    taken: dict[tuple[str, Kind, Layout], Why] = field(default_factory=dict)


def run(frameworks: Sequence[Framework], kinds: Sequence[Kind] = KINDS) -> Findings:
    """Send everything from everyone to everyone; an AssertionError tells what did not arrive."""
    found, taking = Findings(), Taking()
    producers = [f for f in frameworks if f.makes]
    consumers = [f for f in frameworks if f.takes]
    for kind, layout in product(kinds, LAYOUTS):
        truth = Truth(kind, layout)
        messages: set[bytes] = set()
        for producer in producers:
            try:
                messages.add(send(producer, truth))
            except Cannot as hole:
                found.made[producer.name, kind, layout] = str(hole)
            else:
                found.made[producer.name, kind, layout] = None
        for consumer in consumers:
            whys = {taking.take(consumer, message, truth) for message in messages} or {NOTHING_SENT}
            (found.taken[consumer.name, kind, layout],) = whys
    return found
