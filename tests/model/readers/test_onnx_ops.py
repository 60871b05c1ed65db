"""Operators with values and in networks that test_operators.py does not draw."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import gossamer
from tests.model.onnx_models import Input, compare, ints, model, runtime, single, weights

IMAGE = Input((2, 4, 7, 6))
MATRIX = Input((3, 5))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


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


def test_integer_arithmetic_stays_exact(tmp_path: Path) -> None:
    large = Input((3, 5), 2**40, 2**50, "int64")
    compare(*single("Add", (large, ints(1)), 17, types={"y0": TensorProto.INT64}), tmp_path)


def test_operators_that_opset_7_has_not_changed_are_read_from_older_ones(tmp_path: Path) -> None:
    compare(*single("Conv", (IMAGE, weights(2, IMAGE.shape[1], 3, 3)), 6), tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_convolution_of_single_columns_of_a_volume(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    groups, stride, rows, columns, *dilations = random.integers(1, 3, 6).tolist()
    top, left, bottom, right = random.integers(0, 3, 4).tolist()
    inputs = (Input((2, 2 * groups, 7, 6, 1 + seed % 4)),
              weights(3 * groups, 2, rows, columns, 1), weights(3 * groups))
    proto, feeds = single("Conv", inputs, 17, group=groups, strides=[stride, 1, 1],
                          dilations=[*dilations, 1], pads=[top, left, 0, bottom, right, 0])
    assert "conv2d" in {node.op for node in gossamer.load(proto).nodes}
    compare(proto, feeds, tmp_path)


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
