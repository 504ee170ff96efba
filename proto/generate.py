"""Make the generated modules of dlpack_wire/v1 from the .proto files beside this script.

    python proto/generate.py            write the modules and the schema snapshot
    python proto/generate.py --check    write nothing; exit 1 if they differ from what would be written

Needs the pinned generator below (`make proto` installs it into an environment of its own). The
generator is old on purpose: code made by a newer one demands at least that protobuf at run time, and
from 5.26 on refuses a runtime two majors later.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

GENERATOR = "grpcio-tools==1.62.3"
PROTO = Path(__file__).resolve().parent
PACKAGE = Path("dlpack_wire/v1")
SNAPSHOT = PROTO / "schema.txt"


def generate(out: Path) -> None:
    """Run protoc over every .proto file, into `out`."""
    from grpc_tools import protoc

    sources = sorted(str(p.relative_to(PROTO)) for p in PROTO.glob("dlpack_wire/v1/*.proto"))
    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    command = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}"]
    if protoc.main([*command, *sources]) != 0:
        raise SystemExit("protoc failed")
    services = [s for s in sources if re.search(r"^service ", (PROTO / s).read_text(), re.MULTILINE)]
    if services and protoc.main([*command, f"--grpc_python_out={out}", *services]) != 0:
        raise SystemExit("protoc failed")
    descriptors = out / "descriptors.bin"
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", f"-o{descriptors}", *sources]) != 0:
        raise SystemExit("protoc failed")
    (out / "schema.txt").write_text(snapshot(descriptors.read_bytes()))
    descriptors.unlink()


def snapshot(file_descriptor_set: bytes) -> str:
    """Every message, field, enum value and method as sorted-by-file text, one a line."""
    from google.protobuf import descriptor_pb2

    lines: list[str] = []
    field_type = descriptor_pb2.FieldDescriptorProto.Type.Name
    field_label = descriptor_pb2.FieldDescriptorProto.Label.Name

    def message(prefix: str, m: descriptor_pb2.DescriptorProto) -> None:
        full = f"{prefix}.{m.name}"
        for f in m.field:
            kind = f.type_name.lstrip(".") or field_type(f.type).removeprefix("TYPE_").lower()
            label = "repeated " if field_label(f.label) == "LABEL_REPEATED" else ""
            label = "optional " if f.proto3_optional else label
            in_oneof = f.HasField("oneof_index") and not f.proto3_optional
            oneof = f" oneof {m.oneof_decl[f.oneof_index].name}" if in_oneof else ""
            lines.append(f"message {full} {f.number} {label}{kind} {f.name}{oneof}")
        for r in m.reserved_range:
            lines.append(f"message {full} reserved {r.start} to {r.end - 1}")
        for name in m.reserved_name:
            lines.append(f"message {full} reserved {name}")
        for nested in m.nested_type:
            message(full, nested)
        for e in m.enum_type:
            enum(full, e)

    def enum(prefix: str, e: descriptor_pb2.EnumDescriptorProto) -> None:
        for v in e.value:
            lines.append(f"enum {prefix}.{e.name} {v.number} {v.name}")
        for r in e.reserved_range:
            lines.append(f"enum {prefix}.{e.name} reserved {r.start} to {r.end}")

    for file in descriptor_pb2.FileDescriptorSet.FromString(file_descriptor_set).file:
        for s in file.service:
            for method in s.method:
                request = ("stream " if method.client_streaming else "") + method.input_type.lstrip(".")
                response = ("stream " if method.server_streaming else "") + method.output_type.lstrip(".")
                lines.append(f"rpc {file.package}.{s.name}.{method.name} ({request}) returns ({response})")
        for m in file.message_type:
            message(file.package, m)
        for e in file.enum_type:
            enum(file.package, e)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    name, wanted = GENERATOR.split("==")
    found = importlib.metadata.version(name)
    if found != wanted:
        raise SystemExit(f"generate.py needs {GENERATOR}, found {found}")

    differing = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        generate(out)
        targets = {SNAPSHOT: out / "schema.txt"}
        for made in sorted((out / PACKAGE).iterdir()):
            targets[PROTO.parent / PACKAGE / made.name] = made
        for target, made in targets.items():
            if not target.exists() or target.read_bytes() != made.read_bytes():
                differing.append(target.relative_to(PROTO.parent))
                if not check:
                    target.write_bytes(made.read_bytes())
        known = {t.name for t in targets}
        for stale in (PROTO.parent / PACKAGE).glob("*_pb2*"):
            if stale.name not in known:
                differing.append(stale.relative_to(PROTO.parent))
                if not check:
                    stale.unlink()
    for path in differing:
        print(f"{'differs' if check else 'wrote'}: {path}")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
