"""Networks come as files, as bytes, as file objects, as models and as graphs, and with the outputs
that are asked for."""

from __future__ import annotations

import gzip
import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.errors import GossamerError, GossamerWarning, InputError, ModelError
from gossamer.model.graph import Graph
from tests.model.onnx_models import model, save, weights

X = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)


def two_outputs() -> onnx.ModelProto:
    """Returns a network of two outputs, of which the second needs more than the first."""
    return model([helper.make_node("Relu", ["x"], ["a"], "first"),
                  helper.make_node("MatMul", ["a", "w"], ["b"], "second")],
                 {"x": ("N", 4)}, {"a": 2, "b": 2}, {"w": weights(4, 3)})


def forms(folder: Path) -> dict[str, object]:
    """Returns one network in every form that load() takes."""
    proto = two_outputs()
    data = proto.SerializeToString()
    path = save(proto, folder)
    return {"text": str(path), "path": path, "bytes": data, "bytearray": bytearray(data),
            "memoryview": memoryview(data), "packed": gzip.compress(data),
            "file object": io.BytesIO(data), "model": proto, "graph": gossamer.load(path)}


@pytest.mark.parametrize("form", ["text", "path", "bytes", "bytearray", "memoryview", "packed",
                                  "file object", "model", "graph"])
def test_every_form_gives_the_same_numbers(form: str, tmp_path: Path) -> None:
    a, b = gossamer.compile(forms(tmp_path)[form], "host")(X)
    np.testing.assert_array_equal(a, np.maximum(X, 0))
    np.testing.assert_allclose(b, np.maximum(X, 0) @ weights(4, 3), rtol=1e-5, atol=1e-5)


def test_a_name_that_says_nothing_is_that_of_the_file(tmp_path: Path) -> None:
    for name, kept in (("main_graph", "model"), ("resnet", "resnet")):
        (proto := two_outputs()).graph.name = name
        assert gossamer.load(save(proto, tmp_path)).name == kept


def test_a_model_in_memory_is_left_as_it_is() -> None:
    proto = two_outputs()
    before = proto.SerializeToString(deterministic=True)
    gossamer.compile(proto, "host")(X)
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(("form", "text"), [
    (b"not a network" * 9, "ONNX bytes: not readable"),
    (b"", "ONNX bytes: holds no network"),
    (gzip.compress(b"x" * 999)[:-9], "ONNX bytes: is cut short or damaged"),
    (io.StringIO("text"), "open it in mode 'rb'"),
    (3, "cannot load an int: expected"),
    (onnx.GraphProto(), "cannot load a GraphProto: expected an onnx.ModelProto"),
    (onnx.ModelProto(), "ONNX model: holds no network"), (".", "'.' is a folder; expected an ONNX"),
], ids=["no ONNX", "empty", "damaged", "text", "number", "graph only", "no graph", "folder"])
def test_what_is_no_model_is_refused(form: object, text: str) -> None:
    with pytest.raises(GossamerError, match=text):
        gossamer.load(form)


def test_a_model_in_memory_cannot_name_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(two_outputs(), path, save_as_external_data=True, location="w.bin",
                    size_threshold=0)
    with pytest.raises(InputError, match=r"another file, 'w.bin'; pass the path"):
        gossamer.load(path.read_bytes())
    gossamer.load(onnx.load(path))
    with pytest.raises(InputError, match="takes no further files"):
        gossamer.load(path.read_bytes(), "more.bin")


@pytest.mark.parametrize("form", ["path", "graph"])
def test_outputs_are_chosen(form: str, tmp_path: Path) -> None:
    network = forms(tmp_path)[form]
    plan = gossamer.compile(network, "host", outputs=["b", "a"])
    b, a = plan(X)
    assert b.shape == (2, 3) and a.shape == (2, 4)
    first = gossamer.load(network, outputs=["a"])
    assert [info.name for info in first.outputs] == ["a"]
    assert [node.name for node in first.nodes] == ["first"]
    for names, text in ((["c"], "has no output 'c'; its outputs: a, b"),
                        (["a", "a"], "asked for twice"), ([], "no output is asked for")):
        with pytest.raises(InputError, match=text):
            gossamer.load(network, outputs=names)


def test_outputs_of_the_zoo_are_chosen() -> None:
    (info,) = gossamer.load("mobilenet_v2").outputs
    assert gossamer.load("mobilenet_v2", outputs=[info.name]).outputs == [info]
    with pytest.raises(InputError, match="has no output 'c'"):
        gossamer.load("mobilenet_v2", outputs=["c"])


def test_what_only_other_outputs_need_may_be_unknown() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["a"]),
                   helper.make_node("Warp", ["a"], ["b"], domain="my.ops")],
                  {"x": ("N", 4)}, {"a": 2, "b": 2})
    with pytest.raises(ModelError, match="Warp"):
        gossamer.load(proto)
    np.testing.assert_array_equal(gossamer.compile(proto, "host", outputs="a")(X),
                                  np.maximum(X, 0))


def test_nodes_come_in_any_order() -> None:
    proto = two_outputs()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    graph: Graph = gossamer.load(proto)
    assert [node.name for node in graph.nodes] == ["first", "second"]


