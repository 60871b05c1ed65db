"""Gathering in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.ops.algorithm import Variant
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gather.reference import reference
from gossamer.ops.strided import HostAlgorithm


class NumpyGather(HostAlgorithm):
    """Gathers by numpy.take. Raises InputError for an index that is out of range."""

    op = "gather"

    def compute(self, problem: GatherProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        indices = weights["operand1"] if 1 in problem.constants else inputs[-1]
        length = problem.data.shape[problem.axis]
        if indices.size and (indices.min() < -length or indices.max() >= length):
            wrong = indices.min() if indices.min() < -length else indices.max()
            raise InputError(f"index {wrong} is outside dimension {problem.axis} of shape "
                             f"{list(problem.data.shape)}")
        return reference(problem, inputs, weights)

    def variants(self, problem: GatherProblem, device: Device) -> Iterable[Variant]:
        return [Variant((), problem.inputs, problem.outputs)]
