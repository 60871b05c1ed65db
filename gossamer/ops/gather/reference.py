"""The reference of gathering, which is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.gather.problem import GatherProblem


def reference(problem: GatherProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    remaining = iter(inputs)
    data, indices = (np.asarray(weights[f"operand{i}"]) if i in problem.constants
                     else next(remaining) for i in range(2))
    if problem.outputs[0].size == 0:
        return [np.empty(problem.outputs[0].shape, data.dtype)]
    length = data.shape[problem.axis]
    indices = np.where(indices < 0, indices + length, indices)
    return [np.take(data, indices, axis=problem.axis, mode="clip")]
