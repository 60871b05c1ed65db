"""Algorithms of max and average pooling."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.facts import REAL
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.packed import WORD_TYPES, PackedAlgorithm, formats_for
from gossamer.ops.pool.host_direct import HostDirectPool
from gossamer.ops.pool.problem import PoolProblem, counts_along, pool, reference
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    cannot_index_variants,
    divisor,
    groups_for,
    spatial_work,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, Format

_DIRECT = Path(__file__).with_name("direct.cl")
_PACKED = Path(__file__).with_name("packed.cl")


class NumpyPool(HostAlgorithm):
    """Pooling with one NumPy operation for each position in the window."""

    op = "pool"
    compute = staticmethod(pool)


class DirectPool(KernelAlgorithm):
    """A kernel in which each work-item computes one output, or four neighbouring outputs."""

    op = "pool"
    name = "direct"
    reads_parts = True
    writes_parts = True

    def kernel_launches(self, weights: Weights, problem: PoolProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        (source,), (target,) = variant.inputs, variant.outputs
        inner, lanes, pixels = spatial_work(source, target)
        defines: dict[str, object] = {"LANES": lanes, "PIXELS": pixels,
                                      "HALVES": int(variant.precision == "fp16")}
        if problem.kind == "max":
            defines["MAX"] = 1
        if problem.kernel in ((2, 2), (3, 3)):
            defines["WINDOW"] = problem.kernel[0]
        kernel = device.compile(KernelSource.of(_DIRECT, "pool", defines))
        items = target.size // (lanes * pixels)
        height, width = problem.input.shape[2:]
        counted = problem.pads if problem.count_include_pad else (0, 0, 0, 0)
        return [Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), items, height, width,
            source.offset, source.strides[3], target.offset, target.strides[3],
            *divisor(inner // lanes), *divisor(problem.out_width // pixels),
            *divisor(problem.out_height), *problem.kernel, *problem.stride, *problem.pads[:2],
            *problem.dilation, *counted))]


class PackedPool(PackedAlgorithm):
    """Max pooling by bit operations on words, each of which holds many channels.

    The value facts of the problem must guarantee that all values are -1 or 1, or that all values
    are -1, 0 or 1.
    """

    op = "pool"

    def supports(self, problem: PoolProblem, device: Device) -> str | None:
        if problem.kind != "max":
            return "computes maxima only"
        if not self.formats(problem):
            return "needs values that are known to be -1, 0 or 1"
        inside = replace(problem, count_include_pad=False)
        if any((counts_along(inside, axis) == 0).any() for axis in range(2)):
            return "a window lies in the padding"
        return cannot_index_variants(self.variants(problem, device), device)

    def formats(self, problem: PoolProblem) -> list[Format]:
        return formats_for(problem.facts[0] if problem.facts else REAL)

    def kernel_launches(self, weights: Weights, problem: PoolProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        (x,), (y,) = variant.inputs, variant.outputs
        count = math.prod(y.stored_shape[:4])
        kernel = device.compile(KernelSource.of(_PACKED, "pool_packed", {
            "WORD": WORD_TYPES[x.stored_dtype.name], "PLANES": PACKED_DTYPES[x.dtype].planes}))
        return [Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count, *x.shape[2:],
            *divisor(problem.out_width), *divisor(problem.out_height), *problem.kernel,
            *problem.stride, *problem.pads[:2], *problem.dilation))]


OP = Op("pool", PoolProblem, reference, (
    NumpyPool(), HostDirectPool(), DirectPool(), PackedPool()))
