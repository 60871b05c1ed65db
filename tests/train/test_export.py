from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.model.metadata import ModelMetadata
from gossamer.train import MLP, Preparation
from gossamer.train.export import least_that_counts
from tests.tolerances import normalised_error, tolerance

Blobs = tuple[np.ndarray, np.ndarray]


@pytest.mark.parametrize(("sizes", "activation", "loss"), [
    ((4, 5, 3), "sigmoid", "squared_error"), ((4, 6, 5, 3), "tanh", "cross_entropy"),
    ((4, 5, 3), "relu", "squared_error"), ((4, 3), "relu", "cross_entropy")])
def test_every_network_as_onnx(device: Device, blobs: Blobs, tmp_path: Path,
                               sizes: tuple[int, ...], activation: str, loss: str) -> None:
    x, labels = blobs
    mlp = MLP.published(sizes, activation=activation, loss=loss, learning_rate=0.02,
                        initial="glorot",
              epochs=2, device="host").fit(x, labels)
    file = tmp_path / "net.onnx"
    mlp.save_onnx(file)
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(str(file))
    assert [value.name for value in (*session.get_inputs(), *session.get_outputs())] == ["x", "y"]
    expected = x.astype(np.float64)
    for index, (weight, bias) in enumerate(zip(mlp.coefs_, mlp.intercepts_, strict=True)):
        expected = expected @ weight + bias
        kind = activation
        if index == len(mlp.coefs_) - 1:
            kind = {"cross_entropy": "softmax", "squared_error":
                    "none" if activation == "relu" else activation}[loss]
        expected = {"sigmoid": lambda z: 1 / (1 + np.exp(-z)), "tanh": np.tanh,
                    "relu": lambda z: np.maximum(z, 0), "none": lambda z: z,
                    "softmax": lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)}[kind](
                        expected)
    results = [session.run(None, {"x": x})[0],
             gossamer.compile(gossamer.load(str(file)), device=device)(x),
             gossamer.compile(mlp.to_graph(), device=device)(x)]
    for y in results:
        assert y.shape == (120, 3)
        assert normalised_error(y, expected) <= tolerance("network")
        np.testing.assert_array_equal(mlp.classes_[y.argmax(1)], mlp.predict(x))


def test_names_of_classes_go_along(blobs: Blobs, tmp_path: Path) -> None:
    names = np.array(["ash", "elm", "oak"])[blobs[1]]
    file = tmp_path / "net.onnx"
    MLP.published((4, 3), epochs=1, device="host").fit(blobs[0], names).save_onnx(str(file))
    classes, outputs = onnx.load(file).metadata_props
    assert (classes.key, json.loads(classes.value)) == ("classes", ["ash", "elm", "oak"])
    assert (outputs.key, outputs.value) == ("outputs", "scores")
    mlp = MLP.published((4, 3), loss="cross_entropy", epochs=1, device="host")
    mlp.fit(blobs[0], names.astype(bytes)).save_onnx(file)
    (entry,) = onnx.load(file).metadata_props
    assert json.loads(entry.value) == ["ash", "elm", "oak"]
    for graph in (gossamer.load(str(file)), mlp.to_graph()):
        assert graph.metadata == ModelMetadata(("ash", "elm", "oak"))
    mlp.fit(blobs[0], np.eye(3)[blobs[1]]).save_onnx(file)
    assert gossamer.load(str(file)).metadata == mlp.to_graph().metadata == ModelMetadata()


@pytest.mark.parametrize(("key", "value"), [
    ("classes", "{0: 'cat'}"), ("classes", '{"a": 1}'), ("classes", "[[1]]"), ("picture", "[8, 8]"),
    ("picture", '{"height": 8, "width": 0, "channels": "grey"}'), ("picture", "null"),
    ("picture", '{"height": 8, "width": 8, "channels": "rgb"}'), ("outputs", "logits")])
def test_metadata_of_other_programs(blobs: Blobs, tmp_path: Path, key: str, value: str) -> None:
    file = tmp_path / "net.onnx"
    MLP.published((4, 3), epochs=1, device="host").fit(*blobs).save_onnx(file)
    model = onnx.load(file)
    onnx.helper.set_model_props(model, {key: value})
    onnx.save(model, file)
    assert gossamer.load(str(file)).metadata == ModelMetadata()


@pytest.mark.parametrize("preparation", [
    Preparation(scale=True), Preparation(True, 0.3), Preparation(True, 0.5, (10, 12), (8, 8), True),
    Preparation(False, 0.4, (8, 9), (8, 8)), Preparation(True, None, (9, 8), (8, 8))],
    ids=lambda p: f"{p.scale}-{p.threshold}-{p.pad}")
def test_a_file_that_takes_raw_samples(device: Device, tmp_path: Path,
                                       preparation: Preparation) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (30, 64)).astype(np.float32)
    if not preparation.scale:
        x /= 256
    prepared = preparation(x)
    mlp = MLP.published((prepared.shape[1], 5, 3), epochs=2, device="host").fit(
        prepared, np.arange(30) % 3)
    file = tmp_path / "net.onnx"
    mlp.save_onnx(file, preparation)
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    assert gossamer.load(str(file)).metadata.picture == (preparation.shape if preparation.grey
                                                        else None)
    mlp.save_onnx(tmp_path / "pure.onnx")
    expected = onnxruntime.InferenceSession(str(tmp_path / "pure.onnx")).run(
        None, {"x": prepared})[0]
    session = onnxruntime.InferenceSession(str(file))
    plan = gossamer.compile(gossamer.load(str(file)), device=device)
    results = [session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0],
             plan(x)]
    for y in results:
        assert normalised_error(y, expected) <= tolerance("network")
    assert session.run(None, {"x": x[:0]})[0].shape == plan(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("threshold", np.linspace(0.001, 1, 7))
def test_the_threshold_of_raw_samples(threshold: float) -> None:
    """A number whose quotient is just below the threshold becomes 0, one that reaches it 1."""
    least = least_that_counts(Preparation(True, threshold))
    around = np.array([np.nextafter(least, np.float32(0)), least])
    assert Preparation(True, threshold)(around[:, None]).ravel().tolist() == [0, 1]
    assert least_that_counts(Preparation(False, threshold)) == np.float32(threshold)


def test_a_preparation_that_does_not_fit(blobs: Blobs, tmp_path: Path) -> None:
    mlp = MLP.published((4, 3), epochs=1, device="host").fit(*blobs)
    for preparation, message in (
            (Preparation(pad=(3, 3), shape=(2, 2)), "pads to 3x3, but the network has 4 inputs"),
            (Preparation(shape=(5, 5)), "images are 5x5, but the network needs images of 4"),
            (Preparation(pad=(2, 2), shape=(3, 1)), "images are 3x1, which cannot be padded"),
            (Preparation(pad=(2, 2)), "its samples are not images; only images can be padded")):
        with pytest.raises(InputError, match=message):
            mlp.save_onnx(tmp_path / "net.onnx", preparation)
    assert not list(tmp_path.iterdir())


def test_bad_targets(blobs: Blobs, tmp_path: Path) -> None:
    mlp = MLP.published((4, 3), epochs=1, device="host")
    with pytest.raises(InputError, match="not trained yet"):
        mlp.save_onnx(tmp_path / "net.onnx")
    mlp.fit(*blobs)
    with pytest.raises(InputError, match=r"expected a name that ends in \.onnx"):
        mlp.save_onnx(tmp_path / "net")
    with pytest.raises(InputError, match="there is no folder"):
        mlp.save_onnx(tmp_path / "absent" / "net.onnx")
    assert not list(tmp_path.iterdir())
