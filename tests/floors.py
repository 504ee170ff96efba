"""Install the lowest versions that pyproject.toml allows into an environment of its own, and use them.

    python tests/floors.py

The environment is made with the Python that runs this: one for which those versions have wheels.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import venv
import warnings
from pathlib import Path

from server_process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
BACK_ENDS = ("upb", "python")


def declared() -> dict[str, str]:
    """The lowest version of every package that pyproject.toml names: of the dependencies and of all extras."""
    text = (ROOT / "pyproject.toml").read_text()
    found = dict(re.findall(r'"([A-Za-z][\w.-]*)>=([\d.]+)"', text))
    assert {"protobuf", "numpy", "grpcio", "mcap"} <= found.keys()
    return found


def install(folder: Path) -> Path:
    """Make an environment with exactly the declared versions; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pinned = [f"{name}=={version}" for name, version in declared().items()]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Only wheels: compiling a grpcio for half an hour is not what anybody meant.
    subprocess.run([*pip, "--only-binary", ":all:", *pinned], check=True)
    subprocess.run([*pip, f"{ROOT}[all]"], check=True)
    return python


def check_versions() -> None:
    """Require that what is installed is what is declared, and print it."""
    for name, version in declared().items():
        found = importlib.metadata.version(name)
        print(f"  {name} {found}")
        # 2.1 declares the same as 2.1.0
        assert f"{found}.0.0".startswith(f"{version}."), f"{name} {found} instead of {version}"


def import_everything() -> None:
    """Import every module of both packages, the generated ones too; a warning from one of ours is an error."""
    for package in ("dlpack_wire", "dlpack_wire_server"):
        warnings.filterwarnings("error", module=package)
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def use() -> None:
    """A round trip of every element type that numpy has, by message, file, log and server."""
    import numpy as np

    import dlpack_wire as dw
    from dlpack_wire.tensor import dtype

    tensors = {
        t.name: np.arange(12, dtype=np.uint8).reshape(3, 4).astype(t.numpy)
        for t in dtype.table()
        if t.numpy_or_none is not None
    }
    assert len(tensors) > 25
    for name, x in tensors.items():
        message = dw.encode(x)
        assert dw.decode(message).numpy().tobytes() == x.tobytes(), name
        assert dw.to_proto(x).SerializeToString() == message, name
        assert dw.encode(dw.from_proto(dw.to_proto(x))) == message, name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.dlpw"
        dw.save(path, tensors, metadata={"k": 1})
        dw.verify(path)
        for name, t in dw.load_dict(path).items():
            assert t.numpy().tobytes() == tensors[name].tobytes(), name
        path = Path(folder) / "all.mcap"
        with dw.LogWriter(path) as writer:
            for name, x in tensors.items():
                writer.write(name, x)
                writer.flush()
        for record in dw.LogReader(path).read():
            assert record.tensor.numpy().tobytes() == tensors[record.topic].tobytes(), record.topic
    server = ServerProcess()
    try:
        refuse_bomb(server)
        with dw.connect(server.address) as client:
            client.put("all", tensors)
            for name, t in client.get("all").items():
                assert t.numpy().tobytes() == tensors[name].tobytes(), name
    finally:
        server.stop()


def refuse_bomb(server: ServerProcess) -> None:
    """400 MiB in 0.4 MB are refused unseen: old versions of grpcio unpack them before they look at the size."""
    import grpc

    before = server.private_bytes()
    with grpc.insecure_channel(server.address) as channel:
        store = channel.unary_unary("/dlpack_wire.v1.TensorService/Store")
        try:
            store(bytes(400 << 20), compression=grpc.Compression.Gzip, timeout=60)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error  # noqa: PT017
        else:
            raise AssertionError("a compressed request was taken")
    assert server.private_bytes() - before < 32 << 20


def main() -> int:
    if "--inside" in sys.argv:
        from google.protobuf.internal import api_implementation

        assert api_implementation.Type() == os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"]
        check_versions()
        import_everything()
        use()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder) / "venv")
        for back_end in BACK_ENDS:
            print(f"protobuf back end {back_end}:", flush=True)
            environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": back_end}
            # Not from the checkout, whose folders would hide what was installed.
            subprocess.run([python, __file__, "--inside"], env=environment, cwd=folder, check=True)
    print("the declared floors work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
