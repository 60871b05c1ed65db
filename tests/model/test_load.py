"""Networks come as files, as bytes, as file objects, as models and as graphs, and with the outputs
that are asked for."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.errors import GossamerError, InputError, ModelError
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
    (3, "cannot load a int: expected"),
    (onnx.GraphProto(), "cannot load a GraphProto: expected an onnx.ModelProto"),
    (onnx.ModelProto(), "ONNX model: holds no network"),
])
def test_what_is_no_model_is_refused(form: object, text: str) -> None:
    with pytest.raises(GossamerError, match=text):
        gossamer.load(form)


def test_a_model_in_memory_cannot_name_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(two_outputs(), path, save_as_external_data=True, location="w.bin",
                    size_threshold=0)
    with pytest.raises(InputError, match=r"another file, 'w.bin'; give the path"):
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
