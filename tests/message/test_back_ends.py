"""protobuf's back ends, C and pure Python: everything that passes through it holds on both."""

from __future__ import annotations

from pathlib import Path

from subprocesses import TESTS, run_python


def test_vectors_and_paths_hold_in_pure_python(tmp_path: Path) -> None:
    """The rest of the tests runs on the one that is installed, which is the C one."""
    said = run_python(
        f"""
        import sys
        import pytest
        from google.protobuf.internal import api_implementation

        print(api_implementation.Type())
        tests = {str(TESTS)!r}
        options = ["-q", "-p", "no:cacheprovider", "--basetemp", {str(tmp_path)!r}]
        chosen = "not by_store and not by_log and not flipped and not cut"
        files = [tests + "/message/test_vectors.py", tests + "/test_dtypes_everywhere.py"]
        sys.exit(pytest.main([*options, "-k", chosen, *files]))
        """,
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
    )
    assert said.splitlines()[0] == "python"
    assert " passed" in said.splitlines()[-1]


def test_bytes_and_values_are_the_same() -> None:
    script = """
        from matrix.frameworks import lend
        from matrix.expected import KINDS, LAYOUTS, Cannot, Expected
        import dlpack_wire as dw

        for kind in KINDS:
            for layout in LAYOUTS:
                try:
                    x = lend(Expected(kind, layout))
                except Cannot:
                    continue
                message = dw.to_proto(x)
                t = dw.from_proto(message)
                print(message.SerializeToString().hex(), t.header, bytes(t.payload).hex())
    """
    compiled, pure = (run_python(script, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=name) for name in ("upb", "python"))
    assert compiled == pure
    assert len(compiled.splitlines()) > 400
