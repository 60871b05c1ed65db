"""Depthwise convolution on CPUs, by code that LLVM compiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host_direct.algorithm import (
    HostDirect,
    Work,
    refusal,
    shape_of,
    widths_of,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.weights import Weights

_MOST_TAPS = 81
"""Maximum number of taps; the loop over taps is fully unrolled."""


class HostDirectDepthwise(HostDirect):
    """Depthwise convolution that reads input planes without copying them."""

    name = "host_direct_depthwise"
    dense = True
    between_thin = True

    def refused(self, problem: Conv2dProblem) -> str | None:
        if not problem.is_depthwise:
            return "is not depthwise"
        if problem.stride[1] > 2 or problem.taps > _MOST_TAPS:
            return f"has a horizontal stride above 2, or more than {_MOST_TAPS} taps"
        return refusal(problem)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        for lanes in widths_of(problem.out_width):
            for threads in thread_configs():
                yield Variant((("lanes", lanes), *threads), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.conv2d.host_direct.depthwise_code import depthwise

        code = function("depthwise", native.processor(), depthwise, shape_of(problem),
                        variant["lanes"])
        weight = np.ascontiguousarray(weights.arrays["weight"], np.float32)
        return State(problem, variant, device, data=Work.of(
            code, weights, problem, (weight,),
            threads=workers(variant[THREADS]),
            tasks=problem.out_channels * (problem.outputs[0].size > 0)))
