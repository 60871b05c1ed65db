"""What pruned convolutions on tensor cores have in common: what they take, and how weights lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.strided import cannot_compile

TENSOR_CORES = Path(__file__).with_name("tensor_cores.h")
"""What their kernels have in common."""
ROWS = 16
"""Output channels of an instruction's tile."""
DENSEST = 0.3
"""Above this density next to no column of 16 rows is empty."""


def unsuited(problem: Conv2dProblem, device: Device) -> str | None:
    """The reason why the device or the weights do not suit them; None: they do."""
    if not device.limits.mma:
        return f"{device.name} has no tensor cores for float16 and TF32 (sm_80 or newer)"
    if (reason := cannot_compile(problem, device)) is not None:
        return reason
    density = problem.weights_info.density
    return f"density {density:.0%}, takes at most {DENSEST:.0%}" if density > DENSEST else None


def fragments(values: np.ndarray, precision: str) -> np.ndarray:
    """The left operands of instructions: (..., 16, depth) weights, with a depth of 16 for fp16 and
    of 8 for tf32, as (..., 32 lanes, 4 registers).

    Register r of lane l holds row l / 4 + 8 (r % 2) and of the first half of the columns (r < 2)
    or the second that, or those two, with number l % 4.
    """
    *others, rows, depth = values.shape
    # upper or lower rows, row, upper or lower columns, quarter, column of these
    apart = values.reshape(-1, 2, rows // 2, 2, 4, depth // 8)
    lanes = np.ascontiguousarray(apart.transpose(0, 2, 4, 3, 1, 5))
    if precision == "fp16":
        with np.errstate(over="ignore"):
            registers = lanes.astype(np.float16).view("<u4")
    else:
        registers = _tf32(lanes)
    return registers.reshape(*others, 32, 4)


def _tf32(values: np.ndarray) -> np.ndarray:
    """Rounded to the 10 bits of mantissa that TF32 has, to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)
