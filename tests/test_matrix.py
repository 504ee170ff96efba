"""Any producer, any consumer: every element type in every layout, through every framework that is installed."""

from __future__ import annotations

import pytest
from matrix.expected import KINDS, LAYOUTS, Cannot, Expected, Kind
from matrix.frameworks import FRAMEWORKS, Capsules, Framework
from matrix.page import PAGE, layout_row, read, type_row
from matrix.run import Taking, run, send

PRODUCERS = [f for f in FRAMEWORKS if f.makes]
CONSUMERS = [f for f in FRAMEWORKS if f.takes]
TAKING = Taking()

# torch says so whenever it copies complex32.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def needs(framework: Framework) -> None:
    if not framework.installed:
        pytest.skip(f"{framework.name} is not installed")


@each_kind
@pytest.mark.parametrize("producer", PRODUCERS, ids=lambda f: f.name)
def test_what_it_makes_arrives_at_every_consumer(producer: Framework, kind: Kind) -> None:
    needs(producer)
    reasons = []
    for layout in LAYOUTS:
        expected = Expected(kind, layout)
        try:
            message = send(producer, expected)
        except Cannot as reason:
            reasons.append(reason)
            continue
        for consumer in CONSUMERS:
            if consumer.installed:
                TAKING.take(consumer, message, expected)
    if len(reasons) == len(LAYOUTS):
        pytest.skip(f"{producer.name} {reasons[0]}")


@each_kind
@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda f: f.name)
def test_it_takes_what_it_can(consumer: Framework, kind: Kind) -> None:
    needs(consumer)
    reasons = []
    for layout in LAYOUTS:
        expected = Expected(kind, layout)
        try:
            message = send(Capsules(), expected)
        except Cannot:
            continue
        reasons.append(TAKING.take(consumer, message, expected))
    if None not in reasons:
        pytest.skip(f"{consumer.name} {reasons[0]}")


@each_kind
def test_equal_tensors_give_equal_bytes_whoever_made_them(kind: Kind) -> None:
    for layout in LAYOUTS:
        messages = {}
        for producer in PRODUCERS:
            if producer.installed and producer.name != "numpy, swapped":
                try:
                    messages[producer.name] = send(producer, Expected(kind, layout))
                except Cannot:
                    continue
        assert len(set(messages.values())) <= 1, (layout.name, messages)


def test_the_page_is_what_a_run_finds() -> None:
    """Of all frameworks and types; and, for those installed here in the page's version, cell by cell."""
    page = PAGE.read_text()
    written = read(page)
    installed = [f for f in FRAMEWORKS if f.installed]
    found = run(installed)
    for title, holes, frameworks in (("Producers", found.made, PRODUCERS), ("Consumers", found.taken, CONSUMERS)):
        assert {(row, name) for t, row, name in written if t == title} == {
            (row.name, f.name) for row in (*KINDS, *LAYOUTS) for f in frameworks
        }
        names = [f.name for f in frameworks if f.installed and f"{f.distribution} {f.version}" in page]
        assert "C structs" in names
        for row in (*KINDS, *LAYOUTS):
            cells = type_row(holes, names, row) if isinstance(row, Kind) else layout_row(holes, names, row)
            assert [written[title, row.name, name] for name in names] == list(cells), row.name
