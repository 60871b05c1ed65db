"""Records of the workers of a Ray cluster, called without Ray."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gossamer.io.images import Preprocessing
from gossamer.model.graph import Graph, ValueInfo
from gossamer.ray import data, network
from gossamer.ray.cluster import Workers
from tests.recorded import Recorded, as_text
from tests.recorded.outcomes import outcome


class Plan:
    """A plan that gives the sums of its inputs."""

    def __init__(self, graph: Graph, count: int) -> None:
        self.graph, self.inputs, self.outputs = graph, graph.inputs, graph.outputs
        self._count = count

    def __call__(self, x: np.ndarray) -> Any:
        sums = np.stack([x.reshape(len(x), -1).sum(axis=1)] * 2, axis=1)[:, :, None]
        return tuple([sums] * self._count) if self._count > 1 else sums


def test_workers(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {}
    monkeypatch.chdir(tmp_path)
    for index in range(2):
        Image.fromarray(np.full((2, 2, 3), index + 1, np.uint8)).save(f"{index}.png")
    Path("bad.png").write_bytes(b"nothing")
    for count in (1, 2):
        outputs = [ValueInfo(f"y{index}", (None, 2, None)) for index in range(count)]
        graph = Graph("net", [ValueInfo("x", (None, 3, 2, 2))], outputs, [], {})

        shipped = SimpleNamespace(
            opened=lambda measured, batch, graph=graph, count=count: Plan(graph, count))
        monkeypatch.setattr(data, "_fetched", lambda given, shipped=shipped: shipped)
        block = {"file": np.arange(2), "x": np.arange(24.0).reshape(2, 3, 2, 2)}
        worker = data._BlockWorker(None, None, 2)
        for names in (("file", "x"), ("x",), ("file",), ()):
            found[f"block {count} {names}"] = outcome(
                worker, {name: block[name] for name in names},
                text=lambda made: as_text({name: array.tolist() for name, array in made.items()}))
        pictures = data._PictureWorker(None, None, 2, Preprocessing())
        for names in (("0.png", "1.png"), ("0.png", "bad.png", "1.png"), ("bad.png",),
                      ("none.png", "0.png")):
            found[f"pictures {count} {names}"] = outcome(
                pictures, {"file": np.array(names)},
                text=lambda made: as_text({name: array.tolist() for name, array in made.items()}))
    recorded("ray_workers", found)


def test_places_in_a_cluster(recorded: Recorded, monkeypatch: pytest.MonkeyPatch,
                             tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for processors, gpus, device, count in itertools.product(
            (0, 0.5, 1, 8), (0, 1, 2), ("host", "cuda:0", "opencl:0", "cuda:1"),
            (None, 0, 1, 2, 9)):
        resources = {"CPU": processors, **({"GPU": gpus} if gpus else {})}
        found[f"{processors} {gpus} {device} {count}"] = outcome(
            Workers.of, resources, device, count)
    now = [0.0]
    monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(network, "_LEASE_S", 10)
    measured = network.Measured()
    texts = []
    for step, (moment, kind, worker) in enumerate((
            (0, "a", "one"), (0, "a", "two"), (5, "a", "one"), (10, "a", "two"), (15, "a", "two"),
            (15.5, "a", "two"), (16, "b", "two"), (16, "a", "one"))):
        now[0] = moment
        texts.append(f"{step} {measured.ask(kind, worker)}")
    measured.keep("a", b"found")
    texts.append(str(measured.ask("a", "one")))
    found["leases"] = "; ".join(texts)
    monkeypatch.setattr(network, "find", lambda: SimpleNamespace(name="best"))
    Path("a.onnx").write_bytes(b"onnx")
    Path("b.plan").write_bytes(b"plan")
    for model, device in itertools.product(
            ("a.onnx", "b.plan", "none.onnx", "none.plan", "mobilenet_v2", b"bytes"),
            (None, "cuda:0")):
        found[f"shipped {model!r} {device}"] = outcome(
            network.Shipped.of, model, device, "quick")
    recorded("ray_places", found)
