"""Rates of NVIDIA GPUs, and a model of a launch, by which algorithms order their tiles.

The rates were fitted to times of tensor core kernels on an H200. On another device they only decide
the order in which tiles are tried: the tuner corrects the scale of an algorithm's estimates by its
measurements, and measures several tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.device.limits import Limits, PeakRates

H200_UNIT = PeakRates(238_600.0, 32_300.0)
"""Rates of one of the 132 multiprocessors of an H200. All multiprocessors together reach 63 TFLOP/s
and 4.26 TB/s, as measured by `gossamer bench`. These rates stand for GPUs that were not
measured."""
CYCLES_PER_MICROSECOND = 1750
"""Clock rate in MHz of the multiprocessors under load."""
RESERVED_BYTES = 1024
"""Bytes of shared memory that the system reserves for each work-group of a multiprocessor."""
REGISTERS = 65536
"""Registers of a multiprocessor."""
COPIED = 51.4
"""Bytes that a multiprocessor copies from the L2 cache to shared memory in a cycle."""
BEGIN = 2000
"""Cycles in which a work-group begins and loads its first operands."""
_START_US = 1.9
"""Microseconds before the first work-group begins and after the last one has stored."""
_MMA, _WGMMA = 0.00097, 0.000295
"""Cycles in which a multiprocessor adds the products of one byte of K to one sum, by mma and by
wgmma."""
_STAGE, _AHEAD = 384, 919
"""Cycles that a work-group waits for a stage, and for its copies, to be divided by the number of
stages that are copied ahead."""
_CACHED_BYTES, _NO_OVERLAP = 35e6, 0.15
"""Bytes that stay in the L2 cache from one layer to the next, and the share of the shorter time, of
computing or of moving bytes, that the longer time does not hide."""
_LEAST_GPC, _LARGEST_GPC = 16, 18
"""The least and the largest number of multiprocessors of a graphics processing cluster (GPC). All
work-groups of a cluster run in one GPC. The number of GPCs of a device is estimated with the larger
number, as 7 for an H200 with 132 multiprocessors. On an H200 eight clusters of 12 or 15 work-groups
took as long as two waves, and seven clusters did not."""


def groups_per_unit(shared_bytes: int, limits: Limits, most: int) -> int:
    """Return how many work-groups a multiprocessor holds.

    most: the number for which its registers suffice.
    """
    fitting = (limits.shared_bytes_opt_in + RESERVED_BYTES) // (shared_bytes + RESERVED_BYTES)
    return max(1, min(most, fitting))


def product_cycles(sums: float, k_bytes: float, wgmma: bool) -> float:
    """Return the cycles in which a multiprocessor multiplies.

    sums: the sums of a work-group. k_bytes: bytes of one operand's line along K.
    """
    return sums * k_bytes * (_WGMMA if wgmma else _MMA)


def wait_cycles(stages: float, ahead: int, share: float = 1.0) -> float:
    """Return the cycles in which a work-group waits for stages of operands.

    ahead: stages that are copied ahead. share: length of a stage, as a multiple of 128 bytes of K.
    """
    return stages * (_STAGE * share + _AHEAD / max(1, ahead))


@dataclass(frozen=True)
class LaunchWork:
    """The work of a launch, divided among its work-groups.

    groups: number of work-groups, or of tiles where a work-group computes several.
    per_unit: work-groups that a multiprocessor holds at once.
    busy: cycles of a work-group in which it keeps the busiest part of a multiprocessor (tensor
    cores, copies, schedulers or shared memory) from others.
    waited: cycles in which a work-group waits for copies, barriers and its own results, while
    others compute.
    begin: cycles of each work-group that nothing hides.
    moved: bytes that the device's memory moves.
    cluster: work-groups of a cluster.
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

        It is the start of the launch, and then the time of the busiest multiprocessor. Where the
        tensors do not stay in the L2 cache, a launch takes at least the time in which device
        memory moves them.
        """
        units = max(1, limits.compute_units)
        waves = -(-self.groups // (units * self.per_unit))
        of_unit = self.groups / units
        if of_unit < 4 * self.per_unit:
            of_unit = -(-self.groups // units)
        if self.cluster > 1 and waves == 1:
            clusters_of_gpc = -(-(self.groups // self.cluster) // max(1, units // _LARGEST_GPC))
            of_unit = max(of_unit, clusters_of_gpc * self.cluster / _LEAST_GPC)
        # waiting overlaps in part with what keeps a multiprocessor busy
        cycles = waves * self.begin + math.hypot(of_unit * self.busy, waves * self.waited)
        computed = _START_US + cycles / CYCLES_PER_MICROSECOND
        moving = self.moved / (H200_UNIT.nbytes * units)
        return (max(computed, moving if self.moved > _CACHED_BYTES else 0.0)
                + _NO_OVERLAP * min(computed, moving))
