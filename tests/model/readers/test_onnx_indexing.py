"""Compares ops that choose, repeat, replace, order, multiply and add up elements with ONNX
Runtime, and that none of them is left to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from gossamer.errors import ModelError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.model.readers.onnx.reader import NEWEST_OPSET
from tests.model.onnx_models import Input, compare, model, save, single, weights

IMAGE = Input((2, 4, 7, 6))
MATRIX = Input((3, 5))
SQUARE = Input((2, 5, 5))


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


CASES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Tile": [((MATRIX, ints(1, 2)), {}), ((MATRIX, ints(2, 1)), {}),
             ((IMAGE, ints(1, 1, 1, 1)), {}), ((IMAGE, ints(2, 1, 3, 2)), {}),
             ((MATRIX, ints(1, 0)), {})],
    "Trilu": [((SQUARE,), {}), ((SQUARE, np.array(1)), {"upper": 0}), ((MATRIX, np.array(-1)), {}),
              ((IMAGE, np.array(-9)), {"upper": 0}), ((IMAGE, np.array(2**40)), {})],
    "GatherND": [((IMAGE, ints([0, 1], [1, -1])), {}), ((IMAGE, ints([0, 1, 6, 5])), {}),
                 ((IMAGE, ints([[1], [0]])), {}),
                 ((Input((2, 3, 4), free=False), ints([2, 1], [0, -4])), {"batch_dims": 1})],
    "GatherElements": [((MATRIX, ints([0, -1, 2], [4, 4, 0], [1, 1, 1])), {"axis": 1}),
                       ((MATRIX, ints([0, 2, 1, 1, -3])), {"axis": 0})],
    "ScatterND": [((MATRIX, ints([0], [2]), weights(2, 5)), {}),
                  ((MATRIX, ints([0, 1], [2, -1], [0, 1]), Input((3,), free=False)), {}),
                  ((IMAGE, ints([[1, 3], [0, 2]]), weights(1, 2, 7, 6)), {}),
                  ((MATRIX, ints([0], [1], [2]), Input((3, 5), free=False)), {}),
                  ((MATRIX, ints([2], [0], [1], [0]), Input((4, 5), free=False)), {})],
    "ScatterElements": [((MATRIX, ints([0, -1], [4, 2]), weights(2, 2)), {"axis": 1}),
                        ((MATRIX, ints([0, 2, 1]), Input((1, 3), free=False)), {})],
    "ArgMax": [((IMAGE,), {}), ((IMAGE,), {"axis": -1, "keepdims": 0}), ((MATRIX,), {"axis": 1})],
    "ArgMin": [((IMAGE,), {"axis": 1, "keepdims": 0}), ((MATRIX,), {"axis": -1})],
    "CumSum": [((IMAGE, np.array(1)), {}), ((IMAGE, np.array(-1)), {"exclusive": 1}),
               ((IMAGE, np.array(2)), {"reverse": 1}),
               ((Input((2, 3, 5, 2), -9, 9, "int64"), np.array(2)), {"exclusive": 1}),
               ((Input((2, 3, 5), -9, 9, "int32"), np.array(0)), {"reverse": 1}),
               ((MATRIX, np.array(0)), {"reverse": 1, "exclusive": 1})],
    "Mod": [((MATRIX, weights(5)), {"fmod": 1}),
            ((Input((3, 5), -9, 9, "int64"), ints(3, -4, 7, -1, 2)), {}),
            ((Input((3, 5), -9, 9, "int32"), np.array([3, -4, 7, -1, 2], np.int32)), {}),
            ((Input((3, 5), -9, 9, "int64"), ints(3, -4, 7, -1, 2)), {"fmod": 1})],
    "ReduceLogSum": [((Input((2, 3, 4), 0.1, 3),), {"keepdims": 0})],
    "ReduceLogSumExp": [((IMAGE,), {}), ((Input((2, 3, 4), 90, 99),), {"keepdims": 0})],
    "RMSNormalization": [((IMAGE, weights(6)), {}),
                         ((IMAGE, weights(4, 7, 6)), {"axis": 1, "epsilon": 0.1})],
}
SINCE = {"RMSNormalization": 23}


@pytest.mark.parametrize(("op", "opset", "arguments", "attributes"), [
    pytest.param(op, opset, arguments, attributes, id=f"{op}-{index}-opset{opset}")
    for op, entries in CASES.items() for index, (arguments, attributes) in enumerate(entries)
    for opset in (17, NEWEST_OPSET) if opset >= SINCE.get(op, 1)])
def test_op(op: str, opset: int, arguments: tuple[Any, ...], attributes: dict[str, Any],
            tmp_path: Path) -> None:
    if op in ("ArgMax", "ArgMin"):
        attributes = {**attributes, "types": {"y0": TensorProto.INT64}}
    elif op in ("Mod", "CumSum") and arguments[0].dtype != "float32":
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(arguments[0].dtype))
        attributes = {**attributes, "types": {"y0": kind}}
    whole(compare(*single(op, arguments, opset, **attributes), tmp_path, op))


def whole(graph: Graph) -> Graph:
    """Asserts that no node of a graph is left to ONNX Runtime, and returns it."""
    assert "onnx_part" not in [node.op for node in graph.nodes] and graph.tail is None
    return graph


@pytest.mark.parametrize(("indices", "ops"), [
    (ints([0], [1], [2]), ["elementwise"]),
    (ints([2], [0], [1], [0]), ["elementwise", "reshape", "gather"])])
def test_where_all_is_replaced_nothing_is_joined(indices: np.ndarray, ops: list[str],
                                                 tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["u"], ["v"]),
             helper.make_node("ScatterND", ["x", "i", "v"], ["y"])]
    proto = model(nodes, {"x": (3, 5), "u": (len(indices), 5)}, {"y": 2}, {"i": indices})
    graph = resolve(load(save(proto, tmp_path)), 3)
    assert [node.op for node in graph.nodes if node.name != "y.copy"] == ops


def test_floor_mod_of_floats(tmp_path: Path) -> None:
    whole(compare(*single("Mod", (MATRIX, weights(5)), 28), tmp_path))


@pytest.mark.parametrize("opset", [9, 11, NEWEST_OPSET])
def test_top_k(opset: int, tmp_path: Path) -> None:
    for axis in (-1, 1) if opset > 9 else (-1,):
        feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 7), np.float32)}
        attributes = {"axis": axis, **({"k": 4} if opset < 10 else {}),
                      **({"largest": 0} if opset > 10 else {})}
        node = helper.make_node("TopK", ["x"] if opset < 10 else ["x", "k"], ["v", "i"],
                                **attributes)
        for outputs in ({"v": 3, "i": 3}, {"i": 3}, {"v": 3}):
            whole(compare(model([node], {"x": ("N", 6, 7)}, outputs,
                                {"k": ints(4)} if opset > 9 else {}, opset,
                                {"i": TensorProto.INT64}), feeds, tmp_path))


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", [(3, 5), (5, 4)]), ("nld,de->nle", [(2, 6, 5), (5, 4)]),
    ("nhid,nhjd->nhij", [(2, 3, 5, 4), (2, 3, 6, 4)]), ("bhij,bjhd->bihd", [(2, 3, 4, 5),
                                                                           (2, 5, 3, 6)]),
    ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]), ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
    ("ni,nj->nij", [(2, 3), (2, 4)]), ("i,j->ij", [(3,), (4,)]), ("abc->cb", [(2, 3, 4)]),
    ("ab->", [(2, 3)]), ("abc,abc->a", [(2, 3, 4), (2, 3, 4)]), ("ab,cb->ac", [(3, 4), (2, 4)]),
    ("nabc,bcde->nade", [(2, 3, 4, 5), (4, 5, 2, 3)]), ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("ab,cd->a", [(2, 3), (4, 5)]), ("a b , b a -> b", [(2, 3), (3, 2)]),
])
def test_einsum(equation: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    for is_weight in {False, len(shapes) > 1}:
        inputs = [Input(shape) for shape in shapes]
        if is_weight:
            inputs[-1] = weights(*shapes[-1])
        for index, shape in enumerate(shapes[:-1] if is_weight else shapes):
            # only the first dimension of the first input may stay open
            inputs[index] = Input(shape, free=False)
        whole(compare(*single("Einsum", inputs, 17, equation=equation), tmp_path))


def test_einsum_of_an_open_batch(tmp_path: Path) -> None:
    graph = whole(compare(*single("Einsum", [Input((4, 3, 5)), weights(5, 2, 6)], 17,
                                  equation="nld,dhe->nhle"), tmp_path))
    assert [resolve(graph, batch).shapes["y0"] for batch in (1, 7)] == [
        (1, 2, 3, 6), (7, 2, 3, 6)]


def test_einsum_with_a_weight_is_one_product(tmp_path: Path) -> None:
    proto, _ = single("Einsum", [Input((2, 6, 5)), weights(5, 4)], 17, equation="nld,de->nle")
    static = resolve(optimise(load(save(proto, tmp_path))), 2)
    assert [node.op for node in static.nodes] == ["gemm"]


@pytest.mark.parametrize(("mode", "coordinates", "antialias"), [
    *(("cubic", coordinates, 0) for coordinates in (
        "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")),
    ("cubic", "half_pixel", 1), ("linear", "half_pixel", 1)])
def test_resize_by_products(mode: str, coordinates: str, antialias: int, tmp_path: Path) -> None:
    for name, numbers, attributes in (
            ("sizes", ints(2, 4, 9, 13), {}), ("sizes", ints(2, 4, 3, 2), {}),
            ("sizes", ints(2, 4, 1, 6), {}), ("scales", np.float32([1, 1, 1.7, 0.6]), {}),
            ("sizes", ints(2, 4, 12, 3), {"exclude_outside": 1, "cubic_coeff_a": -0.5})):
        node = helper.make_node("Resize", ["x", "", "scales" if name == "scales" else "",
                                           *(["sizes"] if name == "sizes" else [])], ["y"],
                                mode=mode, coordinate_transformation_mode=coordinates,
                                antialias=antialias, **attributes)
        feeds = {"x": IMAGE.draw(0)}
        whole(compare(model([node], {"x": (2, 4, 7, 6)}, {"y": 4}, {name: numbers}, 18), feeds,
                      tmp_path))


def test_weights_of_a_resize_that_take_too_much_memory(tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], "node", mode="cubic")
    graph = load(save(model([node], {"x": (1, 1)}, {"y": 2}, {"sizes": ints(1, 8_000_000)}, 18),
                      tmp_path))
    with pytest.raises(ModelError, match=r"Resize 'node': .*of shape .8, 8000000, 6., 2\.861 GiB"):
        resolve(graph, 1)


def test_masked_attention_has_no_part(tmp_path: Path) -> None:
    """Softmax of a row of -inf is NaN, which PyTorch's exporters replace by 0."""
    nodes = [helper.make_node("Softmax", ["x"], ["s"], axis=-1),
             helper.make_node("IsNaN", ["s"], ["n"]),
             helper.make_node("Where", ["n", "zero", "s"], ["y"])]
    x = np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)
    x[:, 1], x[0, 2, 1] = -np.inf, -np.inf
    graph = whole(compare(model(nodes, {"x": ("N", 3, 4)}, {"y": 3}, {"zero": np.float32(0)}),
                          {"x": x}, tmp_path))
    assert len(resolve(graph, 2).nodes) <= 3


