"""Compares every ONNX op and attribute that is read with ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.model.readers.onnx.reader import NEWEST_OPSET
from tests.model.onnx_models import OPSETS, Input, compare, model, runtime, single, weights

IMAGE = Input((2, 4, 7, 6))
MATRIX = Input((3, 5))
LINE = Input((2, 4, 9))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


SINCE = {
    "HardSwish": 14, "Mish": 18, "LessOrEqual": 12, "GreaterOrEqual": 12, "Celu": 12, "Gelu": 20,
    "LayerNormalization": 17, "GroupNormalization": 21,
}
CONV = {"Conv": [
    ((IMAGE, weights(6, 4, 3, 2)), {}),
    ((IMAGE, weights(6, 4, 3, 2), weights(6)), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((IMAGE, weights(6, 2, 3, 3), weights(6)), {"group": 2, "dilations": [2, 1]}),
    ((IMAGE, weights(4, 1, 3, 3)), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((IMAGE, weights(8, 1, 2, 3)), {"group": 4, "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((IMAGE, weights(5, 4, 3, 3)), {"auto_pad": "VALID", "kernel_shape": [3, 3]}),
    ((LINE, weights(6, 2, 3), weights(6)), {"group": 2, "strides": [2], "pads": [1, 2],
                                            "dilations": [2]}),
    ((LINE, weights(6, 4, 4)), {"auto_pad": "SAME_UPPER", "strides": [2]}),
], "ConvTranspose": [
    ((IMAGE, weights(4, 3, 3, 2)), {}),
    ((IMAGE, weights(4, 3, 3, 2), weights(6)), {"group": 2, "strides": [2, 3],
                                                "pads": [1, 0, 0, 1]}),
    ((IMAGE, weights(4, 3, 3, 3), weights(3)), {"strides": [2, 2], "output_padding": [1, 0],
                                                "pads": [1, 1, 1, 1], "dilations": [1, 2]}),
    ((IMAGE, weights(4, 3, 3, 3)), {"strides": [2, 2], "output_shape": [14, 13]}),
    ((IMAGE, weights(4, 3, 4, 3)), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((IMAGE, weights(4, 3, 3, 3)), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((LINE, weights(4, 3, 3), weights(3)), {"strides": [2], "pads": [1, 0],
                                            "output_padding": [1]}),
]}
PRODUCTS = {"Gemm": [
    ((MATRIX, weights(5, 4)), {}),
    ((MATRIX, weights(4, 5), weights(4)), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ((MATRIX, weights(5, 4), weights(1, 4)), {"alpha": 1.5}),
    ((MATRIX, weights(5, 4), floats(2)), {"beta": 0.25}),
    ((MATRIX, weights(5, 4), weights(3, 4)), {"beta": 3.0}),
    ((MATRIX, weights(5, 4), weights(3, 1)), {}),
    ((MATRIX, weights(3, 4)), {"transA": 1}),
    ((MATRIX, Input((5, 4), free=False), Input((3, 4))), {"alpha": 2.0, "beta": -1.0}),
], "MatMul": [
    ((MATRIX, weights(5, 4)), {}),
    ((Input((2, 3, 5)), weights(5, 4)), {}),
    ((Input((2, 3, 4, 5)), Input((2, 1, 5, 6))), {}),
    ((Input((2, 3, 5)), weights(5)), {}),
    ((weights(2, 3), Input((3, 4))), {}),
], "BatchNormalization": [
    ((shape, weights(4), weights(4, seed=1), weights(4, seed=2), np.abs(weights(4, seed=3))),
     {"epsilon": 1e-3, "momentum": 0.8}) for shape in (IMAGE, LINE, Input((3, 4)))
]}
POOLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "MaxPool": [
        ((IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
        ((IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((LINE,), {"kernel_shape": [3], "strides": [2]}),
    ],
    "AveragePool": [
        ((IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 0, 0]}),
        ((IMAGE,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ((IMAGE,), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((LINE,), {"kernel_shape": [2], "strides": [2], "pads": [1, 0]}),
    ],
    "GlobalAveragePool": [((IMAGE,), {}), ((LINE,), {})],
    "GlobalMaxPool": [((IMAGE,), {})],
    "ReduceMax": [((IMAGE,), {"keepdims": 0})],
}
UNARY: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    **{op: [((IMAGE,), {})] for op in (
        "Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Exp", "Sign", "Abs",
        "Neg", "Floor", "Ceil", "Elu", "Softplus", "Reciprocal", "Mish", "Identity", "Dropout",
        "Erf", "Celu", "Selu", "Gelu", "Softsign", "Sin", "Cos", "Atan")},
    "Tan": [((Input((2, 4, 5), -1.4, 1.4),), {})],
    **{op: [((Input((2, 4, 5), 0.1, 4),), {})] for op in ("Log", "Sqrt")},
    "PRelu": [((IMAGE, weights(4, 1, 1)), {}), ((MATRIX, weights(1)), {})],
}
UNARY["LeakyRelu"].append(((MATRIX,), {"alpha": 0.3}))
UNARY["HardSigmoid"].append(((MATRIX,), {"alpha": 0.4, "beta": 0.3}))
UNARY["Elu"].append(((MATRIX,), {"alpha": 0.7}))
UNARY["Celu"] += [((MATRIX,), {"alpha": alpha}) for alpha in (0.6, -0.5)]
UNARY["Selu"].append(((MATRIX,), {"alpha": 1.2, "gamma": 0.9}))
UNARY["Gelu"].append(((MATRIX,), {"approximate": "tanh"}))
NORMALISATIONS = {
    "LayerNormalization": [
        ((IMAGE, weights(6)), {}), ((LINE, weights(9), weights(9, seed=1)), {"epsilon": 0.1}),
        ((IMAGE, weights(4, 7, 6), weights(4, 7, 6, seed=1)), {"axis": 1}),
        ((IMAGE, weights(6), weights(7, 1, seed=1)), {"axis": -2}),
        ((IMAGE, Input((6,), free=False), weights(6)), {}),
        ((IMAGE, weights(6), Input((6,), free=False)), {})],
    "InstanceNormalization": [((shape, weights(4), weights(4, seed=1)), {"epsilon": 1e-3})
                              for shape in (IMAGE, LINE)],
    "GroupNormalization": [((shape, weights(4), weights(4, seed=1)), {"num_groups": 2})
                           for shape in (IMAGE, LINE)],
}
BINARY = {
    **{op: [((IMAGE, Input((2, 4, 1, 1))), {}), ((MATRIX, weights(5)), {}),
            ((floats(1.5), MATRIX), {}), ((weights(2, 1, 1), MATRIX), {})]
       for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")},
    "Sum": [((MATRIX, weights(3, 1), MATRIX), {}), ((MATRIX,), {})],
    "Mean": [((MATRIX, weights(3, 1), MATRIX), {})],
    "Max": [((MATRIX,), {}), ((MATRIX, weights(1, 5), floats(0.5)), {})],
    "Pow": [((Input((2, 5), 0.1, 2), weights(5)), {}), ((MATRIX, np.float32(2)), {}),
            ((Input((2, 5), 0.1, 2), np.float32(0.5)), {}), ((MATRIX, floats(3)), {})],
}
MOVES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Concat": [((IMAGE, Input((2, 3, 7, 6))), {"axis": 1}), ((MATRIX, MATRIX), {"axis": -1}),
               ((LINE, weights(2, 4, 2)), {"axis": 2})],
    "Flatten": [((IMAGE,), {}), ((IMAGE,), {"axis": 3}), ((LINE,), {"axis": 1})],
    "Reshape": [((IMAGE, ints(0, -1)), {}), ((IMAGE, ints(-1, 2, 2, 0)), {}),
                ((IMAGE, ints(-1, 42)), {}), ((LINE, ints(0, 2, 2, 9)), {})],
    "Transpose": [((IMAGE,), {"perm": [0, 2, 3, 1]}), ((MATRIX,), {})],
    "DepthToSpace": [((Input((2, 12, 3, 5)),), {"blocksize": 2})],
    "SpaceToDepth": [((Input((2, 3, 4, 6)),), {"blocksize": 2})],
    "Expand": [((Input((2, 1, 5)), ints(2, 3, 1)), {}), ((MATRIX, ints(2, 1, 5)), {})],
    "Gather": [((IMAGE, ints(2, 0, -1)), {"axis": 1}), ((IMAGE, np.array(-2)), {"axis": 2}),
               ((IMAGE, ints(1, 0).reshape(2, 1)), {"axis": 3})],
}
COMPARISONS = ("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")


def cases(*tables: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]],
          opsets: tuple[int, ...] = OPSETS) -> list[Any]:
    return [pytest.param(op, opset, arguments, attributes, id=f"{op}-{index}-opset{opset}")
            for table in tables for op, entries in table.items()
            for index, (arguments, attributes) in enumerate(entries)
            for opset in opsets if opset >= SINCE.get(op, 9)
            and (op != "Gemm" or len(arguments) == 3 or opset >= 11)]


@pytest.mark.parametrize(("op", "opset", "arguments", "attributes"), [
    *cases(CONV, PRODUCTS, UNARY, NORMALISATIONS, opsets=(9, 17, NEWEST_OPSET)),
    *cases(POOLS, BINARY, MOVES, opsets=(9, 13, NEWEST_OPSET)),
])
def test_op(op: str, opset: int, arguments: tuple[Any, ...], attributes: dict[str, Any],
            tmp_path: Path) -> None:
    compare(*single(op, arguments, opset, **attributes), tmp_path, op)


def test_reduce_without_axes_may_do_nothing(tmp_path: Path) -> None:
    compare(*single("ReduceSum", (IMAGE, ints()), 17, noop_with_empty_axes=1), tmp_path)
    compare(*single("ReduceMin", (IMAGE,), 18, noop_with_empty_axes=1), tmp_path)
    compare(*single("ReduceMean", (IMAGE,), 21, keepdims=1), tmp_path)


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
@pytest.mark.parametrize("bounds", [(0.0, 1.5), (None, 1.0), (-0.5, None), (None, None)])
def test_clip(opset: int, bounds: tuple[float | None, ...], tmp_path: Path) -> None:
    if opset < 11:
        bound_attributes = {name: bound for name, bound in zip(("min", "max"), bounds, strict=True)
                 if bound is not None}
        proto, feeds = single("Clip", (IMAGE,), opset, **bound_attributes)
    else:
        arrays = [None if bound is None else np.float32(bound) for bound in bounds]
        proto, feeds = single("Clip", (IMAGE, *arrays), opset)
    feeds["x0"].flat[:2] = np.inf, -np.inf
    # without bounds ONNX Runtime clips at the greatest numbers, as only opsets before 11 say
    compare(proto, feeds, tmp_path, expected=ReferenceEvaluator(proto).run(None, feeds))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [None, 1, -1, 2])
def test_softmax(opset: int, log: bool, axis: int | None, tmp_path: Path) -> None:
    attributes = {} if axis is None else {"axis": axis}
    compare(*single("LogSoftmax" if log else "Softmax", (IMAGE,), opset, **attributes), tmp_path,
            "softmax")


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparison(op: str, tmp_path: Path) -> None:
    values = Input((2, 30), -2, 3, "float32")
    rounded = np.round(weights(30))
    compare(*single(op, (values, rounded), 17, types={"y0": TensorProto.BOOL}), tmp_path)


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Not"])
def test_logic(op: str, tmp_path: Path) -> None:
    flags = Input((2, 30), 0, 2, "int32")
    arguments = [Input(flags.shape, 0, 2, "bool") for _ in range(1 if op == "Not" else 2)]
    compare(*single(op, arguments, 17, types={"y0": TensorProto.BOOL}), tmp_path)


@pytest.mark.parametrize("op", ["Slice", "Trilu"])
def test_a_great_size_of_a_constant_without_elements_takes_no_memory(op: str) -> None:
    bounds = {"starts": np.array([0]), "ends": np.array([10**15]), "axes": np.array([1])}
    inputs = ["c", *(bounds if op == "Slice" else ())]
    proto = model([helper.make_node(op, inputs, ["y"], "layer")], {}, {"y": 2},
                  {"c": np.zeros((0, 10**15), np.float32), **(bounds if op == "Slice" else {})})
    assert gossamer.compile(proto, "host", vendors=False)().shape == (0, 10**15)


def test_softplus_is_exact_where_it_is_small() -> None:
    x = np.linspace(-80, 20, 2001, dtype=np.float32).reshape(3, -1)
    proto = model([helper.make_node("Softplus", ["x"], ["y"], "layer")], {"x": ("N", 667)},
                  {"y": 2})
    result = gossamer.compile(proto, "host", vendors=False)(x)
    np.testing.assert_allclose(result, np.logaddexp(0, x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("order", [*itertools.permutations(("made", "given", "fixed"))])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_truth_values_are_joined_wherever_they_come_from(order: Sequence[str], dtype: str,
                                                         tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    numbers = [(4 * weights(3, 3, seed=seed)).astype(dtype) for seed in (0, 1)]
    for op, inputs in (("Concat", order), ("ScatterElements", [order[0], "places", order[1]])):
        proto = model([helper.make_node("Greater", ["x", "fixed_x"], ["made"], "compare"),
                       helper.make_node(op, inputs, ["y"], "join", axis=1)],
                      {"x": ("N", 3), "given": ("N", 3)}, {"y": 2},
                      {"fixed": np.eye(3) > 0, "fixed_x": numbers[0],
                       "places": np.array([[0, 2, 1]] * 2 + [[1, 2, 0]])},
                      types={"x": kind, "given": TensorProto.BOOL, "y": TensorProto.BOOL})
        compare(proto, {"x": numbers[1], "given": weights(3, 3, seed=2) > 0}, tmp_path)


SLICES = [([1, 0], [3, -1], [1, 2], [1, 1]), ([-3], [1 << 62], [3], [1]),
          ([0], [100], [0], [1])]
STRIDED_SLICES = [([5, -1], [0, -100], [2, 3], [-2, -1]), ([0, 1], [7, 6], [2, 3], [3, 2])]


@pytest.mark.parametrize(("opset", "bounds"), [
    (opset, bounds) for opset in (9, 10, 13, 21)
    for bounds in SLICES + (STRIDED_SLICES if opset > 9 else [])
])
def test_slice(opset: int, bounds: tuple[list[int], ...], tmp_path: Path) -> None:
    starts, ends, axes, _ = bounds
    if opset >= 10:
        proto, feeds = single("Slice", (IMAGE, *[ints(*b) for b in bounds]), opset)
    else:
        proto, feeds = single("Slice", (IMAGE,), opset, starts=starts, ends=ends, axes=axes)
    compare(proto, feeds, tmp_path)


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
@pytest.mark.parametrize(("mode", "pads"), [
    ("constant", [0, 0, 1, 2, 0, 0, 0, 1]), ("constant", [0, 1, 0, 0, 0, 2, 0, 0]),
    ("reflect", [0, 0, 2, 1, 0, 0, 3, 1]), ("edge", [0, 0, 2, 1, 0, 0, 3, 9]),
    ("constant", [0, 0, -1, 2, 0, 0, -2, 0]), ("constant", [0, 0, -1, 0, 0, 0, 0, -2]),
])
def test_pad(opset: int, mode: str, pads: list[int], tmp_path: Path) -> None:
    if opset < 11:
        value = {"value": 0.5} if mode == "constant" else {}
        proto, feeds = single("Pad", (IMAGE,), opset, mode=mode, pads=pads, **value)
    else:
        value = [np.float32(0.5)] if mode == "constant" else []
        proto, feeds = single("Pad", (IMAGE, ints(*pads), *value), opset, mode=mode)
    compare(proto, feeds, tmp_path)


def test_pad_along_some_axes(tmp_path: Path) -> None:
    compare(*single("Pad", (IMAGE, ints(1, 2, 0, 3), None, ints(3, -2)), 21, mode="edge"),
            tmp_path)


RESIZES = [
    ("nearest", mode, rounding) for mode in ("asymmetric", "half_pixel", "align_corners")
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
] + [("linear", mode, "floor")
     for mode in ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_before_opset_11(mode: str, tmp_path: Path) -> None:
    image = Input((2, 3, 6, 5))
    for op, opset in (("Upsample", 9), ("Resize", 10)):
        for scales in ((2, 3), (1.5, 2)):
            compare(*single(op, (image, floats(1, 1, *scales)), opset, mode=mode), tmp_path,
                    "resize")
    compare(*single("Resize", (image, floats(1, 1, 0.5, 0.6)), 10, mode=mode), tmp_path, "resize")


@pytest.mark.parametrize("kind", ["INT64", "INT32", "UINT8", "FLOAT", "BOOL"])
@pytest.mark.parametrize("source", ["float32", "int64", "uint8"])
def test_cast(kind: str, source: str, tmp_path: Path) -> None:
    x = Input((3, 5), 0, 5, source)
    compare(*single("Cast", (x,), 17, types={"y0": TensorProto.DataType.Value(kind)},
                    to=TensorProto.DataType.Value(kind)), tmp_path)


def test_integer_arithmetic_stays_exact(tmp_path: Path) -> None:
    large = Input((3, 5), 2**40, 2**50, "int64")
    compare(*single("Add", (large, ints(1)), 17, types={"y0": TensorProto.INT64}), tmp_path)


def test_what_opset_9_has_changed(tmp_path: Path) -> None:
    compare(*single("Upsample", (IMAGE,), 7, scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"), tmp_path)
    channels = IMAGE.shape[1]
    statistics = [weights(channels), weights(channels), weights(channels),
                  np.abs(weights(channels)) + 1]
    compare(*single("BatchNormalization", (IMAGE, *statistics), 7, spatial=1), tmp_path)


def test_operators_that_opset_7_has_not_changed_are_read_from_older_ones(tmp_path: Path) -> None:
    compare(*single("Conv", (IMAGE, weights(2, IMAGE.shape[1], 3, 3)), 6), tmp_path)


@pytest.mark.parametrize(("base", "exponent"), [("int64", "float32"), ("int32", "int64"),
                                                ("float32", "int32"), ("float32", "float32")])
def test_a_power_has_the_dtype_of_its_base(base: str, exponent: str, tmp_path: Path) -> None:
    kinds = {"y0": TensorProto.INT64 if base == "int64" else TensorProto.INT32}
    proto, feeds = single("Pow", (Input((4, 5), 1, 4, base), Input((4, 5), -3, 4, exponent)), 17,
                          types={} if base == "float32" else kinds)
    compare(proto, feeds, tmp_path)


def test_an_exponent_of_one_half_keeps_integers(tmp_path: Path) -> None:
    compare(*single("Pow", (Input((2, 5), 0, 99, "int64"), np.float32(0.5)), 17,
                    types={"y0": TensorProto.INT64}), tmp_path)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("factors", [{"sizes": ints(2, 5)}, {"scales": floats(2, 2)}])
def test_first_dimensions_that_are_resized_to_the_batch_of_the_file(
        mode: str, factors: dict[str, np.ndarray], tmp_path: Path) -> None:
    ((name, numbers),) = factors.items()
    proto = model([helper.make_node("Resize", ["w", "", *["", "n"][name == "scales":]], ["y"],
                                    "resize", mode=mode),
                   helper.make_node("Relu", ["x"], ["r"], "relu")], {"x": (2, 3)},
                  {"y": 2, "r": 2}, {"w": weights(4, 3), "n": numbers}, 13)
    compare(proto, {"x": weights(2, 3)}, tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_least_of_integers_that_have_no_negative(dtype: str) -> None:
    numbers = np.arange(256).reshape(1, 4, 8, 8).astype(dtype)
    node = helper.make_node
    proto = model([node("DepthToSpace", ["c"], ["d"], "depth", blocksize=2),
                   node("ReduceMin", ["d"], ["m"], "least", keepdims=0),
                   node("Cast", ["m"], ["n"], "cast", to=TensorProto.FLOAT),
                   node("Add", ["x", "n"], ["y"], "sum")],
                  {"x": ("N",)}, {"y": 1}, {"c": numbers}, 13)
    y = gossamer.compile(proto, "host")(np.ones(2, np.float32))
    np.testing.assert_array_equal(y, [float(numbers.min()) + 1] * 2)


@pytest.mark.parametrize("opset", [9, 17])
def test_logarithms_of_constant_softmaxes_are_finite(opset: int, tmp_path: Path) -> None:
    proto = model([helper.make_node("LogSoftmax", ["c"], ["l"], "log", axis=1),
                   helper.make_node("Add", ["x", "l"], ["y"], "sum")], {"x": ("N", 3)}, {"y": 2},
                  {"c": floats(3e4, -3e4, 7)[None]}, opset)
    compare(proto, {"x": weights(2, 3)}, tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_places_of_a_pool_of_integers(dtype: str) -> None:
    proto, feeds = single("MaxPool", (Input((2, 4, 7, 6), 0, 99, dtype),), 12, 2,
                          {"y0": int(getattr(TensorProto, dtype.upper())), "y1": TensorProto.INT64},
                          kernel_shape=[2, 2])
    for got, right in zip(gossamer.compile(proto, "host")(feeds["x0"]), runtime(proto, feeds),
                          strict=True):
        np.testing.assert_array_equal(got, right)


def test_cast_like(tmp_path: Path) -> None:
    compare(*single("CastLike", (IMAGE, ints(1)), 17, types={"y0": TensorProto.INT64}), tmp_path)
    compare(*single("CastLike", (IMAGE, MATRIX), 17), tmp_path)


def test_weights_that_are_scaled_leave_constants_of_other_names_alone(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "v"], ["y"], alpha=2.0, beta=0.5),
             helper.make_node("Sum", ["y", "y.b", "y.c", "y.bias"], ["z"])]
    constants = {"w": weights(5, 4), "v": weights(1, 4),
                 **{f"y.{role}": weights(3, 4, seed=index)
                    for index, role in enumerate(("b", "c", "bias"))}}
    compare(model(nodes, {"x": (3, 5)}, {"z": 2}, constants), {"x": MATRIX.draw(0)}, tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_may_come_in_any_order(seed: int, tmp_path: Path) -> None:
    reads = {"a": "x", "b": "x a", "c": "a", "d": "c b", "e": "d d a", "y": "e b"}
    nodes = [helper.make_node("Sum", names.split(), [name]) for name, names in reads.items()]
    np.random.default_rng(seed).shuffle(nodes)
    compare(model(nodes, {"x": (3, 5)}, {"y": 2}), {"x": MATRIX.draw(0)}, tmp_path)
