"""The files of trained networks and the pictures of learning curves are recorded: nodes,
metadata, and what is drawn."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gossamer.model.metadata import Column
from gossamer.train import MLP, Preparation
from gossamer.train.export import curve, onnx_file, preparation_nodes
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome
from tests.train.frames import Frame


def _model_text(model: onnx.ModelProto) -> str:
    constants = [f"{tensor.name} {as_text(onnx.numpy_helper.to_array(tensor))}"
                 for tensor in model.graph.initializer]
    nodes = [f"{node.name} {node.op_type} {list(node.input)} {list(node.output)} "
             + " ".join(f"{attribute.name} {onnx.helper.get_attribute_value(attribute)}"
                        for attribute in node.attribute) for node in model.graph.node]
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    metadata = [f"{entry.key}={entry.value}".replace(": ", "=") for entry in model.metadata_props]
    return (f"{shape} {' '.join(node.op_type for node in model.graph.node)} "
            f"{digest([nodes, constants])} {metadata} {model.producer_name}")


LAYERS = [(np.ones((4, 6), np.float32), np.zeros(4, np.float32)),
          (np.ones((2, 4), np.float32), np.ones(2, np.float32))]
PREPARATIONS = [
    Preparation(), Preparation(True), Preparation(threshold=0.5), Preparation(True, 0.5),
    Preparation(shape=(2, 3)), Preparation(shape=(3, 3)), Preparation(pad=(2, 3), shape=(1, 2)),
    Preparation(pad=(2, 3), shape=(2, 2), grey=True, brightness=0.5),
    Preparation(True, None, (3, 2), (1, 1), True), Preparation(pad=(2, 2), shape=(1, 2)),
    Preparation(pad=(2, 3)), Preparation(pad=(2, 3), shape=(3, 3)),
    Preparation(True, 0.25, (6, 1), (3, 1)), Preparation(grey=True, shape=(2, 3)),
    Preparation(columns=(Column("a", 1.5), Column("b", None, ("x", "y"))))]


def test_models(recorded: Recorded) -> None:
    found = {}
    classes = {"none": None, "numbers": np.array([3, 7]), "texts": np.array(["a", "b"]),
               "bytes": np.array([b"a", b"\xff"])}
    for (index, preparation), last, (name, labels) in itertools.product(
            enumerate(PREPARATIONS), ("linear", "softmax", "sigmoid"), classes.items()):
        if index > 1 and (name != "texts" or last == "linear"):
            continue
        activations = ["relu", last]

        def made(preparation: Preparation = preparation, labels: Any = labels,
                 activations: list[str] = activations) -> onnx.ModelProto:
            model = onnx_file.model(LAYERS, activations, onnx_file.model_metadata(
                activations, labels, preparation if preparation != Preparation() else None))
            preparation_nodes.put_before(model, preparation)
            return model

        found[f"{index} {last} {name}"] = outcome(made, text=_model_text)
    for count in (1, 3):
        layers = [(np.ones((6, 6), np.float32), np.zeros(6, np.float32))] * count
        found[f"{count} layers"] = _model_text(onnx_file.model(
            layers, ["tanh"] * count, onnx_file.model_metadata(["tanh"], None)))
    for threshold, scale in itertools.product(
            (0.0, 1e-9, 0.1, 0.3, 0.5, 0.7, 0.999, 1.0, 1.1), (False, True)):
        found[f"least {threshold} {scale}"] = as_text(
            preparation_nodes.least_that_counts(Preparation(scale, threshold)))
    recorded("models", found)


def test_saved_networks(tmp_path: Path, recorded: Recorded) -> None:
    x, found = np.arange(24.0).reshape(4, 6) / 8, {}
    networks = {"array": MLP(hidden=(), device="host", epochs=1).fit(x, [0, 1, 0, 1]),
                "frame": MLP(hidden=(), device="host", epochs=1).fit(
                    Frame([*"abcdef"], x.tolist()), [0.5, 1, 2, 1])}
    for (name, mlp), (index, preparation) in itertools.product(
            networks.items(), enumerate([None, *PREPARATIONS])):
        mlp.coefs_ = [np.ones_like(part) for part in mlp.coefs_]
        mlp.intercepts_ = [np.ones_like(part) for part in mlp.intercepts_]

        def saved(mlp: MLP = mlp, preparation: Preparation | None = preparation) -> Any:
            mlp.save_onnx(tmp_path / "n.onnx", preparation)
            return onnx.load(tmp_path / "n.onnx")

        found[f"{name} {index}"] = outcome(saved, hidden=tmp_path, text=_model_text)
        if preparation is None:
            found[f"{name} graph"] = as_text(mlp.to_graph().metadata)
            for wrong in ("n.txt", "no/n.onnx", "n.ONNX"):
                found[f"{name} {wrong}"] = outcome(
                    lambda mlp=mlp, wrong=wrong: mlp.save_onnx(tmp_path / wrong), hidden=tmp_path)
    recorded("saved_networks", found)


class _Drawn:
    """Notes the calls of its methods, and those of the parts that it gives."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, method: str) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            shown = [value if not isinstance(value, range) else list(value) for value in given]
            self._calls.append(f"{self._name}.{method} " + " ".join(
                f"{value:.6g}" if isinstance(value, float) else str(value) for value in shown)
                + "".join(f" {key}={value}" for key, value in sorted(named.items())))
            return tuple(_Drawn(name, self._calls) for name in ("upper", "lower"))

        if method in ("xaxis", "yaxis"):
            return _Drawn(f"{self._name}.{method}", self._calls)
        return noted


def test_curves(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    pytest.importorskip("matplotlib")
    calls: list[str] = []
    monkeypatch.setattr(curve, "new_figure", lambda *size: calls.append(str(size)) or _Drawn(
        "figure", calls))
    monkeypatch.setattr(curve, "as_png", lambda figure: b"")
    found = {}
    for losses, of_labels, accuracies in itertools.product(
            ([], [0.5], [2.0, 0.5, 0.25], [1.0, 0.0], [1.0, -0.5], [3.0, 1.0, 2.0]), (False, True),
            ({}, {"training": {1: 0.5, 3: 0.75}}, {"training": {1: 0.5}, "test": {2: 0.25}})):
        calls.clear()
        curve.png("a title", losses, accuracies, of_labels)
        found[f"{losses} {of_labels} {accuracies}".replace(": ", "=")] = " | ".join(
            call.partition(" object at")[0] for call in calls)
    recorded("curves", found)
