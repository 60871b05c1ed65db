"""GraphBuilder makes graphs that run, names everything once, and finds what is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError, ModelError
from gossamer.expression import apply
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import resolve
from tests.model.executor import execute

X = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)


def started() -> GraphBuilder:
    build = GraphBuilder("net", file="net.cfg")
    build.input("x", (None, 3, 4, 4))
    return build


def run(build: GraphBuilder, value: str) -> np.ndarray:
    build.output(value, ())
    return execute(resolve(build.finish(), 2), {"x": X})[value]


def test_layers_with_their_defaults() -> None:
    build = started()
    eye = build.constant("weight", np.eye(3).reshape(3, 3, 1, 1))
    ones, zeros = build.constant("ones", np.ones(3)), build.constant("zeros", np.zeros(3))
    y = build.conv2d("x", eye)
    y = build.batch_norm(build.conv2d(y, eye, ones), ones, zeros, zeros, ones, epsilon=0.0)
    y = build.concat([y, build.apply("relu", y)])
    y = build.apply("clip", build.elementwise(apply("neg").then(apply("exp")), y),
                    constants=(0.5, 2.0))
    y = build.pool(build.resize(y, (1, 1, 2, 2)), "max", (2, 2), strides=(2, 2))
    rows = build.flatten(build.reduce(y, "mean"))
    product = build.gemm(rows, build.constant("matrix", np.ones((6, 6))), trans_b=True)
    result = run(build, build.reshape(build.softmax(product), (0, 2, 3)))
    assert result.shape == (2, 2, 3)
    np.testing.assert_allclose(result, 1 / 6, rtol=1e-6)
    both = np.concatenate([X + 1, np.maximum(X + 1, 0)], axis=1)
    np.testing.assert_allclose(run(build, y), np.clip(np.exp(-both), 0.5, 2), rtol=1e-5)
    relu = build.conv2d("x", eye, epilogue=apply("relu"))
    np.testing.assert_array_equal(run(build, relu), np.maximum(X, 0))
    assert build.graph.constants[eye].dtype == np.float32
    ops = [node.op for node in build.graph.nodes]
    assert [node.source for node in build.graph.nodes] == [
        f"{op} '{op}_{index}'" for index, op in enumerate(ops)]


def test_names_that_are_taken_are_lengthened() -> None:
    build = started()
    assert [build.constant("w", np.ones(1)) for _ in range(2)] == ["w", "w_"]
    assert build.apply("add", "x", "w", name="layer") == "layer"
    assert build.apply("add", "layer", "w_", name="layer") == "layer_"
    assert build.apply("relu", "layer_", name="layer", output="y") == "y"
    build.output("y", (None, 3, 4, 4))
    graph = build.finish()
    assert [node.name for node in graph.nodes] == ["layer", "layer_", "layer__"]
    np.testing.assert_allclose(execute(resolve(graph, 2), {"x": X})["y"], np.maximum(X + 2, 0))


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda build: build.apply("relu", "z", source="Relu 'a'"),
     "Relu 'a' reads 'z', which no input, constant or node makes"),
    (lambda build: (build.apply("relu", "late", source="Relu 'a'"),
                    build.apply("relu", "x", output="late", source="Relu 'b'")),
     "Relu 'a' reads 'late', which Relu 'b' makes later"),
    (lambda build: build.apply("relu", "x", output="y"),
     "'y' is made twice, by elementwise 'elementwise_0' and by elementwise 'elementwise_1'"),
    (lambda build: build.add("split", ["x"], ["a", "x"], axis=1, sizes=(1, 2)),
     "'x' is made twice, by an input and by split 'split_1'"),
    (lambda build: build.input("x", (None,)), "'x' is made twice, by an input and by an input"),
    (lambda build: build.output("z", (None,)),
     "output 'z' is made by no input, constant or node"),
    (lambda build: build.graph.outputs.clear(), "the network has no output"),
], ids=["absent", "late", "twice", "input again", "inputs", "output", "none"])
def test_what_is_wrong_with_a_graph(spoil, message: str) -> None:
    build = started()
    build.apply("relu", "x", output="y")
    build.output("y", (None, 3, 4, 4))
    build.finish()
    spoil(build)
    with pytest.raises(ModelError, match=f"^net.cfg: {re.escape(message)}$"):
        build.finish()


def test_absent_inputs_and_outputs_have_no_name() -> None:
    build = started()
    build.add("split", ["x", ""], ["y", ""], axis=1, sizes=(1, 2))
    build.add("split", ["x"], ["", "z"], axis=1, sizes=(1, 2))
    build.output("y", ())
    assert [type(node) for node in build.finish().nodes] == [Node, Node]


def test_filters_that_do_not_divide_into_groups_are_refused() -> None:
    build = started()
    build.output(build.conv2d("x", build.constant("w", np.ones((4, 1, 1, 1))), groups=3), ())
    with pytest.raises(ModelError, match="4 filters do not divide into 3 groups"):
        resolve(build.finish(), 1)


def graph(nodes: int) -> Graph:
    return Graph("net", [ValueInfo("x", (None, 3)), ValueInfo("z", (2,), "int64")],
                 [ValueInfo("y", (None, 4))],
                 [Node("add", f"n{index}", ["x"], ["y"]) for index in range(nodes)],
                 {"w": np.zeros((40, 50), np.float32)})


@pytest.mark.parametrize(("nodes", "text"), [(1, "1 node,"), (2, "2 nodes,")])
def test_a_graph_is_shown_in_one_line(nodes: int, text: str) -> None:
    assert repr(graph(nodes)) == (
        f"<Graph net: {text} 2 k parameters, x Nx3 float32, z 2 int64 -> y Nx4 float32>")


@pytest.mark.parametrize("use", [gossamer.load, gossamer.compile])
def test_a_module_of_pytorch_is_told_how_to_come_in(use: Any) -> None:
    class Module:
        """Stands for the base class of PyTorch's modules, where PyTorch is not installed."""

    Module.__module__ = "torch.nn.modules.module"

    class Net(Module):
        pass

    with pytest.raises(InputError, match=r"cannot load a Net, a module of PyTorch: "
                                         r"gossamer.optimize\(module.eval\(\), example_input\)"):
        use(Net())
