"""Resizing of H and W by nearest-neighbour or linear interpolation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer import resampling
from gossamer.ops.op import UnaryProblem, in_float64
from gossamer.resampling import COORDINATES, NEAREST_MODES
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class ResizeProblem(UnaryProblem):
    """Resizing of (N, C, H, W) to (N, C, *size), as in ONNX.

    A tensor of rank 3 is first reshaped to rank 4, with an additional dimension of size 1.

    size: height and width of the output.
    scales: scale factors of H and W. If the network's file states sizes instead, the scales are the
    ratios of output size to input size, and input positions are computed exactly.
    mode: "nearest" or "linear".
    coordinates: one of gossamer.resampling.COORDINATES.
    nearest_mode: rounding of input positions in mode "nearest", one of
    gossamer.resampling.NEAREST_MODES.

    Raises ValueError if a mode is unknown, or if the input is empty but the output is not.
    """

    op: ClassVar[str] = "resize"
    size: tuple[int, int]
    scales: tuple[float, float]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"

    def __post_init__(self) -> None:
        if len(self.input.shape) != 4:
            raise ValueError(f"resize needs (N, C, H, W), got {self.input}")
        for what, value, known in (("mode", self.mode, ("nearest", "linear")),
                                   ("coordinates", self.coordinates, COORDINATES),
                                   ("nearest_mode", self.nearest_mode, NEAREST_MODES)):
            if value not in known:
                raise ValueError(f"resize {what} {value!r} is not one of {', '.join(known)}")
        if min(self.scales) <= 0:
            raise ValueError(f"resize scales {self.scales} are not positive")
        if 0 in self.input.shape[2:] and self.outputs[0].size > 0:
            raise ValueError(f"cannot resize {self.input}, which is empty, to {self.size}")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((*self.input.shape[:2], *self.size), self.input.dtype),)

    @property
    def flops(self) -> int:
        return self.outputs[0].size * (6 if self.mode == "linear" else 0)

    def first_images(self, count: int) -> ResizeProblem:
        return replace(self, input=self.input.first(count))

    def describe(self) -> str:
        sizes = "x".join(map(str, self.input.shape[1:]))
        return f"{self.mode} {sizes} -> {self.size[0]}x{self.size[1]}"


def resize(problem: ResizeProblem, inputs: Sequence[np.ndarray],
           weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the result in the dtype of the input."""
    (x,) = inputs
    if 0 in problem.outputs[0].shape:
        return [np.empty(problem.outputs[0].shape, x.dtype)]
    if problem.mode == "nearest":
        rows, columns = nearest(problem, 0), nearest(problem, 1)
        return [x[:, :, rows[:, None], columns]]
    low, high, part = linear(problem, 0)
    part = part.astype(x.dtype)[:, None]
    x = x[:, :, low] * (1 - part) + x[:, :, high] * part
    low, high, part = linear(problem, 1)
    part = part.astype(x.dtype)
    return [x[..., low] * (1 - part) + x[..., high] * part]


reference = in_float64(resize)


def nearest(problem: ResizeProblem, axis: int) -> np.ndarray:
    """Return the input position of each output along an axis.

    axis: 0 for H, 1 for W.
    """
    return resampling.nearest(problem.input.shape[2 + axis], problem.size[axis],
                              problem.scales[axis], problem.coordinates, problem.nearest_mode)


def linear(problem: ResizeProblem, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two input positions and an interpolation weight for each output along an axis.

    Each output is interpolated between the two input positions. The third array holds the weight of
    the second position. The weight is 1/2 if both positions are the same, so that an infinite
    element is not multiplied by 0.

    axis: 0 for H, 1 for W.
    """
    last = problem.input.shape[2 + axis] - 1
    low, part = resampling.between(last + 1, problem.size[axis], problem.scales[axis],
                                   problem.coordinates)
    part[(low < 0) | (low >= last)] = 0.5
    high = np.clip(low + 1, 0, last).astype(np.int32)
    low = np.clip(low, 0, last).astype(np.int32)
    return low, high, part.astype(np.float32)
