"""The training work that all contenders do, and the preparation of a contender for timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.device.base import Device
from gossamer.measure import Work
from gossamer.ops.backprop.problem import BackpropProblem, reference
from gossamer_bench.contender import ReadyContender

RATE = 0.3
"""Learning rate of every contender."""
_LONGEST_US = 250_000.0
"""Most microseconds of one execution. A contender that needs longer for the epoch trains on the
first samples only."""
_ROUND = 100
"""A shortened epoch has a multiple of this number of samples."""
_WARM_UP = 2
"""Executions that precede the execution by which the time of a sample is measured. The second of
these earlier executions may record a CUDA graph."""


@dataclass(frozen=True)
class EpochWork:
    """One epoch of online training of one network, or of several networks with the same sizes. The
    networks have sigmoid units, squared error and the learning rate RATE, and take the samples in
    order.

    problem: back-propagation problem of the complete epoch.
    x: inputs of the samples (samples, inputs).
    targets: wanted outputs (samples, outputs).
    start: parameters before training (networks, weight_count). All arrays are float32.
    checked: number of samples after which contenders are compared with the reference.
    judged: indices of the networks that are compared with the reference.
    inputs: description of x; empty where x is MNIST.
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
        """Weights (networks, units, units of the layer before) and biases (networks, units) of each
        layer before training, as views of `start`."""
        layers, first = [], 0
        for units, before in self.problem.layer_shapes:
            middle, end = first + units * before, first + units * (before + 1)
            layers.append((self.start[:, first:middle].reshape(-1, units, before),
                           self.start[:, middle:end]))
            first = end
        return layers

    def settings(self) -> np.ndarray:
        """Returns the settings of each network, in the array that the problem takes as an input."""
        return np.tile(np.array([RATE, 0, 0], np.float32), (self.problem.networks, 1))

    def order(self, samples: int) -> np.ndarray:
        """Returns the indices of the first samples, once for each network."""
        return np.tile(np.arange(samples, dtype=np.int32), (self.problem.networks, 1))

    def expected(self) -> np.ndarray:
        """Returns the changes of the judged networks' parameters by training on the checked
        samples, in float64 (judged networks, weight_count)."""
        judged, count = list(self.judged), self.checked
        problem = BackpropProblem(self.problem.sizes, count, count, networks=len(judged))
        inputs = [self.x[:count], self.targets[:count], self.order(count)[judged],
                  self.settings()[judged], self.start[judged]]
        return reference(problem, inputs, {})[0] - self.start[judged]


@dataclass(frozen=True)
class TrainingRun:
    """Networks in a contender's memory.

    work: function that trains the networks on some samples, from their present parameters.
    parameters: function that returns the networks' present parameters (networks, weight_count).
    """

    work: Work
    parameters: Callable[[], np.ndarray]


def flat(layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns weights and biases as one array (networks, weight_count). layers: weights and biases
    as EpochWork.layers returns them."""
    return np.concatenate([array.reshape(len(array), -1) for layer in layers for array in layer],
                          axis=1)


def ready(contender: str, device: Device, task: EpochWork, begin: Callable[[int], TrainingRun],
          layout: str, config: str) -> ReadyContender:
    """Prepares a contender for timing.

    device: device whose events time the work.
    begin: function from a number N of samples to networks with the parameters before training. Each
    execution of their work trains the networks on the first N samples.
    """
    short_run = begin(task.checked)
    for _ in range(_WARM_UP):
        device.time(short_run.work)
    sample_us = device.time(short_run.work) / task.checked
    del short_run
    affordable = int(_LONGEST_US / max(sample_us, 1e-3)) // _ROUND * _ROUND
    samples = min(task.problem.samples, max(affordable, task.checked))
    run = begin(samples)

    def output(count: int) -> np.ndarray:
        judged = list(task.judged)[:count]
        checked_run = begin(task.checked)
        checked_run.work(None)
        device.synchronize()
        return checked_run.parameters()[judged] - task.start[judged]

    config_texts = [config, "" if samples == task.problem.samples else f"first {samples} samples",
                    task.inputs]
    return ReadyContender(contender, device, run.work, output, layout,
                          ", ".join(filter(None, config_texts)),
                          runs=samples * task.problem.networks)
