"""Tests that the convolution of signs has no data races in shared memory, as CUDA has it."""

from __future__ import annotations

from dataclasses import replace

from gossamer.facts import PLUS_MINUS_ONE, TERNARY
from gossamer.ops.conv2d.binary.popcount import Popcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.binary.signs import BATCH_NORM_SIGN, SCALED, check_exact, small

ALGORITHM = Popcount()


def test_no_race(emulate: Emulate) -> None:
    device = emulate("races")
    problem = Conv2dProblem(1, 33, 4, 3, 33, (3, 1), pads=(1, 0, 0, 0), epilogue=BATCH_NORM_SIGN,
                            weights_info=SCALED, facts=(TERNARY,))
    for known in (PLUS_MINUS_ONE, TERNARY):
        problem = replace(problem, facts=(known,))
        for variant in small(list(ALGORITHM.variants(problem, device)))[:3]:
            check_exact(ALGORITHM, problem, variant, device)
