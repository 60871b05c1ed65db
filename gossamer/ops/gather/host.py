"""Gathering in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gather.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyGather(HostAlgorithm):
    """Gathers by numpy.take."""

    op = "gather"

    def compute(self, problem: GatherProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)

    def variants(self, problem: GatherProblem, device: Device) -> Iterable[Variant]:
        return [Variant((), problem.inputs, problem.outputs)]
