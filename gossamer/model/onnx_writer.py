"""Writes graphs as ONNX models.

The graphs come from the zoo, from training, from benchmarks or from files of other formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import UnsupportedError
from gossamer.model.graph import Graph, Node
from gossamer.model.readers.onnx import metadata
from gossamer.onnx_model import ModelWriter

_Constants = dict[str, onnx.TensorProto]
_Rule = Callable[[Node, _Constants], list[onnx.NodeProto]]
_OPSET = 17
"""The ONNX opset of written files, which ONNX Runtime reads since version 1.12 (2022)."""


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """Return an ONNX model of the graph's nodes and metadata, without folding or fusion.

    Raises UnsupportedError, which names the first node that _RULES cannot write.
    """
    nodes = []
    constants = {name: numpy_helper.from_array(array, name)
                 for name, array in graph.constants.items()}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        protos = rule(node, constants) if rule else []
        if not protos:
            raise UnsupportedError(f"{graph.name}: no ONNX nodes for {node.source or node.name}")
        protos[-1].name = node.name
        nodes += protos
    inputs, outputs = ([helper.make_tensor_value_info(
        info.name, TensorProto.FLOAT, ["N", *info.shape[1:]]) for info in infos]
        for infos in (graph.inputs, graph.outputs))
    model = helper.make_model(
        helper.make_graph(nodes, graph.name, inputs, outputs, list(constants.values())),
        opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    helper.set_model_props(model, dict(metadata.entries(graph.metadata)))
    return model


def _one(node: Node, op: str, *more: str, **attributes: Any) -> list[onnx.NodeProto]:
    """Translate a node to a single ONNX node.

    more: inputs that follow the node's own inputs.
    """
    return [helper.make_node(op, [*node.inputs, *more], node.outputs, **attributes)]


def _renamed(op: str, **attributes: str) -> _Rule:
    """Return the rule of an op that equals an ONNX operator except for names.

    op: name of the ONNX operator.
    attributes: for each attribute of the operator, the attribute's name in the graph.
    """
    return lambda node, constants: _one(node, op, **{
        theirs: node.attributes[ours] for theirs, ours in attributes.items()})


def _conv(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    return _one(node, "Conv", strides=a["strides"], pads=a["pads"], dilations=a["dilations"],
                group=a["groups"]) if _adds_only(node) else []


def _gemm(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    return _one(node, "Gemm", transA=int(a["trans_a"]), transB=int(a["trans_b"])) if (
        _adds_only(node)) else []


def _adds_only(node: Node) -> bool:
    """Return whether the epilogue is empty or adds a bias."""
    steps = node.attributes["epilogue"].steps
    return (len(steps) <= 1 and len(node.inputs) == len(steps) + 2
            and all(step.function == "add" for step in steps))


def _batch_norm_training(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    return _one(node, "BatchNormalization", training_mode=1, epsilon=node.attributes["epsilon"],
                momentum=node.attributes["momentum"])


def _elementwise(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    """Return the ONNX nodes that compute the steps of the expression.

    The list is empty if a step has no ONNX operator, or if the last step is not the only output.
    """
    expression = node.attributes["expression"]
    values, writer = list(node.inputs), ModelWriter(f"{node.name}.")
    for step in expression.steps:
        if step.function == "to_bfloat16":
            return []
        values.append(writer.step(step.function, step.constants,
                                  [values[argument] for argument in step.arguments], "float32"))
    protos = writer.nodes
    if not protos or expression.outputs != (len(values) - 1,) or (
            protos[-1].output[0] != values[-1]):
        return []
    protos[-1].output[0] = node.outputs[0]
    constants.update((constant.name, constant) for constant in writer.constants)
    return protos


def _reduce(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    if a["kind"] not in ("mean", "max"):
        return []
    if isinstance(a["axes"], tuple):
        return _one(node, "ReduceMean" if a["kind"] == "mean" else "ReduceMax", axes=a["axes"],
                    keepdims=int(a["keepdims"]))
    pooled = node.outputs[0] if a["keepdims"] else f"{node.name}.pooled"
    pool = helper.make_node("GlobalAveragePool" if a["kind"] == "mean" else "GlobalMaxPool",
                            node.inputs, [pooled])
    return [pool] if a["keepdims"] else [pool, helper.make_node("Flatten", [pooled], node.outputs)]


def _pool(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    window = {"kernel_shape": a["kernel"], "strides": a["strides"], "pads": a["pads"],
              "ceil_mode": int(a["ceil_mode"])}
    if a["kind"] == "max":
        return _one(node, "MaxPool", **window, dilations=a["dilations"])
    if a["dilations"] != (1, 1):
        return []  # AveragePool has no dilations before opset 19
    return _one(node, "AveragePool", **window, count_include_pad=int(a["count_include_pad"]))


def _reshape(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    return _one(node, "Reshape", _integers(node, "shape", constants))


def _slice(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    return _one(node, "Slice", *[_integers(node, part, constants)
                                 for part in ("starts", "ends", "axes", "steps")])


def _pad(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    if a["mode"] != "constant" or a["value"] != 0 or a.get("axes") is not None:
        return []
    return _one(node, "Pad", _integers(node, "pads", constants))


def _resize(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    if a["scales"] is None or (a["mode"], a["coordinates"], a["nearest_mode"]) != (
            "nearest", "asymmetric", "floor"):
        return []
    name = f"{node.name}.scales"
    constants[name] = helper.make_tensor(name, TensorProto.FLOAT, [len(a["scales"])], a["scales"])
    return _one(node, "Resize", "", name, mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _softmax(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    return [] if a.get("flatten") else _one(
        node, "LogSoftmax" if a["log"] else "Softmax", axis=a["axis"])


def _layer_norm(node: Node, constants: _Constants) -> list[onnx.NodeProto]:
    a = node.attributes
    if not a["centred"] or not isinstance(a["axes"], int):
        return []
    return _one(node, "LayerNormalization", axis=a["axes"], epsilon=a["epsilon"])


def _integers(node: Node, part: str, constants: _Constants) -> str:
    """Add the integers of an attribute as a constant, and return its name."""
    name, numbers = f"{node.name}.{part}", node.attributes[part]
    constants[name] = helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers)
    return name


_RULES: dict[str, _Rule] = {
    "conv2d": _conv, "gemm": _gemm, "pool": _pool, "reduce": _reduce, "elementwise": _elementwise,
    "batch_norm": _renamed("BatchNormalization", epsilon="epsilon"),
    "batch_norm_training": _batch_norm_training, "layer_norm": _layer_norm, "softmax": _softmax,
    "concat": _renamed("Concat", axis="axis"), "flatten": _renamed("Flatten", axis="axis"),
    "reshape": _reshape, "slice": _slice, "pad": _pad, "resize": _resize,
    "transpose": _renamed("Transpose", perm="permutation"),
}
"""For each op, a function that returns the ONNX nodes for a node of this op, and adds the constants
that these ONNX nodes read. The function returns no nodes if it cannot write the node."""
