"""The kernel for tensor cores, whose products meet in memory here."""

from __future__ import annotations

import pytest

from gossamer.ops.conv2d.direct_sparse_mma import DirectSparseMma
from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.emulation.test_faults import Emulate
from tests.ops.test_conv2d import BIAS_RESIDUAL_RELU
from tests.ops.test_direct_sparse_mma import check

BORDERS = Conv2dProblem(8, 6, 6, 5, 40, (3, 3), (2, 1), (1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU)
GROUPS = Conv2dProblem(16, 6, 5, 5, 42, (3, 3), dilation=(1, 2), groups=2)
PHASES = Conv2dProblem(8, 100, 3, 4, 20, (3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("mode, problem, precision, config", [
    ("bounds", BORDERS, "tf32", {"tiles": 2, "sets": 2}),
    ("bounds", BORDERS, "fp16", {"blocks": 12}),
    ("bounds", GROUPS, "fp16", {"tiles": 2, "sets": 2}),
    ("bounds", PHASES, "tf32", {"sets": 3}),
    ("races", GROUPS, "tf32", {"height": 2, "width": 4}),
    ("races", PHASES, "tf32", {"tiles": 2}),
    ("races", PHASES, "fp16", {"sets": 2}),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     precision: str, config: dict[str, int]) -> None:
    device = emulate(mode, schedule=2)
    check(problem, device, [
        variant for variant in DirectSparseMma().variants(problem, device)
        if variant.precision == precision and config.items() <= dict(variant.config).items()][:1])
