"""Convolutions on processors that multiply nonzero weights only, by code that LLVM compiles.

The method is the direct sparse convolution of J. Park et al., "Faster CNNs with Direct Sparse
Convolutions and Guided Pruning" (ICLR 2017): each nonzero weight is multiplied with a shifted view
of the padded input. Here a tile of the output is kept in registers while the weights of an output
channel are read, and input channels are taken in blocks whose part of a tile stays in the first
cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of, processors
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.device.native.threads import Jobs
from gossamer.facts import REAL
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.host import float32_operands
from gossamer.ops.conv2d.host_direct.tiles import ALIGNED, NONE, SHARED, Views, tiles_of, views_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.formats import too_dense
from gossamer.ops.host_threads import THREADS, Config, number_of, thread_configs
from gossamer.ops.weights import Weights, WeightsInfo

_CACHE_BYTES = 2**15
"""Bytes of the views of a block of input channels that the first cache of a core should hold, a
rule of thumb for any processor."""
_FEWEST_WEIGHTS = 8
"""Nonzero weights of an output channel in a block, by which the sums that are read and written for
each block cost little."""
_MOST_POSITIONS = 2**16
"""Positions in a table are 16-bit."""
_MOST_PIXELS = 2**24
"""Pixels of an output plane, whose tiles are listed before a call."""
_TASKS = 4
"""Tasks for each thread, so that threads end at about the same time."""
_OFTEN = 12
"""How often a vector that is copied should be read, by which it pays to copy it for each column of
taps, a rule of thumb for any processor."""
_COPY = 64
"""Multiply-adds for each number that a layer reads or writes, below which the copies to a library's
layout and back would take about as long as a dense layer, a rule of thumb for any processor."""


class HostDirect(Algorithm):
    """Direct convolution by code that is generated for this processor.

    Zeros among the weights are skipped: a NaN or infinity of the input does not reach a result
    whose weights for this input are all zero.
    """

    op = "conv2d"
    name = "host_direct"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        return (native.unavailable(device) or too_dense(problem.weights_info)
                or _refusal(problem))

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        widths = [lanes for lanes in (16, 8, 4) if lanes <= native.processor().lanes][:2]
        width = max(problem.image_pixels if problem.is_pointwise else problem.out_width, 1)
        widths.sort(key=lambda lanes: -(-width // lanes) * lanes)
        kinds = (NONE, ALIGNED) if problem.is_pointwise else (
            (ALIGNED,) if problem.kernel[1] == 1 else (SHARED, ALIGNED))
        reads = problem.group_out_channels * problem.taps * problem.weights_info.density
        if reads >= _OFTEN * problem.kernel[1]:
            kinds = kinds[::-1]
        listed: dict[Config, None] = {}
        for kind, factor, lanes in itertools.product(kinds, (1, 4), widths):
            views = views_of(problem, lanes, kind)
            if views.positions > _MOST_POSITIONS:
                continue
            fewest = max(_CACHE_BYTES // (4 * views.floats), math.ceil(_FEWEST_WEIGHTS / max(
                problem.taps * problem.weights_info.density, 1e-3)), 1)
            block = min(factor * fewest, problem.group_channels,
                        _MOST_POSITIONS // views.positions)
            for threads in thread_configs():
                listed[("lanes", lanes), ("views", kind), ("channels", block), *threads] = None
        for config in listed:
            yield Variant(config, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.conv2d.host_direct.code import multiplying

        lanes, block = variant["lanes"], variant["channels"]
        tiles, views = tiles_of(problem, lanes), views_of(problem, lanes, variant["views"])
        kinds = tuple(dict.fromkeys(tile.kind for tile in tiles))
        # the code depends on nothing else of the problem
        shape = replace(problem, batch=1, weights_info=WeightsInfo(), facts=(), result=REAL)
        multiply = function("multiply", native.processor(), multiplying, shape, views, lanes, kinds,
                            block)
        table = _table(np.asarray(weights.arrays["weight"], np.float32), problem, views, block)
        threads = number_of(variant[THREADS]) or processors()
        units = _units(table.starts, problem, len(tiles), threads)
        places = np.array([(kinds.index(tile.kind), tile.row, tile.column) for tile in tiles],
                          np.int64).reshape(-1, 3)
        constants = float32_operands(weights)
        operands = [np.ascontiguousarray(constants[f"operand{index}"].reshape(-1))
                    if kind == "channel" else None
                    for index, kind in enumerate(problem.epilogue.operands)]
        sums = max((rows * vectors for rows, vectors, _ in kinds), default=0) * lanes
        scratch = 4 * (min(block, problem.group_channels) * views.floats * bool(views.step)
                       + sums * int(np.diff(units).max()) * (block < problem.group_channels))
        arrays = (*table, units, places)
        return State(problem, variant, device, data=_Work(
            multiply, threads, len(tiles) * (len(units) - 1), scratch,
            (*map(native.address, arrays), len(units) - 1),
            tuple(None if array is None else native.address(array) for array in operands),
            (*arrays, *operands)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        Jobs(self.jobs(state, inputs, outputs, workspace), state.data.threads).run()

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None) -> list[Job]:
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        work: _Work = state.data
        x, *tensors = map(address_of, inputs)
        y = address_of(outputs[0])
        source = 4 * problem.channels * problem.height * problem.width
        target = 4 * problem.out_channels * problem.image_pixels
        jobs = []
        for image in range(problem.batch):
            given = iter(tensors)
            jobs.append(Job(work.multiply, (x + image * source, y + image * target, *work.fixed, *(
                next(given) + image * target if constant is None else constant
                for constant in work.operands)), work.tasks,
                max(work.tasks // (2 * _TASKS * work.threads), 1), work.scratch))
        return jobs if work.tasks else []


class HostDirectDense(HostDirect):
    """The same code for layers without many zeros, where a library would have to copy its layout.

    Such layers are depthwise, or have few products for each number that they read or write.
    """

    name = "host_direct_dense"
    dense = True
    between_pruned = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := native.unavailable(device)) is not None:
            return reason
        if too_dense(problem.weights_info) is None:
            return "has zeros, which host_direct skips"
        products = _products(problem)
        if not problem.is_depthwise and products > _COPY:
            return (f"has {products:.0f} multiply-adds for each number that it reads or writes, "
                    f"more than {_COPY}")
        return _refusal(problem)


def _refusal(problem: Conv2dProblem) -> str | None:
    """Return why generated code cannot compute a convolution; None where it can."""
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


def _products(problem: Conv2dProblem) -> float:
    """Return the multiply-adds for each number that a layer reads or writes."""
    numbers = problem.inputs[0].size + problem.outputs[0].size
    return problem.group_channels * problem.taps * problem.outputs[0].size / max(numbers, 1)


class _Work(NamedTuple):
    """What `launch` runs.

    tasks: pairs of a tile and a unit.
    scratch: bytes of memory that a thread needs.
    fixed: the arguments of `multiply` that are the same in every launch.
    operands: addresses of constants, and None for a run-time input.
    arrays: what the addresses belong to.
    """

    multiply: Function
    threads: int
    tasks: int
    scratch: int
    fixed: tuple[int, ...]
    operands: tuple[int | None, ...]
    arrays: tuple[np.ndarray | None, ...]


class _Table(NamedTuple):
    """The nonzero weights by block of input channels, output channel and position.

    positions: where the views of a block lie that are multiplied with a tile.
    starts: (blocks, M + 1), where the weights of each output channel begin.
    """

    positions: np.ndarray
    weights: np.ndarray
    starts: np.ndarray


def _table(weight: np.ndarray, problem: Conv2dProblem, views: Views, block: int) -> _Table:
    """Return the table of weights (M, C/groups, R, S)."""
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
    for channel in range(0, problem.group_channels, block):
        part = weight[:, channel:channel + block].reshape(problem.out_channels, -1)
        outputs, places = np.nonzero(part)
        positions.append(offsets.reshape(-1)[places].astype(np.uint16))
        weights.append(part[outputs, places])
        counts = np.bincount(outputs, minlength=problem.out_channels)
        starts.append(done + np.concatenate([[0], np.cumsum(counts)]))
        done += len(outputs)
    return _Table(np.concatenate(positions), np.concatenate(weights),
                  np.stack(starts).astype(np.int32))


def _units(starts: np.ndarray, problem: Conv2dProblem, tiles: int, threads: int) -> np.ndarray:
    """Divide the output channels of each group into units with about as many nonzero weights, one
    where there are tiles enough for all threads. Returns where each unit begins, and the end."""
    count = 1 if threads == 1 else min(
        -(-_TASKS * threads // max(tiles * problem.groups, 1)), problem.group_out_channels)
    weights = np.diff(starts, axis=1).sum(axis=0) + 1
    first = []
    for group in range(0, problem.out_channels, problem.group_out_channels):
        done = np.cumsum(weights[group:group + problem.group_out_channels])
        ends = np.searchsorted(done, done[-1] * np.arange(1, count) / count)
        first += [group, *(group + ends)]
    return np.array([*first, problem.out_channels], np.int32)
