"""The tables of direct_sparse_mma: which columns of which block are multiplied when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse_table import cluster

ROWS = 16
"""Output channels of an instruction's tile."""
ROW_CLASSES = 3
"""What the class of a pixel's row of local memory grows by along y: so a window of 3 x 3 has all
eight."""
_LAG = 1.5
"""Chunks whose columns stay for later where they may: with more to choose from, those of a step
lie in different banks."""


@dataclass(frozen=True)
class Kind:
    """What differs by precision: images of 16 bytes, columns of a step, and how many of these are
    read at once, which lie in different banks where their classes differ modulo that
    number."""

    vector: int
    depth: int
    apart: int

    @property
    def images(self) -> int:
        """Of a row of local memory."""
        return 8 * self.vector

    @property
    def sum_bytes(self) -> int:
        """Of local memory for a warp's 16 rows of sums, on their way out."""
        return 16 * (self.images + self.vector) * 4


KINDS = {"tf32": Kind(4, 8, 4), "fp16": Kind(8, 16, 8)}


@dataclass(frozen=True)
class Geometry:
    """How a layer's input comes into local memory: `chunk` channels at a time, for each of which
    `pitch` rows, into one of `stages` parts of `stage_rows` rows. height, width: of the input
    pixels that a tile's windows cover."""

    height: int
    width: int
    chunk: int
    stages: int

    @property
    def pitch(self) -> int:
        return self.height * self.width

    @property
    def stage_rows(self) -> int:
        return self.chunk * self.pitch

    @property
    def nbytes(self) -> int:
        """Of local memory: the rows, where one stage's are in the input, and where the tile is."""
        return self.stage_rows * (self.stages * 128 + 8) + 16


