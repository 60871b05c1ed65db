"""Probe: infers the shapes of a graph at one size while the graph is read, to find out whether
gossamer computes a node."""

from __future__ import annotations

import numpy as np

from gossamer.errors import GossamerError, UnsupportedError
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import at_size
from gossamer.model.infer.visit import visit
from gossamer.model.opset.state import InferenceState, Shape

_OPEN_SIZE = 256
"""The size that a probe takes for a dimension that the file leaves open."""

OTHER_SIZES = {"batch": 2, "open_size": 192}
"""The sizes of open dimensions in a second probe, which shows what does not depend on them."""


class Probe:
    """The known shapes and dtypes of a graph's values at one batch size.

    The batch size is the file's fixed batch size where the file has one, else `batch`. A value is
    not known where its node does not fit the sizes that were taken for open dimensions.

    open_size: the size that is taken for open dimensions other than the batch.
    is_only_size: whether the file fixes all dimensions, the batch included.
    """

    def __init__(self, graph: Graph, batch: int = 1, open_size: int = _OPEN_SIZE) -> None:
        self._graph = graph
        self.is_only_size = not any(None in info.shape[1:] or (
            None in info.shape[:1] and graph.fixed_batch is None) for info in graph.inputs)
        self._state = InferenceState(at_size(graph, open_size), graph.batch_or(batch))

    def add(self, nodes: list[Node]) -> None:
        """Adds nodes of the graph. Raises UnsupportedError for a node that gossamer computes at no
        size."""
        for node in nodes:
            for name in filter(None, node.inputs):
                self._learn(name)
            if any(name and name not in self._state.shapes for name in node.inputs):
                continue
            try:
                visit(self._state, node)
            except UnsupportedError:
                raise
            except GossamerError:
                # the sizes of this probe do not fit the node, or the file is wrong: resolve()
                # raises an error for a wrong file
                continue

    def add_value(self, name: str, shape: Shape, dtype: str) -> None:
        """Adds a value that the data decide."""
        self._state.shapes[name], self._state.dtypes[name] = shape, dtype

    def shape(self, name: str) -> Shape | None:
        self._learn(name)
        return self._state.shapes.get(name)

    def dtype(self, name: str) -> str | None:
        self._learn(name)
        return self._state.dtypes.get(name)

    def known(self, name: str) -> np.ndarray | None:
        """Returns a value that follows from shapes and constants; None for other values."""
        self._learn(name)
        return self._state.known.get(name)

    def _learn(self, name: str) -> None:
        """Adds a constant that was added to the graph since the last call."""
        if name not in self._state.shapes and name in self._graph.constants:
            self._state.know(name, self._graph.constants[name])
