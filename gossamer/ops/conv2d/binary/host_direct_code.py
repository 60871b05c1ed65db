"""LLVM IR of binary convolutions on CPUs; see host_direct.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from gossamer.device.native.code import FLOAT, INT32, INT64, POINTER, TaskCode, vector
from gossamer.expression import Expression

_MOST_STEPS = 31
"""Maximum number of words whose set bits are counted in bytes: the count 31 * 8 fits one byte."""
_ALL_BYTES = 0x00FF00FF00FF00FF


@dataclass(frozen=True)
class Shape:
    """The properties of a layer on which its generated code depends.

    depth: number of input channels.
    words: number of words per pixel and plane; a word holds 64 input channels.
    planes: number of planes of the input, one plane for each bit of a value.
    packs: True if the input consists of floats, which the generated code packs first.
    size: rows and columns of the input.
    padded: rows and columns of the input with its padding.
    pads: rows of padding above the input, and columns to its left.
    stride: input rows and columns from one output to the next.
    steps: number of words per window and plane.
    channels: number of output channels.
    image: rows and columns of the output.
    channels_last: True if the channels of a pixel are contiguous.
    kinds: for each operand of the epilogue, "channel" or "tensor".
    expression: the epilogue.
    has_thresholds: True if a comparison with thresholds replaces the epilogue.
    writes_floats: True if floats are written.
    out_planes: bits per value of the packed output; 0 if there is none.
    borders: True if the initial accumulators differ between pixels.
    """

    depth: int
    words: int
    planes: int
    packs: bool
    size: tuple[int, int]
    padded: tuple[int, int]
    pads: tuple[int, int]
    stride: tuple[int, int]
    steps: int
    channels: int
    image: tuple[int, int]
    channels_last: bool
    kinds: tuple[str, ...]
    expression: Expression
    has_thresholds: bool
    writes_floats: bool
    out_planes: int
    borders: bool

    @property
    def is_copied(self) -> bool:
        """Whether the input is copied for padding or packing."""
        return self.size != self.padded or self.packs

    @property
    def copy_bytes(self) -> int:
        """Size of the copy in bytes."""
        pixels = self.image[0] if self.channels_last else math.prod(self.padded)
        return 8 * self.planes * self.words * pixels * self.is_copied

    @property
    def pixels(self) -> int:
        """Number of pixels of the output."""
        return math.prod(self.image)


@dataclass(frozen=True)
class Tile:
    """The outputs that a task accumulates in registers at a time.

    pixels: number of pixels.
    vectors: number of vectors per pixel.
    lanes: number of output channels per vector.
    counts_words: True if the CPU can count the set bits of each 64-bit element of a vector. If not,
    the set bits of each byte are counted.
    """

    pixels: int
    vectors: int
    lanes: int
    counts_words: bool

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.vectors * self.lanes


ARGUMENTS = ("input", "last", "first", "outside", "offsets", "panels", "borders", "base", "lower",
             "upper", "falls", "alphas")
"""Names of the first arguments; the addresses of the epilogue's operands follow."""


def signs(shape: Shape, tile: Tile, chunk: int) -> str:
    """Return an LLVM module with the function "signs".

    A task computes `chunk` tiles of pixels for one block of output channels. The arguments are the
    addresses of these arrays:

    input: the image.
    last, first: the last and the first output.
    outside: the words of a padding pixel.
    offsets: distances in bytes from a pixel's first word to the words of its window (int32).
    panels: the weights (blocks, steps, channels of a block).
    borders: for each output pixel, the index of its row of `base`.
    base: rows with the initial accumulators of all channels.
    lower, upper: the thresholds of each channel.
    falls: nonzero for channels whose result decreases as the accumulator grows.
    alphas: the magnitude of each channel's weights.
    """
    return _Signs(TaskCode("signs"), shape, tile, chunk).module()


