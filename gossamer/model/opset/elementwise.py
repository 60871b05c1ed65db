"""Definitions of the element-wise ops, their dtypes, and the value facts of their results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gossamer.expression import FUNCTIONS, Composer, Expression, ExpressionStep
from gossamer.facts import NONNEGATIVE, REAL, ValueFacts, integers, point
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.definition import (
    RESOLVED,
    InferenceState,
    OpDef,
    always,
    broadcasts_across_images,
)

_TRUTH = integers(0, 1)
_ZERO, _ONE, _MINUS_ONE = point(0.0), point(1.0), point(-1.0)
_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal"})
_TRUTHS = _COMPARISONS | {"and", "or", "not"}
_KEEPING = frozenset({
    "where", "constant", "neg", "abs", "relu", "clip", "min", "max", "sign", "floor", "round",
    "to_float16", "to_bfloat16", "exp", "sigmoid", "tanh", "atan", "erf"})
"""Functions whose result is NaN only if an argument is NaN."""
_OF_FINITE = frozenset({"add", "sub", "mul", "fma", "leaky_relu", "prelu", "hard_sigmoid", "sin",
                        "cos", "tan"})
"""Functions whose result is NaN only if an argument is NaN or infinite."""
_MOST_LIMITS, _MOST_COMPARED = 8, 4
"""Limits on the time to derive facts. Cases are distinguished for at most _MOST_COMPARED values of
an expression, and only for values that are compared with at most _MOST_LIMITS numbers."""

_RANGES = {"bool": (0, 1), **{
    np.dtype(kind).name: (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)}}
"""The smallest and largest value of booleans and of each integer dtype."""

COMPUTED = ("float32", "int32", "int64", "int8", "uint8", "int16", "uint16", "bool")
"""The dtypes in which element-wise ops compute, and to which they cast. Values that follow from
shapes may have any dtype."""


def check_dtypes(state: InferenceState, node: Node, dtypes: Iterable[str]) -> None:
    """Raise UnsupportedError for a dtype that is not in COMPUTED.

    If all inputs of the node are known, any dtype is allowed.
    """
    if all(name in state.known for name in node.inputs):
        return
    for dtype in dtypes:
        if dtype not in COMPUTED:
            raise state.unsupported(node, f"computes with {dtype}; gossamer computes elements in "
                                          f"{', '.join(COMPUTED)}")


def _elementwise_shape(state: InferenceState, node: Node) -> None:
    """Emit the node with all operands cast to one dtype.

    The common dtype is float32 if an operand is float32 or if all operands are booleans, else the
    integer dtype that can represent all operands. Thus, an int64 combined with a float32 is
    rounded. Booleans and conditions of `where` are cast to the common dtype too.
    """
    # check dtypes first: a wrong dtype is wrong at all sizes of the inputs, whereas shapes that do
    # not match here may match at other sizes
    check_dtypes(state, node, (state.dtypes[name] for name in node.inputs))
    shapes = [state.shapes[name] for name in node.inputs]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        text = " and ".join(str(list(s)) for s in shapes)
        raise state.error(node, f"shapes {text} do not broadcast") from None
    steps = node.attributes["expression"].steps
    conditions = {step.arguments[0] for step in steps if step.function == "where"}
    conditions -= {value for step in steps
                   for value in step.arguments[1 if step.function == "where" else 0:]}
    dtypes = {state.dtypes[name] for index, name in enumerate(node.inputs)
              if index not in conditions}
    if all(name in state.known for name in node.inputs):
        dtypes = set()
    target = "float32"
    numbers = dtypes - {"bool"}
    if numbers and "float32" not in numbers:
        target = np.result_type(*numbers).name
        for step in steps:
            if any(constant != np.trunc(constant) or np.isinf(constant)
                   for constant in step.constants):
                raise state.unsupported(node, f"computes with {step.constants[0]:g} and {target}; "
                                              "gossamer computes integers only with integers")
    inputs = list(node.inputs)
    for index, name in enumerate(inputs):
        if not dtypes or state.dtypes[name] == target:
            continue
        cast = state.new_name(node, f"operand{index}")
        inputs[index] = state.cast(node, name, [cast], target)
    state.emit(node, shape, inputs=inputs, dtype=target, expression=node.attributes["expression"])


def _mod_shape(state: InferenceState, node: Node) -> None:
    """Emit the remainder of a division as an expression.

    Integer quotients are rounded towards 0.
    """
    composer = Composer()
    a, b = composer.operand("a"), composer.operand("b")
    if any(state.dtypes[name] == "float32" for name in node.inputs):
        rest = a.apply("fmod", b)
    else:
        rest = a - a / b * b
    if not node.attributes["of_dividend"]:
        signs = rest.apply("sign") * b.apply("sign")
        rest = signs.apply("less", 0).apply("where", rest + b, rest)
    node.op = "elementwise"
    node.attributes = {"expression": composer.build(rest)[1]}
    _elementwise_shape(state, node)


def _elementwise(attributes: dict[str, Any],
                 arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    numbers = [a.astype(np.int64) if a.dtype == bool else a for a in arrays]
    results = attributes["expression"].evaluate(*numbers)
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    results = [np.broadcast_to(result, shape) for result in results]
    return [r.astype(np.float32) if r.dtype.kind == "f" else r for r in results]


def _is_discontinuous(node: Node) -> bool:
    return bool(node.attributes["expression"].is_discontinuous)


def _elementwise_facts(static: StaticGraph, node: Node,
                       facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    integer = not any(static.dtypes[name] == "float32" for name in node.inputs)
    results = expression_facts(node.attributes["expression"], facts, integer=integer)
    if not integer:
        return results
    return [_stored(result, static.dtypes[name])
            for result, name in zip(results, node.outputs, strict=True)]


def _cast_shape(state: InferenceState, node: Node) -> None:
    x, dtype = node.inputs[0], node.attributes["dtype"]
    if state.dtypes[x] == dtype and x not in state.known:
        state.alias(node)
    else:
        check_dtypes(state, node, (state.dtypes[x], dtype))
        state.cast(node, x, node.outputs, dtype)


def _cast_like_shape(state: InferenceState, node: Node) -> None:
    node.attributes = {"dtype": state.dtypes[node.inputs.pop()]}
    _cast_shape(state, node)


def _cast(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0].astype(attributes["dtype"])]


def _cast_facts(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    (x,), dtype = facts, node.attributes["dtype"]
    if dtype not in _RANGES:
        return [x if x.count is not None else REAL]
    return [dtype_facts(dtype) if dtype == "bool" else _stored(x.truncate(), dtype)]


def _stored(whole: ValueFacts, dtype: str) -> ValueFacts:
    """Return the facts of integers stored in a dtype.

    If an integer does not fit, any value of the dtype may result, because devices convert such
    integers differently.
    """
    allowed = dtype_facts(dtype)
    fits = whole.count is not None and allowed.low <= whole.low and whole.high <= allowed.high
    return whole if fits else allowed


def dtype_facts(dtype: str) -> ValueFacts:
    """Return the facts that hold for every value of a dtype."""
    return integers(*_RANGES[dtype]) if dtype in _RANGES else REAL


DEFINITIONS = (
    OpDef("elementwise",
          text="operands, which are broadcast against each other; expression: an Expression with "
               "as many outputs as the node; its truth values are the numbers 1 and 0, in the "
               "dtype of the compared numbers",
          shape=_elementwise_shape, evaluate=_elementwise, mixes=broadcasts_across_images,
          passes_values=True, discontinuous=_is_discontinuous, facts=_elementwise_facts,
          float_only=False, attribute_inputs=()),
    OpDef("mod",
          text="a, b; of_dividend: if True, the remainder has the sign of `a`, as in C; if False, "
               "the sign of `b`, as in Python",
          shape=_mod_shape, **RESOLVED, passes_values=True, discontinuous=always, float_only=False,
          attribute_inputs=()),
    OpDef("cast", text="x; dtype",
          shape=_cast_shape, evaluate=_cast, mixes=broadcasts_across_images, passes_values=True,
          discontinuous=always, facts=_cast_facts, float_only=False, attribute_inputs=()),
    OpDef("cast_like", text="x, and a value with the dtype to which x is cast; no attributes",
          shape=_cast_like_shape, **RESOLVED, passes_values=True, discontinuous=always,
          float_only=False, attribute_inputs=()),
)


def expression_facts(expression: Expression, operands: Sequence[ValueFacts], *,
                     integer: bool = False) -> list[ValueFacts]:
    """Return the facts of an expression's outputs.

    integer: whether the arithmetic is on integers, so that results wrap around and quotients are
    truncated. In this case, only values that float32 represents exactly have facts.
    """
    values = _values(expression, operands, integer=integer)
    results = [values[index] for index in expression.outputs]
    if all(result.count is not None and result.count < 3 for result in results):
        return results
    for index, limits in _compared(expression, values):
        cases = [_values(expression, operands, integer=integer, given=(index, case))
                 for case in values[index].parted(limits)]
        joined = [functools.reduce(ValueFacts.join, [case[output] for case in cases])
                  for output in expression.outputs]
        results = [_narrower(one, other) for one, other in zip(results, joined, strict=True)]
    return results


def may_be_nan(expression: Expression, operands: Sequence[ValueFacts],
               nan: Sequence[bool]) -> list[bool]:
    """Return whether each output of an expression of floats may be NaN.

    nan: whether each operand may be NaN.
    """
    known = list(nan)
    values = _values(expression, operands, integer=False)
    for step in expression.steps:
        given = step.arguments[1:] if step.function == "where" else step.arguments
        known.append(step.function not in _TRUTHS and (
            any(known[value] for value in given) or any(np.isnan(step.constants))
            or (step.function not in _KEEPING and not (
                step.function in _OF_FINITE
                and all(math.isfinite(values[value].largest) for value in given)))))
    return [known[output] for output in expression.outputs]


def _values(expression: Expression, operands: Sequence[ValueFacts], *, integer: bool,
            given: tuple[int, ValueFacts] | None = None) -> list[ValueFacts]:
    """Return the facts of the operands and of each step's result.

    given: the index of a value, and the facts assumed of it.
    """
    values: list[ValueFacts] = []
    for index in range(expression.inputs + len(expression.steps)):
        if given is not None and index == given[0]:
            values.append(given[1])
        elif index < expression.inputs:
            values.append(operands[index])
        else:
            step = expression.steps[index - expression.inputs]
            facts = _step(step, [values[argument] for argument in step.arguments])
            rounds = any(not point(c).is_integer or point(c).low != c for c in step.constants)
            values.append(REAL if integer and (rounds or facts.count is None) else facts)
    return values


def _compared(expression: Expression,
              values: Sequence[ValueFacts]) -> list[tuple[int, list[float]]]:
    """Return the values that are compared with numbers, and these numbers.

    Each entry has the index of a value and a list of numbers. Taking the sign of a value counts as
    a comparison with 0. The facts of results are narrower under the assumption that a value is
    below, at or above one of its numbers. The last step is skipped if its result is the only
    output: a case distinction on its operand would narrow only this result, and joining the cases
    would widen it again.
    """
    limits: dict[int, set[float]] = {}
    last = expression.inputs + len(expression.steps) - 1
    for step in expression.steps[:-1] if expression.outputs == (last,) else expression.steps:
        if step.function == "sign":
            limits.setdefault(step.arguments[0], set()).add(0.0)
        elif step.function in _COMPARISONS:
            for one, other in (step.arguments, step.arguments[::-1]):
                if values[other].count == 1:
                    limits.setdefault(one, set()).add(values[other].low)
    compared = [(index, sorted(numbers)) for index, numbers in limits.items()
                if values[index].count != 1 and len(numbers) <= _MOST_LIMITS]
    return compared[:_MOST_COMPARED]


def _narrower(one: ValueFacts, other: ValueFacts) -> ValueFacts:
    """Return the facts that allow fewer values; `one` if both allow infinitely many."""
    is_narrower = other.count is not None and (one.count is None or other.count < one.count)
    return other if is_narrower else one


def _step(step: ExpressionStep, arguments: Sequence[ValueFacts]) -> ValueFacts:
    if any(np.isnan(step.constants)):
        return REAL
    return _FUNCTIONS[step.function](*arguments, *step.constants)


def _div(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    """Return the facts of a quotient.

    Devices may round quotients differently, and a divisor of 0 may be -0.0.
    """
    if y == _ONE:
        return x
    if y == _MINUS_ONE:
        return x.neg()
    if y.low > 0:
        return x.same_sign()
    return x.neg().same_sign() if y.high < 0 else REAL


def _pow(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    positive = x.low > 0 or (x.low == 0 and y.low > 0)
    return NONNEGATIVE if positive else REAL


def _leaky(x: ValueFacts, slope: ValueFacts) -> ValueFacts:
    if x.low >= 0:
        return x
    return x.relu().join(x.minimum(point(0.0)).mul(slope))


def _is_less(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    if x.high < y.low:
        return _ONE
    return _ZERO if x.low >= y.high else _TRUTH


def _is_equal(x: ValueFacts, y: ValueFacts) -> ValueFacts:
    if x.low > y.high or x.high < y.low:
        return _ZERO
    return _ONE if x.count == y.count == 1 else _TRUTH


def _is_true(x: ValueFacts) -> ValueFacts:
    """Return the facts of a number's truth value: 0 if the number is 0, else 1."""
    return _opposite(_is_equal(x, _ZERO))


