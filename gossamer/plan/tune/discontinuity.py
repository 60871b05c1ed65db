"""Checks of results that jump: sign, comparisons, floor, and selections by them.

A candidate rounds otherwise than the float64 reference does, so a value that lies within rounding
of a jump may come out on its other side, and the candidate is right all the same. The whole output
is compared outside of what rounding may take over a jump. An epilogue that jumps is compared once
more with the jump left out, by normalised error.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.accuracy import LARGEST_ERROR
from gossamer.expression import DISCONTINUOUS, FUNCTIONS, Expression, ExpressionStep
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import operand_arrays
from gossamer.ops.registry import OPS

MOST_DOUBTFUL = 0.05
"""The largest share of an output that may lie within rounding of a jump; else other inputs are
drawn."""

_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal"})
_EXACTLY_ROUNDED = frozenset({"add", "sub", "mul", "neg", "abs", "min", "max", "relu", "clip",
                              "leaky_relu", "prelu", "where"})
"""Functions whose float32 result is correctly rounded on every device. Division and square root
are not among them: OpenCL lets a device round them otherwise."""
_ROUNDING = 2.0**-20
"""Relative rounding of one float32 function, with room for approximations of devices."""
_HALF_ROUNDING = 2.0**-11
"""Relative rounding of a float16 number."""
_SPREAD = 8.0
"""How many times the largest normalised error one sum of an output may be off: the error of all
is a root mean square."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Bounds:
    """Where an output of a right candidate may differ from the reference's.

    doubtful: True where rounding may take a value over a jump. exact: True where a right result
    equals the reference's float32 number. Both have the output's shape.
    """

    doubtful: np.ndarray
    exact: np.ndarray

    @property
    def share(self) -> float:
        """Returns the share of the output that is doubtful."""
        return float(self.doubtful.mean()) if self.doubtful.size else 0.0


def has_jumps(problem: Problem) -> bool:
    """Returns whether a result of the problem jumps where an input changes by a little."""
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
    """Returns the problems whose results are what the jumps of a problem's epilogue decide by: a
    comparison's difference, or the argument of a sign. Empty for element-wise problems, which add
    nothing up."""
    if isinstance(problem, ElementwiseProblem):
        return []
    epilogue: Epilogue = problem.epilogue  # type: ignore[attr-defined]
    expression = epilogue.expression
    jumped: set[int] = set()
    parts: dict[Expression, None] = {}
    for index, step in enumerate(expression.steps):
        value = expression.inputs + index
        if jumped & set(step.arguments):
            jumped.add(value)
        elif step.function in _COMPARISONS:
            jumped.add(value)
            parts[_part(expression, [*expression.steps[:index],
                                     ExpressionStep("sub", step.arguments)])] = None
        elif step.function in DISCONTINUOUS or step.function == "where":
            jumped.add(value)
            decisive = step.arguments[:1] if step.function == "where" else step.arguments
            for argument in decisive:
                parts[_part(expression, expression.steps[:index], argument)] = None
    return [replace(problem, epilogue=replace(epilogue, expression=part))  # type: ignore[type-var]
            for part in parts if _reads_result(part)]


def _part(expression: Expression, steps: Sequence[ExpressionStep],
          output: int | None = None) -> Expression:
    """Returns an expression of these steps, less those that its output does not need."""
    inputs = expression.inputs
    output = inputs + len(steps) - 1 if output is None else output
    needed = {output}
    for index in reversed(range(len(steps))):
        if inputs + index in needed:
            needed.update(steps[index].arguments)
    moved = {index: index for index in range(inputs)}
    needed_steps: list[ExpressionStep] = []
    for index, step in enumerate(steps):
        if inputs + index in needed:
            moved[inputs + index] = inputs + len(needed_steps)
            needed_steps.append(replace(step, arguments=tuple(moved[a] for a in step.arguments)))
    return Expression(inputs, tuple(needed_steps), (moved[output],))


def _reads_result(expression: Expression) -> bool:
    return expression.outputs == (0,) or any(0 in step.arguments for step in expression.steps)


def bounds(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays,
           precision: str) -> list[Bounds]:
    """Returns for each output of a problem that jumps where a right candidate of a precision may
    differ from the reference.

    arrays: the inputs. weights: the constants by name.
    """
    expression = _expression(problem)
    assert expression is not None
    values, errors = _operands(problem, arrays, weights, precision)
    shape = problem.outputs[0].shape
    outputs = _propagated(expression, values, errors)
    result = []
    dtypes = [spec.dtype for spec in problem.outputs]
    for (value, error, doubtful), dtype in zip(outputs, dtypes, strict=True):
        if dtype == "bool":
            doubtful = doubtful | ((np.abs(value) <= error) & (error > 0))
            error = np.zeros_like(error)
        elif np.dtype(dtype).kind != "f":
            doubtful = doubtful | (np.trunc(value - error) != np.trunc(value + error))
            error = np.zeros_like(error)
        exact = (error == 0) & (precision != "fp16")
        result.append(Bounds(np.broadcast_to(doubtful, shape), np.broadcast_to(exact, shape)))
    return result


