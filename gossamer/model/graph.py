"""Graph and Node: a network as gossamer sees it, whatever file it came from.

The ops of a graph and their attributes (inputs in order; "" stands for an absent one):

conv2d            x, weight (M, C/groups, R, S)[, epilogue operands]
                  strides (2), pads (top, left, bottom, right), dilations (2), groups, epilogue
conv_transpose2d  x, weight (C, M/groups, R, S)[, bias]
                  strides, pads, dilations, output_padding (2), groups
gemm              a, b[, epilogue operands]  trans_a, trans_b, epilogue   (rank 2, b constant or
                  not; alpha and beta are folded into b and the epilogue)
matmul            a, b                       any rank, NumPy broadcasting
batch_norm        x, gamma, beta, mean, variance   epsilon
elementwise       operands...                expression (see gossamer.expression); several outputs
                  when the expression has several; operands broadcast
pool              x                          kind "max" | "average", kernel (2), strides, pads,
                  dilations, ceil_mode, count_include_pad
reduce            x                          kind "mean" | "max" | "sum", axes, keepdims
concat            xs...                      axis
split             x                          axis, sizes
slice             x                          starts, ends, axes, steps (all concrete)
reshape           x                          shape (concrete; 0 and -1 resolved)
transpose         x                          permutation
expand            x                          shape
pad               x                          pads (low..., high...), mode "constant" | "reflect" |
                  "edge", value
resize            x                          sizes, scales (of the spatial dims, as given or
                  implied), mode "nearest" | "linear", coordinates, nearest_mode
softmax           x                          axis, log
gather            x, indices                 axis
cast              x                          dtype

A conv2d or gemm's `epilogue` attribute is an Expression whose input 0 is the result; the
operands that follow the weight are its further inputs: a constant of one value a channel, or a
tensor of the output's shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Node:
    """One op. `name` is unique in the graph; `source` is what the file called it, for messages:
    "Conv 'features.0'"."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class ValueInfo:
    """Shape and dtype of a graph's input or output. The first dimension is None where the batch
    is free."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str = "float32"


@dataclass
class Graph:
    """A network: nodes in execution order, constants by name.

    file: where it came from, for messages.
    """

    name: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    file: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass
class StaticGraph:
    """A graph for one batch size: every value's shape and dtype is known, shape arithmetic is
    gone, and attributes hold concrete numbers."""

    graph: Graph
    batch: int
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