def _opposite(x: ValueFacts) -> ValueFacts:
    return _is_equal(x, _ZERO)


def _where(condition: ValueFacts, x: ValueFacts, y: ValueFacts) -> ValueFacts:
    truth = _is_true(condition)
    if truth == _TRUTH:
        return x.join(y)
    return x if truth == _ONE else y


def _to_float(x: ValueFacts, most: int) -> ValueFacts:
    """Return the facts of numbers that are rounded to a float format.

    most: the format represents all integers up to this one.
    """
    return x if x.is_integer and -most <= x.low <= x.high <= most else x.same_sign()


_FUNCTIONS: dict[str, Callable[..., ValueFacts]] = {
    "add": ValueFacts.add, "sub": ValueFacts.sub, "mul": ValueFacts.mul, "div": _div, "pow": _pow,
    "min": ValueFacts.minimum, "max": ValueFacts.maximum,
    "less": _is_less, "less_equal": lambda x, y: _opposite(_is_less(y, x)),
    "greater": lambda x, y: _is_less(y, x), "greater_equal": lambda x, y: _opposite(_is_less(x, y)),
    "equal": _is_equal, "not": _opposite, "where": _where,
    "and": lambda x, y: _is_true(x).minimum(_is_true(y)),
    "or": lambda x, y: _is_true(x).maximum(_is_true(y)),
    "neg": ValueFacts.neg, "abs": ValueFacts.abs, "relu": ValueFacts.relu,
    "clip": ValueFacts.clip, "sign": ValueFacts.sign, "floor": ValueFacts.floor,
    "round": ValueFacts.round, "constant": point,
    "to_float16": partial(_to_float, most=2**11), "to_bfloat16": partial(_to_float, most=2**8),
    "leaky_relu": lambda x, slope: _leaky(x, point(slope)), "prelu": _leaky,
    "hard_sigmoid": lambda x, alpha, beta: x.mul(point(alpha)).add(point(beta)).clip(0.0, 1.0),
    # devices round the results of the functions below differently
    **dict.fromkeys(("exp", "sigmoid", "sqrt"), lambda x: NONNEGATIVE),
    **dict.fromkeys(("log", "sin", "cos", "tan", "fmod"), lambda *arguments: REAL),
    "fma": lambda x, y, z: x.mul(y).add(z),
    "atan": ValueFacts.same_sign, "tanh": ValueFacts.same_sign, "erf": ValueFacts.same_sign,
}
if FUNCTIONS.keys() != _FUNCTIONS.keys():
    raise TypeError("functions of expressions without value facts, or with facts only: "
                    f"{', '.join(sorted(FUNCTIONS.keys() ^ _FUNCTIONS.keys()))}")
