"""Tests the kernel of shifted_gemm_mma in emulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.ops.conv2d.common import config_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.windows_fp16 import ShiftedTile
from tests.emulation.device import EmulatedDevice
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.shifted.test_windows_fp16 import ALGORITHM, PROBLEMS, check


def device_of(emulate: Emulate, mode: str, units: int) -> EmulatedDevice:
    """Returns the emulated device, with multiplications by wgmma and few multiprocessors, so that
    work-groups take several tiles."""
    return emulate(mode, schedule=2, wgmma=True, compute_units=units)


def check_tile(problem: Conv2dProblem, tile: ShiftedTile, device: EmulatedDevice) -> None:
    variant = replace(next(iter(ALGORITHM.variants(problem, device))), config=config_of(tile))
    check(problem, device, [variant])


@pytest.mark.parametrize("mode, name, units, tile", [
    ("bounds", "same", 2, ShiftedTile(64, 1, 2, 64, 2, 3)),
    ("bounds", "slices", 2, ShiftedTile(64, 1, 1, 48, 2, 3)),
    ("bounds", "uneven", 1, ShiftedTile(64, 2, 1, 32, 2, 3)),
    ("bounds", "large window", 1, ShiftedTile(64, 1, 2, 16, 2, 0)),
    ("bounds", "row", 2, ShiftedTile(256, 1, 1, 48, 2, 3)),
    ("bounds", "strides", 2, ShiftedTile(64, 1, 1, 64, 3, 3)),
    ("bounds", "patches", 1, ShiftedTile(64, 1, 2, 16, 2, 0)),
    ("plain", "strides and dilation", 1, ShiftedTile(64, 2, 1, 64, 2, 3)),
    ("plain", "dilated", 1, ShiftedTile(64, 2, 2, 32, 2, 0)),
    ("plain", "same", 1, ShiftedTile(64, 2, 2, 64, 2, 0)),
    ("plain", "deep", 2, ShiftedTile(128, 2, 1, 64, 2, 4)),
    ("plain", "no pads", 1, ShiftedTile(96, 1, 2, 32, 2, 0)),
    ("plain", "wide pads", 1, ShiftedTile(64, 2, 1, 16, 2, 0)),
    ("races", "same", 1, ShiftedTile(64, 2, 1, 64, 2, 0)),
    ("races", "slices", 2, ShiftedTile(64, 1, 1, 48, 2, 3)),
    ("races", "strides", 1, ShiftedTile(64, 2, 1, 48, 4, 0)),
    ("races", "no pads", 1, ShiftedTile(96, 2, 2, 32, 2, 3)),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, name: str, units: int,
                                     tile: ShiftedTile) -> None:
    check_tile(PROBLEMS[name], tile, device_of(emulate, mode, units))
