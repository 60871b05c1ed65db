"""Definitions of convolutions and matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gossamer.expression import Expression
from gossamer.facts import (
    PLUS_MINUS_ONE,
    REAL,
    TERNARY,
    ValueFacts,
    common,
    fits_multiples,
    grid,
    point,
    unit,
)
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.definition import (
    Images,
    InferenceState,
    OpDef,
    mixing_operands,
    never,
    not_evaluated,
)
from gossamer.model.opset.elementwise import expression_facts
from gossamer.model.opset.signs import is_never_zero
from gossamer.model.opset.windows import extent, image_shape, window

_MULTIPLIED = "multiplies the inputs of a batch with each other"


def _epilogue(state: InferenceState, node: Node, channels: int,
              shape: tuple[int, ...]) -> Expression:
    """Check the operands of the epilogue (the inputs after the weight), and return the epilogue."""
    expression = node.attributes["epilogue"]
    operands = node.inputs[2:]
    if len(operands) != expression.inputs - 1:
        raise state.error(node, f"has {len(operands)} epilogue operands, expected "
                                f"{expression.inputs - 1}, as many as its expression has")
    for name in operands:
        expected = (channels,) if name in state.known else shape
        if state.shapes[name] != expected:
            raise state.error(node, f"operand {name!r} has shape {list(state.shapes[name])}, "
                                    f"expected {list(expected)}")
    return expression


def _conv2d_shape(state: InferenceState, node: Node) -> None:
    n, c, _, _ = image_shape(state, node)
    m, per_group, r, s = state.shapes[node.inputs[1]]
    groups = node.attributes["groups"]
    if c != per_group * groups:
        raise state.error(node, f"input has {c} channels, expected {per_group * groups} (weight "
                                f"{[m, per_group, r, s]}, {groups} groups)")
    if m % groups:
        raise state.error(node, f"{m} filters do not divide into {groups} groups")
    pads, size = window(state, node, (r, s))
    shape = (n, m, *size)
    attributes = node.attributes
    state.emit(node, shape, strides=attributes["strides"], pads=pads,
               dilations=attributes["dilations"], groups=groups,
               epilogue=_epilogue(state, node, m, shape))


def _conv_transpose2d_shape(state: InferenceState, node: Node) -> None:
    n, c, *size = image_shape(state, node)
    rows, per_group, r, s = state.shapes[node.inputs[1]]
    if c != rows:
        raise state.error(node, f"input has {c} channels, expected {rows}")
    attributes = node.attributes
    strides, extra = attributes["strides"], attributes["output_padding"]
    covered = extent(node, (r, s))
    full_size = [strides[i] * (size[i] - 1) + extra[i] + covered[i] for i in range(2)]
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
    # some devices store the whole output before the pads are cut off
    state.check_size(node, (n, per_group * attributes["groups"], *full_size), "float32")
    result = [full_size[i] - pads[i] - pads[i + 2] for i in range(2)]
    if min(result) < 1:
        raise state.error(node, f"pads {pads} leave nothing of an output of "
                                f"{full_size[0]}x{full_size[1]}")
    state.emit(node, (n, per_group * attributes["groups"], *result), strides=strides,
               pads=tuple(pads), dilations=attributes["dilations"], output_padding=tuple(extra),
               groups=attributes["groups"])


def _gemm_shape(state: InferenceState, node: Node) -> None:
    a, b = (state.shapes[name] for name in node.inputs[:2])
    trans_a, trans_b = node.attributes["trans_a"], node.attributes["trans_b"]
    takes_vectors = node.inputs[1] in state.known and not trans_a
    if len(a) < 2 or len(b) != 2 or (len(a) > 2 and not takes_vectors):
        raise state.error(node, f"multiplies shapes {list(a)} and {list(b)}, expected matrices")
    *rows, inner = a[::-1] if trans_a else a
    depth, columns = b[::-1] if trans_b else b
    if inner != depth:
        raise state.error(node, f"input has {inner} values in each row, expected {depth} (weight "
                                f"{list(b)})")
    shape = (*rows, columns)
    state.emit(node, shape, trans_a=trans_a, trans_b=trans_b,
               epilogue=_epilogue(state, node, columns, shape))


def _matmul_shape(state: InferenceState, node: Node) -> None:
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


def _conv_mixes(images: Images, node: Node) -> str | None:
    x, weight, *operands = node.inputs
    if weight in images.axes:
        return "reads its weights from the batch"
    if images.axes.get(x) != 0:
        return "reads the batch along an axis other than the first"
    return mixing_operands(images, node, [name for name in operands if name in images.axes])


def _gemm_mixes(images: Images, node: Node) -> str | None:
    a, b, *operands = node.inputs
    last = len(images.static.shapes[a]) - 1
    inner = 0 if node.attributes["trans_a"] else last, 1 if node.attributes["trans_b"] else 0
    axes = images.axes.get(a), images.axes.get(b)
    if None not in axes or axes[0] == inner[0] or axes[1] == inner[1]:
        return _MULTIPLIED
    return mixing_operands(images, node, operands)


def _matmul_mixes(images: Images, node: Node) -> str | None:
    """Return how a product mixes the images of a batch; None if it does not mix them.

    Axes are counted from the last, as in broadcasting: -1 and -2 are the axes of the matrices.
    """
    shapes = [images.static.shapes[name] for name in node.inputs]
    axes = [images.axes[name] - len(shape) if name in images.axes else None
            for name, shape in zip(node.inputs, shapes, strict=True)]
    if axes[0] == -1 or axes[1] == (-2 if len(shapes[1]) > 1 else -1):
        return _MULTIPLIED
    if None not in axes:
        sizes = [[static.shapes[name][images.axes[name]] for name in node.inputs]
                 for static in (images.static, images.other)]
        same = axes[0] == axes[1] and all(first == second for first, second in sizes)
        return None if same and (axes[0] or 0) < -2 else _MULTIPLIED
    (axis,) = (axis for axis in axes if axis is not None)
    other = shapes[0 if axes[0] is None else 1]
    if axis < -2 and -axis <= len(other) and other[axis] != 1:
        return "treats each input of a batch by its position in the batch"
    return None


def _matmul(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.matmul(*arrays)]


def _conv2d_facts(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    weight = static.constants.get(node.inputs[1])
    if weight is None:
        return [REAL]
    x = facts[0].join(point(0.0)) if any(node.attributes["pads"]) else facts[0]
    return _epilogue_facts(static, node, x, weight, weighted_sums(x, facts[1], weight), facts)


def _epilogue_facts(static: StaticGraph, node: Node, x: ValueFacts, rows: np.ndarray,
                    sums: ValueFacts, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """Return the facts of an epilogue's result.

    The result is plus or minus 1 if the epilogue ends in the sign of a number that is never 0.

    x: facts of the values that are multiplied by the rows of the weights.
    sums: facts of the sums of products.
    facts: facts of the node's inputs.
    """
    expression = node.attributes["epilogue"]
    (result,) = expression_facts(expression, [sums, *facts[2:]])
    operands = [static.constants.get(name) for name in node.inputs[2:]]
    if result == TERNARY and is_never_zero(expression, x, rows, operands, exact=sums != REAL):
        return [PLUS_MINUS_ONE]
    return [result]


def _conv_transpose2d_facts(static: StaticGraph, node: Node,
                            facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """Return the facts of a transposed convolution.

    Each element of the output is the sum of only some products of its channel. The facts are
    derived for the sum of all products of a channel, with inputs that may also be 0: an input of 0
    stands for an absent product.
    """
    weight = static.constants.get(node.inputs[1])
    if weight is None:
        return [REAL]
    groups, (channels, per_group, *kernel) = node.attributes["groups"], weight.shape
    grouped = weight.reshape(groups, channels // groups, per_group, *kernel).swapaxes(1, 2)
    rows = grouped.reshape(groups * per_group, channels // groups, *kernel)
    sums = weighted_sums(facts[0].join(point(0.0)), facts[1], rows)
    return [sums.add(facts[2]) if len(facts) > 2 else sums]


def _gemm_facts(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    a, b = (static.constants.get(name) for name in node.inputs[:2])
    if b is not None:
        rows = b if node.attributes["trans_b"] else b.T
        sums = weighted_sums(facts[0], facts[1], rows)
        return _epilogue_facts(static, node, facts[0], rows, sums, facts)
    if a is not None:
        sums = weighted_sums(facts[1], facts[0], a.T if node.attributes["trans_a"] else a)
    else:
        depth = static.shapes[node.inputs[0]][0 if node.attributes["trans_a"] else 1]
        sums = facts[0].mul(facts[1]).sum_of(depth)
    return expression_facts(node.attributes["epilogue"], [sums, *facts[2:]])


def _matmul_facts(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    a, b = (static.constants.get(name) for name in node.inputs)
    if b is not None:
        rows = np.moveaxis(b, -2, -1) if b.ndim > 1 else b
        return [weighted_sums(facts[0], facts[1], _rows(rows))]
    if a is not None:
        return [weighted_sums(facts[1], facts[0], _rows(a))]
    return [facts[0].mul(facts[1]).sum_of(static.shapes[node.inputs[0]][-1])]


def _rows(array: np.ndarray) -> np.ndarray:
    """Return the vectors along the last axis as rows of a matrix."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def weighted_sums(values: ValueFacts, known: ValueFacts, weights: np.ndarray) -> ValueFacts:
    """Return facts that hold for the sums over k of weights[m, k] * x[k], for all m.

    The facts are REAL if a product or a partial sum may be rounded.

    values: facts of each x[k].
    known: facts of the weights.
    weights: an array with m along its first dimension and k along all other dimensions together.
    """
    if not weights.size:
        return point(0.0)
    weights = weights.reshape(len(weights), -1)
    if values.count is None or known.count is None or not np.isfinite(weights).all():
        return REAL
    low, high, step = map(Fraction, (values.low, values.high, values.step))
    # every value is an integer times value_unit, and every weight an integer times weight_unit
    value_unit, weight_unit = common(low, step), common(Fraction(known.low), Fraction(known.step))
    if not value_unit or not weight_unit:
        return point(0.0)
    if max(-known.low, known.high) > weight_unit * (1 << 24):
        return REAL
    whole = np.rint(weights.astype(np.float64) / float(weight_unit)).astype(np.int64)
    scale = value_unit * weight_unit
    largest = int(np.abs(whole).sum(axis=1).max()) * max(abs(low), abs(high)) / value_unit
    if not fits_multiples(unit(scale), largest * scale):
        return REAL
    positive, negative = np.maximum(whole, 0).sum(axis=1), np.minimum(whole, 0).sum(axis=1)
    first, last = int(low / value_unit), int(high / value_unit)
    lowest, highest = (positive * a + negative * b for a, b in ((first, last), (last, first)))
    steps = np.gcd.reduce(np.concatenate([
        lowest - lowest[0], whole.ravel() * int(step / value_unit)]))
    return grid(int(lowest.min()) * scale, int(highest.max()) * scale, int(steps) * scale)


