"""Exact blocking in one work-group a network, on tensor cores: pipeline_mma.cu's host side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import DIALECT, Device, KernelSource
from gossamer.ops.backprop.blocked.gram import SampleRun
from gossamer.ops.backprop.blocked.pipeline import (
    PIPELINE,
    SEQUENTIAL_CORE,
    Chain,
    launches_of,
    unfit_sizes,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch

_SOURCE = Path(__file__).with_name("pipeline_mma.cu")

_BLOCK, _GROUP, _TILE = 8, 8, 16
"""Samples, inputs and units of an instruction."""
_MOST_GROUPS = 30
"""Of a warp: each has a bit."""
_SPARE = 24
"""Registers of a work-item that hold neither weights, nor inputs, nor what these meet."""


@dataclass(frozen=True)
class PipelineMma:
    """How a network lies on a work-group.

    apart: whether all warps that share the first one's scheduler make records, which is little to
    do, or one of them.
    """

    threads: int
    apart: int

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        return (("form", "pipeline_mma"), ("threads", self.threads), ("apart", self.apart))

    @property
    def reach(self) -> int:
        return 2 * _BLOCK

    def workspace(self, problem: BackpropProblem) -> int:
        return SampleRun(problem, self.reach).nbytes

    def unfit(self, problem: BackpropProblem, device: Device) -> str | None:
        """The reason why the network does not lie on a work-group so; None: it does."""
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for TF32 (sm_80 or newer)"
        if (reason := unfit_sizes(problem)) is not None:
            return reason
        layout = _MmaLayout(problem, self)
        if layout.groups > _MOST_GROUPS:
            return f"{layout.groups} groups of inputs a warp, more than {_MOST_GROUPS}"
        return layout.unfit(device)

    def launches(self, problem: BackpropProblem, device: Device) -> list[Launch]:
        layout = _MmaLayout(problem, self)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "pipeline_mma", layout.macros, architectures=("sm_80", "sm_100"),
            dynamic_shared=True, headers=(*DIALECT, SEQUENTIAL_CORE, PIPELINE)))
        return launches_of(problem, device, kernel, layout)


FORMS = (PipelineMma(384, 0), PipelineMma(384, 1), PipelineMma(480, 0), PipelineMma(224, 0),
         PipelineMma(160, 0))
"""With 10, 9, 13, 5 and 3 warps to which groups of inputs are dealt: pictures 28 or 32 inputs wide
have 3.5 or 4 groups a row, so that each has its share of any part of one."""


class _MmaLayout(Chain):
    """Where everything of a network lies in shared memory, and the kernel's macros."""

    def __init__(self, problem: BackpropProblem, form: PipelineMma) -> None:
        tiles = -(-problem.sizes[1] // _TILE)
        warps = form.threads // 32
        recording = warps // 4 - 1 if form.apart else 1
        super().__init__(problem, _BLOCK, form.threads, tiles * _TILE, warps - 1 - recording,
                         recording)
        self.groups = -(-problem.sizes[0] // (_GROUP * self.matmul_warps))
        pairs = -(-self.groups // 2)
        # weights, changes in two parts, the inputs on their way and where they come from
        self.registers = max(self.registers, 4 * self.groups * tiles + 8 * tiles + (
            6 * -(-pairs // 2) + (8 if problem.sizes[0] % 4 else 0)) + _SPARE)
        self.macros.update(APART=form.apart, GROUPS=self.groups)
        self.place({
            "ROWS_AT": 3 * self.matmul_warps * pairs * 2 * _GROUP * _BLOCK,
            "PARTIAL_AT": self.matmul_warps * tiles * _TILE * _BLOCK,
            "DATA_ROW_AT": 2 * _BLOCK,
        })
