"""Small models that gossamer does not compute as a whole, for tests."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.model.onnx_models import model, weights


def bytes_of(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str],
             kind: int = TensorProto.FLOAT) -> np.ndarray:
    """Returns the model of an onnx_part node as its attribute holds it."""
    graph = helper.make_graph(
        nodes, "part", [helper.make_tensor_value_info(name, kind, None) for name in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.metadata_props.add(key="nodes", value='[["Sin \'s\'", "gossamer computes no Sin"]]')
    return np.frombuffer(proto.SerializeToString(), np.uint8)


def sine() -> np.ndarray:
    """Returns the model of a part that takes the sine."""
    return bytes_of([helper.make_node("Sin", ["x"], ["y"], "s")], ["x"], ["y"])


def sampled() -> onnx.ModelProto:
    """Returns a network with a node in its middle that gossamer does not compute."""
    return model(
        [helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
         helper.make_node("GridSample", ["a", "grid"], ["b"], "sample"),
         helper.make_node("Relu", ["b"], ["y"], "relu")],
        {"x": ("N", 3, 8, 8), "grid": ("N", 4, 4, 2)}, {"y": 4}, {"w": weights(4, 3, 3, 3)})


def choosing() -> onnx.ModelProto:
    """Returns a network that chooses rows by its data, so that its first output has any number of
    them; the second is computed by gossamer."""
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["scores"], "scores"),
         helper.make_node("Greater", ["scores", "zero"], ["good"], "good"),
         helper.make_node("NonZero", ["good"], ["places"], "places"),
         helper.make_node("Transpose", ["places"], ["rows"], "rows", perm=[1, 0])],
        {"x": ("N", 4)}, {"rows": 2, "scores": 2},
        {"w": weights(4, 3), "zero": np.float32(0)}, types={"rows": TensorProto.INT64})


def counting(count: int) -> onnx.ModelProto:
    """Returns a network that adds 1 so many times, in a loop."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]),
         helper.make_node("Add", ["sum", "one"], ["next"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("sum", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("next", TensorProto.FLOAT, [2])])
    return model([helper.make_node("Loop", ["count", "go", "x"], ["y"], "loop", body=body)],
                 {"x": (2,)}, {"y": 1}, {"count": np.array(count), "go": np.array(True),
                                         "one": np.float32(1)})


def texts() -> onnx.ModelProto:
    """Returns a network of texts."""
    graph = helper.make_graph(
        [helper.make_node("StringConcat", ["a", "b"], ["c"], "join"),
         helper.make_node("Relu", ["x"], ["y"], "relu")], "texts",
        [helper.make_tensor_value_info("a", TensorProto.STRING, [2]),
         helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("c", TensorProto.STRING, [2]),
         helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.array(["!"], object), "b")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
