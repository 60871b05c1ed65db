"""Replaces roundabout nodes of torch's exporter by plain nodes. The roundabout nodes are
SplitToSequence, which splits a tensor into a list of tensors, and CastLike, which casts a tensor to
the type of another tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import onnx

_LARGEST = 1 << 16
"""The most bytes of a constant that may hold sizes or an index."""


def make_plain(model: onnx.ModelProto) -> None:
    """Changes a model in place. A Split replaces each SplitToSequence whose tensors are read one by
    one, and a Cast replaces each CastLike whose type is known."""
    graph = model.graph
    infos = {info.name: info.type.tensor_type for info in (*graph.input, *graph.value_info)}
    types = {name: info.elem_type for name, info in infos.items()}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "CastLike" and types.get(node.input[1]):
            node.op_type = "Cast"
            node.attribute.append(onnx.helper.make_attribute("to", types[node.input[1]]))
            del node.input[1]
    _make_splits(graph, {name: [dim.dim_value for dim in info.shape.dim]
                         for name, info in infos.items()})


def set_names(graph: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Names the inputs and the outputs of a graph. Other values that have one of these names, which
    the exporter takes from torch's functions, get others."""
    names: dict[str, str] = {}
    for infos, wanted in ((graph.input, inputs), (graph.output, outputs)):
        names.update(zip([info.name for info in infos], wanted, strict=True))
    taken = {name for node in graph.node for name in node.output}.union(
        tensor.name for tensor in graph.initializer)
    for name in taken.intersection(names.values()).difference(names):
        names[name] = next(other for number in count(1)
                           if (other := f"{name}_{number}") not in taken | set(names.values()))
    _rename(graph, names)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)


def _make_splits(graph: onnx.GraphProto, shapes: Mapping[str, list[int]]) -> None:
    constants = _constants(graph)
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    replaced: dict[int, onnx.NodeProto] = {}
    dropped: set[int] = set()
    for node in graph.node:
        if node.op_type != "SplitToSequence":
            continue
        parts = readers[node.output[0]]
        sizes = _sizes(node, constants, shapes)
        taken = [int(constants[part.input[1]]) if part.op_type == "SequenceAt" and (
            part.input[1] in constants) else -1 for part in parts]
        if sizes is None or min(taken, default=-1) < 0 or len(set(taken)) < len(taken):
            continue
        names = [f"{node.output[0]}.{index}" for index in range(len(sizes))]
        for part, index in zip(parts, taken, strict=True):
            names[index] = part.output[0]
            dropped.add(id(part))
        graph.initializer.append(onnx.numpy_helper.from_array(
            np.asarray(sizes, np.int64), f"{node.output[0]}.sizes"))
        replaced[id(node)] = onnx.helper.make_node(
            "Split", [node.input[0], f"{node.output[0]}.sizes"], names, node.name,
            axis=_attribute(node, "axis", 0))
    nodes = [replaced.get(id(node), node) for node in graph.node if id(node) not in dropped]
    if replaced:
        kept = onnx.GraphProto()
        kept.node.extend(nodes)
        del graph.node[:]
        graph.node.extend(kept.node)


def _sizes(node: onnx.NodeProto, constants: Mapping[str, np.ndarray],
           shapes: Mapping[str, list[int]]) -> list[int] | None:
    """Returns the sizes of the parts into which a node splits; None where they are not known."""
    if len(node.input) < 2 or node.input[1] not in constants:
        return None
    sizes = constants[node.input[1]]
    if sizes.ndim:
        return [int(size) for size in sizes]
    shape = shapes.get(node.input[0], [])
    axis = _attribute(node, "axis", 0)
    length = shape[axis] if -len(shape) <= axis < len(shape) else 0
    size = int(sizes)
    if not length or size < 1:
        return None
    return [min(size, length - begin) for begin in range(0, length, size)]


def _constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
             if tensor.ByteSize() <= _LARGEST and tensor.data_type == onnx.TensorProto.INT64}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value" and (
                node.attribute[0].t.ByteSize() <= _LARGEST):
            found[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    return found


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)
