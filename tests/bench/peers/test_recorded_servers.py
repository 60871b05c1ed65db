"""Records of the servers that are compared with `gossamer serve`, with stand-ins for PyTorch and
LitServe."""

from __future__ import annotations

import asyncio
import base64
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gossamer.bench.reference import reference
from gossamer.io.images import Preprocessing
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from tests.bench.networks import detector
from tests.bench.stand_ins import torch_stand_in
from tests.bench.stand_ins.arrays import module
from tests.bench.stand_ins.torch_tensors import CALLS
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome
from tests.tolerances import normalised_error, tolerance

pytest.importorskip("fastapi")
pytestmark = [pytest.mark.usefixtures("needs_torch"), pytest.mark.skipif(
    find_spec("torch") is not None, reason="records have the calls of torch's stand-in")]
PREPARED = Preprocessing(scale=1 / 255, mean=(0.5, 0.25, 0.125), std=(0.5, 1.0, 2.0))


def pictures(outputs: int = 1) -> Graph:
    """Returns a network that says how pictures of 4 x 5 pixels are prepared."""
    build = GraphBuilder("pictures")
    x = build.input("x", (None, 3, 4, 5))
    weight = np.random.default_rng(3).integers(-2, 3, (6, 3, 3, 3)).astype(np.float32)
    y = build.conv2d(x, build.constant("w", weight))
    build.output(y, (None, 6, 2, 3))
    if outputs > 1:
        build.output(build.apply("relu", y), (None, 6, 2, 3))
    graph = build.finish()
    return replace(graph, metadata=replace(graph.metadata, preprocessing=PREPARED))


class _LitAPI:
    def __init__(self, **options: Any) -> None:
        self.options = options


@pytest.fixture
def litserve_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setitem(sys.modules, "litserve", module("litserve", LitAPI=_LitAPI))
    name = "gossamer.bench.peers.litserve_server"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    del sys.modules[name]


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {"pictures": pictures, "two": lambda: pictures(2), "detector": detector}
    monkeypatch.setattr("gossamer.load", lambda name: graphs[name]())
    CALLS.clear()


def test_networks_of_pictures(recorded: Recorded) -> None:
    from gossamer.bench.peers.http_servers import network, photo_shape

    rng = np.random.default_rng(5)
    found = {"shape": str(photo_shape(pictures())),
             "not prepared": outcome(network, "detector", "cpu", 1)}
    factors, shifts = (np.float32(each).reshape(3, 1, 1) for each in zip(
        *((1 / (255 * std), -mean / std)
          for mean, std in zip(PREPARED.mean, PREPARED.std, strict=True)), strict=True))
    for name, device in (("pictures", "cpu"), ("pictures", "cuda:1"), ("two", "host")):
        for most in (1, 2, 3, 4, 5):
            CALLS.clear()
            compute = network(name, device, most)
            found[f"{name} {device} {most}"] = digest(CALLS) + " " + " / ".join(CALLS)
            for count in (1, 2, 3, 4):
                photos = rng.integers(0, 256, (count, 4, 5, 3)).astype(np.uint8)
                prepared = photos.transpose(0, 3, 1, 2) * factors + shifts
                case = f"{name} {device} {most}, {count} photos"
                try:
                    result = compute(photos)
                except ValueError:
                    # Python's message differs between its versions
                    found[case] = "more photos than the largest module takes"
                    continue
                error = normalised_error(result, reference(pictures(), prepared))
                found[case] = f"{result.shape} {error < tolerance('network')}"
    recorded("http_networks", found)


class _Request:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def body(self) -> bytes:
        return self._body


