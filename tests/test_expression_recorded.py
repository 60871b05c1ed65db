"""The values, texts and compositions of expressions stay as they were recorded."""

from __future__ import annotations

import itertools

import numpy as np

from gossamer.expression import DISCONTINUOUS, FUNCTIONS, Expression, ExpressionStep, apply
from gossamer.model.compose import Composer
from tests.model.graph_text import expression_text
from tests.recorded import Recorded
from tests.recorded.outcomes import outcome

NUMBERS = (-np.inf, -3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.5, 7.0, np.inf, np.nan)
WHOLE = (-7, -2, -1, 0, 1, 2, 7)
CONSTANTS = ((), (-1.0,), (0.5,), (-1.0, 1.0), (0.5, 2.0), (0.2, 0.5))


def test_functions(recorded: Recorded) -> None:
    texts = {}
    for name, function in FUNCTIONS.items():
        numbers = NUMBERS if function.arity < 3 else NUMBERS[1:-2:2]
        grid = [np.array(each) for each in zip(*itertools.product(numbers, repeat=function.arity),
                                               strict=True)]
        texts[name] = f"{function.arity} {function.constants} {function.flops} {function.c} " + (
            "jumps" if name in DISCONTINUOUS else "")
        for constants in CONSTANTS:
            if len(constants) == function.constants:
                expression = apply(name, *constants)
                result, = expression.evaluate(*(each.astype(np.float32) for each in grid))
                # the last digits of a sine are those of the processor's instructions
                texts[f"{name} {constants}"] = f"{result.dtype} " + " ".join(
                    f"{value + 0.0:.5g}" for value in result.reshape(-1).tolist())
        if name in ("add", "sub", "mul", "div", "min", "max", "less", "equal", "and", "or", "not",
                    "where", "neg", "abs", "sign", "relu"):
            whole = [np.array(each, np.int32) for each in zip(
                *itertools.product(WHOLE[::1 if function.arity < 3 else 2],
                                   repeat=function.arity), strict=True)]
            result, = apply(name).evaluate(*whole)
            texts[f"{name} of integers"] = f"{result.dtype} {result.tolist()}"
    recorded("expression_functions", texts)


def made(inputs: int, function: str, arguments: tuple[int, ...], constants: tuple[float, ...],
         outputs: tuple[int, ...]) -> str:
    step = ExpressionStep(function, arguments, constants)
    return expression_text(Expression(inputs, (step,), outputs))


def test_expressions_that_are_refused(recorded: Recorded) -> None:
    texts = {}
    for inputs, arguments, constants, outputs in itertools.product(
            (0, 1, 2), ((), (0,), (1,), (2,), (-1,), (0, 1), (0.0,)),
            ((), (0.5,), (0.0, 1.0), ("a",)), ((), (1,), (2,), (3,), (-1,))):
        texts[f"{inputs} {arguments} {constants} {outputs}"] = " / ".join(
            outcome(made, inputs, name, arguments, constants, outputs, text=str)
            for name in ("relu", "add", "leaky_relu", "clip", "constant"))
    # most cases have one of a few texts, so that a number stands for each text
    number: dict[str, int] = {}
    for case, found in texts.items():
        number.setdefault(found, len(number))
        texts[case] = str(number[found])
    recorded("expression_refused", texts | {f"text {index}": found
                                            for found, index in number.items()})


def drawn(rng: np.random.Generator, inputs: int) -> Expression:
    """Returns an expression of a few exact steps."""
    steps: list[ExpressionStep] = []
    for _ in range(rng.integers(0, 5)):
        name = str(rng.choice(["add", "sub", "mul", "neg", "relu", "clip", "where", "constant"]))
        function = FUNCTIONS[name]
        arguments = rng.integers(0, inputs + len(steps), function.arity) if (
            inputs + len(steps)) else []
        if len(arguments) == function.arity:
            steps.append(ExpressionStep(name, tuple(map(int, arguments)),
                                        (-1.5, 2.0)[:function.constants]))
    count = inputs + len(steps)
    outputs = tuple(map(int, rng.integers(0, count, rng.integers(0, 3)))) if count else ()
    return Expression(inputs, tuple(steps), outputs)


def test_drawn_expressions(recorded: Recorded) -> None:
    rng, texts = np.random.default_rng(5), {}
    for case in range(120):
        one, other = drawn(rng, case % 3 + 1), drawn(rng, case % 2 + 1)
        order = rng.permutation(one.inputs).tolist()
        parts = [expression_text(one), expression_text(other), f"{one.flops} {one.is_identity}",
                 expression_text(one.with_inputs(order)),
                 str(one.c_statements("abc"[:one.inputs], str, "t"))]
        if len(one.outputs) == 1:
            parts.append(expression_text(one.then(other)))
        values = [np.array([index + 1.0, -2.0 - index]) for index in range(one.inputs)]
        parts.append(str([value.tolist() for value in one.evaluate(*values)]))
        parts.append(_composed(one, other, first=(None, "a", "c")[case % 3]))
        texts[str(case)] = "; ".join(parts)
    recorded("expressions", texts)


def _composed(one: Expression, other: Expression, first: str | None) -> str:
    """Returns what a composer makes of two expressions of which the second reads a result of the
    first and a constant, and of an operand that it need not read."""
    composer = Composer()
    results = composer.inline(one, [composer.operand(name) for name in "bac"[:one.inputs]])
    number = composer.operand_or_constant("one", np.array([[1.0]]))
    array = composer.operand_or_constant("two", np.array([1.0, 2.0]))
    last = composer.inline(other, [results[0], number, array][:other.inputs])
    names, built = composer.build(*last, first=first)
    return f"{names} {expression_text(built)} {composer.operands}"
