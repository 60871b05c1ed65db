"""Gathering on a device, where each work-item copies a few neighbouring elements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.concat.join import Rows
from gossamer.ops.copy.strided import ELEMENTS, widest_element
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    cannot_compile,
    divisor,
    groups_for,
    layout_variants,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES

_SOURCE = Path(__file__).with_name("direct.cl")


class DirectGather(Algorithm):
    """Each work-item reads an index and copies up to 16 bytes of the slice at this index. A tensor
    of rank 4 may have any layout where the indices are a constant of rank 1, such as an order of
    channels."""

    op = "gather"
    name = "direct"
    writes_parts = True

    def supports(self, problem: GatherProblem, device: Device) -> str | None:
        if problem.data.stored_dtype.itemsize not in ELEMENTS:
            return f"does not move elements of {problem.data.stored_dtype.itemsize} bytes"
        if problem.data.size >= 2**31:
            return f"a tensor of {problem.data.size} elements: indices are 32-bit"
        return cannot_compile(problem, device)

    def variants(self, problem: GatherProblem, device: Device) -> Iterable[Variant]:
        keeps_rank = problem.constants == (1,) and len(problem.indices.shape) == 1
        variants = layout_variants(problem) if keeps_rank else [
            Variant((), problem.inputs, problem.outputs)]
        if keeps_rank and problem.data.dtype == "float32":
            variants += [variant.as_fp16 for variant in variants]
        return variants

    def prepare(self, weights: Weights, problem: GatherProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        count = problem.outputs[0].size
        if count == 0:
            return state
        data = problem.data if 0 in problem.constants else variant.inputs[0]
        order = AXES.get(data.layout, tuple(range(len(data.shape))))
        inner = math.prod(data.shape[dim] for dim in order[order.index(problem.axis) + 1:])
        itemsize = data.stored_dtype.itemsize
        (target,) = variant.outputs
        # a row is the channels of one pixel if the target is a part of a larger tensor's channels,
        # else the whole target
        rows = Rows.of(target, 3 if any(target.format.other_channels) else 0)
        width = widest_element(itemsize, (inner, rows.size, rows.first, rows.pitch))
        defines: dict[str, object] = {
            "ELEMENT": ELEMENTS[width],
            "INDEX": "int" if problem.indices.dtype == "int32" else "INT64"}
        inner = inner * itemsize // width
        count, rows = count * itemsize // width, rows.in_units(width // itemsize)
        if inner == 1 and width == 2 and math.gcd(
                2, problem.indices.size, rows.size, rows.first, rows.pitch) == 2:
            defines["PAIRED"] = 1
            count, rows = count // 2, rows.in_units(2)
        kernel = device.compile(KernelSource.of(_SOURCE, "gather", defines))
        run_time = iter(range(len(problem.inputs)))
        operands = [
            weights.packed(f"operand{i}", lambda arrays, i=i, spec=spec: np.asarray(  # type: ignore[misc]
                arrays[f"operand{i}"], spec.dtype))
            if i in problem.constants else input_buffer(next(run_time))
            for i, spec in enumerate((problem.data, problem.indices))]
        state.launches.append(Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            *operands, output_buffer(0), count, data.shape[problem.axis],
            *divisor(problem.indices.size), *divisor(inner), *divisor(rows.size), rows.first,
            rows.pitch)))
        return state
