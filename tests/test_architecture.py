"""Imports point one way, heavy packages stay out, and the front door is what it says."""

from __future__ import annotations

import ast
import importlib
import types
from pathlib import Path

import pytest
from subprocesses import run_python

import dlpack_wire as dw

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dlpack_wire"
SERVER = ROOT / "server" / "dlpack_wire_server"

# A module may import what stands on a lower line than itself. Generated code in v1 may be imported by all.
ORDER = (
    ("errors", "device", "subbyte", "replacement", "terminal"),
    ("dtype", "wire", "_abi"),
    ("layout", "frameworks", "metadata"),
    ("header", "capsule"),
    ("message",),
    ("tensor", "checksum"),
    ("source", "record", "storage"),
    ("codec", "mcap_chunk"),
    ("chunks", "index", "stored", "sink", "remote", "ties"),
    ("walk", "chain", "located", "writer", "image", "log", "upload", "frames"),
    ("reader", "download"),
    ("appender", "audit", "exchange"),
    ("file", "recovery"),
    ("local", "connection", "formats"),
    ("topics", "diff", "convert"),
    ("client", "listing"),
    ("async_client",),
    ("cli",),
    ("__main__",),
)
LEVEL = {module: level for level, modules in enumerate(ORDER) for module in modules}

MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.stem != "__init__")
EVERYTHING = sorted({*MODULES, PACKAGE / "__init__.py", *PACKAGE.glob("formats/*.py"), *SERVER.glob("*.py")})

GRPC = {"grpc", "grpc_health", "grpc_reflection", "grpc_status"}
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "cupy", "onnx", "safetensors", "pyarrow", "pandas"}


SPEAKS_GRPC = {"connection", "topics", "client", "async_client"}
NEEDS = {
    "client": ["grpc"],
    "async_client": ["grpc"],
    "connection": ["grpc"],
    "topics": ["grpc"],
    "log": ["mcap"],
    "mcap_chunk": ["mcap"],
    "cli": ["rich"],
    "terminal": ["rich"],
}
"""What modules import from outside, when they are imported, that an extra installs."""


