"""Pipelines: exact blocking in one work-group per network, with or without tensor cores.

This is the host side of pipeline.cl and pipeline_mma.cu.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.backprop.blocked.gram import TILE, SampleProducts
from gossamer.ops.backprop.kernels import activation_macros, padded, registers_of
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch

_KERNELS = Path(__file__).parent

_MOST_HIDDEN, _MOST_OUTPUTS = 64, 32
_MOST_NETWORKS = 65535
"""Maximum number of networks: the limit of the y axis of gram.cl's grid."""
_MOST_FETCHED = 64
"""Maximum number of registers per work-item that hold inputs of the next block."""
_BLOCK, _GROUP, _TILE = 8, 8, 16
"""Numbers of samples, inputs and units that one tensor core instruction processes."""
_MOST_GROUPS = 30
"""Maximum number of groups of inputs per warp. A 32-bit word has one bit for each group, and one
for INEXACT (pipeline_mma.cu)."""
_OTHER_REGISTERS = 24
"""Registers of a work-item for values other than weights, inputs and changes."""


class _Layout:
    """The shared memory and the macros of sequential_core.h and pipeline.h.

    Subclasses reserve more memory with reserve().

    reach: number of later samples by which each sample is multiplied.
    registers: approximate number of registers that a work-item needs.
    nbytes: bytes of shared memory.
    """

    def __init__(self, problem: BackpropProblem, block: int, threads: int, stride: int,
                 matmul_warps: int, recording: int) -> None:
        """Assign the offsets.

        stride: number of hidden units, padded.
        matmul_warps: number of warps that update and multiply the first layer's weights.
        recording: number of warps that make records (see sequential_core.h).
        """
        inputs, hidden, outputs = problem.sizes
        self.threads, self.reach, self.matmul_warps = threads, 2 * block, matmul_warps
        parts = 2 if hidden > 32 and 2 * outputs <= 32 else 1
        share = padded(-(-hidden // parts))
        targets = padded(outputs)
        # the first warp's registers hold weights, the inputs of these weights, pending changes,
        # values of the last sample, and others
        self.registers = 2 * share + -(-hidden // 32) * (targets + self.reach) + (
            self.reach + targets + 40)
        self.macros: dict[str, object] = {
            "INPUTS": inputs, "HIDDEN": hidden, "OUTPUTS": outputs, "BLOCK": block,
            "REACH": self.reach, "TILE": TILE, "THREADS": threads, "MATMUL_WARPS": matmul_warps,
            "RECORD_ITEMS": 32 * recording, "STRIDE": stride, "PARTS": parts, "SHARE": share,
            **activation_macros(problem),
        }
        self.nbytes = 0
        self.reserve({
            "RECORD_AT": 2 * block * (self.reach + 2 * targets + 2 * stride + 4),
            "HIDDEN_AT": parts * share,
            "ERROR_AT": targets,
            "PART_SUM_AT": parts * outputs,
            "SUMS_AT": targets,
            "EXPONENTIALS_AT": targets,
            "POWER_AT": 2 * block + 1,
        })

    def reserve(self, floats: dict[str, int]) -> None:
        """Reserve shared memory, and define one macro for each offset.

        floats: number of floats to reserve for each macro name.
        """
        for name, count in floats.items():
            self.macros[name] = self.nbytes // 4
            self.nbytes += 4 * padded(count)
        self.macros["FLOATS"] = self.nbytes // 4

    def why_unfit(self, device: Device) -> str | None:
        """Return why the network does not fit a work-group; None if it fits."""
        limits = device.limits
        if self.nbytes > limits.shared_bytes_opt_in:
            return (f"needs {self.nbytes} bytes of shared memory, {device.name} has "
                    f"{limits.shared_bytes_opt_in}")
        if self.threads > limits.work_group_size:
            return (f"needs {self.threads} work-items per work-group, {device.name} allows "
                    f"{limits.work_group_size}")
        if self.registers > registers_of(self.threads):
            return "needs more registers than a work-item has"
        return None


def unfit_sizes(problem: BackpropProblem) -> str | None:
    """Return why the sequential core cannot train networks of these sizes; None if it can."""
    if len(problem.sizes) != 3:
        return f"needs one hidden layer, has {len(problem.sizes) - 2}"
    hidden, outputs = problem.sizes[1:]
    if hidden > _MOST_HIDDEN or outputs > _MOST_OUTPUTS:
        return (f"supports at most {_MOST_HIDDEN} hidden units and {_MOST_OUTPUTS} outputs, has "
                f"{hidden} and {outputs}")
    if problem.networks > _MOST_NETWORKS:
        return f"supports at most {_MOST_NETWORKS} networks, has {problem.networks}"
    return None


@dataclass(frozen=True)
class _Form(abc.ABC):
    """A config of exact blocking with one work-group per network."""

    name: ClassVar[str]

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("form", self.name), *asdict(self).items())

    @abc.abstractmethod
    def layout(self, problem: BackpropProblem) -> _Layout:
        """Return the layout of shared memory."""

    @abc.abstractmethod
    def source(self, macros: Mapping[str, object]) -> KernelSource:
        """Return the source of the training kernel."""

    def workspace(self, problem: BackpropProblem) -> int:
        """Return the bytes of workspace that the launches need."""
        return SampleProducts(problem, self.layout(problem).reach).nbytes

    def why_unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """Return why a work-group cannot train the network; None if it can."""
        return unfit_sizes(problem) or self.layout(problem).why_unfit(device)

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        """Return the launches that train on all samples, part by part."""
        layout = self.layout(problem)
        kernel = device.compile(self.source(layout.macros))
        samples = SampleProducts(problem, layout.reach)
        launches = []
        for part in samples.parts(device):
            launches += [part.gram, Launch(
                kernel, (problem.networks,), (layout.threads,),
                (*part.buffers, samples.products, samples.same, problem.samples, part.first,
                 part.count), layout.nbytes)]
        return launches


@dataclass(frozen=True)
class Pipeline(_Form):
    """A pipeline without tensor cores.

    block: number of samples of a block.
    threads: work-items of the work-group.
    units: hidden units per work-item of the matmul warps.
    """

    name = "pipeline"
    block: int
    threads: int
    units: int

    def layout(self, problem: BackpropProblem) -> _Layout:
        return _PipelineLayout(problem, self)

    def source(self, macros: Mapping[str, object]) -> KernelSource:
        return KernelSource.of(_KERNELS / "pipeline.cl", "pipeline", macros, dynamic_shared=True)


# The configs are tried in this order on every device; the order is a rule of thumb.
PIPELINES = (
    Pipeline(8, 384, 4), Pipeline(8, 256, 4), Pipeline(8, 320, 4), Pipeline(8, 384, 2),
    Pipeline(4, 384, 4), Pipeline(8, 256, 2), Pipeline(4, 256, 4), Pipeline(16, 256, 4),
    Pipeline(8, 128, 4), Pipeline(4, 128, 4),
)


class _PipelineLayout(_Layout):
    """The shared memory of pipeline.cl, with the first layer's weights and the lists of inputs.

    lanes: number of work-items that share a row of weights.
    fetched: registers per work-item that hold inputs of the next block.
    """

    def __init__(self, problem: BackpropProblem, form: Pipeline) -> None:
        inputs, hidden, _ = problem.sizes
        self.lanes = max(4, 32 // form.block, 1 << (-(-hidden // form.units) - 1).bit_length())
        rows_at_once = max(1, 32 // self.lanes)
        ahead = max(2, 8 // rows_at_once)
        stride = self.lanes * form.units
        warps = form.threads // 32
        super().__init__(problem, form.block, form.threads, stride, warps - 1, warps - 1)
        step = max(8, rows_at_once * ahead)
        rounds = -(-inputs // (8 * self.matmul_warps))
        capacity = -(-8 * rounds // step) * step
        self.fetched = -(-capacity // 128) * 4 * form.block
        self.macros.update(PER_ITEM=form.units, LANES=self.lanes, CAPACITY=capacity,
                           AHEAD=ahead)
        self.reserve({
            "WEIGHT_AT": (inputs + 1) * stride,
            "LIST_AT": 2 * self.matmul_warps * capacity * form.block,
            "ROWS_AT": 2 * self.matmul_warps * capacity,
            "PARTIAL_AT": self.matmul_warps * form.block * stride,
            "DATA_ROW_AT": form.block,
            "VOTES_AT": form.threads // 32,
        })

    def why_unfit(self, device: Device) -> str | None:
        if (reason := super().why_unfit(device)) is not None:
            return reason
        if self.lanes > 32 or self.fetched > _MOST_FETCHED:
            return "needs more registers than a work-item has"
        return None


@dataclass(frozen=True)
class PipelineMma(_Form):
    """A pipeline on tensor cores.

    threads: work-items of the work-group.
    """

    name = "pipeline_mma"
    threads: int

    def layout(self, problem: BackpropProblem) -> _Layout:
        return _MmaLayout(problem, self)

    def source(self, macros: Mapping[str, object]) -> KernelSource:
        return KernelSource.of(_KERNELS / "pipeline_mma.cu", "pipeline_mma", macros,
                               architectures=("sm_80", "sm_100"), dynamic_shared=True)

    def why_unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for TF32 (sm_80 or newer)"
        return super().why_unfit(problem, device)


MMA_PIPELINES = (PipelineMma(384), PipelineMma(480), PipelineMma(224), PipelineMma(160))
"""The configs in the order in which they are tried. They have 10, 13, 5 and 3 matmul warps.
Groups of inputs are assigned to these warps round-robin. A row of a picture has 3.5 groups if it
has 28 pixels, and 4 groups if it has 32. None of the numbers of warps is a multiple of 3.5 or 4, so
each warp gets an equal share of any part of the picture."""


class _MmaLayout(_Layout):
    """The shared memory of pipeline_mma.cu, with the inputs of three blocks of samples.

    groups: number of groups of inputs per matmul warp.
    """

    def __init__(self, problem: BackpropProblem, form: PipelineMma) -> None:
        tiles = -(-problem.sizes[1] // _TILE)
        warps = form.threads // 32
        super().__init__(problem, _BLOCK, form.threads, tiles * _TILE, warps - 2, 1)
        self.groups = -(-problem.sizes[0] // (_GROUP * self.matmul_warps))
        pairs = -(-self.groups // 2)
        # registers hold weights, changes split in two, fetched inputs, and the inputs' addresses
        self.registers = max(self.registers, 4 * self.groups * tiles + 8 * tiles + (
            6 * -(-pairs // 2) + (8 if problem.sizes[0] % 4 else 0)) + _OTHER_REGISTERS)
        self.macros.update(GROUPS=self.groups)
        self.reserve({
            "ROWS_AT": 3 * self.matmul_warps * pairs * 2 * _GROUP * _BLOCK,
            "PARTIAL_AT": self.matmul_warps * tiles * _TILE * _BLOCK,
            "DATA_ROW_AT": 2 * _BLOCK,
        })

    def why_unfit(self, device: Device) -> str | None:
        if self.groups > _MOST_GROUPS:
            return (f"supports at most {_MOST_GROUPS} groups of {_GROUP} inputs per warp, has "
                    f"{self.groups}")
        return super().why_unfit(device)
