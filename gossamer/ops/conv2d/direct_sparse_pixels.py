"""direct_sparse_pixels: pruned convolution of few images on tensor cores, output pixels side by
side.

Source: direct sparse convolution (Escoin, 2018) finds the input of a column of weights by shifting
a window's start; here each horizontal shift is a copy of its own in local memory, so that eight
pixels are 16 aligned bytes. Rows are taken together by the tensor cores' tile of 16, as in
vector-sparse products (Chen et al., 2021), without pruning in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gossamer.device.base import DIALECT, Device, KernelSource, Limits
from gossamer.ops.algorithm import (
    Algorithm,
    Launch,
    State,
    Variant,
    Weights,
    input_buffer,
    output_buffer,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse_table import cluster
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.strided import cannot_compile, divisor

_SOURCE = Path(__file__).with_name("direct_sparse_pixels.cu")
_ROWS = 16
"""Output channels of an instruction's tile."""
_DEPTH = 16
"""Columns of a step."""
_OCTET = 8
"""Pixels of an instruction's tile."""
_BANKS = 8
"""Pieces of 16 bytes that local memory gives out at once."""
_BATCH = 16
_AHEAD = 3

DENSEST = 0.3
"""Above this density next to no column of 16 rows is empty."""
MOST_IMAGES = 8
"""From eight images on they fill the tensor cores' tile themselves, as in direct_sparse_mma."""


