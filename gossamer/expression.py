"""Element-wise arithmetic as data: evaluated by NumPy, or written as C.

Chains of element-wise ops and epilogues of convolutions are both represented by an Expression, so
that each function is defined once for the host, the reference and the kernels. A Composer builds an
Expression from named operands, functions and other expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """A scalar function of run-time arguments and compile-time constants.

    arity: number of arguments.
    numpy: function of (*arguments, *constants) that keeps the dtype of its arguments.
    c: format string of the C expression, with {0}, {1}... for the arguments and {c0}, {c1}... for
    the constants.
    flops: number of floating-point operations that are counted for one evaluation.
    """

    arity: int
    numpy: Callable[..., np.ndarray]
    c: str
    flops: int = 1

    @property
    def constants(self) -> int:
        """The number of constants, counted from the C expression."""
        return sum(f"{{c{index}}}" in self.c for index in range(9))


def _select(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition != 0, x, y)


def _truth(compare: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return a comparison that returns 1 or 0 in the dtype of its arguments, as kernels do.

    compare: the NumPy comparison, which returns booleans.
    """
    return lambda a, b: compare(a, b).astype(np.result_type(a))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # the argument of exp is never positive, so exp cannot overflow
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    # few networks need SciPy, which takes longer to import than all of gossamer
    from scipy.special import erf

    return np.asarray(erf(x), x.dtype)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b.

    As in kernels, a quotient of integers is rounded towards 0, and division of an integer by 0
    returns the dividend.
    """
    if np.result_type(a, b).kind == "f":
        return np.divide(a, b)
    divisor = np.where(b == 0, 1, b).astype(np.result_type(b))
    quotient = np.floor_divide(a, divisor)
    is_inexact = quotient * divisor != a
    return quotient + (is_inexact & ((a < 0) != (divisor < 0)))


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x to the power y.

    If x and y are integers and y < 0, the power is rounded towards 0; for x = 0, it is 0.
    """
    if np.result_type(x, y).kind == "f":
        return np.power(x, y)
    odd_or_even = np.power(x, y % 2)
    return np.where(y < 0, np.where(np.abs(x) == 1, odd_or_even, 0),
                    np.power(x, np.maximum(y, 0)))


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    # the product of two float32 numbers is exact in float64
    return (x.astype(np.float64) * y + z).astype(x.dtype)


def _to_float16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float16).astype(x.dtype)


def _to_bfloat16(x: np.ndarray) -> np.ndarray:
    single = np.asarray(x, np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    # the upper 16 bits of a float32, rounded to nearest, ties to even
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(single), single, rounded).astype(x.dtype)


