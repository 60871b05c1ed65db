"""Shape rules of the ops that compute: output shapes from input shapes, and concrete attributes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np

from gossamer.expression import Expression, ExpressionStep
from gossamer.model.graph import ATTRIBUTE_INPUTS, Node, inputs_to_attributes
from gossamer.model.infer.layout_rules import LAYOUT_RULES
from gossamer.model.infer.state import MALFORMED, InferenceState

Rule = Callable[[InferenceState, Node], None]


def visit(state: InferenceState, node: Node) -> None:
    """Applies the rule of a node's op, which emits into the state. Raises ModelError."""
    node = copy.copy(node)
    node.attributes = dict(node.attributes)
    node.inputs = [state.aliases.get(name, name) for name in node.inputs]
    if node.op not in _RULES:
        raise state.error(node, f"op {node.op!r} is unknown")
    for name in node.inputs:
        if name and name not in state.shapes:
            raise state.error(node, f"reads {name!r}, which nothing provides")
    if node.op in ATTRIBUTE_INPUTS and not inputs_to_attributes(node, state.known):
        unknown = next(n for n in node.inputs[1:] if n and n not in state.known)
        raise state.error(node, f"depends for its shape on {unknown!r}, which the data decides; "
                                "gossamer needs shapes that follow from the input's shape")
    if node.op in _FLOAT_ONLY and not all(name in state.known for name in node.inputs):
        for name in node.inputs:
            if name and state.dtypes[name] != "float32":
                raise state.unsupported(node, f"computes with {state.dtypes[name]} ({name!r}); "
                                              "gossamer computes it in float32")
    try:
        with np.errstate(all="ignore"):
            _RULES[node.op](state, node)
    except MALFORMED as error:
        raise state.error(node, f"is malformed: {error!r}") from error


def _image(state: InferenceState, node: Node) -> tuple[int, int, int, int]:
    """Returns the batch, channels, height and width of the first input."""
    shape = state.shapes[node.inputs[0]]
    if len(shape) != 4:
        raise state.error(node, f"input has shape {list(shape)}, expected 4 dimensions (batch, "
                                "channels, height, width)")
    return shape  # type: ignore[return-value]


def _pads(node: Node, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, ...]:
    """Returns concrete pads (top, left, bottom, right), with auto_pad worked out."""
    auto_pad = node.attributes.get("auto_pad")
    if auto_pad is None:
        return tuple(node.attributes["pads"])
    low, high = [], []
    for axis in range(2):
        stride, extent = node.attributes["strides"][axis], _extent(node, kernel)[axis]
        total = max((math.ceil(size[axis] / stride) - 1) * stride + extent - size[axis], 0)
        small, large = total // 2, total - total // 2
        low.append(small if auto_pad == "SAME_UPPER" else large)
        high.append(large if auto_pad == "SAME_UPPER" else small)
    return (*low, *high)


def _extent(node: Node, kernel: tuple[int, int]) -> tuple[int, int]:
    """Returns the height and width that a dilated kernel covers."""
    dilations = node.attributes["dilations"]
    return (dilations[0] * (kernel[0] - 1) + 1, dilations[1] * (kernel[1] - 1) + 1)


