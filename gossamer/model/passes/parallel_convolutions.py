"""Merges convolutions of the same value into one if their results are added.

Networks such as RepVGG and MobileOne are trained with parallel convolutions, and are often exported
without merging them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.expression import Composer, Expression, ExpressionStep, apply, identity
from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import MOST_STEPS, feeds_sign, output_rows, readers


@dataclass(frozen=True)
class Branch:
    """A convolution without bias that computes an addend of a sum, or the total of several addends.

    A value that no convolution computes is a 1x1 convolution of itself, each channel by its factor.

    layers: the convolutions of the graph that compute the addends.
    source: name of the value that is convolved.
    weight: (M, C / groups, R, S) in float64.
    pads: top, left, bottom, right.
    """

    layers: tuple[Node, ...]
    source: str
    weight: np.ndarray
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def products(self) -> int:
        """The number of multiplications per pixel of the result; 0 if all weights are 0."""
        return self.weight.size if self.weight.any() else 0

    def times(self, factor: np.ndarray) -> Branch:
        rows = np.broadcast_to(factor, (len(self.weight), 1, 1))[..., None]
        return replace(self, weight=self.weight * rows)

    def plus(self, other: Branch) -> Branch | None:
        """Return the total of both branches as one branch with the window and groups of this one.

        Returns None if the window and the groups of the other branch do not lie within them.
        """
        (outputs, inputs, *sizes), (_, other_inputs, *taps) = self.weight.shape, other.weight.shape
        within, rest = divmod(other.groups, self.groups)
        if rest or (self.source, self.strides, inputs * self.groups) != (
                other.source, other.strides, other_inputs * other.groups):
            return None
        window = []
        for axis in range(2):
            step, every = self.dilations[axis], other.dilations[axis] if taps[axis] > 1 else 0
            before, after = (self.pads[side] - other.pads[side] for side in (axis, axis + 2))
            reach = every * (taps[axis] - 1)
            if min(before, after) < 0 or before % step or every % step or (
                    before + reach + after != step * (sizes[axis] - 1)):
                return None
            window.append(slice(before // step, (before + reach) // step + 1,
                                max(1, every // step)))
        weight = self.weight.copy()
        split = weight.reshape(self.groups, within, outputs // other.groups, within, other_inputs,
                               *sizes)
        part = other.weight.reshape(self.groups, within, outputs // other.groups, other_inputs,
                                    *taps)
        for index in range(within):
            split[:, index, :, index, :, window[0], window[1]] += part[:, index]
        return replace(self, weight=weight, layers=self.layers + other.layers)


@dataclass(frozen=True)
class Sum:
    """The sum of branches and of a constant: one number, or one per channel as (M, 1, 1)."""

    branches: tuple[Branch, ...]
    constant: np.ndarray

    def plus(self, other: Sum) -> Sum:
        return Sum(self.branches + other.branches, self.constant + other.constant)

    def times(self, factor: float | np.ndarray) -> Sum:
        return Sum(tuple(branch.times(np.asarray(factor)) for branch in self.branches),
                    self.constant * factor)


@np.errstate(all="ignore")
def merge_parallel_convolutions(graph: Graph, shapes: ShapesByBatch) -> None:
    """Merge convolutions of the same value, and the value itself, if the results are added.

    The results and the value may be scaled or shifted per channel before they are added. Each
    convolution must have constant weights, and its result must have no other readers. The windows
    and groups of all branches must lie within those of one of them.

    Sums on which a sign depends are not changed, because different rounding could flip the sign.
    Convolutions with integer weights, or with scaled signs as weights, are not merged, because they
    have exact kernels.
    """
    users, names = readers(graph), names_of(graph)
    replaced: dict[int, list[Node]] = {}
    for node, total in _sums(graph, shapes, users):
        merged = _merged(total.branches)
        branches = [branch for branch in merged if branch.layers]
        others = [branch for branch in merged if not branch.layers]
        arrays = [total.constant, *(branch.weight for branch in merged)]
        if len(merged) == len(total.branches) or not branches or (
                feeds_sign(node.outputs[0], users)) or (
                len(branches) + 2 * len(others) > MOST_STEPS) or not all(
                np.isfinite(array.astype(np.float32)).all() for array in arrays):
            continue
        nodes = [convolution(graph, names, branch, total.constant if branch is branches[0] else
                              np.zeros(())) for branch in branches]
        replaced |= {id(layer): [] for branch in branches for layer in branch.layers}
        if len(merged) > 1:
            nodes.append(_addition(graph, names, node, [each.outputs[0] for each in nodes], others))
        nodes[-1].outputs = node.outputs
        replaced[id(node)] = nodes
    graph.nodes = [new for node in graph.nodes for new in replaced.get(id(node), [node])]


def _merged(branches: Iterable[Branch]) -> list[Branch]:
    """Return the branches, each added to the first larger branch that it lies within."""
    merged: list[Branch] = []
    for branch in sorted(branches, key=lambda branch: branch.products, reverse=True):
        for index, larger in enumerate(merged):
            if (both := larger.plus(branch)) is not None:
                merged[index] = both
                break
        else:
            merged.append(branch)
    return merged


def convolution(graph: Graph, names: set[str], branch: Branch, bias: np.ndarray) -> Node:
    """Return the convolution that computes a branch and a bias."""
    layer = branch.layers[0]
    result, = layer.outputs
    inputs, epilogue = [branch.source, add_constant(
        graph, names, f"{result}.weight", branch.weight.astype(np.float32))], identity()
    if bias.any():
        bias = np.broadcast_to(bias, (len(branch.weight), 1, 1)).reshape(-1)
        inputs.append(add_constant(graph, names, f"{result}.bias", bias.astype(np.float32)))
        epilogue = apply("add")
    return replace(layer, inputs=inputs, attributes={
        "strides": branch.strides, "pads": branch.pads, "dilations": branch.dilations,
        "groups": branch.groups, "epilogue": epilogue})


def _addition(graph: Graph, names: set[str], node: Node, addends: Sequence[str],
              others: Iterable[Branch]) -> Node:
    """Return a node that replaces `node` and computes a sum.

    addends: names of values to add.
    others: further values to add, each channel times its weight.
    """
    composer = Composer()
    values = [composer.operand(name) for name in addends]
    for other in others:
        factor = other.weight[..., 0].astype(np.float32)
        value = composer.operand(other.source)
        if (factor == factor[0]).all():
            values.append(value if factor[0] == 1 else value * factor[0].item())
        else:
            values.append(value * composer.operand(
                add_constant(graph, names, f"{other.source}.factor", factor)))
    total = values[0]
    for value in values[1:]:
        total = total + value
    inputs, expression = composer.build(total)
    return replace(node, inputs=inputs, attributes={"expression": expression})


def _sums(graph: Graph, shapes: ShapesByBatch,
          users: dict[str, list[Node]]) -> list[tuple[Node, Sum]]:
    """Return the element-wise nodes that compute sums of images, with their sums.

    A sum is merged into its reader if no other node reads the sum, and if the reader is a sum of
    the same shape.
    """
    producers = {name: node for node in graph.nodes for name in node.outputs}
    sums: dict[str, tuple[Node, Sum]] = {}
    for node in graph.nodes:
        if node.op != "elementwise" or len(node.outputs) != 1:
            continue
        name, = node.outputs
        if shapes.rank(name) != 4:
            continue
        channels = shapes.shapes(name)[0][1]
        inner = {value for value in node.inputs if len(users[value]) == 1
                 and shapes.equal(value, name)}
        total = _evaluated(node.attributes["expression"], [
            sums[value][1] if value in inner and value in sums else
            _operand(graph, value, producers.get(value) if value in inner else None, channels)
            for value in node.inputs])
        if total is not None:
            for value in inner:
                sums.pop(value, None)
            sums[name] = node, total
    return list(sums.values())


def _operand(graph: Graph, name: str, maker: Node | None, channels: int) -> Sum:
    """Return an operand as a sum.

    maker: the node that makes the operand; None if other nodes read the operand, too.
    channels: number of channels of the result.
    """
    array = graph.constants.get(name)
    if array is not None and (1,) * (4 - array.ndim) + array.shape in (
            (1, 1, 1, 1), (1, channels, 1, 1)):
        return _constant(array.reshape(() if array.size == 1 else (channels, 1, 1)))
    return (maker and sum_computed_by(graph, maker)) or Sum((Branch(
        (), name, np.ones((channels, 1, 1, 1)), (1, 1), (0,) * 4, (1, 1), channels),), np.zeros(()))


def _constant(array: float | np.ndarray) -> Sum:
    return Sum((), np.asarray(array, np.float64))


def sum_computed_by(graph: Graph, layer: Node) -> Sum | None:
    """Return the result of a convolution as a sum.

    Returns None for other nodes, if the result is not a sum, or if the convolution must not be
    merged because it has integer weights or scaled signs as weights.
    """
    rows = output_rows(graph, layer) if layer.op == "conv2d" else None
    if rows is None or "auto_pad" in layer.attributes:
        return None
    if rows.any() and (rows == np.rint(rows)).all():
        return None
    if rows[0].size > 1 and are_scaled_signs(rows):
        return None
    if any(name not in graph.constants for name in layer.inputs[2:]):
        return None
    strides, pads, dilations = (tuple(layer.attributes[key])
                                for key in ("strides", "pads", "dilations"))
    own = Branch((layer,), layer.inputs[0], rows.astype(np.float64), strides, pads, dilations,
                  layer.attributes["groups"])
    return _evaluated(layer.attributes["epilogue"], [Sum((own,), np.zeros(())), *(
        _constant(graph.constants[name].reshape(-1, 1, 1)) for name in layer.inputs[2:])])


def _evaluated(expression: Expression, operands: Sequence[Sum]) -> Sum | None:
    """Return the first result of an expression of sums; None if a step's result is not a sum."""
    values = list(operands)
    for step in expression.steps:
        value = _applied(step, [values[index] for index in step.arguments])
        if value is None:
            return None
        values.append(value)
    return values[expression.outputs[0]]


def _applied(step: ExpressionStep, arguments: Sequence[Sum]) -> Sum | None:
    match step.function, arguments:
        case "constant", _:
            return _constant(step.constants[0])
        case "neg", (value,):
            return value.times(-1)
        case "add", (first, second):
            return first.plus(second)
        case "sub", (first, second):
            return first.plus(second.times(-1))
        case "mul", (first, second) if not second.branches:
            return first.times(second.constant)
        case "mul", (first, second) if not first.branches:
            return second.times(first.constant)
        case "div", (first, second) if not second.branches:
            return first.times(1 / second.constant)
    return None
