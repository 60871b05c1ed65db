"""Graph and Node: a network as gossamer sees it, whatever file it came from.

The ops of a graph, with their inputs and attributes, are defined in gossamer.model.opset. A Graph
serves every batch size: its shapes may be computed by nodes, and attributes may be given in forms
that depend on the batch. resolve() (gossamer.model.infer.resolve) makes the StaticGraph of one
batch size, which has no shape arithmetic, and concrete attributes: an axis counts from 0.

A conv2d or gemm's `epilogue` attribute is an Expression whose input 0 is the result; the operands
that follow the weight are its further inputs: a constant of one value a channel, or a tensor of the
output's shape. "" as an input of any node stands for an absent one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gossamer.io.text import human, shape_text
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import ModelMetadata

RETURNED = {("float32", "float16")}
"""Pairs of the dtype of an output and another one in which callers may get it."""


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
    given: how callers give an input, where that is not as shape and dtype say.
    returned_dtype: the dtype in which callers get an output, where that is not `dtype`.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str = "float32"
    labels: tuple[str, ...] = ()
    given: InputFormat | None = None
    returned_dtype: str = ""

    @property
    def called(self) -> ValueInfo:
        """The shape and dtype of the arrays that callers give or get."""
        if self.given is not None:
            return ValueInfo(self.name, self.given.ordered(self.shape), self.given.array_dtype,
                             self.given.ordered(self.labels))
        return replace(self, dtype=self.returned_dtype or self.dtype, returned_dtype="")


@dataclass(frozen=True)
class Tail:
    """The end of a network, which ONNX Runtime computes from the results of all other nodes: values
    whose shape the data decide, and values that are no tensors of numbers.

    model: the bytes of its ONNX model.
    constants: inputs of the model that are the same in each call, by their numbers.
    reads: names of the other inputs in their order, each an output of the graph or an input of the
    network.
    inputs, outputs: all inputs and outputs of the network, of which a text or a list of tensors has
    a dtype that names it, such as "string".
    """

    model: np.ndarray
    constants: dict[int, np.ndarray]
    reads: tuple[str, ...]
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]


@dataclass(repr=False)
class Graph:
    """A network: nodes in execution order, constants by name.

    file: path of the file it was read from, for messages.
    notes: sentences on what was changed in the network, for reports.
    fixed_batch: the only batch size that the file was written for, or None; the inputs' first
    dimensions are None all the same, and resolve() rewrites the shapes that repeat it.
    tail: the end of the network, where its outputs are not all made by the nodes; the graph's
    outputs are then those of the nodes, and values that the tail reads.
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
        """The inputs that the network takes, whatever computes its outputs."""
        return self.inputs if self.tail is None else self.tail.inputs

    @property
    def network_outputs(self) -> list[ValueInfo]:
        """The outputs that the network gives, whatever computes them."""
        return self.outputs if self.tail is None else self.tail.outputs

    def __repr__(self) -> str:
        """Returns one line with the name, the sizes, the inputs and the outputs."""
        ends = [", ".join(f"{info.name} {shape_text(info.shape)} {info.dtype}" for info in infos)
                for infos in (self.inputs, self.outputs)]
        parameters = sum(array.size for array in self.constants.values())
        return (f"<Graph {self.name}: {len(self.nodes)} node"
                f"{'s' * (len(self.nodes) != 1)}, {human(parameters)} parameters, "
                f"{ends[0]} -> {ends[1]}>")


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


def as_called(graph: Graph) -> Graph:
    """Returns the graph with inputs and outputs in the shapes and dtypes of callers' arrays."""
    tail = graph.tail
    if tail is not None:
        tail = replace(tail, inputs=[info.called for info in tail.inputs],
                       outputs=[info.called for info in tail.outputs])
    return replace(graph, inputs=[info.called for info in graph.inputs],
                   outputs=[info.called for info in graph.outputs], tail=tail)


def add_constant(graph: Graph, names: set[str], name: str, array: np.ndarray) -> str:
    """Adds a constant under this name, or a longer one where the graph uses the name already, and
    returns its name. names: the names of all values of the graph, to which the new one is added."""
    name = unused_name(names, name)
    names.add(name)
    graph.constants[name] = array
    return name


def names_of(graph: Graph) -> set[str]:
    """Returns the names of all values of the graph."""
    names = {value for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    return names.union(graph.constants, (info.name for info in graph.inputs))


class UniqueNames:
    """Names that occur once, made of others by a number at their end."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Returns the name, or name_2, name_3 and so on where it is taken already."""
        result = name
        while result in self._taken:
            # where many nodes have one name, not all of its numbers are tried again
            self._counts[name] = self._counts.get(name, 1) + 1
            result = f"{name}_{self._counts[name]}"
        self._taken.add(result)
        return result


def unused_name(names: set[str], name: str) -> str:
    """Returns the name, lengthened until it is none of `names`."""
    while name in names:
        name += "_"
    return name
