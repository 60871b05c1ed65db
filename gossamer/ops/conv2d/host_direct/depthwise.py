"""Depthwise convolutions on processors, by code that LLVM compiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of, processors
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.device.native.threads import Jobs
from gossamer.facts import REAL
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.host import float32_operands
from gossamer.ops.conv2d.host_direct.algorithm import refusal
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.host_threads import THREADS, number_of, thread_configs
from gossamer.ops.weights import Weights, WeightsInfo

_TASKS = 4
"""Parts of the planes for each thread, so that threads end at about the same time."""
_MOST_TAPS = 81
"""Taps whose products are written one by one."""


class HostDirectDepthwise(Algorithm):
    """Depthwise convolution, which reads each input plane where it is."""

    op = "conv2d"
    name = "host_direct_depthwise"
    between_pruned = True
    by_image = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := native.unavailable(device)) is not None:
            return reason
        if not problem.is_depthwise:
            return "is not depthwise"
        if problem.stride[1] > 2 or problem.taps > _MOST_TAPS:
            return f"has columns more than 2 apart, or more than {_MOST_TAPS} taps"
        return refusal(problem)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        widths = [lanes for lanes in (16, 8, 4) if lanes <= native.processor().lanes][:2]
        for lanes in sorted(widths, key=lambda lanes: -(-problem.out_width // lanes) * lanes):
            for threads in thread_configs():
                yield Variant((("lanes", lanes), *threads), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.conv2d.host_direct.depthwise_code import depthwise

        # the code depends on nothing else of the problem
        shape = replace(problem, batch=1, weights_info=WeightsInfo(), facts=(), result=REAL)
        code = function("depthwise", native.processor(), depthwise, shape, variant["lanes"])
        constants = float32_operands(weights)
        operands = [np.ascontiguousarray(constants[f"operand{index}"].reshape(-1))
                    if kind == "channel" else None
                    for index, kind in enumerate(problem.epilogue.operands)]
        weight = np.ascontiguousarray(weights.arrays["weight"], np.float32)
        return State(problem, variant, device, data=_Work(
            code, number_of(variant[THREADS]) or processors(), weight, tuple(operands)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        Jobs(self.jobs(state, inputs, outputs, workspace), state.data.threads).run()

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        work: _Work = state.data
        if problem.outputs[0].size == 0:
            return []
        x, *tensors = map(address_of, inputs)
        y = address_of(outputs[0])
        jobs = []
        for image in range(problem.batch if images is None else images):
            source, target = (4 * image * size for size in (
                problem.channels * problem.height * problem.width,
                problem.out_channels * problem.image_pixels))
            given = iter(tensors)
            jobs.append(Job(work.code, (
                x + source, y + target, native.address(work.weight),
                *(next(given) + target if constant is None else native.address(constant)
                  for constant in work.operands)),
                problem.out_channels, max(problem.out_channels // (_TASKS * work.threads), 1)))
        return jobs


class _Work(NamedTuple):
    """What `launch` runs. operands: constants, and None for a run-time input."""

    code: Function
    threads: int
    weight: np.ndarray
    operands: tuple[np.ndarray | None, ...]
