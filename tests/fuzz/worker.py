"""Fuzz one target with atheris until libFuzzer stops: `python -m tests.fuzz.worker TARGET [libFuzzer options]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["dlpack_wire"]):
    import dlpack_wire  # noqa: F401  # instrumented before anything else imports it

    from .properties import TARGETS

atheris.Setup(sys.argv[1:], TARGETS[sys.argv[1]])
atheris.Fuzz()
