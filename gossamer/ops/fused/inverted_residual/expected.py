"""The cycles that a tile of a block of MobileNet is expected to take, by models that were fitted to
measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gossamer.device.limits import Limits

# The rates of blocks with squeeze-and-excite hold for an H200; how those of other blocks were
# fitted is said below. On another device only the order in which tiles are tried follows from all
# of them: the tuner corrects the scale of an algorithm's estimates by what it measures.
_PHASE = 150.0
"""Cycles that a phase takes besides its instructions, with the barrier behind it."""
_FETCHED = 40.0
"""Bytes that a multiprocessor receives from the L2 cache in a cycle, with squeeze-and-excite."""
_LATENCY = 2500.0
"""Cycles in which a work-group with squeeze-and-excite begins, loads its first inputs and stores
its results."""
_EXCITES = 2500.0
"""Cycles of a squeeze-and-excite layer besides the bytes of its weights."""
_CLUSTER_LATENCY = 700.0
"""Cycles in which a cluster adds up its sums, with squeeze-and-excite."""
_LEAST_GPC, _LARGEST_GPC = 16, 18
"""Multiprocessors of a graphics processing cluster (GPC), in one of which all work-groups of a
cluster run: the number that every GPC has at least, and the largest one, by which the number of
GPCs of a device is estimated. On an H200 of 132 multiprocessors eight clusters of 12 or 15 took as
long as two rounds, seven did not."""


class Phase(NamedTuple):
    """Cycles of a phase of a chunk in which a scheduler issues the instructions of its warps
    (`issued`), a warp waits for their results (`waited`), and all warps of the work-group access
    shared memory (`shared`)."""

    issued: float
    waited: float
    shared: float

    @property
    def alone(self) -> float:
        """The cycles that the phase takes one work-group alone."""
        return max(self.issued, self.waited + _PHASE, self.shared)


@dataclass(frozen=True)
class _OneImage:
    """Cycles of a single image, as fitted to what 38 tiles of MobileNetV2's blocks add to a plan on
    an H200, which they explain to within 12% (root mean square), and in float32 to 330 times of
    tiles alone, to within 13%.

    latency: in which a work-group begins, loads its first inputs and stores its results.
    member: those that each further work-group of a cluster adds to it.
    crowded: the share of it by which each further work-group of a multiprocessor delays the others.
    phase: those of a phase besides its instructions.
    first, fetched: bytes that a multiprocessor receives in a cycle before the first chunk, which
    for the most part come while the kernel before still runs, and later.
    stalled, issued: the time of a phase by what a warp waits in it, and by what a scheduler issues.
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
    """Cycles of many work-groups, as fitted to 500 times of tiles of MobileNetV2's blocks at batch
    64 in float16 on an H200: the tiles that are expected first take 352 us together, the best 345.
    In float32 they are those of an earlier fit.

    latency: in which a work-group begins, loads its first inputs and stores its results.
    cluster: those that a cluster adds to it.
    stalled: the time of a phase by what a warp waits in it.
    phase: cycles of a phase besides.
    shared: the time of a phase by its accesses to shared memory.
    fetched: bytes that a multiprocessor receives from the L2 cache in a cycle.
    issued: the time of a phase by its instructions.
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
    """Describes what the work-groups of a launch do.

    phases: those of a chunk of hidden channels.
    cluster: work-groups of a cluster.
    own_chunks: chunks of a work-group.
    weight_bytes: bytes of the weights of a chunk.
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
        """Returns how many of a launch's work-groups, at least, run on one multiprocessor at once,
        as all of a cluster run in one GPC."""
        if self.cluster == 1:
            return 1
        gpcs = max(1, limits.compute_units // _LARGEST_GPC)
        return -(-(-(-(groups // self.cluster) // gpcs) * self.cluster) // _LEAST_GPC)


def cycles_of_image(work: ChunkWork, together: int) -> float:
    """Returns the cycles that are expected of a single image, whose work-groups all run at once,
    `together` of them on a multiprocessor."""
    model = _ONE_IMAGE[work.precision]
    latency = (model.latency + model.member * (work.cluster - 1)) * (
        1 + model.crowded * (together - 1))
    computed = max(
        sum(max(model.issued * phase.issued, model.stalled * phase.waited) + model.phase
            for phase in work.phases), work.issued * together)
    return (latency + work.weight_bytes / model.first
            + work.own_chunks * max(computed, work.weight_bytes / model.fetched * together))


def cycles_of_wave(work: ChunkWork, together: int) -> float:
    """Returns the cycles that are expected of a wave of work-groups of several images, `together`
    of them on a multiprocessor. What one work-group takes alone, the instructions and the accesses
    to shared memory of all, and the weights that they receive overlap in part: the square of the
    whole is the sum of the squares of these three."""
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
    """Returns the cycles that are expected of a wave of work-groups with squeeze-and-excite,
    `together` of them on a multiprocessor. Each phase of a chunk takes as long as one warp waits,
    all warps of a scheduler issue or all access shared memory, whichever is most; work-groups of
    one multiprocessor wait at the same time. small: bytes of the weights of the two small products.
    """
    computed = max(sum(phase.alone for phase in work.phases), work.issued * together)
    fetched = work.weight_bytes / _FETCHED
    latency = (_LATENCY + (_CLUSTER_LATENCY if work.cluster > 1 else 0.0)
               + _EXCITES + small / work.cluster / _FETCHED * together)
    return latency + fetched + work.own_chunks * max(computed, fetched * together)
