"""Products with few rows on CPUs, by code generated through LLVM.

The weights are divided into panels of columns. While a panel is computed, the accumulators of all
rows stay in registers, as in K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (ACM TOMS 34(3), 2008). Each weight is read only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.facts import REAL
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.generated import OneCall, Work
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.weights import Weights, WeightsInfo

_MOST_ROWS = 8
_MOST_VECTORS = 8
"""Maximum number of vectors per row of a panel."""


class HostDirectRows(OneCall):
    """A product with up to 8 rows; small products run on the caller's thread."""

    op = "gemm"
    name = "host_direct_dense"

    def refused(self, problem: GemmProblem) -> str | None:
        from gossamer.device.native.code import unsupported

        if not 0 < problem.rows <= _MOST_ROWS or not problem.depth:
            return f"needs 1 to {_MOST_ROWS} rows of at least one element"
        return unsupported(problem.epilogue.expression)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for threads in thread_configs(_MOST_ROWS * problem.columns * problem.depth):
            yield Variant(threads, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.gemm.rows_code import product

        target = native.processor()
        columns = -(-problem.columns // target.lanes)
        sums = target.registers - 2 - problem.rows
        vectors = max(min(sums // problem.rows, _MOST_VECTORS, columns), 1)
        shape = replace(problem, weights_info=WeightsInfo(), facts=(), result=REAL)
        code = function("product", target, product, shape, vectors, target.lanes)

        def panels(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            weight, width = np.asarray(arrays["weight"], np.float32), vectors * target.lanes
            padded = np.zeros((-(-problem.columns // width) * width, problem.depth), np.float32)
            padded[:problem.columns] = weight
            return padded.reshape(-1, width, problem.depth).swapaxes(1, 2)

        numbers = iter(range(1, len(problem.inputs)))
        operands = [weights.packed(f"operand{index}", partial(_row, f"operand{index}"))
                    if kind == "channel" else next(numbers)
                    for index, kind in enumerate(problem.epilogue.operands)]
        packed = weights.packed(f"panels of {vectors * target.lanes} columns", panels)
        return State(problem, variant, device, data=Work(
            code, workers(variant[THREADS]), -(-columns // vectors),
            (0, len(problem.inputs), packed, *operands)))


def _row(name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(arrays[name], np.float32).reshape(-1)
