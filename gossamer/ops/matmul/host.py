"""Matrix products in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.host_threads import thread_configs
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.matmul.reference import operands
from gossamer.ops.strided import HostAlgorithm


class NumpyMatmul(HostAlgorithm):
    """Multiplies by numpy.matmul."""

    op = "matmul"

    def compute(self, problem: MatmulProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        a, b = operands(problem, inputs, weights)
        return [np.asarray(a @ b)]

    def variants(self, problem: MatmulProblem, device: Device) -> Iterable[Variant]:
        return [Variant(config, problem.inputs, problem.outputs) for config in thread_configs()]
