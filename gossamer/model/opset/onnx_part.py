"""Definition of the op that stands for nodes of an ONNX file that ONNX Runtime computes."""

from __future__ import annotations

import json

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from onnx.shape_inference import infer_shapes

from gossamer.errors import first_line
from gossamer.model.graph import Node
from gossamer.model.opset.definition import define, never_jumps, not_evaluated, nothing_known
from gossamer.model.opset.images import Images
from gossamer.model.opset.onnx_shapes import inferred
from gossamer.model.opset.state import InferenceState
from gossamer.onnx_model import MOST_PARAMETERS

NODES = "nodes"
"""The key under which a part's metadata hold the part's nodes, as a JSON list. Each entry has the
node as messages name it, and the reason why gossamer does not compute the node."""


def nodes_of(model: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Returns the nodes of the file that belong to a part. Each node is given as messages name it,
    with the reason why gossamer does not compute the node. model: the bytes of the part's model.
    Raises ValueError where the model does not name the nodes."""
    proto = _parsed(model)
    texts = [entry.value for entry in proto.metadata_props if entry.key == NODES]
    return tuple((str(source), str(reason)) for source, reason in json.loads("".join(texts)))


def _parsed(model: np.ndarray) -> onnx.ModelProto:
    """Returns the model of these bytes. Raises ValueError where the bytes are no model."""
    try:
        return onnx.load_model_from_string(model.tobytes())
    except DecodeError:
        raise ValueError("the model of a part is damaged") from None


def _part_shape(state: InferenceState, node: Node) -> None:
    """Takes the shapes of outputs from ONNX's shape inference. Raises UnsupportedError for a shape
    that the data decide."""
    model = _parsed(node.attributes["model"])
    for index, (info, name) in enumerate(zip(model.graph.input, node.inputs, strict=True)):
        dtype = _dtype_of(info.type.tensor_type)
        if state.dtypes[name] != dtype and name not in state.known:
            # gossamer may hold ONNX's truth values as numbers
            name = node.inputs[index] = state.cast(
                node, name, [state.new_name(node, f"operand{index}")], dtype)
        known = state.known.get(name)
        if known is not None and known.size <= MOST_PARAMETERS:
            model.graph.initializer.append(numpy_helper.from_array(known.astype(dtype), info.name))
        info.type.tensor_type.ClearField("shape")
        info.type.tensor_type.shape.SetInParent()
        for size in state.shapes[name]:
            info.type.tensor_type.shape.dim.add(dim_value=size)
    try:
        result = inferred(model)
        if not all(map(_has_shape, result.graph.output)):
            # only a strict inference says which shapes do not fit each other
            infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:
        raise state.error(node, f"has no shapes: {first_line(error)}") from None
    shapes, dtypes = [], []
    for info, name in zip(result.graph.output, node.outputs, strict=True):
        tensor = info.type.tensor_type
        if not _has_shape(info):
            raise state.unsupported(node, f"makes {name!r}, whose shape the data decides")
        shapes.append(tuple(dim.dim_value for dim in tensor.shape.dim))
        dtypes.append(_dtype_of(tensor))
    state.emit(node, (), several=shapes, dtype=dtypes[0], model=node.attributes["model"])
    state.dtypes.update(zip(node.outputs, dtypes, strict=True))


def _has_shape(info: onnx.ValueInfoProto) -> bool:
    tensor = info.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value >= 0
                                            for dim in tensor.shape.dim)


def _dtype_of(tensor: onnx.TypeProto.Tensor) -> str:
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name


def _part_mixes(images: Images, node: Node) -> str:
    return "is computed by ONNX Runtime, of whose treatment of a batch nothing is known"


DEFINITIONS = (
    define("onnx_part",
           text="the values that a part of an ONNX file reads from outside of the part; model: the "
                "part as the bytes of an ONNX model, whose inputs and outputs are in the order of "
                "this node's",
           shape=_part_shape, evaluate=not_evaluated, mixes=_part_mixes, passes_values=True,
           jumps=never_jumps, facts=nothing_known, float_only=False, attribute_inputs=()),
)
