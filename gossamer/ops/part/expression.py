"""Writes element-wise arithmetic as ONNX nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gossamer.errors import UnsupportedError
from gossamer.expression import Expression, ExpressionStep
from gossamer.ops.part.writer import ModelWriter

_SAME = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min",
         "max": "Max", "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
         "tanh": "Tanh", "sin": "Sin", "cos": "Cos", "tan": "Tan", "atan": "Atan", "erf": "Erf",
         "floor": "Floor", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "relu": "Relu",
         "clip": "Clip"}
"""The ONNX operator of each function that ONNX has, too. The function's constants are the last
inputs of the node."""
_WITH_ATTRIBUTES = {"leaky_relu": ("LeakyRelu", ("alpha",)),
                    "hard_sigmoid": ("HardSigmoid", ("alpha", "beta"))}
_COMPARISONS = {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
                "greater_equal": "GreaterOrEqual", "equal": "Equal"}
_LOGIC = {"and": "And", "or": "Or", "not": "Not"}
_OF_INTEGERS = frozenset(("add", "sub", "mul", "min", "max", "neg", "abs", "where", "constant",
                          *_COMPARISONS, *_LOGIC))
"""Functions of integers for which ONNX Runtime and gossamer have the same results."""

Shape = tuple[int, ...]


def write_expression(writer: ModelWriter, expression: Expression, values: Sequence[str],
                     shapes: Sequence[Shape], dtype: str, shape: Shape,
                     constants: frozenset[int] = frozenset()) -> list[str]:
    """Adds the nodes of an expression, and returns the names of its outputs.

    values, shapes: names and shapes of the expression's inputs.
    dtype: dtype of the inputs, in which the expression is computed.
    shape: shape of all outputs.
    constants: indices of the inputs that are constants.
    Raises UnsupportedError for a function that ONNX Runtime does not compute in the dtype.
    """
    names, known = list(values), list(shapes)
    for step in expression.steps:
        known.append(np.broadcast_shapes(*(known[a] for a in step.arguments)))
    norms = _batch_norms(expression, known, constants) if dtype == "float32" else {}
    inside = {index - back for index in norms for back in (1, 2)}
    for index, step in enumerate(expression.steps):
        if step.function == "to_bfloat16" or (
                dtype != "float32" and step.function not in _OF_INTEGERS):
            raise UnsupportedError(f"{step.function} of {dtype}: has no ONNX form")
        arguments = [names[argument] for argument in step.arguments]
        if index in inside:
            names.append("")
        elif index in norms:
            names.append(_batch_norm(writer, [names[value] for value in norms[index]],
                                     known[expression.inputs + index][1]))
        else:
            names.append(_step(writer, step, arguments, [known[a] for a in step.arguments], dtype))
    return [names[output] if known[output] == shape else
            writer.node("Expand", [names[output], writer.integers(shape)])
            for output in expression.outputs]


def _batch_norms(expression: Expression, shapes: Sequence[Shape],
                 constants: frozenset[int]) -> dict[int, tuple[int, ...]]:
    """Returns the batch norms (x - mean) * scale + shift in an expression. The key of a batch norm
    is the index of its last step among the steps; the value has the indices of x, mean, scale and
    shift among all values of the expression.

    Mean, scale and shift are constants with a number for each channel, along axis 1 of x.

    shapes: shapes of all values.
    """
    norms: dict[int, tuple[int, ...]] = {}
    reads = Counter(expression.outputs)
    for step in expression.steps:
        reads.update(step.arguments)
    for index in range(2, len(expression.steps)):
        steps = expression.steps[index - 2:index + 1]
        if [step.function for step in steps] != ["sub", "mul", "add"]:
            continue
        (x, mean), (difference, scale), (product, shift) = (step.arguments for step in steps)
        first, operands = expression.inputs + index - 2, (mean, scale, shift)
        if ((difference, product) == (first, first + 1)
                and reads[difference] == reads[product] == 1
                and constants.issuperset(operands)
                and all(_is_of_channels(shapes[value], shapes[x]) for value in operands)):
            norms[index] = (x, *operands)
    return norms


def _is_of_channels(shape: Shape, images: Shape) -> bool:
    """Whether an array that is broadcast to images holds one number for each channel."""
    rank = len(images)
    return 2 <= rank >= len(shape) and (1,) * (rank - len(shape)) + shape == (
        1, images[1], *(1,) * (rank - 2))


def _batch_norm(writer: ModelWriter, names: Sequence[str], channels: int) -> str:
    """Adds a BatchNormalization node, which ONNX Runtime computes in the layout that it uses for
    convolutions. For Sub, Mul and Add nodes ONNX Runtime would convert the operands from this
    layout."""
    x, mean, scale, shift = (names[0], *(writer.reshaped(name, [channels]) for name in names[1:]))
    variance = writer.constant(np.ones(channels), "float32")
    return writer.node("BatchNormalization", [x, scale, shift, mean, variance], epsilon=0.0)


def _step(writer: ModelWriter, step: ExpressionStep, arguments: list[str],
          shapes: Sequence[Shape], dtype: str) -> str:
    function = step.function
    if function == "constant":
        return writer.constant(step.constants[0], dtype)
    if function == "mul" and arguments[0] == arguments[1] and dtype == "float32":
        # ONNX Runtime recognises a layer norm only where its squares are Pow nodes
        return writer.node("Pow", [arguments[0], writer.constant(2, dtype)])
    if function in _SAME:
        return writer.node(_SAME[function], [*arguments, *(
            writer.constant(number, dtype) for number in step.constants)])
    if function in _WITH_ATTRIBUTES:
        operator, names = _WITH_ATTRIBUTES[function]
        return writer.node(operator, arguments, **dict(zip(names, step.constants, strict=True)))
    if function == "fma":
        x, y, z = (writer.cast(argument, "float64") for argument in arguments)
        return writer.cast(writer.node("Add", [writer.node("Mul", [x, y]), z]), dtype)
    if function == "to_float16":
        return writer.cast(writer.cast(arguments[0], "float16"), dtype)
    if function == "fmod":
        return writer.node("Mod", arguments, fmod=1)
    if function == "prelu":
        value, slope = arguments
        if np.broadcast_shapes(*shapes) == shapes[0]:
            return writer.node("PRelu", [value, slope])
        negative = writer.node("Less", [value, writer.constant(0, dtype)])
        return writer.node("Where", [negative, writer.node("Mul", [value, slope]), value])
    # truth values are numbers in expressions, and booleans in ONNX
    if function in _COMPARISONS:
        return writer.cast(writer.node(_COMPARISONS[function], arguments), dtype)
    if function in _LOGIC:
        truths = [writer.cast(argument, bool) for argument in arguments]
        return writer.cast(writer.node(_LOGIC[function], truths), dtype)
    condition, chosen, other = arguments
    return writer.node("Where", [writer.cast(condition, bool), chosen, other])