@dataclass(frozen=True)
class Tables:
    """The tables of a layer: blocks of alike output channels, `together` of which share a
    work-group.

    starts: of each block, its first step of each phase, and behind its last. places: of each
    column of a step, its row of local memory for the tile's first pixel, times 128, and its class.
    weights: of each step and tile, four registers for each of 32 lanes. channels: of each row of a
    block, its output channel, or -1. Behind the last step stands one more, to be read ahead.
    """

    problem: Conv2dProblem
    weight: np.ndarray
    kind: Kind
    rows: int
    together: int
    geometry: Geometry

    def key(self, part: str) -> str:
        return f"{part} of {self.rows} rows, {self.together}, {self.kind}, {self.geometry}"

    def packing(self, part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: self.parts[part]

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        problem, depth = self.problem, self.kind.depth
        matrix = np.asarray(self.weight, np.float32).reshape(problem.out_channels, -1)
        per_group = problem.out_channels // problem.groups
        phases = phases_of(problem, self.geometry)
        starts, channels, places, values = [], [], [], []
        step = 0
        for first in range(0, problem.out_channels, per_group):
            mask = matrix[first:first + per_group] != 0
            found = [(first + np.array(members), np.flatnonzero(mask[members].any(axis=0)))
                     for members in cluster(mask, self.rows)]
            for number, (members, columns) in enumerate(_dealt(found, self.together)):
                channel, place = self._located(columns)
                # of the blocks of one scheduler, not all round their share of a phase alike
                turn = number % self.together // 4
                steps, ends = scheduled(channel // self.geometry.chunk, place % self.kind.apart,
                                        phases, self.geometry.stages, self.kind,
                                        (turn + 0.5) / -(-self.together // 4))
                starts.append([step, *(step + end for end in ends)])
                step += len(steps)
                chosen = np.array(steps, np.int64).reshape(-1, depth)
                block = np.zeros((self.rows, chosen.size), np.float32)
                of = chosen.reshape(-1)
                block[:len(members), of >= 0] = matrix[np.ix_(members, columns[of[of >= 0]])]
                values.append(block.reshape(self.rows, -1, depth).swapaxes(0, 1))
                # what fills a step up repeats one of its columns
                places.append(place[np.where(chosen < 0, chosen[:, :1], chosen)])
                channels.append(np.pad(members, (0, self.rows - len(members)),
                                       constant_values=-1))
        places.append(np.zeros((1, depth), np.int64))
        values.append(np.zeros((1, self.rows, depth), np.float32))
        return {"starts": np.array(starts, np.int32),
                "places": np.concatenate(places).astype(np.int32),
                "weights": _fragments(np.concatenate(values), self.kind),
                "channels": np.array(channels, np.int32)}

    def _located(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each column its channel within the group, and its place in local memory."""
        problem, geometry = self.problem, self.geometry
        channel, tap = np.divmod(columns, problem.kernel[0] * problem.kernel[1])
        row, column = np.divmod(tap, problem.kernel[1])
        chunk, in_chunk = np.divmod(channel, geometry.chunk)
        down, right = row * problem.dilation[0], column * problem.dilation[1]
        pool_row = (chunk % geometry.stages * geometry.stage_rows + in_chunk * geometry.pitch
                    + down * geometry.width + right)
        return channel, pool_row << 7 | (in_chunk + ROW_CLASSES * down + right) % 8


def phases_of(problem: Conv2dProblem, geometry: Geometry) -> int:
    """How many chunks the channels of a group are."""
    return -(-(problem.channels // problem.groups) // geometry.chunk)


def blocks_of(problem: Conv2dProblem, rows: int, together: int) -> int:
    """Of each group, with those without channels that fill the last work-group."""
    blocks = -(-(problem.out_channels // problem.groups) // rows)
    return -(-blocks // together) * together


Block = tuple[np.ndarray, np.ndarray]
"""Output channels, and the columns where one of them has a nonzero."""


def _dealt(blocks: list[Block], together: int) -> list[Block]:
    """In the order of work-groups: these, and the four schedulers of each, whose warps are every
    fourth, get alike sums of columns. What is missing in the last one is a block of nothing."""
    count = -(-len(blocks) // together)
    nothing = np.zeros(0, np.int64)
    blocks = blocks + [(nothing, nothing)] * (count * together - len(blocks))
    dealt: list[Block] = []
    for own in _shares(blocks, [together] * count):
        warps = _shares(own, [len(range(first, together, 4)) for first in range(min(4, together))])
        dealt += [warps[place % 4][place // 4] for place in range(together)]
    return dealt


def _shares(blocks: list[Block], sizes: Sequence[int]) -> list[list[Block]]:
    """So many blocks each, with alike sums of columns: the longest go first to who has least, then
    the largest sum and each other one swap what brings them closest."""
    shares: list[list[Block]] = [[] for _ in sizes]

    def total(share: list[Block]) -> int:
        return sum(len(columns) for _, columns in share)

    for block in sorted(blocks, key=lambda each: -len(each[1])):
        open_ones = [share for share, size in zip(shares, sizes, strict=True) if len(share) < size]
        min(open_ones, key=total).append(block)
    for _ in range(4 * len(blocks)):
        largest = max(shares, key=total)
        best = None
        for other in shares:
            gap = total(largest) - total(other)
            for i, j in product(range(len(largest)), range(len(other))):
                left = abs(gap - 2 * (len(largest[i][1]) - len(other[j][1])))
                if left < gap and (best is None or gap - left > best[0]):
                    best = gap - left, other, i, j
        if best is None:
            break
        _, other, i, j = best
        largest[i], other[j] = other[j], largest[i]
    for share in shares:
        share.sort(key=lambda each: -len(each[1]))
    return shares


def scheduled(chunks: np.ndarray, classes: np.ndarray, phases: int, stages: int, kind: Kind,
              rounding: float = 0.5) -> tuple[list[list[int]], list[int]]:
    """The steps of a block, each the numbers of its columns (-1: none), and how many of them are
    done by the end of each phase.

    chunks: of each column, ascending. A chunk is there from the phase of its number on, and is
    replaced `stages` - 2 phases later. classes: of each column, what differs where columns can be
    read at once, from 0 to kind.apart - 1. rounding: what is added to a phase's share of the steps
    before it is cut to a whole number.
    """
    arrivals = np.searchsorted(chunks, np.arange(phases + 1)).tolist()
    class_of = classes.tolist()
    queues: list[deque[int]] = [deque() for _ in range(kind.apart)]
    total = -(-len(chunks) // kind.depth)
    steps: list[list[int]] = []
    ends = []
    taken = 0
    for phase in range(phases):
        for column in range(arrivals[phase], arrivals[phase + 1]):
            queues[class_of[column]].append(column)
        last = phase == phases - 1
        # whose chunk is replaced in the next phase
        due = len(chunks) if last else arrivals[max(0, phase + 4 - stages)]
        # the first phases, too, have something to do
        lag = min(_LAG, (phase + 2) / 4)
        pace = total if last else int(total * (phase + 1 - lag) / phases + rounding)
        while (any(queue and queue[0] < due for queue in queues)
               or (len(steps) < pace and arrivals[phase + 1] - taken >= kind.depth)):
            step: list[int] = []
            for _ in range(kind.depth // kind.apart):
                step += _apart(queues, kind.apart)
            taken += len(step)
            steps.append(step + [-1] * (kind.depth - len(step)))
        ends.append(len(steps))
    return steps, ends


def _apart(queues: Sequence[deque[int]], count: int) -> list[int]:
    """So many columns, of different classes where there are such: else of those with most."""
    found = [queue.popleft() for queue in queues if queue]
    while len(found) < count and (queue := max(queues, key=len)):
        found.append(queue.popleft())
    return found


def _fragments(values: np.ndarray, kind: Kind) -> np.ndarray:
    """(steps, block, depth) weights as (steps, tiles, 32 lanes, 4 registers).

    Register r of lane l holds row l / 4 + 8 (r % 2) and of the first half of the columns (r < 2)
    or the second that, or those two, with number l % 4.
    """
    steps, block, depth = values.shape
    # step, tile, upper or lower rows, row, upper or lower columns, quarter, column of these
    apart = values.reshape(steps, block // ROWS, 2, 8, 2, 4, depth // 8)
    lanes = apart.transpose(0, 1, 3, 5, 4, 2, 6)
    if kind.vector == 8:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(lanes.astype(np.float16)).view("<u4")
    return _tf32(np.ascontiguousarray(lanes))


def _tf32(values: np.ndarray) -> np.ndarray:
    """Rounded to the 10 bits of mantissa that TF32 has, to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(values), rounded, bits).view(np.float32)
