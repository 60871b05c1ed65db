"""Padding on a device, where each work-item writes one output."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    KernelAlgorithm,
    cannot_compile,
    divisor,
    groups_for,
    layout_variants,
    memory_order,
    merge,
)
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("direct.cl")
_ELEMENTS = {1: ("uchar", np.uint8), 2: ("unsigned short", np.uint16), 4: ("int", np.int32),
             8: ("INT64", np.int64)}

Loop = tuple[int, int, int, int]
"""Four numbers of a dimension: the output size, the input size, the source stride, and the number
of elements that are added before the dimension."""


class DirectPad(KernelAlgorithm):
    """Each work-item writes one element of the output: a copy of an input element, or the
    constant."""

    op = "pad"
    name = "direct"

    def supports(self, problem: PadProblem, device: Device) -> str | None:
        if problem.input.stored_dtype.itemsize not in _ELEMENTS:
            return f"does not move elements of {problem.input.stored_dtype.itemsize} bytes"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if any(len(_loops(problem, variant)) > 6 for variant in layout_variants(problem)):
            return "more than six separate dimensions"
        return None

    def kernel_launch(self, weights: Weights, problem: PadProblem, variant: Variant,
                      device: Device) -> Launch:
        count, dtype = variant.outputs[0].size, variant.outputs[0].stored_dtype
        loops = _loops(problem, variant)
        rank = next(rank for rank in (2, 4, 6) if rank >= len(loops))
        element, bits = _ELEMENTS[dtype.itemsize]
        kernel = device.compile(KernelSource.of(_SOURCE, "pad", {
            "ELEMENT": element, "RANK": rank, problem.mode.upper(): 1}))
        with np.errstate(over="ignore"):
            value = np.full(1, problem.value).astype(dtype).view(bits)
        numbers = [n for size, *loop in [(1, 1, 0, 0)] * (rank - len(loops)) + loops
                   for n in (*divisor(size), *loop)]
        return Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count,
            *([value[0]] if problem.mode == "constant" else []), *numbers))


def _loops(problem: PadProblem, variant: Variant) -> list[Loop]:
    """Returns the dimensions in the order of memory. Neighbouring dimensions without pads are
    merged."""
    source, target = variant.inputs[0], variant.outputs[0]
    order = memory_order(target)
    pads = list(zip(source.shape, problem.low, problem.high, strict=True))
    marks = [pads[dim] if any(pads[dim][1:]) else None for dim in order]
    sizes, (strides,), left = merge([target.shape[dim] for dim in order],
                                    [[source.strides[dim] for dim in order]], marks)
    return [(size, size, stride, 0) if mark is None else (size, mark[0], stride, mark[1])
            for size, stride, mark in zip(sizes, strides, left, strict=True)]