FUNCTIONS: dict[str, Function] = {
    "add": Function(2, np.add, "({0} + {1})"),
    "sub": Function(2, np.subtract, "({0} - {1})"),
    "mul": Function(2, np.multiply, "({0} * {1})"),
    "div": Function(2, _quotient, "({0} / {1})"),
    "pow": Function(2, _power, "pow({0}, {1})"),
    "fma": Function(3, _fma, "FMA({0}, {1}, {2})", 2),
    "fmod": Function(2, np.fmod, "fmod({0}, {1})", 4),
    "min": Function(2, np.minimum, "MINIMUM({0}, {1})"),
    "max": Function(2, np.maximum, "MAXIMUM({0}, {1})"),
    "less": Function(2, _truth(np.less), "(({0} < {1}) ? ONE : ZERO)"),
    "less_equal": Function(2, _truth(np.less_equal), "(({0} <= {1}) ? ONE : ZERO)"),
    "greater": Function(2, _truth(np.greater), "(({0} > {1}) ? ONE : ZERO)"),
    "greater_equal": Function(2, _truth(np.greater_equal), "(({0} >= {1}) ? ONE : ZERO)"),
    "equal": Function(2, _truth(np.equal), "(({0} == {1}) ? ONE : ZERO)"),
    "and": Function(2, _truth(np.logical_and), "(({0} != ZERO && {1} != ZERO) ? ONE : ZERO)"),
    "or": Function(2, _truth(np.logical_or), "(({0} != ZERO || {1} != ZERO) ? ONE : ZERO)"),
    "not": Function(1, lambda x: (x == 0).astype(x.dtype), "(({0} == ZERO) ? ONE : ZERO)"),
    "where": Function(3, _select, "(({0} != ZERO) ? {1} : {2})"),
    "neg": Function(1, np.negative, "(-{0})"),
    "abs": Function(1, np.abs, "(({0} < ZERO) ? -{0} : {0})"),
    "exp": Function(1, np.exp, "exp({0})", 4),
    "log": Function(1, np.log, "log({0})", 4),
    "sqrt": Function(1, np.sqrt, "sqrt({0})", 2),
    "tanh": Function(1, np.tanh, "tanh({0})", 6),
    "sin": Function(1, np.sin, "sin({0})", 6),
    "cos": Function(1, np.cos, "cos({0})", 6),
    "tan": Function(1, np.tan, "tan({0})", 6),
    "atan": Function(1, np.arctan, "atan({0})", 6),
    "erf": Function(1, _erf, "ERF({0})", 6),
    "floor": Function(1, np.floor, "floor({0})"),
    "round": Function(1, np.rint, "rint({0})"),
    "to_float16": Function(1, _to_float16, "ROUNDED_TO_HALF({0})"),
    "to_bfloat16": Function(1, _to_bfloat16, "ROUNDED_TO_BFLOAT16({0})"),
    "sigmoid": Function(1, _sigmoid, "SIGMOID({0})", 6),
    "sign": Function(1, np.sign, "(({0} > ZERO) ? ONE : (({0} < ZERO) ? -ONE : {0}))"),
    "relu": Function(1, lambda x: np.maximum(x, 0), "MAXIMUM({0}, ZERO)"),
    "clip": Function(
        1, lambda x, low, high: np.clip(x, low, high), "MINIMUM(MAXIMUM({0}, {c0}), {c1})", 2
    ),
    "leaky_relu": Function(
        1, lambda x, slope: np.where(x < 0, x * slope, x).astype(x.dtype),
        "(({0} < ZERO) ? {0} * {c0} : {0})",
    ),
    "prelu": Function(2, lambda x, slope: np.where(x < 0, x * slope, x),
                      "(({0} < ZERO) ? {0} * {1} : {0})"),
    "hard_sigmoid": Function(
        1, lambda x, alpha, beta: np.clip(x * alpha + beta, 0, 1).astype(x.dtype),
        "MINIMUM(MAXIMUM({0} * {c0} + {c1}, ZERO), ONE)", 3,
    ),
    "constant": Function(0, np.asarray, "{c0}", 0),
}


ROUNDINGS = frozenset({"to_float16", "to_bfloat16"})
"""Functions that round to fewer significant bits."""
DISCONTINUOUS = ROUNDINGS | {"sign", "less", "less_equal", "greater", "greater_equal", "equal",
                             "and", "or", "not", "floor", "fmod", "round"}
"""Discontinuous functions: rounding an argument near a jump may change the result a lot."""


@dataclass(frozen=True)
class ExpressionStep:
    """One function applied to earlier values.

    function: name of the function in FUNCTIONS.
    arguments: indices of values; the expression's inputs come first, then the results of the
    earlier steps.
    constants: further arguments that are known at compile time.
    """

    function: str
    arguments: tuple[int, ...]
    constants: tuple[float, ...] = ()


