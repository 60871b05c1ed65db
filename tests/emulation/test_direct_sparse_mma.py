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


@pytest.mark.parametrize("mode, problem, precision, config", [
    ("bounds", BORDERS, "tf32", {"tiles": 4, "blocks": 2}),
    ("bounds", BORDERS, "fp16", {"tiles": 2, "blocks": 4}),
    ("bounds", GROUPS, "tf32", {"tiles": 2, "split": 2, "run": 0}),
    ("bounds", GROUPS, "fp16", {"tiles": 1, "blocks": 8, "run": 2}),
    ("races", BORDERS, "tf32", {"tiles": 1, "split": 4}),
    ("races", GROUPS, "fp16", {"tiles": 1, "split": 8}),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     precision: str, config: dict[str, int]) -> None:
    device = emulate(mode, schedule=2)
    check(problem, device, [
        variant for variant in DirectSparseMma().variants(problem, device)
        if variant.precision == precision and config.items() <= dict(variant.config).items()][:1])
