"""Algorithms of padding and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.facts import REAL, point
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.packed import WORD_TYPES, PackedAlgorithm, constant_words, formats_for
from gossamer.ops.pad.problem import PadProblem, reference
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    cannot_compile,
    cannot_index_variants,
    divisor,
    groups_for,
    layout_variants,
    memory_order,
    merge,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec

_DIRECT = Path(__file__).with_name("direct.cl")
_PACKED = Path(__file__).with_name("packed.cl")
_ELEMENTS = {1: ("uchar", np.uint8), 2: ("unsigned short", np.uint16), 4: ("int", np.int32),
             8: ("INT64", np.int64)}

Loop = tuple[int, int, int, int]
"""A dimension: (output size, input size, source stride, number of elements added before the
input)."""


class NumpyPad(HostAlgorithm):
    """Padding with numpy.pad, then cropping."""

    op = "pad"
    compute = staticmethod(reference)


class DirectPad(KernelAlgorithm):
    """A kernel in which each work-item computes one output element."""

    op = "pad"
    name = "direct"

    def supports(self, problem: PadProblem, device: Device) -> str | None:
        if problem.input.stored_dtype.itemsize not in _ELEMENTS:
            return f"does not copy elements of {problem.input.stored_dtype.itemsize} bytes"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if any(len(_loops(problem, variant)) > 6 for variant in layout_variants(problem)):
            return "supports at most six dimensions after merging"
        return None

    def kernel_launches(self, weights: Weights, problem: PadProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        count, dtype = variant.outputs[0].size, variant.outputs[0].stored_dtype
        loops = _loops(problem, variant)
        rank = next(rank for rank in (2, 4, 6) if rank >= len(loops))
        element, bits = _ELEMENTS[dtype.itemsize]
        kernel = device.compile(KernelSource.of(_DIRECT, "pad", {
            "ELEMENT": element, "RANK": rank, problem.mode.upper(): 1}))
        with np.errstate(over="ignore"):
            value = np.full(1, problem.value).astype(dtype).view(bits)
        numbers = [n for size, *loop in [(1, 1, 0, 0)] * (rank - len(loops)) + loops
                   for n in (*divisor(size), *loop)]
        return [Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count,
            *([value[0]] if problem.mode == "constant" else []), *numbers))]


def _loops(problem: PadProblem, variant: Variant) -> list[Loop]:
    """Return the dimensions in memory order; adjacent dimensions without pads are merged."""
    source, target = variant.inputs[0], variant.outputs[0]
    order = memory_order(target)
    pads = list(zip(source.shape, problem.low, problem.high, strict=True))
    marks = [pads[dim] if any(pads[dim][1:]) else None for dim in order]
    sizes, (strides,), left = merge([target.shape[dim] for dim in order],
                                    [[source.strides[dim] for dim in order]], marks)
    return [(size, size, stride, 0) if mark is None else (size, mark[0], stride, mark[1])
            for size, stride, mark in zip(sizes, strides, left, strict=True)]


class PackedPad(PackedAlgorithm):
    """Padding of packed words along rows and columns with a constant.

    Negative pads crop. The constant and all inputs that the value facts allow must be representable
    in bits (-1, 1) or trits (-1, 0, 1).
    """

    op = "pad"

    def supports(self, problem: PadProblem, device: Device) -> str | None:
        if len(problem.input.shape) != 4 or any(problem.low[:2]) or any(problem.high[:2]):
            return "pads only the rows and columns of (N, C, H, W)"
        if problem.mode != "constant":
            return "pads only with a constant"
        if problem.input.dtype != "float32":
            return f"packs float32 inputs, not {problem.input.dtype}"
        if not self.formats(problem):
            return "needs inputs and a constant that are known to be -1, 0 or 1"
        return cannot_index_variants(self.variants(problem, device), device)

    def formats(self, problem: PadProblem) -> list[Format]:
        known = problem.facts[0] if problem.facts else REAL
        return formats_for(known.join(point(problem.value)))

    def kernel_launches(self, weights: Weights, problem: PadProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        (x,), (y,) = variant.inputs, variant.outputs
        images, words, height, width = y.stored_shape[:4]
        count = images * words * height * width
        kernel = device.compile(KernelSource.of(_PACKED, "pad_packed", {
            "WORD": WORD_TYPES[x.stored_dtype.name], "WORD_BITS": 8 * x.stored_dtype.itemsize,
            "PLANES": PACKED_DTYPES[x.dtype].planes, "POSITIVE": int(problem.value > 0),
            "NONZERO": int(problem.value != 0)}))
        return [Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count, *x.shape[1:], *divisor(width),
            *divisor(height), *divisor(words), *problem.low[2:]))]

    def compute_words(self, problem: PadProblem, inputs: Sequence[np.ndarray],
                      output: np.ndarray, spec: TensorSpec) -> None:
        words = constant_words(problem.value, spec)
        output.reshape(*output.shape[:4], words.shape[1])[...] = words[:, None, None, :]
        source, target = zip(*map(
            _uncropped, problem.input.shape[2:], problem.low[2:], problem.high[2:]), strict=True)
        output[:, :, *target] = inputs[0][:, :, *source]


def _uncropped(size: int, low: int, high: int) -> tuple[slice, slice]:
    """Return the slice of an input dimension that is kept, and the slice of the output for it.

    size: size of the input dimension.
    low, high: numbers of elements added before and after the input; negative numbers crop.
    """
    first, end = max(0, -low), size + min(0, high)
    return slice(first, end), slice(first + low, end + low)


OP = Op("pad", PadProblem, reference, (NumpyPad(), DirectPad(), PackedPad()))
