"""Algorithms for the largest or smallest elements along one dimension."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import HostAlgorithm, KernelAlgorithm, cannot_compile
from gossamer.ops.top_k.problem import TopKProblem, reference
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("rounds.cl")
_GROUP = 256
_TYPES = {"float32": "float", "int32": "int", "int64": "INT64"}
MOST_ELEMENTS = 64
"""Maximum k of the kernel, which passes over the input once for each of the k elements."""


class NumpyTopK(HostAlgorithm):
    """Sorting with numpy.argsort, or numpy.argmin for a single element."""

    op = "top_k"
    compute = staticmethod(reference)


class RoundsTopK(KernelAlgorithm):
    """One launch with a round for each of the k elements.

    Each round finds the element that follows the previous round's element in sorted order.
    """

    op = "top_k"
    name = "rounds"

    def supports(self, problem: TopKProblem, device: Device) -> str | None:
        if problem.count > MOST_ELEMENTS:
            return f"finds at most {MOST_ELEMENTS} elements, not {problem.count}"
        return cannot_compile(problem, device)

    def variants(self, problem: TopKProblem, device: Device) -> Iterable[Variant]:
        # no fp16: rounding may change the order, and the indices would then be wrong
        return [Variant((), problem.inputs, problem.outputs)]

    def kernel_launches(self, weights: Weights, problem: TopKProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        shape = problem.input.shape
        length, inner = shape[problem.axis], math.prod(shape[problem.axis + 1:])
        across = inner >= 16
        lanes = 8 if across or length <= 64 else _GROUP
        defines: dict[str, object] = {"VALUE": _TYPES[problem.input.dtype], "LANES": lanes,
                                      "COLUMNS": _GROUP // lanes}
        for name, is_set in (("ACROSS", across), ("SMALLEST", not problem.largest),
                             ("NAN_FIRST", problem.nan_first), ("LAST", problem.last),
                             ("PLACES_ONLY", problem.places_only)):
            if is_set:
                defines[name] = 1
        kernel = device.compile(KernelSource.of(_SOURCE, "top_k", defines))
        rows = problem.input.size // length
        return [Launch(kernel, (-(-rows // (_GROUP // lanes)),), (_GROUP,), (
            input_buffer(0), *map(output_buffer, range(len(problem.outputs))), rows, length, inner,
            problem.count))]


OP = Op("top_k", TopKProblem, reference, (NumpyTopK(), RoundsTopK()))
