"""Translate the problems of a part to ONNX nodes.

The table OPERATORS has one function for each op. Each function takes the writer, the problem, the
ONNX names of the problem's inputs, and a mapping from the names of the problem's constants to their
ONNX names. The function returns the ONNX names of the outputs, and raises UnsupportedError if ONNX
Runtime has no operators that give gossamer's results.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gossamer import resampling
from gossamer.errors import UnsupportedError
from gossamer.expression import Expression
from gossamer.onnx_model import ModelWriter
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import ReshapeProblem, without_bias
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import ResizeProblem, nearest
from gossamer.ops.softmax.problem import SoftmaxProblem

Names = Mapping[str, str]

_PADDED = frozenset({"float32", "int32", "int64", "int8", "uint8", "bool"})
"""The dtypes for which ONNX Runtime supports Pad."""
_COORDINATES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
"""The coordinate modes of Resize in the opset of the generated models."""


def _conv2d(writer: ModelWriter, problem: Conv2dProblem, inputs: Sequence[str],
            weights: Names) -> list[str]:
    operands = [inputs[0], weights["weight"]]
    bias, rest = without_bias(problem.epilogue)
    if bias is not None:
        operands.append(weights[f"operand{bias}"])
    result = writer.node(
        "Conv", operands, kernel_shape=problem.kernel, strides=problem.stride, pads=problem.pads,
        dilations=problem.dilation, group=problem.groups)
    return _epilogue(writer, problem, rest.expression, result, inputs, weights, spatial=2)


def _gemm(writer: ModelWriter, problem: GemmProblem, inputs: Sequence[str],
          weights: Names) -> list[str]:
    operands = [inputs[0], weights["weight"]]
    bias, rest = without_bias(problem.epilogue)
    if bias is not None:
        operands.append(weights[f"operand{bias}"])
    result = writer.node("Gemm", operands, transB=1)
    return _epilogue(writer, problem, rest.expression, result, inputs, weights, spatial=0)


def _epilogue(writer: ModelWriter, problem: Conv2dProblem | GemmProblem, expression: Expression,
              result: str, inputs: Sequence[str], weights: Names, *, spatial: int) -> list[str]:
    """Add the nodes of an epilogue, and return the names of its outputs.

    expression: the steps of the epilogue that are not part of the Conv or Gemm node.
    result: ONNX name of the product.
    spatial: number of dimensions after the channels.
    """
    (output,) = problem.outputs[:1]
    tensors = iter(inputs[1:])
    read = {argument for step in expression.steps for argument in step.arguments}
    values, shapes = [result], [output.shape]
    constants = frozenset(index + 1 for index, kind in enumerate(problem.epilogue.operands)
                          if kind != "tensor")
    for index, kind in enumerate(problem.epilogue.operands):
        if kind == "tensor":
            values.append(next(tensors))
            shapes.append(output.shape)
            continue
        name = weights[f"operand{index}"]
        shapes.append((output.shape[1], *(1,) * spatial))
        values.append(writer.reshaped(name, shapes[-1]) if spatial and index + 1 in read else name)
    return write_expression(writer, expression, values, shapes, "float32", output.shape,
                            constants)


def _elementwise(writer: ModelWriter, problem: ElementwiseProblem, inputs: Sequence[str],
                 weights: Names) -> list[str]:
    values = problem.arranged(weights, inputs)
    dtypes = problem.arranged(
        {f"operand{index}": problem.operands[index].dtype for index in problem.constants},
        (str(spec.stored_dtype) for spec in problem.inputs))
    arithmetic = problem.arithmetic
    if problem.expression.is_identity and len(values) == 1:
        # conversions do not go through float32, which does not represent all 64-bit integers
        arithmetic = dtypes[0]
    values = [value if dtype == arithmetic else writer.cast(value, arithmetic)
              for value, dtype in zip(values, dtypes, strict=True)]
    results: list[str] = []
    for value, dtype in zip(write_expression(
            writer, problem.expression, values, [spec.shape for spec in problem.operands],
            arithmetic, problem.shape, frozenset(problem.constants)), problem.dtypes, strict=True):
        if dtype != arithmetic:
            value = writer.cast(value, dtype)
        results.append(writer.node("Identity", [value]) if value in (*inputs, *results) else value)
    return results


def _pool(writer: ModelWriter, problem: PoolProblem, inputs: Sequence[str],
          weights: Names) -> list[str]:
    window: dict[str, Any] = {"kernel_shape": problem.kernel, "strides": problem.stride}
    pads = list(problem.pads)
    if problem.kind == "average":
        if problem.dilation != (1, 1):
            raise UnsupportedError("a dilated average has no ONNX equivalent")
        _check_pads(problem, pads)
        return [writer.node("AveragePool", inputs, **window, pads=pads,
                            ceil_mode=int(problem.ceil_mode),
                            count_include_pad=int(problem.count_include_pad))]
    # A maximum ignores padding. With ceil_mode, the last window may reach beyond the problem's
    # pads. Instead of ceil_mode, the node has larger pads, which cover the last window.
    for axis, size in enumerate((problem.out_height, problem.out_width)):
        span = (problem.kernel[axis] - 1) * problem.dilation[axis] + 1
        reach = (size - 1) * problem.stride[axis] + span
        pads[2 + axis] = max(pads[2 + axis],
                             reach - problem.input.shape[2 + axis] - pads[axis])
    _check_pads(problem, pads)
    return [writer.node("MaxPool", inputs, **window, pads=pads, dilations=problem.dilation)]


def _check_pads(problem: PoolProblem, pads: Sequence[int]) -> None:
    """Raise UnsupportedError for pads that are not smaller than the window.

    ONNX Runtime rejects such pads.
    """
    if any(pad >= size for pad, size in zip(pads, problem.kernel * 2, strict=True)):
        raise UnsupportedError(f"a pool with pads {tuple(pads)} that are not smaller than the "
                               "window has no ONNX equivalent")


def _reduce(writer: ModelWriter, problem: ReduceProblem, inputs: Sequence[str],
            weights: Names) -> list[str]:
    is_float = problem.input.dtype == "float32"
    if problem.kind == "mean" and not is_float:
        raise UnsupportedError("a mean of integers has no ONNX equivalent")
    shape = problem.input.shape
    if problem.kind == "mean" and problem.axes == (2, 3) and len(shape) == 4:
        result = writer.node("GlobalAveragePool", inputs)
        return [result if problem.keepdims else writer.reshaped(result, shape[:2])]
    if not problem.axes:
        return [writer.node("Identity", inputs)]
    if problem.kind == "sum":
        return [writer.node("ReduceSum", [*inputs, writer.integers(problem.axes)],
                            keepdims=int(problem.keepdims))]
    return [writer.node({"mean": "ReduceMean", "max": "ReduceMax"}[problem.kind], inputs,
                        axes=problem.axes, keepdims=int(problem.keepdims))]


def _softmax(writer: ModelWriter, problem: SoftmaxProblem, inputs: Sequence[str],
             weights: Names) -> list[str]:
    return [writer.node("LogSoftmax" if problem.log else "Softmax", inputs, axis=problem.axis)]


def _layer_norm(writer: ModelWriter, problem: LayerNormProblem, inputs: Sequence[str],
                weights: Names) -> list[str]:
    """Add one node for a layer norm over the last axes.

    ONNX has no operator for layer norms over other axes, and none for RMS norms. For these norms,
    one node per arithmetic step is added.
    """
    (x,), rank, axes = inputs, len(problem.input.shape), problem.axes
    if problem.centred and axes == tuple(range(axes[0], rank)):
        return [writer.node("LayerNormalization", [x, weights["scale"], weights["bias"]],
                            axis=axes[0], epsilon=problem.epsilon)]
    shape = [size if axis in axes else 1
             for axis, size in enumerate(problem.input.shape) if axis >= axes[0]]
    if problem.centred:
        x = writer.node("Sub", [x, writer.node("ReduceMean", [x], axes=axes)])
    variance = writer.node("ReduceMean", [writer.node("Mul", [x, x])], axes=axes)
    epsilon = writer.constant(problem.epsilon, "float32")
    deviation = writer.node("Sqrt", [writer.node("Add", [variance, epsilon])])
    value = writer.node("Div", [x, deviation])
    value = writer.node("Mul", [value, writer.reshaped(weights["scale"], shape)])
    return [writer.node("Add", [value, writer.reshaped(weights["bias"], shape)])]


def _concat(writer: ModelWriter, problem: ConcatProblem, inputs: Sequence[str],
            weights: Names) -> list[str]:
    return [writer.node("Concat", inputs, axis=problem.axis)]


def _copy(writer: ModelWriter, problem: CopyProblem, inputs: Sequence[str],
          weights: Names) -> list[str]:
    """Add the nodes of a copy: at most a slice, a transpose, a reshape and a broadcast."""
    if not problem.is_free_of_format:
        raise UnsupportedError("a change of format has no ONNX equivalent")
    walked = [dim for dim in problem.dims if dim is not None]
    if len(set(walked)) < len(walked):
        raise UnsupportedError("a diagonal has no ONNX equivalent")
    (value,), have = inputs, list(problem.input.shape)
    cut: list[tuple[int, int, int, int]] = []
    for dim, (size, start) in enumerate(zip(problem.input.shape, problem.starts, strict=True)):
        count, step = 1, 1
        if dim in walked:
            position = problem.dims.index(dim)
            count, step = problem.output.shape[position], problem.steps[position]
        if (start, count, step) != (0, size, 1):
            end = start + step * count
            # ONNX counts negative ends from the end of the axis: -size - 1 is before index 0
            cut.append((start, -size - 1 if end < 0 else end, dim, step))
        have[dim] = count
    if cut:
        starts, ends, axes, steps = (writer.integers(values) for values in zip(*cut, strict=True))
        value = writer.node("Slice", [value, starts, ends, axes, steps])
    order = [*walked, *(dim for dim in range(len(have)) if dim not in walked)]
    if order != list(range(len(have))):
        value = writer.node("Transpose", [value], perm=order)
    shape = [1 if dim is None else size
             for dim, size in zip(problem.dims, problem.output.shape, strict=True)]
    if shape != [have[dim] for dim in order]:
        value = writer.reshaped(value, shape)
    if tuple(shape) != problem.output.shape:
        value = writer.node("Expand", [value, writer.integers(problem.output.shape)])
    return [value if value not in inputs else writer.node("Identity", [value])]


def _pad(writer: ModelWriter, problem: PadProblem, inputs: Sequence[str],
         weights: Names) -> list[str]:
    if problem.input.dtype not in _PADDED:
        raise UnsupportedError(f"a padding of {problem.input.dtype} has no ONNX equivalent")
    operands = [*inputs, writer.integers(problem.pads)]
    if problem.mode == "constant":
        operands.append(writer.constant(problem.value, problem.input.dtype))
    return [writer.node("Pad", operands, mode=problem.mode)]


def _resize(writer: ModelWriter, problem: ResizeProblem, inputs: Sequence[str],
            weights: Names) -> list[str]:
    if problem.input.dtype != "float32":
        raise UnsupportedError(f"a resize of {problem.input.dtype} has no ONNX equivalent")
    x, shape, size = inputs[0], problem.input.shape, problem.size
    by_size = ["", "", writer.integers((*shape[:2], *size))]
    if problem.mode == "nearest":
        rows = [nearest(problem, axis) for axis in (0, 1)]
        for coordinates, nearest_mode in itertools.product(_COORDINATES, resampling.NEAREST_MODES):
            if all(np.array_equal(each, other) for each, length in zip(rows, shape[2:], strict=True)
                   for other in _onnxruntimes(length, len(each), coordinates, nearest_mode)):
                return [writer.node("Resize", [x, *by_size], mode="nearest",
                                    coordinate_transformation_mode=coordinates,
                                    nearest_mode=nearest_mode)]
        for axis in (0, 1) if size[0] < shape[2] else (1, 0):
            x = writer.node("Gather", [x, writer.integers(rows[axis].tolist())], axis=2 + axis)
        return [x]
    coordinates = problem.coordinates
    if problem.scales == tuple(out / length for out, length in zip(size, shape[2:], strict=True)):
        if coordinates == "half_pixel_symmetric":
            coordinates = "half_pixel"
    # ONNX Runtime rounds size * scale to float32; its output size may then differ from `size`
    elif coordinates not in _COORDINATES or size != tuple(
            np.floor(np.array(shape[2:], np.float32) * np.array(problem.scales, np.float32))):
        raise UnsupportedError(f"a resize by {problem.scales} has no ONNX equivalent")
    else:
        by_size = ["", writer.constant((1, 1, *problem.scales), "float32")]
    return [writer.node("Resize", [x, *by_size], mode="linear",
                        coordinate_transformation_mode=coordinates)]


def _onnxruntimes(size: int, length: int, coordinates: str,
                  nearest_mode: str) -> list[np.ndarray]:
    """Return the input positions that ONNX Runtime may use in a resize to the nearest pixel.

    ONNX Runtime computes the scale in float32, and versions of ONNX Runtime round ties differently.
    Returns one array for each rule that ONNX Runtime may use.
    """
    if nearest_mode in ("floor", "ceil"):
        scale = float(np.float32(length) / np.float32(size))
        return [resampling.nearest(size, length, scale, coordinates, nearest_mode)]
    return [resampling.nearest(size, length, length / size, coordinates, mode)
            for mode in ("round_prefer_floor", "round_prefer_ceil")]


def _gather(writer: ModelWriter, problem: GatherProblem, inputs: Sequence[str],
            weights: Names) -> list[str]:
    return [writer.node("Gather", problem.arranged(weights, inputs), axis=problem.axis)]


def _matmul(writer: ModelWriter, problem: MatmulProblem, inputs: Sequence[str],
            weights: Names) -> list[str]:
    if problem.a.dtype != "float32":
        raise UnsupportedError(f"a product of {problem.a.dtype} has no ONNX equivalent")
    operands = problem.arranged(weights, inputs)
    for index in problem.transposed:
        rank = len(problem.operands[index].shape)
        operands[index] = writer.node("Transpose", [operands[index]],
                                      perm=[*range(rank - 2), rank - 1, rank - 2])
    return [writer.node("MatMul", operands)]


def _conv_transpose2d(writer: ModelWriter, problem: ConvTranspose2dProblem, inputs: Sequence[str],
                      weights: Names) -> list[str]:
    operands = [*inputs, weights["weight"], *([weights["bias"]] if problem.bias else [])]
    return [writer.node("ConvTranspose", operands, kernel_shape=problem.kernel,
                        strides=problem.stride, pads=problem.pads, dilations=problem.dilation,
                        output_padding=problem.output_padding, group=problem.groups)]


def _reshape(writer: ModelWriter, problem: ReshapeProblem, inputs: Sequence[str],
             weights: Names) -> list[str]:
    return [writer.reshaped(inputs[0], problem.shape)]


_OF_INTEGERS = frozenset(("add", "sub", "mul", "min", "max", "neg", "abs", "where", "constant",
                          "less", "less_equal", "greater", "greater_equal", "equal", "and", "or",
                          "not"))
"""Functions for which ONNX Runtime and gossamer have the same results on integers."""

Shape = tuple[int, ...]


def write_expression(writer: ModelWriter, expression: Expression, values: Sequence[str],
                     shapes: Sequence[Shape], dtype: str, shape: Shape,
                     constants: frozenset[int] = frozenset()) -> list[str]:
    """Add the nodes of an expression, and return the names of its outputs.

    values, shapes: names and shapes of the expression's inputs.
    dtype: dtype of the inputs and of the arithmetic.
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
            raise UnsupportedError(f"{step.function} of {dtype} has no ONNX equivalent")
        arguments = [names[argument] for argument in step.arguments]
        if index in inside:
            names.append("")
        elif index in norms:
            names.append(_batch_norm(writer, [names[value] for value in norms[index]],
                                     known[expression.inputs + index][1]))
        elif step.function == "mul" and arguments[0] == arguments[1] and dtype == "float32":
            # ONNX Runtime recognises a layer norm only if its squares are Pow nodes
            names.append(writer.node("Pow", [arguments[0], writer.constant(2, dtype)]))
        else:
            names.append(writer.step(step.function, step.constants, arguments, dtype,
                                     [known[a] for a in step.arguments]))
    return [names[output] if known[output] == shape else
            writer.node("Expand", [names[output], writer.integers(shape)])
            for output in expression.outputs]


