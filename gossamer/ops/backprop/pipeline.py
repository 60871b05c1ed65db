"""Exact blocking in one work-group a network: pipeline.cl's host side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device, KernelSource
from gossamer.ops.algorithm import Launch
from gossamer.ops.backprop.gram import TILE, Run
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.training import activation_macros, padded, registers_of

_SOURCE = Path(__file__).with_name("pipeline.cl")
_LEARNER = Path(__file__).with_name("learner.h")

_MOST_HIDDEN, _MOST_OUTPUTS = 64, 32
_MOST_FETCHED = 64
"""Registers of a work-item for the samples of the next block."""


@dataclass(frozen=True)
class Pipeline:
    """How a network lies on a work-group.

    block: samples that are worked on at once. apart: whether the first warp's scheduler is left
    to it. units: of the hidden layer, a work-item of the other warps.
    """

    block: int
    threads: int
    apart: int
    units: int

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("form", "pipeline"), ("block", self.block), ("threads", self.threads),
                ("apart", self.apart), ("units", self.units))

    @property
    def reach(self) -> int:
        return 2 * self.block

    def workspace(self, problem: BackpropProblem) -> int:
        return Run(problem, self.reach).nbytes

    def unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """The reason why the network does not lie on a work-group so; None: it does."""
        if len(problem.sizes) != 3:
            return f"{len(problem.sizes) - 2} hidden layers, not one"
        hidden, outputs = problem.sizes[1:]
        if hidden > _MOST_HIDDEN or outputs > _MOST_OUTPUTS:
            return (f"{hidden} hidden units and {outputs} outputs, more than {_MOST_HIDDEN} and "
                    f"{_MOST_OUTPUTS}")
        layout, limit = _Layout(problem, self), device.limits.local_bytes_opt_in
        if layout.nbytes > limit:
            return f"{layout.nbytes} bytes of local memory, {device.name} has {limit}"
        if self.threads > device.limits.group_size:
            return f"{self.threads} work-items a group"
        if layout.lanes > 32 or layout.fetched > _MOST_FETCHED or (
                layout.registers > registers_of(self.threads)):
            return "too many registers"
        return None

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        run, layout = Run(problem, self.reach), _Layout(problem, self)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "pipeline", layout.macros, dynamic_local=True, headers=(_LEARNER,)))
        found = []
        for part in run.parts(device):
            found += [part.gram, Launch(
                kernel, (problem.networks,), (self.threads,),
                (*part.buffers, run.products, run.same, problem.samples, part.first, part.count),
                layout.nbytes)]
        return found


FORMS = (
    Pipeline(8, 384, 0, 4), Pipeline(8, 256, 0, 4), Pipeline(8, 384, 1, 4),
    Pipeline(8, 320, 0, 4), Pipeline(8, 384, 0, 2), Pipeline(4, 384, 0, 4),
    Pipeline(8, 256, 0, 2), Pipeline(4, 256, 0, 4), Pipeline(16, 256, 0, 4),
    Pipeline(8, 128, 0, 4), Pipeline(4, 128, 0, 4),
)


class _Layout:
    """Where everything of a network lies in local memory, and the kernel's macros."""

    def __init__(self, problem: BackpropProblem, form: Pipeline) -> None:
        inputs, hidden, outputs = problem.sizes
        warps = form.threads // 32
        wide = warps // 4 * 3 if form.apart else warps - 1
        self.lanes = max(4, 32 // form.block, 1 << (-(-hidden // form.units) - 1).bit_length())
        side_by_side = max(1, 32 // self.lanes)
        ahead = max(2, 8 // side_by_side)
        stride = self.lanes * form.units
        step = max(8, side_by_side * ahead)
        turns = -(-inputs // (8 * wide))
        capacity = -(-8 * turns // step) * step
        self.fetched = -(-capacity // 128) * 4 * form.block
        parts = 2 if hidden > 32 and 2 * outputs <= 32 else 1
        share = padded(-(-hidden // parts))
        # of the first warp, roughly: weights, what they meet, what is pending, and the rest
        self.registers = 2 * share + -(-hidden // 32) * (padded(outputs) + form.reach) + (
            form.reach + padded(outputs) + 40)
        self._end = 0
        block, targets = form.block, padded(outputs)
        places = {
            "WEIGHT_AT": (inputs + 1) * stride,
            "LIST_AT": 2 * wide * capacity * block,
            "ROWS_AT": 2 * wide * capacity,
            "PARTIAL_AT": wide * block * stride,
            "RECORD_AT": 2 * block * (form.reach + 2 * targets + 2 * stride + 4),
            "HIDDEN_AT": parts * share,
            "ERROR_AT": targets,
            "PART_SUM_AT": parts * outputs,
            "SUMS_AT": targets,
            "EXPONENTIALS_AT": targets,
            "POWER_AT": 2 * block + 1,
            "DATA_ROW_AT": block,
            "VOTES_AT": form.threads // 32,
        }
        self.macros: dict[str, object] = {
            "INPUTS": inputs, "HIDDEN": hidden, "OUTPUTS": outputs, "BLOCK": block,
            "REACH": form.reach, "TILE": TILE, "THREADS": form.threads, "APART": form.apart,
            "PER_ITEM": form.units, "LANES": self.lanes, "STRIDE": stride, "CAPACITY": capacity,
            "AHEAD": ahead, "PARTS": parts, "SHARE": share, **activation_macros(problem),
            **{name: self._take(floats) for name, floats in places.items()},
        }
        self.macros["FLOATS"] = self._end
        self.nbytes = 4 * self._end

    def _take(self, floats: int) -> int:
        """The start of so many floats."""
        start = self._end
        self._end += padded(floats)
        return start
