"""Compares references with ONNX Runtime, by models of one op. Those of other ops are compared by
tests/model/readers/test_operators.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.ops.algorithm import Problem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.elementwise.problem import cast
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.tensor import default_spec
from tests.ops.harness import op_of, random_array, random_inputs
from tests.tolerances import normalised_error, tolerance

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def _onnxruntime(op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1,
                 opset: int = 19, **attributes: Any) -> list[np.ndarray]:
    helper = onnx.helper
    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info(n, kind(a.dtype), a.shape)
                        for n, a in zip(names, inputs, strict=True) if a is not None],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                              ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    return session.run(None, {n: a for n, a in zip(names, inputs, strict=True) if a is not None})


def _agrees(problem: Problem, expected: Sequence[np.ndarray],
            inputs: Sequence[np.ndarray] | None = None,
            weights: dict[str, np.ndarray] | None = None) -> None:
    inputs = random_inputs(problem) if inputs is None else inputs
    actual = op_of(problem).reference(problem, inputs, weights or {})
    for spec, actual_output, expected_output in zip(problem.outputs, actual, expected, strict=True):
        assert spec.shape == expected_output.shape == actual_output.shape, problem
        if expected_output.dtype.kind == "f":
            error = normalised_error(expected_output, actual_output)
            assert error <= tolerance(problem.op), f"{problem}: {error}"
        else:
            np.testing.assert_array_equal(actual_output, expected_output, str(problem))


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_pool(kind: str, ceil_mode: bool, count_include_pad: bool) -> None:
    spec = default_spec((2, 3, 8, 7))
    for kernel, stride, pads, dilation in [
        ((3, 3), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((3, 2), (2, 3), (1, 0, 1, 1), (1, 1)),
        ((2, 2), (2, 2), (1, 1, 1, 1), (1, 1)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (2, 2)),
        ((2, 3), (3, 2), (0, 2, 1, 0), (2, 1)),
        ((1, 1), (3, 2), (0, 0, 0, 0), (1, 1)),
    ]:
        problem = PoolProblem(spec, kind, kernel, stride, pads, dilation, ceil_mode,
                              count_include_pad)
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": pads,
                                      "dilations": dilation, "ceil_mode": int(ceil_mode)}
        if kind == "average":
            attributes["count_include_pad"] = int(count_include_pad)
        name = "MaxPool" if kind == "max" else "AveragePool"
        _agrees(problem, _onnxruntime(name, random_inputs(problem), **attributes))


@pytest.mark.parametrize("kind", ["mean", "max", "sum"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_reduce(kind: str, keepdims: bool, dtype: str) -> None:
    for axes in [(1,), (2, 3), (0, 2), (0, 1, 2, 3)]:
        problem = ReduceProblem(default_spec((2, 3, 4, 5), dtype), kind, axes, keepdims)
        inputs = random_inputs(problem)
        expected = _onnxruntime(f"Reduce{kind.title()}", [*inputs, np.array(axes)], opset=18,
                                keepdims=int(keepdims))
        _agrees(problem, expected)


@pytest.mark.parametrize("log", [False, True])
def test_softmax(log: bool) -> None:
    for axis in range(3):
        problem = SoftmaxProblem(default_spec((3, 4, 5)), axis, log)
        _agrees(problem, _onnxruntime("LogSoftmax" if log else "Softmax", random_inputs(problem),
                                      axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize("largest", [False, True])
def test_top_k(dtype: str, largest: bool) -> None:
    for axis, count in ((0, 2), (1, 3), (2, 5), (3, 1)):
        problem = TopKProblem(default_spec((2, 3, 5, 4), dtype), axis, count, largest)
        inputs = random_inputs(problem)
        values, places = _onnxruntime("TopK", [*inputs, np.array([count])], 2, axis=axis,
                                      largest=int(largest))
        _agrees(problem, [values, places], inputs)
        _agrees(replace(problem, places_only=True), [places], inputs)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode: str) -> None:
    for pads in [(0, 0, 1, 2, 0, 0, 2, 1), (0, -1, 0, 1, 0, 0, -2, 0), (0, 1, -1, 2, 0, 2, 2, -1)]:
        problem = PadProblem(default_spec((2, 3, 5, 4)), pads, mode, 2.5)
        value = np.array(2.5, np.float32) if mode == "constant" else None
        expected = _onnxruntime("Pad", [*random_inputs(problem), np.array(pads), value], mode=mode)
        _agrees(problem, expected)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 3)),
                                    ((2, 3, 4), (4,)), ((4,), (4,))], ids=str)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    problem = MatmulProblem(*map(default_spec, shapes))
    _agrees(problem, _onnxruntime("MatMul", random_inputs(problem)))


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose2d(groups: int) -> None:
    for stride, pads, dilation, extra in [((1, 1), (0, 0, 0, 0), (1, 1), (0, 0)),
                                          ((2, 3), (1, 0, 1, 2), (1, 1), (1, 2)),
                                          ((2, 2), (1, 1, 0, 0), (2, 1), (0, 1))]:
        problem = ConvTranspose2dProblem(default_spec((2, 4, 5, 6)), 6, (3, 2), stride, pads,
                                         dilation, extra, groups, True)
        rng = np.random.default_rng(3)
        weights = {name: random_array(rng, shape, "float32")
                   for name, shape in problem.weight_shapes.items()}
        expected = _onnxruntime(
            "ConvTranspose", [*random_inputs(problem), weights["weight"], weights["bias"]],
            strides=stride, pads=pads, dilations=dilation, output_padding=extra, group=groups)
        _agrees(problem, expected, weights=weights)


@pytest.mark.parametrize("source", ["float32", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("target", ["float32", "int32", "int64", "uint8", "bool"])
def test_cast(source: str, target: str) -> None:
    problem = cast(default_spec((6,), source), target)
    x = np.array([0, 1, 2.75, 100.5, 0.25, 7]).astype(source)
    if source not in ("bool", "uint8") and target != "uint8":
        x[3:] *= -1
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
    _agrees(problem, _onnxruntime("Cast", [x], to=kind), [x])
