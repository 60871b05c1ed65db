"""What all who train are given, and how each becomes a contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.bench.peers.peer import ReadyContender
from gossamer.device.base import Device
from gossamer.measure import Work
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import reference

RATE = 0.3
_LONGEST_US = 250_000.0
"""Of one execution: who needs longer for the epoch trains on its first samples only."""
_ROUND = 100
_WARM_UP = 2
"""Executions before the one that tells how long a sample takes: the second may record a graph."""


@dataclass(frozen=True)
class EpochWork:
    """One epoch over samples in their order, one sample an update, by one network or more of the
    same sizes: sigmoid units, squared error, learning rate RATE.

    problem: of the whole epoch. x: (samples, inputs), targets: (samples, outputs), start:
    (networks, weight_count), the parameters before; all float32. checked: the samples after which
    contenders are compared with the reference, and judged: the networks that are. inputs: what x
    is, where it is no data that anybody knows.
    """

    problem: BackpropProblem
    x: np.ndarray
    targets: np.ndarray
    start: np.ndarray
    checked: int
    judged: tuple[int, ...]
    inputs: str = ""

    @property
    def layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each layer the weights (networks, units, units before) and the biases (networks,
        units) to start from: views."""
        found, first = [], 0
        for units, before in self.problem.layer_shapes:
            middle, end = first + units * before, first + units * (before + 1)
            found.append((self.start[:, first:middle].reshape(-1, units, before),
                          self.start[:, middle:end]))
            first = end
        return found

    def settings(self) -> np.ndarray:
        """As the problem wants them."""
        return np.tile(np.array([RATE, 0, 0], np.float32), (self.problem.networks, 1))

    def order(self, samples: int) -> np.ndarray:
        """The first samples, for each network."""
        return np.tile(np.arange(samples, dtype=np.int32), (self.problem.networks, 1))

    def expected(self) -> np.ndarray:
        """(judged networks, weight_count): what the checked samples change, in float64."""
        judged, count = list(self.judged), self.checked
        problem = BackpropProblem(self.problem.sizes, count, count, networks=len(judged))
        inputs = [self.x[:count], self.targets[:count], self.order(count)[judged],
                  self.settings()[judged], self.start[judged]]
        return reference(problem, inputs, {})[0] - self.start[judged]


@dataclass(frozen=True)
class TrainingRun:
    """Networks in place. work trains them on some samples, from where they stand; parameters are
    then (networks, weight_count)."""

    work: Work
    parameters: Callable[[], np.ndarray]


def flat(layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(networks, weight_count), of what EpochWork.layers gives."""
    return np.concatenate([part.reshape(len(part), -1) for layer in layers for part in layer],
                          axis=1)


def ready(contender: str, device: Device, task: EpochWork, begin: Callable[[int], TrainingRun], layout: str,
          config: str) -> ReadyContender:
    """A contender, on the device that times it. begin(samples): networks at their start, to be
    trained on the first samples in every execution."""
    few = begin(task.checked)
    for _ in range(_WARM_UP):
        device.time(few.work)
    us = device.time(few.work) / task.checked
    del few
    most = int(_LONGEST_US / max(us, 1e-3)) // _ROUND * _ROUND
    samples = min(task.problem.samples, max(most, task.checked))
    run = begin(samples)

    def output(count: int) -> np.ndarray:
        judged = list(task.judged)[:count]
        checked = begin(task.checked)
        checked.work(None)
        device.synchronize()
        return checked.parameters()[judged] - task.start[judged]

    told = [config, "" if samples == task.problem.samples else f"first {samples} samples",
            task.inputs]
    return ReadyContender(contender, device, run.work, output, layout, ", ".join(filter(None, told)),
                 runs=samples * task.problem.networks)