@pytest.mark.parametrize(("op", "indices", "attributes", "message"), [
    ("GatherND", ints([7, 0]), {}, "index 7 is outside dimension 0 of shape"),
    ("GatherND", ints([0, 0, 0]), {}, "do not fit"),
    ("GatherElements", ints([-6, 0]), {"axis": 1}, "index -6 is outside dimension 1"),
    ("GatherElements", ints([0, 0, 0, 0, 0, 0]), {}, "do not fit"),
    ("Tile", ints(1, 1, 2), {}, "expected 2 numbers"),
])
def test_indices_that_do_not_fit(op: str, indices: np.ndarray, attributes: dict[str, Any],
                                 message: str, tmp_path: Path) -> None:
    node = helper.make_node(op, ["x", "i"], ["y"], "node", **attributes)
    graph = load(save(model([node], {"x": (3, 5)}, {"y": None}, {"i": indices}), tmp_path))
    with pytest.raises(ModelError, match=f"{op} 'node': .*{message}"):
        resolve(graph, 3)


def test_indices_of_the_data_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    node = helper.make_node("GatherND", ["x", "i"], ["y"])
    proto = model([node], {"x": (3, 5), "i": (2, 1)}, {"y": 2}, types={"i": TensorProto.INT64})
    (part,) = load(save(proto, tmp_path)).nodes
    assert part.op == "onnx_part"