class _Signs:
    def __init__(self, code: TaskCode, shape: Shape, tile: Tile, chunk: int) -> None:
        self.code, self.shape, self.tile, self.chunk = code, shape, tile, chunk
        self.words = ir.VectorType(INT64, tile.lanes)
        self.integers = ir.VectorType(INT32, tile.lanes)
        self.counts = self.words if tile.counts_words else ir.VectorType(
            ir.IntType(8), 8 * tile.lanes)
        self.given = {name: code.argument(index) for index, name in enumerate(ARGUMENTS)}
        if not shape.out_planes:
            self.given["first"] = self.given["last"]
        self.operands = [code.argument(len(ARGUMENTS) + index)
                         for index in range(len(shape.kinds))]

    def module(self) -> str:
        code, shape, tile = self.code, self.shape, self.tile
        b = code.builder
        if shape.is_copied:
            (self._pack_rows if shape.channels_last else self._copy)(code.scratch)
            self.given["input"] = code.scratch
        tiles = -(-shape.pixels // tile.pixels)
        chunks = -(-tiles // self.chunk)
        whole = shape.pixels // tile.pixels
        blocks = shape.channels // tile.channels
        with code.loop(code.first, code.end) as task:
            block = b.udiv(task.index, INT64(chunks))
            start = b.mul(b.urem(task.index, INT64(chunks)), INT64(self.chunk))
            stop = b.add(start, INT64(self.chunk))
            stop = b.select(b.icmp_signed("<", stop, INT64(whole)), stop, INT64(whole))
            rest = shape.channels % tile.channels
            for comparison, channels in (("<", tile.channels if blocks else 0), ("==", rest),
                                         (">=" if rest == 0 else ">", 0)):
                if channels or comparison.startswith(">"):
                    code.where(b.icmp_signed(comparison, block, INT64(blocks)), partial(
                        self._tiles, block, start, stop, whole, channels), [])
        return code.finished()

    def _tiles(self, block: Any, start: Any, stop: Any, whole: int, channels: int) -> Sequence[Any]:
        """Emit the loop over the tiles of a task.

        channels: number of the block's channels that exist in the output. If the number is 0, all
        channels of the block are padding, and the task only writes zeros to packed words.
        """
        code, shape, tile = self.code, self.shape, self.tile
        b = code.builder
        with code.loop(start, stop) as step:
            self._tile(block, b.mul(step.index, INT64(tile.pixels)), tile.pixels, channels)
        if rest := shape.pixels % tile.pixels:
            is_last = b.icmp_signed("<=", INT64(whole), b.add(start, INT64(self.chunk - 1)))
            code.where(is_last, lambda: self._tile(block, INT64(whole * tile.pixels), rest,
                                                   channels), [])
        return []

    def _copy(self, scratch: Any) -> None:
        """Emit code that copies the image into a padded image.

        If the image consists of floats, the code also packs the floats into words.
        """
        code, shape = self.code, self.shape
        b = code.builder
        height, width = shape.padded
        size, row_words = 8 * shape.planes, shape.size[1] * shape.planes
        copy = ir.Function(code.module, ir.FunctionType(
            ir.VoidType(), [POINTER, POINTER, INT64, ir.IntType(1)]), "llvm.memcpy.p0.p0.i64")
        with code.loop(0, shape.words) as word:
            plane = code.at(scratch, b.mul(word.index, INT64(size * height * width)))
            if shape.size != shape.padded:
                outside = [code.load(INT64, self.given["outside"], b.add(b.mul(
                    word.index, INT64(size)), INT64(8 * part))) for part in range(shape.planes)]
                with code.loop(0, height * width) as pixel:
                    for part, value in enumerate(outside):
                        self._store_64(value, plane, b.add(b.mul(pixel.index, INT64(size)),
                                                           INT64(8 * part)))
            inside = code.at(plane, size * (shape.pads[0] * width + shape.pads[1]))
            with code.loop(0, shape.size[0]) as row:
                target = code.at(inside, b.mul(row.index, INT64(size * width)))
                source = code.at(self.given["input"], b.add(
                    b.mul(word.index, INT64(8 * row_words * shape.size[0])),
                    b.mul(row.index, INT64(8 * row_words))))
                if shape.packs:
                    self._pack_row(word.index, row.index, target)
                else:
                    b.call(copy, [target, source, INT64(8 * row_words),
                                  ir.Constant(ir.IntType(1), 0)])

    def _store_64(self, value: Any, pointer: Any, offset: Any) -> None:
        self.code.builder.store(value, self.code.at(pointer, offset)).align = 8

    def _pack_row(self, word: Any, row: Any, target: Any) -> None:
        """Emit code that packs a row of float pixels into words.

        The input is NCHW: each channel is a contiguous plane.
        """
        code, shape, lanes = self.code, self.shape, self.tile.lanes
        b = code.builder
        width, pixels = shape.size[1], shape.size[0] * shape.size[1]
        rest = b.sub(INT64(shape.depth), b.mul(word, INT64(64)))
        count = b.select(b.icmp_signed("<", rest, INT64(64)), rest, INT64(64))
        first = b.add(b.mul(word, INT64(64 * pixels)), b.mul(row, INT64(width)))
        none = ir.Constant(self.words, [0] * lanes)

        def pack(column: Any, valid: int) -> None:
            with code.loop(0, count, carried=[none] * shape.planes) as channel:
                index = b.add(b.add(first, b.mul(channel.index, INT64(pixels))), column)
                values = code.load_first(self.given["input"], b.mul(index, INT64(4)), lanes, valid)
                shift = code.splat(channel.index, lanes)
                channel.next = [b.or_(bits, b.shl(b.zext(truth, self.words), shift))
                                for bits, truth in zip(channel.values, self._planes(
                                    values, shape.planes), strict=True)]
            for lane, part in itertools.product(range(valid), range(shape.planes)):
                offset = b.add(b.mul(column, INT64(8 * shape.planes)),
                               INT64(8 * (lane * shape.planes + part)))
                self._store_64(b.extract_element(channel.values[part], ir.Constant(INT32, lane)),
                               target, offset)

        with code.loop(0, width // lanes * lanes, lanes) as step:
            pack(step.index, lanes)
        if width % lanes:
            pack(INT64(width // lanes * lanes), width % lanes)

    def _pack_rows(self, scratch: Any) -> None:
        """Emit code that packs the floats of pixels into words.

        The channels of a pixel are contiguous in the input.
        """
        code, shape = self.code, self.shape
        b = code.builder
        whole = shape.depth // 8
        with code.loop(0, shape.copy_bytes // 8) as word:
            self._store_64(INT64(0), scratch, b.mul(word.index, INT64(8)))

        def pack(row: Any, group: Any, valid: int) -> None:
            values = code.load_first(self.given["input"], b.mul(b.add(b.mul(
                row, INT64(shape.depth)), b.mul(group, INT64(8))), INT64(4)), 8, valid)
            word = b.add(b.mul(row, INT64(shape.words)), b.lshr(group, INT64(3)))
            for part, truth in enumerate(self._planes(values, shape.planes)):
                byte = b.add(b.mul(word, INT64(8 * shape.planes)), b.add(
                    b.and_(group, INT64(7)), INT64(8 * part)))
                bits = b.and_(b.bitcast(truth, ir.IntType(8)),
                              ir.Constant(ir.IntType(8), (1 << valid) - 1))
                b.store(bits, code.at(scratch, byte)).align = 1

        with code.loop(0, shape.image[0]) as row:
            with code.loop(0, whole) as group:
                pack(row.index, group.index, 8)
            if shape.depth % 8:
                pack(row.index, INT64(whole), shape.depth % 8)

    def _planes(self, values: Any, planes: int) -> list[Any]:
        """Return the bits of floats as vectors of booleans, one vector for each plane.

        The last vector is true for floats above 0. With two planes, the first vector is true for
        floats that are not 0.
        """
        zero = ir.Constant(values.type, [0.0] * values.type.count)
        b = self.code.builder
        both = [b.fcmp_unordered("!=", values, zero), b.fcmp_ordered(">", values, zero)]
        return both[-planes:]

    def _tile(self, block: Any, pixel: Any, pixels: int, channels: int) -> Sequence[Any]:
        """Emit code that computes `pixels` pixels of a block of output channels."""
        code, shape, tile = self.code, self.shape, self.tile
        b = code.builder
        numbers = [b.add(pixel, INT64(index)) for index in range(pixels)]
        channel = b.mul(block, INT64(tile.channels))
        if not channels:
            for number in numbers:
                for plane in range(shape.out_planes):
                    self._store_word(ir.Constant(ir.IntType(tile.channels), 0), number, channel,
                                     plane)
            return []
        panel = code.at(self.given["panels"], b.mul(
            block, INT64(8 * shape.steps * tile.channels)))
        sources = [code.at(self.given["input"], self._offset(number)) for number in numbers]
        different, products = self._different(panel, sources)
        sums = []
        for index, number in enumerate(numbers):
            base_row = self.given["base"]
            if shape.borders:
                base_row = code.at(base_row, b.mul(code.index(self.given["borders"], number), INT64(
                    4 * -(-shape.channels // tile.channels) * tile.channels)))
            for part in range(tile.vectors):
                base = self._channels(self.integers, base_row, channel, part)
                if products:
                    base = b.add(base, code.splat(b.trunc(products[index], INT32), tile.lanes))
                count = b.trunc(different[index * tile.vectors + part], self.integers)
                sums.append(b.sub(base, b.add(count, count)))
        if shape.has_thresholds:
            upper, lower = ([b.icmp_signed(">=", value, self._channels(
                self.integers, self.given[name], channel, index % tile.vectors))
                for index, value in enumerate(sums)] for name in ("upper", "lower"))
            self._store_signs(upper, lower, numbers, channel, channels)
            return []
        values = [b.sitofp(value, vector(tile.lanes)) for value in sums]
        self._epilogue(values, numbers, channel, channels)
        return []

    def _offset(self, number: Any) -> Any:
        """Return the offset in bytes of a pixel's first word."""
        b, shape = self.code.builder, self.shape
        if shape.channels_last:
            return b.mul(number, INT64(8 * shape.planes * shape.words))
        row, column = (operation(number, INT64(shape.image[1])) for operation in (b.udiv, b.urem))
        size = 8 * shape.planes
        return b.add(b.mul(row, INT64(size * shape.stride[0] * shape.padded[1])),
                     b.mul(column, INT64(size * shape.stride[1])))

    def _channels(self, kind: ir.Type, source: Any, channel: Any, part: int) -> Any:
        """Load a 4-byte number for each channel of a vector."""
        return self.code.load(kind, self.code.at(source, self.code.builder.mul(
            channel, INT64(4))), 4 * part * self.tile.lanes)

    def _different(self, panel: Any, sources: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Emit code that counts the products that are -1.

        Returns the counts for each pixel and each vector of channels. If inputs may be 0, also
        returns the number of nonzero inputs in the window of each pixel.
        """
        code, shape, tile = self.code, self.shape, self.tile
        b = code.builder
        many = len(sources) * tile.vectors
        nothing = [ir.Constant(self.counts, [0] * self.counts.count)] * many
        none = [INT64(0)] * (len(sources) if shape.planes == 2 else 0)

        def counted(start: Any, end: Any, products: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            with code.loop(start, end, carried=[*nothing, *products]) as step:
                weight_row = code.at(panel, b.mul(step.index, INT64(8 * tile.channels)))
                weights = [code.load(self.words, weight_row, 8 * part * tile.lanes)
                           for part in range(tile.vectors)]
                distance = code.index(self.given["offsets"], step.index)
                sums, known = [], []
                for index, source in enumerate(sources):
                    pixel = code.at(source, distance)
                    words = [code.load(INT64, pixel, 8 * plane) for plane in range(shape.planes)]
                    if shape.planes == 2:
                        known.append(b.add(step.values[many + index],
                                           b.call(self._ones(INT64), [words[0]])))
                    vectors = [code.splat(word, tile.lanes) for word in words]
                    for part, weight in enumerate(weights):
                        bits = b.xor(weight, vectors[-1])
                        if shape.planes == 2:
                            bits = b.and_(bits, vectors[0])
                        sums.append(b.add(step.values[index * tile.vectors + part], b.call(
                            self._ones(self.counts), [b.bitcast(bits, self.counts)])))
                step.next = [*sums, *known]
            return list(step.values[:many]), list(step.values[many:])

        if tile.counts_words:
            return counted(0, shape.steps, none)
        totals: Sequence[Any] = [ir.Constant(self.words, [0] * tile.lanes)] * many
        products: Sequence[Any] = none
        whole = shape.steps // _MOST_STEPS * _MOST_STEPS
        if whole:
            with code.loop(0, whole, _MOST_STEPS, carried=[*totals, *none]) as group:
                sums, products = counted(group.index, b.add(group.index, INT64(_MOST_STEPS)),
                                         group.values[many:])
                group.next = [*(b.add(total, self._of_bytes(count)) for total, count in zip(
                    group.values[:many], sums, strict=True)), *products]
            totals, products = group.values[:many], group.values[many:]
        if shape.steps > whole:
            sums, products = counted(whole, shape.steps, products)
            totals = [b.add(total, self._of_bytes(count))
                      for total, count in zip(totals, sums, strict=True)]
        return list(totals), list(products)

    def _ones(self, kind: Any) -> ir.Function:
        """Return the intrinsic that counts the set bits of each element."""
        name = "llvm.ctpop." + (f"v{kind.count}i{kind.element.width}" if kind != INT64 else "i64")
        return self.code.module.globals.get(name) or ir.Function(
            self.code.module, ir.FunctionType(kind, [kind]), name)

    def _of_bytes(self, counts: Any) -> Any:
        """Emit code that adds up the counts in the bytes of each word."""
        b, lanes = self.code.builder, self.tile.lanes
        words = b.bitcast(counts, self.words)

        def constant(value: int) -> Any:
            return ir.Constant(self.words, [value] * lanes)

        words = b.add(b.and_(words, constant(_ALL_BYTES)),
                      b.and_(b.lshr(words, constant(8)), constant(_ALL_BYTES)))
        for shift in (32, 16):
            words = b.add(words, b.lshr(words, constant(shift)))
        return b.and_(words, constant(0xFFFF))

    def _epilogue(self, values: list[Any], numbers: Sequence[Any], channel: Any, channels: int
                  ) -> None:
        """Apply the epilogue to the accumulators and store the results."""
        code, shape, tile = self.code, self.shape, self.tile
        b = code.builder
        voted, results = [], []
        for index, value in enumerate(values):
            number, part = numbers[index // tile.vectors], index % tile.vectors
            valid = min(max(channels - part * tile.lanes, 0), tile.lanes)
            alpha = self._channels(vector(tile.lanes), self.given["alphas"], channel, part)
            read = [self._channels(vector(tile.lanes), operand, channel, part)
                    if kind == "channel" else self._tensor(operand, number, channel, part, valid)
                    for operand, kind in zip(self.operands, shape.kinds, strict=True)]
            made = code.evaluate_all(shape.expression, [b.fmul(value, alpha), *read], tile.lanes)
            results.append(made[0])
            voted.append(made[-1])
        if shape.writes_floats:
            self._store_floats(results, numbers, channel, channels)
        if shape.out_planes:
            planes = [self._planes(value, shape.out_planes) for value in voted]
            self._store_planes(list(zip(*planes, strict=True)), numbers, channel, channels)

    def _float_offset(self, number: Any, channel: Any, further: int) -> Any:
        """Return the offset in bytes of a float of the output."""
        b, shape = self.code.builder, self.shape
        if shape.channels_last:
            return b.mul(b.add(b.add(b.mul(number, INT64(shape.channels)), channel),
                               INT64(further)), INT64(4))
        return b.mul(b.add(b.mul(b.add(channel, INT64(further)), INT64(shape.pixels)), number),
                     INT64(4))

    def _tensor(self, operand: Any, number: Any, channel: Any, part: int, valid: int) -> Any:
        """Load the values of a run-time operand for a vector of channels."""
        code, shape, lanes = self.code, self.shape, self.tile.lanes
        if shape.channels_last:
            return code.load_first(operand, self._float_offset(number, channel, part * lanes),
                                   lanes, valid)
        result = ir.Constant(vector(lanes), [0.0] * lanes)
        for lane in range(valid):
            value = code.load(FLOAT, operand, self._float_offset(
                number, channel, part * lanes + lane))
            result = code.builder.insert_element(result, value, ir.Constant(INT32, lane))
        return result

    def _store_floats(self, values: Sequence[Any], numbers: Sequence[Any], channel: Any,
                      channels: int) -> None:
        code, shape, tile = self.code, self.shape, self.tile
        b = code.builder
        for part in range(tile.vectors):
            valid = min(max(channels - part * tile.lanes, 0), tile.lanes)
            own = values[part::tile.vectors]
            if shape.channels_last:
                for value, number in zip(own, numbers, strict=True):
                    if valid:
                        code.store_first(value, self.given["first"], self._float_offset(
                            number, channel, part * tile.lanes), tile.lanes, valid)
                continue
            for lane in range(valid):
                pixels = ir.Constant(vector(len(own)), ir.Undefined)
                for index, value in enumerate(own):
                    pixels = b.insert_element(pixels, b.extract_element(
                        value, ir.Constant(INT32, lane)), ir.Constant(INT32, index))
                code.store_first(pixels, self.given["first"], self._float_offset(
                    numbers[0], channel, part * tile.lanes + lane), len(own), len(own))

    def _store_signs(self, upper: Sequence[Any], lower: Sequence[Any], numbers: Sequence[Any],
                     channel: Any, channels: int) -> None:
        """Store the signs that follow from comparisons with thresholds.

        In channels whose element of `falls` is nonzero, the result decreases as the accumulator
        grows.
        """
        b, tile = self.code.builder, self.tile
        flags = self.code.at(self.given["falls"], b.mul(channel, INT64(4)))
        falls = [b.icmp_signed("!=", self.code.load(self.integers, flags, 4 * part * tile.lanes),
                               ir.Constant(self.integers, [0] * tile.lanes))
                 for part in range(tile.vectors)]
        ones = [b.select(falls[index % tile.vectors], b.not_(low), high)
                for index, (high, low) in enumerate(zip(upper, lower, strict=True))]
        known = [b.or_(high, b.not_(low)) for high, low in zip(upper, lower, strict=True)]
        self._store_planes([known, ones][-self.shape.out_planes:], numbers, channel, channels)

    def _store_planes(self, planes: Sequence[Sequence[Any]], numbers: Sequence[Any], channel: Any,
                      channels: int) -> None:
        """Store the bits of a block's channels for each pixel.

        Bits beyond the channels are 0.
        """
        b, tile = self.code.builder, self.tile
        kind = ir.IntType(tile.channels)
        for plane, truths in enumerate(planes):
            for index, number in enumerate(numbers):
                bits: Any = ir.Constant(kind, 0)
                for part in range(tile.vectors):
                    mask = b.bitcast(truths[index * tile.vectors + part], ir.IntType(tile.lanes))
                    if tile.lanes < tile.channels:
                        mask = b.zext(mask, kind)
                    bits = b.or_(bits, b.shl(mask, ir.Constant(kind, part * tile.lanes)))
                self._store_word(b.and_(bits, ir.Constant(kind, (1 << channels) - 1)), number,
                                 channel, plane)

    def _store_word(self, bits: Any, number: Any, channel: Any, plane: int) -> None:
        b, shape = self.code.builder, self.shape
        byte = b.lshr(channel, INT64(3))
        word, rest = b.lshr(byte, INT64(3)), b.and_(byte, INT64(7))
        if shape.channels_last:
            word = b.add(b.mul(number, INT64(-(-shape.channels // 64))), word)
        else:
            word = b.add(b.mul(word, INT64(shape.pixels)), number)
        offset = b.add(b.mul(word, INT64(8 * shape.out_planes)), b.add(rest, INT64(8 * plane)))
        b.store(bits, self.code.at(self.given["last"], offset)).align = 1