def _operands(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays,
              precision: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the values that an expression works on in float64, and the most each may be off."""
    rounding = _HALF_ROUNDING if precision == "fp16" else 0.0

    def stored(array: np.ndarray) -> np.ndarray:
        return np.abs(array) * rounding

    if isinstance(problem, ElementwiseProblem):
        remaining = iter(arrays)
        values = [np.asarray(weights[f"operand{index}"] if index in problem.constants
                             else next(remaining), np.float64)
                  for index in range(len(problem.operands))]
        return values, [stored(value) for value in values]
    plain = replace(problem, epilogue=Epilogue())  # type: ignore[type-var]
    source, weight = (np.asarray(array, np.float64) for array in (arrays[0], weights["weight"]))
    reference = OPS[problem.op].reference
    (sums,) = reference(plain, [source], {"weight": weight})
    (squares,) = reference(plain, [np.square(source)], {"weight": np.square(weight)})
    constants = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    tensors = [np.asarray(array, np.float64) for array in arrays[1:]]
    epilogue: Epilogue = problem.epilogue  # type: ignore[attr-defined]
    operands = operand_arrays(epilogue, constants, tensors, sums.ndim)
    errors = [stored(operand) if kind == "tensor" else np.zeros_like(operand)
              for operand, kind in zip(operands, epilogue.operands, strict=True)]
    return [sums, *operands], [_SPREAD * LARGEST_ERROR[precision] * np.sqrt(squares), *errors]


def _propagated(expression: Expression, values: Sequence[np.ndarray],
                errors: Sequence[np.ndarray]
                ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns each output's value, the most that it may be off, and where a jump is in reach."""
    known = [(value, error, np.zeros(np.shape(value), bool))
             for value, error in zip(values, errors, strict=True)]
    with np.errstate(all="ignore"):
        for step in expression.steps:
            known.append(_applied(step, [known[index] for index in step.arguments]))
    return [known[index] for index in expression.outputs]


def _applied(step: ExpressionStep, arguments: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the result of a function of values that may be off by their errors."""
    function = FUNCTIONS[step.function].numpy
    constants = [np.float64(constant) for constant in step.constants]
    values = [value for value, _, _ in arguments]
    value = np.asarray(function(*values, *constants), np.float64)
    doubtful = np.zeros(value.shape, bool)
    for _, _, doubt in arguments:
        doubtful = doubtful | doubt
    off = np.zeros(value.shape)
    for signs in itertools.product((-1.0, 1.0), repeat=len(arguments)):
        corner = function(*[argument + sign * error for sign, (argument, error, _)
                            in zip(signs, arguments, strict=True)], *constants)
        off = np.fmax(off, np.abs(corner - value))
    if step.function == "equal":
        reach = arguments[0][1] + arguments[1][1]
        off = np.where((np.abs(values[0] - values[1]) <= reach) & (reach > 0), 1.0, 0.0)
    if step.function in DISCONTINUOUS:
        return value, np.zeros(value.shape), doubtful | (off > 0)
    if step.function == "where":
        condition, error, _ = arguments[0]
        chosen = np.where(condition != 0, arguments[1][1], arguments[2][1])
        return (value, np.broadcast_to(chosen, value.shape),
                doubtful | ((np.abs(condition) <= error) & (error > 0)))
    return value, off + _rounding(step, arguments, value), doubtful


def _rounding(step: ExpressionStep, arguments: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
              value: np.ndarray) -> np.ndarray:
    """Returns the most that float32 arithmetic adds; 0 where the result is exact everywhere."""
    rounded = _ROUNDING * np.abs(value)
    if step.function not in _EXACTLY_ROUNDED and step.function != "constant":
        return rounded
    singles = [argument.astype(np.float32) for argument, _, _ in arguments]
    constants = [np.float32(constant) for constant in step.constants]
    single = FUNCTIONS[step.function].numpy(*singles, *constants)
    exact = np.asarray(single, np.float64) == value
    for (argument, error, _), short in zip(arguments, singles, strict=True):
        exact = exact & (error == 0) & (short == argument)
    return np.where(exact, 0.0, rounded)
