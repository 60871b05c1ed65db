"""Softmax on CPUs, by code that LLVM compiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.generated import OneCall, Work
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.weights import Weights


class HostDirectSoftmax(OneCall):
    """Softmax along the last, contiguous axis."""

    op = "softmax"
    name = "host_direct"
    between_thin = True

    def refused(self, problem: SoftmaxProblem) -> str | None:
        if problem.input.dtype != "float32" or problem.log:
            return "computes float32 only, and not the logarithm"
        if problem.axis != len(problem.input.shape) - 1:
            return "the elements of a row are not contiguous in memory"
        return None

    def variants(self, problem: SoftmaxProblem, device: Device) -> Iterator[Variant]:
        for threads in thread_configs(problem.input.size):
            yield Variant(threads, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: SoftmaxProblem, variant: Variant,
                device: Device) -> State:
        size = problem.input.shape[-1]
        code = function("softmax", native.processor(), softmax_of_rows, size,
                        native.processor().lanes)
        return State(problem, variant, device, data=Work(
            code, workers(variant[THREADS]), problem.input.size // max(size, 1)))


def softmax_of_rows(size: int, lanes: int) -> str:
    """Return an LLVM module with the function "softmax".

    Each task of the function computes a row. The function's arguments are the addresses of the
    input and of the output.

    size: number of elements in a row.
    lanes: number of floats in a vector register.
    """
    from llvmlite import ir

    from gossamer.device.native.code import TaskCode, integer, larger, vector

    code = TaskCode("softmax")
    b = code.builder
    x, y = map(code.argument, range(2))
    zero, least = (ir.Constant(vector(lanes), [value] * lanes) for value in (0.0, -math.inf))
    with code.loop(code.first, code.end) as task:
        start = b.mul(task.index, integer(4 * size))
        source, target = code.at(x, start), code.at(y, start)
        most = code.splat(code.reduce_lanes(larger, code.fold(
            size, lanes, -math.inf, source, lambda value, read, byte, valid: larger(b, value, read),
            least)), lanes)

        def power(total: Any, read: Any, byte: Any, valid: int) -> Any:
            value = code.exponential(b.fsub(read, most))
            code.store_first(value, target, byte, lanes, valid)
            return b.fadd(total, value)

        total = code.splat(code.reduce_lanes(lambda b, x, y: b.fadd(x, y), code.fold(
            size, lanes, -math.inf, source, power, zero)), lanes)

        def share(value: Any, read: Any, byte: Any, valid: int) -> Any:
            code.store_first(b.fdiv(read, total), target, byte, lanes, valid)
            return value

        code.fold(size, lanes, 0.0, target, share, zero)
    return code.finished()
