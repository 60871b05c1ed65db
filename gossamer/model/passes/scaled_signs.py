"""Rewrites layers as products of scaled signs with values -1, 0 and 1.

Weights are scaled signs if all weights of an output channel have the same nonzero magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.expression import DISCONTINUOUS, apply
from gossamer.facts import REAL, are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.opset.elementwise import expression_facts
from gossamer.model.passes.fusion import output_rows, readers

_LARGEST_DIFFERENCE = 2.0**-18
"""Largest relative difference at which magnitudes of a channel count as equal: 64 times the
relative rounding error of float32."""
_SELECTING = frozenset({"reshape", "flatten", "squeeze", "unsqueeze", "transpose", "identity",
                        "expand", "slice", "split"})
"""Ops whose outputs contain only elements of their first input. _selects() also allows some pools
and pads."""


def round_scaled_signs(graph: Graph) -> None:
    """Round weights with nearly equal magnitudes in each channel to scaled signs.

    In training with the straight-through estimator, (a * sign(w) - w) + w stands for a * sign(w).
    If the exporter evaluated this sum, the file contains the rounded results, whose magnitudes
    differ slightly.
    """
    names = names_of(graph)
    rounded: dict[tuple[str, bool], str] = {}
    for layer in graph.nodes:
        rows = output_rows(graph, layer)
        if rows is None or not _are_nearly_scaled_signs(rows):
            continue
        key = (layer.inputs[1], bool(layer.attributes.get("trans_b")))
        if key not in rounded:
            magnitudes = np.abs(rows.astype(np.float64)).mean(
                axis=tuple(range(1, rows.ndim)), keepdims=True)
            weight = np.copysign(magnitudes.astype(np.float32), rows)
            if layer.op == "gemm" and not layer.attributes["trans_b"]:
                weight = weight.T
            rounded[key] = add_constant(graph, names, f"{layer.inputs[1]}.signs", weight)
        layer.inputs[1] = rounded[key]


def _are_nearly_scaled_signs(weight: np.ndarray) -> bool:
    """Return whether weights are scaled signs except for rounding.

    In at least one channel, the magnitudes must differ.
    """
    rows = weight.reshape(len(weight), -1)
    # test the first channel first, because it alone rules out most weights
    for part in (rows[:1], rows):
        magnitudes = np.abs(part)
        low, high = magnitudes.min(axis=1), magnitudes.max(axis=1)
        is_near = low >= high * np.float32(1 - _LARGEST_DIFFERENCE)
        if not (is_near & (low > 0) & (high < np.inf)).all():
            return False
    return bool((low < high).any())


def move_scales_into_weights(graph: Graph) -> None:
    """Replace the values -a, 0 and a of a quantiser by -1, 0 and 1.

    Convolutions and products whose weights are scaled signs read the new values, and their weights
    are multiplied by `a`. Other nodes still read the old values.
    """
    users, names = readers(graph), names_of(graph)
    # maps the name of each value whose elements are still -a, 0 and a to the number `a`
    scales: dict[str, float] = {}
    nodes = []
    for node in graph.nodes:
        nodes.append(node)
        scale = _scale(node)
        if node.inputs and (carried := scales.get(node.inputs[0])) and _selects(node, carried):
            scale = carried
        for name in filter(None, node.outputs if scale is not None else ()):
            assert scale is not None
            reached = [(reader, _reached(graph, users, reader, name, scale))
                       for reader in users.get(name, ())]
            taken = [reader for reader, layers in reached if layers]
            if taken and node.op == "elementwise" and all(
                    layers is not None for _, layers in reached):
                node.attributes["expression"] = node.attributes["expression"].then(apply("sign"))
            else:
                scales[name] = scale
                nodes += _with_signs(name, taken, names, node.source)
            for layer in (layer for _, layers in reached for layer in layers or ()):
                _multiply(graph, names, layer, scale)
    graph.nodes = nodes


def _with_signs(name: str, taken: Sequence[Node], names: set[str], source: str) -> list[Node]:
    """Make the nodes in `taken` read the signs of a value instead of the value.

    Returns a list with the node that computes the signs; an empty list if `taken` is empty.
    """
    if not taken:
        return []
    signs = new_name(names, f"{name}.signs")
    for reader in taken:
        reader.inputs[0] = signs
    return [Node("elementwise", signs, [name], [signs], {"expression": apply("sign")}, source)]


def _scale(node: Node) -> float | None:
    """Return the number `a` if a node's result has only elements -a, 0 and a.

    Returns None for other nodes, and if `a` is 1.
    """
    if node.op != "elementwise" or len(node.outputs) != 1:
        return None
    expression = node.attributes["expression"]
    functions = [step.function for step in expression.steps]
    # without a discontinuous function, the result has more than three values; if only the last step
    # is discontinuous, `a` is 1
    if not DISCONTINUOUS.intersection(functions[:-1]):
        return None
    (known,) = expression_facts(expression, [REAL] * expression.inputs)
    if not (known.is_binary or known.is_ternary):
        return None
    scale = max(-known.low, known.high)
    values = {(known.low + known.step * k) / scale for k in range(known.count or 0)}
    return scale if scale != 1 and values <= {-1.0, 0.0, 1.0} else None


def _selects(node: Node, scale: float) -> bool:
    """Return whether a node's outputs contain only elements of its first input, or padding.

    The padding must be -scale, 0 or scale.
    """
    if node.op == "pad":
        value = np.float32(node.attributes.get("value") or 0)
        return len(node.inputs) == 1 and value in (0.0, scale, -scale)
    return node.op in _SELECTING or (node.op == "pool" and node.attributes["kind"] == "max")


def _reached(graph: Graph, users: Mapping[str, Sequence[Node]], reader: Node, name: str,
             scale: float) -> list[Node] | None:
    """Return the layers with scaled signs that a value reaches through one of its readers.

    The reader must be a layer with scaled signs, or a node that only selects elements. The list
    also includes the pad nodes before the layers. Returns None if the value reaches any other node.
    """
    found = []
    pending = [(reader, name)]
    while pending:
        node, name = pending.pop()
        if node.op == "shape":
            continue
        if name != node.inputs[0] or name in node.inputs[1:]:
            return None
        rows = output_rows(graph, node)
        if rows is not None:
            if not _stay_scaled_signs(rows, scale):
                return None
            found.append(node)
        elif _selects(node, scale):
            if node.op == "pad":
                found.append(node)
            pending += [(behind, output) for output in filter(None, node.outputs)
                        for behind in users.get(output, ())]
        else:
            return None
    return found


def _stay_scaled_signs(rows: np.ndarray, scale: float) -> bool:
    """Return whether weights are scaled signs, both before and after multiplication by a scale."""
    scaled = rows.reshape(len(rows), -1)[:, :1] * np.float64(scale)
    with np.errstate(over="ignore"):
        return are_scaled_signs(rows) and are_scaled_signs(scaled.astype(np.float32))


def _multiply(graph: Graph, names: set[str], layer: Node, scale: float) -> None:
    """Multiply a layer's weights by a scale, or divide the value of a pad node by the scale."""
    if layer.op == "pad":
        layer.attributes["value"] = float(np.sign(layer.attributes.get("value") or 0))
        return
    weight = graph.constants[layer.inputs[1]].astype(np.float64) * scale
    layer.inputs[1] = add_constant(graph, names, f"{layer.inputs[1]}.scaled",
                                   weight.astype(np.float32))
