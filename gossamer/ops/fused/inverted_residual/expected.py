"""Estimates the cycles of a tile of a MobileNet block, by models that were fitted to
measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gossamer.device.limits import Limits

# The constants up to _CLUSTER_LATENCY hold for an H200. All of them but _PHASE belong to the model
# of blocks with squeeze-and-excite. The classes below say how the constants of other blocks were
# fitted. On another device the constants decide only the order in which tiles are tried: the tuner
# corrects the scale of an algorithm's estimates by its measurements.
_PHASE = 150.0
"""Cycles that a phase takes in addition to its instructions, the barrier behind it included."""
_FETCHED = 40.0
"""Bytes that a multiprocessor receives from the L2 cache in a cycle, with squeeze-and-excite."""
_LATENCY = 2500.0
"""Cycles in which a work-group with squeeze-and-excite begins, loads its first inputs and stores
its results."""
_EXCITES = 2500.0
"""Cycles of a squeeze-and-excite layer without the transfer of its weights."""
_CLUSTER_LATENCY = 700.0
"""Cycles in which a cluster adds up its sums, with squeeze-and-excite."""
_LEAST_GPC, _LARGEST_GPC = 16, 18
"""The least and the largest number of multiprocessors of a graphics processing cluster (GPC). All
work-groups of a cluster run in one GPC. The number of GPCs of a device is estimated with the larger
number, as 7 for an H200 with 132 multiprocessors. On an H200 eight clusters of 12 or 15 work-groups
took as long as two waves, and seven clusters did not."""


class Phase(NamedTuple):
    """Cycles of a phase of a chunk.

    issued: cycles in which a scheduler issues the instructions of its warps.
    waited: cycles in which a warp waits for the results of its instructions.
    shared: cycles in which all warps of the work-group access shared memory.
    """

    issued: float
    waited: float
    shared: float

    @property
    def alone(self) -> float:
        """The cycles of the phase when one work-group runs alone."""
        return max(self.issued, self.waited + _PHASE, self.shared)


@dataclass(frozen=True)
class _OneImage:
    """Constants of the expected cycles of a single image, fitted on an H200. In float16 and TF32
    they are fitted to the times that 38 tiles of MobileNetV2's blocks add to a plan, with an error
    of 12% (root mean square). In float32 they are fitted to 330 times of tiles that ran alone, with
    an error of 13%.

    latency: cycles in which a work-group begins, loads its first inputs and stores its results.
    member: cycles that each further work-group of a cluster adds to `latency`.
    crowded: share of `latency` by which each further work-group of a multiprocessor delays the
    others.
    phase: cycles of a phase in addition to its instructions.
    first: bytes that a multiprocessor receives in a cycle before the first chunk. Most of these
    bytes arrive while the previous kernel still runs.
    fetched: bytes that a multiprocessor receives in a cycle from the first chunk on.
    stalled: factor on the cycles of a phase in which a warp waits.
    issued: factor on the cycles of a phase in which a scheduler issues instructions.
    """

    latency: float = 1600.0
    member: float = 85.0
    crowded: float = 0.35
    phase: float = 235.0
    first: float = 83.0
    fetched: float = 28.0
    stalled: float = 2.25
    issued: float = 2.25


_ONE_IMAGE = {"fp16": _OneImage(), "tf32": _OneImage(),
              "fp32": _OneImage(1740.0, 40.0, 0.84, 729.0, 60.0, 12.7, 1.72, 1.33)}


@dataclass(frozen=True)
class _SeveralImages:
    """Constants of the expected cycles of many work-groups, fitted to 500 measured times of tiles
    of MobileNetV2's blocks at batch 64 in float16 on an H200. The tiles that are expected to be
    fastest take 352 us together, and the tiles that were fastest take 345 us. The constants of
    float32 come from an earlier fit.

    latency: cycles in which a work-group begins, loads its first inputs and stores its results.
    cluster: cycles that a cluster adds to `latency`.
    stalled: factor on the cycles of a phase in which a warp waits.
    phase: cycles of a phase in addition to the other terms.
    shared: factor on the cycles of a phase in which warps access shared memory.
    fetched: bytes that a multiprocessor receives from the L2 cache in a cycle.
    issued: factor on the cycles of a phase in which a scheduler issues instructions.
    """

    latency: float = 2400.0
    cluster: float = 2500.0
    stalled: float = 1.28
    phase: float = 53.0
    shared: float = 1.25
    fetched: float = 50.0
    issued: float = 0.7


_SEVERAL_IMAGES = {"fp16": _SeveralImages(), "tf32": _SeveralImages(),
                   "fp32": _SeveralImages(2500.0, 3600.0, 1.8, 105.0, 1.05, 33.0, 1.0)}


@dataclass(frozen=True)
class ChunkWork:
    """The work of the work-groups of a launch.

    phases: the phases of a chunk of hidden channels.
    cluster: work-groups of a cluster.
    own_chunks: chunks of a work-group.
    weight_bytes: bytes of the weights of a chunk.
    precision: the precision of the products, such as "fp16".
    """

    phases: tuple[Phase, ...]
    cluster: int
    own_chunks: int
    weight_bytes: int
    precision: str

    @property
    def issued(self) -> float:
        """Cycles in which a scheduler issues the instructions of a chunk."""
        return sum(phase.issued for phase in self.phases)

    def beside(self, groups: int, limits: Limits) -> int:
        """Returns a lower bound of the number of work-groups that run at once on the multiprocessor
        that runs the most. The bound follows from the GPCs: all work-groups of a cluster run in one
        GPC. groups: number of work-groups of the launch."""
        if self.cluster == 1:
            return 1
        gpcs = max(1, limits.compute_units // _LARGEST_GPC)
        return -(-(-(-(groups // self.cluster) // gpcs) * self.cluster) // _LEAST_GPC)


def cycles_of_image(work: ChunkWork, together: int) -> float:
    """Returns the expected cycles of a single image. All its work-groups run at once, and
    `together` work-groups run on one multiprocessor."""
    model = _ONE_IMAGE[work.precision]
    latency = (model.latency + model.member * (work.cluster - 1)) * (
        1 + model.crowded * (together - 1))
    computed = max(
        sum(max(model.issued * phase.issued, model.stalled * phase.waited) + model.phase
            for phase in work.phases), work.issued * together)
    return (latency + work.weight_bytes / model.first
            + work.own_chunks * max(computed, work.weight_bytes / model.fetched * together))


def cycles_of_wave(work: ChunkWork, together: int) -> float:
    """Returns the expected cycles of a wave of work-groups of several images, where `together`
    work-groups run on one multiprocessor.

    The time of a chunk has four components, which overlap in part: the time of one work-group
    alone, and for all work-groups the times of their instructions, of their accesses to shared
    memory, and of the transfer of weights. The square of the chunk's time is the sum of the squares
    of these four components.
    """
    model = _SEVERAL_IMAGES[work.precision]
    alone = sum(max(phase.issued, model.stalled * phase.waited, model.shared * phase.shared)
                + model.phase for phase in work.phases)
    issued = model.issued * work.issued * together
    shared = model.shared * together * sum(phase.shared for phase in work.phases)
    fetched = work.weight_bytes / model.fetched
    latency = model.latency + (model.cluster if work.cluster > 1 else 0.0)
    return latency + fetched + work.own_chunks * math.hypot(
        alone, issued, shared, fetched * together)


def cycles_with_excite(work: ChunkWork, small: float, together: int) -> float:
    """Returns the expected cycles of a wave of work-groups with squeeze-and-excite, where
    `together` work-groups run on one multiprocessor.

    A phase of a chunk takes the longest of three times: the time in which a warp waits, the time in
    which the scheduler issues the instructions of its warps, and the time in which all warps access
    shared memory. Work-groups of one multiprocessor wait at the same time.

    small: bytes of the weights of the two small products.
    """
    computed = max(sum(phase.alone for phase in work.phases), work.issued * together)
    fetched = work.weight_bytes / _FETCHED
    latency = (_LATENCY + (_CLUSTER_LATENCY if work.cluster > 1 else 0.0)
               + _EXCITES + small / work.cluster / _FETCHED * together)
    return latency + fetched + work.own_chunks * max(computed, fetched * together)
