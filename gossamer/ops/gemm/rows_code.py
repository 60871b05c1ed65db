"""Generate the code of matrix products with few rows on CPUs; see rows.py."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gossamer.device.native.code import FLOAT, INT64, POINTER, Code, Loop, integer, vector
from gossamer.ops.gemm.problem import GemmProblem

_SUMS = 8
"""Number of independent accumulators that keep a CPU core's adders busy: an addition has a latency
of four cycles, and two additions begin per cycle."""


def product(problem: GemmProblem, vectors: int, lanes: int) -> str:
    """Return an LLVM module whose function "product" computes one panel per task.

    The function's first argument points to the addresses of the input, the output, the weights and
    the epilogue's operands. The shape of the weights is (panels, depth, vectors * lanes).

    vectors: number of vectors per row of a panel.
    lanes: number of floats per vector.
    """
    module = ir.Module()
    code = Code(module, "product", [POINTER, INT64, INT64, POINTER])
    arguments, first, end, _ = code.arguments
    b = code.builder
    x, y, panels = (code.load(POINTER, arguments, 8 * index) for index in range(3))
    operands = [code.load(POINTER, arguments, 24 + 8 * index)
                for index in range(len(problem.epilogue.operands))]
    size, rows = 4 * lanes, range(problem.rows)
    zeros = [ir.Constant(vector(lanes), [0.0] * lanes)] * (vectors * len(rows))
    together = max(_SUMS // len(zeros), 1)

    def products(step: Loop, panel: Any, offset: int) -> list[Any]:
        """Emit the multiply-adds for k = step.index + offset, and return the updated sums."""
        k = b.add(step.index, integer(offset))
        weight_row = code.at(panel, b.mul(k, integer(vectors * size)))
        weights = [code.load(vector(lanes), weight_row, index * size) for index in range(vectors)]
        own = step.values[offset * len(zeros):(offset + 1) * len(zeros)]
        return [code.multiply_add(weights[index], value, own[row * vectors + index])
                for row in rows for value in [code.splat(code.load(FLOAT, x, b.mul(b.add(
                    k, integer(row * problem.depth)), integer(4))), lanes)]
                for index in range(vectors)]

    def panel(task: Any, columns: int) -> list[Any]:
        """Emit code that computes a panel and stores its first `columns` columns.

        The last panel may have padding columns.
        """
        source = code.at(panels, b.mul(task, integer(problem.depth * vectors * size)))
        middle = problem.depth // together * together
        with code.loop(0, middle, together, zeros * together) as step:
            step.next = [value for offset in range(together)
                         for value in products(step, source, offset)]
        sums = step.values[:len(zeros)]
        for offset in range(1, together):
            sums = [b.fadd(*pair) for pair in zip(
                sums, step.values[offset * len(zeros):(offset + 1) * len(zeros)], strict=True)]
        with code.loop(middle, problem.depth, carried=sums) as rest:
            rest.next = products(rest, source, 0)
        first_column = b.mul(task, integer(vectors * size))
        for row in rows:
            for index in range(-(-columns // lanes)):
                valid = min(columns - index * lanes, lanes)
                column = b.add(first_column, integer(index * size))
                byte = b.add(column, integer(4 * row * problem.columns))
                read = [code.load_first(operand, column if kind == "channel" else byte, lanes,
                                        valid)
                        for operand, kind in zip(operands, problem.epilogue.operands, strict=True)]
                result = code.evaluate(problem.epilogue.expression, [
                    rest.values[row * vectors + index], *read], lanes)
                code.store_first(result, y, byte, lanes, valid)
        return []

    with code.loop(first, end) as task:
        code.by_size(task.index, problem.columns, vectors * lanes,
                     lambda columns: panel(task.index, columns))
    b.ret_void()
    return str(module)
