"""The layers of a quantised network, each with ONNX Runtime's own inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.model.onnx_models import model, runtime
from tests.networks.quantised import equal_layers
from tests.networks.quantised_layers import own_inputs, with_own_inputs

RNG = np.random.default_rng(3)


def constants() -> dict[str, np.ndarray]:
    return {"s": np.float32(0.03), "z": np.uint8(117), "ws": np.float32(0.01), "wz": np.int8(0),
            "v": RNG.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8),
            "w": RNG.integers(-90, 90, (4, 4, 1, 1)).astype(np.int8)}


def qoperator() -> onnx.ModelProto:
    return model(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "begin"),
         helper.make_node("QLinearConv", ["q", "s", "z", "v", "ws", "wz", "s", "z"], ["a"], "one"),
         helper.make_node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2]),
         helper.make_node("QLinearConv", ["b", "s", "z", "w", "ws", "wz", "s", "z"], ["c"], "two"),
         helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"], "end")],
        {"x": ("N", 3, 8, 8)}, {"y": 4}, constants())


def qdq() -> onnx.ModelProto:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"], "begin")]
    for index, weight in enumerate("vw"):
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{index}", "s", "z"], [f"f{index}"]),
            helper.make_node("DequantizeLinear", [weight, "ws", "wz"], [f"{weight}f"]),
            helper.make_node("Conv", [f"f{index}", f"{weight}f"], [f"y{index}"], f"conv{index}"),
            helper.make_node("QuantizeLinear", [f"y{index}", "s", "z"], [f"q{index + 1}"])]
    nodes.append(helper.make_node("DequantizeLinear", ["q2", "s", "z"], ["y"], "end"))
    return model(nodes, {"x": ("N", 3, 8, 8)}, {"y": 4}, constants())


def image() -> np.ndarray:
    return RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(("proto", "names"), [
    (qoperator(), ["q", "a", "c"]), (qdq(), ["q0", "q1", "q2"])], ids=["qoperator", "qdq"])
def test_layers_of_both_forms_are_compared(proto: onnx.ModelProto, names: list[str]) -> None:
    rows = equal_layers(proto, image(), "host")
    assert [name for name, _, _ in rows] == names
    assert all(share > 0.99 and largest <= 1 for _, share, largest in rows)


def test_a_layer_gets_no_differences_of_those_before_it() -> None:
    """Another weight of one layer changes its own integers alone."""
    proto, x = qoperator(), image()
    given, expected = own_inputs(proto, x)
    changed = with_own_inputs(proto, expected)
    (weight,) = (tensor for tensor in changed.graph.initializer if tensor.name == "v")
    weight.raw_data = bytes(len(weight.raw_data))
    feeds = {info.name: given[info.name] for info in changed.graph.input}
    results = dict(zip(expected, runtime(changed, feeds), strict=True))
    assert {name for name in expected if not np.array_equal(results[name], expected[name])} == {"a"}
