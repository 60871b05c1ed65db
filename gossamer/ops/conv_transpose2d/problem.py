"""Transposed two-dimensional convolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class ConvTranspose2dProblem(Problem):
    """The transposed convolution of an (N, C, H, W) float32 tensor with weights (C, out_channels /
    groups, R, S), as ONNX defines it.

    kernel: height and width of the filter, R and S.
    stride, dilation: strides and dilations along H and W.
    pads: (top, left, bottom, right) numbers of rows and columns that are cut off the result.
    output_padding: numbers of rows and columns that are added at the bottom and at the right.
    groups: number of groups into which input and output channels are divided.
    bias: whether the weights contain `bias`, with one number for each output channel.

    Raises ValueError where the groups do not divide the channels, and where the pads cut off more
    than the whole result.
    """

    op: ClassVar[str] = "conv_transpose2d"
    input: TensorSpec
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
            raise ValueError(f"impossible kernel, stride, dilation or groups in {self}")
        if self.input.shape[1] % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.groups} groups divide neither {self.input.shape[1]} nor "
                             f"{self.out_channels} channels evenly")
        if min(self.out_height, self.out_width) < 0:
            raise ValueError(f"pads {self.pads} cut off more than {self.input} gives")

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
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

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
