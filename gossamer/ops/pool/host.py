"""Pooling in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.pool.reference import pool
from gossamer.ops.strided import HostAlgorithm


class NumpyPool(HostAlgorithm):
    """Pools whole tensors. Each position in the window takes one NumPy operation."""

    op = "pool"

    def compute(self, problem: PoolProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [pool(problem, inputs[0])]
