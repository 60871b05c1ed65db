"""Discontinuities of sign, comparisons, floor and selections: where right results may differ.

A candidate rounds in another way than the float64 reference. A value near a discontinuity may
come out on its other side, and the candidate is still right. So the reference is also computed from
operands that are nudged at random, by more than a right candidate may be off. A result that no
nudge moves has to be the reference's. A result that nudges move across a discontinuity is not
compared by normalised error. A problem whose epilogue has discontinuities is computed without
them, too, and these results are compared by normalised error.

Source of the nudges: D. S. Parker, "Monte Carlo arithmetic: exploiting randomness in floating-point
arithmetic", UCLA CSD-970002, 1997.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gossamer.accuracy import LARGEST_ERROR
from gossamer.expression import DISCONTINUOUS, Expression
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem, reference
from gossamer.ops.registry import OPS

_NUDGE = 8.0
"""Standard deviation of the normally distributed nudges, relative to the operand, as a multiple of
the largest normalised error. It is more than 1, since the normalised error is a root mean square
over all results."""
_PAIRS = 3
"""Number of pairs of opposite nudges. One pair may nearly cancel in a sum; all of them hardly ever
do."""
_LARGE = 64.0
"""The largest move of a result that crosses no discontinuity, as a multiple of the largest
normalised error and relative to the root mean square of the results."""
_FURTHER = 4.0
"""A result near a discontinuity may be off by this multiple of its largest move."""
_GRID = 256.0
"""Multiples of 1 / _GRID are numbers of few bits, whose products and sums are exact in float32."""
_ROUNDED = frozenset({"div", "pow", "exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "atan",
                      "erf", "sigmoid"})
"""Functions that devices may round even where the result for integers is an integer."""
Arrays = Mapping[str, np.ndarray]


def has_discontinuities(problem: Problem) -> bool:
    """Return whether a result of the problem has discontinuities in its inputs."""
    if isinstance(problem, FusionProblem):
        return any(map(has_discontinuities, problem.parts))
    expression = _expression(problem)
    if expression is None:
        return False
    if isinstance(problem, ElementwiseProblem):
        if problem.arithmetic != "float32":
            return False
        if any(dtype != "float32" for dtype in problem.dtypes):
            return True
    return any(step.function in (*DISCONTINUOUS, "where") for step in expression.steps)


def _expression(problem: Problem) -> Expression | None:
    if isinstance(problem, ElementwiseProblem):
        return problem.expression
    epilogue: Epilogue | None = getattr(problem, "epilogue", None)
    return None if epilogue is None else epilogue.expression


def continuous_parts(problem: Problem) -> list[Problem]:
    """Return the problems whose results are the values before the discontinuities of an epilogue:
    the arguments of a comparison or another discontinuous function, and the condition of a `where`.
    Return an empty list for problems without an epilogue, such as element-wise ones, which compute
    no sums, and fusions, whose algorithms compute only the problems that they were made for."""
    epilogue: Epilogue | None = getattr(problem, "epilogue", None)
    if epilogue is None:
        return []
    expression = epilogue.expression
    of_sums, behind, before = {0}, set[int](), dict[int, None]()
    for value, step in enumerate(expression.steps, expression.inputs):
        if of_sums & set(step.arguments):
            of_sums.add(value)
        if step.function in DISCONTINUOUS or step.function == "where":
            decisive = step.arguments[:1] if step.function == "where" else step.arguments
            before.update(dict.fromkeys(each for each in decisive if each in of_sums - behind))
            behind.add(value)
        elif behind & set(step.arguments):
            behind.add(value)
    return [replace(problem, epilogue=replace(epilogue, expression=Expression(  # type: ignore[type-var]
        expression.inputs, expression.steps[:max(0, value + 1 - expression.inputs)],
        (value,) * len(expression.outputs)))) for value in before]


@dataclass(frozen=True)
class Bounds:
    """How far an output of a right candidate may be from the reference's output. Both arrays have
    the output's shape.

    largest: the largest difference of each value; infinite where only the normalised error counts.
    uncertain: True where rounding may move a value across a discontinuity, so that the value does
    not count in the normalised error.
    """

    largest: np.ndarray
    uncertain: np.ndarray


def bounds(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays,
           expected: Sequence[np.ndarray], precision: str) -> list[Bounds]:
    """Return the bounds of each output of a discontinuous problem, for candidates of a precision.

    arrays: the inputs. weights: the constants by name. expected: the reference's outputs.
    """
    runs = [_nudged(problem, arrays, weights, precision=precision, sign=sign,
                    rng=np.random.default_rng(pair))
            for pair in range(_PAIRS) for sign in (1, -1)]
    found = []
    for right, *others in zip(expected, *runs, strict=True):
        moves = np.abs(np.stack(others).astype(np.float64) - right)
        least, most = moves.min(axis=0), moves.max(axis=0)
        size = LARGEST_ERROR[precision] * np.abs(np.nan_to_num(
            right.astype(np.float64), posinf=0.0, neginf=0.0))
        # a nudge moves what is continuous each time
        uncertain = (most > 0) & ((least == 0)
                                  | (most > _LARGE * np.sqrt(np.square(size).mean())))
        largest = np.where(most == 0, size.max(initial=0), np.inf)
        found.append(Bounds(np.where(uncertain, _FURTHER * most, largest), uncertain))
    return found


def _nudged(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays, *, precision: str,
            sign: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the reference's outputs from operands that are nudged, in each part of a fusion anew.

    Integers, and fractions of few bits, stay as they are where float32 arithmetic on them rounds
    nothing.
    """
    if isinstance(problem, FusionProblem):
        return reference(problem, arrays, weights,
                         partial(_nudged, precision=precision, sign=sign, rng=rng))
    keeps_few_bits = precision == "fp32" and not _rounds_few_bits(problem)

    def nudged(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        size = sign * _NUDGE * LARGEST_ERROR[precision]
        moved = array * (1 + size * rng.standard_normal(array.shape))
        few_bits = array * _GRID == np.rint(array * _GRID)
        return np.where(few_bits, array, moved) if keeps_few_bits else moved

    return OPS[problem.op].reference(problem, [nudged(array) for array in arrays],
                                     {name: nudged(array) for name, array in weights.items()})


def _rounds_few_bits(problem: Problem) -> bool:
    """Return whether float32 arithmetic may round the results of a problem's expression for
    numbers of few bits: by a function, or by a constant of many bits."""
    expression = _expression(problem)
    return expression is not None and any(
        step.function in _ROUNDED or any(np.float16(c) != c for c in step.constants)
        for step in expression.steps)
