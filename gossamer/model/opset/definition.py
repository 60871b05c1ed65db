"""OpDef: the definition of an op of a graph, and the states that its rules work on.

InferenceState holds the results of shape inference so far, and the nodes that shape inference has
emitted. Images holds, for each value, the axis along which the images of a batch lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NoReturn

import numpy as np

from gossamer import onnx_model
from gossamer.errors import ModelError, UnsupportedError, first_line
from gossamer.facts import ValueFacts
from gossamer.io.limits import most_value_bytes, raised
from gossamer.io.text import bytes_text
from gossamer.model.graph import Graph, Node, StaticGraph, names_of, unused_name

Shape = tuple[int, ...]

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that rules raise for malformed attributes or inputs."""

_WORDS = {
    ZeroDivisionError: "it divides by 0", OverflowError: "a number is too large",
    ArithmeticError: "a number cannot be computed", IndexError: "a list of numbers is too short",
    LookupError: "an attribute or input is missing or unknown",
    ValueError: "an attribute or input has an impossible value or shape",
    Exception: "an attribute or input is missing, or of another type than expected"}
"""Descriptions of malformed nodes, by the class of the exception that the node's rule raises."""


def malformed(error: Exception) -> str:
    """Return a message about a malformed node, without the node's name.

    error: the exception of the node's rule, one of MALFORMED.
    """
    words = next(words for kind, words in _WORDS.items() if isinstance(error, kind))
    return f"is malformed: {words} ({first_line(error)}); export the model again"


