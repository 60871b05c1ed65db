"""NodeBuilder: makes a graph node by node, with unique names, and checks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from gossamer.errors import ModelError
from gossamer.model.graph import Graph, Node, ValueInfo, names_of, unused_name
from gossamer.model.metadata import ModelMetadata


class NodeNames(TypedDict, total=False):
    """Names that a node gets, as arguments of the methods that add it.

    Attributes
    ----------
    name : str
        Name of the node; by default its op and a number. The name is lengthened where another node
        has it.
    output : str
        Name of the node's result; by default the node's name.
    source : str
        The layer's op and name in the file, for messages, such as "Conv 'features.0'"; by default
        the node's op and name.
    """

    name: str
    output: str
    source: str


class NodeBuilder:
    """Make a graph node by node.

    Parameters
    ----------
    name : str
        Name of the network.
    file : str, default ""
        Path of the file from which the network is read, for messages.
    metadata : ModelMetadata, optional
        The meaning of the network's numbers.

    Attributes
    ----------
    graph : Graph
        The unfinished graph; `finish` returns the complete graph, checked.
    """

    def __init__(self, name: str, *, file: str = "",
                 metadata: ModelMetadata | None = None) -> None:
        self.graph = Graph(name, [], [], [], {}, file, metadata=metadata or ModelMetadata())

    def input(self, name: str, shape: Sequence[int | None], dtype: str = "float32",
              labels: Sequence[str] = ()) -> str:
        """Add an input of the network.

        Parameters
        ----------
        name : str
            Name of the input.
        shape : sequence of int or None
            Sizes of the input's dimensions; None for an open size, such as the batch.
        dtype : str, default "float32"
            Dtype of the input's numbers.
        labels : sequence of str, optional
            Names of the dimensions in the file, for messages.

        Returns
        -------
        str
            Name of the input.
        """
        self.graph.inputs.append(ValueInfo(name, tuple(shape), dtype, tuple(labels)))
        return name

    def constant(self, name: str, array: Any) -> str:
        """Add a constant, such as a layer's weights.

        Parameters
        ----------
        name : str
            Name of the constant. It is lengthened where the graph uses the name already.
        array : array
            The constant's value; floats of any width become float32.

        Returns
        -------
        str
            Name of the constant in the graph.
        """
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = np.asarray(array, np.float32)
        name = unused_name(names_of(self.graph), name)
        self.graph.constants[name] = array
        return name

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), *, name: str = "",
            output: str = "", source: str = "", **attributes: Any) -> str:
        """Add a node of any op.

        Parameters
        ----------
        op : str
            The op.
        inputs : sequence of str
            Names of the node's inputs, in the op's order; "" stands for an absent input.
        outputs : sequence of str, optional
            Names of the node's results where it has several.
        name, output, source : str
            Names as in `NodeNames`.
        **attributes
            The op's attributes.

        Returns
        -------
        str
            Name of the first result.
        """
        nodes = self.graph.nodes
        name = unused_name({node.name for node in nodes}, name or f"{op}_{len(nodes)}")
        results = list(outputs) or [output or unused_name(names_of(self.graph), name)]
        nodes.append(Node(op, name, list(inputs), results, attributes, source or f"{op} {name!r}"))
        return results[0]

    def output(self, value: str, shape: Sequence[int | None], dtype: str = "float32") -> None:
        """Make a value an output of the network.

        Parameters
        ----------
        value : str
            Name of the value.
        shape : sequence of int or None
            Sizes of the value's dimensions; None for an open size.
        dtype : str, default "float32"
            Dtype of the value's numbers.
        """
        self.graph.outputs.append(ValueInfo(value, tuple(shape), dtype))

    def finish(self) -> Graph:
        """Check the graph and return it.

        Returns
        -------
        Graph
            The graph.

        Raises
        ------
        ModelError
            If the graph has no output, if a value is made more than once (by an input, a constant
            or a node), or if a node or an output reads a value that no input, constant or earlier
            node makes.
        """
        graph = self.graph
        makers: dict[str, str] = {}
        later = {name: node.source for node in graph.nodes for name in node.outputs}
        for info in graph.inputs:
            self._note(makers, info.name, "an input")
        for name in graph.constants:
            self._note(makers, name, "a constant")
        for node in graph.nodes:
            for name in filter(None, node.inputs):
                if name not in makers:
                    why = f"{later[name]} makes later" if name in later else (
                        "no input, constant or node makes")
                    raise self._error(f"{node.source} reads {name!r}, which {why}")
            for name in filter(None, node.outputs):
                self._note(makers, name, node.source)
        for info in graph.outputs:
            if info.name not in makers:
                raise self._error(f"output {info.name!r} is made by no input, constant or node")
        if not graph.outputs:
            raise self._error("the network has no output")
        return graph

    def _note(self, makers: dict[str, str], name: str, maker: str) -> None:
        """Note the maker of a value. Raise ModelError where the value has another maker already."""
        if name in makers:
            raise self._error(f"{name!r} is made twice, by {makers[name]} and by {maker}")
        makers[name] = maker

    def _error(self, text: str) -> ModelError:
        return ModelError(f"{self.graph.file or self.graph.name}: {text}")
