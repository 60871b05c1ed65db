"""Integers that follow from shapes and constants are computed before any data, and so are the
branches that conditions take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import UnsupportedError
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from tests.model.onnx_models import compare, model, outputs_of, save
from tests.model.readers.test_onnx_indexing import ints, whole


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def branch(nodes: list[onnx.NodeProto], output: str,
           initializers: dict[str, np.ndarray] | None = None) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "branch", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()])


def squeezing(condition: list[onnx.NodeProto], shape: tuple[int | str, ...]) -> onnx.ModelProto:
    """Returns a network that squeezes axis 1 where a condition holds, as exporters write it, and
    doubles its values, else adds a constant to them."""
    then = branch([node("Add", "x x", "two"), node("Squeeze", "two axes", "a")], "a",
                  {"axes": ints(1)})
    other = branch([node("Add", "x one", "b")], "b", {"one": np.float32(1)})
    return model(
        [*condition, node("If", "c", "chosen", then_branch=then, else_branch=other),
         node("Relu", "chosen", "y")], {"x": shape}, {"y": None},
        {"place": np.array(1), "first": np.array(0), "single": np.array(1)})


EQUAL = [node("Shape", "x", "s"), node("Gather", "s place", "d"), node("Equal", "d single", "c")]
OF_BATCH = [node("Shape", "x", "s"), node("Gather", "s first", "d"), node("Equal", "d single", "c")]


def test_the_branch_that_a_shape_decides(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 1, 4), np.float32)
    graph = whole(compare(squeezing(EQUAL, ("N", 1, 4)), {"x": x}, tmp_path))
    assert resolve(graph, 5).shapes["y"] == (5, 4)


def test_the_branch_that_is_not_taken_need_not_fit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)
    graph = whole(load(save(squeezing(EQUAL, ("N", 3, 4)), tmp_path)))
    np.testing.assert_allclose(outputs_of(graph, {"x": x})[0], np.maximum(x + 1, 0))


def test_the_branch_that_a_constant_decides(tmp_path: Path) -> None:
    proto = squeezing([node("Constant", "", "c", value=numpy_helper.from_array(np.array(True)))],
                      ("N", 1, 4))
    whole(compare(proto, {"x": np.ones((2, 1, 4), np.float32)}, tmp_path))


def test_a_branch_that_the_batch_decides_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    graph = load(save(squeezing(OF_BATCH, ("N", 1, 4)), tmp_path))
    assert graph.tail is not None or "onnx_part" in [entry.op for entry in graph.nodes]


def test_an_open_size_that_takes_the_other_branch_is_refused(tmp_path: Path) -> None:
    graph = whole(load(save(squeezing(EQUAL, ("N", "C", 4)), tmp_path)))
    assert resolve(graph, 2, {"x": (3, 4)}).shapes["y"] == (2, 3, 4)
    with pytest.raises(UnsupportedError, match=r"If 'chosen': takes its other branch at this"):
        resolve(graph, 2, {"x": (1, 4)})


def test_a_branch_whose_names_are_taken_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    proto = squeezing(EQUAL, ("N", 1, 4))
    proto.graph.node.insert(0, node("Neg", "x", "two"))
    proto.graph.node.append(node("Add", "y two", "z"))
    proto.graph.output[0].name = "z"
    graph = load(save(proto, tmp_path))
    assert "onnx_part" in [entry.op for entry in graph.nodes] or graph.tail is not None


@pytest.mark.parametrize(("op", "inputs", "attributes"), [
    ("ReduceProd", "s", {"keepdims": 0}), ("CumSum", "s axis", {}), ("TopK", "s three", {}),
    ("BitwiseAnd", "s three", {}), ("Size", "x", {}), ("Tile", "size three", {}),
    ("ScatterND", "s places sevens", {}), ("ScatterElements", "s first sevens", {}),
    ("GatherND", "s places", {}), ("GatherElements", "s first", {})])
def test_integers_of_shapes_are_folded(op: str, inputs: str, attributes: dict,
                                       tmp_path: Path) -> None:
    nodes = [node("Shape", "x", "s"), node("Shape", "x", "size", start=0, end=1),
             node(op, inputs, "n order" if op == "TopK" else "n", **attributes),
             node("Cast", "n", "f", to=TensorProto.FLOAT), node("Mul", "x f", "y")]
    proto = model(nodes, {"x": ("N", 3, 3)}, {"y": 3},
                  {"axis": np.array(0), "three": ints(3), "first": ints(1, 0, -1),
                   "places": ints([1], [0], [-1]), "sevens": ints(7, 8, 9)}, opset=18)
    for batch in (1, 4):
        x = np.random.default_rng(0).standard_normal((batch, 3, 3), np.float32)
        graph = whole(compare(proto, {"x": x}, tmp_path))
    (product,) = resolve(graph, 2).nodes
    assert product.op == "elementwise"
