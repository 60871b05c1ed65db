"""Tests the kernel of direct_sparse_pixels, whose clusters add up sums, in emulation."""

from __future__ import annotations

import pytest

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.direct_sparse_pixels import DirectSparsePixels
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.sparse.test_direct_sparse_pixels import check
from tests.ops.conv2d.test_conv2d import BIAS_RESIDUAL_RELU

BORDERS = Conv2dProblem(1, 6, 6, 5, 40, (3, 3), (2, 1), (1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU)
GROUPS = Conv2dProblem(2, 22, 13, 13, 42, (3, 3), pads=(1, 1, 1, 1), dilation=(1, 2), groups=2)
LONG_LINES = Conv2dProblem(1, 19, 9, 80, 40, (5, 5), (2, 3), (2, 2, 2, 2))
THIN = Conv2dProblem(1, 18, 5, 9, 16, (3, 2), dilation=(1, 2), groups=2)
MANY_CHANNELS = Conv2dProblem(1, 300, 14, 28, 16, (1, 3), pads=(0, 1, 0, 1))


@pytest.mark.parametrize("mode, problem, precision, config", [
    ("bounds", BORDERS, "fp16", {"cluster": 8, "blocks": 6}),
    ("bounds", BORDERS, "tf32", {"cluster": 4, "tiles": 1}),
    ("bounds", GROUPS, "fp16", {"cluster": 4, "tiles": 1}),
    ("bounds", LONG_LINES, "fp16", {"cluster": 8, "fragments": 8, "warps_p": 2}),
    ("bounds", LONG_LINES, "tf32", {"cluster": 1, "parts": 8}),
    ("bounds", MANY_CHANNELS, "fp16", {"cluster": 8, "tiles": 1, "parts": 4}),
    ("plain", MANY_CHANNELS, "tf32", {"cluster": 1, "tiles": 2, "fragments": 2}),
    ("races", BORDERS, "fp16", {"cluster": 4, "warps_p": 1}),
    ("races", THIN, "tf32", {"cluster": 8, "parts": 2}),
    ("races", LONG_LINES, "fp16", {"cluster": 1, "blocks": 2, "parts": 4}),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     precision: str, config: dict[str, int]) -> None:
    device = emulate(mode, schedule=2)
    check(problem, device, [
        variant for variant in DirectSparsePixels().variants(problem, device)
        if variant.precision == precision and config.items() <= dict(variant.config).items()][:1])
