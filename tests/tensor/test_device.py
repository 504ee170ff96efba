"""Devices are DLPack's pairs with names."""

from __future__ import annotations

import pytest

import dlpack_wire as dw
from dlpack_wire.tensor.device import CPU, HOST_READABLE, NAMES

# Written out here a second time, from dlpack.h.
TYPES = (
    *((1, "cpu"), (2, "cuda"), (3, "cuda_host"), (4, "opencl"), (7, "vulkan"), (8, "metal"), (9, "vpi"), (10, "rocm")),
    *((11, "rocm_host"), (12, "ext_dev"), (13, "cuda_managed"), (14, "oneapi"), (15, "webgpu"), (16, "hexagon")),
    *((17, "maia"), (18, "trn"), (19, "tpu"), (20, "tpu_host")),
)


def test_names_are_those_of_dlpack() -> None:
    assert dict(TYPES) == NAMES


def test_what_the_host_reads_in_place() -> None:
    """Managed memory is not among it: it needs a synchronisation first."""
    assert {1, 3, 11} == HOST_READABLE


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ((1, 0), "cpu"),
        ((1, 3), "cpu:3"),
        ((2, 0), "cuda:0"),
        ((2, 7), "cuda:7"),
        ((99, 1), "device_type_99:1"),
        ((-1, 0), "device_type_-1:0"),
    ],
)
def test_devices_print_for_people(device: tuple[int, int], text: str) -> None:
    assert str(dw.Device(*device)) == text


def test_devices_are_dlpacks_pairs() -> None:
    assert dw.Device(2, 1) == (2, 1)
    assert dw.Device(1, 0) == CPU
    assert hash(dw.Device(2, 1)) == hash((2, 1))
