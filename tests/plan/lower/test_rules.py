"""Every rule makes layers that compute what ONNX Runtime computes, with names of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.onnx_writer import to_onnx
from gossamer.model.passes.optimise import optimise
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from tests.model.onnx_models import Input, model, runtime, save, single, weights
from tests.plan.lower import operators as ops
from tests.plan.small import assert_close, compiled
from tests.tolerances import normalised_error, tolerance

IMAGE, LINE, MATRIX, floats, ints = ops.IMAGE, ops.LINE, ops.MATRIX, ops.floats, ops.ints


@dataclass(frozen=True)
class Case:
    op: str
    arguments: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    outputs: int = 1


def case(op: str, *arguments: Any, dtype: str = "float32", outputs: int = 1,
         **attributes: Any) -> Case:
    return Case(op, arguments, attributes, dtype, outputs)


def fixed(*shape: int, **options: Any) -> Input:
    """A run-time input without a batch."""
    return Input(shape, free=False, **options)


LAYERS = [Case(op, arguments, attributes)
          for table in (ops.CONV, ops.PRODUCTS, ops.POOLS, ops.UNARY, ops.BINARY, ops.MOVES)
          for op, entries in table.items() for arguments, attributes in entries]
LAYERS += [case(op, ops.IMAGE, kernel_shape=[3, 2], strides=[3, 2], ceil_mode=1, pads=[1, 1, 0, 1],
                **more) for op, more in (
    ("MaxPool", {"dilations": [2, 3]}), ("AveragePool", {"count_include_pad": 1}))]

PRODUCTS = [
    case("Gemm", MATRIX, weights(5, 4), Input((3, 4)), beta=0.5),
    case("Gemm", MATRIX, weights(5, 4), fixed(4)),
    case("Gemm", MATRIX, fixed(5, 4), weights(4)),
    case("Gemm", MATRIX, fixed(4, 5), fixed(4), transB=1, alpha=0.5),
    case("Gemm", fixed(5, 3), fixed(4, 5), weights(4), transA=1, transB=1, beta=2.0),
    case("Gemm", fixed(5, 3), weights(5, 4), weights(3, 4), transA=1),
    case("Gemm", weights(3, 5), fixed(5, 4), weights(4)),
    case("MatMul", weights(2, 3, 4), fixed(4, 5)),
    case("MatMul", Input((2, 3, 4)), Input((2, 4, 5))),
    case("MatMul", fixed(4), weights(4, 3)),
    case("MatMul", fixed(4), fixed(4)),
    case("MatMul", fixed(4), Input((2, 4, 3))),
]
GATHERS = [
    case("Gather", weights(5, 4), Input((3,), 0, 5, "int64")),
    case("Gather", weights(5, 4), Input((3, 2), -5, 5, "int32")),
    case("Gather", IMAGE, fixed(3, low=0, high=4, dtype="int64"), axis=1),
    case("Gather", Input((6, 3), -9, 9, "int64"), ints(2, 0), axis=1, dtype="int64"),
]
SHAPES = [
    *[case("Slice", IMAGE, *[ints(*b) for b in bounds])
      for bounds in [*ops.SLICES, *ops.STRIDED_SLICES]],
    case("Slice", MATRIX, ints(2), ints(2), ints(1)),
    case("Concat", IMAGE, weights(2, 0, 7, 6), axis=1),
    *[case("Pad", IMAGE, ints(*pads), mode=mode) for mode, pads in (
        ("constant", [0, 1, 2, 3, 0, 1, 0, 2]), ("edge", [0, 0, 2, 1, 0, 0, 3, 9]),
        ("reflect", [0, 0, 2, 1, 0, 0, 3, 1]), ("constant", [0, 0, -1, -2, 0, 0, 0, 1]))],
    *[case("Resize", *arguments, mode=mode, coordinate_transformation_mode=coordinates,
           nearest_mode=rounding)
      for mode, coordinates, rounding in ops.RESIZES for arguments in (
          (IMAGE, None, None, ints(2, 4, 5, 9)), (LINE, None, floats(1, 1, 2.5)),
          (LINE, None, None, ints(2, 4, 4)))],
    case("Squeeze", fixed(1, 3, 1), ints(0, 2)), case("Unsqueeze", MATRIX, ints(0, 3)),
    case("Flatten", IMAGE, axis=0),
    case("Split", IMAGE, ints(1, 3), axis=1, outputs=2),
]
REDUCTIONS = [
    case("ReduceMean", IMAGE, axes=[0]), case("ReduceMean", IMAGE, axes=[1, 3], keepdims=0),
    case("ReduceMax", IMAGE, axes=[0, 1, 2, 3]), case("ReduceSum", IMAGE, ints(1, -1)),
    case("Softmax", IMAGE, axis=0), case("Softmax", LINE, axis=1), case("LogSoftmax", MATRIX),
]
BROADCASTS = [
    case("Add", IMAGE, fixed(1, 1, 7, 1)), case("Mul", fixed(), IMAGE),
    case("Add", Input((2, 3, 4, 5, 6)), weights(4, 1, 1)),
    case("PRelu", IMAGE, fixed(4, 1, 1)), case("Clip", IMAGE, fixed(), fixed(low=4, high=5)),
    case("Tanh", fixed()),
]
TYPES = ("float32", "int64", "int32", "uint8", "bool")
CASTS = [case("Cast", Input((3, 5), 0, 5, source), dtype=target,
              to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
         for source in TYPES for target in TYPES]
LARGE = Input((3, 5), 2**40, 2**50, "int64")


def _integers(dtype: str) -> list[Case]:
    x, y = Input((3, 5), -9, 9, dtype), np.array([1, -2, 3, 4, -5], dtype)
    near = Input((3, 5), -3, 3, dtype)
    same: list[Case] = [
        *[case(op, x, y) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")],
        *[case(op, x) for op in ("Neg", "Abs", "Sign", "Transpose")],
        case("Where", Input((3, 5), 0, 2, "bool"), x, y),
        case("Concat", x, Input((3, 2), -9, 9, dtype), axis=1), case("Concat", x, x, axis=0),
        case("Concat", x, np.arange(6).reshape(3, 2).astype(dtype), axis=1),
        case("Slice", x, ints(1), ints(4), ints(1)),
        case("Expand", Input((3, 1), -9, 9, dtype), ints(3, 4)),
        case("Pad", x, ints(0, 1, 0, 2), np.array(3, dtype)),
        case("Split", x, ints(1, 4), axis=1, outputs=2),
        case("Clip", x, np.array(-2, dtype), np.array(3, dtype)),
    ]
    return [*[Case(c.op, c.arguments, c.attributes, dtype, c.outputs) for c in same],
            *[case(op, near, near, dtype="bool") for op in ("Less", "Equal", "GreaterOrEqual")]]


TRUTHS = [
    *[case(op, Input((3, 5), 0, 2, "bool"), Input((3, 5), 0, 2, "bool"), dtype="bool")
      for op in ("And", "Or", "Xor", "Equal")],
    case("Not", Input((3, 5), 0, 2, "bool"), dtype="bool"),
    *[case(op, MATRIX, floats(0.5), dtype="bool") for op in ops.COMPARISONS],
    case("Where", Input((3, 5), 0, 2, "bool"), MATRIX, floats(1)),
    case("Transpose", Input((3, 5), 0, 2, "bool"), dtype="bool"),
    case("Reshape", Input((3, 4), 0, 200, "uint8"), ints(-1, 2), dtype="uint8"),
]
EXACT = [
    case("Where", Input((3, 5), 0, 2, "bool"), LARGE, ints(2**53 + 1), dtype="int64"),
    case("Add", LARGE, ints(1), dtype="int64"), case("Gather", LARGE, ints(1), axis=1,
                                                     dtype="int64"),
]
CASES = [*LAYERS, *PRODUCTS, *GATHERS, *SHAPES, *REDUCTIONS, *BROADCASTS, *CASTS,
         *_integers("int64"), *_integers("int32"), *TRUTHS, *EXACT]

def _id(tried: Case) -> str:
    twins = [c for c in CASES if c.op == tried.op]
    return f"{tried.op}-{next(i for i, c in enumerate(twins) if c is tried)}"


def assert_same(y: np.ndarray, expected: np.ndarray) -> None:
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "f":
        assert normalised_error(y, expected) <= tolerance("network")
    else:
        np.testing.assert_array_equal(y, expected)


def model_of(tried: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns the model of a case, and its inputs."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(tried.dtype))
    return single(tried.op, tried.arguments, max(17, ops.SINCE.get(tried.op, 9)),
                  tried.outputs, {f"y{i}": kind for i in range(tried.outputs)},
                  **tried.attributes)


def check(tried: Case, device: Device, folder: Path) -> None:
    proto, feeds = model_of(tried)
    plan = gossamer.compile(str(save(proto, folder)), device, strict=True)
    results = plan(*[feeds[info.name] for info in plan.inputs])
    results = results if isinstance(results, tuple) else (results,)
    for y, expected in zip(results, runtime(proto, feeds), strict=True):
        assert_same(y, expected)


@pytest.mark.parametrize("tried", CASES, ids=_id)
def test_op(tried: Case, quick_device: Device, tmp_path: Path) -> None:
    check(tried, quick_device, tmp_path)


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MaxPool", "Softmax", "Concat", "Where"])
def test_first_case_of_an_op_on_every_device(op: str, device: Device, tmp_path: Path) -> None:
    check(next(c for c in CASES if c.op == op), device, tmp_path)


def test_split_with_parts_that_nobody_reads(device: Device, tmp_path: Path) -> None:
    node = helper.make_node("Split", ["x", "sizes"], ["first", "y", "last"], axis=1)
    proto = model([node], {"x": ["N", 6]}, {"y": 2}, {"sizes": ints(1, 2, 3)})
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    plan = gossamer.compile(str(save(proto, tmp_path)), device)
    np.testing.assert_array_equal(plan(x), x[:, 1:3])
    assert len(plan.report().rows) == 1


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_resize_of_lines_before_opset_11(scale: float, device: Device, tmp_path: Path) -> None:
    proto, feeds = single("Resize", (Input((2, 3, 6)), floats(1, 1, scale)), 10, mode="nearest")
    plan = gossamer.compile(str(save(proto, tmp_path)), device, strict=True)
    (expected,) = runtime(proto, feeds)
    assert_same(plan(feeds["x0"]), expected)


@pytest.mark.parametrize(("op", "arguments", "message"), [
    ("Conv", (IMAGE, fixed(6, 4, 3, 2)), "weight"),
    ("Conv", (IMAGE, weights(6, 4, 3, 2), fixed(6)), "bias"),
    ("ConvTranspose", (IMAGE, fixed(4, 3, 3, 2)), "weight"),
    ("ConvTranspose", (IMAGE, weights(4, 3, 3, 2), fixed(3)), "bias"),
    ("BatchNormalization", (IMAGE, fixed(4), weights(4), weights(4), np.abs(weights(4))),
     "scale"),
])
@pytest.mark.usefixtures("without_onnxruntime")
def test_weights_that_the_data_decides_are_refused(op: str, arguments: tuple[Any, ...],
                                                   message: str, tmp_path: Path) -> None:
    proto, _ = single(op, arguments, 17)
    path = save(proto, tmp_path)
    with pytest.raises(UnsupportedError, match=f"{op} 'node'.*{message}.*expected a constant") as e:
        gossamer.compile(str(path), "host").program(2)
    assert "\n" not in str(e.value) and str(path) in str(e.value)


def test_a_constant_is_read_by_several_kinds_of_layer(device: Device, tmp_path: Path) -> None:
    """One layer reads the constant as packed weights, the others read it as a run-time value."""
    nodes = [helper.make_node("MatMul", ["x", "c"], ["p"]),
             helper.make_node("Concat", ["p", "c"], ["q"], axis=0),
             helper.make_node("MatMul", ["c", "q2"], ["r"]),
             helper.make_node("Transpose", ["q"], ["q2"])]
    nodes = [nodes[0], nodes[1], nodes[3], nodes[2]]
    proto = model(nodes, {"x": [4, 4]}, {"r": 2, "q": 2}, {"c": weights(4, 4)},
                  types={"x": TensorProto.FLOAT})
    onnx.checker.check_model(proto)
    x = weights(4, 4, seed=3)
    plan = gossamer.compile(str(save(proto, tmp_path)), device)
    for y, expected in zip(plan(x), runtime(proto, {"x": x}), strict=True):
        assert_same(y, expected)


OPS = sorted({tried.op for tried in CASES})


def lowered(op: str) -> Iterator[tuple[Case, list[Layer]]]:
    """Yields the cases of an op, each with its layers."""
    for tried in CASES:
        if tried.op == op:
            proto, feeds = model_of(tried)
            first = next(iter(feeds.values()))
            batch = first.shape[0] if first.ndim else 1
            yield tried, lower(resolve(optimise(load(proto)), batch))[0]


@pytest.mark.parametrize("op", OPS)
def test_names_of_layers_differ(op: str) -> None:
    for tried, layers in lowered(op):
        names = [layer.name for layer in layers]
        assert len(set(names)) == len(names), f"{tried}: {names}"


@pytest.mark.parametrize("op", OPS)
def test_layers_read_and_make_the_values_of_their_problems(op: str) -> None:
    """A constant among a problem's weights is no value that the layer reads."""
    for tried, layers in lowered(op):
        for layer in layers:
            if not layer.is_reshape:
                assert len(layer.inputs) == len(layer.problem.inputs), tried
                assert len(layer.outputs) == len(layer.problem.outputs), tried
                assert set(layer.weights) == set(layer.problem.weight_shapes), tried