_WINDOW = "strides (2), pads (top, left, bottom, right), dilations (2), "
_AUTO_PAD = 'before resolve() also auto_pad, "SAME_UPPER" or "SAME_LOWER", in place of pads'
_EPILOGUE = ("epilogue: an Expression with the result as input 0 and the epilogue operands as "
             "further inputs (each operand is a constant with one value per channel, or a tensor "
             "of the output's shape)")
DEFINITIONS = (
    OpDef("conv2d",
          text=f"x, weight (M, C/groups, R, S)[, epilogue operands]; {_WINDOW}groups, "
               f"{_EPILOGUE}; {_AUTO_PAD}",
          shape=_conv2d_shape, evaluate=not_evaluated, mixes=_conv_mixes, passes_values=False,
          discontinuous=never, facts=_conv2d_facts, float_only=True, attribute_inputs=()),
    OpDef("conv_transpose2d",
          text=f"x, weight (C, M/groups, R, S)[, bias]; {_WINDOW}output_padding (2), groups; "
               f"{_AUTO_PAD}, and output_shape",
          shape=_conv_transpose2d_shape, evaluate=not_evaluated, mixes=_conv_mixes,
          passes_values=False, discontinuous=never, facts=_conv_transpose2d_facts, float_only=True,
          attribute_inputs=()),
    # ONNX's Gemm also has the factors alpha and beta. If `b` is constant, the reader multiplies `b`
    # by alpha; if not, the epilogue multiplies the products by alpha. If ONNX's input `c` is
    # constant, the reader multiplies `c` by beta; if not, the node that adds `c` does.
    OpDef("gemm",
          text="a, b[, epilogue operands]: `a` and `b` are matrices, constant or not (if `b` is "
               "constant and trans_a is False, `a` may have more dimensions, and the sum is over "
               "its last dimension); "
               f"trans_a, trans_b, {_EPILOGUE}; channels lie along the last axis",
          shape=_gemm_shape, evaluate=not_evaluated, mixes=_gemm_mixes, passes_values=False,
          discontinuous=never, facts=_gemm_facts, float_only=True, attribute_inputs=()),
    OpDef("matmul",
          text="a, b, of any rank, which are multiplied as by numpy.matmul; no attributes",
          shape=_matmul_shape, evaluate=_matmul, mixes=_matmul_mixes, passes_values=False,
          discontinuous=never, facts=_matmul_facts, float_only=True, attribute_inputs=()),
)
