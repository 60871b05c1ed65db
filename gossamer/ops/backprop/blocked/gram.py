"""Inner products of training samples for exact blocking.

The samples are processed part by part, to bound the memory of the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.backprop.kernels import (
    BUFFERS,
    ORDER,
    PARAMETERS,
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
"""Number of samples whose inner products one work-group computes."""
_MOST_BYTES = 1 << 26
"""Maximum bytes of inner products in memory at once; a single tile of samples may exceed it."""


@dataclass(frozen=True)
class SamplePart:
    """Consecutive samples whose inner products are in memory at the same time.

    first: the first sample.
    count: number of samples.
    gram: launch that computes the inner products.
    buffers: the problem's inputs and outputs, as kernel arguments for training on these samples.
    """

    first: int
    count: int
    gram: Launch
    buffers: tuple[RunTime, ...]


class SampleProducts:
    """The inner products of each sample of a problem with the next `reach` samples.

    The products do not depend on the weights. Memory holds the products of one part of the samples
    at a time.

    samples: maximum number of samples of a part.
    products: the kernel argument for the inner products.
    same: the kernel argument for one flag per network and tile. A flag is 1 if the network has the
    same samples in the tile as the first network, and therefore uses the first network's products.
    nbytes: bytes of the products and flags, at the start of the workspace.
    """

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

    def parts(self, device: Device) -> Iterator[SamplePart]:
        """Yield the parts in order.

        The training of each part starts from the parameters that the previous part wrote.
        """
        problem = self.problem
        kernel = device.compile(KernelSource.of(
            _SOURCE, "gram", {"THREADS": _THREADS, "TILE": TILE, "REACH": self.reach}))
        for first in range(0, problem.samples, self.samples):
            count = min(self.samples, problem.samples - first)
            gram = Launch(
                kernel, (-(-count // TILE), problem.networks), (_THREADS, 1),
                (input_buffer(X), input_buffer(ORDER), self.products, self.same,
                 problem.sizes[0], problem.samples, first, count))
            buffers = list(BUFFERS)
            if first:
                buffers[PARAMETERS] = output_buffer(TRAINED)
            yield SamplePart(first, count, gram, tuple(buffers))
