"""The whole way on real input: a stereo pair and its disparity map, by every path, compared bit for bit.

    make demo

The tensors come from numpy and from torch. Each one is encoded and decoded, saved to a file and loaded, put to a
server in another process and fetched by a third one, and logged and read back. Exits with 1 if a single bit differs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

import dlpack_wire as dw

Tensors = dict[str, Any]

LEFT = "numpy/left"
"""The image that is shown."""


class Arrived(NamedTuple):
    """What came out at the end of a path.

    Attributes:
        bits: The elements' bits as unsigned integers, in the tensor's shape.
        seconds: How long the way took, there and back.
    """

    bits: np.ndarray
    seconds: float


Way = Callable[[Tensors, Path], dict[str, Arrived]]
"""Sends tensors somewhere and gets them back; may use the folder."""


def images() -> Tensors:
    """The images that lie inside scikit-image's wheel, and what a program might make of them."""
    import imageio.v3 as imageio  # comes with scikit-image

    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    data = Path(spec.submodule_search_locations[0]) / "data"
    left = imageio.imread(data / "motorcycle_left.png")
    right = imageio.imread(data / "motorcycle_right.png")
    [disparity] = np.load(data / "motorcycle_disp.npz").values()
    with np.errstate(invalid="ignore"):
        gradient = np.diff(disparity)  # infinity minus infinity: NaN
    assert np.isinf(disparity).any()
    assert np.isnan(gradient).any()
    planes = torch.from_numpy(right).permute(2, 0, 1)
    return {
        LEFT: left,
        "numpy/right, mirrored": right[:, ::-1],
        "numpy/disparity": disparity,
        "numpy/disparity, big-endian": disparity.astype(">f4"),
        "numpy/gradient": gradient,
        "torch/right": planes,  # channels first, over memory with channels last
        "torch/right, bf16": (planes / 255).to(torch.bfloat16),
        "torch/disparity, bf16": torch.from_numpy(disparity).to(torch.bfloat16),
        "torch/valid": torch.from_numpy(np.isfinite(disparity)),
    }


def bits(x: Any) -> np.ndarray:
    """A tensor's bits, without any help of dlpack-wire if it is not one of its own."""
    if isinstance(x, torch.Tensor):
        x = x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]).numpy()
    x = np.asarray(x)
    if not x.dtype.isnative:
        x = x.byteswap()  # the same values, in this machine's order
    return np.ascontiguousarray(x).view(f"u{x.itemsize}").reshape(x.shape)


# --- the ways --------------------------------------------------------------------------------------------------------


def by_message(tensors: Tensors, folder: Path) -> dict[str, Arrived]:
    """Through the bytes of one message."""
    arrived = {}
    for name, x in tensors.items():
        begin = time.perf_counter()
        t = dw.decode(dw.encode(x))
        arrived[name] = Arrived(bits(t), time.perf_counter() - begin)
    return arrived


def by_file(tensors: Tensors, folder: Path) -> dict[str, Arrived]:
    """Through a tensor file."""
    path = folder / "motorcycle.dlpw"
    arrived = {}
    spent = {}
    with dw.open(path, "w", metadata={"scene": "motorcycle"}) as f:
        for name, x in tensors.items():
            begin = time.perf_counter()
            f[name] = x
            spent[name] = time.perf_counter() - begin
    with dw.open(path, verify=True) as f:
        for name in tensors:
            begin = time.perf_counter()
            t = f[name]
            arrived[name] = Arrived(bits(t), spent[name] + time.perf_counter() - begin)
    return arrived


def by_server(tensors: Tensors, folder: Path) -> dict[str, Arrived]:
    """To a server in another process, and from it to a third one."""
    result = folder / "fetched.npz"
    spent = {}
    with serving() as address:
        with dw.connect(address) as client:
            for name, x in tensors.items():
                begin = time.perf_counter()
                client.put(name, x)
                spent[name] = time.perf_counter() - begin
        command = [sys.executable, __file__, "--fetch", address, str(result), *tensors]
        subprocess.run(command, check=True, timeout=60)
    with np.load(result) as fetched:
        seconds = fetched["seconds"]
        return {name: Arrived(fetched[f"bits{i}"], spent[name] + float(seconds[i])) for i, name in enumerate(tensors)}


