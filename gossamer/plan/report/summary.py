"""The summary of a network that `gossamer inspect` prints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gossamer.model.graph import Graph, StaticGraph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.plan.lower.rules import flops_by_node, lower
from gossamer.plan.report.bits import LayerForm, form_of


@dataclass(frozen=True)
class SummaryRow:
    """One node of a network.

    parameters: number of values of its constants.
    flops: floating-point operations, where a multiply-add counts as two.
    density: the share of nonzero weights, None without weights.
    """

    name: str
    op: str
    output_shape: tuple[int, ...]
    parameters: int
    flops: int
    density: float | None


def summarise(static: StaticGraph) -> list[SummaryRow]:
    """Return a row for each node in order, at the batch size of the graph.

    A constant that several nodes read is counted only for the first of these nodes.
    """
    counted: set[str] = set()
    flops = flops_by_node(static)
    rows = []
    for node in static.nodes:
        constants = [name for name in dict.fromkeys(node.inputs)
                     if name in static.constants and name not in counted]
        counted.update(constants)
        density = None
        if node.op in ("conv2d", "conv_transpose2d", "gemm", "matmul"):
            weight = static.constants.get(node.inputs[1])
            if weight is not None and weight.size:
                density = int(np.count_nonzero(weight)) / weight.size
        parameters = sum(static.constants[name].size for name in constants)
        rows.append(SummaryRow(node.name, node.op, static.shapes[node.outputs[0]], parameters,
                               flops[node.name], density))
    return rows


def forms_of_layers(graph: Graph, batch: int) -> dict[str, LayerForm]:
    """Return the LayerForm of each convolution and product with weights, by node name.

    The LayerForm says whether bits, trits or floats would compute the layer, as far as this is
    known before a plan is made.
    """
    layers, _ = lower(resolve(optimise(graph), batch))
    forms = [form_of(layer.name, layer.problem) for layer in layers if not layer.is_reshape]
    return {form.layer: form for form in forms if form is not None}