def _window(state: InferenceState, node: Node, kernel: tuple[int, int],
            ceil: bool = False) -> tuple[tuple[int, ...], list[int]]:
    """Returns the pads and the output size of a convolution or pool."""
    size = _image(state, node)[2:]
    pads = _pads(node, size, kernel)
    result = []
    for axis in range(2):
        stride, extent = node.attributes["strides"][axis], _extent(node, kernel)[axis]
        room = size[axis] + pads[axis] + pads[axis + 2] - extent
        if room < 0:
            raise state.error(node, f"kernel {list(kernel)} (dilations "
                                    f"{list(node.attributes['dilations'])}, pads {list(pads)}) "
                                    f"does not fit an input of {size[0]}x{size[1]}; give larger "
                                    "images")
        steps = -(-room // stride) if ceil else room // stride
        if ceil and steps * stride >= size[axis] + pads[axis]:
            steps -= 1  # the last window would start beyond the input
        result.append(steps + 1)
    return pads, result


def _epilogue(state: InferenceState, node: Node, channels: int,
              shape: tuple[int, ...]) -> Expression:
    """Returns the epilogue, and checks its operands, which are the inputs after the weight."""
    expression = node.attributes["epilogue"]
    operands = node.inputs[2:]
    if len(operands) != expression.inputs - 1:
        raise state.error(node, f"has {len(operands)} epilogue operands, its expression takes "
                                f"{expression.inputs - 1}")
    for name in operands:
        expected = (channels,) if name in state.known else shape
        if state.shapes[name] != expected:
            raise state.error(node, f"operand {name!r} has shape {list(state.shapes[name])}, "
                                    f"expected {list(expected)}")
    return expression


def _conv2d(state: InferenceState, node: Node) -> None:
    n, c, _, _ = _image(state, node)
    m, per_group, r, s = state.shapes[node.inputs[1]]
    groups = node.attributes["groups"]
    if c != per_group * groups:
        raise state.error(node, f"input has {c} channels, expected {per_group * groups} (weight "
                                f"{[m, per_group, r, s]}, {groups} groups)")
    pads, size = _window(state, node, (r, s))
    shape = (n, m, *size)
    attributes = node.attributes
    state.emit(node, shape, strides=attributes["strides"], pads=pads,
               dilations=attributes["dilations"], groups=groups,
               epilogue=_epilogue(state, node, m, shape))


def _conv_transpose2d(state: InferenceState, node: Node) -> None:
    n, c, *size = _image(state, node)
    rows, per_group, r, s = state.shapes[node.inputs[1]]
    if c != rows:
        raise state.error(node, f"input has {c} channels, expected {rows}")
    attributes = node.attributes
    strides, extra = attributes["strides"], attributes["output_padding"]
    extent = _extent(node, (r, s))
    full_size = [strides[i] * (size[i] - 1) + extra[i] + extent[i] for i in range(2)]
    pads = list(attributes["pads"])
    auto_pad, output_size = attributes.get("auto_pad"), attributes.get("output_shape")
    if auto_pad and not output_size:
        output_size = [size[i] * strides[i] for i in range(2)]
    if output_size:
        for i in range(2):
            total = max(full_size[i] - output_size[i], 0)
            small, large = total // 2, total - total // 2
            pads[i], pads[i + 2] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
            extra = (*extra[:i], extra[i] + max(output_size[i] - full_size[i], 0), *extra[i + 1:])
            full_size[i] = max(full_size[i], output_size[i])
    result = [full_size[i] - pads[i] - pads[i + 2] for i in range(2)]
    if min(result) < 1:
        raise state.error(node, f"pads {pads} leave nothing of an output of "
                                f"{full_size[0]}x{full_size[1]}")
    state.emit(node, (n, per_group * attributes["groups"], *result), strides=strides,
               pads=tuple(pads), dilations=attributes["dilations"], output_padding=tuple(extra),
               groups=attributes["groups"])


def _gemm(state: InferenceState, node: Node) -> None:
    a, b = (state.shapes[name] for name in node.inputs[:2])
    if len(a) != 2 or len(b) != 2:
        raise state.error(node, f"multiplies shapes {list(a)} and {list(b)}, expected matrices")
    trans_a, trans_b = node.attributes["trans_a"], node.attributes["trans_b"]
    rows, inner = a[::-1] if trans_a else a
    depth, columns = b[::-1] if trans_b else b
    if inner != depth:
        raise state.error(node, f"input gives {inner} values a row, expected {depth} (weight "
                                f"{list(b)})")
    state.emit(node, (rows, columns), trans_a=trans_a, trans_b=trans_b,
               epilogue=_epilogue(state, node, columns, (rows, columns)))


def _matmul(state: InferenceState, node: Node) -> None:
    a, b = (state.shapes[name] for name in node.inputs)
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    try:
        if not a or not b or left[-1] != right[-2]:
            raise ValueError
        shape = list(np.broadcast_shapes(left[:-2], right[:-2]))
    except ValueError:
        raise state.error(node, f"cannot multiply shapes {list(a)} and {list(b)}") from None
    shape += [left[-2]] * (len(a) > 1) + [right[-1]] * (len(b) > 1)
    state.emit(node, shape)


def batch_norm_constants(
    arrays: list[np.ndarray], epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean, scale and shift in float64, with which batch norm is
    (x - mean) * scale + shift.

    arrays: gamma, beta, mean and variance.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        gamma, beta, mean, variance = (a.astype(np.float64) for a in arrays)
        return mean, gamma / np.sqrt(variance + epsilon), beta


def _batch_norm(state: InferenceState, node: Node) -> None:
    """Emits (x - mean) * scale + shift in this order: in x * scale + (shift - mean * scale) the
    terms would cancel in float32."""
    shape = state.shapes[node.inputs[0]]
    arrays = [state.known[name] for name in node.inputs[1:]]
    if len(shape) < 2 or shape[1] != arrays[0].size:
        raise state.error(node, f"input has shape {list(shape)}, expected {arrays[0].size} "
                                "channels")
    operands = [node.inputs[0]]
    values = batch_norm_constants(arrays, node.attributes["epsilon"])
    for role, value in zip(("mean", "scale", "shift"), values, strict=True):
        array = value.astype(np.float32).reshape(-1, *[1] * (len(shape) - 2))
        operands.append(state.know(state.new_name(node, role), array))
    state.emit(node, shape, op="elementwise", inputs=operands, expression=AFFINE)


AFFINE = Expression(4, (ExpressionStep("sub", (0, 1)), ExpressionStep("mul", (4, 2)),
                        ExpressionStep("add", (5, 3))))
"""The expression (x - mean) * scale + shift, with these inputs in the order x, mean, scale,
shift."""


def _elementwise(state: InferenceState, node: Node) -> None:
    """Casts operands of several dtypes to the one that holds them all; truth values among numbers,
    and conditions of `where`, are cast to the dtype of the numbers."""
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
    inputs = list(node.inputs)
    for index, name in enumerate(inputs):
        if not dtypes or state.dtypes[name] == target:
            continue
        cast = state.new_name(node, f"operand{index}")
        inputs[index] = state.cast(node, name, [cast], target)
    state.emit(node, shape, inputs=inputs, dtype=target, expression=node.attributes["expression"])


def _pool(state: InferenceState, node: Node) -> None:
    n, c, _, _ = _image(state, node)
    attributes = dict(node.attributes)
    attributes.pop("auto_pad", None)
    attributes["pads"], size = _window(state, node, attributes["kernel"], attributes["ceil_mode"])
    state.emit(node, (n, c, *size), **attributes)


def _reduce(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    axes = node.attributes["axes"]
    if axes == "spatial":
        axes = range(2, len(shape))
    elif axes is None:
        axes = range(len(shape))
    axes = tuple(sorted(state.axis(node, axis, len(shape)) for axis in axes))
    keepdims = node.attributes["keepdims"]
    result = [1 if axis in axes else size for axis, size in enumerate(shape)
              if keepdims or axis not in axes]
    state.emit(node, result, kind=node.attributes["kind"], axes=axes, keepdims=keepdims)


def _softmax(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    axis = state.axis(node, node.attributes["axis"], len(shape))
    log = node.attributes["log"]
    if node.attributes.get("flatten") and math.prod(shape[axis + 1:]) != 1:
        matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        flat = state.reshape(node, matrix, node.inputs[0], [state.new_name(node, "flat")])
        result = state.emit(node, matrix, inputs=[flat],
                            outputs=[state.new_name(node, "softmax")], axis=1, log=log)
        state.reshape(node, shape, result, node.outputs)
    else:
        state.emit(node, shape, axis=axis, log=log)


_FLOAT_ONLY = {"conv2d", "conv_transpose2d", "gemm", "matmul", "batch_norm", "pool", "reduce",
               "resize", "softmax"}

_RULES: dict[str, Rule] = {
    "conv2d": _conv2d, "conv_transpose2d": _conv_transpose2d, "gemm": _gemm, "matmul": _matmul,
    "batch_norm": _batch_norm, "elementwise": _elementwise, "pool": _pool, "reduce": _reduce,
    "softmax": _softmax, **LAYOUT_RULES,
}
