"""Element-wise arithmetic in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.elementwise.reference import compute
from gossamer.ops.strided import HostAlgorithm, layout_variants


class NumpyElementwise(HostAlgorithm):
    """Evaluates the expression step by step in the problem's arithmetic."""

    op = "elementwise"

    def compute(self, problem: ElementwiseProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return compute(problem, inputs, weights, problem.arithmetic)

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterable[Variant]:
        return list(map(problem.reading, layout_variants(problem)))
