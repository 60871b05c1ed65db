"""Fusions of quantised layers: sums of integers, which float16 operands hold exactly, and epilogues
that round to integers of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep
from gossamer.facts import BYTES, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import ENTRY, FusionProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import Format
from tests.ops.fused.blocks import block, given_as, stem
from tests.ops.harness import check

REQUANTISED = Epilogue(Expression(3, (
    ExpressionStep("add", (0, 1)), ExpressionStep("mul", (3, 2)),
    ExpressionStep("clip", (4,), (0.0, 255.0)), ExpressionStep("round", (5,)))),
    ("channel", "channel"))
"""Bias, scale, and rounding to an unsigned integer of 8 bits."""
RESIDUAL = Epilogue(Expression(4, (
    ExpressionStep("add", (0, 1)), ExpressionStep("mul", (4, 2)), ExpressionStep("round", (5,)),
    ExpressionStep("add", (6, 3)), ExpressionStep("clip", (7,), (-128.0, 127.0)))),
    ("channel", "channel", "tensor"))
ROUNDED = Expression(1, (
    ExpressionStep("constant", (), (1 / 96,)), ExpressionStep("div", (0, 1)),
    ExpressionStep("clip", (2,), (-128.0, 127.0)), ExpressionStep("round", (3,))))
WEIGHTS = WeightsInfo(facts=integers(-127, 127))


def quantised(problem: FusionProblem) -> FusionProblem:
    """Return a fusion whose values and weights are integers of 8 bits."""
    known: dict[type, Callable[[Any], Any]] = {
        Conv2dProblem: lambda part: replace(part, weights_info=WEIGHTS, result=BYTES,
                                            facts=(BYTES,) * len(part.inputs)),
        PoolProblem: lambda part: replace(part, facts=(BYTES,)),
        ElementwiseProblem: lambda part: replace(part, result=BYTES)}
    return replace(problem, parts=tuple(known[type(part)](part) for part in problem.parts))


def of_floats(problem: FusionProblem) -> FusionProblem:
    """Return a fusion that begins with the rounding of an image of floats."""
    image, *others = given_as(problem, Format("NCHW", "float32"), ROUNDED).parts
    return replace(given_as(problem, Format("NCHW", "float32"), ROUNDED),
                   parts=(replace(image, formats=()), *others))


def weights_of(problem: FusionProblem) -> dict[str, np.ndarray]:
    """Return integers as weights and biases, and scales that are powers of two, so that sums fill
    the range of 8 bits and no result depends on how a product is rounded."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in problem.weight_shapes.items():
        part = problem.parts[int(name.split(".")[0])]
        if name.endswith("weight"):
            arrays[name] = rng.integers(-127, 128, shape).astype(np.float32)
        elif name.endswith("operand0"):
            arrays[name] = rng.integers(-9000, 9000, shape).astype(np.float32)
        else:
            spread = 127 * 127 * np.sqrt(part.depth) / 127
            arrays[name] = np.full(shape, 2.0 ** -np.round(np.log2(spread)), np.float32)
    return arrays


CONVOLUTION = Conv2dProblem(2, 3, 25, 27, 16, (7, 7), (2, 2), (3, 3, 3, 3), epilogue=REQUANTISED)
POOLED = FusionProblem((CONVOLUTION, PoolProblem(CONVOLUTION.outputs[0], "max", (3, 3), (2, 2),
                                                 (1, 1, 1, 1))),
                       ((ENTRY,), ((0, 0),)), ((1, 0),))
FUSIONS = {
    "inverted residual": block(2, 16, 48, 16, (9, 10), activation=REQUANTISED, last=RESIDUAL),
    "strided": block(1, 16, 32, 24, (9, 8), stride=(2, 2), activation=REQUANTISED,
                     last=REQUANTISED),
    "separable": block(1, 0, 32, 16, (7, 9), expands=False, activation=REQUANTISED,
                       last=REQUANTISED),
    "convolution and pool": POOLED,
    "rounded image": of_floats(FusionProblem((CONVOLUTION,), ((ENTRY,),), ((0, 0),))),
    "rounded image and pool": of_floats(POOLED),
    "rounded image and block": of_floats(stem(
        block(1, 0, 32, 16, (9, 11), expands=False, activation=REQUANTISED, last=REQUANTISED),
        3, (18, 21), activation=REQUANTISED)),
}


@pytest.mark.parametrize("name", FUSIONS)
def test_quantised_layers_are_exact_in_float16(cuda: Device, name: str) -> None:
    problem = quantised(FUSIONS[name])
    assert problem.exact_precision == "fp16"
    check(problem, cuda, weights=weights_of(problem), vendors=False)
    variants = [variant for algorithm in OPS["fused"].algorithms
                if algorithm.supports(problem, cuda) is None
                for variant in algorithm.variants(problem, cuda)]
    assert any(variant.precision == "fp16" for variant in variants)


@pytest.mark.parametrize("name", FUSIONS)
def test_a_fusion_is_as_exact_as_its_least_exact_part(name: str) -> None:
    problem = quantised(FUSIONS[name])
    *others, last = problem.parts
    real = replace(last, facts=())
    assert replace(problem, parts=(*others, real)).exact_precision == "fp32"
    assert problem.sums_integers
    assert FUSIONS[name].exact_precision == "fp32"

