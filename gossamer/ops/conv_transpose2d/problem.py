"""Transposed two-dimensional convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.ops.op import UnaryProblem, in_float64
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class ConvTranspose2dProblem(UnaryProblem):
    """The transposed convolution of a float32 tensor, as ONNX defines it.

    The tensor is (N, C, H, W); the weights are (C, out_channels / groups, R, S).

    kernel: height and width of the filter, R and S.
    stride, dilation: strides and dilations along H and W.
    pads: numbers of rows and columns (top, left, bottom, right) that are cropped from the result.
    output_padding: numbers of rows and columns that are added at the bottom and at the right.
    groups: number of groups into which input and output channels are divided.
    bias: whether the weights contain `bias`, with one number for each output channel.

    Raises ValueError if the groups do not divide the channels, or if the pads are larger than the
    result.
    """

    op: ClassVar[str] = "conv_transpose2d"
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    output_padding: tuple[int, int] = (0, 0)
    groups: int = 1
    bias: bool = False

    def __post_init__(self) -> None:
        if len(self.input.shape) != 4:
            raise ValueError(f"a transposed convolution needs (N, C, H, W), got {self.input}")
        if min(*self.kernel, *self.stride, *self.dilation, self.groups) < 1:
            raise ValueError(f"kernel, stride, dilation and groups must be at least 1 in {self}")
        if self.input.shape[1] % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.groups} groups do not divide both {self.input.shape[1]} input "
                             f"channels and {self.out_channels} output channels evenly")
        if min(self.out_height, self.out_width) < 0:
            raise ValueError(f"pads {self.pads} are larger than the result of {self.input}")

    @property
    def out_height(self) -> int:
        return self._out_size(0)

    @property
    def out_width(self) -> int:
        return self._out_size(1)

    def _out_size(self, axis: int) -> int:
        size = self.input.shape[2 + axis]
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return ((size - 1) * self.stride[axis] + reach + self.output_padding[axis]
                - self.pads[axis] - self.pads[2 + axis])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = (self.input.shape[0], self.out_channels, self.out_height, self.out_width)
        return (default_spec(shape),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "weight": (self.input.shape[1], self.out_channels // self.groups, *self.kernel)}
        if self.bias:
            shapes["bias"] = (self.out_channels,)
        return shapes

    @property
    def flops(self) -> int:
        taps = self.kernel[0] * self.kernel[1]
        return 2 * self.input.size * self.out_channels // self.groups * taps

    def first_images(self, count: int) -> ConvTranspose2dProblem:
        return replace(self, input=self.input.first(count))

    def describe(self) -> str:
        sizes = "x".join(map(str, self.input.shape[1:]))
        return (f"{self.kernel[0]}x{self.kernel[1]} s{self.stride[0]} {sizes} -> "
                f"{self.out_channels}x{self.out_height}x{self.out_width}")


def conv_transpose2d(problem: ConvTranspose2dProblem, inputs: Sequence[np.ndarray],
                     weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the result in the dtype of the input.

    For each tap of the filter, the product of the input and the tap's weights is added to a strided
    view of the output.
    """
    (x,) = inputs
    n, channels, height, width = x.shape
    groups, m = problem.groups, problem.out_channels
    x = x.reshape(n, groups, channels // groups, height * width)
    weight = weights["weight"].reshape(groups, channels // groups, m // groups, *problem.kernel)
    sizes = [(size - 1) * stride + (taps - 1) * dilation + 1 + extra
             for size, stride, taps, dilation, extra
             in zip((height, width), problem.stride, problem.kernel, problem.dilation,
                    problem.output_padding, strict=True)]
    uncropped = np.zeros((n, m, *sizes), x.dtype)
    for r in range(problem.kernel[0]):
        for s in range(problem.kernel[1]):
            product = weight[..., r, s].swapaxes(1, 2) @ x
            y0, x0 = r * problem.dilation[0], s * problem.dilation[1]
            uncropped[:, :, y0 : y0 + height * problem.stride[0] : problem.stride[0],
                  x0 : x0 + width * problem.stride[1] : problem.stride[1]][
                      :, :, :height, :width] += product.reshape(n, m, height, width)
    top, left = problem.pads[:2]
    result = uncropped[:, :, top : top + problem.out_height, left : left + problem.out_width]
    if problem.bias:
        result = result + weights["bias"][:, None, None]
    return [result]


reference = in_float64(conv_transpose2d)