class InferenceState:
    """The state of the shape inference of a graph at one batch size.

    Nodes are visited in order (gossamer.model.infer.resolve). The shape rule of a node's op checks
    the node, makes its attributes concrete (a negative axis becomes nonnegative, for example), and
    adds either the node or its replacements to this state.

    other_batch: the finished state of the same graph at another batch size, or None. Rules compare
    the two states to find out which sizes depend on the batch.
    nodes: the nodes that were emitted.
    known: arrays of the values that do not depend on the data, by name.
    shapes, dtypes: shape and dtype of every value that was made so far, by name.
    aliases: for each value that equals an earlier value, the name of the earlier value.
    most_bytes: limit on the bytes of one value, and on the total bytes of all constants that nodes
    compute.
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
        return UnsupportedError(onnx_model.with_advice(str(self.error(node, text))))

    def emit(self, node: Node, result: Sequence[int], *, op: str | None = None,
             inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None,
             dtype: str | None = None, several: Sequence[Shape] | None = None,
             **attributes: Any) -> str:
        """Append a node that replaces `node`, and return the name of its first output.

        If all inputs of the new node are known, its outputs are computed after the shape rule has
        returned.

        result: the shape of all outputs; not used if `several` is given.
        op, inputs, outputs: op, inputs and outputs of the new node; None means those of `node`.
        dtype: dtype of the outputs; None means the first input's dtype.
        several: the shape of each output, if the shapes differ.
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
        """Cast the operands of a node to a common dtype, and return the names of the results.

        Casts may be necessary for booleans: the dtype of inputs and constants is bool, but the
        result of a comparison has the dtype of the compared numbers.
        """
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

        Raises ModelError for more bytes than gossamer.io.limits allows: a file that needs more is
        probably wrong or malicious.
        """
        if min(shape, default=0) < 0:
            raise self.error(node, f"makes a value of shape {list(shape)}; expected sizes of 0 or "
                                   "more")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > self.most_bytes:
            raise self.error(node, f"makes a value of shape {list(shape)}, {bytes_text(size)}; "
                                   f"expected at most {bytes_text(self.most_bytes)}; if this is "
                                   f"intended, set {raised(size)}")
        return size

    def check_constant(self, node: Node, shape: Sequence[int], dtype: str) -> None:
        """Count the bytes of a constant that a node makes.

        Raises ModelError if all such constants together become too large.
        """
        self._constant_bytes += self.check_size(node, shape, dtype)
        if self._constant_bytes > self.most_bytes:
            raise self.error(node, f"makes a constant of shape {list(shape)}; together, such "
                                   f"constants need {bytes_text(self._constant_bytes)}, expected "
                                   f"at most {bytes_text(self.most_bytes)}; if this is intended, "
                                   f"set {raised(self._constant_bytes)}")

    def know(self, name: str, array: np.ndarray) -> str:
        """Record a value that does not depend on the data, and return the value's name."""
        self.known[name] = array
        self.shapes[name], self.dtypes[name] = array.shape, array.dtype.name
        return name

    def alias(self, node: Node) -> None:
        """Make the node's output an alias of its first input, which equals the output.

        A constant is recorded under both names, because at another batch size the node may change
        the constant.
        """
        name, source = node.outputs[0], node.inputs[0]
        if source in self.known:
            self.know(name, self.known[source])
            return
        self.aliases[name] = source
        self.shapes[name], self.dtypes[name] = self.shapes[source], self.dtypes[source]

    def reshape(self, node: Node, shape: Sequence[int], x: str | None = None,
                outputs: Sequence[str] | None = None) -> str:
        """Emit a reshape of x, and return the output's name.

        x: by default, the node's first input. If neither x nor outputs is given and the input
        already has the shape, the output becomes an alias instead.
        """
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
        """Return a nonnegative number for an axis, which may be negative.

        Raises ModelError if the axis does not exist.
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


@dataclass
class Images:
    """The axis along which the images of a batch lie in each value of a graph.

    The axis is found by comparing the static graphs of two batch sizes. The images of a value can
    only lie along the one axis that grows with the batch. The mixing rules of the ops check that
    the images do lie along this axis, and that the op does not mix them.

    static, other: the graph at two batch sizes.
    axes: the axis along which the images of a value lie, by the name of the value. A value is
    absent if no rule has confirmed its axis.
    """

    static: StaticGraph
    other: StaticGraph
    axes: dict[str, int] = field(default_factory=dict)

    def growing_axis(self, name: str) -> int | None:
        """Return the only axis of a value that grows with the batch.

        Returns None if no axis grows with the batch, or if another axis changes too.
        """
        return self._growing_axis(self.static.shapes[name], self.other.shapes.get(name, ()))

    def is_fixed(self, name: str) -> bool:
        """Return whether a value has the same shape at both batch sizes."""
        return self.static.shapes[name] == self.other.shapes.get(name)

    def add_constant(self, name: str) -> bool:
        """Return whether a constant is the same at both batch sizes, or repeats for each image.

        If the constant repeats for each image, the axis of its images is recorded.
        """
        now, before = self.static.constants[name], self.other.constants.get(name)
        if before is None or now.dtype != before.dtype:
            return False
        if now is before or (now.shape == before.shape and now.tobytes() == before.tobytes()):
            return True
        axis = self._growing_axis(now.shape, before.shape)
        if axis is None:
            return False
        images = [row for array, batch in ((now, self.static.batch), (before, self.other.batch))
                  if batch for row in np.split(array, batch, axis)]
        if any(row.tobytes() != images[0].tobytes() for row in images):
            return False
        self.axes[name] = axis
        return True

    def _growing_axis(self, now: Shape, before: Shape) -> int | None:
        if len(now) != len(before):
            return None
        axes = [axis for axis, sizes in enumerate(zip(now, before, strict=True))
                if sizes[0] != sizes[1]]
        if len(axes) != 1:
            return None
        (axis,) = axes
        sizes = (now[axis], self.static.batch), (before[axis], self.other.batch)
        if any(size % batch if batch else size for size, batch in sizes):
            return None
        return axis if now[axis] * self.other.batch == before[axis] * self.static.batch else None


def moves_images(images: Images, node: Node) -> None:
    """The mixing rule of an op that only permutes axes, and thus mixes no images."""


def keeps_images_separate(images: Images, node: Node) -> str | None:
    """The mixing rule of an op that computes each image of its first input separately.

    The images have to lie along axis 0, and the other inputs must not have images.
    """
    if any(name in images.axes for name in node.inputs[1:]):
        return "has an input other than its first that depends on the batch"
    axis = images.axes.get(node.inputs[0], 0)
    return f"works across axis {axis}, {BATCH_AXIS}" if axis else None


def works_across_images(images: Images, node: Node) -> str | None:
    """The mixing rule of an op that works along its attribute `axis`."""
    axis = node.attributes["axis"] % max(len(images.static.shapes[node.inputs[0]]), 1)
    if any(images.axes.get(name) == axis for name in node.inputs):
        return f"works across axis {axis}, {BATCH_AXIS}"
    return None


def broadcasts_across_images(images: Images, node: Node) -> str | None:
    """The mixing rule of an op with inputs that broadcast to its output's shape."""
    return mixing_operands(images, node, node.inputs)


