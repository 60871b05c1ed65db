"""Gathering of slices by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.ops.op import OperandProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class GatherProblem(OperandProblem):
    """Slices of a tensor, selected by indices along an axis.

    output[a..., i..., b...] = data[a..., indices[i...], b...]

    data: spec of the tensor.
    indices: spec of the indices, int32 or int64. Negative indices count from the end. For an index
    out of range, the host raises an error; kernels cannot raise errors, and clamp the index.
    axis: index of the axis, from 0.
    constants: indices of the operands that are constants. `data` has the index 0, and `indices` has
    the index 1. The weights hold the constants as `operand0` and `operand1`.

    Raises ValueError for an invalid axis or dtype, and for slices of an empty axis.
    """

    op: ClassVar[str] = "gather"
    data: TensorSpec
    indices: TensorSpec
    axis: int
    constants: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.data.shape):
            raise ValueError(f"a gather along axis {self.axis}, which {self.data} does not have")
        if self.indices.dtype not in ("int32", "int64"):
            raise ValueError(f"a gather needs int32 or int64 indices, not {self.indices.dtype}")
        if self.data.shape[self.axis] == 0 and self.outputs[0].size > 0:
            raise ValueError(f"a gather along axis {self.axis} of {self.data}, which is empty")

    @property
    def operands(self) -> tuple[TensorSpec, ...]:  # type: ignore[override]
        return self.data, self.indices

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = self.data.shape
        return (default_spec(shape[: self.axis] + self.indices.shape + shape[self.axis + 1 :],
                             self.data.dtype),)

    @property
    def flops(self) -> int:
        return 0

    @property
    def least_bytes(self) -> int:
        return 2 * self.outputs[0].nbytes + self.indices.nbytes

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw inputs whose indices are in range."""
        arrays = super().example_inputs(rng)
        if 1 not in self.constants:
            # NumPy 1 would convert a single int32 index to int64
            arrays[-1] = np.minimum(arrays[-1], max(self.data.shape[self.axis] - 1, 0)).astype(
                self.indices.dtype)
        return arrays

    def describe(self) -> str:
        return f"{self.indices} along {self.axis} of {self.data}"


def reference(problem: GatherProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    data, indices = problem.arranged(weights, inputs)
    if problem.outputs[0].size == 0:
        return [np.empty(problem.outputs[0].shape, data.dtype)]
    length = data.shape[problem.axis]
    indices = np.where(indices < 0, indices + length, indices)
    return [np.take(data, indices, axis=problem.axis, mode="clip")]
