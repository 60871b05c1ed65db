"""Tests the kernel of direct_sparse_mma in emulation, with tensor cores simulated in memory."""

from __future__ import annotations

import pytest

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.mma_batch.direct_sparse_mma import BatchTile, variant_of
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.sparse.test_direct_sparse_mma import check
from tests.ops.conv2d.test_conv2d import BIAS_RESIDUAL_RELU

BORDERS = Conv2dProblem(8, 6, 6, 5, 40, (3, 3), (2, 1), (1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU)
GROUPS = Conv2dProblem(16, 6, 5, 5, 42, (3, 3), dilation=(1, 2), groups=2)
PHASES = Conv2dProblem(8, 100, 3, 4, 20, (3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("mode, problem, precision, shape", [
    ("bounds", BORDERS, "tf32", BatchTile(2, 4, 1, 2, 2, 2, 1)),
    ("bounds", BORDERS, "fp16", BatchTile(1, 12, 1, 1, 1, 3, 1)),
    ("bounds", GROUPS, "fp16", BatchTile(2, 3, 2, 2, 1, 3, 1)),
    ("bounds", PHASES, "tf32", BatchTile(1, 4, 1, 3, 2, 3, 1)),
    ("races", GROUPS, "tf32", BatchTile(1, 8, 1, 1, 2, 4, 1)),
    ("races", PHASES, "tf32", BatchTile(2, 3, 1, 2, 1, 2, 2)),
    ("races", PHASES, "fp16", BatchTile(2, 2, 2, 2, 2, 2, 1)),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     precision: str, shape: BatchTile) -> None:
    check(problem, emulate(mode, schedule=2), [variant_of(problem, shape, precision)])
