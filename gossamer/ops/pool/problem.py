"""Max and average pooling over windows of H and W."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.facts import ValueFacts, precision_of_values
from gossamer.ops.op import UnaryProblem, in_float64
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class PoolProblem(UnaryProblem):
    """Pooling of an (N, C, H, W) float32 input, as ONNX defines it.

    kind: "max" or "average".
    kernel: height and width of the window.
    stride, dilation: strides and dilations along H and W.
    pads: numbers of added rows and columns, (top, left, bottom, right). A maximum ignores these
    rows and columns.
    ceil_mode: whether the last window along an axis may reach beyond the padding. With ceil_mode,
    no window may start in the padding at the end of an axis.
    count_include_pad: whether an average counts the padding as zeros. If not, the average ignores
    the padding.
    facts: value facts of the input; empty if nothing is known.

    Raises ValueError if the input is smaller than the window, or if an attribute is invalid.
    """

    op: ClassVar[str] = "pool"
    kind: str
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False
    facts: tuple[ValueFacts, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("max", "average"):
            raise ValueError(f"pool kind {self.kind!r} is neither max nor average")
        if len(self.input.shape) != 4:
            raise ValueError(f"pooling needs (N, C, H, W), got {self.input}")
        if min(*self.kernel, *self.stride, *self.dilation) < 1 or min(self.pads) < 0:
            raise ValueError("kernel, stride and dilation must be at least 1, and pads at least 0, "
                             f"in {self}")
        if min(self.out_height, self.out_width) < 0:
            raise ValueError(f"{self.input} is smaller than the window of {self.kernel}")

    @property
    def out_height(self) -> int:
        return self._out_size(0)

    @property
    def out_width(self) -> int:
        return self._out_size(1)

    def _out_size(self, axis: int) -> int:
        size, before, after = self.input.shape[2 + axis], self.pads[axis], self.pads[2 + axis]
        stride = self.stride[axis]
        room = size + before + after - (self.kernel[axis] - 1) * self.dilation[axis] - 1
        if self.ceil_mode:
            count = -(-room // stride) + 1
            count -= (count - 1) * stride >= size + before
        else:
            count = room // stride + 1
        return count if size else max(count, 0)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        n, c = self.input.shape[:2]
        return (default_spec((n, c, self.out_height, self.out_width), self.input.dtype),)

    @property
    def exact_precision(self) -> str:
        return precision_of_values(self.facts) if self.kind == "max" else "fp32"

    @property
    def flops(self) -> int:
        return self.outputs[0].size * self.kernel[0] * self.kernel[1]

    def first_images(self, count: int) -> PoolProblem:
        return replace(self, input=self.input.first(count))

    def describe(self) -> str:
        sizes = "x".join(map(str, self.input.shape[1:]))
        return (f"{self.kind} {self.kernel[0]}x{self.kernel[1]} s{self.stride[0]} {sizes} -> "
                f"{self.out_height}x{self.out_width}")


def pool(problem: PoolProblem, inputs: Sequence[np.ndarray],
         weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the result (N, C, E, F) for an input (N, C, H, W), in the dtype of the input."""
    (x,) = inputs
    e, f = problem.out_height, problem.out_width
    is_max = problem.kind == "max"
    result = np.full((*x.shape[:2], e, f), -np.inf if is_max else 0, x.dtype)
    for r in range(problem.kernel[0]):
        rows, ys = taps_along(problem, 0, r)
        for s in range(problem.kernel[1]):
            columns, xs = taps_along(problem, 1, s)
            window = result[:, :, rows, columns]
            values = x[:, :, ys, xs]
            if is_max:
                np.maximum(window, values, out=window)
            else:
                window += values
    if not is_max:
        counts = np.outer(counts_along(problem, 0), counts_along(problem, 1)).astype(x.dtype)
        result /= counts
    return [result]


reference = in_float64(pool)


def taps_along(problem: PoolProblem, axis: int, tap: int) -> tuple[slice, slice]:
    """Return the slices of outputs and of inputs that belong to a tap.

    Along the axis, the first slice selects the outputs whose tap is not in the padding. The second
    slice selects the inputs that the tap reads for these outputs.

    axis: 0 for height, 1 for width.
    tap: position in the window along the axis.
    """
    out = problem.outputs[0].shape[2 + axis]
    size, stride = problem.input.shape[2 + axis], problem.stride[axis]
    origin = tap * problem.dilation[axis] - problem.pads[axis]
    first = max(0, -(origin // stride))
    last = min(out - 1, (size - 1 - origin) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + origin
    return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


def counts_along(problem: PoolProblem, axis: int) -> np.ndarray:
    """Return, for each output along an axis, the number of taps by which an average divides.

    Taps in the input are counted, and with count_include_pad also taps in the padding.

    axis: 0 for height, 1 for width.
    """
    out = problem.outputs[0].shape[2 + axis]
    before, after = problem.pads[axis], problem.pads[2 + axis]
    low, high = (-before, after) if problem.count_include_pad else (0, 0)
    starts = np.arange(out) * problem.stride[axis] - before
    positions = starts[:, None] + np.arange(problem.kernel[axis]) * problem.dilation[axis]
    return ((positions >= low) & (positions < problem.input.shape[2 + axis] + high)).sum(axis=1)
