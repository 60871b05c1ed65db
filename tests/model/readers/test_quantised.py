"""Operators on quantised values, whose integers are compared with sums of integers in NumPy.

ONNX Runtime adds pairs of products of uint8 and int8 in 16 bits on processors without VNNI, where
they saturate: its products of 8-bit integers are the truth only where no pair can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.errors import GossamerError
from gossamer.facts import integers
from gossamer.model.facts import derive
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.model.readers.onnx.node import Centred
from tests.model.onnx_models import compare, ints, make, model, outputs_of, runtime, save

RNG = np.random.default_rng(5)
KINDS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32,
         "float32": TensorProto.FLOAT}


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Returns integers from all over a dtype."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def one_node(op: str, feeds: Mapping[str, np.ndarray], constants: Mapping[str, Any],
             order: str, domain: str = "", y: str = "uint8", outputs: str = "y",
             **attributes: Any) -> onnx.ModelProto:
    """Returns a model of one node. order: the names of its inputs. y: dtype of its first output."""
    node = helper.make_node(op, ["" if name == "-" else name for name in order.split()],
                            outputs.split(), "node", domain=domain, **attributes)
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    proto = model([node], {name: ("N", *array.shape[1:]) for name, array in feeds.items()},
                  dict.fromkeys(outputs.split()), constants, 17, {**types, "y": KINDS[y]})
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


def exact(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path,
          expected: Sequence[np.ndarray] | None = None) -> Graph:
    """Asserts that gossamer computes a model and that its integers are those expected, which are
    those of ONNX's reference in NumPy unless they are given."""
    if expected is None:
        expected = ReferenceEvaluator(proto).run(None, dict(feeds))
    graph = compare(proto, feeds, folder, expected=expected)
    assert "onnx_part" not in {node.op for node in graph.nodes} and graph.tail is None
    return graph


def scales(count: int) -> np.ndarray:
    return np.linspace(0.0101, 0.0297, count).astype(np.float32)


def dequantised(name: str, scale: str, zero: str = "", **attributes: int) -> onnx.NodeProto:
    return make("DequantizeLinear", [name, scale, *filter(None, [zero])], f"{name}.d",
                **attributes)


def pair(x: str, scale: str, zero: str = "z", **attributes: int) -> list[onnx.NodeProto]:
    """Returns nodes that make integers x.q of x, and floats x.d of these."""
    return [make("QuantizeLinear", [x, scale, zero], f"{x}.q", **attributes),
            make("DequantizeLinear", [f"{x}.q", scale, zero], f"{x}.d", **attributes)]


@pytest.mark.parametrize(("x", "w", "y"), [
    ("uint8", "int8", "uint8"), ("uint8", "uint8", "uint8"), ("int8", "int8", "int8")])
