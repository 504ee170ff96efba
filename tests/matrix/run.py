"""Sending every expected from every producer to every consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import dlpack_wire as dw
from dlpack_wire.v1 import dlpack_pb2

from .expected import KINDS, LAYOUTS, Cannot, Expected, Kind, Layout, cells
from .frameworks import Framework, Lent, Taken

NOTHING_SENT = "has nothing to take: no producer can say it"


def send(producer: Framework, expected: Expected) -> bytes:
    """The message of what a producer makes, after a look at what arrives with it.

    Raises:
        Cannot: The producer has no way to make it.
    """
    x = producer.make(expected)
    message = dw.encode(x)
    t = dw.decode(message)
    arrived = t.dtype, t.header.padded, t.shape, cells(expected.kind, t.shape, bytes(t.payload))
    assert arrived == (expected.kind.dtype, expected.kind.padded, expected.layout.shape, expected.elements)
    assert dw.to_proto(x).SerializeToString() == message
    return message


class Taking:
    """Consumers taking what messages hold: all that they see of a producer, so each message is taken once."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, bytes], str | None] = {}

    def take(self, consumer: Framework, message: bytes, expected: Expected) -> str | None:
        """Why the consumer cannot take a message of this expected; None if it has taken all of it, bit for bit."""
        key = consumer.name, message
        if key not in self._outcomes:
            self._outcomes[key] = self._take(consumer, message, expected)
        return self._outcomes[key]

    def _take(self, consumer: Framework, message: bytes, expected: Expected) -> str | None:
        try:
            taken = consumer.take(dw.decode(bytearray(message)))
        except Cannot as hole:
            assert_own_fault(consumer, message, expected)
            return str(hole)
        assert_taken(taken, expected)
        return None


def assert_taken(taken: Taken, expected: Expected) -> None:
    assert taken.dtype in (expected.kind.name, expected.kind.dtype.name)
    assert taken.shape == expected.layout.shape
    assert taken.elements == expected.elements


def assert_own_fault(consumer: Framework, message: bytes, expected: Expected) -> None:
    """A hole is the consumer's own if it cannot take the same tensor out of a hand-made capsule either."""
    t = dw.decode(message)
    memory = dlpack_pb2.DLTensor.FromString(message).data
    try:
        taken = consumer.take(Lent(expected.kind, t.shape, t.strides, 0, memory, destructor=False))
    except Cannot:
        return
    assert taken.elements != expected.elements, (
        f"{consumer.name} takes {expected.kind.name} from others, but not from us"
    )


Why = str | None
"""Why a framework and a expected do not go together; None where they do."""


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
        expected = Expected(kind, layout)
        messages: set[bytes] = set()
        for producer in producers:
            try:
                messages.add(send(producer, expected))
            except Cannot as hole:
                found.made[producer.name, kind, layout] = str(hole)
            else:
                found.made[producer.name, kind, layout] = None
        for consumer in consumers:
            whys = {taking.take(consumer, message, expected) for message in messages} or {NOTHING_SENT}
            (found.taken[consumer.name, kind, layout],) = whys
    return found
