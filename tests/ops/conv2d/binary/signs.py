"""Convolutions of signs with which algorithms are compared with integer arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Algorithm, Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from tests.ops.conv2d.test_conv2d import small_problems
from tests.ops.harness import check_every_bit

SCALED = WeightsInfo(scaled_signs=True)

BATCH_NORM_SIGN = Epilogue(
    apply("mul").then(apply("add")).then(apply("sign")), ("channel", "channel"))
BATCH_NORM_BITS = Epilogue(Expression(3, (
    ExpressionStep("mul", (0, 1)), ExpressionStep("add", (3, 2)),
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater_equal", (4, 5)),
    ExpressionStep("constant", (), (1.0,)), ExpressionStep("constant", (), (-1.0,)),
    ExpressionStep("where", (6, 7, 8)))), ("channel", "channel"))
RESIDUAL_BITS = Epilogue(Expression(2, (
    ExpressionStep("add", (0, 1)), ExpressionStep("constant", (), (0.0,)),
    ExpressionStep("greater", (2, 3)), ExpressionStep("constant", (), (1.0,)),
    ExpressionStep("constant", (), (-1.0,)), ExpressionStep("where", (4, 5, 6)))), ("tensor",))
RESIDUAL = Epilogue(apply("add"), ("tensor",))
BAND_SIGN = Epilogue(Expression(1, (
    ExpressionStep("abs", (0,)), ExpressionStep("constant", (), (3.0,)),
    ExpressionStep("sub", (1, 2)), ExpressionStep("sign", (3,)))))
"""An epilogue that falls and rises again, so that no thresholds replace it."""
ABOVE = Expression(2, (
    ExpressionStep("greater_equal", (0, 1)), ExpressionStep("constant", (), (2.0,)),
    ExpressionStep("mul", (2, 3)), ExpressionStep("constant", (), (1.0,)),
    ExpressionStep("sub", (4, 5))))
"""1 where a value reaches a threshold, else -1."""
EPILOGUES = (Epilogue(), BATCH_NORM_SIGN, BATCH_NORM_BITS, RESIDUAL, RESIDUAL_BITS, BAND_SIGN)

@st.composite
def problems(draw: st.DrawFn, largest: int = 70) -> Conv2dProblem:
    """Returns any small convolution of signs, with channels that fill words and that do not."""
    problem = draw(small_problems(
        batches=[0, 1, 2], groups=[1, 1, 1, 2, 3], channels=[1, 3, 31, 32, 33, 64, largest],
        out_channels=[1, 5, 32, 64, largest], epilogues=EPILOGUES))
    known = draw(st.sampled_from([PLUS_MINUS_ONE, PLUS_MINUS_ONE, TERNARY, integers(0, 1)]))
    return replace(problem, weights_info=SCALED,
                   facts=(known, *[integers(-4, 4)] * problem.epilogue.tensor_count))


def weights_of(problem: Conv2dProblem | GemmProblem, rng: np.random.Generator
               ) -> dict[str, np.ndarray]:
    """Returns weights of plus and minus a power of 2 a channel, and scales of both signs and 0 with
    shifts that bring results to 0 exactly."""
    shape = problem.weight_shapes["weight"]
    alpha = 2.0 ** rng.integers(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
    arrays = {"weight": (rng.choice([-1, 1], shape) * alpha).astype(np.float32)}
    for name, values in (("operand0", [-1.5, -0.25, 0.0, 1.0, 3.0]),
                         ("operand1", [-6.0, -0.5, 0.0, 1.0, 7.0])):
        if name in problem.weight_shapes:
            arrays[name] = rng.choice(values, shape[0]).astype(np.float32)
    return arrays


def check_exact(algorithm: Algorithm, problem: Conv2dProblem | GemmProblem, variant: Variant,
                device: Device, seed: int = 0) -> None:
    """Fails unless the results of a variant equal those of integer arithmetic, every bit."""
    rng = np.random.default_rng(seed)
    inputs, arrays = problem.example_inputs(rng), weights_of(problem, rng)
    check_every_bit(algorithm, problem, variant, device, arrays, inputs)


def small(variants: list[Variant]) -> list[Variant]:
    """Returns the variants with few work-items, which Oclgrind and the emulation run in turn."""
    return [v for v in variants if v["tile_m"] * v["patches_y"] * v["patches_x"] <= 64]


def known_inputs(known: ValueFacts) -> Conv2dProblem:
    """Returns a convolution of which only what is known of its inputs differs."""
    return Conv2dProblem(1, 64, 5, 5, 32, (3, 3), weights_info=SCALED, facts=(known,))
