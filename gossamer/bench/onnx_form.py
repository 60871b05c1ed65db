"""A graph of the zoo as ONNX, for a peer that takes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import UnsupportedError
from gossamer.model.graph import Graph, Node

_OPSET = 17


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The same nodes, nothing folded or fused. Covers what the zoo's networks are made of.

    Raises UnsupportedError that names the first node of another kind.
    """
    nodes = []
    constants = {name: numpy_helper.from_array(array, name)
                 for name, array in graph.constants.items()}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        made = rule(node, constants) if rule else None
        if made is None:
            raise UnsupportedError(f"{graph.name}: no ONNX form of {node.source or node.name}")
        nodes.append(made)
    inputs, outputs = ([helper.make_tensor_value_info(
        info.name, TensorProto.FLOAT, ["N", *info.shape[1:]]) for info in infos]
        for infos in (graph.inputs, graph.outputs))
    return helper.make_model(
        helper.make_graph(nodes, graph.name, inputs, outputs, list(constants.values())),
        opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _conv(node: Node, constants: dict[str, Any]) -> onnx.NodeProto | None:
    a = node.attributes
    if not _adds_only(node):
        return None
    return helper.make_node("Conv", node.inputs, node.outputs, strides=a["strides"],
                            pads=a["pads"], dilations=a["dilations"], group=a["groups"])


def _batch_norm(node: Node, constants: dict[str, Any]) -> onnx.NodeProto:
    return helper.make_node("BatchNormalization", node.inputs, node.outputs,
                            epsilon=node.attributes["epsilon"])


def _elementwise(node: Node, constants: dict[str, Any]) -> onnx.NodeProto | None:
    steps = node.attributes["expression"].steps
    if len(steps) != 1:
        return None
    (step,) = steps
    if step.function == "clip":
        bounds: list[str] = []
        for bound in step.constants:
            name = f"{node.name}.bound{len(bounds)}"
            constants[name] = helper.make_tensor(name, TensorProto.FLOAT, [], [bound])
            bounds.append(name)
        return helper.make_node("Clip", [*node.inputs, *bounds], node.outputs)
    operators = {"add": "Add", "mul": "Mul", "relu": "Relu", "sigmoid": "Sigmoid"}
    if step.function not in operators or step.arguments != tuple(range(len(node.inputs))):
        return None
    return helper.make_node(operators[step.function], node.inputs, node.outputs)


def _reduce(node: Node, constants: dict[str, Any]) -> onnx.NodeProto | None:
    a = node.attributes
    if a["kind"] != "mean":
        return None
    return helper.make_node("ReduceMean", node.inputs, node.outputs, axes=a["axes"],
                            keepdims=int(a["keepdims"]))


def _gemm(node: Node, constants: dict[str, Any]) -> onnx.NodeProto | None:
    a = node.attributes
    if not _adds_only(node):
        return None
    return helper.make_node("Gemm", node.inputs, node.outputs, transA=int(a["trans_a"]),
                            transB=int(a["trans_b"]))


def _adds_only(node: Node) -> bool:
    """Whether the epilogue is nothing, or a bias."""
    steps = node.attributes["epilogue"].steps
    return (len(steps) <= 1 and len(node.inputs) == len(steps) + 2
            and all(step.function == "add" for step in steps))


_RULES: dict[str, Callable[[Node, dict[str, Any]], onnx.NodeProto | None]] = {
    "conv2d": _conv,
    "batch_norm": _batch_norm,
    "elementwise": _elementwise,
    "reduce": _reduce,
    "gemm": _gemm,
}
