"""What becomes of ops that choose, replace, order and multiply elements: none is left to ONNX
Runtime, and some become other ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from gossamer.errors import ModelError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.model.readers.onnx.reader import NEWEST_OPSET
from tests.model.onnx_models import Input, compare, ints, model, save, single, weights


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


def test_indices_of_the_data_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    node = helper.make_node("GatherND", ["x", "i"], ["y"])
    proto = model([node], {"x": (3, 5), "i": (2, 1)}, {"y": 2}, types={"i": TensorProto.INT64})
    (part,) = load(save(proto, tmp_path)).nodes
    assert part.op == "onnx_part"
