"""The im2col matrix of a convolution, for those who measure this step alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gossamer.ops.algorithm import Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class Im2colProblem(Problem):
    """The taps of every output pixel of a convolution: a matrix (C R S, E F) for each image, with
    zeros where a tap lies in the padding.

    convolution: the convolution, of which weights and epilogue do not count.
    """

    op: ClassVar[str] = "im2col"
    convolution: Conv2dProblem

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.convolution.inputs[:1]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        conv = self.convolution
        return (default_spec((conv.batch, conv.groups * conv.depth,
                              conv.out_height * conv.out_width)),)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        return 0

    def first_images(self, count: int) -> Im2colProblem:
        return Im2colProblem(self.convolution.first_images(count))

    def describe(self) -> str:
        return f"im2col of {self.convolution.describe()}"