@dataclass(frozen=True)
class Expression:
    """Steps that compute values from input values.

    inputs: number of input values.
    steps: the steps in the order of their execution.
    outputs: indices of the values that are results; by default the last value.
    """

    inputs: int
    steps: tuple[ExpressionStep, ...] = ()
    outputs: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        count = self.inputs
        for step in self.steps:
            function = FUNCTIONS[step.function]
            if len(step.arguments) != function.arity or not all(
                    isinstance(a, int) and 0 <= a < count for a in step.arguments):
                raise ValueError(f"bad arguments in {step}")
            if len(step.constants) != function.constants or not all(
                    isinstance(c, int | float | np.number) for c in step.constants):
                raise ValueError(f"bad constants in {step}")
            count += 1
        if not all(isinstance(output, int) and 0 <= output < count for output in self.outputs):
            raise ValueError(f"an expression of {count} values has outputs {self.outputs}")
        if not self.outputs:
            object.__setattr__(self, "outputs", (count - 1,))

    @property
    def flops(self) -> int:
        """Floating-point operations for each element."""
        return sum(FUNCTIONS[step.function].flops for step in self.steps)

    @property
    def is_identity(self) -> bool:
        return not self.steps and self.outputs == (0,)

    @property
    def is_discontinuous(self) -> bool:
        """Whether a step is discontinuous, as in layers that round or compute signs."""
        return any(step.function in DISCONTINUOUS for step in self.steps)

    def evaluate(self, *values: np.ndarray) -> list[np.ndarray]:
        """Return the outputs for input arrays that broadcast against each other.

        The outputs have the dtype of the inputs.
        """
        results: list[Any] = list(values)
        last_use = {argument: index for index, step in enumerate(self.steps)
                    for argument in step.arguments}
        dtype = np.result_type(*[v.dtype for v in values]) if values else np.dtype("float64")
        with np.errstate(all="ignore"):
            for index, step in enumerate(self.steps):
                function = FUNCTIONS[step.function]
                constants = [dtype.type(c) for c in step.constants]
                result = function.numpy(*[results[a] for a in step.arguments], *constants)
                results.append(np.asarray(result, dtype=dtype))
                for argument in step.arguments:
                    # free a value that no later step reads
                    if last_use[argument] == index and argument not in self.outputs:
                        results[argument] = None
        return [results[index] for index in self.outputs]

    def c_statements(
        self, variables: Sequence[str], literal: Callable[[float], str], prefix: str
    ) -> tuple[list[str], list[str]]:
        """Return an assignment `VALUE <prefix>i = ...;` for each step, and the outputs' names.

        VALUE is the macro by which kernels name the type of the arithmetic.

        variables: names of the inputs.
        literal: function that writes a constant in C.
        """
        names = list(variables)
        lines = []
        for index, step in enumerate(self.steps):
            text = FUNCTIONS[step.function].c.format(
                *[names[a] for a in step.arguments],
                **{f"c{i}": literal(c) for i, c in enumerate(step.constants)},
            )
            names.append(f"{prefix}{index}")
            lines.append(f"VALUE {prefix}{index} = {text};")
        return lines, [names[index] for index in self.outputs]

    def with_inputs(self, order: Sequence[int]) -> Expression:
        """Return this expression with its inputs in another order.

        Input i of the new expression is input order[i] of this expression.
        """
        places = {old: new for new, old in enumerate(order)}

        def moved(value: int) -> int:
            return places.get(value, value)

        return Expression(self.inputs, tuple(
            ExpressionStep(step.function, tuple(map(moved, step.arguments)), step.constants)
            for step in self.steps), tuple(map(moved, self.outputs)))

    def then(self, other: Expression) -> Expression:
        """Return this expression followed by another.

        Input 0 of `other` is the only output of this expression. The other inputs of `other` follow
        this expression's inputs.
        """
        extra = other.inputs - 1
        renumbered = {old: old if old < self.inputs else old + extra
                 for old in range(self.inputs + len(self.steps))}
        steps = [ExpressionStep(s.function, tuple(renumbered[a] for a in s.arguments), s.constants)
                 for s in self.steps]
        here = {0: renumbered[self.outputs[0]]}
        here.update({i: self.inputs + i - 1 for i in range(1, other.inputs)})
        base = self.inputs + extra + len(self.steps)
        for index, step in enumerate(other.steps):
            here[other.inputs + index] = base + index
            steps.append(ExpressionStep(step.function, tuple(here[a] for a in step.arguments),
                                        step.constants))
        return Expression(self.inputs + extra, tuple(steps),
                          tuple(here[o] for o in other.outputs))


def apply(function: str, *constants: float) -> Expression:
    """Return the expression that applies one function to its inputs."""
    arity = FUNCTIONS[function].arity
    return Expression(arity, (ExpressionStep(function, tuple(range(arity)), constants),))


def identity() -> Expression:
    """Return the expression whose output is its only input."""
    return Expression(1)