def _ranged() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [node("Shape", ["x"], ["s"], "shape"),
         node("Gather", ["s", "zero"], ["n"], "batch", axis=0),
         node("Range", ["zero", "n", "one"], ["r"], "range"),
         node("Cast", ["r"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
         node("Unsqueeze", ["f", "axes"], ["u"], "column"),
         node("Add", ["x", "u"], ["y"], "add")],
        {"x": ["N", 4]}, {"y": 2},
        {"zero": np.array(0), "one": np.array(1), "axes": np.array([1])})


def _expanded() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [node("Shape", ["x"], ["s"], "shape"),
         node("Expand", ["k", "s"], ["e"], "expand"),
         node("Mul", ["x", "e"], ["y"], "mul")],
        {"x": ["N", 4]}, {"y": 2}, {"k": weights(4)})


@pytest.mark.parametrize("make", [_ranged, _expanded])
def test_every_batch_has_its_own(device: Device, tmp_path: Path,
                                 make: Callable[[], onnx.ModelProto]) -> None:
    proto = make()
    plan = compiled(proto, device, tmp_path)
    for batch in (2, 3, 1, 5, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        assert_close(plan(x), runtime(proto, {"x": x})[0])


def test_a_context_refuses_what_it_was_not_made_for(device: Device, tmp_path: Path) -> None:
    context = compiled(_expanded(), device, tmp_path).context(2)
    for wrong in (np.ones((1, 4), np.float32), np.ones((2, 4), np.int32)):
        with pytest.raises(InputError, match="context of batch 2 takes"):
            context.run({"x": wrong})
    with pytest.raises(InputError, match=r"takes 1 input \('x'\), got 0"):
        context.run({})


CONSTANTS = {"weight": weights(4, 3, 3, 3), "gamma": weights(4), "beta": weights(4, seed=1),
             "mean": weights(4, seed=2), "variance": np.abs(weights(4, seed=3))}


def network(*norm_outputs: str) -> onnx.ModelProto:
    """A convolution, batch norm by the statistics of the batch, and a leaky rectifier."""
    statistics = [name for name in norm_outputs[1:] if name]
    nodes = [helper.make_node("Conv", ["x", "weight"], ["product"]),
             helper.make_node("BatchNormalization",
                              ["product", "gamma", "beta", "mean", "variance"],
                              list(norm_outputs), "norm", training_mode=1, epsilon=1e-3,
                              momentum=0.7),
             helper.make_node("LeakyRelu", ["norm"], ["y"], alpha=0.1)]
    return model(nodes, {"x": ["N", 3, 9, 8]}, {"y": 4, **dict.fromkeys(statistics, 1)}, CONSTANTS)


@pytest.mark.parametrize("outputs", [("norm",), ("norm", "new_mean", "new_variance"),
                                     ("norm", "", "new_variance"), ("norm", "new_mean", "")],
                         ids=" ".join)
@pytest.mark.parametrize("only", [None, "published"])
def test_outputs_are_those_of_the_onnx_standard(device: Device, outputs: tuple[str, ...],
                                                only: str | None, tmp_path: Path) -> None:
    proto = network(*outputs)
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    plan = gossamer.compile(str(save(proto, tmp_path)), device, only=only)
    results = plan(x)
    for y, r in zip([results] if len(expected) == 1 else results, expected, strict=True):
        assert normalised_error(y, r) <= tolerance("network")
    if only and device.compiles:
        names = [step.algorithm.name for step in plan.program(3).steps if not step.layer.inserted]
        assert names == ["published"] * 3


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    proto = network("norm", "new_mean", "new_variance")
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    written = to_onnx(load(save(proto, tmp_path)))
    for y, r in zip(ReferenceEvaluator(written).run(None, {"x": x}),
                    ReferenceEvaluator(proto).run(None, {"x": x}), strict=True):
        assert normalised_error(y, r) <= 1e-7
