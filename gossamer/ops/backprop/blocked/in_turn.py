"""Exact blocking over many work-groups, by several launches per block: the host side of in_turn.cl
and advance.cl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.backprop.blocked.gram import TILE, SampleRun
from gossamer.ops.backprop.common import (
    LOSSES,
    ORDER,
    PARAMETERS,
    SETTINGS,
    TARGETS,
    TRAINED,
    X,
    aligned,
    part_of_workspace,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.upper_layers import SharedMemoryLayout
from gossamer.ops.launch import Launch, input_buffer, output_buffer

_SOURCE = Path(__file__).with_name("in_turn.cl")
_ADVANCE = Path(__file__).with_name("advance.cl")
_UNITS_TILE, _SLICE = 8, 128
_LARGEST_GRID = 65535

MOST_LAUNCHES = 1 << 15
"""Largest number of launches of one call."""


@dataclass(frozen=True)
class InTurn:
    """A config of exact blocking by several launches per block. One work-group per network trains
    the upper layers on the samples of a block, one after the other. Many work-groups then change
    and multiply the weights of the first layer.

    block: number of samples of a block.
    threads: work-items of the work-group that trains the upper layers.
    """

    block: int
    threads: int

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("form", "launches"), ("block", self.block), ("threads", self.threads))

    @property
    def reach(self) -> int:
        """The inner products of each sample with this number of later samples are computed."""
        return self.block

    def workspace(self, problem: BackpropProblem) -> int:
        """Returns the bytes of workspace that the launches need."""
        return _Memory(problem, self).nbytes

    def why_unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """Returns the reason why the device cannot train the network with this config, or None."""
        blocks, units = -(-problem.samples // self.block), problem.sizes[1]
        if 2 * blocks > MOST_LAUNCHES:
            return f"{2 * blocks} launches, more than {MOST_LAUNCHES} a call"
        if max(problem.networks, -(-units // _UNITS_TILE)) > _LARGEST_GRID:
            return f"more than {_LARGEST_GRID} networks or tiles of units"
        if (sums := _Memory(problem, self).sum_count) >= 2**31:
            return f"{sums} sums of a block: indices are 32-bit"
        if self.threads > device.limits.work_group_size:
            return f"{self.threads} work-items a group"
        needed, limit = _InTurnLayout(problem, self).nbytes, device.limits.shared_bytes_opt_in
        if needed > limit:
            return f"{needed} bytes of shared memory, {device.name} has {limit}"
        return None

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        """Returns the launches that train on all samples."""
        layout, memory = _InTurnLayout(problem, self), _Memory(problem, self)
        in_turn = device.compile(KernelSource.of(
            _SOURCE, "in_turn", layout.macros, dynamic_shared=True))
        advance = device.compile(KernelSource.of(
            _ADVANCE, "advance",
            {"THREADS": _SLICE, "UNITS_TILE": _UNITS_TILE, "BLOCK": self.block}))
        inputs, units = problem.sizes[:2]
        tiles = (-(-inputs // _SLICE), -(-units // _UNITS_TILE), problem.networks)
        x, targets, order, settings = map(input_buffer, (X, TARGETS, ORDER, SETTINGS))
        before, after = input_buffer(PARAMETERS), output_buffer(TRAINED)
        launches = []

        def advance_launch(done: int, done_count: int, following: int, count: int) -> Launch:
            """Returns the launch that changes the first layer by the `done_count` samples from
            `done` on, and multiplies it by the `count` samples from `following` on."""
            return Launch(advance, tiles, (_SLICE, 1, 1), (
                x, order, settings, after if done_count else before, after, memory.deltas,
                memory.sums, inputs, units, problem.parameter_count, problem.samples, done,
                done_count, following, count))

        done = done_count = 0
        for part in memory.run.parts(device):
            launches.append(part.gram)
            for first in range(part.first, part.first + part.count, self.block):
                count = min(self.block, problem.samples - first)
                launches += [advance_launch(done, done_count, first, count), Launch(
                    in_turn, (problem.networks,), (self.threads,),
                    (targets, order, settings, after if first else before, after,
                     output_buffer(LOSSES), memory.run.products, memory.run.same, memory.sums,
                     memory.deltas, problem.samples, first, count, part.count,
                     first - part.first), layout.nbytes)]
                done, done_count = first, count
        return [*launches, advance_launch(done, done_count, 0, 0)]


FORMS = (InTurn(32, 256), InTurn(64, 256), InTurn(32, 512), InTurn(64, 512), InTurn(32, 128))


class _Memory:
    """The offsets of three arrays in the workspace: the inner products of samples, and for one
    block the sums of the first layer's units and the changes of weights whose input is 1."""

    def __init__(self, problem: BackpropProblem, form: InTurn) -> None:
        self.run = SampleRun(problem, form.reach)
        block = problem.networks * form.block * problem.sizes[1]
        self.sum_count = block * -(-problem.sizes[0] // _SLICE)
        sums_at = aligned(self.run.nbytes)
        deltas_at = sums_at + aligned(4 * self.sum_count)
        self.sums = part_of_workspace(sums_at, 4 * self.sum_count)
        self.deltas = part_of_workspace(deltas_at, 4 * block)
        self.nbytes = deltas_at + 4 * block


class _InTurnLayout(SharedMemoryLayout):
    """The layout of shared memory with the first layer's sums."""

    def __init__(self, problem: BackpropProblem, form: InTurn) -> None:
        units = problem.sizes[1]
        splits = max(1, min(form.threads // units, form.block))
        super().__init__(problem, form.threads, 2, 0)
        self.macros.update(
            NARROW=0, UNITS=units, SPLITS=splits, BLOCK=form.block, REACH=form.reach, TILE=TILE,
            SLICES=-(-problem.sizes[0] // _SLICE), SUM_AT=self.take(form.block * units),
            COEFFICIENT_AT=self.take(3 * form.block), POWER_AT=self.take(form.block))
        self.macros["FLOATS"] = self.floats
