"""Element-wise arithmetic on CPUs, by code that LLVM compiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.expression import Expression
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.generated import OneCall, Work
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.weights import Weights

_CHUNK = 2**12
"""Number of elements per task."""


class HostDirectElementwise(OneCall):
    """Evaluation of an expression whose operands are scalars and tensors of the result's shape."""

    op = "elementwise"
    name = "host_direct"
    between_thin = True

    def refused(self, problem: ElementwiseProblem) -> str | None:
        from gossamer.device.native.code import unsupported

        if {*problem.dtypes, *(spec.dtype for spec in problem.operands)} != {"float32"} or any(
                format_ is not None for format_ in problem.formats):
            return "computes float32 only"
        for index, spec in enumerate(problem.operands):
            if spec.size != 1 if index in problem.constants else spec.shape != problem.shape:
                return "needs operands of the result's shape, or constants of one number"
        return unsupported(problem.expression)

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterator[Variant]:
        for threads in thread_configs(math.prod(problem.shape)):
            yield Variant(threads, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: ElementwiseProblem, variant: Variant,
                device: Device) -> State:
        size = variant.outputs[0].size
        code = function("elementwise", native.processor(), elementwise, problem.expression,
                        problem.constants, size, native.processor().lanes)
        constants = {name: np.asarray(array, np.float32).reshape(-1)
                     for name, array in weights.arrays.items()}
        first, *others = problem.arranged(constants, range(len(problem.inputs)))
        return State(problem, variant, device, data=Work(
            code, workers(variant[THREADS]), -(-size // _CHUNK),
            (first, len(problem.inputs), *others)))


def elementwise(expression: Expression, constants: Sequence[int], size: int, lanes: int) -> str:
    """Return an LLVM module with the function "elementwise".

    Each task of the function computes _CHUNK elements. The function's arguments are the addresses
    of the first operand, of the output, and of the other operands.

    constants: indices of the operands that are scalars.
    size: number of elements of the output.
    lanes: number of floats in a vector register.
    """

    from gossamer.device.native.code import FLOAT, INT64, TaskCode

    code = TaskCode("elementwise")
    b = code.builder
    operand, target, *others = map(code.argument, range(1 + expression.inputs))
    operands = [operand, *others]
    single = {index: code.splat(code.load(FLOAT, operands[index]), lanes) for index in constants}
    whole = size // lanes * lanes

    def write(start: Any, valid: int) -> list[Any]:
        offset = b.mul(start, INT64(4))
        values = [single[index] if index in single else code.load_first(
            operand, offset, lanes, valid) for index, operand in enumerate(operands)]
        code.store_first(code.evaluate(expression, values, lanes), target, offset, lanes, valid)
        return []

    start, stop = (b.mul(task, INT64(_CHUNK)) for task in (code.first, code.end))
    is_last = b.icmp_signed(">", stop, INT64(whole))
    with code.loop(start, b.select(is_last, INT64(whole), stop), lanes) as step:
        write(step.index, lanes)
    if size % lanes:
        code.where(is_last, lambda: write(INT64(whole), size % lanes), [])
    return code.finished()
