"""Candidates with times that a test sets, and candidates that are measured without a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import HostDevice
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.program import Layer, build
from gossamer.plan.tune.build import CandidateBuilds
from gossamer.plan.tune.candidate_checks import CandidateChecks, WrongNumbersError
from gossamer.plan.tune.cost import model_us
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.rows import Group, LayerCandidates, Row
from gossamer.plan.tune.timing import measure_row
from gossamer.plan.tune.tuner import Tuner

MakeTuner = Callable[..., Tuner]
"""Makes a tuner of an effort, with options."""

Known = Callable[..., None]
"""Makes algorithms known."""


class PacedDevice(HostDevice):
    """The host, on which an execution takes as long as its algorithm says."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_us = 0.0

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        before = self.elapsed_us
        work(stream)
        return self.elapsed_us - before


class Paced(HostIm2col):
    """A convolution whose configs n=0, n=1 and so on take the microseconds that are given.

    model_us: what the algorithm expects of each config. built: for each candidate that was built
    the first of the layer's weights, which tells layers apart, and n.
    """

    def __init__(self, name: str, *times_us: float, dense: bool = True, model_us: float = 100.0,
                 precisions: Sequence[str] = ("fp32",)) -> None:
        self.name = name  # type: ignore[misc]
        self.dense = dense  # type: ignore[misc]
        self.times_us = times_us
        self.model_us = model_us
        self.precisions = precisions
        self.built: list[tuple[float, int]] = []

    def expected_us(self, problem: Problem, variant: Variant, device: Device) -> float | None:
        return self.model_us

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        first = next(iter(super().variants(problem, device)))
        for n in range(len(self.times_us)):
            for precision in self.precisions:
                yield replace(first, config=(("n", n),), precision=precision)

    def prepare(self, weights: Any, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        first = float(next(iter(weights.arrays.values())).flat[0])
        self.built.append((first, int(str(variant["n"]))))
        return super().prepare(weights, problem, variant, device)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        super().launch(state, inputs, outputs, workspace, stream)
        assert isinstance(state.device, PacedDevice)
        state.device.elapsed_us += self.times_us[int(str(state.variant["n"]))]


def layer(name: str = "conv", *, mask: str = "", density: float = 1.0, seed: int = 0,
          channels: int = 4) -> Layer:
    """Returns a layer whose problem has zeros where `mask` names them, though its weights have
    none."""
    problem = Conv2dProblem(2, channels, 6, 6, 8, (3, 3),
                            weights_info=WeightsInfo(density, mask))
    rng = np.random.default_rng(seed)
    weights = {"weight": rng.standard_normal((8, channels, 3, 3)).astype(np.float32)}
    return Layer(name, [f"{name} in"], [f"{name} out"], problem,
                 weights)


def measured_alone(layer: Layer, device: Device, pairs: Sequence[tuple[Algorithm, Variant]],
                   samples: int, memory: CandidateMemory | None = None) -> list[Row]:
    """Measures candidates of one layer, all of them, and returns their rows in order."""
    builds = CandidateBuilds(device)
    builds.memory = memory or builds.memory
    group = Group(layer.problem, layer, device)
    node = LayerCandidates(layer, [], device)
    group.layers.append(node)
    node.rows = rows = [
        Row(group, algorithm, variant, model_us(algorithm, layer.problem, variant, device))
        for algorithm, variant in pairs]
    with builds.started():
        for row in rows:
            group.rows[row.key] = row
            builds.begin_row(row)
        while builds.rows:
            measure_row(*builds.next_built(), builds, samples)
    return rows


def why_wrong(candidates: CandidateChecks, algorithm: Algorithm, variant: Variant) -> str | None:
    """Returns why a candidate's numbers are wrong; None where they are right."""
    state = build(algorithm, candidates.weights, candidates.problem, variant, candidates.device)
    check = candidates.build_check(algorithm, variant)
    try:
        candidates.checked(algorithm, variant, state, check)
    except WrongNumbersError as error:
        return str(error)
    return None
