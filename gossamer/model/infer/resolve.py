"""Shape inference of a graph at one batch size, or at two.

`resolve` returns the graph of one batch size, with shape arithmetic folded. ShapesByBatch has the
shapes at two batch sizes: shapes that are equal at both are equal at every batch size.

This module also checks whether each image of a batch is computed independently of the others
(independent_images). Only then may a batch be split, or a file run at a batch size other than its
own.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral

import numpy as np

from gossamer.errors import GossamerError, InputError, ModelError, UnsupportedError, quoted
from gossamer.expression import Expression
from gossamer.model.graph import Graph, Node, StaticGraph, ValueInfo
from gossamer.model.opset.definition import (
    MALFORMED,
    Images,
    InferenceState,
    Shape,
    malformed,
    not_evaluated,
)
from gossamer.model.opset.elementwise import COMPUTED
from gossamer.model.opset.registry import OPSET, inputs_to_attributes

_VIEWS = ("expand", "reshape")
"""Ops that NumPy evaluates to a view of their first input, which needs no memory."""
_DIFFERS = "does something else at another batch size"
TRIAL_SIZE = 256
"""Size of open dimensions when nodes are checked before the sizes of the inputs are known."""
_TRIALS = ((1, TRIAL_SIZE), (2, 192), (7, 90))
"""Pairs of a batch size and a size of the other open dimensions, for checks of nodes before the
sizes of the inputs are known."""
_PROBES = (7, 5)
"""Batch sizes at which the shapes of the network are inferred. A dimension with size 7 at the first
and 5 at the second follows the batch; a fixed dimension has the same size at both."""


def visit(state: InferenceState, node: Node) -> None:
    """Apply the shape rule of a node's op.

    The rule adds nodes to the state. An added node whose inputs are known is replaced by its
    computed outputs. Raises ModelError for a malformed node.
    """
    node = copy.copy(node)
    node.attributes = dict(node.attributes)
    node.inputs = [state.aliases.get(name, name) for name in node.inputs]
    definition = OPSET.get(node.op)
    if definition is None:
        raise state.error(node, f"op {quoted(node.op)} is unknown")
    for name in node.inputs:
        if name and name not in state.shapes:
            raise state.error(node, f"reads {quoted(name)}, which nothing provides")
    if definition.attribute_inputs and not inputs_to_attributes(node, state.known):
        unknown = next(n for n in node.inputs[1:] if n and n not in state.known)
        raise state.unsupported(node, f"has a shape that depends on the data in {quoted(unknown)}; "
                                      "gossamer needs shapes that follow from the input's shape")
    if definition.float_only and not all(name in state.known for name in node.inputs):
        for name in node.inputs:
            if name and state.dtypes[name] != "float32":
                raise state.unsupported(node, f"computes with {state.dtypes[name]} ({quoted(name)})"
                                              "; gossamer computes this op in float32 only")
    emitted = len(state.nodes)
    try:
        with np.errstate(all="ignore"):
            definition.shape(state, node)
            state.nodes[emitted:] = [new for new in state.nodes[emitted:]
                                     if not _evaluated(state, node, new)]
    except MALFORMED as error:
        raise state.error(node, malformed(error)) from error
    except MemoryError as error:
        raise state.error(node, f"makes a constant that does not fit in memory ({error})") from None


def _evaluated(state: InferenceState, node: Node, new: Node) -> bool:
    """Evaluate a new node if possible, and return whether it was evaluated.

    node: the node of the graph, for messages.
    """
    evaluate = OPSET[new.op].evaluate
    if evaluate is not_evaluated or any(name not in state.known for name in new.inputs):
        return False
    is_view = new.op in _VIEWS
    if not is_view:
        for name in new.outputs:
            state.check_constant(node, state.shapes[name], state.dtypes[name])
    read = [state.known[name] for name in new.inputs]
    for name, array in zip(new.outputs, evaluate(new.attributes, read), strict=True):
        if is_view and not np.may_share_memory(array, read[0]):
            state.check_constant(node, state.shapes[name], state.dtypes[name])
        state.know(name, array)
    return True


def independent_images(static: StaticGraph, other: StaticGraph) -> tuple[str | None, set[str]]:
    """Check that images are independent, by comparing a graph at two batch sizes node by node.

    Returns (reason, names). reason: why images may depend on each other or on the batch size, as
    text that starts with a node or an output; None if no reason is found. names: the outputs that
    have one or more rows per image; empty if there is a reason. Other outputs do not depend on the
    images.
    """
    images = Images(static, other)
    for info in static.graph.inputs:
        if info.shape[:1] == (None,):
            images.axes[info.name] = 0
    twins = {node.outputs[0]: node for node in other.nodes}
    made_by: dict[str, Node] = {}
    for node in static.nodes:
        made_by.update(dict.fromkeys(node.outputs, node))
        if mixing := _mixing(images, node, twins.get(node.outputs[0])):
            return f"{_text(node)} {mixing}", set()
    for info in static.graph.outputs:
        name = info.name
        if name in static.constants and not images.add_constant(name):
            return f"output {name!r} depends on the size of the batch", set()
        if axis := images.axes.get(name):
            maker = made_by.get(name)
            return f"{_text(maker) if maker else name} moves the batch to axis {axis}", set()
    return None, {info.name for info in static.graph.outputs if info.name in images.axes}


def _mixing(images: Images, node: Node, twin: Node | None) -> str | None:
    """Return why a node may mix images or depend on the batch size, else None.

    The reason is text that follows the node's name. If there is no reason, the axis of the images
    in each of the node's outputs is recorded in `images`.

    twin: the node that makes the same outputs at the other batch size.
    """
    for name in node.inputs:
        if name in images.static.constants and not images.add_constant(name):
            return f"reads {name!r}, which depends on the size of the batch"
    depends = any(name in images.axes for name in node.inputs)
    outputs = [name for name in node.outputs if name]
    grows = not all(images.is_fixed(name) for name in outputs)
    if not depends and not _computes_the_same(node, twin, followed=grows):
        return _DIFFERS
    if depends or grows:
        if mixing := OPSET[node.op].mixes(images, node):
            return mixing
        for name in outputs:
            axis = images.growing_axis(name)
            if axis is None:
                return f"makes {name!r}, which has no axis that grows with the batch"
            images.axes[name] = axis
    return None if _computes_the_same(node, twin, followed=depends or grows) else _DIFFERS


def _computes_the_same(node: Node, twin: Node | None, followed: bool) -> bool:
    """Return whether a node performs the same computation at both batch sizes.

    twin: the node that makes the same outputs at the other batch size.
    followed: whether the attribute `shape` may differ between the batch sizes, because the outputs
    are already known to grow with the batch.
    """
    def attributes(which: Node) -> dict[str, object]:
        return {name: value for name, value in which.attributes.items()
                if not followed or name != "shape"}

    return (twin is not None and node.op == twin.op and node.inputs == twin.inputs
            and node.outputs == twin.outputs and attributes(node) == attributes(twin))


def _text(node: Node) -> str:
    return node.source or node.name


def resolve(graph: Graph, batch: int) -> StaticGraph:
    """Return the static graph of one batch size, which may be 0.

    `batch` has no effect if the inputs have no batch dimension. A file that was written for one
    batch size runs at another one if every node is shown to compute each image independently of
    the others.

    Raises InputError for open dimensions other than the batch. Raises ModelError for shapes that do
    not match, and for a batch size at which the file is not shown to run.
    """
    if batch < 0:
        raise InputError(f"batch is {batch}, expected 0 or more")
    check_open_dimensions(graph)
    free = any(info.shape[:1] == (None,) for info in graph.inputs)
    if not free or batch == graph.fixed_batch:
        return _run(InferenceState(graph, batch))
    if graph.fixed_batch is not None:
        return _at_another_batch(graph, graph.fixed_batch, batch)
    other_batch = InferenceState(graph, 2 if batch != 2 else 3)
    try:
        _run(other_batch)
    except ModelError:
        return _run(InferenceState(graph, batch))
    return _run(InferenceState(graph, batch, other_batch))


def _at_another_batch(graph: Graph, written: int, batch: int) -> StaticGraph:
    """Return the static graph at a batch size other than the one the file was written for.

    Raises ModelError unless every node is shown to compute each image independently of the others,
    and in the same way as at the file's batch size.
    """
    advice = (f"the file is written for batch {written} and does not run at {batch}: run it at "
              f"batch {written}, or export it with a free batch dimension")
    own = InferenceState(graph, written)
    own_static = _run(own)
    try:
        static = _run(InferenceState(graph, batch, own))
    except ModelError as error:
        raise ModelError(f"{error}; {advice}") from None
    mixing, _ = independent_images(static, own_static)
    if mixing is not None:
        raise ModelError(f"{graph.file or graph.name}: {mixing}; {advice}")
    return static


def with_shapes(graph: Graph, overrides: Mapping[str, Sequence[int]]) -> Graph:
    """Return the graph with the open dimensions of some inputs set.

    overrides: shapes of inputs by name, without the batch dimension if the input has one.
    Raises InputError for an unknown input or a shape that contradicts the file.
    """
    if not isinstance(overrides, Mapping):
        raise InputError(f"shapes is {quoted(overrides)}, expected sizes by the names of inputs, "
                         "such as {'image': (3, 224, 224)}")
    inputs = {info.name: info for info in graph.inputs}
    for name, sizes in overrides.items():
        if name not in inputs:
            raise InputError(f"{graph.file}: has no input {quoted(name)}; its inputs: "
                             f"{', '.join(inputs)}")
        info = inputs[name]
        try:
            sizes = tuple(map(operator.index, sizes))
        except TypeError:
            raise InputError(f"shapes: input {quoted(name)} has {quoted(sizes)}, expected its "
                             "sizes without the batch, such as (3, 224, 224) or (5,)") from None
        batch: tuple[int | None, ...] = (None,) if info.shape[:1] == (None,) else ()
        shape = (*batch, *sizes)
        fits = len(shape) == len(info.shape) and all(
            file_size in (None, size) for file_size, size in zip(info.shape, shape, strict=True))
        if not fits or any(size is not None and size < 0 for size in shape):
            raise InputError(f"{graph.file}: input {quoted(name)} cannot have shape {list(sizes)}; "
                             f"the file says {_shape_text(info.shape[len(batch):])}"
                             f"{', without the batch' if batch else ''}")
        inputs[name] = replace(info, shape=shape)
    return replace(graph, inputs=list(inputs.values()))


def check_nodes(graph: Graph) -> None:
    """Raise ModelError for a node that is wrong at every size of the inputs.

    An example is an axis that the node's input does not have. The graph is inferred at several
    sizes. If the same error occurs at all sizes, this error is raised.
    """
    sizes = _TRIALS if graph.fixed_batch is None or is_open(graph) else _TRIALS[:1]
    errors: dict[str, ModelError] = {}
    for batch, size in sizes:
        try:
            _run(InferenceState(at_size(graph, size), graph.batch_or(batch)))
            return
        except ModelError as error:
            errors[str(error)] = error
    if len(errors) == 1:
        raise next(iter(errors.values()))


def at_size(graph: Graph, size: int) -> Graph:
    """Return the graph with every open dimension, except the batch, set to one size."""
    return replace(graph, inputs=[replace(info, shape=tuple(
        size if length is None and axis else length for axis, length in enumerate(info.shape)))
        for info in graph.inputs])


def is_open(graph: Graph) -> bool:
    """Return whether an input leaves a dimension other than the batch open."""
    return any(None in info.shape[1:] for info in graph.inputs)


def check_open_dimensions(graph: Graph) -> None:
    """Raise InputError when an input leaves a dimension other than the batch open."""
    for info in graph.inputs:
        if None in info.shape[1:]:
            index = info.shape.index(None, 1)
            first = 1 if info.shape[:1] == (None,) else 0
            label = info.labels[index] if index < len(info.labels) else ""
            sizes = ["SIZE" if size is None else str(size) for size in info.shape[first:]]
            text = ", ".join(sizes) if len(sizes) > 1 else f"{sizes[0]},"
            raise InputError(f"{graph.file}: input {quoted(info.name)} leaves dimension {index}"
                             f"{f' ({label})' if label else ''} open; set it with --shape "
                             f"{info.name}={','.join(sizes)}, in Python with "
                             f"compile(..., shapes={{{quoted(info.name)}: ({text})}})")


def _shape_text(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _run(state: InferenceState) -> StaticGraph:
    """Apply the shape rules of all nodes, and return the static graph without unused nodes."""
    for node in state.graph.nodes:
        visit(state, node)
    for info in state.graph.outputs:
        made = state.dtypes[info.name]
        # a graph that was built in code need not declare the dtypes of its outputs
        if state.graph.file and made != info.dtype:
            raise ModelError(f"{state.graph.file}: output {quoted(info.name)} is declared as "
                             f"{info.dtype}, its node makes {made}; export the model again")
        if info.name in state.aliases:
            source = state.aliases.pop(info.name)
            # element-wise expressions compute in some dtypes only; an expansion copies any dtype
            op, attributes = ("elementwise", {"expression": Expression(1)}) if (
                made in COMPUTED) else (
                    "expand", {"shape": state.shapes[info.name]})
            state.nodes.append(Node(op, f"{info.name}.copy", [source], [info.name], attributes))
    nodes = live_nodes(state.nodes, [info.name for info in state.graph.outputs])
    used = {name for node in nodes for name in node.inputs}
    used |= {info.name for info in state.graph.outputs}
    constants = {name: array for name, array in state.known.items() if name in used}
    values = used | {name for node in nodes for name in node.outputs}
    values |= {info.name for info in state.graph.inputs}
    return StaticGraph(state.graph, state.batch, nodes, constants,
                       {name: s for name, s in state.shapes.items() if name in values},
                       {name: d for name, d in state.dtypes.items() if name in values})


def live_nodes(nodes: list[Node], outputs: Sequence[str]) -> list[Node]:
    """Return the nodes on which the values `outputs` depend, in order."""
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            live.append(node)
    return live[::-1]


def default_batch(graph: Graph) -> int:
    """Return the batch size to use if the caller specifies none.

    The result is 1, or the file's batch size if the network does not run at batch size 1.
    """
    if graph.fixed_batch is None:
        return 1
    try:
        resolve(graph, 1)
    except GossamerError:
        return graph.fixed_batch
    return 1


def mixing_node(graph: Graph, batch: int) -> str | None:
    """Return why a row of the outputs depends on other rows of its batch.

    The reason is text that starts with the node: "ReduceMean 'mean' works across axis 0". Returns
    None if every row depends on its own input only.
    """
    mixing, by_row = along_batch(graph, batch)
    if mixing is not None:
        return mixing
    for info in graph.outputs:
        if info.name not in by_row:
            return f"output {info.name!r} has no row for each input"
    return None


def along_batch(graph: Graph, batch: int) -> tuple[str | None, set[str]]:
    """Determine whether the rows of a batch are computed independently of each other.

    Returns (reason, names). reason: why rows may depend on each other, as text; None if every row
    depends on its own input only. names: the outputs that have one or more rows per input; empty
    if there is a reason. Other outputs do not depend on the batch.
    """
    if graph.tail is not None:
        return ("the end of the network, which ONNX Runtime computes, may mix the images of a "
                "batch"), set()
    statics: list[StaticGraph] = []
    refusal = ""
    for size in dict.fromkeys((*_PROBES, batch, graph.batch_or(1))):
        try:
            statics.append(resolve(graph, size))
        except GossamerError as error:  # a plan of this batch size raises this error again
            refusal = refusal or str(error)
        if len(statics) == 2:
            return independent_images(*statics)
    outputs = {info.name for info in graph.outputs}
    if not statics:
        return None, outputs
    (static,) = statics
    if static.batch == 1 and all(static.shapes[name][:1] == (1,) for name in outputs):
        # the network accepts one image at a time, and no other batch size
        return None, outputs
    return refusal, set()


def check_batch(batch: object) -> None:
    """Raise InputError unless a batch size is an integer of 0 or more."""
    if isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 0:
        raise InputError(f"batch {quoted(batch)}: expected a number of images, 0 or more, such as "
                         "8")


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
        state = InferenceState(at_size(graph, 256 + 128 * index), batch,
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
