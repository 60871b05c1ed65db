"""OpDef: the definition of an op of a graph, and the states that its rules work on.

InferenceState holds what shape inference has found so far, and the nodes that it has made. Images
holds the axis of each value along which the images of a batch lie one after another.
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
"""Exceptions that a rule raises where a node has attributes or inputs that no exporter writes."""

_WORDS = {
    ZeroDivisionError: "it divides by 0", OverflowError: "a number is too large",
    ArithmeticError: "a number cannot be computed", IndexError: "a list of numbers is too short",
    LookupError: "an attribute or input is missing or unknown",
    ValueError: "an attribute or input has an impossible value or shape",
    Exception: "an attribute or input is missing, or of another type than expected"}
"""What is wrong with a node, by the class of the exception that its rule raises."""


def malformed(error: Exception) -> str:
    """Return a message about a node whose rule raises one of MALFORMED, without the node's name."""
    words = next(words for kind, words in _WORDS.items() if isinstance(error, kind))
    return f"is malformed: {words} ({first_line(error)}); export the model again"


class InferenceState:
    """The state of the shape inference of a graph at one batch size.

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
        return UnsupportedError(onnx_model.with_advice(str(self.error(node, text))))

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
        """Return the names of values that a node joins, cast to one dtype where they have several.
        Truth values may have several: those of inputs and constants are bool, those that a node
        computes have the dtype of the numbers that it compares."""
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


@dataclass
class Images:
    """The axis along which the images of a batch lie in each value of a graph, found by a
    comparison of the graph's static graphs at two batch sizes.

    The images of a value can only lie along the one axis whose size grows with the batch. The
    mixing rules of the ops show whether the images do lie along this axis, and are not mixed.

    static, other: the graph at two batch sizes.
    axes: the axis along which the images of a value lie, by the name of the value. Values for which
    no rule has shown this axis are absent.
    """

    static: StaticGraph
    other: StaticGraph
    axes: dict[str, int] = field(default_factory=dict)

    def growing_axis(self, name: str) -> int | None:
        """Return the only axis of a value that grows with the batch; None where no axis grows with
        the batch, or where another axis changes too."""
        return self._growing_axis(self.static.shapes[name], self.other.shapes.get(name, ()))

    def is_fixed(self, name: str) -> bool:
        """Return whether a value has the same shape at both batch sizes."""
        return self.static.shapes[name] == self.other.shapes.get(name)

    def add_constant(self, name: str) -> bool:
        """Return whether a constant is the same at both batch sizes, or has the same numbers for
        each image. In the second case the axis of its images is recorded."""
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
    """The mixing rule of an op that only changes the order of axes. Values keep their order along
    each axis, so that no images are mixed."""


def keeps_images_separate(images: Images, node: Node) -> str | None:
    """The mixing rule of an op that computes images independently of each other where they lie
    along axis 0 of its first input, and its other inputs have no images."""
    if any(name in images.axes for name in node.inputs[1:]):
        return "takes inputs other than its first from the batch"
    axis = images.axes.get(node.inputs[0], 0)
    return f"works across axis {axis}, {BATCH_AXIS}" if axis else None


def works_across_images(images: Images, node: Node) -> str | None:
    """The mixing rule of an op that works along its attribute `axis`."""
    axis = node.attributes["axis"] % max(len(images.static.shapes[node.inputs[0]]), 1)
    if any(images.axes.get(name) == axis for name in node.inputs):
        return f"works across axis {axis}, {BATCH_AXIS}"
    return None


def broadcasts_across_images(images: Images, node: Node) -> str | None:
    """The mixing rule of an op whose inputs broadcast to its output's shape."""
    return mixing_operands(images, node, node.inputs)


