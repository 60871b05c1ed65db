"""Signs that are proved not to be 0: no sum makes one of them 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.expression import Expression, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.model.facts import derive
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.signs import is_never_zero
from tests.model.graph_builder import Builder

BATCH_NORM = apply("mul").then(apply("add")).then(apply("sign"))
BEFORE = {name: apply(name) for name in ("min", "max", "prelu", "relu", "div", "sign")} | {
    "clip": apply("clip", -1.0, 1.0), "leaky_relu": apply("leaky_relu", 0.125)}
"""Expressions that may stand between a sum and its sign, by name."""
NUMBERS = st.sampled_from([-2.5, -1.0, -0.75, 0.0, 0.1, 0.5, 1.0, 3.0])


@settings(max_examples=60)
@given(scale=st.lists(NUMBERS, min_size=3, max_size=3),
       shift=st.lists(NUMBERS, min_size=3, max_size=3),
       known=st.sampled_from([PLUS_MINUS_ONE, TERNARY]), depth=st.integers(1, 8))
def test_no_sum_contradicts_it(scale: list[float], shift: list[float], known: ValueFacts,
                               depth: int) -> None:
    alphas = np.float32([1, 0.5, 3])
    weight = np.broadcast_to(alphas[:, None], (3, depth))
    operands = [np.float32(scale), np.float32(shift)]
    counts = np.arange(-depth, depth + 1, int(known.step))[:, None]
    exact = counts * alphas.astype(np.float64) * operands[0] + operands[1]
    assert is_never_zero(BATCH_NORM, known, weight, operands, exact=True) == bool(
        (np.abs(exact) > 1e-5).all())


@pytest.mark.parametrize(("depth", "known", "bias", "never"), [
    (3, PLUS_MINUS_ONE, 0.0, True), (4, PLUS_MINUS_ONE, 0.0, False), (4, PLUS_MINUS_ONE, 1.0, True),
    (3, TERNARY, 0.0, False), (3, TERNARY, 0.5, True), (3, TERNARY, 0.3, True),
    (3, integers(-2, 2), 0.5, False), (3, REAL, 0.5, False), (3, TERNARY, np.nan, False),
    (3, TERNARY, np.inf, False)])
def test_parity_and_thresholds_between_integers(depth: int, known: ValueFacts, bias: float,
                                                never: bool) -> None:
    weight = np.float32([1, -1] * depth)[:depth].reshape(1, depth)
    expression = apply("add").then(apply("sign"))
    assert is_never_zero(expression, known, weight, [np.float32([bias])], exact=True) == never


@pytest.mark.parametrize(("expression", "weight", "operands"), [
    (apply("sign"), np.float32([[1, 2, 1]]), []), (apply("sign"), np.float32([[1, np.inf, 1]]), []),
    (apply("sign"), np.zeros((1, 0), np.float32), []),
    (apply("relu"), np.ones((1, 3), np.float32), []), (Expression(1), np.ones((1, 3)), []),
    (apply("tanh").then(apply("sign")), np.ones((1, 3), np.float32), []),
    (apply("sign").then(apply("add")), np.ones((1, 3), np.float32), [np.float32([5])]),
    (apply("add").then(apply("sign")), np.ones((1, 3), np.float32), [None])])
def test_other_layers_are_not_tried(expression: Expression, weight: np.ndarray,
                                    operands: list[np.ndarray | None]) -> None:
    assert not is_never_zero(expression, PLUS_MINUS_ONE, weight, operands, exact=True)


def test_sums_that_are_rounded_keep_away_from_thresholds() -> None:
    """576 products of 0.1 may be off by 0.004: by more than the distance of one threshold."""
    weight = np.full((1, 576), 0.1, np.float32)
    expression = apply("add").then(apply("sign"))
    near, far = ([np.float32([0.2 + distance])] for distance in (0.001, 0.1))
    assert is_never_zero(expression, PLUS_MINUS_ONE, weight, far, exact=False)
    assert is_never_zero(expression, PLUS_MINUS_ONE, weight, near, exact=True)
    assert not is_never_zero(expression, PLUS_MINUS_ONE, weight, near, exact=False)


@settings(max_examples=60)
@given(function=st.sampled_from(sorted(BEFORE)), number=NUMBERS, known=st.sampled_from(
    [PLUS_MINUS_ONE, TERNARY]), depth=st.integers(1, 8))
def test_functions_between_sum_and_sign(function: str, number: float, known: ValueFacts,
                                        depth: int) -> None:
    assume(number or function != "div")
    expression = apply("sub").then(BEFORE[function]).then(apply("sign"))
    counts = np.arange(-depth, depth + 1, int(known.step), dtype=np.float64)
    operands = [np.float32([number])] * (expression.inputs - 1)
    with np.errstate(all="ignore"):
        (signs,) = expression.evaluate(counts, *operands)
    never = is_never_zero(expression, known, np.ones((1, depth), np.float32), operands, exact=True)
    assert never == bool((np.abs(signs) == 1).all())


@pytest.mark.parametrize(("bias", "expected"), [
    ([0.0, 0.3, 7.1, 1e6], TERNARY), ([1.0, 0.3, 7.1, 1e6], PLUS_MINUS_ONE)])
def test_the_signs_of_a_layer(build: Builder, bias: list[float], expected: ValueFacts) -> None:
    """The sum of 4 products of 1 and -1 is an even number."""
    weight = build.scalar(1.0, 4, 4, 1, 1)
    name = build.constant(4)
    build.graph.constants[name] = np.float32(bias)
    build.add("conv2d", [build.binarise("x"), weight, name], "y", strides=(1, 1), pads=(0,) * 4,
              dilations=(1, 1), groups=1, epilogue=apply("add").then(apply("sign")))
    assert derive(resolve(build.graph, 1))["y"] == expected
