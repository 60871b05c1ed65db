"""Algorithms of resizing H and W."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.resize.problem import ResizeProblem, linear, nearest, reference, resize
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    divisor,
    groups_for,
    spatial_work,
)
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("tables.cl")


class NumpyResize(HostAlgorithm):
    """Resizing with NumPy indexing."""

    op = "resize"
    compute = staticmethod(resize)


class TableResize(KernelAlgorithm):
    """One launch that looks up input positions in tables.

    The tables are computed once on the host, so that the kernel needs no code for the coordinate
    modes.
    """

    op = "resize"
    name = "tables"
    reads_parts = True
    writes_parts = True

    def kernel_launches(self, weights: Weights, problem: ResizeProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        (source,), (target,) = variant.inputs, variant.outputs
        inner, lanes, pixels = spatial_work(source, target)
        defines: dict[str, object] = {"LANES": lanes, "PIXELS": pixels,
                                      "HALVES": int(variant.precision == "fp16")}
        if problem.mode == "linear":
            defines["LINEAR"] = 1
        kernel = device.compile(KernelSource.of(_SOURCE, "resize", defines))
        items = target.size // (lanes * pixels)
        return [Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), *_tables(weights, problem), items,
            *problem.input.shape[2:], source.offset, source.strides[3], target.offset,
            target.strides[3], *divisor(inner // lanes), *divisor(problem.size[1] // pixels),
            *divisor(problem.size[0])))]


def _tables(weights: Weights, problem: ResizeProblem) -> list[Buffer]:
    if problem.mode == "nearest":
        tables = [nearest(problem, 0), nearest(problem, 1)]
    else:
        tables = [table for pair in zip(linear(problem, 0), linear(problem, 1), strict=True)
                  for table in pair]
    sizes = f"{problem.input.shape[2:]} {problem.size}"

    def packed(index: int, table: np.ndarray) -> Buffer:
        return weights.packed(f"table {index} of {sizes}", lambda arrays: table)

    return [packed(index, table) for index, table in enumerate(tables)]


OP = Op("resize", ResizeProblem, reference, (NumpyResize(), TableResize()))
