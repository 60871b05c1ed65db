"""Concatenation on a device: each input is copied to its slice of the output."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.strided import StridedLoops, copy_launches
from gossamer.ops.launch import input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights


class SliceCopies(Algorithm):
    """Launches one strided copy for each input."""

    op = "concat"
    name = "slices"

    def supports(self, problem: ConcatProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)

    def variants(self, problem: ConcatProblem, device: Device) -> Iterable[Variant]:
        variants = layout_variants(problem)
        if problem.outputs[0].dtype == "float32":
            variants += [variant.as_fp16 for variant in variants]
        return variants

    def prepare(self, weights: Weights, problem: ConcatProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        target = variant.outputs[0]
        position = 0
        for index, part in enumerate(variant.inputs):
            walk = StridedLoops(part.shape, part.strides, target.strides,
                                target_offset=position * target.strides[problem.axis])
            state.launches += copy_launches(device, part.stored_dtype.itemsize, walk,
                                            input_buffer(index), output_buffer(0))
            position += part.shape[problem.axis]
        return state
