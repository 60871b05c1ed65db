"""Algorithms of transposed two-dimensional convolution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv_transpose2d.problem import (
    ConvTranspose2dProblem,
    conv_transpose2d,
    reference,
)
from gossamer.ops.host_threads import thread_configs
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    groups_for,
    layout_variants,
)
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("direct.cl")


class NumpyConvTranspose2d(HostAlgorithm):
    """One NumPy matrix product for each tap of the filter."""

    op = "conv_transpose2d"
    compute = staticmethod(conv_transpose2d)

    def variants(self, problem: ConvTranspose2dProblem, device: Device) -> Iterable[Variant]:
        _, channels, height, width = problem.input.shape
        rows, depth = (count // problem.groups for count in (problem.out_channels, channels))
        return [variant for config in thread_configs(rows * depth * height * width)
                for variant in layout_variants(problem, config=config)]


class DirectConvTranspose2d(KernelAlgorithm):
    """A kernel in which each work-item computes one output from all inputs that contribute to it.
    """

    op = "conv_transpose2d"
    name = "direct"

    def variants(self, problem: ConvTranspose2dProblem, device: Device) -> list[Variant]:
        return layout_variants(problem, ("NCHW", "NHWC"))

    def kernel_launches(self, weights: Weights, problem: ConvTranspose2dProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        source, target = variant.inputs[0], variant.outputs[0]
        defines = {"CHANNELS_INNERMOST": 1} if target.layout == "NHWC" else {}
        kernel = device.compile(KernelSource.of(_SOURCE, "conv_transpose2d", defines))
        packed = weights.packed("weight by tap", lambda arrays: _by_tap(problem, arrays))
        bias = None
        if problem.bias:
            bias = weights.packed("bias", lambda arrays: np.asarray(arrays["bias"], np.float32))
        groups = problem.groups
        return [Launch(kernel, groups_for(target.size), (WORK_GROUP_SIZE,), (
            input_buffer(0), packed, bias, output_buffer(0), target.size,
            *source.shape[2:], *target.shape[2:], source.shape[1] // groups,
            target.shape[1] // groups, groups, *problem.kernel, *problem.stride,
            *problem.pads[:2], *problem.dilation, int(problem.bias),
            *source.strides, *target.strides))]


def _by_tap(problem: ConvTranspose2dProblem, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    channels = problem.input.shape[1]
    weight = np.asarray(arrays["weight"], np.float32).reshape(
        problem.groups, channels // problem.groups, -1, *problem.kernel)
    return weight.transpose(0, 3, 4, 1, 2)


OP = Op("conv_transpose2d", ConvTranspose2dProblem, reference,
        (NumpyConvTranspose2d(), DirectConvTranspose2d()))
