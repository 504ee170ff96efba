"""The contract's files: generated code matches them and the declared floors, and a stranger can read them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import floors
import pytest
from google.protobuf import descriptor_pb2

from dlpack_wire.tensor import device, dtype
from dlpack_wire.v1 import dlpack_pb2, tensor_file_pb2, tensor_service_pb2

ROOT = Path(__file__).parent.parent
PROTO = ROOT / "proto"
SOURCES = sorted(PROTO.rglob("*.proto"))
# Each after what it imports, which is the order of the snapshot.
MODULES = (dlpack_pb2, tensor_file_pb2, tensor_service_pb2)
GENERATED = sorted((ROOT / "dlpack_wire" / "v1").glob("*_pb2*.py"))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", PROTO / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(module: ModuleType) -> descriptor_pb2.FileDescriptorProto:
    description = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(description)
    return description


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


# --- generated code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [p for p in GENERATED if not p.stem.endswith("_grpc")], ids=lambda p: p.stem)
def test_generated_code_is_not_newer_than_the_floor_of_protobuf(path: Path) -> None:
    """A runtime older than the generator refuses the code, or breaks on it."""
    [stamp] = re.findall(r"^# Protobuf Python Version: ([\d.]+)$", path.read_text(), re.MULTILINE)
    assert version(stamp) <= version(floors.declared()["protobuf"])


def test_the_generator_is_not_newer_than_the_floor_of_grpcio() -> None:
    name, _, pinned = generator().GENERATOR.partition("==")
    assert name == "grpcio-tools"
    assert version(pinned)[:2] <= version(floors.declared()["grpcio"])[:2]


def test_every_source_has_its_modules_and_every_module_its_source() -> None:
    sources = {p.stem for p in SOURCES}
    assert {re.sub(r"_pb2(_grpc)?$", "", p.stem) for p in GENERATED} == sources
    services = {p.stem for p in SOURCES if re.search(r"^service ", p.read_text(), re.MULTILINE)}
    assert {p.stem.removesuffix("_pb2_grpc") for p in GENERATED if p.stem.endswith("_grpc")} == services


def test_the_schema_has_not_grown_by_accident() -> None:
    """`make proto` writes the snapshot; a difference in it is a change of the contract."""
    schema = descriptor_pb2.FileDescriptorSet(file=map(described, MODULES))
    assert {PROTO / file.name for file in schema.file} == set(SOURCES)
    assert generator().snapshot(schema.SerializeToString()) == (PROTO / "schema.txt").read_text()


# --- DLPack's numbers -------------------------------------------------------------------------------------------------

DEVICE_TYPES = {
    "cpu": 1,
    "cuda": 2,
    "cuda_host": 3,
    "opencl": 4,
    "vulkan": 7,
    "metal": 8,
    "vpi": 9,
    "rocm": 10,
    "rocm_host": 11,
    "ext_dev": 12,
    "cuda_managed": 13,
    "oneapi": 14,
    "webgpu": 15,
    "hexagon": 16,
    "maia": 17,
    "trn": 18,
    "tpu": 19,
    "tpu_host": 20,
}

INTEGER_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)

DTYPE_CODES: dict[str, tuple[int, tuple[int, ...]]] = {
    "int": (0, INTEGER_WIDTHS),
    "uint": (1, INTEGER_WIDTHS),
    "float": (2, (16, 32, 64)),
    "opaque_handle": (3, ()),
    "bfloat": (4, (16,)),
    "complex": (5, (32, 64, 128)),
    "bool": (6, (8,)),
    "float8_e3m4": (7, (8,)),
    "float8_e4m3": (8, (8,)),
    "float8_e4m3b11fnuz": (9, (8,)),
    "float8_e4m3fn": (10, (8,)),
    "float8_e4m3fnuz": (11, (8,)),
    "float8_e5m2": (12, (8,)),
    "float8_e5m2fnuz": (13, (8,)),
    "float8_e8m0fnu": (14, (8,)),
    "float6_e2m3fn": (15, (6,)),
    "float6_e3m2fn": (16, (6,)),
    "float4_e2m1fn": (17, (4,)),
    "bcomplex": (18, (32,)),
}


def plain(name: str) -> str:
    """DLPack's `kDLCUDAHost` and our `cuda_host` alike."""
    return name.removeprefix("kDL").replace("_", "").lower()


