"""InferenceState: records the shapes, dtypes and values that shape inference has found so far, and
the nodes that it has made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer import host_library
from gossamer.errors import ModelError, UnsupportedError, first_line
from gossamer.io.limits import most_value_bytes, raised
from gossamer.io.text import bytes_text
from gossamer.model.graph import Graph, Node, names_of, unused_name

Shape = tuple[int, ...]

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that a rule raises where a node has attributes or inputs that no exporter writes."""

_WORDS = {
    ZeroDivisionError: "it divides by 0", OverflowError: "a number is too large",
    ArithmeticError: "a number cannot be computed", IndexError: "a list of numbers is too short",
    LookupError: "an attribute or input is missing or unknown",
    ValueError: "an attribute or input has an impossible value or shape",
    Exception: "an attribute or input is missing, or of another type than expected"}
"""What is odd about a node, by the class of the exception that it causes."""


def malformed(error: Exception) -> str:
    """Return words of a message about a node that causes one of MALFORMED."""
    words = next(words for kind, words in _WORDS.items() if isinstance(error, kind))
    return f"is malformed: {words} ({first_line(error)}); export the model again"


class InferenceState:
    """State of the shape inference of a graph at one batch size.

    Nodes are visited in order (gossamer.model.infer.resolve). The shape rule of a node's op checks
    the node, makes its attributes concrete and adds the node, or nodes that replace it, to this
    state.

    other_batch: the finished state of the same graph at another batch size, or None. Rules compare
    the two states to find out which sizes depend on the batch.
    nodes: the nodes that were emitted.
    known: arrays of the values that do not depend on the data, by name.
    shapes, dtypes: shape and dtype of every value that was made so far, by name.
    aliases: for each name that is only another name of a value, the value's name.
    most_bytes: the most bytes that one value may take, and that all constants made by nodes may
    take together.
    """

    def __init__(self, graph: Graph, batch: int, other_batch: InferenceState | None = None) -> None:
        self.graph = graph
        self.batch = batch
        self.other_batch = other_batch
        self.nodes: list[Node] = []
        self.known: dict[str, np.ndarray] = dict(graph.constants)
        self.shapes: dict[str, Shape] = {n: a.shape for n, a in graph.constants.items()}
        self.dtypes: dict[str, str] = {n: a.dtype.name for n, a in graph.constants.items()}
        self.aliases: dict[str, str] = {}
        self._names = names_of(graph)
        for info in graph.inputs:
            self.shapes[info.name] = tuple(batch if size is None else size for size in info.shape)
            self.dtypes[info.name] = info.dtype
        inputs = sum(math.prod(self.shapes[info.name]) * np.dtype(info.dtype).itemsize
                     for info in graph.inputs)
        self.most_bytes = most_value_bytes(inputs, 0 if batch == graph.fixed_batch else batch)
        self._constant_bytes = 0

    def error(self, node: Node, text: str) -> ModelError:
        """Return an error whose message names the file and the node."""
        file = self.graph.file or self.graph.name
        return ModelError(f"{file}: {node.source or node.name}: {text}")

    def unsupported(self, node: Node, text: str) -> UnsupportedError:
        """Return an error about a node that gossamer does not compute."""
        return UnsupportedError(host_library.with_advice(str(self.error(node, text))))

    def emit(self, node: Node, result: Sequence[int], *, op: str | None = None,
             inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None,
             dtype: str | None = None, several: Sequence[Shape] | None = None,
             **attributes: Any) -> str:
        """Append a node that takes the place of `node`, and return the name of the new node's
        first output. Where all inputs of the new node are known, its value is computed after the
        shape rule has returned.

        result: the shape of every output, unless `several` gives the shape of each output.
        op, inputs, outputs: op, inputs and outputs of the new node; None takes those of `node`.
        dtype: dtype of the outputs; None takes the first input's dtype.
        attributes: concrete attributes of the new node.
        """
        op = op or node.op
        inputs = node.inputs if inputs is None else list(inputs)
        outputs = node.outputs if outputs is None else list(outputs)
        for index, name in enumerate(outputs):
            shape = result if several is None else several[index]
            self.shapes[name] = tuple(int(size) for size in shape)
            self.dtypes[name] = dtype or self.dtypes[inputs[0]]
            self.check_size(node, self.shapes[name], self.dtypes[name])
        suffix = "" if outputs == node.outputs else outputs[0].removeprefix(node.outputs[0])
        self.nodes.append(Node(op, node.name + suffix, inputs, outputs, attributes, node.source))
        return outputs[0]

    def in_one_dtype(self, node: Node, names: Sequence[str]) -> list[str]:
        """Return values that a node joins, in one dtype: truth values that nodes compute have the
        dtype of what they compare, those of inputs and constants are bool."""
        dtypes = {self.dtypes[name] for name in names}
        computed = sorted(dtypes - {"bool"})
        if computed == sorted(dtypes) or not computed:
            return list(names)
        dtype = computed[0] if len(computed) == 1 else "float32"
        return [name if self.dtypes[name] == dtype else self.cast(
            node, name, [self.new_name(node, f"number{index}")], dtype)
            for index, name in enumerate(names)]

    def new_name(self, node: Node, role: str) -> str:
        """Return an unused name for a new value.

        The name begins with the name of the node's first output.
        """
        return unused_name(self._names, f"{node.outputs[0]}.{role}")

    def check_size(self, node: Node, shape: Sequence[int], dtype: str) -> int:
        """Return the bytes of a value.

        Raises ModelError for more bytes than gossamer.io.limits allows: a file that asks for more
        is probably wrong or malicious.
        """
        if min(shape, default=0) < 0:
            raise self.error(node, f"makes a value of shape {list(shape)}; expected sizes of 0 or "
                                   "more")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > self.most_bytes:
            raise self.error(node, f"makes a value of shape {list(shape)}, {bytes_text(size)}; "
                                   f"expected at most {bytes_text(self.most_bytes)}; where that is "
                                   f"meant, set {raised(size)}")
        return size

    def check_constant(self, node: Node, shape: Sequence[int], dtype: str) -> None:
        """Count the bytes of a constant that a node makes.

        Raises ModelError where all such constants together become too large.
        """
        self._constant_bytes += self.check_size(node, shape, dtype)
        if self._constant_bytes > self.most_bytes:
            raise self.error(node, f"makes a constant of shape {list(shape)}, with which all such "
                                   f"constants take {bytes_text(self._constant_bytes)}; expected "
                                   f"at most {bytes_text(self.most_bytes)}; where that is meant, "
                                   f"set {raised(self._constant_bytes)}")

    def know(self, name: str, array: np.ndarray) -> str:
        """Record a value that does not depend on the data, and return the value's name."""
        self.known[name] = array
        self.shapes[name], self.dtypes[name] = array.shape, array.dtype.name
        return name

    def alias(self, node: Node) -> None:
        """Make the node's output another name of its first input, which the node does not change.
        A constant is recorded under both names, since the node may change it at another batch
        size."""
        name, source = node.outputs[0], node.inputs[0]
        if source in self.known:
            self.know(name, self.known[source])
            return
        self.aliases[name] = source
        self.shapes[name], self.dtypes[name] = self.shapes[source], self.dtypes[source]

    def reshape(self, node: Node, shape: Sequence[int], x: str | None = None,
                outputs: Sequence[str] | None = None) -> str:
        """Emit a reshape of x, by default the node's first input, and return the output's name.
        Where x and outputs are left out and the input has the shape already, makes an alias
        instead."""
        if x is None and outputs is None and self.shapes[node.inputs[0]] == tuple(shape):
            self.alias(node)
            return node.outputs[0]
        return self.emit(node, shape, op="reshape", inputs=[x or node.inputs[0]], outputs=outputs,
                         shape=tuple(shape))

    def cast(self, node: Node, x: str, outputs: Sequence[str], dtype: str) -> str:
        """Emit a cast of x, and return the output's name."""
        name = self.emit(node, self.shapes[x], op="cast", inputs=[x], outputs=outputs)
        self.nodes[-1].attributes["dtype"] = self.dtypes[name] = dtype
        return name

    def axis(self, node: Node, axis: int, rank: int) -> int:
        """Return the axis counted from the first.

        Raises ModelError where the axis does not exist.
        """
        if not -rank <= axis < rank:
            raise self.error(node, f"has no axis {axis}: its input has {rank} dimensions")
        return axis % rank

    def follows_batch(self, name: str) -> bool:
        """Return whether the first dimension of a value grows with the batch."""
        if self.other_batch is None:
            return False
        old, new = self.other_batch.shapes.get(name, ()), self.shapes[name]
        return bool(old and old[0] != new[0]
                    and old[0] * self.batch == new[0] * self.other_batch.batch)
