"""Concatenation on a device: each input is copied to its slice of the output."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.concat.join import join_launches
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES


class SliceCopies(Algorithm):
    """Copies all inputs, which have the output's layout. Each launch copies up to four inputs."""

    op = "concat"
    name = "slices"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: ConcatProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)

    def variants(self, problem: ConcatProblem, device: Device) -> Iterable[Variant]:
        variants = layout_variants(problem)
        if problem.outputs[0].dtype == "float32":
            variants += [variant.as_fp16 for variant in variants]
        return variants

    def prepare(self, weights: Weights, problem: ConcatProblem, variant: Variant,
                device: Device) -> State:
        (target,) = variant.outputs
        order = AXES.get(target.layout, tuple(range(len(target.shape))))
        return State(problem, variant, device, join_launches(
            device, variant.inputs, target, order.index(problem.axis)))