@pytest.mark.parametrize(("shape", "weight", "settings"), [
    ((3, 4, 7, 6), (6, 4, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 6, 5, 5), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ((2, 6, 5, 5), (4, 3, 2, 2), {"group": 2, "dilations": [2, 2]}),
    ((2, 4, 9), (3, 4, 3), {"pads": [1, 1]})], ids=["image", "depthwise", "groups", "1-D"])
@pytest.mark.parametrize("of_channels", [False, True])
def test_qlinear_conv(x: str, w: str, y: str, shape: tuple[int, ...], weight: tuple[int, ...],
                      settings: dict[str, Any], of_channels: bool, tmp_path: Path) -> None:
    rows = weight[0]
    zero = np.asarray(117, w) if w == "uint8" else np.asarray(0, w)
    constants = {
        "xs": np.float32(0.02), "xz": np.asarray(3, x), "w": drawn(w, *weight),
        "ws": scales(rows) if of_channels else np.float32(0.013),
        "wz": np.full(rows, zero) if of_channels else zero, "ys": np.float32(1.7),
        "yz": np.asarray(100, y), "b": RNG.integers(-9000, 9000, rows).astype(np.int32)}
    feeds = {"x": drawn(x, *shape)}
    order = "x xs xz w ws wz ys yz b"
    expected = None
    if len(shape) == 3:  # the reference has no scales of channels there
        images = {"x": feeds["x"][:, :, None]}
        proto = one_node("QLinearConv", images, {**constants, "w": constants["w"][:, :, None]},
                         order, y=y, pads=[0, 1, 0, 1])
        expected = [ReferenceEvaluator(proto).run(None, images)[0][:, :, 0]]
    exact(one_node("QLinearConv", feeds, constants, order, y=y, **settings), feeds, tmp_path,
          expected)


@pytest.mark.parametrize(("dtype", "of_columns", "values"), [
    *((dtype, of_columns, "a") for dtype in ("int8", "uint8") for of_columns in (False, True)),
    ("uint8", False, "ab")])
def test_qlinear_matmul(dtype: str, of_columns: bool, values: str, tmp_path: Path) -> None:
    batch = [2] * (values == "ab")
    known = {
        "a": drawn(dtype, *batch, 5, 20), "as": np.float32(0.03), "az": np.asarray(7, dtype),
        "b": drawn(dtype, *batch, 20, 9),
        "bs": scales(9) if of_columns else np.float32(0.02),
        "bz": np.full(9, 0, dtype) if of_columns else np.asarray(-3 % 100, dtype),
        "ys": np.float32(0.9), "yz": np.asarray(50, dtype)}
    feeds = {name: known.pop(name) for name in values}
    exact(one_node("QLinearMatMul", feeds, known, "a as az b bs bz ys yz", y=dtype), feeds,
          tmp_path)


@pytest.mark.parametrize(("order", "constants"), [
    ("x w", {}), ("x w xz", {"xz": np.uint8(9)}),
    ("x w xz wz", {"xz": np.uint8(9), "wz": np.int8(-3)})])
def test_conv_integer(order: str, constants: dict[str, np.ndarray], tmp_path: Path) -> None:
    feeds = {"x": drawn("uint8", 2, 3, 6, 6)}
    weight = drawn("uint8" if order == "x w" else "int8", 4, 3, 3, 3)
    if "wz" in constants:
        constants = {**constants, "wz": np.asarray(constants["wz"], weight.dtype)}
    exact(one_node("ConvInteger", feeds, {"w": weight, **constants}, order, y="int32",
                   pads=[1, 1, 1, 1]), feeds, tmp_path)


@pytest.mark.parametrize("order", ["a b", "a b az", "a b az bz", "a b - bz"])
@pytest.mark.parametrize(("dtype", "constant"), [("int8", "b"), ("uint8", "b"), ("int8", "a")])
def test_matmul_integer(order: str, dtype: str, constant: str, tmp_path: Path) -> None:
    known = {"a": drawn("uint8", 4, 30), "b": drawn(dtype, 30, 6), "az": np.uint8(200),
             "bz": drawn(dtype, 6)}
    if constant == "a":
        known |= {"b": drawn(dtype, 2, 30, 6), "bz": np.asarray(-3, dtype)}
    value = "b" if constant == "a" else "a"
    constants = {name: known[name] for name in order.split() if name in known and name != value}
    feeds = {value: known[value]}
    exact(one_node("MatMulInteger", feeds, constants, order, y="int32"), feeds, tmp_path)


@pytest.mark.parametrize("values", [
    RNG.normal(0, 3, (4, 50)), RNG.uniform(2, 9, (4, 50)), RNG.uniform(-9, -2, (4, 50)),
    np.zeros((4, 50))], ids=["both signs", "above 0", "below 0", "zeros"])
def test_dynamic_quantisation(values: np.ndarray, tmp_path: Path) -> None:
    feeds = {"x": values.astype(np.float32)}
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "first"),
             helper.make_node("MatMulInteger", ["q", "b", "z"], ["i"], "second"),
             helper.make_node("Cast", ["i"], ["f"], "third", to=TensorProto.FLOAT),
             helper.make_node("Mul", ["f", "s"], ["y"], "fourth")]
    proto = model(nodes, {"x": ("N", 50)}, {"y": None, "q": None, "z": None, "i": None},
                  {"b": drawn("int8", 50, 7)}, 17,
                  {"q": TensorProto.UINT8, "z": TensorProto.UINT8, "i": TensorProto.INT32})
    exact(proto, feeds, tmp_path)


