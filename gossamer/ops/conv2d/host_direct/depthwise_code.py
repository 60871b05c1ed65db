"""LLVM IR of depthwise convolution on CPUs; see depthwise.py."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gossamer.device.native.code import FLOAT, Code, TaskCode, integer, vector
from gossamer.ops.conv2d.problem import Conv2dProblem

_MOST_VECTORS = 7
"""Maximum number of vectors of an output row that are accumulated at the same time."""


def depthwise(problem: Conv2dProblem, lanes: int) -> str:
    """Return an LLVM module with the function "depthwise".

    Each task computes one output plane. The arguments of "depthwise" are the addresses of an
    image's input and output, of the weights, and of the epilogue's operands. Up to _MOST_VECTORS
    vectors of an output row are accumulated in registers. Taps whose input row lies outside of the
    image are skipped. Elements before the start or after the end of an input row count as zeros;
    the code does not read them.
    """
    code = TaskCode("depthwise")
    b = code.builder
    x, y, weights = map(code.argument, range(3))
    operands = [code.argument(3 + index) for index in range(len(problem.epilogue.operands))]
    count = -(-problem.out_width // lanes)
    zero = ir.Constant(vector(lanes), [0.0] * lanes)
    with code.loop(code.first, code.end) as task:
        channel = b.sdiv(task.index, integer(problem.group_out_channels))
        plane = code.at(x, b.mul(channel, integer(4 * problem.height * problem.width)))
        own = code.at(weights, b.mul(task.index, integer(4 * problem.taps)))
        taps = [code.splat(code.load(FLOAT, own, 4 * tap), lanes) for tap in range(problem.taps)]
        channels = [code.splat(code.load(FLOAT, operand, b.mul(task.index, integer(4))), lanes)
                    if kind == "channel" else None
                    for operand, kind in zip(operands, problem.epilogue.operands, strict=True)]
        start = b.mul(task.index, integer(4 * problem.image_pixels))
        for begin in range(0, count, _MOST_VECTORS):
            vectors = range(begin, min(begin + _MOST_VECTORS, count))
            with code.loop(0, problem.out_height) as row:
                sums: list[Any] = [zero] * len(vectors)
                for r in range(problem.kernel[0]):
                    position = b.add(b.mul(row.index, integer(problem.stride[0])),
                                     integer(r * problem.dilation[0] - problem.pads[0]))

                    def products(r: int = r, position: Any = position, sums: list[Any] = sums,
                                 vectors: range = vectors) -> list[Any]:
                        source = code.at(plane, b.mul(position, integer(4 * problem.width)))
                        for s in range(problem.kernel[1]):
                            weight = taps[r * problem.kernel[1] + s]
                            sums = [code.multiply_add(
                                _read(code, source, problem, s, index, lanes), weight, value)
                                for index, value in zip(vectors, sums, strict=True)]
                        return sums

                    inside = b.icmp_unsigned("<", position, integer(problem.height))
                    sums = code.where(inside, products, sums)
                target = b.add(start, b.mul(row.index, integer(4 * problem.out_width)))
                for index, value in zip(vectors, sums, strict=True):
                    byte = b.add(target, integer(4 * index * lanes))
                    valid = min(problem.out_width - index * lanes, lanes)
                    read = [code.load_first(operand, byte, lanes, valid) if given is None else given
                            for operand, given in zip(operands, channels, strict=True)]
                    result = code.evaluate(problem.epilogue.expression, [value, *read], lanes)
                    code.store_first(result, y, byte, lanes, valid)
    return code.finished()


def _read(code: Code, source: Any, problem: Conv2dProblem, tap: int, number: int,
          lanes: int) -> Any:
    """Emit code that loads the inputs of a tap for an output vector; 0 outside of the input row.

    source: address of the input row.
    tap: column of the tap in the window.
    number: index of the output vector in its row.
    """
    stride, offset = problem.stride[1], tap * problem.dilation[1]
    # with stride 2, taps of even and odd columns use alternate elements of the same vectors
    start = offset // stride * stride - problem.pads[1] + number * lanes * stride
    parts = [code.load_within(source, start + part * lanes, lanes, problem.width)
             for part in range(stride)]
    return parts[0] if stride == 1 else code.builder.shuffle_vector(*parts, ir.Constant(
        ir.VectorType(ir.IntType(32), lanes), list(range(offset % 2, 2 * lanes, 2))))
