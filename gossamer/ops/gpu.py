"""Rates of NVIDIA GPUs, a model of the time of a launch, and a check for tensor cores.

Algorithms sort their tiles by the estimated times. The rates were fitted to times of tensor core
kernels on an H200. On other devices, the rates and the estimates are less accurate. The estimates
only determine the order in which tiles are tried: the tuner measures several tiles, and scales an
algorithm's estimates by the measured times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Problem
from gossamer.ops.peak_rates import H200_UNIT
from gossamer.ops.strided import cannot_compile

CYCLES_PER_MICROSECOND = 1750
"""Clock rate of the multiprocessors under load, in MHz."""
RESERVED_BYTES = 1024
"""Bytes of shared memory that the system reserves for each work-group on a multiprocessor."""
REGISTERS = 65536
"""Number of registers per multiprocessor."""
COPIED = 51.4
"""Bytes per cycle that a multiprocessor copies from the L2 cache to shared memory."""
_COPIES = 8
"""Copies that a multiprocessor starts per cycle; a rule of thumb."""
BEGIN = 2000
"""Cycles that a work-group needs to start and to load its first operands."""
TILE = 245
"""Cycles per tile that overlap neither with the products nor with the copies of the tile."""
_START_US = 1.9
"""Overhead of a launch in microseconds: the time before the first work-group starts and the time
after the last one has stored its results."""
_MMA, _WGMMA = 0.00097, 0.000295
"""Cycles of a multiprocessor per accumulator and per byte of K, with mma and with wgmma."""
_STAGE, _AHEAD = 384, 919
"""Cycles that a work-group waits per stage of 128 bytes of K, and the latency of a copy in cycles.
The latency is divided by the number of stages that are copied ahead."""
_CACHED_BYTES, _NO_OVERLAP = 35e6, 0.15
"""_CACHED_BYTES: number of bytes that stay in the L2 cache from one layer to the next.
_NO_OVERLAP: a fraction. Computation and memory traffic overlap, except for this fraction of the
shorter of their two times."""
_LEAST_GPC, _LARGEST_GPC = 16, 18
"""Minimum and maximum number of multiprocessors per graphics processing cluster (GPC). All
work-groups of a cluster run in one GPC. The number of GPCs of a device is estimated by dividing the
number of multiprocessors by the maximum: 7 for the 132 multiprocessors of an H200. On an H200,
eight clusters of 12 or 15 work-groups took the time of two waves, and seven clusters took the time
of one wave."""


def without_tensor_cores(problem: Problem, device: Device, *, wgmma: bool = False) -> str | None:
    """Return why tensor cores cannot compute a problem in float16 or TF32; None if they can.

    wgmma: True if the tensor cores have to read operands from shared memory.
    """
    if wgmma and not device.limits.wgmma:
        return f"{device.name} has no tensor cores that read shared memory (sm_90a)"
    if not device.limits.mma:
        return f"{device.name} has no tensor cores for float16 and TF32 (sm_80 or newer)"
    return cannot_compile(problem, device)


def groups_per_unit(shared_bytes: int, limits: Limits, most: int) -> int:
    """Return the number of work-groups that fit on a multiprocessor at once.

    most: the number of work-groups for which the registers suffice.
    """
    fitting = (limits.shared_bytes_opt_in + RESERVED_BYTES) // (shared_bytes + RESERVED_BYTES)
    return max(1, min(most, fitting))


def clusters_at_once(cluster: int, limits: Limits) -> int:
    """Return the number of clusters that run at once, with one work-group per multiprocessor.

    cluster: number of work-groups per cluster; 1 for no clusters.
    """
    if cluster == 1:
        return limits.compute_units
    return limits.compute_units // _LARGEST_GPC * (_LARGEST_GPC // cluster)


def copy_rate(at_once: int) -> float:
    """Return the bytes per cycle that a multiprocessor copies to shared memory.

    at_once: size of a copy in bytes, 4, 8 or 16.
    """
    return min(COPIED, _COPIES * at_once)


def product_cycles(sums: float, k_bytes: float, wgmma: bool) -> float:
    """Return the cycles in which a multiprocessor computes the products of a work-group.

    sums: number of accumulators of the work-group.
    k_bytes: size of an operand's row along K, in bytes.
    wgmma: True for wgmma, False for mma.
    """
    return sums * k_bytes * (_WGMMA if wgmma else _MMA)


def wait_cycles(stages: float, ahead: int, share: float = 1.0) -> float:
    """Return the cycles that a work-group waits for operands.

    stages: number of stages.
    ahead: number of stages that are copied ahead.
    share: length of a stage along K, in units of 128 bytes.
    """
    return stages * (_STAGE * share + _AHEAD / max(1, ahead))


@dataclass(frozen=True)
class LaunchWork:
    """The work of a launch, divided among its work-groups.

    groups: number of work-groups, or of tiles if a work-group computes several.
    per_unit: number of work-groups that fit on a multiprocessor at once.
    busy: cycles in which a work-group occupies the most loaded resource of a multiprocessor (tensor
    cores, copies, schedulers or shared memory).
    waited: cycles in which a work-group waits for copies, barriers and its own results, while other
    work-groups can compute.
    begin: cycles at the start of each work-group that overlap with no other work.
    moved: bytes of traffic to device memory.
    cluster: number of work-groups per cluster.
    """

    groups: int
    per_unit: int
    busy: float
    waited: float
    begin: float = BEGIN
    moved: float = 0.0
    cluster: int = 1

    def expected_us(self, limits: Limits) -> float:
        """Return the expected time in microseconds.

        The time of the computation is the overhead of the launch plus the time of the busiest
        multiprocessor. If the tensors do not fit in the L2 cache, the time of the memory traffic is
        used instead if it is longer. In any case, a fraction of the shorter of the two times is
        added (see _NO_OVERLAP).
        """
        units = max(1, limits.compute_units)
        waves = -(-self.groups // (units * self.per_unit))
        of_unit = self.groups / units
        if of_unit < 4 * self.per_unit:
            of_unit = -(-self.groups // units)
        if self.cluster > 1 and waves == 1:
            clusters_of_gpc = -(-(self.groups // self.cluster) // max(1, units // _LARGEST_GPC))
            of_unit = max(of_unit, clusters_of_gpc * self.cluster / _LEAST_GPC)
        # the waits of a work-group overlap partly with the work of other work-groups
        cycles = waves * self.begin + math.hypot(of_unit * self.busy, waves * self.waited)
        computed = _START_US + cycles / CYCLES_PER_MICROSECOND
        moving = self.moved / (H200_UNIT.nbytes * units)
        return (max(computed, moving if self.moved > _CACHED_BYTES else 0.0)
                + _NO_OVERLAP * min(computed, moving))