@pytest.mark.parametrize("zero", ["", "c", "of another"])
def test_a_product_may_take_another_zero_point_than_its_integers(zero: str,
                                                                 tmp_path: Path) -> None:
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "first"),
             helper.make_node("DynamicQuantizeLinear", ["v"], ["p", "t", "of another"], "other"),
             helper.make_node("MatMulInteger", ["q", "b", zero], ["y"], "product")]
    feeds = {"x": RNG.normal(0, 3, (4, 50)).astype(np.float32),
             "v": RNG.normal(2, 1, (4, 50)).astype(np.float32)}
    constants = {"b": drawn("int8", 50, 7), "c": np.uint8(9)}
    proto = model(nodes, {"x": ("N", 50), "v": ("N", 50)}, {"y": None, "p": None},
                  {name: constants[name] for name in ("b", zero) if name in constants}, 17,
                  {"y": TensorProto.INT32, "p": TensorProto.UINT8})
    exact(proto, feeds, tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantise_and_dequantise(dtype: str, axis: int | None, tmp_path: Path) -> None:
    x = RNG.normal(0, 40, (3, 4, 5)).astype(np.float32)
    # halves lie between two integers, and the last ones are far out of range
    x.flat[:8] = 0.0, 0.5, 1.5, -0.5, -2.5, 3e9, -3e9, 0.75
    size = 1 if axis is None else x.shape[axis]
    constants = {"s": scales(size) * 50 if axis is not None else np.float32(0.5),
                 "z": np.full(size, 11, dtype) if axis is not None else np.asarray(11, dtype)}
    attributes = {} if axis is None else {"axis": axis}
    proto = model(pair("x", "s", **attributes), {"x": (3, 4, 5)}, {"x.q": None, "x.d": None},
                  constants, 21, {"x.q": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))})
    zero = np.float64(11)
    shape = [-1 if index == (axis or 0) % 3 else 1 for index in range(3)]
    scale = np.reshape(constants["s"], shape if axis is not None else ())
    limits = np.iinfo(dtype)
    q = np.clip(np.rint(x / scale) + zero, limits.min, limits.max)
    exact(proto, {"x": x}, tmp_path, [q.astype(dtype), ((q - zero) * scale).astype(np.float32)])


def quantised_layers(dtype: str = "uint8", middle: list[onnx.NodeProto] | None = None,
                     last: str = "c") -> onnx.ModelProto:
    """Returns two convolutions between QuantizeLinear and DequantizeLinear, as quantisers write
    them. middle: nodes of floats that make the value `last` of "c", what the first one gives."""
    zero = np.asarray(100 if dtype == "uint8" else -5, dtype)
    # no sum of integers times these lies in the middle between two integers
    constants = {"s": np.float32(0.0517), "z": zero, "s2": np.float32(0.4131),
                 "w": drawn("int8", 4, 3, 3, 3), "ws": scales(4), "wz": np.zeros(4, np.int8),
                 "b": np.float32([1, -2, 3, -4]),
                 "v": drawn("int8", 4, 4, 1, 1), "vs": np.float32(0.0211),
                 **{f"i{number}": ints(number) for number in (0, 1, 2, 4)},
                 "shape": ints(0, 4, 4, 16)}
    nodes = [*pair("x", "s"), dequantised("w", "ws", "wz", axis=0),
             helper.make_node("Conv", ["x.d", "w.d", "b"], ["a"], "first", pads=[1, 1, 1, 1]),
             *pair("a", "s2"), helper.make_node("Identity", ["a.d"], ["c"]), *(middle or []),
             *pair(last, "s2"), dequantised("v", "vs"),
             helper.make_node("Conv", [f"{last}.d", "v.d"], ["e"], "second"), *pair("e", "s2")]
    return model(nodes, {"x": ("N", 3, 8, 8)}, {"e.d": 4}, constants)


