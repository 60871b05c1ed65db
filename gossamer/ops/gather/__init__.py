"""Algorithms that gather slices by index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.errors import InputError
from gossamer.ops.algorithm import Variant
from gossamer.ops.concat import Rows
from gossamer.ops.copy.strided import ELEMENTS, widest_element
from gossamer.ops.gather.problem import GatherProblem, reference
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    cannot_compile,
    divisor,
    groups_for,
    layout_variants,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES

_SOURCE = Path(__file__).with_name("direct.cl")


class NumpyGather(HostAlgorithm):
    """Gathering with numpy.take.

    Raises InputError for an index out of range.
    """

    op = "gather"

    def compute(self, problem: GatherProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        indices = weights["operand1"] if 1 in problem.constants else inputs[-1]
        length = problem.data.shape[problem.axis]
        if indices.size and (indices.min() < -length or indices.max() >= length):
            wrong = indices.min() if indices.min() < -length else indices.max()
            raise InputError(f"index {wrong} is outside dimension {problem.axis} of shape "
                             f"{list(problem.data.shape)}")
        return reference(problem, inputs, weights)

    def variants(self, problem: GatherProblem, device: Device) -> Iterable[Variant]:
        return [Variant((), problem.inputs, problem.outputs)]


class DirectGather(KernelAlgorithm):
    """A kernel in which each work-item copies up to 16 bytes of one slice.

    If slices have a single 16-bit element, a work-item may copy two slices.

    A tensor of rank 4 may have any layout if the indices are a constant of rank 1, such as a
    permutation of channels.
    """

    op = "gather"
    name = "direct"
    writes_parts = True

    def supports(self, problem: GatherProblem, device: Device) -> str | None:
        if problem.data.stored_dtype.itemsize not in ELEMENTS:
            return f"does not copy elements of {problem.data.stored_dtype.itemsize} bytes"
        if problem.data.size >= 2**31:
            return f"a tensor of {problem.data.size} elements is too large for 32-bit indices"
        return cannot_compile(problem, device)

    def variants(self, problem: GatherProblem, device: Device) -> Iterable[Variant]:
        keeps_rank = problem.constants == (1,) and len(problem.indices.shape) == 1
        variants = layout_variants(problem) if keeps_rank else [
            Variant((), problem.inputs, problem.outputs)]
        if keeps_rank and problem.data.dtype == "float32":
            variants += [variant.as_fp16 for variant in variants]
        return variants

    def kernel_launches(self, weights: Weights, problem: GatherProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        data = problem.data if 0 in problem.constants else variant.inputs[0]
        order = AXES.get(data.layout, tuple(range(len(data.shape))))
        inner = math.prod(data.shape[dim] for dim in order[order.index(problem.axis) + 1:])
        itemsize = data.stored_dtype.itemsize
        (target,) = variant.outputs
        # If the target is a slice of a larger tensor's channels, a row has the channels of one
        # pixel. Otherwise the only row is the whole target.
        rows = Rows.of(target, 3 if any(target.format.other_channels) else 0)
        width = widest_element(itemsize, (inner, rows.size, rows.first, rows.pitch))
        defines: dict[str, object] = {
            "ELEMENT": ELEMENTS[width],
            "INDEX": "int" if problem.indices.dtype == "int32" else "INT64"}
        inner = inner * itemsize // width
        count, rows = problem.outputs[0].size * itemsize // width, rows.in_units(width // itemsize)
        if inner == 1 and width == 2 and math.gcd(
                2, problem.indices.size, rows.size, rows.first, rows.pitch) == 2:
            defines["PAIRED"] = 1
            count, rows = count // 2, rows.in_units(2)
        kernel = device.compile(KernelSource.of(_SOURCE, "gather", defines))
        constants = {
            f"operand{i}": weights.packed(
                f"operand{i}", lambda arrays, i=i: np.asarray(  # type: ignore[misc]
                    arrays[f"operand{i}"], problem.operands[i].dtype))
            for i in problem.constants}
        operands = problem.arranged(constants, map(input_buffer, range(len(problem.inputs))))
        return [Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            *operands, output_buffer(0), count, data.shape[problem.axis],
            *divisor(problem.indices.size), *divisor(inner), *divisor(rows.size), rows.first,
            rows.pitch))]


OP = Op("gather", GatherProblem, reference, (NumpyGather(), DirectGather()))
