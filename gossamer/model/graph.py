"""Graph and Node: a network as gossamer sees it, whatever file it came from.

The ops of a graph and their attributes (inputs in order; "" stands for an absent one):

conv2d            x, weight (M, C/groups, R, S)[, epilogue operands]
                  strides (2), pads (top, left, bottom, right), dilations (2), groups, epilogue
conv_transpose2d  x, weight (C, M/groups, R, S)[, bias]
                  strides, pads, dilations, output_padding (2), groups
gemm              a, b[, epilogue operands]  trans_a, trans_b, epilogue   (matrices; b need not
                  be constant; a file's alpha is multiplied into a constant b and goes into the
                  epilogue otherwise; its beta is multiplied into a constant c and goes into a node
                  of its own otherwise)
matmul            a, b                       any rank, NumPy broadcasting
elementwise       operands...                expression (see gossamer.expression); the node has as
                  many outputs as the expression; operands broadcast
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

Truth values are 1 and 0 in the dtype of the compared values.

A Graph, which serves every batch size, may also hold ops and forms that resolve() (see
gossamer.model.infer.resolve) turns into those above:

identity x; flatten x (axis); squeeze x, unsqueeze x (axes); shape x (start, end);
constant_of_shape shape (value); range start, limit, delta
batch_norm x, gamma, beta, mean, variance (epsilon), which becomes elementwise
auto_pad "SAME_UPPER" | "SAME_LOWER" on conv2d, conv_transpose2d and pool, output_shape on
conv_transpose2d, flatten (True: one softmax over all axes from `axis` on) on softmax, and
allowzero (True: 0 in the shape is 0, not the input's size) on reshape
attributes named in ATTRIBUTE_INPUTS may come as inputs after the first instead, in that order; a
negative axis counts from the end; reduce's axes may be "spatial": all but the first two

A conv2d or gemm's `epilogue` attribute is an Expression whose input 0 is the result; the
operands that follow the weight are its further inputs: a constant of one value a channel, or a
tensor of the output's shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

ATTRIBUTE_INPUTS: dict[str, tuple[str, ...]] = {
    "reshape": ("shape",),
    "expand": ("shape",),
    "slice": ("starts", "ends", "axes", "steps"),
    "pad": ("pads", "value", "axes"),
    "resize": ("scales", "sizes"),
    "split": ("sizes",),
    "reduce": ("axes",),
    "squeeze": ("axes",),
    "unsqueeze": ("axes",),
}
"""Attributes of each op that a Graph may give as inputs after the first."""


@dataclass
class Node:
    """One op of a network, with its inputs, outputs and attributes.

    name: a name that is unique in the graph.
    source: op and name in the file, for messages: "Conv 'features.0'".
    """

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class ValueInfo:
    """Shape and dtype of a graph's input or output.

    shape: sizes of the dimensions. The first is None where the batch is free, others are None
    where the file leaves them open.
    labels: the file's name of each dimension, for messages; empty where it has none.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str = "float32"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelMetadata:
    """The meaning of a network's numbers, where its file tells it.

    classes: name of the class of each column of the first output.
    independent_scores: whether that output holds one score a class, none of which depends on the
    others; else it holds probabilities, or numbers that softmax turns into probabilities.
    picture: height and width of the grey picture that a row of the first input holds, with
    numbers from 0 (black) to 255 (white).
    brightness: mean of the pictures that the network was trained on.
    """

    classes: tuple[str, ...] = ()
    independent_scores: bool = False
    picture: tuple[int, int] | None = None
    brightness: float | None = None


@dataclass
class Graph:
    """A network: nodes in execution order, constants by name.

    file: path of the file it was read from, for messages.
    fixed_batch: the only batch size that the file was written for, or None; the inputs' first
    dimensions are None all the same, and resolve() rewrites the shapes that repeat it.
    """

    name: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    file: str = ""
    warnings: list[str] = field(default_factory=list)
    fixed_batch: int | None = None
    metadata: ModelMetadata = ModelMetadata()


@dataclass
class StaticGraph:
    """A graph for one batch size. Every value's shape and dtype is known, shape arithmetic is
    folded into constants, and attributes hold concrete numbers."""

    graph: Graph
    batch: int
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def add_constant(graph: Graph, name: str, array: np.ndarray) -> str:
    """Adds a constant under this name, or a longer one where the graph uses the name already, and
    returns its name."""
    name = unused_name(names_of(graph), name)
    graph.constants[name] = array
    return name


def names_of(graph: Graph) -> set[str]:
    """Returns the names of all values of the graph."""
    names = {value for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    return names.union(graph.constants, (info.name for info in graph.inputs))


def unused_name(names: set[str], name: str) -> str:
    """Returns the name, lengthened until it is none of `names`."""
    while name in names:
        name += "_"
    return name


def inputs_to_attributes(node: Node, constants: dict[str, np.ndarray]) -> bool:
    """Turns the parameter inputs of a node into attributes if the values of all are known, and
    returns whether it has."""
    names = ATTRIBUTE_INPUTS.get(node.op, ())
    values = node.inputs[1:]
    if not names or any(name and name not in constants for name in values):
        return False
    for parameter, name in zip(names, values, strict=False):
        if name:
            array = constants[name]
            node.attributes[parameter] = (array.item() if parameter == "value"
                                          else tuple(array.reshape(-1).tolist()))
    node.inputs = node.inputs[:1]
    return True
