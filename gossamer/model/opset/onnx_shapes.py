"""ONNX's shape inference, with the sizes of pools and of empty images as libraries compute them."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper, numpy_helper
from onnx.shape_inference import infer_shapes

from gossamer.model.opset.windows import same_pads, window_count

_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with the types and shapes that ONNX's inference finds.

    With ceil_mode the inference counts a last window that begins beyond the input, which no library
    computes, and of a pool with both it takes pads in place of auto_pad. Here the inference sees
    such a pool with pads that give the right size instead. For a Resize to a size of 0, as at a
    batch of 0, it finds no shape; here it sees a constant instead.
    """
    pools = [index for index, node in enumerate(model.graph.node) if _is_miscounted(node)]
    empty = [index for index, node in enumerate(model.graph.node) if _resizes_to_nothing(
        node, model.graph)]
    if pools or empty:
        model = onnx.ModelProto.FromString(model.SerializeToString())
    for index in pools:
        # the shapes before this pool are right already
        node = model.graph.node[index]
        sizes = _sizes(infer_shapes(model, data_prop=True).graph, node.input[0])
        if sizes is not None:
            _round_down(node, sizes)
    for index in empty:
        node = model.graph.node[index]
        dtype = _elem_type(infer_shapes(model, data_prop=True).graph, node.input[0])
        model.graph.node[index].CopyFrom(helper.make_node(
            "ConstantOfShape", [node.input[3]], list(node.output),
            value=helper.make_tensor("zero", dtype, [1], [0])))
    return infer_shapes(model, data_prop=True)


def _resizes_to_nothing(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """Returns whether a Resize is given sizes of which one is 0."""
    return node.op_type == "Resize" and len(node.input) == 4 and any(
        tensor.name == node.input[3] and not numpy_helper.to_array(tensor).all()
        for tensor in graph.initializer) and all(entry.name != "axes" for entry in node.attribute)


def _elem_type(graph: onnx.GraphProto, name: str) -> int:
    """Returns ONNX's type of a value's elements; float32 where it is not known."""
    return next((info.type.tensor_type.elem_type for info in (*graph.input, *graph.value_info)
                 if info.name == name), onnx.TensorProto.FLOAT)


def _is_miscounted(node: onnx.NodeProto) -> bool:
    """Returns whether the inference may give a pool another size than libraries do."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return node.op_type in _POOLS and bool(given.get("ceil_mode") or (
        given.get("pads") and given.get("auto_pad", b"NOTSET") != b"NOTSET"))


def _sizes(graph: onnx.GraphProto, name: str) -> list[int | None] | None:
    """Returns the heights, widths and so on of a value; None where their number is not known."""
    for info in (*graph.input, *graph.value_info):
        if info.name == name and info.type.tensor_type.HasField("shape"):
            return [dim.dim_value if dim.HasField("dim_value") else None
                    for dim in info.type.tensor_type.shape.dim[2:]]
    return next((list(tensor.dims[2:]) for tensor in graph.initializer if tensor.name == name),
                None)


def _round_down(node: onnx.NodeProto, sizes: list[int | None]) -> None:
    """Gives a pool the pads with which its output's size is right where it is rounded down."""
    given: dict[str, Any] = {entry.name: helper.get_attribute_value(entry)
                             for entry in node.attribute}
    rank, auto_pad = len(sizes), given.pop("auto_pad", b"NOTSET").decode()
    strides, dilations = (given.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = (given.get("pads") or [0] * 2 * rank) if auto_pad == "NOTSET" else [0] * 2 * rank
    for axis, size in enumerate(sizes):
        if size is None:
            continue
        covered = dilations[axis] * (given["kernel_shape"][axis] - 1) + 1
        if auto_pad.startswith("SAME"):
            pads[axis], pads[axis + rank] = same_pads(auto_pad, size, covered, strides[axis])
        before, after = pads[axis], pads[axis + rank]
        count = window_count(size, before, after, covered, strides[axis],
                             ceil=bool(given.get("ceil_mode")))
        pads[axis + rank] = max((count - 1) * strides[axis] + covered - size - before, 0)
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in {
        **given, "ceil_mode": 0, "pads": pads}.items())
