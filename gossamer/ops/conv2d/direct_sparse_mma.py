"""direct_sparse_mma: pruned convolution on tensor cores, which skip the columns that a block of
output channels does not need.

Source: direct sparse convolution (Escoin, 2018), whose stretched columns here address vectors of
images; rows are taken together by the tensor cores' tile of 16, as in vector-sparse products
(Chen et al., 2021), so that no pruning in blocks is asked for: a column that one of 16 rows needs
costs what 16 do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
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

_SOURCE = Path(__file__).with_name("direct_sparse_mma.cu")
_ROWS = 16
"""Output channels of an instruction's tile."""
_UNITS = 8
"""Units of VECTOR images that an instruction takes, for each unit of a lane."""
_RUN = 2
"""Units of a pixel that fill a sector of 32 bytes: the fewest that are fetched for themselves."""
_LONGEST_SIDE = 16
"""Rows or columns of a window, of each of which the kernel keeps a bit."""

DENSEST = 0.3
"""Above this density next to no column of 16 rows is empty."""


@dataclass(frozen=True)
class Shape:
    """tiles: of 16 output channels in a block. blocks: of a group, for the same units. warps: of a
    group for each block, side by side. split: sets of warps that share a block's columns. sets:
    units of a lane. run: units of a pixel that follow one another, where these divide by it; 0 for
    all of them."""

    tiles: int
    blocks: int
    warps: int
    split: int
    sets: int
    run: int

    @property
    def rows(self) -> int:
        """Output channels of a block."""
        return _ROWS * self.tiles

    @property
    def units(self) -> int:
        """Of a group."""
        return _UNITS * self.sets * self.warps

    @property
    def group(self) -> int:
        return 32 * self.warps * self.blocks * self.split

    def run_of(self, pixel_units: int) -> int:
        return self.run if self.run and pixel_units % self.run == 0 else pixel_units


@dataclass(frozen=True)
class _Kind:
    """What differs by precision: images of a unit, columns of a step, and registers of weights
    that hold two columns each (float16) or one (TF32)."""

    vector: int
    depth: int
    sets: int

    @property
    def columns(self) -> int:
        """Of a step that a lane fetches."""
        return self.depth // 4


_KINDS = {"tf32": _Kind(4, 8, 2), "fp16": _Kind(8, 16, 1)}
_SHAPES = ((2, 4, 2, 1), (2, 2, 4, 1), (2, 1, 4, 1), (4, 2, 2, 1), (4, 1, 4, 1), (1, 8, 2, 1),
           (1, 4, 4, 1), (2, 2, 1, 2), (1, 2, 2, 2), (1, 1, 2, 4), (1, 1, 1, 8))
_MOST_BLOCKS = max(blocks for _, blocks, _, _ in _SHAPES)