@dataclass(frozen=True)
class Value:
    """A value of a Composer: an operand, or the result of a step.

    Arithmetic on a value adds a step to the composer. The other argument may be a value, a number,
    or the name of an operand.

    number: index of a step (0, 1, ...) or of an operand (-1, -2, ...).
    """

    composer: Composer
    number: int

    def apply(self, function: str, *others: Value | float | str,
              constants: Sequence[float] = ()) -> Value:
        """Return the result of a function of this value and others."""
        return self.composer.apply(function, self, *others, constants=constants)

    def __add__(self, other: Value | float | str) -> Value:
        return self.apply("add", other)

    def __sub__(self, other: Value | float | str) -> Value:
        return self.apply("sub", other)

    def __mul__(self, other: Value | float | str) -> Value:
        return self.apply("mul", other)

    def __truediv__(self, other: Value | float | str) -> Value:
        return self.apply("div", other)

    def __rsub__(self, other: float) -> Value:
        return self.composer.apply("sub", other, self)

    def __rtruediv__(self, other: float) -> Value:
        return self.composer.apply("div", other, self)

    def __neg__(self) -> Value:
        return self.apply("neg")


class Composer:
    """Builds an expression step by step. Equal steps are stored once."""

    def __init__(self) -> None:
        self.operands: list[str] = []
        self._numbers: dict[str, int] = {}
        self._steps: dict[ExpressionStep, int] = {}

    def operand(self, name: str) -> Value:
        """Return the operand called `name`; add it if the name is new."""
        if name not in self._numbers:
            self.operands.append(name)
            self._numbers[name] = -len(self.operands)
        return Value(self, self._numbers[name])

    def value(self, argument: Value | float | str) -> Value:
        """Convert an argument to a value: a number becomes a constant, a name an operand.

        Raises ValueError for a value of another composer.
        """
        if isinstance(argument, Value):
            if argument.composer is not self:
                raise ValueError("the values of an expression need the same composer")
            return argument
        return self.operand(argument) if isinstance(argument, str) else self.constant(argument)

    def apply(self, function: str, *arguments: Value | float | str,
              constants: Sequence[float] = ()) -> Value:
        """Return the result of a function."""
        numbers = tuple([self.value(argument).number for argument in arguments])
        step = ExpressionStep(function, numbers, tuple(map(float, constants)))
        return Value(self, self._steps.setdefault(step, len(self._steps)))

    def constant(self, value: float) -> Value:
        return self.apply("constant", constants=(value,))

    def operand_or_constant(self, name: str, array: np.ndarray | None) -> Value:
        """Return the named operand; if it is a constant of one element, return this constant.

        array: the operand's array if it is a constant, else None.
        """
        if array is None or array.size != 1:
            return self.operand(name)
        return self.constant(array.item())

    def inline(self, expression: Expression, arguments: Sequence[Value]) -> list[Value]:
        """Add the steps of another expression, and return its outputs.

        arguments: the values that become the other expression's inputs.
        """
        values = list(arguments)
        for step in expression.steps:
            values.append(self.apply(step.function, *[values[a] for a in step.arguments],
                                     constants=step.constants))
        return [values[output] for output in expression.outputs]

    def build(self, *outputs: Value, first: str | None = None) -> tuple[list[str], Expression]:
        """Return the operands that the outputs depend on, and the expression of these operands.

        first: the operand to return first, even if no output depends on it; None for no such
        operand.
        """
        steps = list(self._steps)
        needed: set[int] = set()
        pending = [output.number for output in outputs]
        while pending:
            value = pending.pop()
            if value not in needed:
                needed.add(value)
                pending.extend(steps[value].arguments if value >= 0 else ())
        names = [] if first is None else [first]
        names += [name for index, name in enumerate(self.operands)
                  if -1 - index in needed and name != first]
        index = {self._numbers[name]: position
                 for position, name in enumerate(names) if name in self._numbers}
        needed_steps: list[ExpressionStep] = []
        for value, step in enumerate(steps):
            if value in needed:
                index[value] = len(names) + len(needed_steps)
                needed_steps.append(ExpressionStep(
                    step.function, tuple(index[a] for a in step.arguments), step.constants))
        return names, Expression(len(names), tuple(needed_steps),
                                 tuple(index[output.number] for output in outputs))
