"""Back-propagation in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import train
from gossamer.ops.strided import HostAlgorithm


class NumpyBackprop(HostAlgorithm):
    """Update by update in float32."""

    op = "backprop"

    def variants(self, problem: BackpropProblem, device: Device) -> Iterable[Variant]:
        return [Variant((), problem.inputs, problem.outputs)]

    def compute(self, problem: BackpropProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return train(problem, inputs, np.dtype(np.float32))
