"""LLVM IR of direct convolution on CPUs; see algorithm.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from gossamer.device.native.code import (
    FLOAT,
    INT64,
    POINTER,
    Code,
    TaskCode,
    integer,
    vector,
)
from gossamer.ops.conv2d.host_direct.tiles import Kind, Views
from gossamer.ops.conv2d.problem import Conv2dProblem

_SUMS = 4
"""Number of independent accumulators that hide the latency of additions."""


def multiplying(problem: Conv2dProblem, views: Views, lanes: int, kinds: Sequence[Kind],
                outputs: int, block: int) -> str:
    """Return an LLVM module with the function "multiply".

    Each task computes one unit for one tile. A unit is a range of rows of the table, all in one
    group of the convolution. A row is `outputs` output channels.

    The arguments of "multiply" are, in this order: the addresses of an image's input and output;
    the addresses of the table's positions, weights and starts; the addresses of the units and of
    the tiles; the number of units; the addresses of the epilogue's operands.
    """
    module = ir.Module()
    tiles = [_TileCode(module, f"tile{index}", problem, views, lanes, kind, outputs, block).write()
             for index, kind in enumerate(kinds)]
    code = TaskCode("multiply", module)
    b = code.builder
    x, y, positions, weights, starts, units, tile_table = map(code.argument, range(7))
    count = code.argument(7, INT64)
    operands = [code.argument(8 + index) for index in range(len(problem.epilogue.operands))]
    with code.loop(code.first, code.end) as task:
        entry = code.at(tile_table, b.mul(b.sdiv(task.index, count), integer(24)))
        kind, row, column = (code.load(INT64, entry, 8 * index) for index in range(3))
        unit = b.srem(task.index, count)
        channels = [code.index(units, b.add(unit, integer(index))) for index in range(2)]
        done = code.function.append_basic_block("next")
        choice = b.switch(kind, done)
        for index, tile in enumerate(tiles):
            case = code.function.append_basic_block(f"case{index}")
            choice.add_case(integer(index), case)
            b.position_at_end(case)
            b.call(tile, [x, y, positions, weights, starts, code.scratch, row, column, *channels,
                          *operands])
            b.branch(done)
        b.position_at_end(done)
    return code.finished()


@dataclass
class _TileCode:
    """The function that computes a tile for the rows of a unit.

    The function processes the blocks of input channels in turn. It first copies the views of the
    block to scratch memory, unless weights are multiplied by the input itself. Then, for each row
    of the table, the function loads the sums, adds the products of the block, and stores the sums.
    The sums lie behind the views in scratch memory. In the last block, the function applies the
    epilogue and stores the results instead of the sums.
    """

    module: ir.Module
    name: str
    problem: Conv2dProblem
    views: Views
    lanes: int
    kind: Kind
    outputs: int
    block: int

    def __post_init__(self) -> None:
        problem = self.problem
        self.rows, self.vectors, self.last = self.kind
        self.size = 4 * self.lanes
        self.zero = ir.Constant(vector(self.lanes), [0.0] * self.lanes)
        self.width = problem.image_pixels if problem.is_pointwise else problem.out_width
        self.input_bytes = 4 * problem.height * problem.width
        self.code = Code(self.module, self.name, [POINTER] * 6 + [INT64] * 4 + [POINTER] * len(
            problem.epilogue.operands), internal=True)
        (self.x, self.y, self.positions, self.weights, self.starts, self.scratch, self.row,
         self.column, self.first, self.end, *self.operands) = self.code.arguments

    def write(self) -> ir.Function:
        problem, views, code, b = self.problem, self.views, self.code, self.code.builder
        blocks = -(-problem.group_channels // self.block)
        start = b.mul(b.add(b.mul(self.row, integer(self.width)), self.column), integer(4))
        group = b.sdiv(self.first, integer(problem.group_out_channels // self.outputs))
        x = code.at(self.x, b.mul(group, integer(problem.group_channels * self.input_bytes)))
        with code.loop(0, blocks) as part:
            channel = b.mul(part.index, integer(self.block))
            count = b.sub(integer(problem.group_channels), channel)
            count = b.select(b.icmp_signed("<", count, integer(self.block)), count,
                             integer(self.block))
            inputs = code.at(x, b.mul(channel, integer(self.input_bytes)))
            if not views.step:
                inputs = code.at(inputs, start)
            else:
                self._copy(inputs, count)
            own = code.at(self.starts, b.mul(part.index, integer(
                4 * (problem.out_channels // self.outputs + 1))))
            is_first, is_last = (b.icmp_signed("==", part.index, integer(index))
                                 for index in (0, blocks - 1))
            with code.loop(self.first, self.end) as row:
                self._multiply(inputs, own, row.index, is_first, is_last, start)
        b.ret_void()
        return code.function

    def _multiply(self, inputs: Any, starts: Any, row: Any, is_first: Any, is_last: Any,
                  start: Any) -> None:
        """Emit code that adds a block's products to the sums of a row of the table."""
        problem, views, code, b = self.problem, self.views, self.code, self.code.builder
        vectors = self.rows * self.vectors
        number = self.outputs * vectors
        kept = code.at(self.scratch, b.add(
            integer(4 * min(self.block, problem.group_channels) * views.floats * bool(views.step)),
            b.mul(b.sub(row, self.first), integer(number * self.size))))
        before = code.where(b.not_(is_first), lambda: [
            code.load(vector(self.lanes), kept, index * self.size) for index in range(number)],
            [self.zero] * number)
        first, end = (code.index(starts, b.add(row, integer(index))) for index in range(2))
        source, step, row_bytes = (
            self.scratch, 4 * views.step, 4 * views.row) if views.step else (
            inputs, self.input_bytes, 0)

        def products(position: Any, sums: Sequence[Any]) -> list[Any]:
            """Add the products of a position of the table to the sums; return the new sums."""
            view = code.at(source, b.mul(code.short(self.positions, position), integer(step)))
            read = [code.load_first(
                view, index // self.vectors * row_bytes + index % self.vectors * self.size,
                self.lanes, self.last if not views.step and index == vectors - 1 else self.lanes,
                aligned=views.step == self.lanes) for index in range(vectors)]
            weights = code.at(self.weights, b.mul(position, integer(4 * self.outputs)))
            return [code.multiply_add(value, weight, sums[output * vectors + index])
                    for output in range(self.outputs)
                    for weight in [code.splat(code.load(FLOAT, weights, 4 * output), self.lanes)]
                    for index, value in enumerate(read)]

        sums = code.accumulate(first, end, before, _SUMS, products)
        finish, keep, after = (code.function.append_basic_block(label)
                               for label in ("finish", "keep", "after"))
        b.cbranch(is_last, finish, keep)
        b.position_at_end(keep)
        for index, value in enumerate(sums):
            code.store(value, kept, index * self.size)
        b.branch(after)
        b.position_at_end(finish)
        for output in range(self.outputs):
            self._finish(sums[output * vectors:(output + 1) * vectors],
                         b.add(b.mul(row, integer(self.outputs)), integer(output)), start)
        b.branch(after)
        b.position_at_end(after)

    def _finish(self, sums: Sequence[Any], output: Any, start: Any) -> None:
        """Emit code that applies the epilogue to an output channel's sums and stores the results.

        start: offset of the tile's first pixel in an output plane, in bytes.
        """
        problem, code, b = self.problem, self.code, self.code.builder
        target = b.add(b.mul(output, integer(4 * problem.image_pixels)), start)
        for index, value in enumerate(sums):
            row, column = divmod(index, self.vectors)
            byte = b.add(target, integer(4 * (row * self.width + column * self.lanes)))
            valid = self.last if column == self.vectors - 1 else self.lanes
            operands = [
                code.load_first(operand, byte, self.lanes, valid) if kind == "tensor" else
                code.splat(code.load(FLOAT, operand, b.mul(output, integer(4))), self.lanes)
                for operand, kind in zip(self.operands, problem.epilogue.operands, strict=True)]
            result = code.evaluate(problem.epilogue.expression, [value, *operands], self.lanes)
            code.store_first(result, self.y, byte, self.lanes, valid)

    def _copy(self, inputs: Any, count: Any) -> None:
        """Emit code that copies the views of `count` input channels.

        Pixels of a view that lie outside of the input become zeros.
        """
        problem, views, code, b = self.problem, self.views, self.code, self.code.builder
        flat = problem.is_pointwise
        height, width = (1, problem.image_pixels) if flat else (problem.height, problem.width)
        copied = self.vectors + views.further
        down, right = problem.stride
        with code.loop(0, count) as channel:
            plane = code.at(inputs, b.mul(channel.index, integer(self.input_bytes)))
            target = code.at(self.scratch, b.mul(channel.index, integer(4 * views.floats)))
            for number, (row, column) in enumerate(views.copies):
                view = code.at(target, 4 * views.first(number))
                first = b.add(b.mul(self.column, integer(right)), integer(
                    column - problem.pads[1]))
                with code.loop(0, self.rows + dict(views.beyond)[row]) as view_row:
                    position = b.add(b.mul(b.add(self.row, view_row.index), integer(down)),
                                     integer(row - problem.pads[0]))
                    source = code.at(plane, b.mul(b.add(b.mul(position, integer(width)), first),
                                                  integer(4)))

                    def read(source: Any = source, first: Any = first) -> list[Any]:
                        return [code.strided(
                            source, first, index * self.lanes, right, width, self.lanes,
                            self.last if flat and index == copied - 1 else self.lanes)
                            for index in range(copied)]

                    inside = b.icmp_unsigned("<", position, integer(height))
                    values = code.where(inside, read, [self.zero] * copied)
                    goal = code.at(view, b.mul(view_row.index, integer(4 * views.row)))
                    for index, value in enumerate(values):
                        code.store(value, goal, index * self.size)
