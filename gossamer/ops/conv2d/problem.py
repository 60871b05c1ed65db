"""The problem conv2d: convolution of an (N, C, H, W) tensor, and its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from gossamer.facts import REAL, ValueFacts, precision_of_products, sums_integers
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.epilogue import epilogue_inputs, operand_arrays
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class Conv2dProblem(Problem):
    """A zero-padded convolution with an epilogue:

    y[n, m, i, j] = epilogue(sum over c, r, s of weight[m, c, r, s] * x[n, first + c, row, column])

    where c runs from 0 to C/groups - 1, first is the first input channel of the group to which
    output channel m belongs, row = i * stride[0] + r * dilation[0] - pads[0] and
    column = j * stride[1] + s * dilation[1] - pads[1].

    The constants are `weight` (M, C/groups, R, S) and the epilogue's channel operands.

    batch: number of images N.
    channels: number of input channels C.
    height: number of rows H of the input.
    width: number of columns W of the input.
    out_channels: number of output channels M.
    kernel: rows R and columns S of a filter.
    stride: input rows and columns from one output to the next.
    pads: rows and columns of zeros around the input (top, left, bottom, right).
    dilation: input rows and columns from one tap to the next.
    groups: number of groups into which input and output channels are divided.
    epilogue: element-wise computation on the result.
    weights_info: density of the weights, hash of their mask, and their value facts.
    facts: value facts of each run-time input; empty if nothing is known.
    result: value facts of the output if it has few distinct values, else REAL.
    """

    op: ClassVar[str] = "conv2d"

    batch: int
    channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    epilogue: Epilogue = field(default_factory=Epilogue)
    weights_info: WeightsInfo = field(default_factory=WeightsInfo)
    facts: tuple[ValueFacts, ...] = ()
    result: ValueFacts = REAL

    @cached_property
    def out_height(self) -> int:
        """Rows of the output."""
        rows = self.height + self.pads[0] + self.pads[2]
        return max((rows - self.window(0)) // self.stride[0] + 1, 0)

    @cached_property
    def out_width(self) -> int:
        """Columns of the output."""
        columns = self.width + self.pads[1] + self.pads[3]
        return max((columns - self.window(1)) // self.stride[1] + 1, 0)

    def window(self, axis: int, outputs: int = 1) -> int:
        """Return the number of input rows or columns under the windows of adjacent outputs.

        axis: 0 for rows, 1 for columns.
        outputs: number of adjacent outputs.
        """
        return ((outputs - 1) * self.stride[axis]
                + (self.kernel[axis] - 1) * self.dilation[axis] + 1)

    @property
    def image_pixels(self) -> int:
        """Output pixels of an image."""
        return self.out_height * self.out_width

    @property
    def pixels(self) -> int:
        """Output pixels of the whole batch."""
        return self.batch * self.image_pixels

    @property
    def group_channels(self) -> int:
        """Input channels of a group."""
        return self.channels // self.groups

    @property
    def group_out_channels(self) -> int:
        """Output channels of a group."""
        return self.out_channels // self.groups

    @property
    def taps(self) -> int:
        """Taps of a window: R * S."""
        return self.kernel[0] * self.kernel[1]

    @property
    def depth(self) -> int:
        """Length of one output's inner product: C/groups * R * S."""
        return self.group_channels * self.taps

    @property
    def is_pointwise(self) -> bool:
        """Whether the input is its own im2col matrix: 1x1, stride 1, no padding."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.pads == (0, 0, 0, 0)

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one input channel."""
        return self.groups == self.channels and self.channels > 1

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        x = default_spec((self.batch, self.channels, self.height, self.width))
        return (x, *epilogue_inputs(self.epilogue, self.outputs[0].shape))

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (default_spec((self.batch, self.out_channels, self.out_height, self.out_width)),)

    @property
    def sums_integers(self) -> bool:
        return sums_integers(self.facts, self.weights_info.facts)

    @property
    def exact_precision(self) -> str:
        return precision_of_products(self.facts, self.weights_info.facts, self.result)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "weight": (self.out_channels, self.group_channels, *self.kernel)
        }
        for index, kind in enumerate(self.epilogue.operands):
            if kind == "channel":
                shapes[f"operand{index}"] = (self.out_channels,)
        return shapes

    @property
    def flops(self) -> int:
        per_output = 2 * self.depth + self.epilogue.expression.flops
        return self.outputs[0].size * per_output

    def first_images(self, count: int) -> Conv2dProblem:
        return replace(self, batch=min(count, self.batch))

    def describe(self) -> str:
        size = "x".join(map(str, self.kernel))
        extras = ""
        if self.stride != (1, 1):
            extras += f" s{self.stride[0]}" if self.stride[0] == self.stride[1] else (
                f" s{self.stride[0]}x{self.stride[1]}")
        if self.dilation != (1, 1):
            extras += f" d{self.dilation[0]}"
        if self.groups > 1:
            extras += f" g{self.groups}"
        return (f"{size}{extras} {self.channels}x{self.height}x{self.width} -> "
                f"{self.out_channels}x{self.out_height}x{self.out_width}")


def reference(problem: Conv2dProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Compute the output in float64 as a plain sum over taps."""
    x = np.asarray(inputs[0], dtype=np.float64)
    top, left, bottom, right = problem.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    split = padded.reshape(problem.batch, problem.groups, problem.group_channels,
                           *padded.shape[2:])
    weight = np.asarray(weights["weight"], dtype=np.float64).reshape(
        problem.groups, problem.group_out_channels, problem.group_channels, *problem.kernel)
    total = np.zeros((problem.batch, problem.groups, problem.group_out_channels,
                      problem.out_height, problem.out_width))
    for r, s in np.ndindex(problem.kernel):
        window = split[..., _tap_window(r, 0, problem), _tap_window(s, 1, problem)]
        total += np.einsum("ngchw,gmc->ngmhw", window, weight[..., r, s], optimize=True)
    result = total.reshape(problem.outputs[0].shape)
    tensors = [np.asarray(t, dtype=np.float64) for t in inputs[1:]]
    constants = {name: np.asarray(a, dtype=np.float64) for name, a in weights.items()}
    operands = operand_arrays(problem.epilogue, constants, tensors, 4)
    return [problem.epilogue.expression.evaluate(result, *operands)[0]]


def _tap_window(tap: int, axis: int, problem: Conv2dProblem) -> slice:
    """Return the padded rows (axis 0) or columns (axis 1) that one tap reads."""
    outputs = (problem.out_height, problem.out_width)[axis]
    first, stride = tap * problem.dilation[axis], problem.stride[axis]
    return slice(first, first + (outputs - 1) * stride + 1, stride)
