"""Merges convolutions of the same value into one if their results are added.

Networks such as RepVGG and MobileOne are trained with parallel convolutions, and are often exported
without merging them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.expression import Composer, Expression, ExpressionStep, apply, identity
from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import MOST_STEPS, feeds_sign, output_rows, readers


@dataclass(frozen=True)
class _Branch:
    """A convolution with a bias that computes one addend of a sum, or the total of several addends.

    addends: names of the addends.
    layer: the largest convolution of the graph that computes one of the addends; None if the only
    addend is the source itself.
    source: name of the value that is convolved.
    weight: (M, C / groups, R, S) in float64.
    bias: one number, or one per channel as (M, 1, 1), in float64.
    pads: top, left, bottom, right.
    """

    addends: tuple[str, ...]
    layer: Node | None
    source: str
    weight: np.ndarray
    bias: np.ndarray
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def products(self) -> int:
        """The number of multiplications per pixel of the result; 0 if all weights are 0."""
        return self.weight.size if self.weight.any() else 0

    @property
    def is_finite(self) -> bool:
        """Whether the weights and biases are finite numbers in float32."""
        return all(bool(np.isfinite(array.astype(np.float32)).all())
                   for array in (self.weight, self.bias))

    def growth(self, axis: int) -> int:
        """Return by how many pixels the result exceeds the source at stride 1.

        axis: 0 for the height, 1 for the width.
        """
        reach = self.dilations[axis] * (self.weight.shape[2 + axis] - 1)
        return self.pads[axis] + self.pads[axis + 2] - reach


# convolutions are not merged if the merged weights overflow, so NumPy's warnings are not needed
@np.errstate(all="ignore")
def merge_parallel_convolutions(graph: Graph, shapes: ShapesByBatch) -> None:
    """Merge addends of a sum into one convolution.

    Each addend must be a convolution of the same value, or this value itself, and the merged
    convolution must not need more multiplications. Nodes that nothing reads any longer stay in the
    graph.

    Weights are added in float64 and then rounded, like the weights of folded batch norms. Because
    of the rounding, a sum is not merged if a sign depends on it, and a convolution is not merged if
    its weights are integers or scaled signs.
    """
    users, names = readers(graph), names_of(graph)
    producers = {name: node for node in graph.nodes for name in node.outputs}
    replaced: dict[int, list[Node]] = {}
    for node, total in weighted_sums(graph, shapes, users):
        merged = [branch for branches in _by_source(graph, shapes, node, total, producers, users)
                  for branch in _merged(branches) if len(branch.addends) > 1]
        if not merged or feeds_sign(node.outputs[0], users):
            continue
        merged[0] = replace(merged[0], bias=merged[0].bias + total.constant)
        gone = {name for branch in merged for name in branch.addends}
        others = {name: factor for name, factor in total.factors.items() if name not in gone}
        if len(merged) + 2 * len(others) > MOST_STEPS or not all(
                branch.is_finite for branch in merged):
            continue
        layers = []
        for branch in merged:
            assert branch.layer is not None
            layers.append(_convolution(graph, names, branch, branch.layer))
            replaced[id(branch.layer)] = []
        if len(merged) + len(others) > 1:
            results = [layer.outputs[0] for layer in layers]
            layers.append(_addition(graph, names, node, results, others))
        layers[-1].outputs = node.outputs
        replaced[id(node)] = layers
    graph.nodes = [new for node in graph.nodes for new in replaced.get(id(node), [node])]


def _by_source(graph: Graph, shapes: ShapesByBatch, node: Node, total: WeightedSum,
               producers: dict[str, Node], users: dict[str, list[Node]]) -> list[list[_Branch]]:
    """Return addends of a sum as branches, in lists of branches that convolve the same value.

    If a convolution computes an addend, and only the sum reads the addend, the addend's branch is
    this convolution. For any other addend, the branch is a 1x1 convolution of the addend itself.
    Addends are left out if no other addend convolves the same value.

    node: the node that computes the sum.
    """
    result = node.outputs[0]
    channels = shapes.shapes(result)[0][1]
    by_source: dict[str, list[tuple[str, Node | None]]] = {}
    for name in total.factors:
        if shapes.equal(name, result):
            layer = producers.get(name)
            if layer is None or layer.op != "conv2d" or len(users[name]) > 1:
                layer = None
            by_source.setdefault(layer.inputs[0] if layer else name, []).append((name, layer))
    return [[branch for name, layer in addends for branch in [
                _branch(graph, source, name, layer, total.factors[name], channels)] if branch]
            for source, addends in by_source.items() if len(addends) > 1]


def _branch(graph: Graph, source: str, name: str, layer: Node | None, factor: np.ndarray,
            channels: int) -> _Branch | None:
    """Return an addend of a sum, times its factor, as a branch.

    Returns None if the addend's convolution cannot be merged with others.
    """
    if layer is None:
        return _Branch((name,), None, source, _filters(factor, channels), np.zeros(()), (1, 1),
                       (0,) * 4, (1, 1), channels)
    product = _product(graph, layer)
    if product is None:
        return None
    weight = graph.constants[layer.inputs[1]] * _filters(product.factors[name] * factor, channels)
    strides, pads, dilations = (tuple(layer.attributes[key])
                                for key in ("strides", "pads", "dilations"))
    return _Branch((name,), layer, source, weight, product.constant * factor, strides, pads,
                   dilations, layer.attributes["groups"])


def _filters(factor: np.ndarray, channels: int) -> np.ndarray:
    """Return a factor as the weights (C, 1, 1, 1) of a depthwise 1x1 convolution."""
    return np.broadcast_to(factor, (channels, 1, 1))[..., None]


def _product(graph: Graph, layer: Node) -> WeightedSum | None:
    """Return the result of a convolution in the form products * factor + bias.

    Returns None if the convolution's epilogue computes something else. Also returns None for
    weights that are integers or scaled signs, because special algorithms exist for them.
    """
    rows = output_rows(graph, layer)
    if rows is None or "auto_pad" in layer.attributes:
        return None
    if rows.any() and (rows == np.rint(rows)).all():
        return None
    if rows[0].size > 1 and are_scaled_signs(rows):
        return None
    biases = [graph.constants.get(name) for name in layer.inputs[2:]]
    known = [WeightedSum.of_constant(bias.reshape(-1, 1, 1)) for bias in biases if bias is not None]
    if len(known) < len(biases):
        return None
    return evaluated(layer.attributes["epilogue"],
                     [WeightedSum.of_value(layer.outputs[0]), *known])


def _merged(branches: Iterable[_Branch]) -> list[_Branch]:
    """Merge pairs of branches if the merged branch needs no more multiplications than the pair."""
    merged: list[_Branch] = []
    for branch in sorted(branches, key=lambda branch: branch.products, reverse=True):
        for index, larger in enumerate(merged):
            both = _together(larger, branch)
            if both is not None:
                merged[index] = both
                break
        else:
            merged.append(branch)
    return merged


def _together(larger: _Branch, smaller: _Branch) -> _Branch | None:
    """Return two branches of one value merged into one.

    Returns None if the branches have different strides or output sizes, or if the merged branch
    would need more multiplications than the two branches.
    """
    both = larger, smaller
    if larger.strides != smaller.strides or any(
            larger.growth(axis) != smaller.growth(axis) for axis in range(2)):
        return None
    pads = tuple(map(max, larger.pads, smaller.pads))
    dilations, window = [], []
    for axis in range(2):
        # the largest dilation at which one window covers the taps of both branches' windows
        steps = [branch.dilations[axis] for branch in both if branch.weight.shape[2 + axis] > 1]
        dilation = math.gcd(larger.pads[axis] - smaller.pads[axis], *steps) or 1
        reach = pads[axis] + pads[axis + 2] - larger.growth(axis)
        dilations.append(dilation)
        window.append(reach // dilation + 1)
    groups = math.gcd(larger.groups, smaller.groups)
    outputs, inputs = larger.weight.shape[0], larger.weight.shape[1] * larger.groups
    shape = outputs, inputs // groups, *window
    if math.prod(shape) > larger.products + smaller.products:
        return None
    weight = np.zeros(shape)
    for branch in both:
        _add_weights(weight, branch, groups, pads, dilations)
    return replace(larger, addends=larger.addends + smaller.addends, weight=weight,
                   layer=larger.layer or smaller.layer, bias=larger.bias + smaller.bias, pads=pads,
                   dilations=tuple(dilations), groups=groups)


def _add_weights(weight: np.ndarray, branch: _Branch, groups: int, pads: Sequence[int],
                 dilations: Sequence[int]) -> None:
    """Add a branch's weights to `weight`, the weights of a larger convolution.

    groups, pads, dilations: attributes of the larger convolution.
    """
    outputs, inputs, *size = branch.weight.shape
    window = []
    for axis in range(2):
        first = (pads[axis] - branch.pads[axis]) // dilations[axis]
        step = max(1, branch.dilations[axis] // dilations[axis])
        window.append(slice(first, first + step * (size[axis] - 1) + 1, step))
    # each group of the larger convolution contains `within` groups of the branch, which have
    # disjoint inputs and outputs
    within = branch.groups // groups
    split = weight.reshape(groups, within, outputs // branch.groups, within, inputs,
                           *weight.shape[2:])
    part = branch.weight.reshape(groups, within, outputs // branch.groups, inputs, *size)
    for index in range(within):
        split[:, index, :, index, :, window[0], window[1]] += part[:, index]


def _convolution(graph: Graph, names: set[str], branch: _Branch, layer: Node) -> Node:
    """Return the convolution that computes a branch and replaces the node `layer`."""
    result, = layer.outputs
    inputs, epilogue = [branch.source, add_constant(
        graph, names, f"{result}.weight", branch.weight.astype(np.float32))], identity()
    if branch.bias.any():
        bias = np.broadcast_to(branch.bias, (len(branch.weight), 1, 1)).reshape(-1)
        inputs.append(add_constant(graph, names, f"{result}.bias", bias.astype(np.float32)))
        epilogue = apply("add")
    return replace(layer, inputs=inputs, attributes={
        "strides": branch.strides, "pads": branch.pads, "dilations": branch.dilations,
        "groups": branch.groups, "epilogue": epilogue})


def _addition(graph: Graph, names: set[str], node: Node, addends: Sequence[str],
              others: dict[str, np.ndarray]) -> Node:
    """Return a node that replaces `node` and computes a sum.

    addends: names of values to add.
    others: factors of further values to add, by name.
    """
    composer = Composer()
    values = [composer.operand(name) for name in addends]
    for name, factor in others.items():
        value = composer.operand(name)
        if (factor != 1).any():
            array = factor.astype(np.float32)
            scale = composer.constant(array.item()) if array.size == 1 else composer.operand(
                add_constant(graph, names, f"{name}.factor", array))
            value = value * scale
        values.append(value)
    total = values[0]
    for value in values[1:]:
        total = total + value
    inputs, expression = composer.build(total)
    return replace(node, inputs=inputs, attributes={"expression": expression})


@dataclass(frozen=True)
class WeightedSum:
    """The sum of values times factors, plus a constant.

    The factors and the constant are float64; each is one number, or an array (C, 1, 1) with one
    number per channel.

    factors: the factor of each value, by name.
    """

    factors: dict[str, np.ndarray]
    constant: np.ndarray

    @classmethod
    def of_value(cls, name: str) -> WeightedSum:
        return cls({name: np.ones(())}, np.zeros(()))

    @classmethod
    def of_constant(cls, constant: float | np.ndarray) -> WeightedSum:
        return cls({}, np.asarray(constant, np.float64))

    def plus(self, other: WeightedSum) -> WeightedSum:
        factors = dict(self.factors)
        for name, factor in other.factors.items():
            factors[name] = factors[name] + factor if name in factors else factor
        return WeightedSum(factors, self.constant + other.constant)

    def times(self, scale: float | np.ndarray) -> WeightedSum:
        return WeightedSum({name: factor * scale for name, factor in self.factors.items()},
                           self.constant * scale)


def weighted_sums(graph: Graph, shapes: ShapesByBatch,
                  users: dict[str, list[Node]]) -> list[tuple[Node, WeightedSum]]:
    """Return the element-wise nodes that compute weighted sums of images, with their sums.

    A sum is merged into its reader if no other node reads the sum, and if the reader is a sum of
    the same shape.
    """
    sums: dict[str, tuple[Node, WeightedSum]] = {}
    for node in graph.nodes:
        if node.op != "elementwise" or len(node.outputs) != 1:
            continue
        name, = node.outputs
        if shapes.rank(name) != 4:
            continue
        channels = shapes.shapes(name)[0][1]
        inner = {value for value in node.inputs if value in sums and len(users[value]) == 1
                 and shapes.equal(value, name)}
        total = evaluated(node.attributes["expression"], [
            sums[value][1] if value in inner else _operand(graph, value, channels)
            for value in node.inputs])
        if total is not None:
            sums[name] = node, total
            for value in inner:
                del sums[value]
    return list(sums.values())


def _operand(graph: Graph, name: str, channels: int) -> WeightedSum:
    """Return an operand as a weighted sum.

    A constant of one number, or of one number per channel, has no factors. Any other value has the
    factor 1.
    """
    array = graph.constants.get(name)
    if array is None or (1,) * (4 - array.ndim) + array.shape not in (
            (1, 1, 1, 1), (1, channels, 1, 1)):
        return WeightedSum.of_value(name)
    return WeightedSum.of_constant(array.reshape(() if array.size == 1 else (channels, 1, 1)))


def evaluated(expression: Expression, operands: Sequence[WeightedSum]) -> WeightedSum | None:
    """Return the first result of an expression of weighted sums, as a weighted sum.

    Returns None if the result of a step is not a weighted sum.
    """
    values = list(operands)
    for step in expression.steps:
        value = _applied(step, [values[index] for index in step.arguments])
        if value is None:
            return None
        values.append(value)
    return values[expression.outputs[0]]


def _applied(step: ExpressionStep, arguments: Sequence[WeightedSum]) -> WeightedSum | None:
    match step.function, arguments:
        case "constant", _:
            return WeightedSum.of_constant(step.constants[0])
        case "neg", (value,):
            return value.times(-1)
        case "add", (first, second):
            return first.plus(second)
        case "sub", (first, second):
            return first.plus(second.times(-1))
        case "mul", (first, second) if not second.factors:
            return first.times(second.constant)
        case "mul", (first, second) if not first.factors:
            return second.times(first.constant)
        case "div", (first, second) if not second.factors:
            return first.times(1 / second.constant)
    return None
