"""Discontinuous functions: where a correct result may differ from the reference.

Sign, comparisons, floor and selections are discontinuous. A candidate rounds differently from the
float64 reference, so a value near a discontinuity may end up on the other side of it although the
candidate is correct. Therefore the reference is also computed from randomly perturbed operands. The
perturbations exceed the error of a correct candidate. A result that no perturbation changes has to
equal the reference. A result that perturbations move across a discontinuity is excluded from the
normalised error. If a problem's epilogue has discontinuities, the problem is also computed without
these discontinuities. The results of this second computation are compared by normalised error.

Source of the perturbations: D. S. Parker, "Monte Carlo arithmetic: exploiting randomness in
floating-point arithmetic", UCLA CSD-970002, 1997.
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
"""The relative perturbations of operands are normally distributed. Their standard deviation is this
number times LARGEST_ERROR, the largest normalised error of a correct candidate. The number exceeds
1 because the normalised error is a root mean square over all results, so single results may have
larger errors."""
_PAIRS = 3
"""Number of pairs of opposite perturbations. In a sum, the perturbations of one run may nearly
cancel; it is very unlikely that they do in all runs."""
_LARGE = 64.0
"""A result has crossed a discontinuity if a perturbation changes the result by more than this
number times LARGEST_ERROR times the root mean square of all results."""
_FURTHER = 4.0
"""Largest error of a result near a discontinuity, as a multiple of the largest change that a
perturbation causes in this result."""
_GRID = 256.0
"""Operands that are multiples of 1 / _GRID have few bits, so their products and sums are exact in
float32."""
_ROUNDED = frozenset({"div", "pow", "exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "atan",
                      "erf", "sigmoid"})
"""Functions whose results may be inexact on a device, even where the exact result for integers is
an integer."""
Arrays = Mapping[str, np.ndarray]


def has_discontinuities(problem: Problem) -> bool:
    """Return whether results are discontinuous in the inputs."""
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
    """Return the problems that compute the arguments of discontinuous functions.

    The arguments are those of comparisons and other discontinuous functions, and the conditions of
    `where`. The list is empty for problems without an epilogue: element-wise problems compute no
    sums, and algorithms of fusions compute no other problems.
    """
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
    """Largest errors of a correct candidate's output.

    Both arrays have the output's shape.

    largest: the largest difference of each value; infinite if only the normalised error counts.
    uncertain: True if rounding may move a value across a discontinuity; the value is then excluded
    from the normalised error.
    """

    largest: np.ndarray
    uncertain: np.ndarray


def bounds(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays,
           expected: Sequence[np.ndarray], precision: str) -> list[Bounds]:
    """Return the bounds of each output of a discontinuous problem.

    arrays: the inputs. weights: the constants by name. expected: the reference's outputs.
    precision: the precision of the candidates.
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
        # every perturbation changes a continuous result, so a result that only some perturbations
        # change has crossed a discontinuity
        uncertain = (most > 0) & ((least == 0)
                                  | (most > _LARGE * np.sqrt(np.square(size).mean())))
        largest = np.where(most == 0, size.max(initial=0), np.inf)
        found.append(Bounds(np.where(uncertain, _FURTHER * most, largest), uncertain))
    return found


def _nudged(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays, *, precision: str,
            sign: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the reference's outputs for perturbed operands.

    The operands of each part of a fusion are perturbed. Integers and fractions of few bits are not
    perturbed if float32 arithmetic on them is exact.
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
    """Return whether float32 may round results of few-bit numbers.

    This is the case if the problem's expression has a function of _ROUNDED, or a constant of many
    bits.
    """
    expression = _expression(problem)
    return expression is not None and any(
        step.function in _ROUNDED or any(np.float16(c) != c for c in step.constants)
        for step in expression.steps)
