"""Exact blocking in one work-group a network: pipeline.cl's host side, and what its form for tensor
cores shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device, Kernel, KernelSource
from gossamer.ops.backprop.blocked.gram import TILE, SampleRun
from gossamer.ops.backprop.common import activation_macros, padded, registers_of
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch

_SOURCE = Path(__file__).with_name("pipeline.cl")
SEQUENTIAL_CORE = Path(__file__).with_name("sequential_core.h")
PIPELINE = Path(__file__).with_name("pipeline.h")

_MOST_HIDDEN, _MOST_OUTPUTS = 64, 32
_MOST_NETWORKS = 65535
"""Their samples' inner products are groups along y."""
_MOST_FETCHED = 64
"""Registers of a work-item for the samples of the next block."""


class Chain:
    """What every form has in shared memory and among the kernel's macros, for sequential_core.h and
    pipeline.h. A form adds its own places last."""

    def __init__(self, problem: BackpropProblem, block: int, threads: int, stride: int, matmul_warps: int,
                 recording: int) -> None:
        """matmul_warps: warps that work on the first layer. recording: warps that make records."""
        inputs, hidden, outputs = problem.sizes
        self.threads, self.reach, self.matmul_warps = threads, 2 * block, matmul_warps
        parts = 2 if hidden > 32 and 2 * outputs <= 32 else 1
        share = padded(-(-hidden // parts))
        targets = padded(outputs)
        self.registers = 2 * share + -(-hidden // 32) * (targets + self.reach) + (
            self.reach + targets + 40)
        """Of the first warp, roughly: weights, what they meet, what is pending, and the rest."""
        self.macros: dict[str, object] = {
            "INPUTS": inputs, "HIDDEN": hidden, "OUTPUTS": outputs, "BLOCK": block,
            "REACH": self.reach, "TILE": TILE, "THREADS": threads, "MATMUL_WARPS": matmul_warps,
            "RECORD_ITEMS": 32 * recording, "STRIDE": stride, "PARTS": parts, "SHARE": share,
            **activation_macros(problem),
        }
        self.nbytes = 0
        self.place({
            "RECORD_AT": 2 * block * (self.reach + 2 * targets + 2 * stride + 4),
            "HIDDEN_AT": parts * share,
            "ERROR_AT": targets,
            "PART_SUM_AT": parts * outputs,
            "SUMS_AT": targets,
            "EXPONENTIALS_AT": targets,
            "POWER_AT": 2 * block + 1,
        })

    def place(self, floats: dict[str, int]) -> None:
        """Gives each name so many floats of shared memory."""
        for name, count in floats.items():
            self.macros[name] = self.nbytes // 4
            self.nbytes += 4 * padded(count)
        self.macros["FLOATS"] = self.nbytes // 4

    def unfit(self, device: Device) -> str | None:
        """The reason why a work-group has no room for it; None: it has."""
        limits = device.limits
        if self.nbytes > limits.shared_bytes_opt_in:
            return (f"{self.nbytes} bytes of shared memory, {device.name} has "
                    f"{limits.shared_bytes_opt_in}")
        if self.threads > limits.work_group_size:
            return f"{self.threads} work-items a group"
        if self.registers > registers_of(self.threads):
            return "too many registers"
        return None


def unfit_sizes(problem: BackpropProblem) -> str | None:
    """The reason why one warp a network cannot go through its samples; None: it can."""
    if len(problem.sizes) != 3:
        return f"{len(problem.sizes) - 2} hidden layers, not one"
    hidden, outputs = problem.sizes[1:]
    if hidden > _MOST_HIDDEN or outputs > _MOST_OUTPUTS:
        return (f"{hidden} hidden units and {outputs} outputs, more than {_MOST_HIDDEN} and "
                f"{_MOST_OUTPUTS}")
    if problem.networks > _MOST_NETWORKS:
        return f"{problem.networks} networks, more than {_MOST_NETWORKS}"
    return None


def launches_of(problem: BackpropProblem, device: Device, kernel: Kernel,
                layout: Chain) -> list[Launch]:
    """Of a run, part by part."""
    run = SampleRun(problem, layout.reach)
    found = []
    for part in run.parts(device):
        found += [part.gram, Launch(
            kernel, (problem.networks,), (layout.threads,),
            (*part.buffers, run.products, run.same, problem.samples, part.first, part.count),
            layout.nbytes)]
    return found


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
        return SampleRun(problem, self.reach).nbytes

    def unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """The reason why the network does not lie on a work-group so; None: it does."""
        if (reason := unfit_sizes(problem)) is not None:
            return reason
        layout = _PipelineLayout(problem, self)
        if (reason := layout.unfit(device)) is not None:
            return reason
        if layout.lanes > 32 or layout.fetched > _MOST_FETCHED:
            return "too many registers"
        return None

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        layout = _PipelineLayout(problem, self)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "pipeline", layout.macros, dynamic_shared=True, headers=(SEQUENTIAL_CORE, PIPELINE)))
        return launches_of(problem, device, kernel, layout)


FORMS = (
    Pipeline(8, 384, 0, 4), Pipeline(8, 256, 0, 4), Pipeline(8, 384, 1, 4),
    Pipeline(8, 320, 0, 4), Pipeline(8, 384, 0, 2), Pipeline(4, 384, 0, 4),
    Pipeline(8, 256, 0, 2), Pipeline(4, 256, 0, 4), Pipeline(16, 256, 0, 4),
    Pipeline(8, 128, 0, 4), Pipeline(4, 128, 0, 4),
)


class _PipelineLayout(Chain):
    """With the first layer's weights, and lists of the inputs that are not 0, in shared memory."""

    def __init__(self, problem: BackpropProblem, form: Pipeline) -> None:
        inputs, hidden, _ = problem.sizes
        self.lanes = max(4, 32 // form.block, 1 << (-(-hidden // form.units) - 1).bit_length())
        side_by_side = max(1, 32 // self.lanes)
        ahead = max(2, 8 // side_by_side)
        stride = self.lanes * form.units
        warps = form.threads // 32
        matmul_warps = warps // 4 * 3 if form.apart else warps - 1
        super().__init__(problem, form.block, form.threads, stride, matmul_warps, matmul_warps)
        step = max(8, side_by_side * ahead)
        turns = -(-inputs // (8 * self.matmul_warps))
        capacity = -(-8 * turns // step) * step
        self.fetched = -(-capacity // 128) * 4 * form.block
        self.macros.update(APART=form.apart, PER_ITEM=form.units, LANES=self.lanes,
                           CAPACITY=capacity, AHEAD=ahead)
        self.place({
            "WEIGHT_AT": (inputs + 1) * stride,
            "LIST_AT": 2 * self.matmul_warps * capacity * form.block,
            "ROWS_AT": 2 * self.matmul_warps * capacity,
            "PARTIAL_AT": self.matmul_warps * form.block * stride,
            "DATA_ROW_AT": form.block,
            "VOTES_AT": form.threads // 32,
        })
