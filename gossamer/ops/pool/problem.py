"""Max and average pooling over windows of H and W."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from gossamer.facts import ValueFacts
from gossamer.ops.algorithm import Problem
from gossamer.ops.exactness import precision_of_values
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class PoolProblem(Problem):
    """Pooling of an (N, C, H, W) float32 input, as ONNX defines it.

    kind: "max" or "average".
    kernel: height and width of the window.
    stride, dilation: strides and dilations along H and W.
    pads: (top, left, bottom, right) numbers of added rows and columns. A maximum ignores these rows
    and columns.
    ceil_mode: whether the last window along an axis may exceed the padding. The last window may not
    start in the padding at the end.
    count_include_pad: whether an average counts the padding as zeros; else it ignores the padding.
    facts: value facts of the input; empty where nothing is known.
    Raises ValueError for an input smaller than the window, and for invalid attributes.
    """

    op: ClassVar[str] = "pool"
    input: TensorSpec
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
            raise ValueError(f"impossible kernel, stride, dilation or pads in {self}")
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
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        n, c = self.input.shape[:2]
        return (default_spec((n, c, self.out_height, self.out_width), self.input.dtype),)

    @property
    def exact_precision(self) -> str:
        return precision_of_values(self.facts) if self.kind == "max" else "fp32"

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {}

    @property
    def flops(self) -> int:
        return self.outputs[0].size * self.kernel[0] * self.kernel[1]

    def first_images(self, count: int) -> PoolProblem:
        n, *rest = self.input.shape
        return replace(self, input=default_spec((min(count, n), *rest), self.input.dtype))

    def describe(self) -> str:
        sizes = "x".join(map(str, self.input.shape[1:]))
        return (f"{self.kind} {self.kernel[0]}x{self.kernel[1]} s{self.stride[0]} {sizes} -> "
                f"{self.out_height}x{self.out_width}")
