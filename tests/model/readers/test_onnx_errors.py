"""Files that cannot be read or computed are refused in one line that says what is wrong, where,
and what to do; tests/golden has the messages of single operators."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from gossamer.errors import GossamerError, InputError, ModelError, UnsupportedError
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.model.onnx_models import model, save, weights

IMAGE = ("N", 4, 8, 8)
pytestmark = pytest.mark.usefixtures("without_onnxruntime")


def relu() -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"], "act")], {"x": IMAGE}, {"y": 4})


def refused(proto: onnx.ModelProto, folder: Path, kind: type[GossamerError] = ModelError) -> str:
    """Returns the message of the error that loading or resolving raises, whether the graph is
    optimised or not."""
    path = save(proto, folder)
    with pytest.raises(kind):
        resolve(optimise(load(path)), 2)
    with pytest.raises(kind) as caught:
        resolve(load(path), 2)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


def node(op: str, inputs: list[str], name: str = "layer", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], name, **attributes)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*absent\.onnx"):
        load(tmp_path / "absent.onnx")


def test_other_names() -> None:
    with pytest.raises(InputError, match="no_such_network"):
        load("no_such_network")


@pytest.mark.parametrize("damage", [
    lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"not a network" * 9,
    lambda data: data[:-1],
])
@pytest.mark.parametrize("suffix", [".onnx", ".onnx.gz"])
def test_damaged_file(damage: Callable[[bytes], bytes], suffix: str, tmp_path: Path) -> None:
    data = relu().SerializeToString()
    path = tmp_path / f"model{suffix}"
    path.write_bytes(damage(gzip.compress(data) if suffix.endswith("gz") else data))
    with pytest.raises(ModelError, match=r"expected an ONNX model|is cut short or damaged"):
        load(path)


def test_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx.gz"
    path.write_bytes(gzip.compress(relu().SerializeToString()))
    assert [n.op for n in load(path).nodes] == ["elementwise"]


def test_an_opset_that_onnx_does_not_know(tmp_path: Path) -> None:
    proto = relu()
    proto.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    message = refused(proto, tmp_path, UnsupportedError)
    assert "newest that the installed onnx" in message and "--upgrade onnx" in message
    proto.opset_import[0].version = 0
    assert "names no ONNX opset" in refused(proto, tmp_path)


def test_unknown_ops_are_all_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Warp", ["x"], ["a"], "first", domain="my.ops"),
             helper.make_node("LSTM", ["a", "w", "w"], ["y"], "second", hidden_size=3)]
    message = refused(model(nodes, {"x": IMAGE}, {"y": 4}, {"w": weights(2)}), tmp_path,
                      UnsupportedError)
    assert "Warp 'first' of domain 'my.ops'" in message
    assert "LSTM 'second' of domain 'ai.onnx'" in message


def test_quantised_networks_are_to_be_read_as_floats(tmp_path: Path) -> None:
    nodes = [helper.make_node("QLinearSoftmax", ["x", "scale", "zero", "scale", "zero"], ["y"],
                              "first", domain="com.microsoft")]
    constants = {"scale": np.float32(0.1), "zero": np.uint8(128)}
    message = refused(model(nodes, {"x": IMAGE}, {"y": 4}, constants), tmp_path, UnsupportedError)
    assert "QLinearSoftmax 'first'" in message
    assert "; use the float32 model that it was quantised from, or pip install" in message


def test_a_batch_norm_that_a_convolution_takes_over_is_checked(tmp_path: Path) -> None:
    proto = model([helper.make_node("Conv", ["x", "k"], ["c"], "conv"),
                   node("BatchNormalization", ["c", "w", "w", "w", "w"])], {"x": IMAGE}, {"y": 4},
                  {"k": weights(5, 4, 3, 3), "w": weights(3)})
    assert "BatchNormalization 'layer': input has shape [2, 5, 6, 6], expected 3" in refused(
        proto, tmp_path)


def test_external_data(tmp_path: Path) -> None:
    proto = model([node("Add", ["x", "w"])], {"x": IMAGE}, {"y": 4}, {"w": weights(4, 64, 64)})
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(load(path).constants["w"], weights(4, 64, 64))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="external data"):
        load(path)


def test_weights_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    broken = weights(2, 4, 3, 3)
    broken[0, 0, 0, :2] = np.nan, np.inf
    graph = load(save(model([node("Conv", ["x", "w"])], {"x": IMAGE}, {"y": 4}, {"w": broken}),
                      tmp_path))
    (warning,) = graph.warnings
    assert "weights 'w' of Conv 'layer' hold 1 NaN and 1 infinite" in warning


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_become_float32_within_the_network(dtype: str, tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("Add", ["x", "w"])], {"x": IMAGE}, {"y": 4},
                  {"w": weights(4, 1, 1).astype(dtype)}, types={"x": kind, "y": kind})
    graph = load(save(proto, tmp_path), precision="fp32")
    assert graph.constants["w"].dtype == np.float32
    assert graph.inputs[0].dtype == graph.outputs[0].dtype == "float32"
    # float16 inputs and outputs stay what they are for callers
    outside = {"float16": "float16", "float64": "float32"}[dtype]
    assert [info.called.dtype for info in (*graph.inputs, *graph.outputs)] == [outside] * 2
    assert len(graph.warnings) == {"float16": 0, "float64": 3}[dtype]
    assert all(dtype in warning for warning in graph.warnings)


def test_damage_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], auto_pad="SAME_UPPER", strides=[2, 2]),
             helper.make_node("Split", ["y"], ["a", "b"], "split", axis=1),
             helper.make_node("Pad", ["a", "p"], ["c"], "pad"),
             helper.make_node("Slice", ["b", "i", "j"], ["d"], "slice")]
    data = model(nodes, {"x": IMAGE}, {"c": 4, "d": 4}, {
        "w": weights(4, 4, 3, 3), "p": np.arange(8), "i": np.array([0]), "j": np.array([2]),
    }).SerializeToString()
    random = np.random.default_rng(0)
    path = tmp_path / "model.onnx"
    refusals = 0
    for _ in range(400):
        damaged = bytearray(data)
        for position in random.integers(0, len(data), 2):
            damaged[position] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            resolve(load(path), 2)
        except GossamerError as error:
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 50
