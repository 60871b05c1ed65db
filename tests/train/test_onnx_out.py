from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.train import MLP
from tests.tolerances import normalised_error, tolerance

Blobs = tuple[np.ndarray, np.ndarray]


@pytest.mark.parametrize(("sizes", "activation", "loss"), [
    ((4, 5, 3), "sigmoid", "squared_error"), ((4, 6, 5, 3), "tanh", "cross_entropy"),
    ((4, 5, 3), "relu", "squared_error"), ((4, 3), "relu", "cross_entropy")])
def test_every_network_as_onnx(place: Device, blobs: Blobs, tmp_path: Path,
                               sizes: tuple[int, ...], activation: str, loss: str) -> None:
    x, labels = blobs
    mlp = MLP(sizes, activation=activation, loss=loss, learning_rate=0.02, initial="glorot",
              epochs=2, device="host").fit(x, labels)
    file = tmp_path / "net.onnx"
    mlp.save_onnx(file)
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(str(file))
    assert [each.name for each in (*session.get_inputs(), *session.get_outputs())] == ["x", "y"]
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
    found = [session.run(None, {"x": x})[0],
             gossamer.compile(gossamer.load(str(file)), device=place)(x),
             gossamer.compile(mlp.to_graph(), device=place)(x)]
    for y in found:
        assert y.shape == (120, 3)
        assert normalised_error(y, expected) <= tolerance("network")
        np.testing.assert_array_equal(mlp.classes_[y.argmax(1)], mlp.predict(x))


def test_names_of_classes_go_along(blobs: Blobs, tmp_path: Path) -> None:
    names = np.array(["ash", "elm", "oak"])[blobs[1]]
    file = tmp_path / "net.onnx"
    MLP((4, 3), epochs=1, device="host").fit(blobs[0], names).save_onnx(str(file))
    (entry,) = onnx.load(file).metadata_props
    assert (entry.key, json.loads(entry.value)) == ("classes", ["ash", "elm", "oak"])
    MLP((4, 3), epochs=1, device="host").fit(blobs[0], names.astype(bytes)).save_onnx(file)
    (entry,) = onnx.load(file).metadata_props
    assert json.loads(entry.value) == ["ash", "elm", "oak"]


def test_bad_targets(blobs: Blobs, tmp_path: Path) -> None:
    mlp = MLP((4, 3), epochs=1, device="host")
    with pytest.raises(InputError, match="not trained yet"):
        mlp.save_onnx(tmp_path / "net.onnx")
    mlp.fit(*blobs)
    with pytest.raises(InputError, match=r"expected a name that ends in \.onnx"):
        mlp.save_onnx(tmp_path / "net")
    with pytest.raises(InputError, match="there is no folder"):
        mlp.save_onnx(tmp_path / "absent" / "net.onnx")
    assert not list(tmp_path.iterdir())
