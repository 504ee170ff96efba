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
LIBRARY = ROOT / "dlpack_wire"
SERVER = ROOT / "server" / "dlpack_wire_server"

# What the files of each package may import from this project, beside their own package. One line a package.
MAY_IMPORT = {
    "errors": set(),
    "v1": set(),
    "tensor": {"errors"},
    "message": {"errors", "v1", "tensor"},
    "file": {"errors", "v1", "tensor", "message"},
    "service": {"errors", "v1", "tensor", "message"},
    "log": {"errors", "v1", "tensor", "message", "file"},
    "formats": {"errors", "tensor", "message", "file"},
    "cli": {"errors", "tensor", "message", "file", "service", "formats", "__init__"},
    "__init__": {"errors", "tensor", "message", "file", "service", "log", "formats"},
    "__main__": {"cli"},
    "server": {"errors", "v1", "tensor", "message", "file", "service", "__init__"},
}

LIBRARY_FILES = sorted(path for path in LIBRARY.rglob("*.py") if "v1" not in path.parts)
SERVER_FILES = sorted(SERVER.rglob("*.py"))
FILES = [*LIBRARY_FILES, *SERVER_FILES]

GRPC = {"grpc", "grpc_health", "grpc_reflection", "grpc_status"}
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow", "cupy", "onnx", "safetensors", "pyarrow", "pandas"}

USES_CTYPES = {"dlpack_wire/tensor/abi.py", "dlpack_wire_server/heap.py"}
USES_GRPC = {"dlpack_wire/service/grpc_transport.py"}
EXTRAS = {"service": "grpc", "log": "mcap", "cli": "rich", "server": "prometheus_client"}
"""What the files of a package import, when they are imported, that an extra installs."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT if path.is_relative_to(LIBRARY) else ROOT / "server"))


def module(path: Path) -> str:
    return name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package(path: Path) -> str:
    """The package, in the table's words, that a file belongs to."""
    return "server" if path.is_relative_to(SERVER) else part(module(path))


def part(full: str) -> str:
    """The package, in the table's words, that a module of this project belongs to."""
    top, _, rest = full.partition(".")
    if top == "dlpack_wire_server":
        return "server"
    return rest.partition(".")[0] or "__init__"


def imported(path: Path, root: Path = ROOT) -> set[str]:
    """Full names of all that a file imports, anywhere in it: modules, and names out of modules."""
    relative = path.relative_to(root if "server" not in path.relative_to(root).parts[:1] else root / "server")
    here = list(relative.parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{full}.{alias.name}" for alias in node.names}
    return found


def outside(path: Path, root: Path = ROOT) -> set[str]:
    """Top-level packages that a file imports."""
    return {full.partition(".")[0] for full in imported(path, root)}


def parts(path: Path, root: Path = ROOT) -> set[str]:
    """Packages of this project, in the table's words, that a file imports from."""
    ours = {full for full in imported(path, root) if full.partition(".")[0] in ("dlpack_wire", "dlpack_wire_server")}
    # A name of the front door itself, such as `dlpack_wire.__version__`, has no package of its own.
    return {found if (found := part(full)) in MAY_IMPORT else "__init__" for full in ours}


def test_the_table_names_the_packages_there_are() -> None:
    assert MAY_IMPORT.keys() == {package(path) for path in FILES} | {"v1"}


def test_the_table_has_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        free = {name for name, wanted in MAY_IMPORT.items() if name not in done and wanted <= done}
        assert free, f"a circle among {MAY_IMPORT.keys() - done}"
        done |= free


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_point_one_way(path: Path) -> None:
    own = package(path)
    assert parts(path) <= MAY_IMPORT[own] | {own}


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_no_line_of_the_table_allows_what_nobody_needs(package: str) -> None:
    if package == "v1":
        return
    used = set().union(*(parts(path) for path in FILES if globals()["package"](path) == package))
    assert MAY_IMPORT[package] <= used


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_named_files_use_ctypes(path: Path) -> None:
    assert ("ctypes" in outside(path)) == (name(path) in USES_CTYPES)


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=name)
def test_only_named_files_use_grpc(path: Path) -> None:
    used = outside(path) & GRPC or any(".v1." in full and "_pb2_grpc" in full for full in imported(path))
    assert bool(used) == (name(path) in USES_GRPC)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_unpickles_evaluates_or_imports_a_framework(path: Path) -> None:
    assert not outside(path) & {"pickle", "marshal", "shelve", "dill", "cloudpickle", *FRAMEWORKS}
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not {"eval", "exec", "__import__"} & {call.id for call in calls if isinstance(call, ast.Name)}


def test_the_scan_sees_imports_of_every_form(tmp_path: Path) -> None:
    """The tests above would pass on anything if the scan saw nothing."""
    folder = tmp_path / "dlpack_wire" / "tensor"
    folder.mkdir(parents=True)
    file = folder / "x.py"
    file.write_text(
        "import ctypes.util, grpc as g\n"
        "from . import dtype as d\n"
        "from ..message.codec import encode\n"
        "from ..v1 import dlpack_pb2\n"
        "from .. import __version__\n"
        "def f():\n"
        "    from ctypes import c_int\n"
        "    import dlpack_wire.file\n"
        "    from dlpack_wire import service\n"
    )
    assert parts(file, tmp_path) == {"tensor", "message", "v1", "file", "service", "__init__"}
    assert outside(file, tmp_path) == {"ctypes", "grpc", "dlpack_wire"}


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
    aliases = {"Metadata", "Policy", "Progress"}  # types written out of others have no module of their own
    assert ours | aliases == set(dw.__all__) | set(dw._LATER)
    assert len(set(dw.__all__)) == len(dw.__all__)
    for n in dw.__all__:
        assert getattr(dw, n) is not None


def test_all_is_sorted_as_linters_want_it() -> None:
    assert list(dw.__all__) == sorted(dw.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))


def test_star_import_gives_exactly_all() -> None:
    names: dict[str, object] = {}
    exec("from dlpack_wire import *", names)
    assert names.keys() - {"__builtins__"} == set(dw.__all__)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_public_things_have_docstrings() -> None:
    for n in dw.__all__:
        assert getattr(dw, n).__doc__, n


def test_codes_of_the_schema_are_those_of_the_tables() -> None:
    from dlpack_wire.tensor.device import NAMES
    from dlpack_wire.tensor.dtype import WIDTHS
    from dlpack_wire.v1 import dlpack_pb2

    assert set(dlpack_pb2.DLDeviceType.values()) - {0} == NAMES.keys()
    assert set(dlpack_pb2.DLDataTypeCode.values()) - {3} == WIDTHS.keys()
    assert set(dlpack_pb2.ByteOrder.values()) == set(map(int, dw.ByteOrder))


def test_data_is_the_last_field_of_the_message() -> None:
    from dlpack_wire.v1 import dlpack_pb2

    fields = {f.number: f.name for f in dlpack_pb2.DLTensor.DESCRIPTOR.fields}
    assert fields[max(fields)] == "data"
    assert not set(range(10, 14)) & fields.keys()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_modules_import_on_their_own(path: Path) -> None:
    extra = EXTRAS.get(package(path))
    if extra is not None:
        pytest.importorskip(extra)
    if path.stem != "__main__":
        importlib.import_module(module(path))


@pytest.mark.parametrize("wanted", sorted(name for name, (_, extra) in dw._LATER.items() if extra is not None))
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