def test_device_types_are_dlpacks() -> None:
    in_schema = {plain(name): number for name, number in dlpack_pb2.DLDeviceType.items()}
    assert in_schema == {"deviceunspecified": 0, **{plain(name): n for name, n in DEVICE_TYPES.items()}}
    assert {name: number for number, name in device.NAMES.items()} == DEVICE_TYPES
    assert {DEVICE_TYPES[name] for name in ("cpu", "cuda_host", "rocm_host")} == device.HOST_READABLE
    description = descriptor_pb2.EnumDescriptorProto()
    dlpack_pb2.DLDeviceType.DESCRIPTOR.CopyToProto(description)
    assert {n for r in description.reserved_range for n in range(r.start, r.end + 1)} == {5, 6}


def test_dtype_codes_and_widths_are_dlpacks() -> None:
    in_schema = {plain(name): number for name, number in dlpack_pb2.DLDataTypeCode.items()}
    assert in_schema == {plain(name): code for name, (code, _) in DTYPE_CODES.items()}
    assert {code: widths for code, widths in DTYPE_CODES.values() if widths} == dtype.WIDTHS


# --- readable by strangers --------------------------------------------------------------------------------------------


class Element(NamedTuple):
    kind: str
    name: str
    comment: str


_DECLARATION = re.compile(
    r"(?P<block>message|enum|service|oneof)\s+(?P<block_name>\w+)\s*\{"
    r"|rpc\s+(?P<rpc>\w+)\s*\("
    r"|(?:(?:repeated|optional)\s+)?[\w.<>, ]*?\b(?P<field>\w+)\s*=\s*\d+\s*;"
    r"|(?P<reserved>reserved)\s"
)


def elements(source: Path) -> list[Element]:
    """Every message, enum, service, oneof, method, field, enum value and reservation with the comment above it."""
    found: list[Element] = []
    comment: list[str] = []
    for line in map(str.strip, source.read_text().splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        match = _DECLARATION.match(line)
        if match is not None:
            kind = match["block"] or match["reserved"] or ("rpc" if match["rpc"] else "field")
            name = match["block_name"] or match["rpc"] or match["field"] or line
            found.append(Element(kind, name, "\n".join(comment)))
        elif line and line != "}" and not re.match(r"(syntax|package|import)\b", line):
            raise AssertionError(f"{source.name}: cannot read {line!r}")
        comment = []
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_every_element_has_a_comment(source: Path) -> None:
    found = elements(source)
    assert len(found) > 10
    assert [f"{e.kind} {e.name}" for e in found if not e.comment] == []


def names_in(description: Any) -> Iterator[str]:
    """Names of everything in a described file or message."""
    parts = {descriptor.name: value for descriptor, value in description.ListFields()}
    for message in [*parts.get("message_type", ()), *parts.get("nested_type", ())]:
        if not message.options.map_entry:
            yield message.name
            yield from names_in(message)
    for enum in parts.get("enum_type", ()):
        yield from (enum.name, *(value.name for value in enum.value))
    for service in parts.get("service", ()):
        yield from (service.name, *(method.name for method in service.method))
    fields = parts.get("field", ())
    yield from (field.name for field in fields)
    implied = {field.oneof_index for field in fields if field.proto3_optional}
    yield from (oneof.name for i, oneof in enumerate(parts.get("oneof_decl", ())) if i not in implied)


def test_the_scan_sees_every_element() -> None:
    """The test above would pass on anything if the scan saw nothing."""
    for description in map(described, MODULES):
        seen = [e.name for e in elements(PROTO / description.name) if e.kind != "reserved"]
        assert sorted(seen) == sorted(names_in(description))


def test_every_method_lists_its_errors() -> None:
    methods = [e for source in SOURCES for e in elements(source) if e.kind == "rpc"]
    assert len(methods) == len(tensor_service_pb2.DESCRIPTOR.services_by_name["TensorService"].methods)
    reasons = set(tensor_service_pb2.ErrorReason.keys())
    for method in methods:
        _, found, listed = method.comment.partition("Errors:")
        assert found, method.name
        assert listed.strip(), method.name
        for reason in re.findall(r"[(,] ?([A-Z_]{4,})(?=[,)])", listed):
            assert f"ERROR_REASON_{reason}" in reasons, method.name