def fetch(address: str, result: str, *names: str) -> None:
    """The third process: get tensors from the server, and hand on their bits without dlpack-wire."""
    found: dict[str, np.ndarray] = {}
    seconds = []
    with dw.connect(address) as client:
        for i, name in enumerate(names):
            begin = time.perf_counter()
            t = client.get(name)
            found[f"bits{i}"] = bits(t)
            seconds.append(time.perf_counter() - begin)
    np.savez(result, **found, seconds=np.array(seconds))


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server in another process, for as long as the block takes; gives its address."""
    command = [sys.executable, "-m", "dlpack_wire", "serve", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        said = server.stdout.readline()
        if not said.startswith("listening on "):
            raise RuntimeError(f"the server did not start: {said!r}")
        yield said.split()[-1]
    finally:
        server.terminate()
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


def by_log(tensors: Tensors, folder: Path) -> dict[str, Arrived]:
    """Through a log that MCAP's tools can open."""
    path = folder / "motorcycle.mcap"
    spent = {}
    with dw.LogWriter(path) as log:
        for name, x in tensors.items():
            begin = time.perf_counter()
            log.write(name, x)
            log.flush()
            spent[name] = time.perf_counter() - begin
    arrived = {}
    with dw.LogReader(path) as log:
        begin = time.perf_counter()
        for record in log.read():
            arrived[record.topic] = Arrived(bits(record.tensor), spent[record.topic] + time.perf_counter() - begin)
            begin = time.perf_counter()
    return arrived


WAYS: dict[str, Way] = {
    "message": by_message,
    "file": by_file,
    "server": by_server,
    "log": by_log,
}


# --- the report -------------------------------------------------------------------------------------------------------


def report(tensors: Tensors, arrived: dict[str, dict[str, Arrived]], console: Console) -> int:
    """Compare what arrived by each way with what was sent, in a table; returns how many differ."""
    table = Table("name", "dtype", "shape")
    table.add_column("bytes", justify="right")
    table.add_column("path")
    table.add_column("time", justify="right")
    table.add_column("equal")
    expected = {name: (bits(x), dw.decode(dw.encode(x)).header) for name, x in tensors.items()}
    differing = 0
    for way, found in arrived.items():
        for name, (sent, header) in expected.items():
            equal = np.array_equal(found[name].bits, sent)
            differing += not equal
            table.add_row(
                name,
                header.dtype.name,
                "x".join(map(str, header.shape)),
                f"{header.payload_bytes:,}",
                way,
                f"{found[name].seconds * 1e3:.2f} ms",
                "yes" if equal else "[bold red]NO[/]",
            )
        table.add_section()
    console.print(table)
    console.print(f"{table.row_count - differing} of {table.row_count} arrived bit for bit", highlight=False)
    return differing


def draw(image: np.ndarray, console: Console) -> None:
    """Show a small picture: two pixels a character in colour, or shades of plain characters."""
    colour = console.is_terminal and console.color_system is not None
    height, width, _ = image.shape
    step = -(-width // min(console.width, 100))
    height, width = height // step // 2 * 2, width // step
    small = image[: height * step, : width * step].reshape(height, step, width, step, 3).mean((1, 3)).astype(int)
    if not colour:
        shades = np.array(list(" .:-=+*#%@"))
        for row in small.reshape(height // 2, 2, width, 3).mean((1, 3)):
            console.print("".join(shades[(row * len(shades) / 256).astype(int)]), markup=False, highlight=False)
        return
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
        console.print(line)


def main() -> int:
    if sys.argv[1:2] == ["--fetch"]:
        fetch(*sys.argv[2:])
        return 0
    # Ending by a signal is ending by an exception, which cleans up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    console = Console() if sys.stdout.isatty() else Console(width=120)
    tensors = images()
    with tempfile.TemporaryDirectory(prefix="dlpack-wire-demo-") as folder:
        arrived = {way: send(tensors, Path(folder)) for way, send in WAYS.items()}
    differing = report(tensors, arrived, console)
    console.print(f"\n{LEFT}, as the third process fetched it:")
    draw(arrived["server"][LEFT].bits, console)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
