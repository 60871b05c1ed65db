"""Checks problems and packs weights for pruned convolutions on tensor cores."""

from __future__ import annotations

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.strided import cannot_compile

ROWS = 16
"""Output channels of a tensor core instruction's tile."""
CYCLES_PER_MICROSECOND = 1750
"""Clock rate in MHz of the multiprocessors of an H200 under load. The estimates of kernels on
tensor cores divide cycles by this number."""
DENSEST = 0.3
"""The largest density at which the algorithms on tensor cores are offered. By a rule of thumb,
hardly any column of 16 rows is empty at larger densities."""


def unsuited(problem: Conv2dProblem, device: Device) -> str | None:
    """Returns the reason why the device or the weights do not suit tensor cores; None where both
    suit them."""
    if not device.limits.mma:
        return f"{device.name} has no tensor cores for float16 and TF32 (sm_80 or newer)"
    if (reason := cannot_compile(problem, device)) is not None:
        return reason
    density = problem.weights_info.density
    return f"density {density:.0%}, takes at most {DENSEST:.0%}" if density > DENSEST else None


def packed_fragments(values: np.ndarray, precision: str) -> np.ndarray:
    """Returns weights (..., 16, depth) as left operands of mma instructions (..., 32 lanes, 4
    registers); the depth is 16 for fp16 and 8 for tf32.

    Register r of lane l holds weights of row l / 4 + 8 (r % 2), from the first half of the columns
    where r < 2, else from the second half. In tf32 the register holds column l % 4 of the half, in
    fp16 columns 2 (l % 4) and 2 (l % 4) + 1 of the half.
    """
    *leading, rows, depth = values.shape
    # axes: half of the rows, row, half of the columns, quarter of the half, column
    split = values.reshape(-1, 2, rows // 2, 2, 4, depth // 8)
    lanes = np.ascontiguousarray(split.transpose(0, 2, 4, 3, 1, 5))
    if precision == "fp16":
        with np.errstate(over="ignore"):
            registers = lanes.astype(np.float16).view("<u4")
    else:
        registers = rounded_to_tf32(lanes)
    return registers.reshape(*leading, 32, 4)


def rounded_to_tf32(values: np.ndarray) -> np.ndarray:
    """Returns values rounded to the 10 mantissa bits of TF32, to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)
