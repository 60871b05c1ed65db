"""Gathering on a device, where each work-item copies one element."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, cannot_compile, divisor, groups_for
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("direct.cl")
_ELEMENTS = {1: "uchar", 4: "int", 8: "INT64"}


class DirectGather(Algorithm):
    """Each work-item reads an index and copies one element."""

    op = "gather"
    name = "direct"

    def supports(self, problem: GatherProblem, device: Device) -> str | None:
        if problem.data.stored_dtype.itemsize not in _ELEMENTS:
            return f"does not move elements of {problem.data.stored_dtype.itemsize} bytes"
        if problem.data.size >= 2**31:
            return f"a tensor of {problem.data.size} elements: indices are 32-bit"
        return cannot_compile(problem, device)

    def variants(self, problem: GatherProblem, device: Device) -> Iterable[Variant]:
        return [Variant((), problem.inputs, problem.outputs)]

    def prepare(self, weights: Weights, problem: GatherProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        count = problem.outputs[0].size
        if count == 0:
            return state
        element = _ELEMENTS[problem.data.stored_dtype.itemsize]
        index = "int" if problem.indices.dtype == "int32" else "INT64"
        kernel = device.compile(KernelSource.of(
            _SOURCE, "gather", {"ELEMENT": element, "INDEX": index}))
        run_time = iter(range(len(problem.inputs)))
        operands = [
            weights.packed(f"operand{i}", lambda arrays, i=i, spec=spec: np.asarray(  # type: ignore[misc]
                arrays[f"operand{i}"], spec.dtype))
            if i in problem.constants else input_buffer(next(run_time))
            for i, spec in enumerate((problem.data, problem.indices))]
        shape = problem.data.shape
        state.launches.append(Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            *operands, output_buffer(0), count, shape[problem.axis],
            *divisor(problem.indices.size), *divisor(math.prod(shape[problem.axis + 1:])))))
        return state
