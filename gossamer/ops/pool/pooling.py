"""Generate code of max pooling on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from llvmlite import ir

from gossamer.device.native.code import INT64, TaskCode, integer, larger, vector
from gossamer.tensor import rounded_up


def pooling(size: Sequence[int], out: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
            pads: Sequence[int], dilation: int, lanes: int) -> str:
    """Return an LLVM module with the function "pool".

    Each task of the function pools one channel of one image. The arguments are the addresses of the
    input and of the output. Each row of the output is computed in two passes. The first pass writes
    the maximum of each input column over the window's rows to scratch memory, with padding at both
    ends. The second pass computes the maxima along the row and writes them to the output.

    size, out: numbers of rows and columns of the input and of the output.
    kernel: height and width of the window.
    stride: strides along H and W.
    pads: numbers of padding rows above the input, and of padding columns on its left.
    dilation: dilation along W.
    lanes: number of floats per vector.
    """
    (height, width), (rows, columns) = size, out
    code = TaskCode("pool")
    b = code.builder
    x, y = map(code.argument, range(2))

    def vectors(count: int, write: Any) -> None:
        """Emit code for each vector of a row, including an incomplete last vector."""
        with code.loop(0, count // lanes) as part:
            write(b.mul(part.index, integer(lanes)), lanes)
        if count % lanes:
            write(integer(count // lanes * lanes), count % lanes)

    with code.loop(0, scratch_floats(width, columns, kernel[1], stride[1], pads[1], dilation,
                                     lanes), lanes) as part:
        code.store(ir.Constant(vector(lanes), [float("-inf")] * lanes), code.scratch,
                   b.mul(part.index, integer(4)))
    with code.loop(code.first, code.end) as task:
        plane = code.at(x, b.mul(task.index, integer(4 * height * width)))
        goal = code.at(y, b.mul(task.index, integer(4 * rows * columns)))
        with code.loop(0, rows) as row:
            output = code.at(goal, b.mul(row.index, integer(4 * columns)))
            sources = []
            for tap in range(kernel[0]):
                position = b.add(b.mul(row.index, integer(stride[0])), integer(tap - pads[0]))
                # a row of padding is replaced by the nearest input row, which is in the window too
                for comparison, bound in (("<", 0), (">", height - 1)):
                    position = b.select(b.icmp_signed(comparison, position, integer(bound)),
                                        integer(bound), position)
                sources.append(code.at(plane, b.mul(position, integer(4 * width))))

            def down(column: Any, valid: int, sources: Sequence[Any] = sources) -> None:
                byte = b.mul(column, integer(4))
                value = reduce(partial(larger, b), [
                    code.load_first(source, byte, lanes, valid) for source in sources])
                code.store_first(value, code.scratch, b.add(byte, integer(4 * pads[1])), lanes,
                                 valid)

            def along(column: Any, valid: int, output: Any = output) -> None:
                source = code.at(code.scratch, b.mul(column, integer(4 * stride[1])))
                value = reduce(partial(larger, b), [
                    code.strided(code.at(source, 4 * dilation * tap), integer(0), 0, stride[1],
                                 stride[1] * lanes, lanes, lanes) for tap in range(kernel[1])])
                code.store_first(value, output, b.mul(column, integer(4)), lanes, valid)

            vectors(width, down)
            vectors(columns, along)
    return code.finished()


def scratch_floats(width: int, columns: int, kernel: int, stride: int, pad: int, dilation: int,
                   lanes: int) -> int:
    """Return the size of the scratch memory of the function "pool", in floats."""
    read = rounded_up(columns, lanes) * stride + (kernel - 1) * dilation
    return rounded_up(max(read, pad + width), lanes)


def pooling_words(size: tuple[int, int], out: tuple[int, int], kernel: tuple[int, int],
                  stride: tuple[int, int], pads: tuple[int, int], planes: int) -> str:
    """Return an LLVM module with the function "pool" for packed 64-bit words.

    Each task of the function pools one word of channels of one image. The arguments are the
    addresses of the input and of the output. Each window must cover at least one input pixel;
    positions outside the input are replaced by the nearest input pixel.

    size, out, kernel, stride, pads: as in pooling().
    planes: number of bits per value.
    """
    code = TaskCode("pool")
    b, step = code.builder, 8 * planes
    source, target = map(code.argument, range(2))

    def within(position: Any, axis: int, tap: int) -> Any:
        index = b.add(b.mul(position, INT64(stride[axis])), INT64(tap - pads[axis]))
        index = b.select(b.icmp_signed("<", index, INT64(0)), INT64(0), index)
        last = INT64(size[axis] - 1)
        return b.select(b.icmp_signed(">", index, last), last, index)

    with code.loop(code.first, code.end) as task:
        plane = code.at(source, b.mul(task.index, INT64(step * size[0] * size[1])))
        result = code.at(target, b.mul(task.index, INT64(step * out[0] * out[1])))
        with code.loop(0, out[0]) as row, code.loop(0, out[1]) as column:
            rows = [within(row.index, 0, tap) for tap in range(kernel[0])]
            columns = [within(column.index, 1, tap) for tap in range(kernel[1])]
            pixels = [b.add(b.mul(y, INT64(size[1])), x) for y in rows for x in columns]
            read = [[code.load(INT64, plane, b.add(b.mul(pixel, INT64(step)), INT64(8 * part)))
                     for part in range(planes)] for pixel in pixels]
            ones = reduce(b.or_, (words[-1] for words in read))
            pixel = code.at(result, b.mul(b.add(b.mul(row.index, INT64(out[1])), column.index),
                                          INT64(step)))
            if planes == 2:
                known = b.or_(ones, reduce(b.and_, (words[0] for words in read)))
                b.store(known, pixel).align = 8
            b.store(ones, code.at(pixel, 8 * (planes - 1))).align = 8
    return code.finished()
