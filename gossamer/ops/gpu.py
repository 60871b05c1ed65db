"""Rates of NVIDIA GPUs, and a model that estimates the time of a launch.

Algorithms sort their tiles by these estimates. The rates were fitted to times of tensor core
kernels on an H200. On other devices they only decide the order in which tiles are tried: the tuner
measures several tiles, and scales an algorithm's estimates by its measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.peak_rates import H200_UNIT

CYCLES_PER_MICROSECOND = 1750
"""Clock rate in MHz of the multiprocessors under load."""
RESERVED_BYTES = 1024
"""Bytes of shared memory that the system reserves for each work-group of a multiprocessor."""
REGISTERS = 65536
"""Registers of a multiprocessor."""
COPIED = 51.4
"""Bytes that a multiprocessor copies from the L2 cache to shared memory per cycle."""
BEGIN = 2000
"""Cycles that a work-group needs to start and to load its first operands."""
_START_US = 1.9
"""Overhead of a launch in microseconds: the time before the first work-group starts, and after the
last one has stored its results."""
_MMA, _WGMMA = 0.00097, 0.000295
"""Cycles of a multiprocessor, per sum and per byte of K, to multiply by mma and by wgmma."""
_STAGE, _AHEAD = 384, 919
"""Cycles that a work-group waits for each stage: a constant, and the latency of copies, which is
divided by the number of stages that are copied ahead."""
_CACHED_BYTES, _NO_OVERLAP = 35e6, 0.15
"""Bytes that stay in the L2 cache from one layer to the next. The second number concerns the times
of computing and of memory traffic: it is the share of the shorter time that does not overlap with
the longer one."""
_LEAST_GPC, _LARGEST_GPC = 16, 18
"""Minimum and maximum number of multiprocessors of a graphics processing cluster (GPC). All
work-groups of a cluster run in one GPC. The number of GPCs of a device is estimated with the
maximum: 7 for the 132 multiprocessors of an H200. On an H200, eight clusters of 12 or 15
work-groups needed the time of two waves, and seven clusters the time of one."""


def groups_per_unit(shared_bytes: int, limits: Limits, most: int) -> int:
    """Return the number of work-groups that a multiprocessor holds.

    most: the number for which the registers suffice.
    """
    fitting = (limits.shared_bytes_opt_in + RESERVED_BYTES) // (shared_bytes + RESERVED_BYTES)
    return max(1, min(most, fitting))


def product_cycles(sums: float, k_bytes: float, wgmma: bool) -> float:
    """Return the cycles of a multiprocessor to multiply.

    sums: number of sums of a work-group.
    k_bytes: bytes of a row of an operand along K.
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

    groups: number of work-groups, or of tiles where a work-group computes several.
    per_unit: work-groups that a multiprocessor holds at once.
    busy: cycles in which a work-group occupies the most loaded resource of a multiprocessor (tensor
    cores, copies, schedulers or shared memory).
    waited: cycles in which a work-group waits for copies, barriers and its own results; other
    work-groups can compute meanwhile.
    begin: cycles of each work-group that overlap with nothing.
    moved: bytes of traffic to device memory.
    cluster: work-groups per cluster.
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

        It is the overhead of the launch plus the time of the busiest multiprocessor. Where the
        tensors do not fit the L2 cache, the time of the memory traffic is a lower bound.
        """
        units = max(1, limits.compute_units)
        waves = -(-self.groups // (units * self.per_unit))
        of_unit = self.groups / units
        if of_unit < 4 * self.per_unit:
            of_unit = -(-self.groups // units)
        if self.cluster > 1 and waves == 1:
            clusters_of_gpc = -(-(self.groups // self.cluster) // max(1, units // _LARGEST_GPC))
            of_unit = max(of_unit, clusters_of_gpc * self.cluster / _LEAST_GPC)
        # the waits of a work-group overlap in part with the work of others
        cycles = waves * self.begin + math.hypot(of_unit * self.busy, waves * self.waited)
        computed = _START_US + cycles / CYCLES_PER_MICROSECOND
        moving = self.moved / (H200_UNIT.nbytes * units)
        return (max(computed, moving if self.moved > _CACHED_BYTES else 0.0)
                + _NO_OVERLAP * min(computed, moving))