def float64_network() -> onnx.ModelProto:
    return model([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": ("N", 4)}, {"y": 2},
                 {"w": weights(4).astype(np.float64)},
                 types=dict.fromkeys("xy", onnx.TensorProto.DOUBLE))


def test_layers_bear_the_path_of_their_module() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["a"], "node_relu"),
                   helper.make_node("Relu", ["a"], ["b"], "node_relu_1"),
                   helper.make_node("Abs", ["b"], ["y"], "node_abs")], {"x": ("N", 4)}, {"y": 2})
    for node, scopes in zip(proto.graph.node, (
            "['', 'layer1', 'layer1.0', 'relu']", "['', 'layer1', 'layer1.0', 'relu_1']",
            "['', 'abs']"), strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert [node.name for node in gossamer.load(proto).nodes] == [
        "layer1.0/Relu", "layer1.0/Relu_2", "node_abs"]


def test_a_layer_with_a_folded_batch_norm_bears_its_own_path() -> None:
    proto = model([helper.make_node("Conv", ["x", "stem.0.weight"], ["y"], "node_Conv_25")],
                  {"x": ("N", 3, 5, 5)}, {"y": 4}, {"stem.0.weight": weights(2, 3, 1, 1)})
    proto.graph.node[0].metadata_props.add(
        key="pkg.torch.onnx.name_scopes",
        value="['', 'stem', 'stem.1', '_native_batch_norm_legit_no_training']")
    assert [node.name for node in gossamer.load(proto).nodes] == ["stem.0/Conv"]


def test_narrowing_is_said_once() -> None:
    with pytest.warns(GossamerWarning) as caught:
        graph = gossamer.load(float64_network(), precision="fp32")
    texts = [str(warning.message) for warning in caught]
    assert texts == graph.warnings and len(texts) == 3
    assert "1 weights are float64 (first: 'w')" in texts[0]
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        gossamer.compile(graph, "host")


def test_float64_is_kept_where_no_precision_is_given() -> None:
    x = np.random.default_rng(2).normal(size=(3, 4))
    with warnings.catch_warnings(action="error"):
        plan = gossamer.compile(float64_network(), "host")
    assert [info.dtype for info in (*plan.inputs, *plan.outputs)] == ["float64", "float64"]
    expected = x * weights(4).astype(np.float64)
    np.testing.assert_array_equal(plan(x), expected)
    assert plan(x.astype(np.float32)).dtype == np.float64
    with pytest.warns(GossamerWarning):
        narrowed = gossamer.compile(float64_network(), "host", effort="quick", precision="fp32")
    np.testing.assert_array_equal(narrowed(x.astype(np.float32)), np.float32(
        x.astype(np.float32) * weights(4)))


def test_float64_within_a_network_of_float32_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]),
             helper.make_node("Cast", ["a"], ["b"], to=onnx.TensorProto.DOUBLE),
             helper.make_node("Mul", ["b", "s"], ["c"]),
             helper.make_node("Cast", ["c"], ["d"], to=onnx.TensorProto.FLOAT),
             helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(
                 np.float64(2))),
             helper.make_node("Cast", ["k"], ["l"], to=onnx.TensorProto.FLOAT),
             helper.make_node("Mul", ["d", "l"], ["y"])]
    proto = model(nodes, {"x": ("N", 4)}, {"y": 2}, {"s": np.float64(1 / 3)})
    assert [node.op for node in gossamer.load(proto).nodes] == [
        "elementwise", "onnx_part", "elementwise"]
    assert {node.op for node in gossamer.load(proto, precision="fp32").nodes} == {
        "elementwise", "cast"}
    monkeypatch.setattr("gossamer.onnx_model.has_runtime", lambda: False)
    assert {node.op for node in gossamer.load(proto).nodes} == {"elementwise", "cast"}


def test_a_size_of_0_is_no_open_dimension() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 0, 3)}, {"y": 3})
    assert gossamer.load(proto).inputs[0].shape == (None, 0, 3)
    plan = gossamer.compile(proto, "host")
    assert plan(np.empty((2, 0, 3), np.float32)).shape == (2, 0, 3)
    with pytest.raises(InputError, match="has shape 2x1x3, expected Nx0x3"):
        plan(np.zeros((2, 1, 3), np.float32))
    negative = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", -1, 3)}, {"y": 3})
    assert gossamer.load(negative).inputs[0].shape == (None, None, 3)


def chain(count: int, megabytes: int) -> onnx.ModelProto:
    """Returns a network whose weight is made of constants, each larger than the limit's
    256 MiB divided by `count`, one after another."""
    size = megabytes * 2**18
    nodes = [helper.make_node("Expand", ["one", "shape"], ["w0"])]
    nodes += [helper.make_node("Neg", [f"w{index}"], [f"w{index + 1}"]) for index in range(count)]
    nodes += [helper.make_node("Reshape", [f"w{count}", "form"], ["w"]),
              helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    return model(nodes, {"x": ("N", 1, 1, 1)}, {"y": 4},
                 {"one": np.ones(1, np.float32), "shape": np.array([size]),
                  "form": np.array([size, 1, 1, 1])})


def test_constants_that_are_read_no_more_do_not_count() -> None:
    graph = gossamer.load(chain(6, 30))
    assert graph.constants["w"].nbytes == 30 * 2**20 and "w3" not in graph.constants


@pytest.mark.slow
@pytest.mark.usefixtures("without_onnxruntime")
def test_constants_beyond_the_limit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"Conv 'conv': the weight comes from 'w', a constant "
                                         r"computed from other constants.*set GOSSAMER_MAX_BYTES"):
        gossamer.load(chain(1, 140))
    monkeypatch.setenv("GOSSAMER_MAX_BYTES", "2G")
    gossamer.load(chain(1, 140))