@dataclass(frozen=True)
class Shape:
    """tiles: of 16 output channels in a block. blocks: of a group. sides: warps that share a tile
    of pixels. parts: warps that share a block's columns. octets: of pixels, of a warp. cluster:
    groups that share the channels."""

    tiles: int
    blocks: int
    sides: int
    parts: int
    octets: int
    cluster: int

    @property
    def rows(self) -> int:
        """Output channels of a block."""
        return _ROWS * self.tiles

    @property
    def group(self) -> int:
        return 32 * self.blocks * self.sides * self.parts

    @property
    def holders(self) -> int:
        """Warps that have sums of the same results."""
        return self.cluster * self.parts

    @property
    def fragments(self) -> int:
        """Of 16 rows of an octet, in all of a cluster."""
        return self.blocks * self.tiles * self.sides * self.octets

    @property
    def partial_bytes(self) -> int:
        """Local memory of a group for what others have of its sums."""
        if self.holders == 1:
            return 0
        return 512 * self.holders * -(-self.fragments // self.cluster)


_SHAPES = (
    Shape(1, 2, 2, 1, 8, 8), Shape(1, 2, 2, 2, 4, 8), Shape(1, 4, 1, 2, 8, 8),
    Shape(1, 4, 2, 1, 8, 4), Shape(2, 2, 1, 2, 8, 4), Shape(2, 2, 2, 2, 4, 8),
    Shape(2, 4, 1, 2, 4, 4), Shape(1, 1, 2, 4, 4, 1), Shape(1, 2, 1, 4, 4, 1),
    Shape(2, 1, 2, 4, 4, 1),
)
_SURE = Shape(1, 1, 2, 4, 4, 1)


@dataclass(frozen=True)
class Division:
    """A problem divided into tiles of `lines` lines of `width` octets, and how a group's channels
    lie in local memory, in pieces of 16 bytes: of each channel a copy for each horizontal tap, of
    each copy the lines by their residue modulo the vertical stride."""

    problem: Conv2dProblem
    shape: Shape

    @cached_property
    def width(self) -> int:
        octets = -(-self.problem.out_width // _OCTET)
        return -(-octets // -(-octets // self._capacity))

    @cached_property
    def lines(self) -> int:
        most = max(1, self._capacity // self.width)
        return -(-self.problem.out_height // -(-self.problem.out_height // most))

    @property
    def _capacity(self) -> int:
        return self.shape.sides * self.shape.octets

    @property
    def tiles_across(self) -> int:
        return -(-self.problem.out_width // (_OCTET * self.width))

    @property
    def tiles(self) -> int:
        """Of an image."""
        return self.tiles_across * -(-self.problem.out_height // self.lines)

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return -(-(self.problem.channels // self.problem.groups) // self.shape.cluster)

    @property
    def blocks(self) -> int:
        """Of a group of the convolution, with those without channels that fill the last group."""
        blocks = -(-(self.problem.out_channels // self.problem.groups) // self.shape.rows)
        return -(-blocks // self.shape.blocks) * self.shape.blocks

    @property
    def span(self) -> tuple[int, int]:
        """Lines and columns that the windows of a tile cover."""
        p = self.problem
        outputs = (self.lines, _OCTET * self.width)
        height, width = ((count - 1) * stride + (kernel - 1) * dilation + 1
                         for count, stride, kernel, dilation
                         in zip(outputs, p.stride, p.kernel, p.dilation, strict=True))
        return height, width

    @property
    def held_lines(self) -> int:
        """Lines of the input in a tile, at most."""
        return min(self.span[0], self.problem.height)

    @property
    def spread(self) -> int:
        """Binary logarithm of the work-items for the columns of an input line."""
        return (min(self.span[1], self.problem.width) - 1).bit_length()

    @property
    def residue_pieces(self) -> int:
        return -(-self.span[0] // self.problem.stride[0]) * self.width

    @property
    def tap_pieces(self) -> int:
        """Odd, as channel_pieces is, so that columns are spread over the banks."""
        return self.problem.stride[0] * self.residue_pieces | 1

    @property
    def channel_pieces(self) -> int:
        return self.problem.kernel[1] * self.tap_pieces | 1

    @property
    def pieces(self) -> int:
        """With those behind the last tap that warps without pixels of their own read."""
        return self.channels * self.channel_pieces + self._capacity

    @property
    def local_bytes(self) -> int:
        return 16 * self.pieces + self.shape.partial_bytes

    def misfit(self, limits: Limits) -> str | None:
        """Why the device cannot run it so."""
        if self.local_bytes > limits.local_bytes_opt_in:
            return f"{self.local_bytes} bytes of local memory, has {limits.local_bytes_opt_in}"
        if 1 << self.spread > self.shape.group:
            return f"{1 << self.spread} work-items for a line of the input"
        if self.shape.cluster > limits.cluster:
            return f"clusters of {self.shape.cluster} groups"
        return None

    def places(self, channel: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The pieces of the first octet for columns of the weights, channels of a group."""
        stride = self.problem.stride[0]
        line = row * self.problem.dilation[0]
        return (channel * self.channel_pieces + column * self.tap_pieces
                + line % stride * self.residue_pieces + line // stride * self.width)


class DirectSparsePixels(Algorithm):
    """In float16 with float32 sums. A column that a block of 16 or 32 output channels needs is
    multiplied for all of them: a NaN or infinity of the input reaches each of these, even where
    only zeros meet it."""

    op = "conv2d"
    name = "direct_sparse_pixels"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for float16 (sm_80 or newer)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        density = problem.weights_info.density
        if density > DENSEST:
            return f"density {density:.0%}, takes at most {DENSEST:.0%}"
        if problem.batch > MOST_IMAGES:
            return f"a batch of {problem.batch}, takes at most {MOST_IMAGES}"
        if problem.outputs[0].size and not _fitting(problem, device.limits):
            return f"needs {Division(problem, _SURE).misfit(device.limits)}"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        x, y = problem.inputs[0], problem.outputs[0]
        shapes = _fitting(problem, device.limits) if y.size else [_SURE]
        for shape in shapes:
            yield Variant(tuple(asdict(shape).items()),
                          (x, *[y] * problem.epilogue.tensor_count), (y,)).halved

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        shape = Shape(**{key: int(value) for key, value in variant.config})
        y = variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        divided = Division(problem, shape)
        tables = _Tables(divided, weights.arrays["weight"])
        parts = [weights.packed(tables.key(part), tables.packing(part))
                 for part in ("starts", "offsets", "weights", "channels")]
        kernel = device.compile(KernelSource.of(_SOURCE, "pixels", {
            "HALVES": 1, **{key.upper(): value for key, value in variant.config},
            "KERNEL_WIDTH": problem.kernel[1], "DEPTH": _AHEAD, "BATCH": _BATCH,
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype)},
            architectures=("sm_90" if shape.cluster > 1 else "sm_80", "sm_100"),
            dynamic_local=True, headers=(DIALECT,)))
        group_parts = divided.blocks // shape.blocks
        arguments = (
            input_buffer(0), *parts, output_buffer(0), *divisor(divided.tiles),
            *divisor(divided.tiles_across), divided.lines, *divisor(divided.width),
            problem.channels, problem.channels // problem.groups, divided.channels,
            *divisor(group_parts), problem.height, problem.width, problem.out_channels,
            problem.out_height, problem.out_width, *divisor(problem.stride[0]),
            *divisor(problem.stride[1]), problem.dilation[1], *problem.pads[:2],
            *divisor(divided.held_lines), divided.span[0], divided.spread,
            divided.residue_pieces, divided.tap_pieces, divided.channel_pieces, divided.pieces,
            *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))
        groups = (shape.cluster * group_parts * problem.groups, problem.batch * divided.tiles)
        return State(problem, variant, device, [
            Launch(kernel, groups, (shape.group,), arguments, divided.local_bytes)])


def _fitting(problem: Conv2dProblem, limits: Limits) -> list[Shape]:
    """The shapes that the device can run, the one expected to be fastest first."""
    found = [shape for shape in _SHAPES if Division(problem, shape).misfit(limits) is None]
    return sorted(found, key=lambda shape: cycles(Division(problem, shape), limits))


@dataclass(frozen=True)
class _Tables:
    """The tables of a layer: of each block the columns of each part of the channels.

    starts: of each block and part, the first of its steps, and behind the last. offsets: of each
    column of a step, the bytes of its first octet behind those of the first column. weights: of
    each step and tile, four registers for each of 32 lanes. channels: of each row of a block, its
    output channel, or -1.
    """

    divided: Division
    weight: np.ndarray

    def key(self, part: str) -> str:
        d = self.divided
        places = (d.residue_pieces, d.tap_pieces, d.channel_pieces, d.width)
        return f"{part} of {d.shape.rows} rows, {d.shape.blocks} by {d.shape.cluster}, {places}"

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: self.parts[part]

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        divided, problem, shape = self.divided, self.divided.problem, self.divided.shape
        matrix = np.asarray(self.weight, np.float32).reshape(problem.out_channels, -1)
        per_group = problem.out_channels // problem.groups
        blocks: list[np.ndarray] = []
        for group in range(problem.groups):
            rows = np.arange(group * per_group, (group + 1) * per_group)
            found = [rows[each] for each in cluster(matrix[rows] != 0, shape.rows)]
            # alike long ones in a group
            found.sort(key=lambda each: -int(matrix[each].any(axis=0).sum()))
            blocks += found + [rows[:0]] * (divided.blocks - len(found))
        channels = np.full((len(blocks), shape.rows), -1, np.int32)
        starts, offsets, values = [0], [], []
        part_columns = divided.channels * math.prod(problem.kernel)
        for index, members in enumerate(blocks):
            channels[index, :len(members)] = members
            columns = np.flatnonzero(matrix[members].any(axis=0))
            for part in range(shape.cluster):
                own = columns[columns // part_columns == part]
                order, places = self._spread(own - part * part_columns)
                offsets.append(places)
                value = np.zeros((shape.rows, len(places)), np.float32)
                used = order >= 0
                value[:len(members), used] = matrix[np.ix_(members, own[order[used]])]
                values.append(value)
                starts.append(starts[-1] + len(places) // _DEPTH)
        # a table without an entry would have no address
        if not starts[-1]:
            offsets.append(np.zeros(_DEPTH, np.int32))
            values.append(np.zeros((shape.rows, _DEPTH), np.float32))
        whole = np.concatenate(values, axis=1).reshape(shape.rows, -1, _DEPTH).swapaxes(0, 1)
        return {"starts": np.array(starts, np.int32), "offsets": np.concatenate(offsets),
                "weights": fragments(whole), "channels": channels}

    def _spread(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The order in which columns fill steps, -1 for none, and their offsets in bytes. Each
        eight of a step are loaded at once: what is in one bank is dealt out to all of them."""
        channel, tap = np.divmod(columns, math.prod(self.divided.problem.kernel))
        row, column = np.divmod(tap, self.divided.problem.kernel[1])
        places = self.divided.places(channel, row, column)
        eights = -(-len(columns) // _DEPTH) * 2
        order = np.full(eights * _BANKS, -1)
        order[:len(columns)] = np.argsort(places % _BANKS, kind="stable")
        order = order.reshape(_BANKS, eights).T.reshape(-1)
        # what is loaded twice costs no more: where there is none, what its eight has first
        instead = np.repeat(order.reshape(-1, _BANKS)[:, 0], _BANKS)
        filled = np.where(order >= 0, order, np.maximum(instead, 0))
        return order, (16 * places[filled]).astype(np.int32)


def fragments(values: np.ndarray) -> np.ndarray:
    """(steps, rows, 16) weights as (steps, tiles, 32 lanes, 4 registers): register r of lane l
    holds of row l / 4 + 8 (r % 2) the columns 2 (l % 4) + 8 (r / 2) and the next, as float16."""
    steps, rows, depth = values.shape
    # step, tile, upper or lower row, row, columns' half, quarter, of two
    apart = values.reshape(steps, rows // _ROWS, 2, 8, 2, 4, depth // 8)
    lanes = apart.transpose(0, 1, 3, 5, 4, 2, 6)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(lanes.astype(np.float16)).view("<u4")


def cycles(divided: Division, limits: Limits) -> float:
    """Expected cycles behind the launch. A group's inputs come from the L2 cache and go to local
    memory, its steps are multiplied, its sums are added up: each takes as long as the waiting of
    one warp or what all groups of a multiprocessor issue, whichever is more."""
    problem, shape = divided.problem, divided.shape
    density = problem.weights_info.density
    groups = (shape.cluster * divided.blocks // shape.blocks * problem.groups
              * problem.batch * divided.tiles)
    resident = max(1, min(limits.local_bytes_opt_in // divided.local_bytes, 1024 // shape.group))
    waves = -(-groups // (limits.units * resident))
    beside = -(-groups // (limits.units * waves))
    # of an instruction's lanes, input by input; 4 schedulers
    inputs = divided.channels * divided.held_lines * (1 << divided.spread) / 32
    staged = max(inputs * (12 + 2 * problem.kernel[1]) / 4, inputs * (2 + problem.kernel[1]),
                 16.0 * divided.channels * divided.held_lines * problem.width / 8 / 27)
    batches = -(-int(inputs * 32) // (shape.group * _BATCH))
    columns = max(1.0, divided.channels * math.prod(problem.kernel)
                  * (1 - (1 - density) ** shape.rows))
    steps = -(-math.ceil(columns / _DEPTH + 0.3) // shape.parts)
    warps = shape.blocks * shape.sides * shape.parts
    issued = 12 + shape.tiles * (1 + shape.octets) + shape.octets / 2
    multiplied = warps * steps * max(issued / 4, 1.7 * shape.tiles * shape.octets,
                                     2.6 * shape.octets + 4 * shape.tiles + 1)
    waited = steps * (80 + 2 * shape.octets + 4 * shape.tiles * shape.octets)
    summed = shape.partial_bytes / 64 + 30.0 * shape.fragments / shape.cluster / 4
    summed += 450 * (shape.cluster > 1) + 80 * (shape.holders > 1)
    return waves * (1200 + 700 * (batches - 1) + beside * (staged + summed)
                    + max(waited, beside * multiplied))
