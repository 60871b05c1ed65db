"""The first step of a published convolution in OpenCL (docs/algorithms.md): a kernel makes the
im2col matrix. Each work-item of the kernel copies the taps of one channel of one output pixel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.im2col import gather
from gossamer.ops.launch import output_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import HostAlgorithm, cannot_compile
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, default_spec


@dataclass(frozen=True)
class Im2colProblem(Problem):
    """The taps of every output pixel of a convolution: a matrix for each image, with a row for each
    tap of each channel and a column for each output pixel. Taps in the padding are zeros.

    convolution: the convolution, whose weights and epilogue are not used.
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


class NumpyIm2col(HostAlgorithm):
    """Copies a view of sliding windows."""

    op = "im2col"

    def compute(self, problem: Im2colProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [_matrix(problem, inputs[0])]


class PublishedIm2col(Algorithm):
    """The im2col kernel of the convolution algorithms that store the im2col matrix."""

    op = "im2col"
    name = "published"

    def supports(self, problem: Im2colProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)

    def variants(self, problem: Im2colProblem, device: Device) -> Iterator[Variant]:
        yield Variant((), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Im2colProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        conv = problem.convolution
        if problem.outputs[0].size:
            state.launches = [gather(conv, variant.inputs[0], device, output_buffer(0))]
        return state


def reference(problem: Im2colProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the matrices in float64."""
    return [_matrix(problem, np.asarray(inputs[0], np.float64))]


def _matrix(problem: Im2colProblem, x: np.ndarray) -> np.ndarray:
    """Returns the matrices (N, taps of all channels, output pixels) of images (N, C, H, W), in the
    dtype of x."""
    conv = problem.convolution
    top, left, bottom, right = conv.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, [(taps - 1) * step + 1 for taps, step in
                 zip(conv.kernel, conv.dilation, strict=True)], (2, 3))
    taps = windows[:, :, :: conv.stride[0], :: conv.stride[1],
                   :: conv.dilation[0], :: conv.dilation[1]]
    return taps.transpose(0, 1, 4, 5, 2, 3).reshape(problem.outputs[0].shape)


OP = Op("im2col", Im2colProblem, reference, (NumpyIm2col(), PublishedIm2col()))