def mixing_operands(images: Images, node: Node, names: Sequence[str]) -> str | None:
    """Return how a node mixes images through the inputs `names`, which broadcast to its output's
    shape; None where it mixes none."""
    output = node.outputs[0]
    axis = images.growing_axis(output)
    if axis is None:
        return "lays the batch along another axis"
    for name in names:
        shape = images.static.shapes[name]
        own_axis = axis - (len(images.static.shapes[output]) - len(shape))
        if name in images.axes:
            # an image may be broadcast along its own axes, but not along the axis of the images
            same = [own_axis >= 0 and static.shapes[name][own_axis] == static.shapes[output][axis]
                    for static in (images.static, images.other)]
            if images.axes[name] != own_axis or not all(same):
                return "lays the batch along another axis"
        elif own_axis >= 0 and shape[own_axis] != 1:
            return "treats each input of a batch by its place in the batch"
    return None


BATCH_AXIS = "along which the inputs of a batch lie"
"""Text that follows the name of an axis in messages, and says why an op may not work along the
axis."""


ShapeRule = Callable[[InferenceState, Node], None]
"""A function that checks a node, makes its attributes concrete and adds the node, or nodes that
replace it, to the state."""

Evaluation = Callable[[dict[str, Any], Sequence[np.ndarray]], list[np.ndarray]]
"""A function of a node's concrete attributes and inputs that computes its outputs with NumPy."""

MixingRule = Callable[[Images, Node], str | None]
"""A function of (images, node) that returns how the node mixes images, as text that follows the
node's name. It returns None where image i of the outputs is a function of image i of the inputs,
with the same function for every i. The images of an output lie along the only axis that grows with
the batch. The rule is called where an input has images, or where an output grows with the batch."""

FactsRule = Callable[[StaticGraph, Node, Sequence[ValueFacts]], list[ValueFacts]]
"""A function of (static graph, node, facts of its inputs) that returns the facts of its outputs."""


@dataclass(frozen=True)
class OpDef:
    """The definition of an op of the graph.

    No field has a default, so that every definition has to state all fields: a wrong field may give
    wrong results.

    name: the `op` of the op's nodes.
    text: the inputs in order ("[x]" may be absent), a semicolon, and the attributes.
    shape: the shape rule.
    evaluate: the evaluation with NumPy, by which shape arithmetic and constants are computed, or
    `not_evaluated`.
    mixes: the mixing rule. It decides whether a batch may be run in parts, and whether a file may
    be run at a batch size other than its own. Rules of several ops are in this module.
    passes_values: whether each element of an output is an element of the inputs, or a function of a
    few elements. If so, the rounding of an input may flip a sign that is taken of an output. A
    batch norm before such a node and sign is therefore not folded into weights.
    discontinuous: function that returns whether a small change of an input may change a node's
    result a lot, as a sign does; `never` for an op whose results are continuous.
    facts: the rule that derives the value facts of the outputs.
    float_only: whether the op is computed in float32 only, so that other dtypes are refused.
    attribute_inputs: names of the attributes that a node may take from its second and further
    inputs instead, in the order of these inputs.

    An op that resolve() always turns into other ops takes some of its fields from RESOLVED.
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
    """Stand for `evaluate`, `mixes` and `facts` of an op that resolve() turns into other ops, so
    that no static graph has the op."""
    raise AssertionError("an op that resolve() turns into others is in a static graph")


RESOLVED: dict[str, Any] = {"evaluate": resolved, "mixes": resolved, "facts": resolved}
"""The fields of an op that resolve() always turns into other ops."""


def not_evaluated(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> NoReturn:
    """Stand for the evaluation of an op that stays a node even where all its inputs are known,
    since no file uses the op in shape arithmetic."""
    raise AssertionError("an op without an evaluation was evaluated")


def never(node: Node) -> bool:
    """The field `discontinuous` of an op with continuous results."""
    return False


def always(node: Node) -> bool:
    """The field `discontinuous` of an op with results that are whole numbers or indices."""
    return True


def first_input(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """The facts rule of an op whose outputs hold only values of its first input."""
    return [facts[0]] * len(node.outputs)


def nothing_known(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """The facts rule of an op that states nothing about its results."""
    return [ValueFacts()] * len(node.outputs)
