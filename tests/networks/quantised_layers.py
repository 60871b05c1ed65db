"""The layers of a quantised network side by side, each with inputs that ONNX Runtime has computed,
so that no layer gets the differences of those before it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from tests.networks.compared import session_of

_GIVEN = "given "


def quantised_values(model: onnx.ModelProto) -> list[str]:
    """Returns the names of the values that quantised layers make: the results of QuantizeLinear,
    which ends a layer of the form QDQ, and of operators on integers, such as QLinearConv."""
    return [node.output[0] for node in model.graph.node
            if node.op_type in ("QuantizeLinear", "QGemm") or node.op_type.startswith("QLinear")]


def own_inputs(model: onnx.ModelProto, x: np.ndarray
               ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the inputs of with_own_inputs() and its results, as ONNX Runtime computes them
    without optimisations. x: the network's input."""
    names = quantised_values(model)
    told = onnx.ModelProto()
    told.CopyFrom(model)
    told.graph.ClearField("output")
    told.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = session_of(told, is_optimised=False)
    (info,) = session.get_inputs()
    expected = dict(zip(names, session.run(None, {info.name: x}), strict=True))
    return {info.name: x, **{_GIVEN + name: array for name, array in expected.items()}}, expected


def with_own_inputs(model: onnx.ModelProto, expected: Mapping[str, np.ndarray]
                    ) -> onnx.ModelProto:
    """Returns a network whose results are all values that quantised layers make, and whose layers
    read inputs in their place. expected: arrays like those values."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    cut.graph.ClearField("output")
    for node in cut.graph.node:
        for index, name in enumerate(node.input):
            if name in expected:
                node.input[index] = _GIVEN + name
    for name, array in expected.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = ["N", *array.shape[1:]]
        cut.graph.output.append(helper.make_tensor_value_info(name, dtype, shape))
        if any(_GIVEN + name in node.input for node in cut.graph.node):
            cut.graph.input.append(helper.make_tensor_value_info(_GIVEN + name, dtype, shape))
    return cut
