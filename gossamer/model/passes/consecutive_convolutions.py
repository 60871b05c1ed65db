"""Merges two depthwise convolutions, one after another, into one.

GhostNetV2 (Tang et al., 2022) computes gates by depthwise convolutions of 1x5 and 5x1, each with a
bias. Zeros pad the result of the first one, its bias included, so that the bias of the merged
convolution differs between rows at the border of the image and within it.
"""

from __future__ import annotations

import numpy as np

from gossamer.expression import apply
from gossamer.model.graph import Graph, Node, add_constant, names_of
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.fusion import feeds_sign, readers
from gossamer.model.passes.parallel_convolutions import Branch, Sum, convolution, sum_computed_by

_MOST_TAPS = 25
"""Maximum window of a merged convolution, in pixels. The work of larger windows takes longer than
the second kernel."""


def merge_consecutive_convolutions(graph: Graph, shapes: ShapesByBatch) -> None:
    """Merge depthwise convolutions of 1xN and Nx1 pixels, one after another.

    Other windows are merged, too, if the second convolution has no padding along the axes on which
    the first one has several taps. If the bias of the merged convolution differs between pixels, an
    element-wise node adds it; this needs a further element-wise node and a resize as readers, with
    which the addition becomes one kernel.
    """
    users, names = readers(graph), names_of(graph)
    sums: dict[str, Sum] = {}
    replaced: dict[int, list[Node]] = {}
    for node in graph.nodes:
        second = _depthwise(graph, node)
        if second is None:
            continue
        result, first = node.outputs[0], sums.get(node.inputs[0])
        sums[result] = second
        if first is None or len(users[node.inputs[0]]) > 1 or feeds_sign(result, users):
            continue
        pair = _merged(first, second, shapes.shapes(node.inputs[0]))
        if pair is None:
            continue
        is_same = pair.constant.shape[1:] == (1, 1)
        if not is_same and not _is_resized(result, users):
            continue
        branch, = pair.branches
        if is_same:
            nodes = [convolution(graph, names, branch, pair.constant)]
        else:
            layer = convolution(graph, names, branch, np.zeros(()))
            bias = add_constant(graph, names, f"{result}.bias", pair.constant.astype(np.float32))
            nodes = [layer, Node("elementwise", node.name, [*layer.outputs, bias], [],
                                 {"expression": apply("add")}, node.source)]
        nodes[-1].outputs = [result]
        del sums[result]
        replaced |= {id(layer): [] for layer in branch.layers} | {id(node): nodes}
    graph.nodes = [new for node in graph.nodes for new in replaced.get(id(node), [node])]


def _depthwise(graph: Graph, node: Node) -> Sum | None:
    """Return the result of a depthwise convolution with one filter per channel as a sum."""
    if node.op != "conv2d" or node.attributes["groups"] < 2:
        return None
    found = sum_computed_by(graph, node)
    if found is None or found.branches[0].weight.shape[:2] != (node.attributes["groups"], 1):
        return None
    return found


@np.errstate(all="ignore")
def _merged(first: Sum, second: Sum, between: list[tuple[int, ...]]) -> Sum | None:
    """Return the result of both convolutions as a convolution and a constant, or None.

    between: the shape of the first result at each batch size.
    """
    (one,), (other,) = first.branches, second.branches
    taps, more = one.weight.shape[2:], other.weight.shape[2:]
    pads = [(other.pads[axis], other.pads[axis + 2]) for axis in range(2)]
    window = [a + b - 1 for a, b in zip(taps, more, strict=True)]
    if {*one.strides, *one.dilations, *other.dilations} != {1} or (
            len({shape[1:] for shape in between}) != 1) or (
            np.prod(window) > max(_MOST_TAPS, np.prod(taps) + np.prod(more))) or any(
            any(pads[axis]) and (taps[axis] > 1 or any(one.pads[axis::2])) for axis in range(2)):
        return None
    weight = np.zeros((len(one.weight), 1, *window))
    for row, column in np.ndindex(*taps):
        weight[:, :, row:row + more[0], column:column + more[1]] += (
            one.weight[:, :, row:row + 1, column:column + 1] * other.weight)
    masks = []
    for axis, size in enumerate(between[0][2:]):
        before, after = pads[axis]
        starts = np.arange(0, before + size + after - more[axis] + 1, other.strides[axis]) - before
        inside = starts[:, None] + np.arange(more[axis])
        mask = (inside >= 0) & (inside < size)
        is_same = (mask == mask[:1]).all() or not first.constant.any()
        masks.append(mask[:1] if is_same else mask)
    bias = np.einsum("crs,hr,ws->chw", other.weight[:, 0], *masks) * first.constant
    if not (np.isfinite(weight.astype(np.float32)).all() and np.isfinite(bias).all()):
        return None
    return Sum((Branch(
        one.layers + other.layers, one.source, weight, other.strides,
        tuple(a + b for a, b in zip(one.pads, other.pads, strict=True)), (1, 1), one.groups),),
        bias + second.constant)


def _is_resized(value: str, users: dict[str, list[Node]]) -> bool:
    """Whether a resize alone reads the result of the element-wise nodes that read a value."""
    found = users.get(value, [])
    while len(found) == 1 and found[0].op == "elementwise" and len(found[0].outputs) == 1:
        value, = found[0].outputs
        found = users.get(value, [])
        if len(found) == 1 and found[0].op == "resize":
            return True
    return False
