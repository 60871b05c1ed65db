"""Compares the references with ONNX Runtime, by models of one op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.expression import apply
from gossamer.ops.algorithm import Problem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy.problem import expand, slice_, split, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem, cast
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.tensor import default_spec
from tests.ops.harness import op_of, random_array, random_inputs, random_weights
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


def test_layer_norm() -> None:
    for first in range(1, 4):
        problem = LayerNormProblem(default_spec((2, 3, 4, 5)), tuple(range(first, 4)), 1e-2)
        inputs, weights = random_inputs(problem), random_weights(problem)
        expected = _onnxruntime("LayerNormalization",
                                [*inputs, weights["scale"], weights["bias"]], opset=17,
                                axis=first, epsilon=1e-2)
        _agrees(problem, expected, inputs, weights)


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


def test_moves() -> None:
    spec = default_spec((2, 3, 4, 5))
    problem = transpose(spec, (0, 2, 3, 1))
    x = random_inputs(problem)[0]
    _agrees(problem, _onnxruntime("Transpose", [x], perm=(0, 2, 3, 1)))
    for starts, ends, axes, steps in [((1, 4), (100, -100), (1, 3), (1, -2)),
                                      ((-3,), (-1,), (2,), (1,)), ((3,), (0,), (0,), (-1,))]:
        arrays = [np.array(part) for part in (starts, ends, axes, steps)]
        _agrees(slice_(spec, starts, ends, axes, steps), _onnxruntime("Slice", [x, *arrays]))
    for part, expected in zip(split(spec, 3, (1, 4)),
                              _onnxruntime("Split", [x, np.array([1, 4])], 2, axis=3),
                              strict=True):
        _agrees(part, [expected])
    expanded = expand(default_spec((3, 1)), (2, 3, 4))
    _agrees(expanded, _onnxruntime("Expand", [*random_inputs(expanded), np.array((2, 3, 4))]))


def test_concat() -> None:
    problem = ConcatProblem((default_spec((2, 3)), default_spec((2, 5))), 1)
    _agrees(problem, _onnxruntime("Concat", random_inputs(problem), axis=1))


def test_gather() -> None:
    problem = GatherProblem(default_spec((3, 4, 5)), default_spec((2, 3), "int64"), 1)
    inputs = [random_inputs(problem)[0], np.array([[0, -1, 3], [-4, 2, 2]])]
    _agrees(problem, _onnxruntime("Gather", inputs, axis=1), inputs)


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


_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "min": "Min",
           "max": "Max", "prelu": "PRelu"}
_UNARY = {"neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
          "erf": "Erf", "floor": "Floor", "sigmoid": "Sigmoid", "sign": "Sign", "relu": "Relu",
          "sin": "Sin", "cos": "Cos", "tan": "Tan", "atan": "Atan"}
_COMPARISONS = {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
                "greater_equal": "GreaterOrEqual", "equal": "Equal"}


@pytest.mark.parametrize("function", [*_BINARY, *_UNARY])
def test_functions(function: str) -> None:
    operator = _BINARY.get(function) or _UNARY[function]
    shapes = [(2, 3, 4), (3, 1)][: 2 if function in _BINARY else 1]
    problem = ElementwiseProblem(tuple(map(default_spec, shapes)), apply(function))
    inputs = random_inputs(problem)
    if function in ("pow", "log", "sqrt"):
        inputs[0] = np.abs(inputs[0]) + np.float32(0.1)
    _agrees(problem, _onnxruntime(operator, inputs), inputs)


@pytest.mark.parametrize(("function", "constants", "operator", "attributes"), [
    ("leaky_relu", (0.1,), "LeakyRelu", {"alpha": 0.1}),
    ("hard_sigmoid", (0.3, 0.4), "HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
])
def test_functions_with_constants(function, constants, operator, attributes) -> None:
    problem = ElementwiseProblem((default_spec((5, 7)),), apply(function, *constants))
    _agrees(problem, _onnxruntime(operator, random_inputs(problem), **attributes))


def test_clip() -> None:
    problem = ElementwiseProblem((default_spec((5, 7)),), apply("clip", -0.5, 0.7))
    limits = [np.array(limit, np.float32) for limit in (-0.5, 0.7)]
    _agrees(problem, _onnxruntime("Clip", [*random_inputs(problem), *limits]))


@pytest.mark.parametrize("function", _COMPARISONS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_comparisons(function: str, dtype: str) -> None:
    specs = (default_spec((60,), dtype),) * 2
    problem = ElementwiseProblem(specs, apply(function), ("bool",))
    inputs = [np.round(x / 10 if dtype != "float32" else x).astype(dtype)
              for x in random_inputs(problem)]
    assert (inputs[0] == inputs[1]).any()
    _agrees(problem, _onnxruntime(_COMPARISONS[function], inputs), inputs)


def test_integer_division_where_and_logic() -> None:
    for dtype in ("int32", "int64"):
        problem = ElementwiseProblem((default_spec((40,), dtype),) * 2, apply("div"), (dtype,))
        a, b = random_inputs(problem)
        b[b == 0] = 3
        _agrees(problem, _onnxruntime("Div", [a, b]), [a, b])
    operands = (default_spec((3, 1), "bool"), default_spec((3, 4)), default_spec((4,)))
    where = ElementwiseProblem(operands, apply("where"))
    _agrees(where, _onnxruntime("Where", random_inputs(where)))
    for function, operator in (("and", "And"), ("or", "Or")):
        logic = ElementwiseProblem((default_spec((9,), "bool"),) * 2, apply(function), ("bool",))
        _agrees(logic, _onnxruntime(operator, random_inputs(logic)))
    flip = ElementwiseProblem((default_spec((9,), "bool"),), apply("not"), ("bool",))
    _agrees(flip, _onnxruntime("Not", random_inputs(flip)))


@pytest.mark.parametrize("source", ["float32", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("target", ["float32", "int32", "int64", "uint8", "bool"])
def test_cast(source: str, target: str) -> None:
    problem = cast(default_spec((6,), source), target)
    x = np.array([0, 1, 2.75, 100.5, 0.25, 7]).astype(source)
    if source not in ("bool", "uint8") and target != "uint8":
        x[3:] *= -1
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
    _agrees(problem, _onnxruntime("Cast", [x], to=kind), [x])