@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("rows", [2, 4])
def test_zero_points_of_weights_between_pairs(rows: int, of_rows: bool, tmp_path: Path) -> None:
    nodes = [*pair("x", "s"), dequantised("w", "ws", "wz", axis=0),
             make("Conv", ["x.d", "w.d"], "a"), make("QuantizeLinear", ["a", "s2", "z"], "y")]
    constants = {"s": np.float32(0.0517), "z": np.uint8(100), "s2": np.float32(1.131),
                 "w": drawn("uint8", rows, 3, 3, 3),
                 "ws": scales(rows) if of_rows else np.float32(0.0211),
                 "wz": drawn("uint8", rows) if of_rows else np.uint8(120)}
    proto = model(nodes, {"x": ("N", 3, 8, 8)}, {"y": 4}, constants, 17, {"y": TensorProto.UINT8})
    feeds = {"x": np.random.default_rng(1).normal(0, 3, (2, 3, 8, 8)).astype(np.float32)}
    graph = load(save(proto, tmp_path))
    facts = derive(resolve(graph, 2))
    (conv,) = [node for node in graph.nodes if node.op == "conv2d"]
    assert facts[conv.inputs[0]].is_integer and facts[conv.inputs[1]].is_integer
    (expected,), (y,) = runtime(proto, feeds), outputs_of(graph, feeds)
    # the standard's sums are those of rounded floats
    steps = np.abs(y.astype(int) - expected.astype(int))
    assert steps.max() <= 1 and (steps > 0).mean() < 0.01
    assert np.ptp(expected) > 40


@pytest.mark.parametrize(("zero_point", "dtype", "bounds"), [
    (np.float32(3), "uint8", (-3, 252)), (np.float32([-4, 5]), "int8", (-133, 131)),
    ("computed", "uint8", (-255, 255)), ("computed", "int8", (-255, 255)),
    (np.float32(0), "8 bits", (-128, 255)), (np.float32(0), "int32", (-2.0**31, 2.0**31))])
def test_bounds_of_integers_less_their_zero_point(
        zero_point: np.ndarray | str, dtype: str, bounds: tuple[float, float]) -> None:
    assert Centred("x", zero_point, dtype).bounds == bounds


MIDDLES = {
    "nothing": ([], "c"),
    "max pool": ([helper.make_node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2])], "m"),
    "concat": ([helper.make_node("Slice", ["c", "i0", "i2", "i1"], ["l"]),
                helper.make_node("Slice", ["c", "i2", "i4", "i1"], ["r"]),
                helper.make_node("Concat", ["r", "l"], ["m"], axis=1)], "m"),
    "transpose": ([helper.make_node("Transpose", ["c"], ["m"], perm=[0, 1, 3, 2])], "m"),
    "add": ([helper.make_node("Add", ["c", "c"], ["m"])], "m")}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_layers_between_pairs_are_those_of_integers(middle: str, dtype: str,
                                                    tmp_path: Path) -> None:
    proto = quantised_layers(dtype, *MIDDLES[middle])
    feeds = {"x": np.random.default_rng(1).normal(0, 3, (2, 3, 8, 8)).astype(np.float32)}
    static = resolve(optimise(load(save(proto, tmp_path))), 2)
    facts = derive(static)
    for node in static.nodes:
        if node.op == "conv2d":
            assert facts[node.inputs[0]].is_integer and facts[node.inputs[1]].is_integer
            assert facts[node.inputs[0]].largest <= 255
    if middle == "nothing":
        assert [node.op for node in static.nodes] == ["elementwise", "conv2d", "conv2d"]
    # the standard's sums are those of rounded floats, which may end beyond the middle
    proto.graph.output.add().CopyFrom(helper.make_tensor_value_info(
        "a.q", KINDS[dtype], ["N", 4, 8, 8]))
    (expected, right), graph = runtime(proto, feeds), load(save(proto, tmp_path))
    for version in (graph, optimise(graph)):
        result, first = outputs_of(version, feeds)
        steps = np.abs(first.astype(int) - right.astype(int))
        assert steps.max() <= 1 and (steps > 0).mean() < 0.01
        assert (np.abs(result - expected) > 1e-3).mean() < 0.05


