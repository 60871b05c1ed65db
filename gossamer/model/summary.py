"""What a network consists of: a row for each node, for `gossamer inspect`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gossamer.model.graph import Node, StaticGraph


@dataclass(frozen=True)
class SummaryRow:
    """One node. flops counts a multiply-add as two; density is the share of nonzero weights,
    None where there is no weight."""

    name: str
    op: str
    output_shape: tuple[int, ...]
    parameters: int
    flops: int
    density: float | None


def summarise(static: StaticGraph) -> list[SummaryRow]:
    """The nodes in order, at the graph's batch size. A constant that several nodes read counts
    for the first."""
    counted: set[str] = set()
    rows = []
    for node in static.nodes:
        own = [name for name in dict.fromkeys(node.inputs)
               if name in static.constants and name not in counted]
        counted.update(own)
        density = None
        if node.op in ("conv2d", "conv_transpose2d", "gemm", "matmul"):
            weight = static.constants.get(node.inputs[1])
            if weight is not None and weight.size:
                density = int(np.count_nonzero(weight)) / weight.size
        rows.append(SummaryRow(node.name, node.op, static.shapes[node.outputs[0]],
                        sum(static.constants[name].size for name in own), _flops(static, node),
                        density))
    return rows


def _flops(static: StaticGraph, node: Node) -> int:
    shapes = [static.shapes[name] for name in node.inputs]
    size = math.prod(static.shapes[node.outputs[0]])
    attributes = node.attributes
    if node.op == "conv2d":
        return size * (2 * math.prod(shapes[1][1:]) + attributes["epilogue"].flops)
    if node.op == "conv_transpose2d":
        return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:]) + size * (len(shapes) - 2)
    if node.op == "gemm":
        inner = shapes[0][0 if attributes["trans_a"] else 1]
        return size * (2 * inner + attributes["epilogue"].flops)
    if node.op == "matmul":
        return 2 * size * shapes[0][-1]
    if node.op == "elementwise":
        return size * attributes["expression"].flops
    if node.op == "pool":
        return size * math.prod(attributes["kernel"])
    if node.op == "reduce":
        return math.prod(shapes[0])
    if node.op == "resize":
        return size * (8 if attributes["mode"] == "linear" else 0)
    if node.op == "softmax":
        return size * 8
    return 0
