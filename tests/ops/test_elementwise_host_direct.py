"""Tests element-wise arithmetic by generated code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import HostDevice
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.elementwise import host_direct
from gossamer.ops.elementwise.host_direct import HostDirectElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.tensor import default_spec
from tests.ops.arm import OnArm
from tests.ops.harness import check_every_bit

pytest.importorskip("llvmlite")
HOST = HostDevice()
SCALED_SUM = Expression(3, (ExpressionStep("mul", (0, 1)), ExpressionStep("add", (3, 2)),
                            ExpressionStep("sign", (4,))))


@given(expression=st.sampled_from([apply("sign"), apply("relu"), SCALED_SUM]),
       shape=st.sampled_from([(), (1,), (0, 5), (3, 7), (2, 3, 31, 44), (4097,), (4112,), (9000,)]))
@settings(max_examples=40)
def test_any_tensor(expression: Expression, shape: tuple[int, ...]) -> None:
    compare(expression, shape)


def test_arm_computes_the_same(on_arm: OnArm) -> None:
    on_arm(host_direct)
    compare(SCALED_SUM, (3, 5, 7))


def compare(expression: Expression, shape: tuple[int, ...]) -> None:
    constants = (1,) if expression.inputs == 3 else ()
    problem = ElementwiseProblem(tuple(
        default_spec((1,) * len(shape) if index in constants else shape)
        for index in range(expression.inputs)), expression, constants=constants)
    algorithm, rng = HostDirectElementwise(), np.random.default_rng(0)
    assert algorithm.supports(problem, HOST) is None
    arrays = {name: np.full(size, -0.5, np.float32) for name, size in problem.weight_shapes.items()}
    inputs = [rng.integers(-3, 4, spec.shape).astype(np.float32) for spec in problem.inputs]
    for variant in algorithm.variants(problem, HOST):
        check_every_bit(algorithm, problem, variant, HOST, arrays, inputs)


@pytest.mark.parametrize(("shapes", "dtype", "reason"), [
    (((2, 3), (2, 1)), "float32", "result's shape"), (((2, 3), (2, 3)), "int32", "float32 only")])
def test_what_is_not_supported(shapes: tuple[tuple[int, ...], ...], dtype: str, reason: str
                               ) -> None:
    problem = ElementwiseProblem(tuple(default_spec(shape, dtype) for shape in shapes),
                                 apply("add"))
    assert reason in (HostDirectElementwise().supports(problem, HOST) or "")
