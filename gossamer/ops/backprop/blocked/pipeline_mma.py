"""Exact blocking in one work-group per network, on tensor cores: the host side of
pipeline_mma.cu."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.backprop.blocked.gram import SampleRun
from gossamer.ops.backprop.blocked.pipeline import (
    PipelineLayoutBase,
    launches_of,
    unfit_sizes,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch

_SOURCE = Path(__file__).with_name("pipeline_mma.cu")

_BLOCK, _GROUP, _TILE = 8, 8, 16
"""Numbers of samples, inputs and units that one tensor core instruction takes."""
_MOST_GROUPS = 30
"""Largest number of groups of inputs of a warp: each group has a bit in one word."""
_SPARE = 24
"""Registers of a work-item that hold neither weights, nor inputs, nor changes."""


@dataclass(frozen=True)
class PipelineMma:
    """The distribution of a network over a work-group.

    threads: work-items of the work-group.
    apart: 1 where all other warps in the first warp's sub-partition of the multiprocessor make
    records (see sequential_core.h), which is little work; 0 where only one of these warps makes
    records.
    """

    threads: int
    apart: int

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("form", "pipeline_mma"), ("threads", self.threads), ("apart", self.apart))

    @property
    def reach(self) -> int:
        """Number of later samples with which each sample has inner products."""
        return 2 * _BLOCK

    def workspace(self, problem: BackpropProblem) -> int:
        """Returns the bytes of workspace that the launches need."""
        return SampleRun(problem, self.reach).nbytes

    def why_unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """Returns the reason why a work-group cannot train the network with this config, or
        None."""
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for TF32 (sm_80 or newer)"
        if (reason := unfit_sizes(problem)) is not None:
            return reason
        layout = _MmaLayout(problem, self)
        if layout.groups > _MOST_GROUPS:
            return f"{layout.groups} groups of inputs a warp, more than {_MOST_GROUPS}"
        return layout.why_unfit(device)

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        """Returns the launches that train on all samples."""
        layout = _MmaLayout(problem, self)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "pipeline_mma", layout.macros, architectures=("sm_80", "sm_100"),
            dynamic_shared=True))
        return launches_of(problem, device, kernel, layout)


FORMS = (PipelineMma(384, 0), PipelineMma(384, 1), PipelineMma(480, 0), PipelineMma(224, 0),
         PipelineMma(160, 0))
"""The configs in the order in which they are tried. They have 10, 9, 13, 5 and 3 matmul warps, to
which groups of inputs are dealt one by one. A row of a picture has 3.5 groups for 28 pixels and 4
groups for 32 pixels. No number of warps is a multiple of 3.5 or 4, so that each warp gets an equal
share of any part of the picture."""


class _MmaLayout(PipelineLayoutBase):
    """The layout of shared memory, which holds the inputs of three blocks of samples.

    groups: number of groups of inputs of a matmul warp.
    """

    def __init__(self, problem: BackpropProblem, form: PipelineMma) -> None:
        tiles = -(-problem.sizes[1] // _TILE)
        warps = form.threads // 32
        recording = warps // 4 - 1 if form.apart else 1
        super().__init__(problem, _BLOCK, form.threads, tiles * _TILE, warps - 1 - recording,
                         recording)
        self.groups = -(-problem.sizes[0] // (_GROUP * self.matmul_warps))
        pairs = -(-self.groups // 2)
        # registers hold weights, changes in two parts, inputs that are fetched, and their addresses
        self.registers = max(self.registers, 4 * self.groups * tiles + 8 * tiles + (
            6 * -(-pairs // 2) + (8 if problem.sizes[0] % 4 else 0)) + _SPARE)
        self.macros.update(APART=form.apart, GROUPS=self.groups)
        self.place({
            "ROWS_AT": 3 * self.matmul_warps * pairs * 2 * _GROUP * _BLOCK,
            "PARTIAL_AT": self.matmul_warps * tiles * _TILE * _BLOCK,
            "DATA_ROW_AT": 2 * _BLOCK,
        })