def _batch_norms(expression: Expression, shapes: Sequence[Shape],
                 constants: frozenset[int]) -> dict[int, tuple[int, ...]]:
    """Return the batch norms (x - mean) * scale + shift in an expression.

    The key of each batch norm is the index of its last step; the value holds the indices of x,
    mean, scale and shift among all values of the expression. Mean, scale and shift are constants
    with one number per channel (axis 1 of x).

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
                and all(_has_one_per_channel(shapes[value], shapes[x]) for value in operands)):
            norms[index] = (x, *operands)
    return norms


def _has_one_per_channel(shape: Shape, images: Shape) -> bool:
    """Return whether an array has one number per channel of the images to which it broadcasts."""
    rank = len(images)
    return 2 <= rank >= len(shape) and (1,) * (rank - len(shape)) + shape == (
        1, images[1], *(1,) * (rank - 2))


def _batch_norm(writer: ModelWriter, names: Sequence[str], channels: int) -> str:
    """Add a BatchNormalization node.

    ONNX Runtime computes this node in the layout that it uses for convolutions. For Sub, Mul and
    Add nodes, it would first convert the operands to another layout.
    """
    x, mean, scale, shift = (names[0], *(writer.reshaped(name, [channels]) for name in names[1:]))
    variance = writer.constant(np.ones(channels), "float32")
    return writer.node("BatchNormalization", [x, scale, shift, mean, variance], epsilon=0.0)


OPERATORS: dict[str, Callable[[ModelWriter, Any, Sequence[str], Names], list[str]]] = {
    "concat": _concat,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "copy": _copy,
    "elementwise": _elementwise,
    "gather": _gather,
    "gemm": _gemm,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
    "pad": _pad,
    "pool": _pool,
    "reduce": _reduce,
    "reshape": _reshape,
    "resize": _resize,
    "softmax": _softmax,
}
