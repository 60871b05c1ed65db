"""What a network consists of: a row for each node, for `gossamer inspect`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossamer.model.graph import StaticGraph
from gossamer.plan.lower.rules import flops_by_node


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
    flops = flops_by_node(static)
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
                        sum(static.constants[name].size for name in own), flops[node.name],
                        density))
    return rows
