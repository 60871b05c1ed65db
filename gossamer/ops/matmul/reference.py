"""The float64 reference of matrix products, and the operands of a product as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.matmul.problem import MatmulProblem


def reference(problem: MatmulProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    a, b = operands(problem, inputs, weights)
    return [np.asarray(a.astype(np.float64) @ b.astype(np.float64))]


def operands(problem: MatmulProblem, inputs: Sequence[np.ndarray],
             weights: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns both operands as they are multiplied, from the weights or the inputs."""
    remaining = iter(inputs)
    a, b = (np.asarray(weights[f"operand{i}"]) if i in problem.constants else next(remaining)
            for i in range(2))
    return (a.swapaxes(-1, -2) if 0 in problem.transposed else a,
            b.swapaxes(-1, -2) if 1 in problem.transposed else b)
