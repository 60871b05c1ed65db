"""Networks that mix the images of a batch, and networks with several rows or none an image."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.model.onnx_models import model, weights

node = helper.make_node


def network(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",),
            **constants: np.ndarray) -> onnx.ModelProto:
    return model(list(nodes), {"x": ["N", 3, 4, 4]}, dict.fromkeys(outputs), constants)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 3, 4, 4)).astype(np.float32)


MIXING = {
    "scalar": network(node("ReduceMean", ["x"], ["y"], "it", keepdims=0)),
    "softmax": network(node("Softmax", ["x"], ["y"], "it", axis=0)),
    "layer norm": network(node("LayerNormalization", ["x", "scale"], ["y"], "it", axis=-4),
                          scale=np.ones((1, 4), np.float32)),
    "mean": network(node("ReduceMean", ["x"], ["y"], "it", axes=[0], keepdims=1)),
    "statistics": network(
        node("BatchNormalization", ["x", *["ones"] * 4], ["y"], "it", training_mode=1),
        ones=np.ones(3, np.float32)),
    "fold": network(node("Flatten", ["x"], ["y"], "it", axis=0)),
}
BY_IMAGE = {
    "rows": network(node("Reshape", ["x", "s"], ["y"]), s=np.array([-1, 16])),
    "one for all": network(node("Sigmoid", ["x"], ["z"]), node("Sigmoid", ["w"], ["y"]),
                           outputs=("y", "z"), w=weights(5, 3)),
}