def test_integers_are_those_of_onnxruntime_with_its_optimisations() -> None:
    """ONNX Runtime joins each layer and the pairs beside it to one operator on integers. Weights
    have seven bits, so that no pair of products saturates in 16."""
    wide = (3 * RNG.integers(-1000, 1000, 16)).astype(np.int32)
    constants = {"s": np.float32(0.0317), "z": np.uint8(111), "as": np.float32(0.219),
                 "ms": np.float32(0.263), "ps": np.float32(0.0119), "zero": np.uint8(126),
                 "w": drawn("int8", 16, 8, 3, 3) // 2, "ws": scales(16), "b": wide,
                 "bs": np.float32(0.0317) * scales(16), "v": drawn("int8", 16, 5) // 2,
                 "vs": np.float32(0.0147), "c": wide[:5],
                 "cs": np.float32(0.0119) * np.float32(0.0147), "gs": np.float32(0.31)}

    nodes = [*pair("x", "s", "z"), dequantised("w", "ws", axis=0), dequantised("b", "bs", axis=0),
             helper.make_node("Conv", ["x.d", "w.d", "b.d"], ["a"], pads=[1, 1, 1, 1]),
             *pair("a", "as", "zero"), *pair("t", "s", "z"),
             helper.make_node("Add", ["a.d", "t.d"], ["m"]), *pair("m", "ms", "zero"),
             helper.make_node("GlobalAveragePool", ["m.d"], ["p"]), *pair("p", "ps", "zero"),
             helper.make_node("Flatten", ["p.d"], ["f"]), *pair("f", "ps", "zero"),
             dequantised("v", "vs"), dequantised("c", "cs"),
             helper.make_node("Gemm", ["f.d", "v.d", "c.d"], ["g"]), *pair("g", "gs", "zero")]
    outputs = ["a.q", "m.q", "p.q", "g.q"]
    proto = model(nodes, {"x": ("N", 8, 13, 13), "t": ("N", 16, 13, 13)}, dict.fromkeys(outputs),
                  constants, 17, dict.fromkeys(outputs, KINDS["uint8"]))
    feeds = {"x": RNG.normal(0, 1.5, (5, 8, 13, 13)).astype(np.float32),
             "t": RNG.normal(0, 1.5, (5, 16, 13, 13)).astype(np.float32)}
    wanted = runtime(proto, feeds, optimised=True)
    for vendors in (True, False):
        results = gossamer.compile(proto, "host", vendors=vendors)(**feeds)
        for name, result, expected in zip(outputs, results, wanted, strict=True):
            np.testing.assert_array_equal(result, expected, name)
            assert len(np.unique(expected)) > 10


def test_products_of_matrices_between_pairs(tmp_path: Path) -> None:
    constants = {"s": np.float32(0.05), "z": np.uint8(100), "w": drawn("int8", 6, 9),
                 "ws": scales(6), "v": drawn("int8", 6, 5), "vs": scales(5),
                 "b": RNG.normal(0, 1, 6).astype(np.float32), "t": np.float32(0.7)}
    nodes = [*pair("x", "s"), dequantised("w", "ws", axis=0),
             make("Gemm", ["x.d", "w.d", "b"], "g", transB=1), *pair("g", "t"),
             dequantised("v", "vs", axis=1), make("MatMul", ["g.d", "v.d"], "y")]
    proto = model(nodes, {"x": ("N", 9)}, {"y": 2}, constants)
    feeds = {"x": RNG.normal(0, 3, (4, 9)).astype(np.float32)}
    graph = exact(proto, feeds, tmp_path, runtime(proto, feeds))
    static = resolve(optimise(graph), 4)
    facts = derive(static)
    products = [node for node in static.nodes if node.op == "gemm"]
    assert len(products) == 2
    assert all(facts[name].is_integer for node in products for name in node.inputs[:2])


