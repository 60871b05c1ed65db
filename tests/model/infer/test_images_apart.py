"""Files that are written for one batch size run at another only where images are shown to be
treated apart, and then with the numbers that each image has at the file's batch size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import ModelError
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.onnx_models import ints, make, model, runtime, save, weights
from tests.simulated.networks import random_network
from tests.tolerances import normalised_error, tolerance

RANDOM_NODES = (
    ("Relu", {}, ()), ("Softmax", {"axis": 0}, ()), ("Softmax", {"axis": 1}, ()),
    ("Softmax", {"axis": -1}, ()), ("Transpose", {"perm": [1, 0, 2]}, ()),
    ("Transpose", {"perm": [0, 2, 1]}, ()), ("Transpose", {"perm": [2, 1, 0]}, ()),
    ("ReduceMean", {"axes": [0]}, ()), ("ReduceMean", {"axes": [1]}, ()),
    ("Concat", {"axis": 0}, ("*",)), ("Concat", {"axis": 1}, ("*",)),
    ("Add", {}, ("*",)), ("MatMul", {}, ("*",)), ("Flatten", {"axis": 1}, ()),
    ("Flatten", {"axis": 0}, ()), ("Flatten", {"axis": 2}, ()),
    ("Reshape", {}, ((0, -1),)), ("Reshape", {}, ((0, -1, 4),)), ("Reshape", {}, ((-1, 4, 4),)),
    ("Reshape", {}, ((1, -1, 4),)), ("Reshape", {}, ((2, -1, 4),)), ("Reshape", {}, ((4, 4, -1),)),
    ("Gather", {"axis": 0}, (0,)), ("Gather", {"axis": 1}, (0,)), ("Gather", {"axis": 0}, ((0,),)),
    ("Slice", {}, ((0,), (1,), (0,))), ("Slice", {}, ((0,), (2,), (1,))),
    ("Slice", {}, ((-1,), (-9,), (0,), (-1,))), ("Slice", {}, ((-1,), (-9,), (1,), (-1,))),
    ("Unsqueeze", {}, ((0,),)), ("Unsqueeze", {}, ((1,),)), ("Squeeze", {}, ()),
    ("Expand", {}, ((4, 1, 1),)), ("Expand", {}, ((1, 4, 4),)), ("Expand", {}, ((2, 4, 4),)),
)


def refused(proto: onnx.ModelProto, batch: int, directory: Path, culprit: str = "") -> None:
    """Checks that a file is refused at a batch size, by the name of the file and of a node."""
    graph = load(save(proto, directory))
    assert resolve(graph, graph.fixed_batch or 0)
    with pytest.raises(ModelError, match=culprit) as caught:
        resolve(graph, batch)
    assert graph.file in str(caught.value)
    assert f"run it at batch {graph.fixed_batch}" in str(caught.value)
    assert "free batch dimension" in str(caught.value)


def images_alone(proto: onnx.ModelProto, x: np.ndarray, written: int) -> list[np.ndarray]:
    """Returns ONNX Runtime's outputs, each image of x in a batch that is filled up with it."""
    parts = [runtime(proto, {"x": np.repeat(image[None], written, 0)}) for image in x]
    return [np.concatenate([y[:len(y) // written] for y in outputs])
            for outputs in zip(*parts, strict=True)]


def same_as_alone(proto: onnx.ModelProto, batch: int, directory: Path) -> bool:
    """Checks the outputs at a batch size against those of its images; returns False where the file
    is refused there."""
    graph = load(save(proto, directory))
    try:
        resolve(graph, graph.fixed_batch or 0)
        static = resolve(graph, batch)
    except ModelError as error:
        assert graph.file in str(error)
        return False
    shape = (batch, *static.shapes["x"][1:])
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = images_alone(proto, x, graph.fixed_batch or 1)
    for version in (graph, optimise(graph)):
        results = execute(resolve(version, batch), {"x": x})
        for info, y in zip(graph.outputs, expected, strict=True):
            assert results[info.name].shape == y.shape
            assert normalised_error(results[info.name], y) <= tolerance("network")
    return True


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize(("nodes", "culprit"), [
    ([make("Gather", ["x", "zero"], "y", axis=0)], "Gather"),
    ([make("Slice", ["x", "none", "one", "none"], "y")], "Slice"),
    ([make("Slice", ["x", "last", "far", "none", "last"], "y")], "Slice"),
    ([make("Concat", ["x", "x"], "y", axis=0)], "Concat"),
    ([make("ReduceMean", ["x"], "y", axes=[0])], "ReduceMean"),
    ([make("ReduceMean", ["x"], "m", axes=[0]), make("Sub", ["x", "m"], "y")], "ReduceMean"),
    ([make("Gather", ["x", "zero"], "a", axis=0), make("Add", ["x", "a"], "y")], "Gather"),
    ([make("Unsqueeze", ["x", "none"], "a"), make("Unsqueeze", ["x", "one"], "b"),
      make("Mul", ["a", "b"], "y")], "Mul"),
    ([make("Softmax", ["x"], "y", axis=0)], "Softmax"),
    ([make("Add", ["x", "c"], "y")], "Add"),
], ids=["index", "first", "flip", "concat", "mean", "centred", "add", "outer", "softmax",
        "constant"])
def test_what_works_along_the_batch_is_refused(
    nodes: list[onnx.NodeProto], culprit: str, written: int, tmp_path: Path
) -> None:
    constants = {"zero": np.array(0), "none": ints(0), "one": ints(1), "last": ints(-1),
                 "far": ints(-9), "c": weights(3 - written + 1, 4, 4)[:written]}
    if culprit == "Add" and written == 1:
        constants["c"] = weights(3, 4, 4)
        nodes = [make("Reshape", ["x", "s"], "a"), make("Add", ["a", "c"], "y")]
        constants["s"] = ints(1, 4, 4)
    proto = model(nodes, {"x": (written, 4, 4)}, {"y": None}, constants)
    for batch in (3, 4):
        refused(proto, batch, tmp_path, culprit)


def test_products_with_a_matrix_for_each_place_are_refused(tmp_path: Path) -> None:
    """As torch.baddbmm of outer products writes it."""
    nodes = [make("Unsqueeze", ["x", "two"], "a"), make("Unsqueeze", ["x", "none"], "b"),
             make("MatMul", ["a", "b"], "p"), make("Add", ["p", "c"], "y")]
    proto = model(nodes, {"x": (1, 4)}, {"y": None},
                  {"two": ints(2), "none": ints(0), "c": weights(1, 4, 4)})
    refused(proto, 2, tmp_path, "MatMul")


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_networks_of_one_batch_size_run_at_others(seed: int, batch: int, tmp_path: Path) -> None:
    proto = random_network(seed)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    if 0 not in [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]:
        assert same_as_alone(proto, batch, tmp_path)


def attention(written: int) -> onnx.ModelProto:
    """Returns attention of two heads, whose batch is on axis 1 for a while."""
    shapes = {"s": ints(written, 6, 3, 2, 4), "t": ints(written, 6, 8)}
    parts = [make("Gather", ["c", f"i{index}"], f"q{index}", axis=0) for index in range(3)]
    return model(
        [make("MatMul", ["x", "w"], "a"), make("Reshape", ["a", "s"], "b"),
         make("Transpose", ["b"], "c", perm=[2, 0, 3, 1, 4]), *parts,
         make("Transpose", ["q1"], "k", perm=[0, 1, 3, 2]), make("MatMul", ["q0", "k"], "m"),
         make("Softmax", ["m"], "n", axis=-1), make("MatMul", ["n", "q2"], "o"),
         make("Transpose", ["o"], "p", perm=[0, 2, 1, 3]), make("Reshape", ["p", "t"], "y")],
        {"x": (written, 6, 8)}, {"y": 3},
        {"w": weights(8, 24), **shapes, **{f"i{index}": np.array(index) for index in range(3)}})


def windows(written: int) -> onnx.ModelProto:
    """Returns attention within windows, of which axis 0 has four for each image."""
    return model(
        [make("Reshape", ["x", "s"], "a"), make("Transpose", ["a"], "b", perm=[0, 1, 3, 2, 4, 5]),
         make("Reshape", ["b", "t"], "c"), make("Transpose", ["c"], "d", perm=[0, 2, 1]),
         make("MatMul", ["c", "d"], "m"), make("Softmax", ["m"], "n", axis=-1),
         make("MatMul", ["n", "c"], "o"), make("Reshape", ["o", "v"], "e"),
         make("Transpose", ["e"], "f", perm=[0, 1, 3, 2, 4, 5]), make("Reshape", ["f", "u"], "y")],
        {"x": (written, 8, 8, 3)}, {"y": 4},
        {"s": ints(written, 2, 4, 2, 4, 3), "t": ints(-1, 16, 3), "u": ints(written, 8, 8, 3),
         "v": ints(written, 2, 2, 4, 4, 3)})


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("made", [attention, windows])
def test_a_batch_may_be_moved_and_moved_back(
    made: Callable[[int], onnx.ModelProto], written: int, batch: int, tmp_path: Path
) -> None:
    assert same_as_alone(made(written), batch, tmp_path)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(written=st.sampled_from([1, 2]), times=st.sampled_from([0, 2]),
       picks=st.lists(st.tuples(st.sampled_from(RANDOM_NODES), st.integers(0, 9),
                                st.integers(0, 9)), min_size=1, max_size=4))
def test_random_graphs_are_refused_or_treat_images_apart(
    written: int, times: int, picks: list[tuple[tuple, int, int]],
    tmp_path_factory: pytest.TempPathFactory
) -> None:
    values, nodes, constants = ["x"], [], {}
    for index, ((op, attributes, operands), first, second) in enumerate(picks):
        inputs = [values[-1 - first % min(2, len(values))]]
        for place, operand in enumerate(operands):
            if operand == "*":
                inputs.append(values[second % len(values)])
            else:
                inputs.append(f"c{index}.{place}")
                constants[inputs[-1]] = np.array(operand, np.int64)
        nodes.append(make(op, inputs, f"v{index}", **attributes))
        values.append(f"v{index}")
    proto = model(nodes, {"x": (written, 4, 4)}, {values[-1]: None}, constants)
    try:
        runtime(proto, {"x": np.zeros((written, 4, 4), np.float32)})
    except Exception:  # ONNX Runtime has no common class for graphs that are none
        return
    same_as_alone(proto, written * times or 3, tmp_path_factory.mktemp("graph"))


NODES: tuple[tuple[str, dict[str, Any], tuple[Any, ...]], ...] = (
    *RANDOM_NODES, ("MatMul", {}, (np.ones((4, 4), np.float32),)),
    *(("Transpose", {"perm": order}, ()) for order in itertools.permutations(range(3))),
    *((op, {"axis": axis}, operands) for axis in range(3) for op, operands in (
        ("Softmax", ()), ("ArgMax", ()), ("TopK", ((1,),)), ("LayerNormalization", (weights(4),)))),
    *((op, {}, (numbers,)) for op, numbers in (
        ("CumSum", 0), ("CumSum", 2), ("Tile", (2, 1, 1)), ("Tile", (1, 2, 1)),
        ("Pad", (1, 0, 0, 0, 0, 0)), ("Pad", (0, 1, 0, 0, 0, 0)), ("Pad", (0, 0, 0, 0, 0, 1)))))


def one_node(order: tuple[int, ...], node: tuple[str, dict[str, Any], tuple[Any, ...]],
             batch: int) -> onnx.ModelProto:
    """Returns a network of a node that reads a transposed batch."""
    op, attributes, operands = node
    names = ["a" if isinstance(operand, str) else f"c{place}"
             for place, operand in enumerate(operands)]
    constants = {name: np.asarray(operand, getattr(operand, "dtype", np.int64))
                 for name, operand in zip(names, operands, strict=True) if name != "a"}
    nodes = [make("Transpose", ["x"], "a", perm=order), make(op, ["a", *names], "y", **attributes)]
    nodes[1].output.extend(["places"] * (op == "TopK"))
    return model(nodes, {"x": (batch, 4, 4)}, {"y": None}, constants,
                 types={"y": onnx.TensorProto.INT64} if op == "ArgMax" else {})


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("written", [1, 2])
def test_nodes_that_treat_images_apart_run_and_no_others(
        written: int, order: tuple[int, ...], tmp_path: Path) -> None:
    """A node may run only where ONNX Runtime gives each image alone the same numbers, and must run
    where that holds without a change of the file's sizes."""
    x = np.random.default_rng(1).standard_normal((3, 4, 4)).astype(np.float32)
    for node in NODES:
        proto = one_node(order, node, written)
        try:
            (alone,) = images_alone(proto, x, written)
        except Exception:  # see above
            continue
        try:
            together = runtime(one_node(order, node, 3), {"x": x})[0]
        except Exception:
            together = None
        runs = same_as_alone(proto, 3, tmp_path)
        assert runs or together is None or together.shape != alone.shape or not np.allclose(
            together, alone, 1e-4, 1e-5), f"{node} is refused"
