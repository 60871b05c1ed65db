"""Graph and Node: a network, independent of the format of its file.

The ops of a graph, with their inputs and attributes, are defined in gossamer.model.opset. A Graph
describes the network for every batch size: its nodes may compute shapes, and attributes may depend
on the batch or on the rank of an input. resolve() (gossamer.model.infer.resolve) makes the
StaticGraph of one batch size. A static graph has no shape arithmetic, and its attributes are
concrete; for example, an axis is never negative.

The attribute `epilogue` of a conv2d or gemm is an Expression. Its input 0 is the op's result. Its
further inputs are the node's inputs after the weight: each is a constant with one value per
channel, or a tensor of the output's shape. In any node, "" denotes an absent input.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gossamer.errors import quoted
from gossamer.io.text import human, shape_text
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import ModelMetadata

RETURNED = {("float32", "float16")}
"""Conversions of outputs for callers: (dtype in the network, dtype returned)."""


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

    shape: sizes of the dimensions. The first size is None if the batch size is free; other sizes
    are None where the file leaves them open.
    labels: the file's name of each dimension, for messages; empty if the file names no dimensions.
    given: the format in which callers pass an input, if it differs from `shape` and `dtype`.
    returned_dtype: the dtype in which callers receive an output, if it differs from `dtype`.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str = "float32"
    labels: tuple[str, ...] = ()
    given: InputFormat | None = None
    returned_dtype: str = ""

    @property
    def called(self) -> ValueInfo:
        """The shape and dtype of the arrays that callers pass or receive."""
        if self.given is not None:
            return ValueInfo(self.name, self.given.ordered(self.shape), self.given.array_dtype,
                             self.given.ordered(self.labels))
        return replace(self, dtype=self.returned_dtype or self.dtype, returned_dtype="")


@dataclass(frozen=True)
class Tail:
    """The end of a network, which ONNX Runtime computes from the results of the other nodes.

    The tail computes values that a Graph cannot hold, because their shape depends on the data or
    because they are not numeric tensors. It also computes everything that depends on such values.

    model: the bytes of the tail's ONNX model.
    constants: inputs of the model that are the same in every call, by input index.
    reads: names of the values that the model's other inputs receive, in the order of these inputs.
    The values are outputs of the graph or inputs of the network.
    inputs, outputs: all inputs and outputs of the network. If one of them is not a numeric tensor,
    its dtype is the name of its type, such as "string" or "sequence".
    """

    model: np.ndarray
    constants: dict[int, np.ndarray]
    reads: tuple[str, ...]
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]


@dataclass(repr=False)
class Graph:
    """A network: nodes in execution order, constants by name.

    file: path of the file from which the network was read, for messages.
    notes: sentences about changes made to the network, for reports.
    fixed_batch: the only batch size for which the file was written, or None. The inputs' first
    dimensions are None even with a fixed batch, and resolve() rewrites the shapes that contain this
    batch size.
    tail: the end of the network, which ONNX Runtime computes; None if the nodes compute all outputs
    of the network. With a tail, `outputs` contains the network outputs that nodes compute, and the
    values that the tail reads from nodes.
    """

    name: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    file: str = ""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fixed_batch: int | None = None
    metadata: ModelMetadata = field(default_factory=ModelMetadata)
    tail: Tail | None = None

    @property
    def network_inputs(self) -> list[ValueInfo]:
        """All inputs of the network, including those that only the tail reads."""
        return self.inputs if self.tail is None else self.tail.inputs

    @property
    def network_outputs(self) -> list[ValueInfo]:
        """All outputs of the network, including those that the tail computes."""
        return self.outputs if self.tail is None else self.tail.outputs

    def batch_or(self, batch: int) -> int:
        """Return the batch size of the file, or `batch` if the file fixes none.

        The batch size of the file may be 0.
        """
        return batch if self.fixed_batch is None else self.fixed_batch

    def __repr__(self) -> str:
        """Return one line with the name, the sizes, the inputs and the outputs."""
        ends = [", ".join(f"{info.name} {shape_text(info.shape)} {info.dtype}" for info in infos)
                for infos in (self.inputs, self.outputs)]
        parameters = sum(array.size for array in self.constants.values())
        return (f"<Graph {self.name}: {len(self.nodes)} node"
                f"{'s' * (len(self.nodes) != 1)}, {human(parameters)} parameters, "
                f"{ends[0]} -> {ends[1]}>")


@dataclass
class StaticGraph:
    """A graph for one batch size.

    Every value's shape and dtype is known, shape arithmetic is folded into constants, and
    attributes hold concrete numbers.
    """

    graph: Graph
    batch: int
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


def as_called(graph: Graph) -> Graph:
    """Return the graph with inputs and outputs in the shapes and dtypes of callers' arrays."""
    tail = graph.tail
    if tail is not None:
        tail = replace(tail, inputs=[info.called for info in tail.inputs],
                       outputs=[info.called for info in tail.outputs])
    return replace(graph, inputs=[info.called for info in graph.inputs],
                   outputs=[info.called for info in graph.outputs], tail=tail)


def add_constant(graph: Graph, names: set[str], name: str, array: np.ndarray) -> str:
    """Add a constant and return its name. A name that is already in use is extended.

    names: names of all values of the graph; the constant's name is added to this set.
    """
    name = new_name(names, name)
    graph.constants[name] = array
    return name


def warn_of_broken_weights(graph: Graph) -> None:
    """Add a warning for each constant that holds NaN or infinity.

    A constant of one element may be infinite, because it may be a bound, such as a limit of Clip.
    """
    readers = {name: node.source for node in reversed(graph.nodes) for name in node.inputs}
    for name, array in graph.constants.items():
        if array.dtype.kind != "f" or name not in readers or np.isfinite(array).all():
            continue
        nan, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        if nan or (infinite and array.size > 1):
            graph.warnings.append(f"{graph.file}: weights {quoted(name)} of {readers[name]} hold "
                                  f"{nan} NaN and {infinite} infinite values")


def names_of(graph: Graph) -> set[str]:
    """Return the names of all values of the graph."""
    names = {value for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    return names.union(graph.constants, (info.name for info in graph.inputs))


class UniqueNames:
    """Makes names unique by appending a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return the name, or name_2, name_3 and so on if it is already in use."""
        result = name
        while result in self._taken:
            # many nodes may have the same name: continue from the last number used for it
            self._counts[name] = self._counts.get(name, 1) + 1
            result = f"{name}_{self._counts[name]}"
        self._taken.add(result)
        return result


def new_name(names: set[str], name: str) -> str:
    """Return the name, extended until it is not in `names`, and add the result to `names`."""
    name = unused_name(names, name)
    names.add(name)
    return name


def unused_name(names: set[str], name: str) -> str:
    """Return the name, extended until it is not in `names`."""
    while name in names:
        name += "_"
    return name
