"""Removes transposes of channels-last images and of operands of products.

Layers of channels-last images between transposes become layers of channels-first images. In memory
the channels may still be last, because a plan chooses the memory layout of each value. Arithmetic
between a transpose and a matrix product, such as the scale of the transposed keys in attention,
moves before the transpose, so that the product can read the untransposed operand itself. Factors of
products move to their operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gossamer.expression import apply, identity
from gossamer.model.graph import Graph, Node, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch, live_nodes
from gossamer.model.opset.registry import inputs_to_attributes
from gossamer.model.opset.shapes import swaps_matrices
from gossamer.model.passes.fusion import readers

_LAST = (0, 2, 3, 1)
"""The permutation that moves the channels of an image to its last dimension."""


def move_channels_first(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Rewrite layers of channels-last images, if fewer transposes remain afterwards.

    Returns whether the graph was changed.
    """
    rewriting = _Rewriting(graph, shapes)
    for node in graph.nodes:
        rewriting.add(node)
    outputs = [info.name for info in graph.outputs]
    nodes = live_nodes(rewriting.nodes, outputs)
    if _transpositions(nodes) >= _transpositions(live_nodes(graph.nodes, outputs)):
        return False
    graph.nodes = nodes
    graph.constants.update(rewriting.constants)
    return True


def _transpositions(nodes: list[Node]) -> int:
    return sum(node.op == "transpose" for node in nodes)


class _Rewriting:
    """The nodes of a graph, with layers of channels-last images rewritten.

    The rewritten layers compute channels-first images. A transpose after each rewritten layer makes
    the channels-last value. If no node reads that value, the caller has to remove the transpose.

    nodes: the nodes in order.
    constants: new constants by name.
    """

    def __init__(self, graph: Graph, shapes: ShapesByBatch) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self._known = graph.constants
        self._shapes = shapes
        self._names = names_of(graph)
        # the channels-first image of each channels-last value
        self._images: dict[str, str] = {}

    def add(self, node: Node) -> None:
        """Add a node, or its replacement."""
        node = replace(node, inputs=list(node.inputs), outputs=list(node.outputs),
                       attributes=dict(node.attributes))
        if node.op == "transpose":
            self._add_transposition(node)
            return
        convert = _CONVERTERS.get(node.op)
        if convert is None or not self._images.keys() & set(node.inputs):
            self.nodes.append(node)
            return
        original = replace(node, inputs=list(node.inputs), attributes=dict(node.attributes))
        inputs_to_attributes(node, self._known)
        if not convert(self, node):
            self.nodes.append(original)
            return
        self.nodes.append(node)
        if node.op == "reduce" and not node.attributes["keepdims"]:
            return
        for index, output in enumerate(node.outputs):
            if output:
                node.outputs[index] = image = new_name(self._names, f"{output} channels first")
                self._images[output] = image
                self.nodes.append(Node("transpose", image, [image], [output],
                                       {"permutation": _LAST}, node.source))

    def _add_transposition(self, node: Node) -> None:
        """Add a transpose.

        If the node's input is a channels-last value, the added transpose reads the channels-first
        image of this value instead.
        """
        permutation, source = node.attributes["permutation"], node.inputs[0]
        if permutation is None:
            permutation = tuple(reversed(range(self._shapes.rank(source) or 0)))
        permutation = tuple(permutation)
        if source in self._images:
            permutation = tuple(_LAST[axis] for axis in permutation)
            node.inputs[0] = self._images[source]
        if permutation == (0, 1, 2, 3):
            node.op, node.attributes = "identity", {}
        elif len(permutation) > 0:
            node.attributes["permutation"] = permutation
        if permutation == _LAST:
            self._images[node.outputs[0]] = node.inputs[0]
        self.nodes.append(node)

    def _constant(self, name: str, array: np.ndarray) -> str:
        name = new_name(self._names, f"{name} channels first")
        self.constants[name] = np.ascontiguousarray(array)
        return name

    def _read_images(self, node: Node) -> bool:
        """Make a node read the channels-first image of each input.

        Returns whether every input has a channels-first image.
        """
        images = [self._images.get(name, "") for name in node.inputs]
        node.inputs = images
        return all(images)

    def elementwise(self, node: Node) -> bool:
        operands = []
        for name in node.inputs:
            array = self._known.get(name)
            if name in self._images:
                operands.append(self._images[name])
            elif array is not None and array.size == 1 and array.ndim <= len(_LAST):
                operands.append(name)
            elif array is not None and array.ndim <= len(_LAST):
                shape = (1,) * (len(_LAST) - array.ndim) + array.shape
                operands.append(self._constant(name, np.moveaxis(array.reshape(shape), 3, 1)))
            else:
                return False
        node.inputs = operands
        return True

    def matmul(self, node: Node) -> bool:
        """Turn the product of each pixel's channels with a constant matrix into a convolution."""
        x, weight = node.inputs[0], self._known.get(node.inputs[1])
        if x not in self._images or weight is None or weight.ndim != 2 or (
                weight.dtype != np.float32):
            return False
        node.op = "conv2d"
        node.inputs = [self._images[x],
                       self._constant(node.inputs[1], weight.T[:, :, None, None])]
        node.attributes = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1),
                           "groups": 1, "epilogue": identity()}
        return True

    def layer_norm(self, node: Node) -> bool:
        x, *parameters = node.inputs
        if x not in self._images or _axes(node.attributes["axes"]) != (3,):
            return False
        node.inputs = [self._images[x], *parameters]
        node.attributes["axes"] = (1,)
        return True

    def reduce(self, node: Node) -> bool:
        axes = _axes(node.attributes.get("axes"))
        if axes is None or not self._read_images(node):
            return False
        kept = [_LAST[axis] for axis in range(len(_LAST)) if axis not in axes]
        node.attributes["axes"] = tuple(sorted(_LAST[axis] for axis in axes))
        return bool(node.attributes["keepdims"]) or kept == sorted(kept)

    def along_axis(self, node: Node) -> bool:
        """Map the axis of a concatenation, split or softmax to channels-first images."""
        axis = node.attributes.get("axis", 0)
        if node.attributes.get("flatten") or not -len(_LAST) <= axis < len(_LAST):
            return False
        node.attributes["axis"] = _LAST[axis]
        return self._read_images(node)


