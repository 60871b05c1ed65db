"""Values that an operator cannot take, and values that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError
from tests.model.onnx_models import model, weights


def test_an_index_out_of_range_is_refused() -> None:
    plan = gossamer.compile(model(
        [helper.make_node("Gather", ["table", "i"], ["y"], "embedding")], {"i": ("N", 2)},
        {"y": 3}, {"table": weights(5, 3)}, types={"i": TensorProto.INT64}), "host")
    np.testing.assert_array_equal(plan(np.array([[4, -5]])), weights(5, 3)[[[4, 0]]])
    with pytest.raises(InputError, match=r"Gather 'embedding': index 5 is outside dimension 0 of "
                                         r"shape \[5, 3\]"):
        plan(np.array([[0, 5]]))


@pytest.mark.parametrize(("op", "attributes", "right"), [
    ("IsNaN", {}, [True, False, False, False]), ("IsInf", {}, [False, True, True, False]),
    ("IsInf", {"detect_negative": 0}, [False, True, False, False]),
    ("IsInf", {"detect_positive": 0}, [False, False, True, False])])
def test_values_that_are_no_numbers_are_found(op: str, attributes: dict[str, int],
                                              right: list[bool], device: Device) -> None:
    proto = model([helper.make_node(op, ["x"], ["found"], **attributes),
                   helper.make_node("Where", ["found", "zero", "x"], ["y"])], {"x": ("N", 4)},
                  {"found": 2, "y": 2}, {"zero": np.float32(0)}, types={"found": TensorProto.BOOL})
    assert all(node.op != "onnx_part" for node in gossamer.load(proto).nodes)
    x = np.array([[np.nan, np.inf, -np.inf, 3]], np.float32)
    found, y = gossamer.compile(proto, device)(x)
    np.testing.assert_array_equal(found, [right])
    np.testing.assert_array_equal(y, np.where(found, 0, x))


@pytest.mark.usefixtures("without_onnxruntime")
@pytest.mark.parametrize(("op", "kind", "text"), [
    ("Add", TensorProto.UINT32, "Add 'layer': computes with uint32; gossamer computes elements in"),
    ("MatMul", TensorProto.INT32, "MatMul 'layer': computes with int32"),
    ("Reshape", TensorProto.INT64, "Reshape 'layer': depends for its shape on 'b', which the data"),
])
def test_what_no_call_can_compute_is_refused_by_compile(op: str, kind: int, text: str) -> None:
    proto = model([helper.make_node(op, ["a", "b"], ["y"], "layer")], {"a": (2, 2), "b": (2, 2)},
                  {"y": 2}, types=dict.fromkeys("aby", kind))
    with pytest.raises(UnsupportedError, match=text):
        gossamer.compile(proto, "host")