def name(path: Path) -> str:
    return path.stem


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it. Names from `from . import x` count as modules."""
    package = [path.parent.name]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{full}.{alias.name}" for alias in node.names} if node.module is None else {full}
            if node.module is not None and node.level == 0 and node.module == "dlpack_wire":
                found |= {f"dlpack_wire.{alias.name}" for alias in node.names}
    return found


def outside(path: Path) -> set[str]:
    """Top-level packages that a file imports."""
    return {full.partition(".")[0] for full in imported(path)}


def ours(path: Path) -> set[str]:
    """Modules of the library that a file imports."""
    return {full.split(".")[1] for full in imported(path) if full.startswith("dlpack_wire.")} - {"v1", "__version__"}


def test_the_table_names_every_module() -> None:
    assert {name(path) for path in MODULES} <= LEVEL.keys()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_point_one_way(path: Path) -> None:
    wrong = {other for other in ours(path) if LEVEL[other] >= LEVEL[name(path)]}
    assert not wrong, f"{name(path)} imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_the_library_never_imports_the_server(path: Path) -> None:
    assert "dlpack_wire_server" not in outside(path)


@pytest.mark.parametrize("path", EVERYTHING, ids=name)
def test_only_abi_touches_raw_memory(path: Path) -> None:
    assert "ctypes" not in outside(path) or path == PACKAGE / "_abi.py"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_client_speaks_grpc(path: Path) -> None:
    assert not outside(path) & GRPC or name(path) in SPEAKS_GRPC
    assert not any(full.endswith("_pb2_grpc") for full in imported(path)) or name(path) in SPEAKS_GRPC


@pytest.mark.parametrize("path", EVERYTHING, ids=name)
def test_nothing_unpickles_evaluates_or_imports_a_framework(path: Path) -> None:
    assert not outside(path) & {"pickle", "marshal", "shelve", "dill", "cloudpickle", *FRAMEWORKS}
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not {"eval", "exec", "__import__"} & {call.id for call in calls if isinstance(call, ast.Name)}


def test_the_scan_sees_imports_of_every_form(tmp_path: Path) -> None:
    """The tests above would pass on anything if the scan saw nothing."""
    folder = tmp_path / "dlpack_wire"
    folder.mkdir()
    file = folder / "x.py"
    file.write_text(
        "import ctypes.util, grpc as g\n"
        "from . import dtype as d\n"
        "from .codec import encode\n"
        "from .v1 import dlpack_pb2\n"
        "def f():\n"
        "    from ctypes import c_int\n"
        "    import dlpack_wire.file\n"
        "    from dlpack_wire import client\n"
    )
    assert ours(file) == {"dtype", "codec", "file", "client"}
    assert outside(file) == {"ctypes", "grpc", "dlpack_wire"}


def test_importing_loads_no_grpc_and_no_framework() -> None:
    script = f"""
        import sys
        import dlpack_wire
        unwanted = {sorted({*GRPC, *FRAMEWORKS, "mcap", "fsspec", "asyncio", "sqlite3"})}
        print(sorted(set(unwanted) & sys.modules.keys()))
    """
    assert run_python(script) == "[]\n"


def test_all_is_what_the_front_door_has() -> None:
    public = {n for n in dir(dw) if not n.startswith("_") and not isinstance(getattr(dw, n), types.ModuleType)}
    ours = {n for n in public if getattr(getattr(dw, n), "__module__", "").startswith("dlpack_wire")}
    assert ours == set(dw.__all__) | set(dw._LATER)
    assert len(set(dw.__all__)) == len(dw.__all__)
    for n in dw.__all__:
        assert getattr(dw, n) is not None


def test_all_is_sorted_as_linters_want_it() -> None:
    assert list(dw.__all__) == sorted(dw.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))


def test_star_import_gives_exactly_all() -> None:
    names: dict[str, object] = {}
    exec("from dlpack_wire import *", names)
    assert names.keys() - {"__builtins__"} == set(dw.__all__)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_public_things_have_docstrings() -> None:
    for n in dw.__all__:
        assert getattr(dw, n).__doc__, n


def test_codes_of_the_schema_are_those_of_the_tables() -> None:
    from dlpack_wire.device import NAMES
    from dlpack_wire.dtype import WIDTHS
    from dlpack_wire.v1 import dlpack_pb2

    assert set(dlpack_pb2.DLDeviceType.values()) - {0} == NAMES.keys()
    assert set(dlpack_pb2.DLDataTypeCode.values()) - {3} == WIDTHS.keys()
    assert set(dlpack_pb2.ByteOrder.values()) == set(map(int, dw.ByteOrder))


def test_data_is_the_last_field_of_the_message() -> None:
    from dlpack_wire.v1 import dlpack_pb2

    fields = {f.number: f.name for f in dlpack_pb2.DLTensor.DESCRIPTOR.fields}
    assert fields[max(fields)] == "data"
    assert not set(range(10, 14)) & fields.keys()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_import_on_their_own(path: Path) -> None:
    for needed in NEEDS.get(name(path), ()):
        pytest.importorskip(needed)
    importlib.import_module(f"dlpack_wire.{name(path)}")


@pytest.mark.parametrize("wanted", sorted(dw._LATER))
def test_what_needs_an_extra_says_which(wanted: str) -> None:
    script = f"""
        import sys
        sys.modules["grpc"] = sys.modules["mcap"] = None  # as if not installed
        import dlpack_wire as dw
        try:
            dw.{wanted}
        except ImportError as error:
            print(error)
        from dlpack_wire import *
    """
    assert f"pip install 'dlpack-wire[{dw._LATER[wanted][1]}]'" in run_python(script)
