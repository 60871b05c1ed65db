"""Inner products of a run's samples, which do not depend on weights, and the parts in which a run
is trained so that they stay few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device, KernelSource
from gossamer.ops.backprop.common import (
    ORDER,
    PARAMETERS,
    RUN,
    TRAINED,
    RunTime,
    X,
    aligned,
    part_of_workspace,
)
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer

_SOURCE = Path(__file__).with_name("gram.cl")
_THREADS = 256

TILE = 64
"""Samples whose inner products a work-group computes."""
_MOST_BYTES = 1 << 26
"""Of inner products at once, a tile apart."""


@dataclass(frozen=True)
class RunPart:
    """Samples from `first` on, the launch that computes their inner products, and the inputs and
    outputs that they are trained with."""

    first: int
    count: int
    gram: Launch
    buffers: tuple[RunTime, ...]


class SampleRun:
    """All samples of a problem, with the products of each with `reach` that come after it."""

    def __init__(self, problem: BackpropProblem, reach: int) -> None:
        self.problem, self.reach = problem, reach
        networks = max(problem.networks, 1)
        tiles = max(1, min(-(-problem.samples // TILE),
                           _MOST_BYTES // (networks * 4 * reach * TILE)))
        self.samples = tiles * TILE
        products, same = networks * self.samples * 4 * reach, 4 * networks * tiles
        self.products = part_of_workspace(0, products)
        self.same = part_of_workspace(aligned(products), same)
        self.nbytes = aligned(products) + same
        """Of the workspace, from its start."""

    def parts(self, device: Device) -> Iterator[RunPart]:
        problem = self.problem
        kernel = device.compile(KernelSource.of(
            _SOURCE, "gram", {"THREADS": _THREADS, "TILE": TILE, "REACH": self.reach}))
        for first in range(0, problem.samples, self.samples):
            count = min(self.samples, problem.samples - first)
            gram = Launch(
                kernel, (-(-count // TILE), problem.networks), (_THREADS, 1),
                (input_buffer(X), input_buffer(ORDER), self.products, self.same,
                 problem.sizes[0], problem.samples, first, count))
            buffers = list(RUN)
            if first:
                buffers[PARAMETERS] = output_buffer(TRAINED)
            yield RunPart(first, count, gram, tuple(buffers))
