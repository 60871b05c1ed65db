"""Pooling on a device: a work-item an output, or four neighbouring ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gossamer.device.base import Device, KernelSource
from gossamer.ops.algorithm import (
    Algorithm,
    Launch,
    State,
    Variant,
    Weights,
    input_buffer,
    output_buffer,
)
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.strided import (
    GROUP,
    cannot_compile,
    divisor,
    groups_for,
    layout_variants,
    spatial_inner,
    work_shape,
)

_SOURCE = Path(__file__).with_name("direct.cl")


class DirectPool(Algorithm):
    op = "pool"
    name = "direct"

    def supports(self, problem: PoolProblem, device: Device) -> str | None:
        if problem.input.dtype != "float32":
            return f"pools float32, not {problem.input.dtype}"
        return cannot_compile(problem, device)

    def variants(self, problem: PoolProblem, device: Device) -> Iterable[Variant]:
        return layout_variants(problem)

    def prepare(self, weights: Weights, problem: PoolProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if variant.outputs[0].size == 0:
            return state
        inner = spatial_inner(variant.inputs[0])
        lanes, pixels = work_shape(inner, problem.out_width)
        defines: dict[str, object] = {"LANES": lanes, "PIXELS": pixels}
        if problem.kind == "max":
            defines["MAX"] = 1
        if problem.kernel in ((2, 2), (3, 3)):
            defines["WINDOW"] = problem.kernel[0]
        kernel = device.compile(KernelSource.of(_SOURCE, "pool", defines))
        items = variant.outputs[0].size // (lanes * pixels)
        height, width = problem.input.shape[2:]
        counted = problem.pads if problem.count_include_pad else (0, 0, 0, 0)
        state.launches.append(Launch(kernel, groups_for(items), (GROUP,), (
            input_buffer(0), output_buffer(0), items, height, width, inner,
            *divisor(inner // lanes), *divisor(problem.out_width // pixels),
            *divisor(problem.out_height), *problem.kernel, *problem.stride, *problem.pads[:2],
            *problem.dilation, *counted)))
        return state