def test_answers(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.bench.peers import http_servers

    served: list[Any] = []
    monkeypatch.setattr(http_servers.uvicorn, "run",
                        lambda app, **options: served.append((app, options)))
    made: list[Any] = []

    def network(*arguments: Any) -> Any:
        made.append(arguments)
        return lambda photos: photos[:, 0, 0]

    monkeypatch.setattr(http_servers, "network", network)
    found = {}
    for is_empty in (False, True):
        http_servers._serve("pictures", "cuda:1", 8001, is_empty=is_empty)
        app, options = served[-1]
        (route,) = (each for each in app.routes if each.path == "/predict")
        found[f"options {is_empty}"] = f"{options} {route.methods} {made}"
        for count in (1, 2):
            body = bytes(range(60)) * count
            answer = asyncio.run(route.endpoint(_Request(body)))
            found[f"{count} {is_empty}"] = (
                f"{len(answer.body)} {answer.body[:8].hex()} {answer.media_type}")
    recorded("http_answers", found)


def test_litserve(recorded: Recorded, litserve_server: ModuleType,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def network(*arguments: Any) -> Any:
        made.append(arguments)
        return lambda photos: photos.reshape(len(photos), -1)[:, :2]

    monkeypatch.setattr(litserve_server, "network", network)
    api = litserve_server.PhotoApi("pictures", "cuda:1")
    api.setup("cpu")
    found = {"options": str(api.options), "made": str(made)}
    photos = [api.decode_request({"photos": base64.b64encode(bytes(range(first, first + 60)))})
              for first in (0, 7)]
    for case, given in (("one", photos[0]), ("array of one", photos[0][None]),
                        ("two", api.batch(photos))):
        outputs = api.unbatch(api.predict(given))
        found[case] = f"{given.shape} {[api.encode_response(output) for output in outputs]}"
    recorded("litserve", found)


class _Library:
    """A library of networks whose channels have drawn scales."""

    scales = (np.float32([1, 1]), np.float32([1e-4, 1e-4]), np.float32([1e-3, 1e-3]),
              np.float32([-1e-4, -1e-4]), np.float32([1e-4, 2e-4]), np.float32([0]),
              np.float32([[0, 0]]), np.float32([[0, 0], [0, 0]]))

    @classmethod
    def make(cls) -> Any:
        import torch
        from torch import nn

        made = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.ReLU())
        made[0].weight.array = np.random.default_rng(4).integers(-2, 3, (2, 3, 3, 3)).astype("f4")
        for index, scale in enumerate(cls.scales):
            setattr(made[3], f"scale_{index}", torch.from_numpy(scale.copy()))
            setattr(made[3], f"bias_{index}_bias", torch.from_numpy(scale.copy()))
        made[3]._named = lambda: vars(made[3]).items()
        return made

    @classmethod
    def create_model(cls, name: str) -> Any:
        made = cls.make()
        made.default_cfg = {"input_size": (3, 5, 6)} if name == "small" else {}
        return made

    @classmethod
    def get_model(cls, name: str, weights: None) -> Any:
        return cls.make()


def test_made_modules(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gossamer.bench import modules

    libraries: list[str] = []
    monkeypatch.setattr(modules, "_library", lambda name: libraries.append(name) or _Library)
    monkeypatch.setattr(modules, "_SIZE", 7)
    found = {}
    for name in ("timm/small", "timm/other", "resnet18"):
        for dtype in (torch.float32, torch.float16):
            made, size = modules.made(name, torch_stand_in.Device("cuda", 1), dtype)
            parts = [vars(made[3])[name].array.astype(float).ravel().round(5).tolist()
                     for index in range(len(_Library.scales))
                     for name in (f"scale_{index}", f"bias_{index}_bias")]
            statistics = [each.array.astype(float).round(1)
                          for each in (made[1].running_mean, made[1].running_var)]
            found[f"{name} {dtype}"] = (
                f"{size} {libraries[-1]} {made[0].weight!r} {parts} {made[1].momentum} "
                f"{made.training} {[each.tolist() for each in statistics]}")
    found["multiplications"] = str(modules.multiplications(made, torch.ones(
        1, 3, 7, 7, device=torch_stand_in.CPU, dtype=torch.float32)))
    recorded("made_modules", found)
