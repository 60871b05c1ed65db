"""Pads the channels of images with zeros to a multiple of eight.

Kernels for GPUs read and write channels in vectors of up to eight if the size of the vectors
divides the number of channels. Pruned networks have layers of any number of channels.

The filters of added channels are zero, and so are the weights with which layers read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.expression import Expression
from gossamer.facts import are_scaled_signs
from gossamer.model.graph import Graph, Node, add_constant, names_of, new_name
from gossamer.model.infer.resolve import ShapesByBatch
from gossamer.model.passes.dead_channels import TO_VECTORS, window_reaches_image
from gossamer.model.passes.fusion import output_rows
from gossamer.model.passes.pixels import is_pixel, reduces_image

_MULTIPLE = 8
_FEWEST, _FEWEST_FOURS = 16, 32
"""Minimum numbers of channels that are padded: in general, and for multiples of four, which kernels
already read in vectors of four. For fewer, much of the work would be padding."""
_PADDED = f"padded with zeros to a multiple of {_MULTIPLE}"
"""The end of the note on padded channels."""
_LARGEST = 1e4
"""Maximum magnitude of the numbers in added channels, within the range of float16."""


@dataclass(frozen=True)
class _Roles:
    """The values of a node that may have added channels.

    kept: values whose channels the node keeps apart. All of them are padded, or none.
    mixed: the input of a convolution or product, whose results depend on all its channels.
    """

    kept: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


def pad_channels(graph: Graph, shapes: ShapesByBatch) -> None:
    """Pad the channels of images between convolutions to a multiple of eight.

    Element-wise nodes, depthwise convolutions, pools and means may lie between the convolutions.
    Images of one pixel, and vectors of means, are sliced and padded where nodes of other ops read
    and write them. Adds a note to the graph.
    """
    channels = _channels(graph, shapes)
    roles = [_roles(graph, node, channels, shapes) for node in graph.nodes]
    padded = {name for group in _groups(roles)
              if _may_be_padded(graph, group, roles, channels, shapes) for name in group}
    if not padded:
        return
    graph.notes.append(f"the channels of {len(padded)} values are {_PADDED}")
    added = {name: -channels[name] % _MULTIPLE for name in padded}
    names, nodes, sliced = names_of(graph), list[Node](), dict[str, str]()
    for node, role in zip(graph.nodes, roles, strict=True):
        _pad_constants(graph, node, role, added, names)
        foreign = padded.difference(role.kept, role.mixed)
        for name in filter(foreign.__contains__, dict.fromkeys(node.inputs)):
            if name not in sliced:
                sliced[name] = new_name(names, f"{name}.sliced")
                nodes.append(Node("slice", sliced[name], [name], [sliced[name]],
                                  {"axes": (1,), "starts": (0,), "ends": (channels[name],),
                                   "steps": (1,)}, node.source))
            node.inputs = [sliced[name] if each == name else each for each in node.inputs]
        nodes.append(node)
        for name in filter(foreign.__contains__, list(node.outputs)):
            plain, rank = new_name(names, f"{name}.plain"), shapes.rank(name) or 0
            node.outputs = [plain if each == name else each for each in node.outputs]
            nodes.append(Node("pad", plain, [plain], [name], {
                "mode": "constant", "value": 0.0,
                "pads": (*[0] * (rank + 1), added[name], *[0] * (rank - 2))}, node.source))
    graph.nodes = nodes


def has_padded_channels(notes: Iterable[str]) -> bool:
    """Whether the notes of a network say that channels were padded."""
    return any(note.endswith(_PADDED) for note in notes)


def _channels(graph: Graph, shapes: ShapesByBatch) -> dict[str, int]:
    """Return the number of channels of each image, and of each matrix of one row per image."""
    found = {}
    for name in {name for node in graph.nodes for name in node.outputs if name}:
        known = shapes.shapes(name)
        if shapes.dtype(name) == "float32" and all(len(shape) in (2, 4) for shape in known) and (
                len({shape[1] for shape in known}) == 1):
            found[name] = int(known[0][1])
    return found


def _roles(graph: Graph, node: Node, channels: Mapping[str, int],
           shapes: ShapesByBatch) -> _Roles:
    values = tuple(name for name in (*node.inputs, *node.outputs)
                   if name and name not in graph.constants)
    rows = output_rows(graph, node)
    if rows is not None and values[0] == node.inputs[0] and not (
            are_scaled_signs(rows) or _expression(node).is_discontinuous):
        groups = node.attributes.get("groups", 1)
        if node.op == "gemm":
            return _Roles() if node.attributes["trans_a"] else _Roles((), values[:1])
        if groups == 1:
            return _Roles(values[1:], values[:1])
        return _Roles(values) if rows.shape[:2] == (groups, 1) else _Roles()
    if node.op == "elementwise" and shapes.rank(node.outputs[0]) == 4:
        count = channels.get(node.outputs[0])
        if {channels.get(name) for name in values} == {count} and (
                not _expression(node).is_discontinuous) and (
                all(_is_scalar_or_channels(graph.constants[name], count) for name in node.inputs
                    if name in graph.constants)):
            return _Roles(values)
    if (node.op == "pool" and window_reaches_image(node)) or (
            node.op == "reduce" and node.attributes["kind"] == "mean"
            and reduces_image(node, shapes)) or _makes_vectors(node, channels, shapes):
        return _Roles((node.inputs[0], node.outputs[0]))
    return _Roles()


def _makes_vectors(node: Node, channels: Mapping[str, int], shapes: ShapesByBatch) -> bool:
    """Whether a node reshapes images of one pixel to a matrix of one row per image."""
    return node.op in TO_VECTORS and is_pixel(node.inputs[0], shapes) and (
        shapes.rank(node.outputs[0]) == 2
        and channels.get(node.outputs[0], 0) == channels.get(node.inputs[0]))


def _expression(node: Node) -> Expression:
    found: Expression = node.attributes["expression" if node.op == "elementwise" else "epilogue"]
    return found


def _is_scalar_or_channels(array: np.ndarray, channels: int | None) -> bool:
    return array.dtype == np.float32 and (
        array.size == 1 or (array.ndim in (3, 4) and array.shape[-3] == array.size == channels))


def _groups(roles: list[_Roles]) -> list[set[str]]:
    """Return the groups of values that are padded together."""
    group_of: dict[str, set[str]] = {}
    for role in roles:
        joined = set().union(role.kept, *(group_of.get(name, ()) for name in role.kept))
        group_of.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in group_of.values()}.values())


def _may_be_padded(graph: Graph, group: set[str], roles: list[_Roles],
                   channels: Mapping[str, int], shapes: ShapesByBatch) -> bool:
    counts = {channels.get(name) for name in group}
    count = counts.pop()
    if counts or count is None or not count % _MULTIPLE or (
            count < (_FEWEST if count % 4 else _FEWEST_FOURS)):
        return False
    if not group.isdisjoint(info.name for info in graph.outputs):
        return False
    pixels = {name for name in group if shapes.rank(name) == 2 or is_pixel(name, shapes)}
    if len(pixels) == len(group):
        return False
    numbers: dict[str, float] = {}
    for node, role in zip(graph.nodes, roles, strict=True):
        outside = group.intersection((*node.inputs, *node.outputs)).difference(
            role.kept, role.mixed)
        if not outside <= pixels:
            return False
        numbers |= dict.fromkeys(outside.intersection(node.outputs), 0.0)
        if not group.isdisjoint(role.kept):
            numbers |= zip(node.outputs, _numbers(graph, node, numbers), strict=True)
    return all(abs(numbers.get(name, np.nan)) <= _LARGEST for name in group)


def _numbers(graph: Graph, node: Node, numbers: Mapping[str, float]) -> list[float]:
    """Return the numbers that a node computes in the added channels of its outputs."""
    if node.op not in ("conv2d", "elementwise"):
        number = numbers[node.inputs[0]]
        # zero padding enters the averages and maxima of a pool
        return [np.nan if node.op == "pool" and number else number]
    operands = []
    for name in node.inputs if node.op == "elementwise" else ["", *node.inputs[2:]]:
        array = graph.constants.get(name)
        operands.append(array.reshape(1) if array is not None and array.size == 1 else
                        np.array([numbers.get(name, 0.0)], np.float32))
    return [result.item() for result in _expression(node).evaluate(*operands)]


def _pad_constants(graph: Graph, node: Node, role: _Roles, added: Mapping[str, int],
                   names: set[str]) -> None:
    """Add zeros to the weights and operands of a node."""
    rows = next((added[name] for name in role.kept if name in added), 0)
    columns = next((added[name] for name in role.mixed if name in added), 0)
    if not rows + columns:
        return
    if node.op in TO_VECTORS:
        node.op, node.inputs, node.attributes = "flatten", node.inputs[:1], {"axis": 1}
    for index, name in enumerate(node.inputs):
        array = graph.constants.get(name)
        if array is None or (array.size == 1 and node.op == "elementwise"):
            continue
        pads = np.zeros((array.ndim, 2), int)
        if rows:
            pads[-3 if node.op == "elementwise" else 0, 1] = rows
        if index == 1:
            pads[0 if node.op == "gemm" and not node.attributes["trans_b"] else 1, 1] += columns
        if pads.any():
            node.inputs[index] = add_constant(graph, names, f"{name}.padded", np.pad(array, pads))
    if rows and node.op == "conv2d" and not role.mixed:
        node.attributes["groups"] += rows
