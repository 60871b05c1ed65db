"""Reductions on CPUs, by code that LLVM compiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.generated import OneCall, Work
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, TensorSpec

_MOST_NUMBERS = 2**14
"""Maximum number of elements per result. The elements are added sequentially, so the rounding error
grows with their number."""


class HostDirectReduce(OneCall):
    """A reduction over dimensions that are adjacent in memory."""

    op = "reduce"
    name = "host_direct"
    between_thin = True

    def refused(self, problem: ReduceProblem) -> str | None:
        if problem.input.dtype != "float32":
            return f"computes float32 only, not {problem.input.dtype}"
        if not 0 < problem.count <= _MOST_NUMBERS:
            return f"reduces 1 to {_MOST_NUMBERS} elements to one"
        if not _is_near(problem, problem.input):
            return "the reduced dimensions are not adjacent in memory"
        return None

    def variants(self, problem: ReduceProblem, device: Device) -> Iterator[Variant]:
        for threads in thread_configs(problem.input.size):
            for variant in layout_variants(problem, ("NCHW", "NHWC"), threads):
                if _is_near(problem, variant.inputs[0]):
                    yield variant

    def prepare(self, weights: Weights, problem: ReduceProblem, variant: Variant,
                device: Device) -> State:
        source, lanes = variant.inputs[0], native.processor().lanes
        order = _order(source)
        inner = math.prod(source.shape[axis] for axis in order[1 + max(
            map(order.index, problem.axes), default=-1):]) if problem.axes else source.size
        code = function("reduce", native.processor(), reducing, problem.kind, problem.count, inner,
                        lanes)
        return State(problem, variant, device, data=Work(
            code, workers(variant[THREADS]),
            variant.outputs[0].size // max(inner, 1) * -(-inner // lanes)))


def _order(spec: TensorSpec) -> tuple[int, ...]:
    """Return the dimensions in their order in memory, outermost first."""
    return AXES[spec.layout] if spec.layout in AXES else tuple(range(len(spec.shape)))


def _is_near(problem: ReduceProblem, spec: TensorSpec) -> bool:
    """Return whether the algorithm supports the input's layout.

    The reduced dimensions must be adjacent in memory, and the other dimensions must be in the same
    order in the input and in the result.
    """
    order = _order(spec)
    positions = sorted(map(order.index, problem.axes))
    kept = [axis for axis in order if axis not in problem.axes]
    return all(later - position == 1 for position, later in itertools.pairwise(positions)) and (
        problem.keepdims or kept == sorted(kept))


def reducing(kind: str, count: int, inner: int, lanes: int) -> str:
    """Return an LLVM module with the function "reduce".

    The function reduces an array (outer, count, inner) along its second axis. Each task computes a
    vector of results, or one result if `inner` is 1. The arguments are the addresses of the input
    and of the output.
    """
    from llvmlite import ir

    from gossamer.device.native.code import TaskCode, integer, larger, vector

    code = TaskCode("reduce")
    b = code.builder
    x, y = map(code.argument, range(2))
    combine = larger if kind == "max" else lambda b, x, y: b.fadd(x, y)
    fill = -math.inf if kind == "max" else 0.0
    least, vectors = ir.Constant(vector(lanes), [fill] * lanes), -(-inner // lanes)

    def finished(value: Any) -> Any:
        if kind != "mean":
            return value
        divisor: Any = float(count) if inner == 1 else [float(count)] * lanes
        return b.fdiv(value, ir.Constant(value.type, divisor))

    def write(outer: Any, number: Any, valid: int) -> list[Any]:
        column = b.mul(number, integer(4 * lanes))
        source = code.at(x, b.add(b.mul(outer, integer(4 * count * inner)), column))
        with code.loop(0, count, carried=[least]) as row:
            row.next = [combine(b, row.values[0], code.load_first(
                source, b.mul(row.index, integer(4 * inner)), lanes, valid))]
        target = b.add(b.mul(outer, integer(4 * inner)), column)
        code.store_first(finished(row.values[0]), y, target, lanes, valid)
        return []

    with code.loop(code.first, code.end) as task:
        if inner == 1:
            values = code.fold(count, lanes, fill, code.at(
                x, b.mul(task.index, integer(4 * count))),
                lambda value, read, byte, valid: combine(b, value, read), least)
            result = finished(code.reduce_lanes(combine, values))
            code.store(result, y, b.mul(task.index, integer(4)))
        else:
            outer, number = b.sdiv(task.index, integer(vectors)), b.srem(
                task.index, integer(vectors))
            code.by_size(number, inner, lanes, lambda valid: write(outer, number, valid))
    return code.finished()
