"""The algorithm that is chosen for many problems on devices of several kinds, what would be
measured, and how epochs are divided into launches: all of it is recorded."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.host import HostDevice
from gossamer.measure import SLACK
from gossamer.ops.algorithm import State
from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.registry import OPS
from gossamer.plan.program import Layer
from gossamer.train.data.samples import Samples
from gossamer.train.loop import algorithm_choice
from gossamer.train.loop.algorithm_choice import AlgorithmChoice, choose
from gossamer.train.loop.trainer import Trainer
from tests.ops.candidates import DEVICES, NamingDevice
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome
from tests.simulated.device import OPENCL

PROBLEMS: list[dict[str, Any]] = [
    {}, {"sizes": (1024, 32, 10)}, {"sizes": (1024, 32, 10), "velocity": True},
    {"sizes": (784, 300, 100, 10)}, {"sizes": (784, 128, 10), "batch": 16}, {"adam": True},
    {"adam": True, "batch": 3}, {"weighted": True}, {"networks": 3}, {"sizes": (4, 3)},
    {"sizes": (60_000, 70_000, 3)}, {"loss": "cross_entropy"}, {"sizes": (30, 64, 32)},
    {"networks": 65_536}, {"networks": 70_000, "batch": 70_000, "adam": True}]


class _Real(NamingDevice):
    """A device that is not simulated as far as gossamer knows."""

    is_simulator = False  # type: ignore[assignment]


def _text(choice: AlgorithmChoice) -> str:
    problem = BackpropProblem((20, 5, 3), 9, 8)
    variant = choice.variant(problem)
    return (f"{choice.device.name} {choice.algorithm.name} {choice.config} {choice.samples} "
            f"{variant.config_text}")


def test_what_is_chosen(recorded: Recorded) -> None:
    devices: dict[str, Device] = {name: of_kind() for name, of_kind in DEVICES.items()}
    devices["a processor"] = _Real(OPENCL, on_processors=True)
    devices["a card"] = _Real(OPENCL)
    found = {}
    for (index, values), (name, device), (samples, algorithm) in itertools.product(
            enumerate(PROBLEMS), devices.items(),
            ((1, None), (255, None), (60_000, None), (300_000, "per_step"), (20, "persistent"),
             (20, "blocked"), (20, "numpy"), (9, "other"))):
        if algorithm in ("persistent", "numpy") and (index + samples) % 3:
            continue
        if name == "a card" and samples != 255:
            continue
        problem = BackpropProblem(**{"sizes": (20, 5, 3), "rows": 9, "samples": samples, **values})
        found[f"{index} {name} {samples} {algorithm}"] = outcome(
            lambda problem=problem, device=device, algorithm=algorithm: choose(
                problem, device, None, algorithm), text=_text)
    for index, effort in enumerate(("quickly", "", 3)):
        found[f"effort {index}"] = outcome(
            lambda effort=effort: choose(problem, devices["host"], effort, None), text=_text)
    recorded("algorithm_choices", found)


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    found = {}
    for samples, networks, batch in itertools.product(
            (0, 1, 255, 256, 257, 511, 512, 2047, 2048, 2049, 60_000), (0, 1, 2, 16, 17, 200),
            (1, 2, 100, 256, 257, 3000)):
        problem = BackpropProblem((20, 5, 3), 9, samples, batch=batch, networks=networks)
        measured = algorithm_choice._measured_problem(problem)
        if networks in (1, 17) or batch in (1, 257):
            found[f"{samples} {networks} {batch}"] = (
                f"{measured.rows} {measured.samples} "
                f"{as_text(algorithm_choice._lengths(problem)) if networks == 1 else ''}")
    names = [algorithm.name for algorithm in OPS["backprop"].algorithms]
    costs: dict[str, float] = {}

    class _Tuner:
        def __init__(self, device: Device, effort: str) -> None:
            self.effort = effort

        def measure(self, layer: Layer, algorithms: Any, device: Device) -> Any:
            seen.append(f"{layer.inputs} {layer.outputs} {self.effort} {layer.problem.describe()} "
                        f"{[algorithm.name for algorithm in algorithms]}")
            return [SimpleNamespace(algorithm=algorithm, cost=costs[algorithm.name] + index / 1e4,
                                    variant=variant)
                    for algorithm in algorithms
                    for index, variant in enumerate(itertools.islice(
                        algorithm.variants(layer.problem, device), 2))]

    monkeypatch.setattr(algorithm_choice, "Tuner", _Tuner)
    monkeypatch.setattr(algorithm_choice, "usable", lambda layer, candidates, device: candidates)
    devices = {name: DEVICES[name]() for name in ("h200", "small", "host")}
    for turn, factors in enumerate(itertools.product((1.0, 1 + SLACK, 1.03), repeat=3)):
        costs.update(zip(names, (*factors, 1.0), strict=True))
        for (name, device), values in itertools.product(devices.items(), (
                {}, {"adam": True}, {"sizes": (60_000, 70_000, 3)}, {"weighted": True})):
            seen: list[str] = []
            problem = BackpropProblem(**{"sizes": (20, 5, 3), "rows": 9, "samples": 60_000,
                                         **values})
            text = outcome(lambda problem=problem, device=device: choose(
                problem, device, "quick", None), text=_text)
            if turn % 4 == 0 or name == "h200":
                found[f"{factors} {name} {values}".replace(": ", "=")] = f"{text}; {seen}"
    recorded("algorithms_measured", found)


class _Noting(NumpyBackprop):
    """Trains nothing, but notes the order of each launch, takes the order as losses, and adds 1 to
    the parameters."""

    name = "noting"

    def launch(self, state: State, inputs: Any, outputs: Any, workspace: Buffer | None,
               stream: Any = None) -> None:
        order = np.frombuffer(inputs[2].bytes, np.int32)[:state.problem.inputs[2].size]
        loss = np.frombuffer(outputs[1].bytes, np.float32)[:state.problem.outputs[1].size]
        loss[:] = order + 1
        parameters = np.frombuffer(outputs[0].bytes, np.float32)
        parameters[:] += 1
        NOTED.append(f"{state.problem.samples}.{digest(order)[:4]}.{len(inputs)}")


NOTED: list[str] = []


def test_epochs_in_pieces(recorded: Recorded) -> None:
    found = {}
    for graph, samples, length, networks, weighted in itertools.product(
            (False, True), (1, 5, 16, 17, 40), (1, 5, 16, 100), (1, 2, 3), (False, True)):
        if samples // length > 9 or (weighted and networks == 3):
            continue
        NOTED.clear()

        class _Device(HostDevice):
            def capture(self, work: Any, stream: Any = None, repeats: int = 1) -> Any:
                NOTED.append("captured")
                return lambda stream=None: work(stream)

        device = _Device()
        device.limits = replace(device.limits, graph=graph)
        problem = BackpropProblem((2, 3), 50, samples, networks=networks, weighted=weighted)
        data = Samples(np.zeros((50, 2), np.float32), np.zeros((50, 3), np.float32),
                       weights=np.ones(50, np.float32) if weighted else None)
        trainer = Trainer(problem, data, np.zeros(problem.inputs[4].shape, np.float32),
                          AlgorithmChoice(device, _Noting(), None, length))
        order = np.arange(networks * samples, dtype=np.int32).reshape(networks, samples) % 50
        settings, texts = np.zeros((networks, 3), np.float32), []
        for epoch in range(3):
            texts.append(",".join(f"{mean:.6g}" for mean in trainer.run(
                order if epoch < 2 else order[:, ::-1].copy(), settings)))
            texts.append(f"{digest(trainer.losses())[:4]} {trainer.parameters().ravel()[0]:g}")
            if epoch != 1:
                trainer.accept()
            texts.append(f"{trainer.parameters().ravel()[-1]:g} {trainer.before(1).ravel()[0]:g} "
                         f"{trainer.before(2).ravel()[0]:g} {trainer.begun} {trainer.accepted}")
        found[f"{graph} {samples} by {length}, {networks} networks{', weighted' * weighted}"] = (
            f"{'; '.join(texts)} | {digest(NOTED)} {len(NOTED)} {NOTED[0]} {NOTED[-1]}")
    recorded("epochs_in_pieces", found)
