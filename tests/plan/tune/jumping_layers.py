"""Networks of one random layer whose epilogue jumps, as those of binary networks do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.model.onnx_models import model, save


def jumping_layer(seed: int, folder: Path, largest: int = 56) -> Path:
    """Writes a network of a convolution or a product with weights of one magnitude or normal ones,
    a scale and shift or a batch norm, and a sign, comparison or rounding behind it."""
    rng = np.random.default_rng(seed)
    is_conv = rng.random() < 0.8
    channels, outputs = (int(rng.choice([3, 8, 16, 33, 64])) for _ in range(2))
    kernel, size = int(rng.choice([1, 3, 5])), int(rng.integers(5, largest + 1))
    shape = (outputs, channels, kernel, kernel) if is_conv else (channels * size, outputs)
    magnitude = np.float32(rng.choice([1.0, 0.05, 3.0]))
    weight = (rng.choice([-1, 1], shape) * magnitude if rng.random() < 0.7
              else rng.standard_normal(shape) * magnitude).astype(np.float32)
    constants, nodes = {"weight": weight}, []
    if is_conv:
        pad = int(rng.choice([0, kernel // 2]))
        nodes.append(helper.make_node("Conv", ["x", "weight"], ["sums"], pads=[pad] * 4,
                                      strides=[int(rng.choice([1, 2]))] * 2))
        source = ["N", channels, size, size]
    else:
        nodes.append(helper.make_node("MatMul", ["x", "weight"], ["sums"]))
        source = ["N", channels * size]
    value = "sums"

    def add(op: str, *inputs: str, **attributes: object) -> None:
        nonlocal value
        name = f"{op.lower()}{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        value = name

    def constant(number: object, dtype: type = np.float32) -> str:
        name = f"c{len(constants)}"
        constants[name] = np.asarray(number, dtype)
        return name

    broadcast = (1, outputs, 1, 1) if is_conv else (1, outputs)
    depth = weight[0].size if is_conv else len(weight)
    if rng.random() < 0.4:
        add("Add", value, constant(float(depth)))
        add("Mul", value, constant(0.5))
    if is_conv and rng.random() < 0.6:
        near = rng.standard_normal(outputs) * depth**0.5 * float(magnitude) + (
            depth / 2 if len(nodes) > 1 else 0)
        gamma = rng.standard_normal(outputs) * (rng.random(outputs) > 0.05)
        add("BatchNormalization", value, constant(gamma), constant(rng.standard_normal(outputs)),
            constant(near), constant(rng.random(outputs) * depth + 0.1))
    elif rng.random() < 0.7:
        add("Mul", value, constant(rng.standard_normal(broadcast)))
        add("Add", value, constant(rng.standard_normal(broadcast) * depth**0.5))
    kind = rng.integers(6)
    if kind == 0:
        add("Sign", value)
    elif kind == 1:
        add("GreaterOrEqual", value, constant(0.0))
        add("Where", value, constant(1.0), constant(-1.0))
    elif kind == 2:
        add("Greater", value, constant(0.0))
        add("Cast", value, to=TensorProto.FLOAT)
        add("Mul", value, constant(2.0))
        add("Sub", value, constant(1.0))
    elif kind == 3:
        add(str(rng.choice(["Floor", "Ceil", "Round"])), value)
    elif kind == 4:
        compared = value
        add("Less", compared, constant(rng.standard_normal(broadcast)))
        add("Where", value, compared, constant(rng.standard_normal(broadcast)))
    else:
        add("Sign", value)
        add("Mul", value, constant(rng.random(broadcast) + 0.1))
        add("Add", value, constant(rng.standard_normal(broadcast)))
    return save(model(nodes, {"x": source}, {value: 4 if is_conv else 2}, constants), folder)
