"""Exact blocking in one work-group per network: the host side of pipeline.cl, and the code that
pipeline_mma.py shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.ops.backprop.blocked.gram import TILE, SampleRun
from gossamer.ops.backprop.common import activation_macros, padded, registers_of
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch

_SOURCE = Path(__file__).with_name("pipeline.cl")

_MOST_HIDDEN, _MOST_OUTPUTS = 64, 32
_MOST_NETWORKS = 65535
"""Largest number of networks: networks are the y axis of the grid that computes inner products."""
_MOST_FETCHED = 64
"""Largest number of registers of a work-item that hold inputs of the next block."""


class PipelineLayoutBase:
    """The shared memory and the macros that sequential_core.h and pipeline.h need, with and without
    tensor cores. Subclasses reserve further memory with place().

    registers: approximate number of registers that a work-item needs.
    nbytes: bytes of shared memory.
    """

    def __init__(self, problem: BackpropProblem, block: int, threads: int, stride: int,
                 matmul_warps: int, recording: int) -> None:
        """Assigns the offsets.

        stride: number of hidden units, padded.
        matmul_warps: number of warps that change and multiply the first layer's weights.
        recording: number of warps that make records.
        """
        inputs, hidden, outputs = problem.sizes
        self.threads, self.reach, self.matmul_warps = threads, 2 * block, matmul_warps
        parts = 2 if hidden > 32 and 2 * outputs <= 32 else 1
        share = padded(-(-hidden // parts))
        targets = padded(outputs)
        # the first warp needs registers for weights, their inputs, pending changes, and the rest
        self.registers = 2 * share + -(-hidden // 32) * (targets + self.reach) + (
            self.reach + targets + 40)
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
        """Reserves shared memory for each name, and defines a macro of that name as its offset in
        floats."""
        for name, count in floats.items():
            self.macros[name] = self.nbytes // 4
            self.nbytes += 4 * padded(count)
        self.macros["FLOATS"] = self.nbytes // 4

    def why_unfit(self, device: Device) -> str | None:
        """Returns the reason why a work-group of the device has no room for the network, or
        None."""
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
    """Returns the reason why the sequential core cannot train networks of these sizes, or None."""
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
                layout: PipelineLayoutBase) -> list[Launch]:
    """Returns the launches that train on all samples, part by part."""
    run = SampleRun(problem, layout.reach)
    launches = []
    for part in run.parts(device):
        launches += [part.gram, Launch(
            kernel, (problem.networks,), (layout.threads,),
            (*part.buffers, run.products, run.same, problem.samples, part.first, part.count),
            layout.nbytes)]
    return launches


@dataclass(frozen=True)
class Pipeline:
    """The distribution of a network over a work-group.

    block: number of samples of a block.
    threads: work-items of the work-group.
    apart: 1 where the first warp has a sub-partition of the multiprocessor for itself, else 0.
    units: hidden units that a work-item of the matmul warps computes.
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
        """Number of later samples with which each sample has inner products."""
        return 2 * self.block

    def workspace(self, problem: BackpropProblem) -> int:
        """Returns the bytes of workspace that the launches need."""
        return SampleRun(problem, self.reach).nbytes

    def why_unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """Returns the reason why a work-group cannot train the network with this config, or
        None."""
        if (reason := unfit_sizes(problem)) is not None:
            return reason
        layout = _PipelineLayout(problem, self)
        if (reason := layout.why_unfit(device)) is not None:
            return reason
        if layout.lanes > 32 or layout.fetched > _MOST_FETCHED:
            return "too many registers"
        return None

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        """Returns the launches that train on all samples."""
        layout = _PipelineLayout(problem, self)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "pipeline", layout.macros, dynamic_shared=True))
        return launches_of(problem, device, kernel, layout)


# The configs are tried in this order on every device; the order is a rule of thumb.
FORMS = (
    Pipeline(8, 384, 0, 4), Pipeline(8, 256, 0, 4), Pipeline(8, 384, 1, 4),
    Pipeline(8, 320, 0, 4), Pipeline(8, 384, 0, 2), Pipeline(4, 384, 0, 4),
    Pipeline(8, 256, 0, 2), Pipeline(4, 256, 0, 4), Pipeline(16, 256, 0, 4),
    Pipeline(8, 128, 0, 4), Pipeline(4, 128, 0, 4),
)


class _PipelineLayout(PipelineLayoutBase):
    """The layout that also holds the first layer's weights, and lists of the inputs that are not 0.

    lanes: work-items that share a row of weights.
    fetched: registers of a work-item that hold inputs of the next block.
    """

    def __init__(self, problem: BackpropProblem, form: Pipeline) -> None:
        inputs, hidden, _ = problem.sizes
        self.lanes = max(4, 32 // form.block, 1 << (-(-hidden // form.units) - 1).bit_length())
        rows_at_once = max(1, 32 // self.lanes)
        ahead = max(2, 8 // rows_at_once)
        stride = self.lanes * form.units
        warps = form.threads // 32
        matmul_warps = warps // 4 * 3 if form.apart else warps - 1
        super().__init__(problem, form.block, form.threads, stride, matmul_warps, matmul_warps)
        step = max(8, rows_at_once * ahead)
        rounds = -(-inputs // (8 * self.matmul_warps))
        capacity = -(-8 * rounds // step) * step
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
