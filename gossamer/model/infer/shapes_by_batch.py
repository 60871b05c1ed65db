"""ShapesByBatch: the shapes of a graph's values at two batch sizes.

Shapes that are equal at both sizes are equal at every batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gossamer.errors import GossamerError, UnsupportedError
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import visit
from gossamer.model.opset.definition import InferenceState, Shape
from gossamer.model.opset.registry import inputs_to_attributes


class ShapesByBatch:
    """The shapes of a graph's values at two batch sizes.

    Shapes are linear in the batch (and in open dimensions), so shapes that are equal at two sizes
    are equal at all sizes. If shape inference fails, no shapes are known, except those at a file's
    own batch size.

    states: the finished shape inference of the graph at each batch size.
    data_dependent: names of the values that depend on the data, not on shapes alone.
    inputs: inputs of the graph.
    """

    def __init__(self, states: Sequence[InferenceState], data_dependent: set[str],
                 inputs: Sequence[ValueInfo]) -> None:
        self._states = states
        self._inputs = inputs
        self._data_dependent = data_dependent

    def constant(self, name: str) -> np.ndarray | None:
        """Return a value that follows from the inputs' shapes, else None.

        The value must be the same at every batch size. The result is also None if dimensions other
        than the batch are open. Values are inferred at only two sizes of open dimensions: a value
        that is the same at both, such as the padding to a multiple of 32, may differ at the size
        that the user sets.
        """
        values = [state.known.get(name) for state in self._states]
        if not values or any(None in info.shape[1:] for info in self._inputs):
            return None
        first = values[0]
        same = first is not None and all(value is not None and np.array_equal(value, first)
                                         for value in values)
        return first if same else None

    def with_attributes(self, node: Node) -> Node | None:
        """Return a copy of a node with its parameter inputs turned into attributes.

        Parameters are, for example, the sizes of a split. Returns None if a parameter is unknown.
        """
        node = replace(node, inputs=list(node.inputs), attributes=dict(node.attributes))
        known = {name: array for name in node.inputs[1:]
                 if (array := self.constant(name)) is not None}
        is_known = len(node.inputs) < 2 or inputs_to_attributes(node, known)
        return node if is_known else None

    def depends_on_data(self, name: str) -> bool:
        """Return whether a value depends on the data.

        A value that does not depend on the data follows from shapes alone. resolve() folds it into
        a constant, which may differ between batch sizes.
        """
        return name in self._data_dependent

    def shapes(self, name: str) -> list[Shape]:
        """Return the shape of a value at each batch size."""
        return [state.shapes[name] for state in self._states if name in state.shapes]

    def rank(self, name: str) -> int | None:
        shapes = self.shapes(name)
        return len(shapes[0]) if shapes else None

    def dtype(self, name: str) -> str:
        return self._states[0].dtypes.get(name, "") if self._states else ""

    def equal(self, first: str, second: str) -> bool:
        """Return whether two values certainly have the same shape at every batch size."""
        shapes = self.shapes(first)
        return len(shapes) == len(self._states) > 0 and shapes == self.shapes(second)

    def broadcast_to(self, output: str, operands: Sequence[str],
                     constants: dict[str, np.ndarray]) -> bool:
        """Return whether the operands broadcast to the output's shape at every batch size.

        constants: arrays by name; their shapes replace the inferred shapes.
        """
        for state in self._states:
            shapes = [constants[name].shape if name in constants else state.shapes[name]
                      for name in operands]
            if np.broadcast_shapes(*shapes) != state.shapes[output]:
                return False
        return bool(self._states)


def shapes_by_batch(graph: Graph) -> ShapesByBatch:
    """Infer the graph's shapes at two batch sizes.

    Dimensions that the file leaves open have size 256 at the first batch size and 384 at the
    second. Raises UnsupportedError for a node that gossamer cannot compute at any batch size, such
    as an op in a dtype without arithmetic.
    """
    data_dependent = _data_dependent(graph)
    batches = (2, 3) if graph.fixed_batch is None else (graph.fixed_batch, graph.fixed_batch + 1)
    states: list[InferenceState] = []
    for index, batch in enumerate(batches):
        inputs = []
        for info in graph.inputs:
            shape = [256 + 128 * index if size is None and axis else size
                     for axis, size in enumerate(info.shape)]
            inputs.append(replace(info, shape=tuple(shape)))
        state = InferenceState(replace(graph, inputs=inputs), batch,
                               states[0] if states and graph.fixed_batch else None)
        try:
            for node in graph.nodes:
                visit(state, node)
        except GossamerError as error:
            if isinstance(error, UnsupportedError) and not states:
                raise
            # a file may run at its own batch size only: keep the shapes at this size
            return ShapesByBatch(states if graph.fixed_batch else [], data_dependent,
                                 graph.inputs)
        states.append(state)
    return ShapesByBatch(states, data_dependent, graph.inputs)


def _data_dependent(graph: Graph) -> set[str]:
    """Return the names of the values that depend on the data."""
    names = {info.name for info in graph.inputs}
    for node in graph.nodes:
        if node.op != "shape" and names.intersection(node.inputs):
            names.update(node.outputs)
    return names
