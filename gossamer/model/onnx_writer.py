"""Writes graphs as ONNX, for programs that take ONNX. The graphs are networks of the zoo, trained
networks, networks of benchmarks, and networks that were read from other kinds of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import UnsupportedError
from gossamer.model.graph import Graph, Node
from gossamer.model.readers.onnx import metadata

_OPSET = 17
"""The ONNX opset of the files that are written; ONNX Runtime reads it since version 1.12 (2022)."""


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """Returns an ONNX model with the graph's metadata and its nodes, none of them folded or fused.

    Raises UnsupportedError where _RULES cannot write a node; the message names the first such node.
    """
    nodes = []
    constants = {name: numpy_helper.from_array(array, name)
                 for name, array in graph.constants.items()}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        protos = rule(node, constants) if rule else []
        if not protos:
            raise UnsupportedError(f"{graph.name}: no ONNX form of {node.source or node.name}")
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


def _conv(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if not _adds_only(node):
        return []
    return [helper.make_node("Conv", node.inputs, node.outputs, strides=a["strides"],
                             pads=a["pads"], dilations=a["dilations"], group=a["groups"])]


def _batch_norm(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    return [helper.make_node("BatchNormalization", node.inputs, node.outputs,
                             epsilon=node.attributes["epsilon"])]


def _batch_norm_training(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    return [helper.make_node("BatchNormalization", node.inputs, node.outputs, training_mode=1,
                             epsilon=node.attributes["epsilon"],
                             momentum=node.attributes["momentum"])]


def _elementwise(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    """Returns the ONNX nodes that compute the steps of the expression; an empty list where a step
    has no ONNX operator in the tables below, or the expression does not end in its only output."""
    expression = node.attributes["expression"]
    last = expression.inputs + len(expression.steps) - 1
    if not expression.steps or expression.outputs != (last,):
        return []
    values, protos = list(node.inputs), []
    for index, step in enumerate(expression.steps, expression.inputs):
        numbers = [f"{node.name}.{index}.{number}" for number in range(len(step.constants))]
        constants.update({name: helper.make_tensor(name, TensorProto.FLOAT, [], [number])
                          for name, number in zip(numbers, step.constants, strict=True)})
        if step.function == "constant":
            values.append(numbers[0])
            continue
        if step.function not in (*_OPERATORS, *_COMPARISONS, "where"):
            return []
        values.append(node.outputs[0] if index == last else f"{node.name}.{index}")
        arguments = [values[argument] for argument in step.arguments]
        truth = f"{node.name}.{index}.truth"
        if step.function in _COMPARISONS:
            # truth values are numbers in expressions, and of type bool in ONNX
            protos += [helper.make_node(_COMPARISONS[step.function], arguments, [truth]),
                       helper.make_node("Cast", [truth], [values[-1]], to=TensorProto.FLOAT)]
        elif step.function == "where":
            protos += [helper.make_node("Cast", arguments[:1], [truth], to=TensorProto.BOOL),
                       helper.make_node("Where", [truth, *arguments[1:]], [values[-1]])]
        elif step.function == "leaky_relu":
            del constants[numbers[0]]
            protos.append(helper.make_node("LeakyRelu", arguments, [values[-1]],
                                           alpha=step.constants[0]))
        else:
            protos.append(helper.make_node(_OPERATORS[step.function], [*arguments, *numbers],
                                           [values[-1]]))
    return protos


def _reduce(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if a["kind"] != "mean" or not isinstance(a["axes"], tuple):
        return []
    return [helper.make_node("ReduceMean", node.inputs, node.outputs, axes=a["axes"],
                             keepdims=int(a["keepdims"]))]


def _gemm(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if not _adds_only(node):
        return []
    return [helper.make_node("Gemm", node.inputs, node.outputs, transA=int(a["trans_a"]),
                             transB=int(a["trans_b"]))]


def _pool(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    window = {"kernel_shape": a["kernel"], "strides": a["strides"], "pads": a["pads"],
              "ceil_mode": int(a["ceil_mode"])}
    if a["kind"] == "max":
        return [helper.make_node("MaxPool", node.inputs, node.outputs, **window,
                                 dilations=a["dilations"])]
    if a["dilations"] != (1, 1):
        return []  # AveragePool has dilations from opset 19 on only
    return [helper.make_node("AveragePool", node.inputs, node.outputs, **window,
                             count_include_pad=int(a["count_include_pad"]))]


def _concat(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    return [helper.make_node("Concat", node.inputs, node.outputs, axis=node.attributes["axis"])]


def _flatten(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    return [helper.make_node("Flatten", node.inputs, node.outputs, axis=node.attributes["axis"])]


def _reshape(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    shape = _integers(node, "shape", node.attributes["shape"], constants)
    return [helper.make_node("Reshape", [*node.inputs, shape], node.outputs)]


def _slice(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    inputs = [_integers(node, part, node.attributes[part], constants)
              for part in ("starts", "ends", "axes", "steps")]
    return [helper.make_node("Slice", [node.inputs[0], *inputs], node.outputs)]


def _pad(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if a["mode"] != "constant" or a["value"] != 0 or a.get("axes") is not None:
        return []
    return [helper.make_node("Pad", [node.inputs[0], _integers(node, "pads", a["pads"], constants)],
                             node.outputs)]


def _transpose(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    return [helper.make_node("Transpose", node.inputs, node.outputs,
                             perm=node.attributes["permutation"])]


def _resize(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if a["scales"] is None or (a["mode"], a["coordinates"], a["nearest_mode"]) != (
            "nearest", "asymmetric", "floor"):
        return []
    name = f"{node.name}.scales"
    constants[name] = helper.make_tensor(name, TensorProto.FLOAT, [len(a["scales"])], a["scales"])
    return [helper.make_node("Resize", [node.inputs[0], "", name], node.outputs, mode="nearest",
                             coordinate_transformation_mode="asymmetric", nearest_mode="floor")]


def _softmax(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if a.get("flatten"):
        return []
    return [helper.make_node("LogSoftmax" if a["log"] else "Softmax", node.inputs, node.outputs,
                             axis=a["axis"])]


def _layer_norm(node: Node, constants: dict[str, Any]) -> list[onnx.NodeProto]:
    a = node.attributes
    if not a["centred"] or not isinstance(a["axes"], int):
        return []
    return [helper.make_node("LayerNormalization", node.inputs, node.outputs, axis=a["axes"],
                             epsilon=a["epsilon"])]


def _integers(node: Node, part: str, numbers: Sequence[int], constants: dict[str, Any]) -> str:
    """Adds a constant of whole numbers and returns its name."""
    name = f"{node.name}.{part}"
    constants[name] = helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers)
    return name


def _adds_only(node: Node) -> bool:
    """Returns whether the epilogue is empty or adds a bias."""
    steps = node.attributes["epilogue"].steps
    return (len(steps) <= 1 and len(node.inputs) == len(steps) + 2
            and all(step.function == "add" for step in steps))


_COMPARISONS = {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
                "greater_equal": "GreaterOrEqual", "equal": "Equal"}
"""The operators of comparisons, whose results are truth values in ONNX."""
_OPERATORS = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min",
              "max": "Max", "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
              "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "sin": "Sin",
              "cos": "Cos", "tan": "Tan", "atan": "Atan", "erf": "Erf", "clip": "Clip",
              "leaky_relu": "LeakyRelu"}

_RULES: dict[str, Callable[[Node, dict[str, Any]], list[onnx.NodeProto]]] = {
    "conv2d": _conv,
    "batch_norm": _batch_norm,
    "batch_norm_training": _batch_norm_training,
    "elementwise": _elementwise,
    "layer_norm": _layer_norm,
    "reduce": _reduce,
    "gemm": _gemm,
    "pool": _pool,
    "concat": _concat,
    "flatten": _flatten,
    "reshape": _reshape,
    "softmax": _softmax,
    "slice": _slice,
    "pad": _pad,
    "transpose": _transpose,
    "resize": _resize,
}
