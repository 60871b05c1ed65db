"""Generate code that transposes matrices on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from gossamer.device.native.code import INT32, Code, TaskCode, integer, vector


def transposing(height: int, width: int, source_row: int, target_row: int, lanes: int) -> str:
    """Return an LLVM module with the function "transpose".

    Each task transposes `lanes` columns. The arguments are the addresses of the matrix (height,
    width) and of the transposed matrix. Rows of the transposed matrix are padded with zeros to a
    multiple of `lanes` floats if `target_row` is at least this multiple.

    source_row: distance between consecutive rows of the matrix, in floats.
    target_row: distance between consecutive rows of the transposed matrix, in floats.
    """
    code = TaskCode("transpose")
    source, target = map(code.argument, range(2))
    whole = -(-height // lanes) * lanes

    def block(row: Any, column: Any, rows: int, columns: int) -> None:
        """Emit code that transposes a block of `lanes` x `lanes` elements.

        rows, columns: numbers of rows and columns of the block that are inside the matrix.
        """
        b = code.builder
        start = b.mul(b.add(b.mul(row, integer(source_row)), column), integer(4))
        goal = b.mul(b.add(b.mul(column, integer(target_row)), row), integer(4))
        zero = ir.Constant(vector(lanes), [0.0] * lanes)
        values = [code.load_first(source, b.add(start, integer(4 * index * source_row)), lanes,
                                  columns) if index < rows else zero for index in range(lanes)]
        for index, value in enumerate(_transposed(code, values, lanes)[:columns]):
            code.store_first(value, target, b.add(goal, integer(4 * index * target_row)), lanes,
                             lanes if whole <= target_row else rows)

    def strip(column: Any, columns: int) -> list[Any]:
        """Emit code that transposes the columns of a task."""
        with code.loop(0, height // lanes) as part:
            block(code.builder.mul(part.index, integer(lanes)), column, lanes, columns)
        if height % lanes:
            block(integer(height // lanes * lanes), column, height % lanes, columns)
        return []

    with code.loop(code.first, code.end) as task:
        column = code.builder.mul(task.index, integer(lanes))
        code.by_size(task.index, width, lanes, lambda columns: strip(column, columns))
    return code.finished()


def _transposed(code: Code, values: Sequence[Any], lanes: int) -> list[Any]:
    """Return the columns of a square block, given its rows.

    Row i of the upper half is interleaved with row i of the lower half. This step is done
    log2(lanes) times.
    """
    half = lanes // 2
    low, high = (ir.Constant(ir.VectorType(INT32, lanes), [
        number for lane in range(start, start + half) for number in (lane, lane + lanes)])
        for start in (0, half))
    rows = list(values)
    for _ in range(lanes.bit_length() - 1):
        rows = [code.builder.shuffle_vector(rows[index], rows[index + half], order)
                for index in range(half) for order in (low, high)]
    return rows
