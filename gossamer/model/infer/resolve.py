"""resolve: makes the graph of one batch size, with every shape known and shape arithmetic
folded."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gossamer.errors import InputError, ModelError, quoted
from gossamer.expression import Expression
from gossamer.model.graph import Graph, Node, StaticGraph, ValueInfo
from gossamer.model.infer.images_apart import images_apart
from gossamer.model.infer.visit import visit
from gossamer.model.opset.elementwise import COMPUTED
from gossamer.model.opset.state import InferenceState

TRIAL_SIZE = 256
"""The size of open dimensions at which nodes are tried before the sizes of inputs are known."""
_TRIALS = ((1, TRIAL_SIZE), (2, 192), (7, 90))
"""Batch sizes, each with a size of the other open dimensions, at which nodes are tried."""


def resolve(graph: Graph, batch: int,
            overrides: Mapping[str, Sequence[int]] | None = None) -> StaticGraph:
    """Returns the graph of one batch size, which may be 0, with the shape and dtype of every value.

    A graph whose inputs have no batch keeps its own shapes whatever `batch` is. A file that was
    written for one batch size runs at another batch size if every node is shown to compute each
    image independently of the others.

    overrides: shapes of inputs by name, without the batch, where the file leaves dimensions open.
    Raises InputError for open dimensions and impossible overrides; ModelError for shapes that
    do not fit each other and for a file that is not shown to run at another batch size than its
    own.
    """
    if batch < 0:
        raise InputError(f"batch is {batch}, expected 0 or more")
    graph = with_shapes(graph, overrides or {})
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
    """Returns the graph of a batch size for which its file was not written. Raises ModelError where
    a node is not shown to compute every image independently of the others, and in the same way as
    at the file's batch size."""
    advice = (f"the file is written for batch {written} and does not run at {batch}: run it at "
              f"batch {written}, or export it with a free batch dimension")
    own = InferenceState(graph, written)
    own_static = _run(own)
    try:
        static = _run(InferenceState(graph, batch, own))
    except ModelError as error:
        raise ModelError(f"{error}; {advice}") from None
    mixing, _ = images_apart(static, own_static)
    if mixing is not None:
        raise ModelError(f"{graph.file or graph.name}: {mixing}; {advice}")
    return static


def with_shapes(graph: Graph, overrides: Mapping[str, Sequence[int]]) -> Graph:
    """Returns the graph with the open dimensions of some inputs set.

    overrides: shapes of inputs by name, without the batch where the input has a batch. Raises
    InputError for an unknown input or a shape that contradicts the file.
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
                             f"the file says {_text(info, info.shape[len(batch):])}")
        inputs[name] = replace(info, shape=shape)
    return replace(graph, inputs=list(inputs.values()))


def check_nodes(graph: Graph) -> None:
    """Raises ModelError where a node is wrong at every size of the inputs, such as a node with an
    axis that its input does not have: the error is the same at several sizes."""
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
    """Returns the graph with one size for all dimensions but the batch that the file leaves
    open."""
    return replace(graph, inputs=[replace(info, shape=tuple(
        size if length is None and axis else length for axis, length in enumerate(info.shape)))
        for info in graph.inputs])


def is_open(graph: Graph) -> bool:
    """Returns whether an input leaves a dimension other than the batch open."""
    return any(None in info.shape[1:] for info in graph.inputs)


def check_open_dimensions(graph: Graph) -> None:
    """Raises InputError when an input leaves a dimension other than the batch open."""
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


def _text(info: ValueInfo, shape: Sequence[int | None]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _run(state: InferenceState) -> StaticGraph:
    """Applies the rules of all nodes, and returns the nodes that remain as a static graph."""
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
            # a value of a dtype without arithmetic is copied by an expansion
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
    """Returns the nodes on which the values `outputs` depend, in order."""
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            live.append(node)
    return live[::-1]
