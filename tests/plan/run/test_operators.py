"""Operators that become copies, products and sums of others, or have a kernel for places, on every
device beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer.device.base import Device
from tests.model.onnx_models import Input, runtime, single, weights
from tests.tolerances import normalised_error, tolerance

IMAGE = Input((2, 4, 7, 6))
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Tile": ((IMAGE, np.array([1, 2, 1, 3])), {}),
    "Trilu": ((IMAGE, np.array(1)), {"upper": 0}),
    "GatherND": ((IMAGE, np.array([[0, 1], [1, -1]])), {}),
    "GatherElements": ((Input((3, 5)), np.array([[0, -1], [4, 0], [1, 1]])), {"axis": 1}),
    "ScatterND": ((IMAGE, np.array([[[1, 3], [0, 2]]]), weights(1, 2, 7, 6)), {}),
    "ScatterElements": ((Input((3, 5)), np.array([[0, -1], [4, 2]]), weights(2, 2)), {"axis": 1}),
    "Einsum": ((IMAGE, weights(4, 6, 3)), {"equation": "nchw,cwk->nkh"}),
    "CumSum": ((IMAGE, np.array(1)), {"reverse": 1}),
    "CumSum of integers": ((Input((2, 3, 5), -9, 9, "int64"), np.array(2)), {}),
    "Resize": ((IMAGE, None, np.float32([1, 1, 1.5, 2])), {"mode": "cubic"}),
    "Mod": ((IMAGE, weights(6)), {"fmod": 1}),
    "ReduceLogSumExp": ((IMAGE,), {"axes": [1]}),
    "ArgMax": ((IMAGE,), {"axis": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_agrees_with_onnx_runtime_and_stays_on_the_device(case: str, device: Device) -> None:
    arguments, attributes = CASES[case]
    op = case.split(" ")[0]
    kinds = {"y0": TensorProto.INT64} if case in ("ArgMax", "CumSum of integers") else None
    proto, feeds = single(op, arguments, 17, types=kinds, **attributes)
    plan = gossamer.compile(proto, device)
    (expected,) = runtime(proto, feeds)
    result = plan(*feeds.values())
    if expected.dtype.kind == "f":
        assert normalised_error(result, expected) <= tolerance("network")
    else:
        np.testing.assert_array_equal(result, expected)
    report = plan.report(len(feeds["x0"]))
    assert {row["device"] for row in report.rows} <= {device.name}, report


def test_the_elements_and_places_of_top_k(device: Device) -> None:
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=1)
    graph = helper.make_graph(
        [node], "top", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 9, 3])],
        [helper.make_tensor_value_info("values", TensorProto.FLOAT, None),
         helper.make_tensor_value_info("places", TensorProto.INT64, None)],
        [helper.make_tensor("k", TensorProto.INT64, [1], [4])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((2, 9, 3), np.float32)
    for result, expected in zip(gossamer.compile(proto, device)(x), runtime(proto, {"x": x}),
                                strict=True):
        np.testing.assert_array_equal(result, expected)