MICROSOFT = "com.microsoft"
ARITHMETIC = "a as az b bs bz ys yz"


@pytest.mark.parametrize(("op", "order", "scale", "settings"), [
    ("QLinearAdd", ARITHMETIC, 1, {}), ("QLinearMul", ARITHMETIC, 64, {}),
    ("QLinearConcat", "ys yz a ys yz b bs bz", 0.5, {"axis": 1}),
    *((op, "a as az ys yz", 0.0078125, settings) for op, settings in (
        ("QLinearGlobalAveragePool", {}), ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.25}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]})))])
def test_operators_of_onnxruntime(op: str, order: str, scale: float, settings: dict[str, Any],
                                  tmp_path: Path) -> None:
    known = {"as": np.float32(0.03125 if "b" not in order else 0.5), "bs": np.float32(0.25),
             "az": np.uint8(128 if "b" not in order else 3), "bz": np.uint8(90),
             "ys": np.float32(scale), "yz": np.uint8(5)}
    feeds = {name: drawn("uint8", 2, 3, 4, 4) for name in "ab" if name in order.split()}
    constants = {name: known[name] for name in order.split() if name in known}
    proto = one_node(op, feeds, constants, order, MICROSOFT, **settings)
    exact(proto, feeds, tmp_path, runtime(proto, feeds))


@pytest.mark.parametrize("scale", [0.0204, 0.0404, 0.07])
def test_sums_round_as_those_of_onnxruntime(scale: float) -> None:
    """All pairs of bytes are added. Some sums are near the middle between two integers, and each
    earlier rounding may move a sum across it."""
    constants = {"as": np.float32(0.031), "az": np.uint8(114), "bs": np.float32(0.0455),
                 "bz": np.uint8(132), "ys": np.float32(scale), "yz": np.uint8(116)}
    feeds = {name: np.ascontiguousarray(array.astype(np.uint8)[None, None])
             for name, array in zip("ab", np.mgrid[:256, :256], strict=True)}
    proto = one_node("QLinearAdd", feeds, constants, "a as az b bs bz ys yz", MICROSOFT)
    (expected,) = runtime(proto, feeds)
    for vendors in (True, False):
        plan = gossamer.compile(proto, "host", vendors=vendors)
        np.testing.assert_array_equal(plan(**feeds), expected)


@pytest.mark.parametrize("floats", [False, True])
def test_gemm_of_onnxruntime(floats: bool, tmp_path: Path) -> None:
    constants = {"as": np.float32(0.02), "az": np.uint8(9), "b": drawn("int8", 6, 12),
                 "bs": scales(6), "bz": np.zeros(6, np.int8),
                 "c": RNG.integers(-999, 999, 6).astype(np.int32),
                 "ys": np.float32(0.8), "yz": np.uint8(77)}
    order = "a as az b bs bz c"
    if floats:
        constants = {name: array for name, array in constants.items() if name[0] != "y"}
    feeds = {"a": drawn("uint8", 3, 12)}
    sums = (feeds["a"].astype(int) - 9) @ constants["b"].astype(int).T + constants["c"]
    scale = constants["as"] * constants["bs"]
    expected = (sums * scale).astype(np.float32) if floats else np.clip(
        np.rint(sums * (scale / constants["ys"])) + constants["yz"], 0, 255).astype(np.uint8)
    exact(one_node("QGemm", feeds, constants, order if floats else f"{order} ys yz", MICROSOFT,
                   "float32" if floats else "uint8", transB=1), feeds, tmp_path, [expected])