def mixing_operands(images: Images, node: Node, names: Sequence[str]) -> str | None:
    """Return how a node mixes images through some inputs; None if the node mixes no images.

    names: the inputs, which broadcast to the shape of the node's output.
    """
    output = node.outputs[0]
    axis = images.growing_axis(output)
    if axis is None:
        return "moves the batch to another axis"
    for name in names:
        shape = images.static.shapes[name]
        own_axis = axis - (len(images.static.shapes[output]) - len(shape))
        if name in images.axes:
            # an image may be broadcast along its own axes, but not along the axis of the images
            same = [own_axis >= 0 and static.shapes[name][own_axis] == static.shapes[output][axis]
                    for static in (images.static, images.other)]
            if images.axes[name] != own_axis or not all(same):
                return "moves the batch to another axis"
        elif own_axis >= 0 and shape[own_axis] != 1:
            return "treats each input of a batch by its position in the batch"
    return None


BATCH_AXIS = "along which the inputs of a batch lie"
"""Text that follows an axis in messages: the reason why an op may not work along that axis."""


ShapeRule = Callable[[InferenceState, Node], None]
"""A function that checks a node, makes its attributes concrete, and adds either the node or its
replacements to the state."""

Evaluation = Callable[[dict[str, Any], Sequence[np.ndarray]], list[np.ndarray]]
"""A function of a node's concrete attributes and inputs that computes its outputs with NumPy."""

MixingRule = Callable[[Images, Node], str | None]
"""A function of (images, node) that returns how the node mixes images, as text that follows the
node's name. The function returns None if image i of the outputs depends only on image i of the
inputs, in the same way for every i. The images of an output lie along the only axis that grows with
the batch. The rule is called if an input has images, or if an output grows with the batch."""

FactsRule = Callable[[StaticGraph, Node, Sequence[ValueFacts]], list[ValueFacts]]
"""A function of (static graph, node, facts of the node's inputs) that returns the facts of the
node's outputs."""


@dataclass(frozen=True)
class OpDef:
    """The definition of an op of the graph.

    No field has a default: every definition states all fields, since a wrong field may cause wrong
    results.

    name: name of the op, the `op` of its nodes.
    text: the node's inputs in order ("[x]" may be absent), a semicolon, and the node's attributes.
    shape: the shape rule.
    evaluate: the evaluation with NumPy, for shape arithmetic and constants; `not_evaluated` if the
    op needs no such evaluation.
    mixes: the mixing rule, which determines whether a batch may be split, and whether a file may be
    run at a batch size other than its own. Mixing rules shared by several ops are in this module.
    passes_values: whether rounding an input may change a sign that is computed from an output.
    False for convolutions and matrix products, whose outputs are sums of many terms, and for ops
    that compute only with shapes. If the field is True for all ops between a batch norm and a sign,
    the batch norm is not folded into weights: rounding the weights could flip the sign.
    discontinuous: function that returns whether a small change of an input may change a node's
    result a lot, as a sign does; `never` for an op whose results are continuous.
    facts: the rule that derives the value facts of the outputs.
    float_only: whether the op is computed in float32 only; other dtypes are then refused.
    attribute_inputs: names of the attributes that a node may instead read from its second and
    further inputs, in the order of these inputs.

    RESOLVED holds the fields of ops that resolve() always turns into other ops.
    """

    name: str
    _: KW_ONLY
    text: str
    shape: ShapeRule
    evaluate: Evaluation
    mixes: MixingRule
    passes_values: bool
    discontinuous: Callable[[Node], bool]
    facts: FactsRule
    float_only: bool
    attribute_inputs: tuple[str, ...]

    @property
    def remains(self) -> bool:
        """Whether a static graph may have nodes of the op."""
        return self.evaluate is not resolved


def resolved(*arguments: Any) -> NoReturn:
    """Stand-in for `evaluate`, `mixes` and `facts` of an op that never occurs in a static graph.

    resolve() turns the op into other ops.
    """
    raise AssertionError("an op that resolve() turns into others is in a static graph")


RESOLVED: dict[str, Any] = {"evaluate": resolved, "mixes": resolved, "facts": resolved}
"""The fields of an op that resolve() always turns into other ops."""


def not_evaluated(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> NoReturn:
    """Stand-in for the evaluation of an op that no file uses in shape arithmetic.

    Such an op stays a node even if all its inputs are known.
    """
    raise AssertionError("an op without an evaluation was evaluated")


def never(node: Node) -> bool:
    """The field `discontinuous` of an op with continuous results."""
    return False


def always(node: Node) -> bool:
    """The field `discontinuous` of an op with integers or indices as results."""
    return True


def first_input(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """The facts rule of an op whose outputs hold only values of its first input."""
    return [facts[0]] * len(node.outputs)


def nothing_known(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """The facts rule of an op that states nothing about its results."""
    return [ValueFacts()] * len(node.outputs)
