"""Element-wise arithmetic in NumPy: in float64 for the reference of float32 arithmetic, in the
problem's own dtype for the host and for integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.elementwise.problem import ElementwiseProblem


def reference(problem: ElementwiseProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    arithmetic = "float64" if problem.arithmetic == "float32" else problem.arithmetic
    return compute(problem, inputs, weights, arithmetic)


def compute(problem: ElementwiseProblem, inputs: Sequence[np.ndarray],
            weights: Mapping[str, np.ndarray], arithmetic: str) -> list[np.ndarray]:
    """Returns the outputs, computed in the dtype `arithmetic`. Where `arithmetic` is a float dtype,
    outputs that the problem states as float32 are returned in `arithmetic`."""
    remaining = iter(inputs)
    operands = [weights[f"operand{index}"] if index in problem.constants else next(remaining)
                for index in range(len(problem.operands))]
    values = problem.expression.evaluate(
        *[np.asarray(operand).astype(arithmetic, copy=False) for operand in operands])
    return [np.broadcast_to(_converted(value, dtype), problem.shape)
            for value, dtype in zip(values, problem.dtypes, strict=True)]


def _converted(value: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bool":
        return value != 0
    if dtype == "float32" and value.dtype.kind == "f":
        return value
    with np.errstate(invalid="ignore"):
        if dtype == "uint8" and value.dtype.kind == "f":
            value = value.astype(np.int32)
        return value.astype(dtype)
