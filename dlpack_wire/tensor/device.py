"""Devices: where a tensor lived when it was encoded.

Source of the numbers: DLPack 1.3 (`DLDeviceType` in dlpack.h) and the values added to its main branch since.
"""

from __future__ import annotations

from typing import NamedTuple

NAMES = {
    1: "cpu",
    2: "cuda",
    3: "cuda_host",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    9: "vpi",
    10: "rocm",
    11: "rocm_host",
    12: "ext_dev",
    13: "cuda_managed",
    14: "oneapi",
    15: "webgpu",
    16: "hexagon",
    17: "maia",
    18: "trn",
    19: "tpu",
    20: "tpu_host",
}
"""Short name of every device type."""

HOST_READABLE = frozenset({1, 3, 11})
"""Types whose memory the host can read in place. Managed memory (13) is left out: it needs a synchronisation."""


class Device(NamedTuple):
    """A device; compares equal to DLPack's `(device_type, device_id)`."""

    device_type: int
    device_id: int

    def __str__(self) -> str:
        name = NAMES.get(self.device_type, f"device_type_{self.device_type}")
        return name if self.device_type == 1 and self.device_id == 0 else f"{name}:{self.device_id}"


CPU = Device(1, 0)
