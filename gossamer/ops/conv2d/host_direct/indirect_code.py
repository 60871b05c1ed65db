"""LLVM IR of convolutions whose vectors run along the output channels; see indirect.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from gossamer.device.native.code import FLOAT, INT32, INT64, TaskCode, integer, vector
from gossamer.ops.conv2d.host_direct.tiles import Tiling
from gossamer.ops.conv2d.problem import Conv2dProblem

_FEW_CHANNELS = 4
"""Maximum number of input channels for which the loop over input channels is unrolled."""
_SUMS = 8
"""Number of independent accumulators that keep a CPU core's adders busy: an addition has a latency
of four cycles, and two additions begin per cycle."""
_COLUMNS = 4
"""Number of adjacent pixels of an output row that a depthwise layer accumulates at the same time.
The windows of these pixels overlap, so one load of an input can serve several pixels."""


def indirect(problem: Conv2dProblem, tiling: Tiling, channel_bytes: int) -> str:
    """Return an LLVM module with the function "indirect".

    Each task computes one panel of output channels for one tile of pixels. The arguments of
    "indirect" are the addresses of an image's input and output, of the weights in panels
    (panels, taps, C, width), of the table of offsets, of an array of zeros for taps outside of the
    image, and of the epilogue's operands.

    channel_bytes: number of bytes from one channel of the input to the next.
    """
    code = TaskCode("indirect")
    b = code.builder
    x, y, panels, offsets, zeros = map(code.argument, range(5))
    epilogue = _Epilogue(code, problem, tiling.lanes, y, 5)
    size, channels, taps = 4 * tiling.width, problem.channels, problem.taps
    tiles = max(-(-problem.image_pixels // tiling.pixels), 1)

    def products(pointers: Sequence[Any], weight_row: Any, channel: Any, sums: Sequence[Any]
                 ) -> list[Any]:
        """Add the products of one input channel to the sums; return the new sums."""
        weights = [code.load(vector(tiling.lanes), weight_row, 4 * tiling.lanes * index)
                   for index in range(tiling.vectors)]
        offset = b.mul(integer(channel), integer(channel_bytes))
        values = [code.splat(code.load(FLOAT, pointer, offset), tiling.lanes)
                  for pointer in pointers]
        return [code.multiply_add(value, weight, sums[index * tiling.vectors + number])
                for index, value in enumerate(values) for number, weight in enumerate(weights)]

    def tile(panel: Any, start: Any, count: int) -> list[Any]:
        source = code.at(panels, b.mul(panel, integer(taps * channels * size)))
        table = code.at(offsets, b.mul(start, integer(4 * taps)))
        with code.loop(0, taps, carried=[epilogue.zero] * (count * tiling.vectors)) as tap:
            pointers = []
            for index in range(count):
                offset = b.sext(code.load(INT32, table, b.mul(b.add(
                    tap.index, integer(index * taps)), integer(4))), INT64)
                pointers.append(b.select(b.icmp_signed("<", offset, integer(0)), zeros,
                                         code.at(x, offset)))
            weights = code.at(source, b.mul(tap.index, integer(channels * size)))
            if channels <= _FEW_CHANNELS:
                tap.next = tap.values
                for number in range(channels):
                    tap.next = products(pointers, code.at(weights, number * size), number,
                                        tap.next)
            else:
                tap.next = code.accumulate(
                    0, channels, tap.values, _SUMS, lambda channel, sums: products(
                        pointers, code.at(weights, b.mul(channel, integer(size))), channel, sums))

        def write(width: int) -> list[Any]:
            first_channel = b.mul(panel, integer(tiling.width))
            for number in range(-(-width // tiling.lanes)):
                epilogue.write(tap.values[number::tiling.vectors], start,
                               b.add(first_channel, integer(number * tiling.lanes)),
                               min(width - number * tiling.lanes, tiling.lanes))
            return []

        code.by_size(panel, problem.out_channels, tiling.width, write)
        return []

    with code.loop(code.first, code.end) as task:
        panel, number = b.sdiv(task.index, integer(tiles)), b.srem(task.index, integer(tiles))
        start = b.mul(number, integer(tiling.pixels))
        code.by_size(number, problem.image_pixels, tiling.pixels,
                 lambda count: tile(panel, start, count))
    return code.finished()


def depthwise_rows(problem: Conv2dProblem, lanes: int) -> str:
    """Return an LLVM module with the function "depthwise_rows".

    Each task computes one row of the output for one vector of channels. The arguments of
    "depthwise_rows" are the addresses of an image's input and output, of the weights in panels
    (vectors, taps, 1, lanes), and of the epilogue's operands. Taps outside of the image are
    skipped.
    """
    code = TaskCode("depthwise_rows")
    b = code.builder
    x, y, panels = map(code.argument, range(3))
    epilogue = _Epilogue(code, problem, lanes, y, 3)
    pixel, stride, pad = 4 * problem.channels, problem.stride[1], problem.pads[1]
    rows, wide = problem.out_height, problem.out_width
    # if low <= column < high, the window of an output column needs no padding at the left or right
    low = min(-(-pad // stride), wide)
    high = max(min((problem.width + pad - problem.window(1)) // stride + 1, wide), low)

    def write(number: Any, row: Any, valid: int) -> list[Any]:
        own = code.at(panels, b.mul(number, integer(4 * problem.taps * lanes)))
        weights = [code.load(vector(lanes), own, 4 * tap * lanes) for tap in range(problem.taps)]
        plane = code.at(x, b.mul(number, integer(4 * lanes)))

        def columns(begin: Any, count: int) -> None:
            """Emit code that computes `count` consecutive columns.

            If `begin` is not an int, the windows of these columns must need no padding at the left
            or right.
            """
            sums = [epilogue.zero] * count
            for r in range(problem.kernel[0]):
                position = b.add(b.mul(row, integer(problem.stride[0])),
                                 integer(r * problem.dilation[0] - problem.pads[0]))

                def products(r: int = r, position: Any = position, sums: Any = sums
                             ) -> list[Any]:
                    row_start = b.mul(position, integer(problem.width))
                    column = b.sub(b.mul(integer(begin), integer(stride)), integer(pad))
                    source = code.at(plane, b.mul(b.add(row_start, column), integer(pixel)))
                    for s in range(problem.kernel[1]):
                        step = s * problem.dilation[1]
                        if isinstance(begin, int) and not (
                                0 <= begin * stride - pad + step < problem.width):
                            continue
                        sums = [code.multiply_add(code.load_first(
                            source, pixel * (index * stride + step), lanes, valid),
                            weights[r * problem.kernel[1] + s], value)
                            for index, value in enumerate(sums)]
                    return list(sums)

                sums = code.where(b.icmp_unsigned("<", position, integer(problem.height)),
                                  products, sums)
            start = b.add(b.mul(row, integer(wide)), integer(begin))
            epilogue.write(sums, start, b.mul(number, integer(lanes)), valid)

        for column in (*range(low), *range(high, wide)):
            columns(column, 1)
        middle = high - (high - low) % _COLUMNS
        with code.loop(low, middle, _COLUMNS) as block:
            columns(block.index, _COLUMNS)
        with code.loop(middle, high) as rest:
            columns(rest.index, 1)
        return []

    with code.loop(code.first, code.end) as task:
        number, row = b.sdiv(task.index, integer(rows)), b.srem(task.index, integer(rows))
        code.by_size(number, problem.channels, lanes,
                 lambda valid: write(number, row, valid))
    return code.finished()


class _Epilogue:
    """The epilogue of a convolution in NHWC.

    y: address of the output of an image.
    first: number of the arguments that precede the addresses of the operands.
    """

    def __init__(self, code: TaskCode, problem: Conv2dProblem, lanes: int, y: Any,
                 first: int) -> None:
        self.code, self.problem, self.lanes, self.y = code, problem, lanes, y
        self.zero = ir.Constant(vector(lanes), [0.0] * lanes)
        self.operands = [(kind, code.argument(first + index))
                         for index, kind in enumerate(problem.epilogue.operands)]

    def write(self, sums: Sequence[Any], pixel: Any, channel: Any, valid: int) -> None:
        """Emit code that applies the epilogue and stores `valid` channels of consecutive pixels."""
        code, b, lanes = self.code, self.code.builder, self.lanes
        channel = b.mul(channel, integer(4))
        constants = [code.load_first(operand, channel, lanes, valid) if kind == "channel" else None
                     for kind, operand in self.operands]
        for index, value in enumerate(sums):
            byte = b.add(b.mul(b.add(pixel, integer(index)), integer(
                4 * self.problem.out_channels)), channel)
            read = [code.load_first(operand, byte, lanes, valid) if constant is None else constant
                    for (_, operand), constant in zip(self.operands, constants, strict=True)]
            result = code.evaluate(self.problem.epilogue.expression, [value, *read], lanes)
            code.store_first(result, self.y, byte, lanes, valid)
