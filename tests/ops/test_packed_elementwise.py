"""Expressions whose results are written as packed words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.elementwise import PackedElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem, reference
from gossamer.ops.weights import Weights
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import run_variant
from tests.ops.recording import RecordingDevice

BATCH_NORM_BITS = Expression(3, (
    ExpressionStep("mul", (0, 1)), ExpressionStep("add", (3, 2)),
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater_equal", (4, 5)),
    ExpressionStep("constant", (), (1.0,)), ExpressionStep("constant", (), (-1.0,)),
    ExpressionStep("where", (6, 7, 8))))
BELOW = apply("sub").then(apply("sign"))
"""The sign of its first argument less the second one."""
SIGN = apply("sign")
ABOVE_ZERO = Expression(1, (
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater", (0, 1))))


def problem_of(shape: tuple[int, ...], expression: Expression, tensor: int = 0, *,
               scalars: bool = False) -> ElementwiseProblem:
    """Returns a problem whose operand of a number is a tensor, and the others constants."""
    constant = () if scalars else (shape[1], *[1] * (len(shape) - 2))
    return ElementwiseProblem(
        tuple(default_spec(shape if index == tensor else constant)
              for index in range(expression.inputs)), expression,
        constants=tuple(index for index in range(expression.inputs) if index != tensor))


def check(problem: ElementwiseProblem, device: Device, seed: int = 0) -> None:
    """Fails unless every variant gives every sign; inputs are multiples of a half, so that some
    results are 0."""
    algorithm, rng = PackedElementwise(), np.random.default_rng(seed)
    assert algorithm.supports(problem, device) is None
    (x,) = (rng.integers(-4, 5, spec.shape).astype(np.float32) / 2 for spec in problem.inputs)
    arrays = {name: rng.choice(np.float32([-1.5, -0.5, 0, 0.5, 1]), shape)
              for name, shape in problem.weight_shapes.items()}
    (expected,) = reference(problem, [x], arrays)
    for variant in algorithm.variants(problem, device):
        (result,) = run_variant(algorithm, problem, variant, device, Weights(arrays, device), [x])
        np.testing.assert_array_equal(result, expected.astype(np.float32), str(variant))


@pytest.mark.sanitize
@pytest.mark.parametrize("expression, tensor", [
    (BATCH_NORM_BITS, 0), (BELOW, 0), (BELOW, 1), (SIGN, 0), (ABOVE_ZERO, 0)])
@pytest.mark.parametrize("channels", [33, 64])
def test_every_form(compiled_device: Device, expression: Expression, tensor: int,
                    channels: int) -> None:
    size = (1, 2) if is_slow(compiled_device) else (5, 7)
    check(problem_of((2, channels, *size), expression, tensor), compiled_device)


@given(channels=st.sampled_from([1, 5, 31, 32, 70, 96]), batch=st.integers(0, 3),
       size=st.sampled_from([None, (1, 1), (3, 5)]), scalars=st.booleans(),
       expression=st.sampled_from([BATCH_NORM_BITS, BELOW, SIGN]), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_any_shape(compiled_device: Device, channels: int, batch: int,
                   size: tuple[int, int] | None, scalars: bool, expression: Expression,
                   seed: int) -> None:
    assume(not is_slow(compiled_device) or channels < 64)
    check(problem_of((batch, channels, *(size or ())), expression, scalars=scalars),
          compiled_device, seed)


@pytest.mark.parametrize("problem, reason", [
    (problem_of((1, 8, 3, 3), apply("add")), "its results are not known to be -1, 0 or 1"),
    (ElementwiseProblem((default_spec((8,)),), SIGN), "packs channels of 2 or 4 dimensions, not 1"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)),) * 2, BELOW),
     "takes one tensor of the result's shape, and constants"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)), default_spec((3, 3))), BELOW, constants=(1,)),
     "a constant has other numbers than one a channel"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)), default_spec((2, 8, 3, 3))), BELOW,
                        constants=(1,)), "takes one tensor of the result's shape, and constants"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)),), SIGN, ("bool",)),
     "makes one float32 result of float32 operands"),
])
def test_other_expressions_give_a_reason(problem: ElementwiseProblem, reason: str) -> None:
    assert PackedElementwise().supports(problem, RecordingDevice()) == reason


def test_the_host_packs_by_copies() -> None:
    assert PackedElementwise().supports(problem_of((1, 8, 3, 3), SIGN), find("host")) == (
        "needs a device that compiles kernels")
