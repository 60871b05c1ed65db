"""The float64 reference of gemm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.epilogue import operand_arrays
from gossamer.ops.gemm.problem import GemmProblem


def reference(problem: GemmProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    constants = {name: np.asarray(a, dtype=np.float64) for name, a in weights.items()}
    x, *tensors = (np.asarray(a, dtype=np.float64) for a in inputs)
    operands = operand_arrays(problem.epilogue, constants, tensors, 2)
    return [problem.epilogue.expression.evaluate(x @ constants["weight"].T, *operands)[0]]
