"""Property tests look at the same examples on every machine and in every run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("subprocesses")

settings.register_profile(
    "same everywhere",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same everywhere")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="only the long runs, with their full counts")
    parser.addoption("--interop", action="store_true", help="also the readers and clients that take long to build")
    parser.addoption("--seed", type=int, default=1, help="of the inputs that make interop compares")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --soak, long tests are skipped; with it, only they and those with two counts run."""
    if config.getoption("soak"):
        long = [i for i in items if i.get_closest_marker("soak") or "rounds" in getattr(i, "fixturenames", ())]
        config.hook.pytest_deselected(items=[i for i in items if i not in long])
        items[:] = long
    else:
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a long run: make soak"))
            if item.get_closest_marker("interop") and not config.getoption("interop"):
                item.add_marker(pytest.mark.skip(reason="builds C++: make interop"))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """How often to do something: rounds(few, many) is `few` in `make test` and `many` in `make soak`."""
    soak = bool(request.config.getoption("soak"))
    return lambda few, many: many if soak else few