@pytest.mark.parametrize("depth", [900, 1400, 4000])
def test_sums_that_float32_does_not_hold_are_added_in_slices(depth: int, tmp_path: Path) -> None:
    a = np.full((2, depth), 255, np.uint8)
    a[1, ::3] = 77
    b = np.full((depth, 3), 127, np.int8)
    b[::2, 1], b[:7, 2] = -128, 1
    sums = a.astype(np.int64) @ b.astype(np.int64)
    assert depth < 1000 or np.abs(sums).max() > 2**24
    graph = load(save(one_node("MatMulInteger", {"a": a}, {"b": b}, "a b", y="int32"), tmp_path))
    products = [node for node in graph.nodes if node.op == "matmul"]
    assert len(products) == {900: 2, 1400: 3, 4000: 8}[depth]
    for version in (graph, optimise(graph)):
        np.testing.assert_array_equal(outputs_of(version, {"a": a})[0], sums)
    # those of QLinearMatMul are rounded once, as those of ONNX Runtime
    constants = {"one": np.float32(1), "z": np.uint8(0), "b": b, "bz": np.int8(0),
                 "ys": np.float32(sums.max() / 200)}
    proto = one_node("QLinearMatMul", {"a": a}, constants, "a one z b one bz ys z")
    expected = np.clip(np.rint(sums.astype(np.float32) * (
        np.float32(1) / constants["ys"])), 0, 255)
    graph = load(save(proto, tmp_path))
    for version in (graph, optimise(graph)):
        np.testing.assert_array_equal(outputs_of(version, {"a": a})[0], expected)


def convolution(size: int, *weight: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns a convolution with the largest weights, and bytes for it."""
    constants = {"one": np.float32(1), "z": np.uint8(0), "wz": np.int8(0), "ys": np.float32(90000),
                 "w": np.full(weight, 127, np.int8)}
    feeds = {"x": drawn("uint8", 2, weight[1], size, size)}
    return one_node("QLinearConv", feeds, constants, "x one z w one wz ys z"), feeds


def test_slices_of_a_convolution(tmp_path: Path) -> None:
    graph = exact(*convolution(3, 4, 300, 2, 2), tmp_path)
    depths = [graph.constants[node.inputs[1]].shape[1] for node in graph.nodes
              if node.op == "conv2d"]
    assert depths == [128, 128, 44], "slices of as many channels as kernels prefer"


def test_a_sum_of_one_channel_that_is_too_large_is_left_to_onnxruntime(tmp_path: Path) -> None:
    graph = compare(*convolution(31, 1, 1, 30, 30), tmp_path)
    assert [node.op for node in graph.nodes] == ["onnx_part"]


@pytest.mark.parametrize("zero", [None, (), (1,), (3,)], ids=str)
@pytest.mark.parametrize("scale", [(), (1,), (3,), (4,), (0,), (2, 2)], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 4)], ids=str)
def test_scales_and_zero_points_of_constants(
        shape: tuple[int, ...], scale: tuple[int, ...], zero: tuple[int, ...] | None,
        without_onnxruntime: None) -> None:
    """Whatever shapes a file gives them, a constant is dequantised or refused."""
    constants = {"q": np.full(shape, 7, np.int8), "s": np.full(scale, 0.5, np.float32)}
    if zero is not None:
        constants["z"] = np.full(zero, 3, np.int8)
    for axis in (1, 0, -1, 7):
        nodes = [helper.make_node("DequantizeLinear", list(constants), ["w"], axis=axis),
                 helper.make_node("Mul", ["x", "w"], ["y"])]
        is_one = math.prod(scale) == 1 and math.prod(zero or ()) == 1
        is_of_axis = -len(shape) <= axis < len(shape) and scale == (shape[axis],) and (
            zero in (None, scale))
        try:
            graph = load(model(nodes, {"x": list(shape)}, {"y": None}, constants, 17))
            resolve(graph, (shape or (1,))[0])
        except GossamerError:
            assert not is_one and not is_of_axis
            continue
        if is_one or is_of_axis:
            np.testing.assert_array_equal(graph.constants["w"],
                                          np.full(shape, 3.5 if zero is None else 2.0))


def test_values_that_stay_quantised_are_known_to_be_integers(tmp_path: Path) -> None:
    proto = quantised_layers("int8", [helper.make_node("Reshape", ["c", "shape"], ["m"])], "m")
    static = resolve(optimise(load(save(proto, tmp_path))), 2)
    facts = derive(static)
    (reshape,) = [node for node in static.nodes if node.op == "reshape"]
    assert facts[reshape.outputs[0]] == integers(-123, 132)
