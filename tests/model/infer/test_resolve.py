"""Shapes of whole graphs at any batch size, with shape arithmetic and open dimensions; constants
that differ between batch sizes; and batches that may not be split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from gossamer.errors import InputError
from gossamer.expression import identity
from gossamer.io.text import shape_text
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import along_batch, resolve, with_shapes
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.cli.command_line import RNG, fails, run_on, save_network, save_photo, succeeds
from tests.model.executor import execute
from tests.model.onnx_models import Input, compare, ints, make, model, runtime, save, weights
from tests.tolerances import FLOAT32, normalised_error, tolerance


def classifier(batch: int | str, view: Sequence[int]) -> onnx.ModelProto:
    """A model of a convolution, a pool, a reshape to `view`, and a product."""
    return model(
        [make("Conv", ["x", "w"], "a", strides=[2, 2]), make("GlobalAveragePool", ["a"], "b"),
         make("Reshape", ["b", "view"], "c"), make("Gemm", ["c", "v"], "y")],
        {"x": (batch, 3, 9, 9)}, {"y": None},
        {"w": weights(6, 3, 3, 3), "v": weights(6, 5), "view": ints(*view)})


def upsample_by_shape() -> onnx.ModelProto:
    """A model whose sizes are computed from the input's shape by Slice, Cast, Mul and Floor."""
    return model(
        [make("Shape", ["x"], "s"), make("Slice", ["s", "two", "four"], "hw"),
         make("Cast", ["hw"], "f", to=TensorProto.FLOAT), make("Mul", ["f", "factor"], "g"),
         make("Floor", ["g"], "h"), make("Cast", ["h"], "i", to=TensorProto.INT64),
         make("Slice", ["s", "zero", "two"], "nc"), make("Concat", ["nc", "i"], "sizes", axis=0),
         make("Resize", ["x", "", "", "sizes"], "y", mode="nearest",
              coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"x": ("N", 3, "H", "W")}, {"y": 4},
        {"zero": ints(0), "two": ints(2), "four": ints(4), "factor": np.array([2, 1.5], "f4")})


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("proto", [
    classifier("N", (0, -1)), classifier("N", (-1, 6)),
    # x.view(x.shape[0], -1) and x.expand(-1, 4, -1) as exporters write them
    model([make("Shape", ["x"], "s"), make("Gather", ["s", "zero"], "n", axis=0),
           make("Unsqueeze", ["n", "axes"], "u"), make("Concat", ["u", "rest"], "t", axis=0),
           make("Reshape", ["x", "t"], "y")], {"x": ("N", 3, 4, 5)}, {"y": 2},
          {"zero": np.array(0), "axes": ints(0), "rest": ints(-1)}),
    model([make("ConstantOfShape", ["rank"], "ones",
                value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
           make("Mul", ["ones", "minus"], "m"), make("Equal", ["wanted", "m"], "e"),
           make("Where", ["e", "ones", "wanted"], "shape"), make("Expand", ["x", "shape"], "y")],
          {"x": ("N", 1, 5)}, {"y": 3},
          {"rank": ints(3), "minus": ints(-1), "wanted": ints(-1, 4, -1)}),
], ids=["zero", "minus_one", "shape", "expand"])
def test_any_batch_runs(proto: onnx.ModelProto, batch: int, tmp_path: Path) -> None:
    shape = [batch, *[d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim[1:]]]
    x = Input(tuple(shape)).draw(3)
    if batch:
        compare(proto, {"x": x}, tmp_path)
        return
    one = resolve(load(save(proto, tmp_path)), 1)
    none = resolve(load(save(proto, tmp_path)), 0)
    assert execute(none, {"x": x})["y"].shape == (0, *one.shapes["y"][1:])


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_reshape_that_takes_zeros_literally(batch: int, tmp_path: Path) -> None:
    """Newer exporters write every reshape with allowzero; only a batch of 0 has a zero."""
    proto = model([make("Shape", ["x"], "n", start=0, end=1),
                   make("Concat", ["n", "rest"], "s", axis=0),
                   make("Reshape", ["x", "s"], "y", allowzero=1)],
                  {"x": ("N", 3, 4)}, {"y": 2}, {"rest": ints(12)})
    assert resolve(load(save(proto, tmp_path)), batch).shapes["y"] == (batch, 12)


@pytest.mark.parametrize("written", [1, 4])
@pytest.mark.parametrize("batch", [0, 1, 3, 4])
@pytest.mark.parametrize("view", [(None, -1), (None, 6), (-1, 6), (0, -1)])
def test_a_file_of_one_batch_size_runs_at_others(
    written: int, batch: int, view: tuple[int | None, int], tmp_path: Path
) -> None:
    fixed = [written if size is None else size for size in view]
    graph = load(save(classifier(written, fixed), tmp_path))
    assert graph.fixed_batch == written
    assert graph.inputs[0].shape == (None, 3, 9, 9)
    x = Input((batch, 3, 9, 9)).draw(1)
    for version in (graph, optimise(graph)):
        y = execute(resolve(version, batch), {"x": x})["y"]
        assert y.shape == (batch, 5)
        if batch:
            expected = runtime(classifier("N", (0, -1)), {"x": x})[0]
            assert normalised_error(y, expected) <= FLOAT32


@pytest.mark.parametrize("written", [1, 4])
@pytest.mark.parametrize("batch", [0, 1, 3, 4])
def test_resize_of_one_batch_size(written: int, batch: int, tmp_path: Path) -> None:
    """The sizes begin with the file's batch, which is a height as well."""
    def resize(size: int | str, *sizes: int) -> onnx.ModelProto:
        return model([make("Resize", ["x", "", "", "sizes"], "y", mode="linear")],
                     {"x": (size, 3, 5, 6)}, {"y": 4}, {"sizes": ints(*sizes, 3, written, 9)})

    graph = load(save(resize(written, written), tmp_path))
    x = Input((batch, 3, 5, 6)).draw(0)
    y = execute(resolve(graph, batch), {"x": x})["y"]
    assert y.shape == (batch, 3, written, 9)
    if batch:
        (expected,) = runtime(resize("N", batch), {"x": x})
        assert normalised_error(y, expected) <= FLOAT32


def test_channel_shuffle_of_one_batch_size(tmp_path: Path) -> None:
    def shuffle(batch: int | str, leading: int) -> onnx.ModelProto:
        return model(
            [make("Reshape", ["x", "split"], "a"), make("Transpose", ["a"], "b",
                                                        perm=[0, 2, 1, 3, 4]),
             make("Reshape", ["b", "whole"], "y")],
            {"x": (batch, 6, 4, 4)}, {"y": 4},
            {"split": ints(leading, 2, 3, 4, 4), "whole": ints(leading, -1, 4, 4)})
    x = Input((3, 6, 4, 4)).draw(0)
    expected = runtime(shuffle("N", 0), {"x": x})[0]
    y = execute(resolve(load(save(shuffle(1, 1), tmp_path)), 3), {"x": x})["y"]
    np.testing.assert_array_equal(y, expected)


def test_squeeze_without_axes_leaves_the_batch(tmp_path: Path) -> None:
    proto = model([make("Squeeze", ["x"], "y")], {"x": ("N", 1, 5, 1)}, {"y": None})
    graph = load(save(proto, tmp_path))
    assert [resolve(graph, batch).shapes["y"] for batch in (0, 1, 3)] == [(0, 5), (1, 5), (3, 5)]


def test_inputs_without_a_batch_keep_their_shapes(tmp_path: Path) -> None:
    proto = model([make("MatMul", ["a", "b"], "y")], {"a": (3, 4), "b": (4, 5)}, {"y": 2})
    graph = load(save(proto, tmp_path))
    assert [info.shape for info in graph.inputs] == [(3, 4), (4, 5)]
    assert resolve(graph, 7).shapes["y"] == (3, 5)
    line = load(save(model([make("Relu", ["x"], "y")], {"x": (6,)}, {"y": 1}), tmp_path))
    assert resolve(line, 2).shapes["y"] == (6,)


def test_open_dimensions_are_set_by_name(tmp_path: Path) -> None:
    proto = upsample_by_shape()
    graph = load(save(proto, tmp_path))
    with pytest.raises(InputError, match=r"dimension 2 \(H\) open; set it with --shape x=3,SIZE"):
        resolve(graph, 1)
    x = Input((2, 3, 5, 6)).draw(0)
    expected = runtime(proto, {"x": x})[0]
    for version in (graph, optimise(graph)):
        static = resolve(with_shapes(version, {"x": (3, 5, 6)}), 2)
        np.testing.assert_array_equal(execute(static, {"x": x})["y"], expected)
        assert [node.op for node in static.nodes] == ["resize"]
        assert resolve(with_shapes(version, {"x": (3, 5, 6)}), 0).shapes["y"] == (0, 3, 10, 9)


@pytest.mark.parametrize(("overrides", "text"), [
    ({"z": (3, 5, 6)}, "no input 'z'; its inputs: x"),
    ({"x": (4, 5, 6)}, r"cannot have shape \[4, 5, 6\]; the file says \[3, any, any\], "
     "without the batch"),
    ({"x": (5, 6)}, "cannot have shape"),
    ({"x": (3, -1, 6)}, "cannot have shape"),
])
def test_impossible_overrides(overrides: dict[str, tuple[int, ...]], text: str,
                              tmp_path: Path) -> None:
    graph = load(save(upsample_by_shape(), tmp_path))
    with pytest.raises(InputError, match=text):
        with_shapes(graph, overrides)


def test_negative_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch is -1"):
        resolve(load(save(classifier("N", (0, -1)), tmp_path)), -1)


def test_an_output_that_is_an_input_or_a_constant(tmp_path: Path) -> None:
    proto = model([make("Identity", ["x"], "y"), make("Identity", ["w"], "z")],
                  {"x": ("N", 3)}, {"y": 2, "z": 1}, {"w": weights(4)})
    compare(proto, {"x": Input((2, 3)).draw(0)}, tmp_path)


def test_a_graph_may_give_concrete_attributes() -> None:
    """A graph made in code may hold attributes that ONNX gives as inputs."""
    graph = Graph("built", [ValueInfo("x", (None, 4, 3, 3))], [ValueInfo("y", (None, 2))], [
        Node("reduce", "pool", ["x"], ["a"], {"kind": "mean", "axes": (2, 3), "keepdims": True}),
        Node("reshape", "flat", ["a"], ["b"], {"shape": (0, -1)}),
        Node("gemm", "head", ["b", "w"], ["y"],
             {"trans_a": False, "trans_b": True, "epilogue": identity()}),
    ], {"w": weights(2, 4)})
    for batch in (0, 5):
        assert resolve(optimise(graph), batch).shapes["y"] == (batch, 2)


def test_views_of_constants_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All constants together may have little more than the bytes of one expanded constant."""
    monkeypatch.setenv("GOSSAMER_MAX_BYTES", "5000")
    nodes = [make("Expand", ["c", "sizes"], "wide"), make("Reshape", ["wide", "other"], "same"),
             make("Gather", ["same", "first"], "row"), make("Add", ["x", "row"], "y")]
    proto = model(nodes, {"x": ("N", 50)}, {"y": 2}, {
        "c": weights(1, 50), "sizes": np.array([20, 50]), "other": np.array([1, 20, 50]),
        "first": np.array([[0]])})
    resolve(load(proto), 1)


SHAPE = (3, 6, 6)


CONSTANTS = {
    "w": weights(3, 3, 3, 3), "c": weights(3, 1, 1, seed=8), "m": weights(108, 4, seed=9),
    "row": weights(4, seed=10), "zero": ints(0), "zeros": np.zeros((), np.int64),
    "one": np.ones((), np.int64), "axes": ints(1, 2, 3), "two": np.array(2, np.float32),
    "four": ints(0, 0, 0, 0), "three": ints(0, 0, 0), "image": weights(1, 3, 6, 6, seed=11),
    "unit": np.ones((1, 1), np.float32), "any": ints(-1),
}

CONV = make("Conv", ["x", "w"], "conv", pads=[1, 1, 1, 1])
SIZES = make("Shape", ["x"], "shape")
BATCH = make("Gather", ["shape", "zeros"], "n")
FLAT = make("Flatten", ["x"], "flat")
EXPANDED = make("Expand", ["c", "shape"], "e")
COUNT = [make("Range", ["zeros", "n", "one"], "range"), make("Cast", ["range"], "numbers", to=1),
         make("Unsqueeze", ["numbers", "axes"], "column")]
FILLED = make("ConstantOfShape", ["shape"], "e",
              value=numpy_helper.from_array(np.array([0.5], np.float32)))

NETWORKS: Mapping[str, list[onnx.NodeProto]] = {
    "expand": [CONV, SIZES, EXPANDED, make("Add", ["conv", "e"], "y")],
    "filled": [CONV, SIZES, FILLED, make("Mul", ["conv", "e"], "y")],
    "expand that is none at batch 1": [
        CONV, SIZES, make("Expand", ["image", "shape"], "e"),
        make("Concat", ["conv", "e"], "y", axis=1)],
    "range": [CONV, SIZES, BATCH, *COUNT, make("Add", ["conv", "column"], "y")],
    "range of the image's shape": [
        CONV, SIZES, BATCH, *COUNT, make("Expand", ["column", "shape"], "e"),
        make("Sub", ["conv", "e"], "y")],
    "chain": [CONV, SIZES, EXPANDED, make("Relu", ["e"], "f"), make("Mul", ["f", "two"], "g"),
              make("Relu", ["conv"], "r"), make("Add", ["r", "g"], "y")],
    "weight": [SIZES, BATCH, FLAT, make("Cast", ["n"], "scale", to=1),
               make("Mul", ["m", "scale"], "scaled"),
               make("MatMul", ["flat", "scaled"], "y")],
    "gemm": [SIZES, BATCH, FLAT, make("Cast", ["n"], "scale", to=1),
             make("Mul", ["m", "scale"], "scaled"),
             make("Gemm", ["flat", "scaled", "row"], "product"), make("Relu", ["product"], "y")],
    "bias of a gemm": [
        FLAT, make("Gemm", ["flat", "m"], "product"), make("Shape", ["product"], "shape"),
        make("Expand", ["row", "shape"], "e"), make("Add", ["product", "e"], "y")],
    "pad that is none at batch 1": [
        CONV, SIZES, BATCH, make("Sub", ["n", "one"], "more"),
        make("Reshape", ["more", "any"], "last"),
        make("Concat", ["four", "last", "three"], "pads", axis=0),
        make("Pad", ["image", "pads"], "e"), make("Add", ["conv", "e"], "y")],
    "shape through a product": [
        SIZES, make("Gather", ["shape", "zero"], "n"),
        make("Cast", ["n"], "number", to=1), make("Unsqueeze", ["number", "zero"], "matrix"),
        make("MatMul", ["matrix", "unit"], "product"), make("Reshape", ["product", "any"], "size"),
        make("Cast", ["size"], "whole", to=7), make("Concat", ["whole", "any"], "to", axis=0),
        make("Reshape", ["x", "to"], "y")],
    "output": [CONV, SIZES, EXPANDED, make("Relu", ["e"], "y")],
}


def network(name: str) -> onnx.ModelProto:
    used = {value for node in NETWORKS[name] for value in node.input}
    return model(NETWORKS[name], {"x": ("N", *SHAPE)}, {"y": None},
                 {key: value for key, value in CONSTANTS.items() if key in used})


@pytest.mark.parametrize("name", NETWORKS)
def test_one_optimised_graph_serves_every_batch(name: str, tmp_path: Path) -> None:
    proto = network(name)
    graph = load(save(proto, tmp_path))
    better = optimise(graph)
    for batch in (2, 3, 1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, *SHAPE)).astype(np.float32)
        (expected,) = runtime(proto, {"x": x})
        for version in (graph, better):
            static = resolve(version, batch)
            y = execute(static, {"x": x})["y"]
            assert normalised_error(y, expected) <= tolerance("network")


@pytest.mark.parametrize("name", ["expand that is none at batch 1", "pad that is none at batch 1"])
def test_a_constant_of_one_batch_size_is_never_taken_for_a_weight(name: str,
                                                                  tmp_path: Path) -> None:
    """Weights serve every batch size, so that the name of one must not stand for another."""
    graph = optimise(load(save(network(name), tmp_path)))
    for batch in (1, 2):
        (reader,) = [node for node in resolve(graph, batch).nodes if "conv" in node.inputs]
        assert "e" in reader.inputs


MIXING = {
    "ReduceMean": [helper.make_node("ReduceMean", ["x"], ["m"], name="it", axes=[0]),
                   helper.make_node("Sub", ["x", "m"], ["y"])],
    "Softmax": [helper.make_node("Softmax", ["x"], ["y"], name="it", axis=0)],
    "Transpose": [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
                  helper.make_node("Softmax", ["t"], ["s"], name="it", axis=1),
                  helper.make_node("Transpose", ["s"], ["y"], perm=[1, 0])],
    "MatMul": [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
               helper.make_node("MatMul", ["x", "t"], ["u"], name="it"),
               helper.make_node("MatMul", ["u", "x"], ["y"])],
    "Concat": [helper.make_node("Concat", ["x", "x"], ["y"], name="it", axis=0)],
    "Flatten": [helper.make_node("Flatten", ["x"], ["y"], name="it", axis=0)],
}


@pytest.mark.parametrize("name", MIXING)
def test_networks_that_mix_a_batch_are_not_split(name, tmp_path):
    path = save_network(tmp_path / "mix.onnx", nodes=MIXING[name], weights={}, inputs=("N", 4),
                        outputs=(("y", None),))
    x = RNG.standard_normal((6, 4)).astype(np.float32)
    result, y = run_on(path, x)
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    assert normalised_error(y, expected) <= tolerance("network")
    assert f"y: {shape_text(expected.shape)} float32" in result.stdout
    words = ("run", path, "--device", "host", "--input", tmp_path / "x.npy", "--batch")
    line = fails(2, *words, 2)
    assert "'it'" in line and "omit --batch" in line
    succeeds(*words, 6)


@pytest.mark.parametrize("node", [
    helper.make_node("Softmax", ["x"], ["y"], axis=-1),
    helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1]),
    helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2]),
    helper.make_node("MatMul", ["x", "x"], ["y"]),
    helper.make_node("Concat", ["x", "x"], ["y"], axis=1),
], ids=lambda node: node.op_type)
def test_networks_that_do_not_mix_are_split(node, tmp_path):
    path = save_network(tmp_path / "rows.onnx", nodes=[node], weights={}, inputs=("N", 4, 4),
                        outputs=(("y", None),))
    x = RNG.standard_normal((6, 4, 4)).astype(np.float32)
    _, whole = run_on(path, x)
    _, parts = run_on(path, x, "--batch", 4)
    assert normalised_error(parts, whole) <= tolerance("network")


def test_photos_of_a_network_that_mixes_run_at_once(tmp_path):
    photo = save_photo(tmp_path / "photo.png")
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)]
    path = save_network(tmp_path / "sum.onnx", nodes=nodes, weights={}, outputs=(("y", None),))
    words = ("run", path, "--device", "host", "--preprocess", "none", "--image", photo, photo)
    document = json.loads(succeeds(*words, "--json").stdout)
    assert document["batch"] == 2 and document["results"] == []
    assert document["outputs"]["y"]["shape"] == [1, 1, 1, 1]


@pytest.mark.parametrize(("written", "keepdims", "apart"), [
    (1, True, True), (1, False, False), (2, True, False)])
def test_a_network_that_takes_one_image_at_a_time_is_run_for_each(written, keepdims, apart):
    build = GraphBuilder("net")
    mean = build.add("reduce", [build.input("x", (None, 4, 3))], kind="mean", axes=(0,),
                     keepdims=keepdims)
    build.output(mean, ())
    build.graph.fixed_batch = written
    reason, by_row = along_batch(build.graph, written)
    assert (reason is None) == apart and by_row == ({mean} if apart else set())
    assert apart or f"written for batch {written} and does not run at 7" in reason
