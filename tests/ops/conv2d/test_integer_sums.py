"""Convolutions and products of integers whose sums come near the largest that float32 holds: every
form that may compute them, also on tensor cores, gives each of them to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep
from gossamer.facts import BYTES, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.policy import EFFORTS
from gossamer.plan.tune.space import Space
from tests.ops.harness import check_every_bit

LAST_BITS = Expression(1, (
    ExpressionStep("constant", (), (1 / 256,)), ExpressionStep("constant", (), (256.0,)),
    ExpressionStep("mul", (0, 1)), ExpressionStep("round", (3,)), ExpressionStep("mul", (4, 2)),
    ExpressionStep("sub", (0, 5))))
"""Subtracts the nearest multiple of 256 from an integer."""
DEPTH = 512
"""Products of a sum; float32 holds those of 518 times 255 * 127."""


def _problem(op: str) -> GemmProblem | Conv2dProblem:
    known = {"weights_info": WeightsInfo(facts=BYTES), "facts": (BYTES,),
             "epilogue": Epilogue(LAST_BITS), "result": integers(-128, 128)}
    if op == "gemm":
        return GemmProblem(16, 32, DEPTH, **known)
    return Conv2dProblem(1, DEPTH // 4, 3, 3, 32, (2, 2), pads=(1, 0, 0, 1), **known)


@pytest.mark.parametrize("op", ["conv2d", "gemm"])
def test_sums_are_exact_in_every_form(compiled_device: Device, op: str) -> None:
    problem, rng = _problem(op), np.random.default_rng(4)
    x = rng.integers(251, 256, problem.inputs[0].shape).astype(np.float32)
    weights = {"weight": rng.integers(124, 128, problem.weight_shapes["weight"]).astype(np.float32)}
    (expected,) = OPS[op].reference(problem, [x], weights)
    assert len(np.unique(expected)) > 100
    sums = replace(problem, epilogue=Epilogue())
    assert 2**23 < OPS[op].reference(sums, [x], weights)[0].max() < 2**24
    space = Space(EFFORTS["quick"], ("fp32",), keeps_precisions=False)
    seen = set()
    for algorithm in OPS[op].algorithms:
        if space.refusal_reason(algorithm, problem, compiled_device) is not None:
            continue
        for variant in space.within_effort(algorithm, problem, compiled_device):
            if (algorithm.name, variant.precision) in seen:
                continue
            seen.add((algorithm.name, variant.precision))
            check_every_bit(algorithm, problem, variant, compiled_device, weights, [x])
    assert {precision for _, precision in seen} >= {"fp32", "fp16"}
