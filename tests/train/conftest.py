"""Fixtures: small data to train on, and the devices that can train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.problem import BackpropProblem, Layers, forward, reference
from gossamer.ops.registry import OPS
from tests.fixtures import is_slow


@pytest.fixture
def device(device: Device) -> Device:
    """Every device of this machine that can train within a short time."""
    if is_slow(device):
        pytest.skip(f"{device.description} interprets its kernels, which tests/ops look at")
    problem = BackpropProblem((4, 5, 3), 30, 30)
    reasons = [algorithm.supports(problem, device) for algorithm in OPS["backprop"].algorithms]
    if all(reasons):
        pytest.skip(f"{device.name} has no algorithm for back-propagation")
    return device


@pytest.fixture(scope="session")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Three clouds of 40 points in four dimensions, whose rows alternate: x float32 and labels 0 to
    2."""
    rng = np.random.default_rng(3)
    labels = np.tile(np.arange(3), 40)
    centres = rng.standard_normal((3, 4)) * 2
    x = centres[labels] + 0.5 * rng.standard_normal((120, 4))
    return x.astype(np.float32), labels


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the host train and predict in float64."""
    def compute(algorithm: NumpyBackprop, problem: BackpropProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [result.astype(np.float32) for result in reference(problem, inputs, weights)]

    def outputs(problem: BackpropProblem, layers: Layers, x: np.ndarray) -> list[np.ndarray]:
        exact_layers = [(weight.astype(np.float64), bias.astype(np.float64))
                        for weight, bias in layers]
        return [array.astype(x.dtype)
                for array in forward(problem, exact_layers, x.astype(np.float64))]

    monkeypatch.setattr(NumpyBackprop, "compute", compute)
    monkeypatch.setattr("gossamer.train.network.forward", outputs)