class DirectSparseMma(Algorithm):
    """In TF32 and float16, images innermost, with float32 sums. A column that a block of 16 or 32
    output channels needs is multiplied for all of them: a NaN or infinity of the input reaches
    each of these, even where only zeros meet it. Of TF32 inputs the bits beyond are dropped."""

    op = "conv2d"
    name = "direct_sparse_mma"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for float16 and TF32 (sm_80 or newer)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        density = problem.weights_info.density
        if density > DENSEST:
            return f"density {density:.0%}, takes at most {DENSEST:.0%}"
        if problem.batch % min(kind.vector for kind in _KINDS.values()):
            return f"a batch of {problem.batch}: images are taken four or eight at a time"
        if max(problem.kernel) > _LONGEST_SIDE:
            return (f"windows of {max(problem.kernel)} rows or columns, takes at most "
                    f"{_LONGEST_SIDE}")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield _variant(problem, Shape(1, 1, 1, 1, 1, 0), "tf32")
            return
        # in turn, so that whoever tries a few has some of each
        for in_turn in zip_longest(*(self._of(precision, problem, device) for precision in _KINDS)):
            yield from filter(None, in_turn)

    def _of(self, precision: str, problem: Conv2dProblem, device: Device) -> list[Variant]:
        """The one expected to be fastest first."""
        kind = _KINDS[precision]
        if problem.batch % kind.vector:
            return []
        pixel_units = problem.batch // kind.vector
        shapes = [Shape(*each, kind.sets, run) for each in _SHAPES for run in (0, _RUN)]
        # what is the same as another for this batch, and may be taken for the sake of others, last
        shapes.sort(key=lambda each: (each.run > 0 and each.run_of(pixel_units) == pixel_units,
                                      _cost(problem, each, kind, device.limits)))
        return [_variant(problem, shape, precision) for shape in shapes]

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        shape = Shape(**{key: int(value) for key, value in variant.config})
        kind = _KINDS[variant.precision]
        y = variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        pixel_units = problem.batch // kind.vector
        units = problem.out_height * problem.out_width * pixel_units
        run = shape.run_of(pixel_units)
        tables = _Tables(problem, weights.arrays["weight"], shape.rows, kind)
        parts = [weights.packed(tables.key(part), tables.packing(part))
                 for part in ("starts", "places", "weights", "channels")]
        kernel = device.compile(KernelSource.of(_SOURCE, "columns", {
            "HALVES": int(variant.precision == "fp16"), "TILES": shape.tiles, "SETS": shape.sets,
            "WARPS": shape.warps, "BLOCKS": shape.blocks, "SPLIT": shape.split,
            "PADDED": int(any(problem.pads)),
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype, one_channel=True)},
            architectures=("sm_80", "sm_100"), headers=(DIALECT,)))
        arguments = (
            input_buffer(0), *parts, output_buffer(0), units, pixel_units,
            *divisor(units // pixel_units * run), *divisor(run),
            *divisor(problem.out_width), problem.height, problem.width, *problem.kernel,
            *problem.stride, *problem.dilation, *problem.pads[:2], y.strides[1],
            *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))
        groups = (-(-units // shape.units), _blocks(problem, shape) // shape.blocks)
        return State(problem, variant, device,
                     [Launch(kernel, groups, (shape.group,), arguments)])


def _variant(problem: Conv2dProblem, shape: Shape, precision: str) -> Variant:
    x, y = (spec.with_layout("CHWN") for spec in (problem.inputs[0], problem.outputs[0]))
    variant = Variant(tuple(asdict(shape).items()), (x, *[y] * problem.epilogue.tensor_count),
                      (y,), precision)
    return variant.halved if precision == "fp16" else variant


def _blocks(problem: Conv2dProblem, shape: Shape) -> int:
    """Of the layer, with those without channels that fill the last group."""
    blocks = problem.groups * -(-(problem.out_channels // problem.groups) // shape.rows)
    return -(-blocks // shape.blocks) * shape.blocks


@dataclass(frozen=True)
class _Tables:
    """The tables of a layer: blocks with most steps first, so that those of a group have like
    numbers of them.

    starts: of each block, the first of its steps, and behind the last. places: of each column of
    a step, its units behind the start of a window, and two bits, r and 16 + s, for row r and
    column s of the window. weights: of each step and tile, four registers for each of 32 lanes.
    channels: of each row of a block, its output channel, or -1.
    """

    problem: Conv2dProblem
    weight: np.ndarray
    rows: int
    kind: _Kind

    def key(self, part: str) -> str:
        p = self.problem
        size = f" in {(p.batch, p.height, p.width)}" if part == "places" else ""
        return f"{part} of {self.rows} rows, {self.kind}{size}"

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: self.parts[part]

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        problem, kind = self.problem, self.kind
        matrix = np.asarray(self.weight, np.float32).reshape(problem.out_channels, -1)
        per_group = problem.out_channels // problem.groups
        blocks = []
        for group in range(problem.groups):
            rows = np.arange(group * per_group, (group + 1) * per_group)
            for each in cluster(matrix[rows] != 0, self.rows):
                members = rows[each]
                blocks.append((members, np.flatnonzero(matrix[members].any(axis=0)), group))
        blocks.sort(key=lambda each: -len(each[1]))
        # blocks without steps fill the last group of any shape
        steps = np.zeros(-(-len(blocks) // _MOST_BLOCKS) * _MOST_BLOCKS, np.int64)
        steps[:len(blocks)] = [-(-len(columns) // kind.depth) for _, columns, _ in blocks]
        starts = np.concatenate([[0], np.cumsum(steps)]).astype(np.int32)
        # a table without an entry would have no address
        places = np.zeros((max(1, starts[-1]), kind.depth, 2), np.int32)
        values = np.zeros((len(places), self.rows, kind.depth), np.float32)
        channels = np.full((len(steps), self.rows), -1, np.int32)
        for index, (members, columns, group) in enumerate(blocks):
            channels[index, :len(members)] = members
            if len(columns):
                span = slice(starts[index], starts[index + 1])
                repeated = np.resize(columns, (steps[index], kind.depth))
                places[span] = self._places(repeated, group)
                part = np.zeros((self.rows, repeated.size), np.float32)
                part[:len(members), :len(columns)] = matrix[np.ix_(members, columns)]
                values[span] = part.reshape(self.rows, -1, kind.depth).swapaxes(0, 1)
        return {"starts": starts, "places": places, "weights": _fragments(values, kind),
                "channels": channels}

    def _places(self, columns: np.ndarray, group: int) -> np.ndarray:
        problem = self.problem
        channel, tap = np.divmod(columns, math.prod(problem.kernel))
        row, column = np.divmod(tap, problem.kernel[1])
        channel = channel + group * (problem.channels // problem.groups)
        pixels = ((channel * problem.height + row * problem.dilation[0]) * problem.width
                  + column * problem.dilation[1])
        units = pixels * (problem.batch // self.kind.vector)
        return np.stack([units, 1 << row | 1 << 16 + column], axis=-1).astype(np.uint32).view(
            np.int32)


def _fragments(values: np.ndarray, kind: _Kind) -> np.ndarray:
    """(steps, block, depth) weights as (steps, tiles, 32 lanes, 4 registers).

    Register r of lane l holds row l / 4 + 8 (r % 2) and, of the columns that quarter l % 4
    fetches, the first half (r < 2) or the second.
    """
    steps, block, depth = values.shape
    halves = depth // 8
    # step, tile, upper or lower row, row, quarter, first or second, column of these
    apart = values.reshape(steps, block // _ROWS, 2, 8, 4, 2, halves)
    lanes = apart.transpose(0, 1, 3, 4, 5, 2, 6)
    if halves == 2:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(lanes.astype(np.float16)).view("<u4")
    return _tf32(np.ascontiguousarray(lanes))


def _tf32(values: np.ndarray) -> np.ndarray:
    """Rounded to the 10 bits of mantissa that TF32 has, to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)


def _cost(problem: Conv2dProblem, shape: Shape, kind: _Kind, limits: Limits) -> float:
    """Expected cycles of a multiprocessor: for each step of a warp its instructions on one of four
    schedulers, those of tensor cores, its loads from the L1 cache (four columns in the same banks
    of it), and what of them comes from the L2 cache at 27 bytes a cycle; where few warps take
    turns, each step's wait."""
    density, (height, width) = problem.weights_info.density, problem.kernel
    columns = max(1.0, problem.depth * (1 - (1 - density) ** shape.rows))
    steps = columns / kind.depth / shape.split
    loads = kind.columns * shape.sets
    products = shape.tiles * kind.vector * shape.sets
    # the places of the input that a group's windows cover, 16 bytes a unit, for each channel
    run = shape.run_of(problem.batch // kind.vector)
    patch = height * (max(1.0, shape.units / run) + width - 1) * min(shape.units, run)
    new = problem.channels / problem.groups * patch / (shape.blocks * shape.warps * shape.split)
    cached = 16 * min(32.0 * loads, new / steps) + 512 * shape.tiles / shape.warps
    issued = 30 + 6 * loads + 16 * (kind.depth // 8 - 1) + products + shape.tiles
    busy = max(issued / 4, 1.6 * products, 16.0 * loads + 4 * shape.tiles, cached / 27)
    units = problem.out_height * problem.out_width * problem.batch // kind.vector
    groups = _blocks(problem, shape) // shape.blocks * -(-units // shape.units)
    warps = -(-groups // max(limits.units, 1)) * shape.group // 32
    at_once = min(warps, 64 // (2 + 2 * shape.tiles))
    return steps * warps * max(busy, 300 / at_once) + 500 * (shape.split > 1)
