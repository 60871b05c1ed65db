"""Products of signs: which problems multiply weights of plus and minus one number a channel by
inputs of -1, 0 and 1, so that bits can compute them, and what their results are made of.

The inner product of signs is an integer, the accumulator. The result of an output channel is the
accumulator times alpha, the magnitude of the channel's weights, and then the epilogue. Inputs of -1
and 1 are one bit each ("bits"), inputs of -1, 0 and 1 two ("trits").
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.expression import FUNCTIONS, Expression
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import PACKED_DTYPES

LARGEST_ACCUMULATOR = 2**24
"""Integers up to this are exact in float32, as which accumulators enter the epilogue."""

_TRUTHS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "and", "or", "not"})
_MOST_VALUES = 16
"""Number of values that a step of an expression may have to be followed further."""


@dataclass(frozen=True)
class BinaryForm:
    """How a product of signs is computed on bits.

    input: the packed dtype that holds the inputs, "bits" or "trits".
    output: the packed dtype that holds the results; None where they are other numbers.
    """

    input: str
    output: str | None

    @property
    def planes(self) -> int:
        """Number of bits of an input."""
        return PACKED_DTYPES[self.input].planes


def reason_not_binary(problem: Conv2dProblem) -> str | None:
    """Returns why bits cannot compute a problem, as shown to the user; None where they can."""
    known = problem.facts[0] if problem.facts else REAL
    if _dtype_of(known) is None:
        values = "any floats" if known == REAL else str(known)
        return f"its inputs are {values}, not known to be -1, 0 or 1"
    if not problem.weights_info.scaled_signs:
        if problem.weights_info.density < 1:
            return "some of its weights are 0, not plus or minus one number a channel"
        return "its weights are not plus or minus one number a channel"
    if problem.depth > LARGEST_ACCUMULATOR:
        return f"sums of {problem.depth} products are not exact in float32"
    return None


def inputs_are_signs(problem: Conv2dProblem) -> bool:
    """Returns whether the inputs of a problem are known to be -1, 0 or 1."""
    return bool(problem.facts) and _dtype_of(problem.facts[0]) is not None


def binary_form(problem: Conv2dProblem) -> BinaryForm:
    """Returns the form of a problem that bits can compute."""
    dtype = _dtype_of(problem.facts[0])
    assert dtype is not None
    written = [result_dtype(problem.epilogue.expression), _dtype_of(problem.result)]
    return BinaryForm(dtype, "bits" if "bits" in written else written[0] or written[1])


def alphas(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the magnitude of each output channel's weights in float32."""
    weight = np.asarray(arrays["weight"], np.float32)
    return np.abs(weight.reshape(len(weight), -1)[:, 0])


def result_dtype(expression: Expression, output: int = 0) -> str | None:
    """Returns the packed dtype that holds an output of an expression, by the steps at its end; None
    where it may be other numbers."""
    return _smallest_dtype(_possible_values(expression, output))


def _dtype_of(known: ValueFacts) -> str | None:
    """Returns the packed dtype that holds all values that the facts allow; None where none does."""
    if known.count is None or known.count > 3:
        return None
    return _smallest_dtype({known.low + known.step * k for k in range(known.count)})


def _smallest_dtype(values: set[float] | None) -> str | None:
    """Returns the packed dtype with the fewest bits that holds the values; None where none does."""
    if values is None:
        return None
    return next((name for name in ("bits", "trits") if values <= set(PACKED_DTYPES[name].values)),
                None)


def _possible_values(expression: Expression, output: int) -> set[float] | None:
    """Returns a set that holds every value of an output; None where they may be many."""
    known: list[set[float] | None] = [None] * expression.inputs
    for step in expression.steps:
        arguments = [known[index] for index in step.arguments]
        if step.function == "sign":
            known.append({-1.0, 0.0, 1.0})
        elif step.function in _TRUTHS:
            known.append({0.0, 1.0})
        elif step.function == "where":
            known.append(_union(arguments[1], arguments[2]))
        else:
            known.append(_results(step.function, step.constants, arguments))
    return known[expression.outputs[output]]


def _union(one: set[float] | None, other: set[float] | None) -> set[float] | None:
    return None if one is None or other is None else one | other


def _results(function: str, constants: tuple[float, ...],
             arguments: list[set[float] | None]) -> set[float] | None:
    """Returns the values of a function of few values; None where they may be many."""
    sets = [values for values in arguments if values is not None]
    if len(sets) < len(arguments) or np.prod([len(values) for values in sets]) > _MOST_VALUES:
        return None
    with np.errstate(all="ignore"):
        return {float(FUNCTIONS[function].numpy(*map(np.float64, values), *constants))
                for values in itertools.product(*sets)}
