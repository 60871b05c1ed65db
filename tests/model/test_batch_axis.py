import json

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from gossamer.io.text import shape_text
from gossamer.model.builder import GraphBuilder
from gossamer.model.infer.resolve import along_batch
from tests.cli.command_line import RNG, fails, save_network, save_photo, succeeds
from tests.tolerances import normalised_error, tolerance

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
    np.save(tmp_path / "x.npy", x)
    words = ("run", path, "--device", "host", "--input", tmp_path / "x.npy")
    line = fails(2, *words, "--batch", 2)
    assert "'it'" in line and "leave --batch out" in line
    result = succeeds(*words, "--output", tmp_path / "y.npy")
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    assert normalised_error(np.load(tmp_path / "y.npy"), expected) <= tolerance("network")
    assert f"y: {shape_text(expected.shape)} float32" in result.stdout
    succeeds(*words, "--batch", 6)


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
    np.save(tmp_path / "x.npy", RNG.standard_normal((6, 4, 4)).astype(np.float32))
    words = ("run", path, "--device", "host", "--input", tmp_path / "x.npy", "--output")
    succeeds(*words, tmp_path / "whole.npy")
    succeeds(*words, tmp_path / "parts.npy", "--batch", 4)
    assert normalised_error(np.load(tmp_path / "parts.npy"), np.load(tmp_path / "whole.npy")
                            ) <= tolerance("network")


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
