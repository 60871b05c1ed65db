"""InferenceState: what is known of a graph's values while its nodes are made concrete one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.errors import ModelError, UnsupportedError
from gossamer.model.graph import Graph, Node, names_of, unused_name
from gossamer.model.infer.evaluate import EVALUATORS

Shape = tuple[int, ...]

CONSTANT_LIMIT = 1 << 28

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a node raises whose attributes or inputs are of a kind that no exporter writes."""


class InferenceState:
    """One pass over a graph at one batch size. Rules (gossamer.model.infer.shape_rules) check a
    node, make its attributes concrete and emit what remains of it.

    reference: the same graph's state at another batch size, from which rules see what the batch
    changes.
    """

    def __init__(self, graph: Graph, batch: int, reference: InferenceState | None = None) -> None:
        self.graph = graph
        self.batch = batch
        self.reference = reference
        self.nodes: list[Node] = []
        self.known: dict[str, np.ndarray] = dict(graph.constants)
        self.shapes: dict[str, Shape] = {n: a.shape for n, a in graph.constants.items()}
        self.dtypes: dict[str, str] = {n: a.dtype.name for n, a in graph.constants.items()}
        self.aliases: dict[str, str] = {}
        self._names = names_of(graph)
        for info in graph.inputs:
            self.shapes[info.name] = tuple(batch if size is None else size for size in info.shape)
            self.dtypes[info.name] = info.dtype

    def error(self, node: Node, text: str) -> ModelError:
        file = self.graph.file or self.graph.name
        return ModelError(f"{file}: {node.source or node.name}: {text}")

    def unsupported(self, node: Node, text: str) -> UnsupportedError:
        return UnsupportedError(str(self.error(node, text)))

    def emit(self, node: Node, result: Sequence[int], *, op: str | None = None,
             inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None,
             dtype: str | None = None, several: Sequence[Shape] | None = None,
             **attributes: Any) -> str:
        """Appends what the node became, or computes it if all its inputs are known.

        result: the shape of every output; `several` has one for each. dtype: of the outputs;
        None takes that of the first input.
        """
        op = op or node.op
        inputs = node.inputs if inputs is None else list(inputs)
        outputs = node.outputs if outputs is None else list(outputs)
        evaluator = EVALUATORS.get(op)
        if evaluator and all(name in self.known for name in inputs):
            self.check_size(node, result)
            arrays = evaluator(attributes, [self.known[name] for name in inputs])
            for name, array in zip(outputs, arrays, strict=True):
                self.know(name, array)
            return outputs[0]
        for index, name in enumerate(outputs):
            shape = result if several is None else several[index]
            self.shapes[name] = tuple(int(size) for size in shape)
            self.dtypes[name] = dtype or self.dtypes[inputs[0]]
        suffix = "" if outputs == node.outputs else outputs[0].removeprefix(node.outputs[0])
        self.nodes.append(Node(op, node.name + suffix, inputs, outputs, attributes, node.source))
        return outputs[0]

    def new_name(self, node: Node, role: str) -> str:
        """A name for a value that the file does not have, after the node's first output."""
        return unused_name(self._names, f"{node.outputs[0]}.{role}")

    def check_size(self, node: Node, shape: Sequence[int]) -> None:
        """Raises ModelError for a constant that only a mistake in the file makes so large."""
        if math.prod(shape) > CONSTANT_LIMIT:
            raise self.error(node, f"makes a constant of shape {list(shape)}; expected at most "
                                   f"{CONSTANT_LIMIT} elements")

    def know(self, name: str, array: np.ndarray) -> str:
        """Gives a value that does not depend on the data."""
        self.known[name] = array
        self.shapes[name], self.dtypes[name] = array.shape, array.dtype.name
        return name

    def alias(self, node: Node) -> None:
        """The node changes nothing: its output is its first input by another name. A constant
        keeps both names, since the node may change it at another batch size."""
        name, source = node.outputs[0], node.inputs[0]
        if source in self.known:
            self.know(name, self.known[source])
            return
        self.aliases[name] = source
        self.shapes[name], self.dtypes[name] = self.shapes[source], self.dtypes[source]

    def reshape(self, node: Node, shape: Sequence[int], x: str | None = None,
                outputs: Sequence[str] | None = None) -> str:
        """Emits a reshape of x, or an alias where the node's own input already has the shape."""
        if x is None and outputs is None and self.shapes[node.inputs[0]] == tuple(shape):
            self.alias(node)
            return node.outputs[0]
        return self.emit(node, shape, op="reshape", inputs=[x or node.inputs[0]], outputs=outputs,
                         shape=tuple(shape))

    def cast(self, node: Node, x: str, outputs: Sequence[str], dtype: str) -> str:
        if x in self.known:
            return self.know(outputs[0], self.known[x].astype(dtype))
        name = self.emit(node, self.shapes[x], op="cast", inputs=[x], outputs=outputs)
        self.nodes[-1].attributes["dtype"] = self.dtypes[name] = dtype
        return name

    def axis(self, node: Node, axis: int, rank: int) -> int:
        """The axis counted from the start. Raises ModelError when there is none such."""
        if not -rank <= axis < rank:
            raise self.error(node, f"has no axis {axis}: its input has {rank} dimensions")
        return axis % rank

    def follows_batch(self, name: str) -> bool:
        """Whether the first dimension grows with the batch."""
        if self.reference is None:
            return False
        old, new = self.reference.shapes.get(name, ()), self.shapes[name]
        return bool(old and old[0] != new[0]
                    and old[0] * self.batch == new[0] * self.reference.batch)
