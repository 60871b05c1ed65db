"""The tiles of shifted_gemm_mma, and the time that each takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem

ROWS = 64
"""Rows of a product of a warpgroup."""
_TURN_BYTES = 32 * 20 * 4
"""Bytes of shared memory in which a warp turns its sums."""
_BARRIERS_BYTES = 1024
"""Bytes of shared memory before the runs, with barriers."""
_MOST_KEPT = 100
"""Stages that may be kept, for each of which there is a barrier."""
_MOST_SLICE = 64
"""Channels of a slice, whose pieces are a line of 128 bytes."""
_ALIGNMENT = 1024
"""Bytes that a run is a multiple of."""


@dataclass(frozen=True)
class ShiftedTile:
    """The sizes of a work-group.

    columns: columns of a product.
    warpgroups: groups of four warps that multiply.
    units: products that each of them computes at once.
    slice: input channels that are copied at once, a multiple of 16.
    runs: slots for the places of a tile and a slice, two or more.
    weight_slots: slots for the weights of a tap and a slice; 0 where all are kept.
    ordered: 1 where two warpgroups multiply in turn, each while the other one stores.
    lines: 1 where a place is a line of 128 bytes, 0 where the places of 8 channels lie together.
    turned: 0 where the rows of a product are places and its columns output channels. Otherwise
        the rows are output channels, and so many warpgroups share the places.
    cluster: work-groups that share the copies of weights, which are not kept then.
    """

    columns: int
    warpgroups: int
    units: int
    slice: int
    runs: int
    weight_slots: int
    ordered: int = 0
    lines: int = 0
    turned: int = 0
    cluster: int = 1

    @property
    def unit(self) -> int:
        """Places of a product."""
        return self.columns if self.turned else ROWS

    @property
    def part(self) -> int:
        """Output channels of a work-group."""
        return ROWS * self.turned if self.turned else self.columns

    @property
    def tile_units(self) -> int:
        """Products along the places of a tile."""
        return self.units * self.warpgroups // max(1, self.turned)

    @property
    def work_group(self) -> int:
        """Work-items of a work-group: those that multiply, and four warps that copy."""
        return 128 * (self.warpgroups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a work-item that copies and of one that multiplies."""
        return {1: (40, 240), 2: (40, 232), 3: (32, 160)}[self.warpgroups]

    @property
    def stage_bytes(self) -> int:
        """Bytes of the weights of a tap and a slice."""
        return 2 * self.slice * self.part

    def stages(self, problem: Conv2dProblem) -> int:
        """Returns the stages of a tile: taps of all slices."""
        return -(-problem.channels // self.slice) * problem.kernel[0] * problem.kernel[1]

    def run_pieces(self, problem: Conv2dProblem) -> int:
        """Returns the places of a run, made odd."""
        return (self.unit * self.tile_units + Places(problem).halo) | 1

    def run_bytes(self, problem: Conv2dProblem) -> int:
        """Returns the bytes of a slot for a run."""
        nbytes = 2 * self.slice * self.run_pieces(problem)
        return -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        """Returns the bytes of shared memory of a work-group."""
        return (_BARRIERS_BYTES + self.runs * self.run_bytes(problem)
                + (self.weight_slots or self.stages(problem)) * self.stage_bytes
                + (4 * self.warpgroups * _TURN_BYTES if self.turned else 0))

    def grid(self, problem: Conv2dProblem, limits: Limits) -> tuple[int, int]:
        """Returns the ranges of units and the parts of the output channels, of which each has a
        work-group for every range: as many as run at once, and whole clusters."""
        parts = -(-problem.out_channels // self.part)
        units = Places(problem).units(self.unit)
        ranges = min(units, max(1, limits.compute_units // parts))
        return max(1, ranges // self.cluster) * self.cluster, parts


class Places:
    """The places of a problem: those of the pixels of all images, behind one another, and of pads.

    pitch: places of a row; the pads at its right are those at the left of the next row.
    image: places of an image; the rows below it are those above the next one.
    last: the place of the last output.
    halo: places that the last tap reads behind those of a tile.
    """

    def __init__(self, problem: Conv2dProblem) -> None:
        top, left, bottom, right = problem.pads
        self.pitch = max(problem.width + max(left, right), problem.out_width)
        rows = max(problem.height + max(top, bottom), problem.out_height)
        self.image = rows * self.pitch
        self.last = ((problem.batch - 1) * self.image + (problem.out_height - 1) * self.pitch
                     + problem.out_width - 1)
        self.halo = (problem.kernel[0] - 1) * self.pitch + problem.kernel[1] - 1

    def units(self, places: int) -> int:
        """Returns the units of so many places that have outputs."""
        return self.last // places + 1


_SHAPES = ((64, 2, 2, 0), (64, 3, 2, 0), (64, 2, 1, 0), (96, 2, 2, 0), (128, 2, 2, 0),
           (128, 2, 1, 0), (128, 3, 1, 0), (192, 2, 1, 0), (256, 2, 1, 0), (256, 1, 1, 0),
           (128, 2, 1, 1), (192, 2, 1, 1), (256, 2, 1, 1), (128, 3, 1, 1), (256, 1, 1, 1),
           (128, 2, 1, 2), (128, 2, 2, 2), (192, 2, 1, 2), (256, 2, 1, 2), (128, 3, 1, 3))
"""Columns, warpgroups, products of each at once, and `turned`, of the tiles that are offered."""
_WEIGHT_SLOTS = (8, 6, 4, 3)
"""Slots for weights, of which as many are taken as fit."""
_RUNS = 2

CYCLES_PER_MICROSECOND = 1750
"""Clock rate of an H200. All rates here are assumptions: none has been fitted to times."""
_START_US = 3.0
_RATE = 0.8
"""The share of the tensor cores' rate that is reached."""
_SUM = 0.055
"""Cycles of the epilogue of a sum that nothing hides; half as many where warpgroups take turns."""
_FILL = 1500
"""Cycles until the first run has come."""
_COPIED_PER_MICROSECOND, _MOVED_PER_MICROSECOND = 5.5e6, 3.9e6
"""Bytes that all multiprocessors copy from the L2 cache, and that device memory moves."""
_CACHED_BYTES = 35e6
"""Bytes that stay in the L2 cache from one layer to the next."""


def tile_of(variant: Variant) -> ShiftedTile:
    """Returns the tile of a variant."""
    return ShiftedTile(**{key: int(value) for key, value in variant.config})


def config_of(tile: ShiftedTile) -> tuple[tuple[str, int], ...]:
    """Returns a tile as the config of a variant."""
    return tuple(asdict(tile).items())


def fitting(problem: Conv2dProblem, limits: Limits) -> list[ShiftedTile]:
    """Returns the tiles whose runs and weights fit the shared memory, the fastest first."""
    return sorted(dict.fromkeys(_fitting(problem, limits)),
                  key=lambda tile: expected_us(problem, tile, limits))


def _fitting(problem: Conv2dProblem, limits: Limits) -> Iterator[ShiftedTile]:
    for (columns, groups, units, turned), most in itertools.product(_SHAPES, (_MOST_SLICE, 32)):
        slices = -(-problem.channels // most)
        channels = -(-problem.channels // (16 * slices)) * 16
        for ordered, lines, cluster in itertools.product((1, 0), (0, 1), (1, 2, 4)):
            if (ordered and (groups != 2 or turned > 1)) or (lines and channels != _MOST_SLICE):
                continue
            for slots in (0,) if ordered else (0, *_WEIGHT_SLOTS):
                tile = ShiftedTile(columns, groups, units, channels, _RUNS, slots, ordered, lines,
                                   turned, cluster)
                if ((tile.part >= problem.out_channels + ROWS and tile.part > ROWS)
                        or cluster > min(limits.cluster, Places(problem).units(tile.unit))):
                    break
                if ((slots > 0 or (cluster == 1 and tile.stages(problem) <= _MOST_KEPT))
                        and tile.shared_bytes(problem) <= limits.shared_bytes_opt_in):
                    yield tile
                    break


def expected_us(problem: Conv2dProblem, tile: ShiftedTile, limits: Limits) -> float:
    """Returns the estimated time of a launch in microseconds: a start, and the longest of what the
    busiest multiprocessor multiplies and stores, of copying runs and weights from the L2 cache, and
    of moving what does not stay in it."""
    places = Places(problem)
    ranges, parts = tile.grid(problem, limits)
    units = -(-places.units(tile.unit) // ranges)
    tiles = -(-units // tile.tile_units)
    steps = tile.stages(problem) * tile.slice // 16
    # the multiplications of 64 rows and the columns, which both are read from shared memory
    product = max(tile.columns / 2, 16 + tile.columns / 4) / _RATE * max(1, tile.turned)
    # a warpgroup alone waits for its own products
    alone = 1.3 if tile.warpgroups == 1 else 1.0
    cycles = (_FILL + units * (steps * product * alone
                               + tile.unit * tile.part * _SUM / (1 + tile.ordered)))
    copies_of_weights = tiles / tile.cluster if tile.weight_slots else 1
    weights = tile.stages(problem) * tile.stage_bytes * copies_of_weights
    copied = parts * ranges * (
        2 * problem.channels * (units * tile.unit + tiles * places.halo) + weights)
    nbytes = 2 * sum(spec.size for spec in (*problem.inputs, *problem.outputs))
    return _START_US + max(
        cycles / CYCLES_PER_MICROSECOND, copied / _COPIED_PER_MICROSECOND,
        nbytes / _MOVED_PER_MICROSECOND if nbytes > _CACHED_BYTES else 0.0)
