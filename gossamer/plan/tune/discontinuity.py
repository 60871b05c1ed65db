"""Discontinuities of sign, comparisons, floor and selections: where right results may differ.

A candidate rounds in another way than the float64 reference. A value near a discontinuity may
come out on its other side, and the candidate is still right. So an output is compared only where
rounding cannot move a value across a discontinuity. A problem whose epilogue has one is also
computed without it, and these results are compared by normalised error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.accuracy import LARGEST_ERROR
from gossamer.expression import DISCONTINUOUS, FUNCTIONS, Expression, ExpressionStep
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import operand_arrays
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source, weights_of_part
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.registry import OPS

MOST_UNCERTAIN = 0.05
"""The largest share of an output that rounding may move across a discontinuity; where the share is
larger, other inputs are drawn."""
_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal"})
_EXACTLY_ROUNDED = frozenset({"add", "sub", "mul", "neg", "abs", "min", "max", "relu", "clip",
                              "leaky_relu", "prelu", "where"})
"""Functions whose float32 result is correctly rounded on every device. Division and square root are
not among them, because OpenCL does not ask devices to round them correctly."""
_ROUNDING = 2.0**-20
"""Relative rounding error of one float32 function, with room for approximations of devices."""
_HALF_ROUNDING = 2.0**-11
"""Relative rounding error of a float16 number."""
_SPREAD = 8.0
"""The largest error of a single sum of an output, as a multiple of the largest normalised error. It
is more than 1, because the normalised error is a root mean square over all sums."""
_LARGEST_INTEGER = 2.0**24
"""Sums of integers up to this number are exact in float32, in any order of the additions."""
_AVERAGING = frozenset({"concat", "copy", "gather", "pad", "pool", "reduce", "resize"})
"""Ops that, applied to the errors of their inputs, give a bound of the error of their result."""
Arrays = Mapping[str, np.ndarray]
_PARTS: tuple[tuple[str, Callable[[np.ndarray], np.ndarray]], ...] = (
    ("value", lambda array: array), ("error", np.zeros_like),
    ("uncertain", lambda array: np.zeros(array.shape, bool)))
"""The fields of approximate values, each with the function that makes the field of a constant."""


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
    """Return the problems whose results decide the discontinuities of an epilogue: the difference
    of the two numbers that are compared, the condition of a `where`, or the argument of another
    discontinuous function, such as sign. Return an empty list for element-wise problems, which
    compute no sums, and for fusions, whose algorithms compute only the problems that they were made
    for."""
    if isinstance(problem, ElementwiseProblem | FusionProblem):
        return []
    epilogue: Epilogue = problem.epilogue  # type: ignore[attr-defined]
    expression = epilogue.expression
    discontinuous: set[int] = set()
    parts: dict[Expression, None] = {}
    for index, step in enumerate(expression.steps):
        value = expression.inputs + index
        if discontinuous & set(step.arguments):
            discontinuous.add(value)
        elif step.function in _COMPARISONS:
            discontinuous.add(value)
            parts[_part(expression, [*expression.steps[:index],
                                     ExpressionStep("sub", step.arguments)])] = None
        elif step.function in DISCONTINUOUS or step.function == "where":
            discontinuous.add(value)
            decisive = step.arguments[:1] if step.function == "where" else step.arguments
            for argument in decisive:
                parts[_part(expression, expression.steps[:index], argument)] = None
    return [replace(problem, epilogue=replace(epilogue, expression=part))  # type: ignore[type-var]
            for part in parts if _reads_result(part)]


def _part(expression: Expression, steps: Sequence[ExpressionStep],
          output: int | None = None) -> Expression:
    """Return an expression with one output and only the steps that this output needs. output: the
    index of the output among the values; by default the last value."""
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


@dataclass(frozen=True)
class Bounds:
    """Where an output of a right candidate may differ from the reference's output. Both arrays have
    the output's shape.

    uncertain: True where rounding may move a value across a discontinuity.
    exact: True where a right result equals the reference's float32 number, unless the result is
    uncertain.
    """

    uncertain: np.ndarray
    exact: np.ndarray


@dataclass(frozen=True)
class _Approximate:
    """Values with bounds of their errors.

    value: the values in float64.
    error: the largest absolute error of each value. The error includes the height of a
    discontinuity where errors may move the value across it.
    uncertain: True where errors may move the value across a jump.
    """

    value: np.ndarray
    error: np.ndarray
    uncertain: np.ndarray

    @staticmethod
    def of(value: np.ndarray, relative_error: float = 0.0) -> _Approximate:
        """Return values whose errors are at most `relative_error` times the values."""
        value = np.asarray(value, np.float64)
        return _Approximate(value, np.abs(value) * relative_error, np.zeros(value.shape, bool))


def uncheckable(problem: Problem) -> str | None:
    """Return why bounds() cannot bound the results of a discontinuous problem; None where it
    can."""
    parts = problem.parts if isinstance(problem, FusionProblem) else (problem,)
    for part in parts:
        known = isinstance(part, ElementwiseProblem | ReshapeProblem) or hasattr(part, "epilogue")
        if not known and part.op not in _AVERAGING:
            return f"discontinuous results cannot be checked after {part.op}"
    return None


def bounds(problem: Problem, arrays: Sequence[np.ndarray], weights: Arrays,
           precision: str) -> list[Bounds]:
    """Return, for each output of a discontinuous problem, where a right candidate of a precision
    may differ from the reference.

    arrays: the inputs. weights: the constants by name.
    """
    rounding = _HALF_ROUNDING if precision == "fp16" else 0.0
    inputs = [_Approximate.of(array, rounding) for array in arrays]
    if isinstance(problem, FusionProblem):
        outputs = _of_fusion(problem, inputs, weights, precision)
    else:
        outputs = _of_problem(problem, inputs, weights, precision, integers_are_exact=False)
    result = []
    for output, spec in zip(outputs, problem.outputs, strict=True):
        exact = (output.uncertain | (output.error == 0)) & (precision != "fp16")
        result.append(Bounds(np.broadcast_to(output.uncertain, spec.shape),
                             np.broadcast_to(exact, spec.shape)))
    return result


def _of_fusion(problem: FusionProblem, inputs: Sequence[_Approximate], weights: Arrays,
               precision: str) -> list[_Approximate]:
    values: dict[Source, _Approximate] = dict(zip(problem.entries, inputs, strict=True))
    for index, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True)):
        results = _of_problem(part, [values[source] for source in sources],
                              weights_of_part(weights, index), precision,
                              integers_are_exact=precision == "fp32")
        values.update({(index, output): result for output, result in enumerate(results)})
    return [values[source] for source in problem.exits]


def _of_problem(problem: Problem, inputs: Sequence[_Approximate], weights: Arrays, precision: str,
                *, integers_are_exact: bool) -> list[_Approximate]:
    """Return the outputs of a problem whose inputs have errors.

    integers_are_exact: whether sums of integers are computed without error. Algorithms that sum
    other numbers than products, such as Winograd's algorithm, round sums of integers, too.
    """
    if isinstance(problem, ElementwiseProblem):
        remaining = iter(inputs)
        operands = [_Approximate.of(weights[f"operand{index}"]) if index in problem.constants
                    else next(remaining) for index in range(len(problem.operands))]
        return [_as_stored(output, spec.dtype) for output, spec in zip(
            _propagated(problem.expression, operands), problem.outputs, strict=True)]
    if isinstance(problem, ReshapeProblem):
        return [_Approximate(*(np.reshape(array, problem.shape) for array in (
            inputs[0].value, inputs[0].error, inputs[0].uncertain)))]
    if isinstance(problem, GatherProblem) and 1 not in problem.constants:
        return [_gathered(problem, inputs, weights)]
    epilogue: Epilogue | None = getattr(problem, "epilogue", None)
    if epilogue is None:
        return _averaged(problem, inputs, weights)
    sums = _sums(problem, inputs[0], weights, precision, integers_are_exact)
    arrays = [operand_arrays(epilogue, {name: part(np.asarray(array, np.float64))
                                        for name, array in weights.items()},
                             [getattr(tensor, name) for tensor in inputs[1:]], sums.value.ndim)
              for name, part in _PARTS]
    operands = [_Approximate(*operand) for operand in zip(*arrays, strict=True)]
    return _propagated(epilogue.expression, [sums, *operands])


def _sums(problem: Problem, source: _Approximate, weights: Arrays, precision: str,
          integers_are_exact: bool) -> _Approximate:
    """Return the sums of a convolution or product, before its epilogue."""
    plain = replace(problem, epilogue=Epilogue())  # type: ignore[type-var]
    weight = np.asarray(weights["weight"], np.float64)

    def computed(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
        return OPS[problem.op].reference(plain, [values], {"weight": factors})[0]

    sums = computed(source.value, weight)
    error = np.zeros(sums.shape)
    if not (integers_are_exact and _are_small_integers(sums, source.value, weight, computed)):
        squares = computed(np.square(source.value), np.square(weight))
        error = _SPREAD * LARGEST_ERROR[precision] * np.sqrt(squares)
    if source.error.any():
        error = error + computed(source.error, np.abs(weight))
    uncertain = np.zeros(sums.shape, bool)
    if source.uncertain.any():
        uncertain = computed(source.uncertain.astype(np.float64), np.abs(weight)) > 0
    return _Approximate(sums, error, uncertain)


def _are_small_integers(sums: np.ndarray, values: np.ndarray, weight: np.ndarray,
                        computed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> bool:
    """Return whether all partial sums of a problem are integers that float32 holds."""
    if any((np.rint(array) != array).any() for array in (sums, values, weight)):
        return False
    return bool((computed(np.abs(values), np.abs(weight)) <= _LARGEST_INTEGER).all())


def _averaged(problem: Problem, inputs: Sequence[_Approximate],
              weights: Arrays) -> list[_Approximate]:
    """Return the outputs of an op of _AVERAGING."""
    reference = OPS[problem.op].reference
    values = reference(problem, [given.value for given in inputs], weights)
    errors = reference(problem, [given.error for given in inputs], weights)
    reached = reference(problem, [given.uncertain.astype(np.float64) for given in inputs], weights)
    return [_Approximate(value, np.abs(error) + _ROUNDING * np.abs(value) * (problem.flops > 0),
                         reach != 0)
            for value, error, reach in zip(values, errors, reached, strict=True)]


def _gathered(problem: GatherProblem, inputs: Sequence[_Approximate],
              weights: Arrays) -> _Approximate:
    """Return the elements at indices that have errors. Where an index may be another, the element
    may be any other element."""
    *given, indices = inputs
    data = given[0] if given else _Approximate.of(weights["operand0"])
    places = indices.value.astype(np.int64)
    at = replace(problem, constants=())

    def taken(array: np.ndarray) -> np.ndarray:
        return OPS[problem.op].reference(at, [array, places], {})[0]

    value, error, uncertain = taken(data.value), taken(data.error), taken(data.uncertain)
    crosses = (indices.error > 0) | indices.uncertain
    if crosses.any():
        behind = (1,) * (data.value.ndim - 1 - problem.axis)
        crosses = crosses.reshape(*crosses.shape, *behind)
        apart = np.ptp(data.value) + 2 * data.error.max()
        error, uncertain = np.where(crosses, apart, error), uncertain | crosses
    return _Approximate(value, error, uncertain)


def _as_stored(output: _Approximate, dtype: str) -> _Approximate:
    """Return results as they are stored in a dtype: as bools, truncated to integers, or as
    floats."""
    value, error = output.value, output.error
    if dtype == "bool":
        crosses = (np.abs(value) <= error) & (error > 0)
    elif np.dtype(dtype).kind != "f":
        crosses = np.trunc(value - error) != np.trunc(value + error)
    else:
        return output
    return _Approximate(value, np.where(crosses, np.maximum(error, 1), 0),
                        output.uncertain | crosses)


def _propagated(expression: Expression, values: Sequence[_Approximate]) -> list[_Approximate]:
    """Return the outputs of an expression of values with errors."""
    known = list(values)
    with np.errstate(all="ignore"):
        for step in expression.steps:
            known.append(_applied(step, [known[index] for index in step.arguments]))
    return [known[index] for index in expression.outputs]


def _applied(step: ExpressionStep, arguments: Sequence[_Approximate]) -> _Approximate:
    """Return the result of a function of values with errors."""
    function = FUNCTIONS[step.function].numpy
    constants = [np.float64(constant) for constant in step.constants]
    values = [argument.value for argument in arguments]
    value = np.asarray(function(*values, *constants), np.float64)
    uncertain = np.zeros(value.shape, bool)
    for argument in arguments:
        uncertain = uncertain | argument.uncertain
    off = np.zeros(value.shape)
    for signs in itertools.product((-1.0, 1.0), repeat=len(arguments)):
        corner = function(*[argument.value + sign * argument.error for sign, argument
                            in zip(signs, arguments, strict=True)], *constants)
        off = np.fmax(off, np.abs(corner - value))
    if step.function == "equal":
        reach = arguments[0].error + arguments[1].error
        off = np.where((np.abs(values[0] - values[1]) <= reach) & (reach > 0), 1.0, 0.0)
    if step.function in DISCONTINUOUS:
        # the error of an argument includes the argument's own discontinuity, so that this one
        # counts only where the error changes the result
        return _Approximate(value, off, off > 0)
    if step.function == "where":
        condition, chosen, other = arguments
        crosses = (np.abs(condition.value) <= condition.error) & (condition.error > 0)
        error = np.where(condition.value != 0, chosen.error, other.error)
        apart = np.abs(chosen.value - other.value) + chosen.error + other.error
        uncertain = np.where(condition.value != 0, chosen.uncertain, other.uncertain) | crosses
        return _Approximate(value, np.broadcast_to(np.where(crosses, apart, error), value.shape),
                            np.broadcast_to(uncertain, value.shape))
    return _Approximate(value, off + _rounding(step, arguments, value), uncertain)


def _rounding(step: ExpressionStep, arguments: Sequence[_Approximate],
              value: np.ndarray) -> np.ndarray:
    """Return the largest error that float32 arithmetic adds; 0 where every device computes the
    result exactly."""
    rounded = _ROUNDING * np.abs(value)
    if step.function not in _EXACTLY_ROUNDED and step.function != "constant":
        return rounded
    singles = [argument.value.astype(np.float32) for argument in arguments]
    constants = [np.float32(constant) for constant in step.constants]
    single = FUNCTIONS[step.function].numpy(*singles, *constants)
    exact = np.asarray(single, np.float64) == value
    for argument, short in zip(arguments, singles, strict=True):
        exact = exact & (argument.error == 0) & (short == argument.value)
    return np.where(exact, 0.0, rounded)
