"""Sample: shapes of a graph's values at a few batch sizes, to tell what holds for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gossamer.errors import GossamerError
from gossamer.model.compose import Composer
from gossamer.model.graph import Graph
from gossamer.model.infer.shape_rules import visit
from gossamer.model.infer.state import InferenceState, Shape


class Sample:
    """Shapes follow the batch (and open dimensions) linearly, so that shapes that are equal at
    two sizes are equal at all. Nothing is known where the graph does not resolve."""

    def __init__(self, walks: Sequence[InferenceState], data: set[str]) -> None:
        self._walks = walks
        self._data = data

    def from_data(self, name: str) -> bool:
        """Whether the data decide the value. What follows from shapes alone, resolve() may turn
        into a constant, which is another one at another batch size."""
        return name in self._data

    def shapes(self, name: str) -> list[Shape]:
        return [state.shapes[name] for state in self._walks if name in state.shapes]

    def rank(self, name: str) -> int | None:
        shapes = self.shapes(name)
        return len(shapes[0]) if shapes else None

    def dtype(self, name: str) -> str:
        return self._walks[0].dtypes.get(name, "") if self._walks else ""

    def equal(self, first: str, second: str) -> bool:
        """Whether two values have the same shape, for certain."""
        shapes = self.shapes(first)
        return len(shapes) == len(self._walks) > 0 and shapes == self.shapes(second)

    def same(self, output: str, operands: Sequence[str], constants: dict[str, np.ndarray]) -> bool:
        """Whether operands, some of them perhaps new constants, broadcast to the output's
        shape."""
        for state in self._walks:
            shapes = [constants[name].shape if name in constants else state.shapes[name]
                      for name in operands]
            if np.broadcast_shapes(*shapes) != state.shapes[output]:
                return False
        return bool(self._walks)


def sample(graph: Graph) -> Sample:
    """Two batch sizes; sizes of 256 and 384 where the file leaves a dimension open."""
    data = _from_data(graph)
    batches = (2, 3) if graph.fixed_batch is None else (graph.fixed_batch, graph.fixed_batch + 1)
    walks: list[InferenceState] = []
    for index, batch in enumerate(batches):
        inputs = []
        for info in graph.inputs:
            shape = [256 + 128 * index if size is None and axis else size
                     for axis, size in enumerate(info.shape)]
            inputs.append(replace(info, shape=tuple(shape)))
        state = InferenceState(replace(graph, inputs=inputs), batch,
                    walks[0] if walks and graph.fixed_batch else None)
        try:
            for node in graph.nodes:
                visit(state, node)
        except GossamerError:
            # a file that cannot leave its own batch size is known by that one
            return Sample(walks if graph.fixed_batch else [], data)
        walks.append(state)
    return Sample(walks, data)


def _from_data(graph: Graph) -> set[str]:
    found = {info.name for info in graph.inputs}
    for node in graph.nodes:
        if node.op != "shape" and found.intersection(node.inputs):
            found.update(node.outputs)
    return found


def as_step(composer: Composer, constant: np.ndarray | None, name: str) -> int:
    """The value of an operand in an expression: a constant of one value is a step of it."""
    if constant is None or constant.size != 1:
        return composer.operand(name)
    return composer.constant(constant.item())
