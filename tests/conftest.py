"""Property tests look at the same examples on every machine and in every run."""

from __future__ import annotations

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