def _axes(axes: object) -> tuple[int, ...] | None:
    """Return the dimensions of an image that an attribute names, counted from 0 and sorted.

    A single number denotes the axis with this index and all later axes. Returns None if the
    dimensions are unknown.
    """
    rank = len(_LAST)
    if isinstance(axes, int) and -rank <= axes < rank:
        return tuple(range(axes % rank, rank))
    if isinstance(axes, (tuple, list)) and all(-rank <= axis < rank for axis in axes):
        return tuple(sorted(axis % rank for axis in axes))
    return None


_CONVERTERS: dict[str, Callable[[_Rewriting, Node], bool]] = {
    "concat": _Rewriting.along_axis, "elementwise": _Rewriting.elementwise,
    "layer_norm": _Rewriting.layer_norm, "matmul": _Rewriting.matmul,
    "reduce": _Rewriting.reduce, "softmax": _Rewriting.along_axis,
    "split": _Rewriting.along_axis,
}
"""For each op, a function that makes a node compute on channels-first images if possible, and
returns whether it is possible."""


def scale_before_transposing(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Move element-wise nodes before transposes of matrices.

    A node is moved if it reads one transpose of matrices and otherwise only single numbers, and if
    all readers of the node's result are matrix products. The moved node reads the input of the
    transpose, and a new transpose follows the node.

    Returns whether the graph was changed. Transposes that no node reads any longer stay in the
    graph.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        turned = [maker for name in node.inputs if (maker := makers.get(name)) is not None
                  and swaps_matrices(maker)]
        if node.op != "elementwise" or len(turned) != 1 or len(node.outputs) != 1 or (
                not _all_products(users.get(node.outputs[0], []))
                or not _are_single(node, turned[0].outputs[0], shapes)):
            nodes.append(node)
            continue
        (result,), (swapped,), (source,) = node.outputs, turned[0].outputs, turned[0].inputs
        before = new_name(names, f"{result} before transposing")
        nodes += [Node("elementwise", node.name,
                       [source if name == swapped else name for name in node.inputs], [before],
                       node.attributes, node.source),
                  Node("transpose", before, [before], [result], dict(turned[0].attributes),
                       turned[0].source)]
        changed = True
    graph.nodes = nodes
    return changed


def scale_before_products(graph: Graph, shapes: ShapesByBatch) -> bool:
    """Multiply or divide the first operands of matrix products by factors, instead of the products.

    The factors are constants, one for each product of a batch, such as the scales of the heads in
    cosine attention (Z. Liu et al., "Swin Transformer V2", CVPR 2022). They are moved if nothing
    else reads the products, and if the operands are no larger than the products. The scores of the
    softmax are then a product alone, which attention computes without storing it.

    Returns whether the graph was changed.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    users, names = readers(graph), names_of(graph)
    scaled: dict[int, Node] = {}
    for node in graph.nodes:
        factors = [name for name in node.inputs if name in graph.constants]
        product = makers.get(next((name for name in node.inputs if name not in factors), ""))
        if product is None or product.op != "matmul" or len(factors) != 1 or (
                not _is_scaled(node, factors[0]) or len(users[product.outputs[0]]) != 1
                or product.inputs[0] in graph.constants
                or not _scales_matrices(graph.constants[factors[0]], product, shapes)):
            continue
        value = new_name(names, f"{product.inputs[0]} of {node.outputs[0]}")
        scaled[id(product)] = replace(
            node, name=value, outputs=[value], inputs=[
                name if name in factors else product.inputs[0] for name in node.inputs])
        product.inputs = [value, *product.inputs[1:]]
        # the product takes the place of its factors
        node.op, node.attributes, node.inputs = "identity", {}, [product.outputs[0]]
    graph.nodes = [each for node in graph.nodes for each in (
        [scaled[id(node)], node] if id(node) in scaled else [node])]
    return bool(scaled)


def _is_scaled(node: Node, factors: str) -> bool:
    """Return whether a node multiplies its other input by factors, or divides it by them."""
    if node.op != "elementwise":
        return False
    expression = node.attributes["expression"]
    return expression == apply("mul") or (
        expression == apply("div") and node.inputs[1] == factors)


def _scales_matrices(factors: np.ndarray, product: Node, shapes: ShapesByBatch) -> bool:
    """Return whether each product has its own factor, and its first operand no more elements."""
    results = shapes.shapes(product.outputs[0])
    operands = shapes.shapes(product.inputs[0])
    if factors.size == 1 or factors.shape[-2:] != (1, 1) or not np.isfinite(factors).all() or (
            not results or len(results) != len(operands)):
        return False
    return all(operand[-1] <= result[-1]
               and np.broadcast_shapes(operand, factors.shape) == tuple(operand)
               for operand, result in zip(operands, results, strict=True))


def _all_products(nodes: list[Node]) -> bool:
    return bool(nodes) and all(node.op == "matmul" for node in nodes)


def _are_single(node: Node, swapped: str, shapes: ShapesByBatch) -> bool:
    """Return whether all inputs other than the transposed one are known to be single numbers.

    The other inputs must not have more dimensions than the transposed input.

    swapped: name of the transposed input.
    """
    rank = shapes.rank(swapped) or 0
    others = [shapes.shapes(name) for name in node.inputs if name != swapped]
    return all(known and all(len(shape) <= rank and set(shape) <= {1} for shape in known)
               for known in others)
