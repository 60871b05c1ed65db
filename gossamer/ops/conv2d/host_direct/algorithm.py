"""Direct sparse convolution on CPUs, by code that LLVM compiles.

The method is the direct sparse convolution of J. Park et al., "Faster CNNs with Direct Sparse
Convolutions and Guided Pruning" (ICLR 2017): each nonzero weight is multiplied by a shifted view
of the padded input. In this implementation, a tile of the output stays in registers while the
weights of an output channel are read. Input channels are processed in blocks, so that the part of
each block that a tile reads stays in the L1 cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.facts import REAL
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host import float32_operands
from gossamer.ops.conv2d.host_direct.tiles import ALIGNED, NONE, SHARED, Views, tiles_of, views_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.formats import too_dense
from gossamer.ops.generated import GeneratedCode
from gossamer.ops.host_threads import THREADS, Config, thread_configs, workers
from gossamer.ops.weights import Weights, WeightsInfo

_CACHE_BYTES = 2**15
"""Size in bytes that the views of a block of input channels should have, so that they fit the L1
cache of a core. A rule of thumb for any CPU."""
_FEWEST_WEIGHTS = 8
"""Minimum number of nonzero weights that an output channel should have in a block. With fewer
weights, loading and storing the sums for each block would cost too much time."""
_MOST_POSITIONS = 2**16
"""Number of positions that a table can address with 16 bits."""
_MOST_PIXELS = 2**24
"""Maximum number of pixels of an output plane. The limit bounds the list of all tiles of the plane,
which is made in advance."""
_TASKS = 4
"""Number of tasks for each thread, so that threads end at about the same time."""
_OFTEN = 12
"""If each copied vector is read at least this many times, ALIGNED views are tried before SHARED
views. A rule of thumb for any CPU."""


class HostDirect(GeneratedCode):
    """Direct convolution by code generated for this CPU.

    Zero weights are skipped: a NaN or infinity in the input does not reach an output whose weights
    for that input are all zero.
    """

    op = "conv2d"
    name = "host_direct"
    dense = False
    by_image = True

    def refused(self, problem: Conv2dProblem) -> str | None:
        return too_dense(problem.weights_info) or refusal(problem)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        widths = widths_of(problem.image_pixels if problem.is_pointwise else problem.out_width)
        kinds = (NONE, ALIGNED) if problem.is_pointwise else (
            (ALIGNED,) if problem.kernel[1] == 1 else (SHARED, ALIGNED))
        outputs = self._together(problem)
        reads = problem.group_out_channels * problem.taps * problem.weights_info.density
        if outputs == 1 and reads >= _OFTEN * problem.kernel[1]:
            kinds = kinds[::-1]
        listed: dict[Config, None] = {}
        for kind, factor, lanes in itertools.product(kinds, (1, 4), widths):
            views = views_of(problem, lanes, kind, outputs)
            if views.positions > _MOST_POSITIONS:
                continue
            fewest = max(_CACHE_BYTES // (4 * views.floats), math.ceil(_FEWEST_WEIGHTS / max(
                problem.taps * problem.weights_info.density, 1e-3)), 1)
            block = min(factor * fewest, problem.group_channels,
                        _MOST_POSITIONS // views.positions)
            for threads in thread_configs():
                listed[("lanes", lanes), ("outputs", outputs), ("views", kind),
                       ("channels", block), *threads] = None
        for config in listed:
            yield Variant(config, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.conv2d.host_direct.code import multiplying

        lanes, outputs, block = variant["lanes"], variant["outputs"], variant["channels"]
        tiles = tiles_of(problem, lanes, outputs)
        views = views_of(problem, lanes, variant["views"], outputs)
        kinds = tuple(dict.fromkeys(tile.kind for tile in tiles))
        multiply = function("multiply", native.processor(), multiplying, shape_of(problem), views,
                            lanes, kinds, outputs, block)
        table = _table(np.asarray(weights.arrays["weight"], np.float32), problem, views, outputs,
                       block)
        threads = workers(variant[THREADS])
        units = _units(table.starts, problem.groups, len(tiles), threads, bool(views.step))
        tile_table = np.array([(kinds.index(tile.kind), tile.row, tile.column)
                               for tile in tiles], np.int64).reshape(-1, 3)
        sums = max((rows * vectors for rows, vectors, _ in kinds), default=0) * lanes * outputs
        scratch = 4 * (min(block, problem.group_channels) * views.floats * bool(views.step)
                       + sums * int(np.diff(units).max()) * (block < problem.group_channels))
        return State(problem, variant, device, data=Work.of(
            multiply, weights, problem, (*table, units, tile_table), (len(units) - 1,),
            threads=threads, tasks=len(tiles) * (len(units) - 1), scratch=scratch))

    def _together(self, problem: Conv2dProblem) -> int:
        """Return the number of output channels that are computed together from the same views."""
        return 1

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        work: Work = state.data
        x, *tensors = map(address_of, inputs)
        y = address_of(outputs[0])
        source = 4 * problem.channels * problem.height * problem.width
        target = 4 * problem.out_channels * problem.image_pixels
        jobs = []
        for image in range(problem.batch if images is None else images):
            given = iter(tensors)
            jobs.append(Job(work.code, (x + image * source, y + image * target, *work.fixed, *(
                next(given) + image * target if constant is None else constant
                for constant in work.operands)), work.tasks,
                max(work.tasks // (2 * _TASKS * work.threads), 1), work.scratch))
        return jobs if work.tasks else []


class HostDirectDense(HostDirect):
    """The code of HostDirect for dense layers between pruned layers.

    A library would need a conversion of layout before and after such a layer. Several output
    channels are computed together, so that each vector of the input is read once for all of them.
    """

    name = "host_direct_dense"
    dense = True
    between_thin = True

    def refused(self, problem: Conv2dProblem) -> str | None:
        if too_dense(problem.weights_info) is None:
            return "has zeros, which host_direct skips"
        if problem.is_depthwise and problem.stride[1] <= 2:
            return "is depthwise"
        return refusal(problem)

    def _together(self, problem: Conv2dProblem) -> int:
        return next(count for count in (4, 3, 2, 1) if problem.group_out_channels % count == 0)


def widths_of(row: int) -> list[int]:
    """Return the numbers of lanes of the two longest vectors of this CPU.

    The number that leaves fewer lanes idle in a row of `row` elements comes first.
    """
    widths = [lanes for lanes in (16, 8, 4) if lanes <= native.processor().lanes][:2]
    return sorted(widths, key=lambda lanes: -(-max(row, 1) // lanes) * lanes)


def shape_of(problem: Conv2dProblem) -> Conv2dProblem:
    """Return the problem without the fields that do not affect generated code."""
    return replace(problem, batch=1, weights_info=WeightsInfo(), facts=(), result=REAL)


def refusal(problem: Conv2dProblem) -> str | None:
    """Return why generated code cannot compute a convolution; None if it can."""
    from gossamer.device.native.code import unsupported

    if (reason := unsupported(problem.epilogue.expression)) is not None:
        return reason
    if problem.depth == 0:
        return "has no input channels"
    if problem.image_pixels > _MOST_PIXELS:
        return f"the output has more than {_MOST_PIXELS} pixels"
    if views_of(problem, 4, SHARED).positions > _MOST_POSITIONS:
        return f"the window of a tile has more than {_MOST_POSITIONS} pixels"
    return None


class Work(NamedTuple):
    """Sizes and arguments for calling a convolution's generated code.

    code: the function.
    threads: number of threads.
    tasks: number of tasks per image.
    scratch: bytes of scratch memory that a thread needs.
    fixed: the arguments that are the same in every call.
    operands: for each operand of the epilogue, the address of its constant, or None if the operand
    is a run-time input.
    arrays: the arrays whose addresses are arguments; this field keeps them alive.
    """

    code: Function
    threads: int
    tasks: int
    scratch: int
    fixed: tuple[int, ...]
    operands: tuple[int | None, ...]
    arrays: tuple[np.ndarray | None, ...]

    @staticmethod
    def of(code: Function, weights: Weights, problem: Conv2dProblem, arrays: Sequence[np.ndarray],
           numbers: Sequence[int] = (), *, threads: int, tasks: int, scratch: int = 0) -> Work:
        """Return the work of a layer.

        The fixed arguments are the addresses of `arrays`, followed by `numbers`.
        """
        constants = float32_operands(weights)
        operands = [np.ascontiguousarray(constants[f"operand{index}"].reshape(-1))
                    if kind == "channel" else None
                    for index, kind in enumerate(problem.epilogue.operands)]
        return Work(code, threads, tasks, scratch, (*map(native.address, arrays), *numbers),
                    tuple(None if array is None else native.address(array) for array in operands),
                    (*arrays, *operands))


class _Table(NamedTuple):
    """The nonzero weights, ordered by block of input channels, by row, and by position.

    A row is the `outputs` output channels that are computed together. A row has an entry for each
    input channel and tap for which at least one of the row's output channels has a nonzero weight.

    positions: for each entry, the position in a block's views at which the inputs of a tile begin.
    weights: (entries, outputs), the weights of the row's output channels.
    starts: (blocks, M / outputs + 1), for each block the index of the first entry of each row,
    followed by the end of the last row.
    """

    positions: np.ndarray
    weights: np.ndarray
    starts: np.ndarray


def _table(weight: np.ndarray, problem: Conv2dProblem, views: Views, outputs: int, block: int
           ) -> _Table:
    """Return the table for weights of shape (M, C/groups, R, S)."""
    taps = np.zeros(problem.kernel, np.int64)
    for r, s in np.ndindex(problem.kernel):
        row, column, later = r * problem.dilation[0], s * problem.dilation[1], 0
        if views.step == 1:
            later, column = divmod(column, problem.stride[1])
        number = views.copies.index((row % problem.stride[0], column))
        taps[r, s] = views.first(number) + row // problem.stride[0] * views.row + later
    step = max(views.step, 1)
    offsets = np.arange(block)[:, None, None] * views.positions + taps // step
    positions, weights, starts, done = [], [], [], 0
    count = problem.out_channels // outputs
    for channel in range(0, problem.group_channels, block):
        part = weight[:, channel:channel + block].reshape(count, outputs, -1)
        rows, taps_used = np.nonzero(part.any(axis=1))
        positions.append(offsets.reshape(-1)[taps_used].astype(np.uint16))
        weights.append(part[rows, :, taps_used])
        starts.append(done + np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]))
        done += len(rows)
    return _Table(np.concatenate(positions), np.concatenate(weights),
                  np.stack(starts).astype(np.int32))


def _units(starts: np.ndarray, groups: int, tiles: int, threads: int, copies: bool) -> np.ndarray:
    """Divide a table's rows into units of similar work.

    The work of a row is its number of entries plus 1. No unit has rows of several groups of the
    convolution. The result holds the first row of each unit, followed by the number of rows.

    tiles: number of tiles. A task is one tile and one unit.
    copies: True if each task copies its tile's views. In this case, the number of units does not
    grow further once the number of tasks is a multiple of the number of threads.
    """
    rows, tasks = (starts.shape[1] - 1) // groups, max(tiles * groups, 1)
    enough = (count for count in range(1, rows + 1) if tasks * count >= _TASKS * threads
              or (copies and tasks * count % threads == 0))
    count = 1 if threads == 1 else next(enough, rows)
    weights = np.diff(starts, axis=1).sum(axis=0) + 1
    first = []
    for group in range(0, rows * groups, rows):
        done = np.cumsum(weights[group:group + rows])
        ends = np.searchsorted(done, done[-1] * np.arange(1, count) / count)
        first += [group, *(group + ends)]
    return np.array([*first, rows * groups], np.int32)
