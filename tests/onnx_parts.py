"""Small models that gossamer does not compute as a whole, for tests."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.parser import parse_model

from tests.model.onnx_models import model, part, weights


def bytes_of(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str],
             kind: int = TensorProto.FLOAT) -> np.ndarray:
    """Returns the model of an onnx_part node as its attribute holds it."""
    proto = helper.make_model(part(nodes, inputs, outputs, kind=kind),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
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
    return parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        test (float[2] x) => (float[N] y)
        <int64 count = {{{count}}}, bool go = {{1}}, float one = {{1}}> {{
            [loop] y = Loop <body = body (int64 i, bool go, float[2] sum)
                             => (bool go_on, float[2] next) {{
                go_on = Identity(go)
                next = Add(sum, one)
            }}> (count, go, x) }}""")


def texts() -> onnx.ModelProto:
    """Returns a network of texts."""
    return model(
        [helper.make_node("StringConcat", ["a", "b"], ["c"], "join"),
         helper.make_node("Relu", ["x"], ["y"], "relu")],
        {"a": (2,), "x": ("N", 3)}, {"c": 1, "y": 2}, {"b": np.array(["!"], object)}, 20,
        types={"a": TensorProto.STRING, "c": TensorProto.STRING})
