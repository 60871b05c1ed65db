"""Interpolation as torch computes it. torch computes sizes in float64, where ONNX files have
float32 scales; and it rounds the positions of nearest pixels, where ONNX's Resize is exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import torch

from gossamer.model.graph import Graph

Sizes = tuple[tuple[int, ...], tuple[float, ...] | None]
"""The sizes that an interpolation makes, and its scale factors where forward states these."""


def interpolations(model: onnx.ModelProto, program: Any) -> dict[str, Sizes]:
    """Returns the interpolations in a program, by the names of their results in its ONNX
    model."""
    resizes = [node for node in model.graph.node if node.op_type == "Resize"]
    layers = [node for node in program.graph.nodes
              if "upsample_" in str(node.target) and str(node.target).endswith(".vec")]
    if len(resizes) != len(layers):
        return {}
    found: dict[str, Sizes] = {}
    for resize, layer in zip(resizes, layers, strict=True):
        names = [argument.name for argument in layer.target._schema.arguments]
        scales = ({**dict(zip(names, layer.args, strict=False)), **layer.kwargs}
                  ).get("scale_factors")
        sizes = tuple(layer.meta["val"].shape[2:])
        if not any(isinstance(size, torch.SymInt) for size in sizes):
            found[resize.output[0]] = (sizes, tuple(scales) if scales else None)
    return found


def mark(graph: Graph, found: Mapping[str, Sizes]) -> Graph:
    """Returns the graph, whose interpolations are changed to compute as torch does."""
    for node in graph.nodes:
        if node.op in ("resize", "resize_linearly") and node.outputs[0] in found:
            sizes, scales = found[node.outputs[0]]
            node.inputs = node.inputs[:1]
            node.attributes |= {"sizes": sizes, "scales": scales,
                                "axes": tuple(range(2, 2 + len(sizes)))}
            if node.attributes["mode"] == "nearest":
                node.attributes["coordinates"] = "pytorch_nearest"
    return graph
