"""Nodes that gossamer does not compute are left to ONNX Runtime, in few parts; integers that follow
from shapes and constants, and branches that conditions take, are known before any data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import gossamer
from gossamer.errors import ModelError, UnsupportedError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve, with_shapes
from gossamer.model.load import load
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.model.readers.onnx.order import Clusters
from tests.model.onnx_models import compare, ints, model, outputs_of, part, save, weights
from tests.model.readers.test_onnx_indexing import whole
from tests.onnx_parts import choosing, counting, sampled, texts

LINE, ONE = ("N", 4), np.ones((1, 1), np.float32)
LEFT = "ij,ij,zz->ij"
"""An equation that gossamer does not compute, as a term has a letter twice."""


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Returns a node that is named like its first output."""
    return helper.make_node(op, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def parts(graph: Graph) -> list[list[str]]:
    """Returns the names of the nodes of each part of a graph."""
    return [[source.split("'")[1] for source, _ in nodes_of(node.attributes["model"])]
            for node in graph.nodes if node.op == "onnx_part"]


def test_one_node_is_left() -> None:
    graph = gossamer.load(sampled())
    assert [node.op for node in graph.nodes] == ["conv2d", "onnx_part", "elementwise"]
    part = graph.nodes[1]
    assert nodes_of(part.attributes["model"]) == (
        ("GridSample 'sample'", "gossamer computes no GridSample"),)
    assert (part.inputs, part.outputs) == (["a", "grid"], ["b"])
    assert resolve(graph, 2).shapes["b"] == (2, 4, 4, 4)


@pytest.mark.usefixtures("without_onnxruntime")
@pytest.mark.parametrize(("proto", "text"), [
    (sampled(), r"does not compute GridSample 'sample' of domain 'ai.onnx'; .*pip install "
                r"'\.\[onnxruntime\]'"),
    (texts(), r"input 'a' has ONNX type string; .*pip install '\.\[onnxruntime\]'")])
def test_without_onnxruntime_it_is_refused(proto: onnx.ModelProto, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        gossamer.load(proto)


@pytest.mark.parametrize(("nodes", "expected"), [
    ([node("Sinh", "x", "a"), node("Cosh", "a", "b"), node("Relu", "x", "c"),
      node("Asinh", "c", "d"), node("Sum", "b d", "y")], [["a", "b", "d"]]),
    ([node("Sinh", "x", "a"), node("Cosh", "x", "b"), node("Acosh", "c", "y"),
      node("Einsum", "a b e", "c", equation=LEFT)], [["a", "b", "c", "y"]]),
    ([node("Sinh", "x", "a"), node("Relu", "a", "b"),
      node("Einsum", "a b e", "y", equation=LEFT)], [["a"], ["y"]]),
], ids=["neighbours", "branches that meet", "a part that would read itself"])
def test_nodes_of_a_part(nodes: list[onnx.NodeProto], expected: list[list[str]]) -> None:
    graph = gossamer.load(model(nodes, {"x": LINE}, {"y": 2}, {"e": ONE}))
    assert parts(graph) == expected


@given(st.data())
def test_groups_have_an_order(data: st.DataObject) -> None:
    clusters, joined = Clusters(), set()
    reads: list[list[int]] = []
    for step in range(data.draw(st.integers(1, 14))):
        earlier = st.integers(0, step - 1) if step else st.nothing()
        reads.append(data.draw(st.lists(earlier, max_size=3)) if step else [])
        assert clusters.add([str(index) for index in reads[-1]], [str(step)]) == step
        if data.draw(st.booleans()):
            joined.add(step)
            clusters.join(step)
    connected = clusters.groups()
    assert sorted(step for steps in connected for step in steps) == sorted(joined)
    chosen = data.draw(st.lists(st.sampled_from(connected), unique_by=id)) if connected else []
    together = clusters.independent(chosen)
    assert sorted(number for numbers in together for number in numbers) == [*range(len(chosen))]
    merged = {step: of for of, numbers in enumerate(together)
              for number in numbers for step in chosen[number]}
    group = {step: merged.get(step, -1 - step) for step in range(len(reads))}
    left = {of: {group[index] for step in group if group[step] == of for index in reads[step]}
            - {of} for of in group.values()}
    while left:
        ready = [of for of, before in left.items() if not before & left.keys()]
        assert ready, "groups wait for each other"
        for of in ready:
            del left[of]


@pytest.mark.parametrize(("proto", "reason"), [
    (model([node("Conv", "x w", "y")], {"x": ("N", 2, 5, 5, 5)}, {"y": 5},
           {"w": weights(2, 2, 3, 3, 3)}), "has 3 spatial dimensions; gossamer computes 1 or 2"),
    (model([node("Conv", "x w", "y")], {"x": ("N", 2, 5, 5), "w": (2, 2, 3, 3)}, {"y": 4}),
     "the weight comes from 'w', which depends on the data; expected a constant"),
    (model([node("Add", "x x", "y")], {"x": LINE}, {"y": 2},
           types=dict.fromkeys("xy", TensorProto.UINT32)),
     "computes with uint32; gossamer computes elements in float32, int32, int64, int8, uint8, "
     "int16, uint16, bool"),
    (model([node("Add", "x w", "y", axis=1, broadcast=1)], {"x": ("N", 4, 2, 2)}, {"y": 4},
           {"w": weights(4)}, opset=6), "gossamer computes no Add"),
])
def test_forms_and_dtypes_are_left_with_the_reason(proto: onnx.ModelProto, reason: str) -> None:
    (part,) = gossamer.load(proto).nodes
    ((_, why),) = nodes_of(part.attributes["model"])
    assert why == reason


def test_values_within_a_part_keep_the_dtype_of_the_file() -> None:
    equation = "bi,i,zz->b"
    nearly_one = np.tile([1 + 2**-40, 1], 1000)
    graph = gossamer.load(model(
        [node("Cast", "x", "d", to=TensorProto.DOUBLE),
         node("Einsum", "d w e", "m", equation=equation),
         node("Cast", "m", "y", to=TensorProto.FLOAT), node("Relu", "w", "unused")],
        {"x": ("N", 2000)}, {"y": 1}, {"w": nearly_one, "e": ONE.astype(float)}))
    part = next(node for node in graph.nodes if node.op == "onnx_part")
    assert graph.constants[part.inputs[1]].dtype == np.float64
    x = np.tile(np.float32([1, -1]), (1, 1000))
    with pytest.warns(gossamer.GossamerWarning):
        graph = gossamer.load(model(
            [node("Einsum", "x w e", "y", equation=equation)], {"x": ("N", 2000)}, {"y": 1},
            {"w": nearly_one, "e": ONE.astype(float)},
            types=dict.fromkeys("xy", TensorProto.DOUBLE)), precision="fp32")
    # in float32 the sum would be 0
    np.testing.assert_allclose(gossamer.compile(graph, "host")(x), [1000 * 2**-40], rtol=1e-6)


def test_constants_that_inner_graphs_read_are_held() -> None:
    np.testing.assert_array_equal(gossamer.compile(counting(5), "host")(np.zeros(2, np.float32)),
                                  [5, 5])


@pytest.mark.parametrize("inner", [False, True])
def test_an_unknown_domain_is_refused(inner: bool) -> None:
    warp = helper.make_node("Warp", ["x"], ["z"], "warp", domain="my.ops")
    branch = part([warp], [], ["z"])
    nodes = [helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch)
             ] if inner else [warp, node("Relu", "z", "y")]
    proto = model(nodes, {"x": LINE, "c": ()}, {"y": 2}, types={"c": TensorProto.BOOL})
    with pytest.raises(ModelError, match="If 'choice'" if inner else (
            r"Warp 'warp' of domain 'my\.ops'; export the model without them")):
        gossamer.load(proto)


def test_shapes_that_the_data_decide_end_in_the_tail() -> None:
    graph = gossamer.load(choosing())
    assert graph.tail is not None
    assert [info.name for info in graph.network_outputs] == ["rows", "scores"]
    assert graph.outputs[0].name == "scores"
    assert [source for source, _ in nodes_of(graph.tail.model)] == [
        "NonZero 'places'", "Transpose 'rows'"]


def test_a_shape_of_the_data_that_stays_within_a_part_needs_no_tail() -> None:
    graph = gossamer.load(model(
        [node("NonZero", "x", "places"), node("Size", "places", "n"),
         node("Cast", "n", "f", to=TensorProto.FLOAT), node("Mul", "x f", "y")],
        {"x": LINE}, {"y": 2}))
    assert graph.tail is None
    assert parts(graph) == [["places", "n"]]


def squeezing(condition: list[onnx.NodeProto], shape: tuple[int | str, ...]) -> onnx.ModelProto:
    """Returns a network that squeezes axis 1 where a condition holds, as exporters write it, and
    doubles its values, else adds a constant to them."""
    then = part([node("Add", "x x", "two"), node("Squeeze", "two axes", "a")], [], ["a"],
                {"axes": ints(1)})
    other = part([node("Add", "x one", "b")], [], ["b"], {"one": np.array(1, np.float32)})
    return model(
        [*condition, node("If", "c", "chosen", then_branch=then, else_branch=other),
         node("Relu", "chosen", "y")], {"x": shape}, {"y": None},
        {"place": np.array(1), "first": np.array(0), "single": np.array(1)})


EQUAL = [node("Shape", "x", "s"), node("Gather", "s place", "d"), node("Equal", "d single", "c")]
OF_BATCH = [node("Shape", "x", "s"), node("Gather", "s first", "d"), node("Equal", "d single", "c")]


@pytest.mark.parametrize("condition", [
    EQUAL, [node("Constant", "", "c", value=numpy_helper.from_array(np.array(True)))]],
    ids=["shape", "constant"])
def test_the_branch_that_is_known(condition: list[onnx.NodeProto], tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 1, 4), np.float32)
    graph = whole(compare(squeezing(condition, ("N", 1, 4)), {"x": x}, tmp_path))
    assert resolve(graph, 5).shapes["y"] == (5, 4)


def test_the_branch_that_is_not_taken_need_not_fit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)
    graph = whole(load(save(squeezing(EQUAL, ("N", 3, 4)), tmp_path)))
    np.testing.assert_allclose(outputs_of(graph, {"x": x})[0], np.maximum(x + 1, 0))


def test_a_branch_that_the_batch_decides_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    graph = load(save(squeezing(OF_BATCH, ("N", 1, 4)), tmp_path))
    assert graph.tail is not None or "onnx_part" in [entry.op for entry in graph.nodes]


def test_an_open_size_that_takes_the_other_branch_is_refused(tmp_path: Path) -> None:
    graph = whole(load(save(squeezing(EQUAL, ("N", "C", 4)), tmp_path)))
    assert resolve(with_shapes(graph, {"x": (3, 4)}), 2).shapes["y"] == (2, 3, 4)
    with pytest.raises(UnsupportedError, match=r"If 'chosen': selects its other branch at this"):
        resolve(with_shapes(graph, {"x": (1, 4)}), 2)


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
