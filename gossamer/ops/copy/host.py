"""Copies in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.copy.reference import reference
from gossamer.ops.copy.strided import copy_variants
from gossamer.ops.strided import HostAlgorithm


class NumpyCopy(HostAlgorithm):
    """Copies a strided view of the input."""

    op = "copy"

    def compute(self, problem: CopyProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)

    def variants(self, problem: CopyProblem, device: Device) -> Iterable[Variant]:
        return copy_variants(problem)
