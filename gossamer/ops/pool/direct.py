"""Pooling on a device, where each work-item computes one output or four neighbouring ones."""

from __future__ import annotations

from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    KernelAlgorithm,
    divisor,
    groups_for,
    spatial_inner,
    work_shape,
)
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("direct.cl")


class DirectPool(KernelAlgorithm):
    """Each work-item reads the windows of its outputs."""

    op = "pool"
    name = "direct"
    reads_parts = True
    writes_parts = True

    def kernel_launch(self, weights: Weights, problem: PoolProblem, variant: Variant,
                      device: Device) -> Launch:
        (source,), (target,) = variant.inputs, variant.outputs
        inner = spatial_inner(source)
        lanes, pixels = work_shape(inner, target)
        defines: dict[str, object] = {"LANES": lanes, "PIXELS": pixels,
                                      "HALVES": int(variant.precision == "fp16")}
        if problem.kind == "max":
            defines["MAX"] = 1
        if problem.kernel in ((2, 2), (3, 3)):
            defines["WINDOW"] = problem.kernel[0]
        kernel = device.compile(KernelSource.of(_SOURCE, "pool", defines))
        items = target.size // (lanes * pixels)
        height, width = problem.input.shape[2:]
        counted = problem.pads if problem.count_include_pad else (0, 0, 0, 0)
        return Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), items, height, width,
            source.offset, source.strides[3], target.offset, target.strides[3],
            *divisor(inner // lanes), *divisor(problem.out_width // pixels),
            *divisor(problem.out_height), *problem.kernel, *problem.stride, *problem.pads[:2],
            *problem.dilation, *counted))
