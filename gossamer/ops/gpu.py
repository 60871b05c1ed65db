"""The expected time of a launch on a GPU, from what its work-groups do.

One model orders the tiles of all kernels. It need only order them roughly: the tuner measures the
first ones, and corrects the scale of an algorithm's times by its measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.peak_rates import H200_UNIT

# The rates hold for an H200. On another device they decide only the order in which tiles are tried.
CYCLES_PER_MICROSECOND = 1750
"""Clock rate in MHz of the multiprocessors under load."""
MULTIPLY_ADDS = {
    "wgmma fp16": 1700, "wgmma tf32": 850, "wgmma 2:4": 2800, "wgmma bits": 43_000,
    "mma fp16": 520, "mma tf32": 260, "mma fp32": 130, "mma bits": 6000, "fp32": 128}
"""Multiply-adds of a multiprocessor in a cycle, by instruction and operands, with the loads of
operands from shared memory. In float32, mma multiplies numbers that are split into TF32 numbers;
"fp32" are multiply-adds without tensor cores."""
_COPIED = 50.0
"""Bytes that a multiprocessor copies from the L2 cache in a cycle."""
_COPIES = 8.0
"""Copies that a multiprocessor starts in a cycle."""
_STORED = 0.12
"""Cycles of the epilogue and the store of a result."""
_STAGE, _COPY_LATENCY = 400.0, 900.0
"""Cycles of a stage with its barrier, and from the start of a copy to its end."""
_START_US = 1.9
"""Microseconds before the first copy and after the last store."""
_CACHED_BYTES = 35e6
"""Bytes that stay in the L2 cache from one layer to the next."""
_NO_OVERLAP = 0.15
"""Share of the shorter time, of the multiprocessors or of device memory, that is not hidden."""
_WARPS = 8
"""Warps with which a multiprocessor reaches its rates."""
_LEAST_GPC, _LARGEST_GPC, _LARGE_CLUSTER = 16, 18, 4
"""The least and the largest number of multiprocessors of a graphics processing cluster (GPC), and
the largest cluster that leaves few of them without work. All work-groups of a cluster run in one
GPC. The number of GPCs of a device is estimated with the larger number, as 7 for an H200 with 132
multiprocessors: on it eight clusters of 12 or 15 work-groups took as long as two waves, and seven
clusters did not."""
_RESERVED_BYTES = 1024
"""Bytes of shared memory that CUDA reserves for each work-group."""


def resident(available: int, shared_bytes: int, most: int) -> int:
    """Return the work-groups that a multiprocessor holds at once, at least one.

    available: bytes of shared memory that a single work-group can have.
    shared_bytes: bytes of shared memory of a work-group.
    most: work-groups for which the registers have room.
    """
    return max(1, min(most, (available + _RESERVED_BYTES) // (shared_bytes + _RESERVED_BYTES)))


def copied_bytes(nbytes: float, at_once: int) -> float:
    """Return the bytes that wide copies would move in the time of narrow copies.

    nbytes: bytes that are copied.
    at_once: bytes of a copy.
    """
    return nbytes * max(1.0, _COPIED / (_COPIES * at_once))


@dataclass(frozen=True)
class LaunchWork:
    """The work of a launch.

    groups: work-groups, or tiles where a work-group computes several tiles.
    resident: work-groups that a multiprocessor holds at once.
    operands: the instruction and the operands of the products, a key of MULTIPLY_ADDS.
    multiply_adds: multiply-adds of a work-group, padding included.
    copied: bytes that a work-group copies from the L2 cache.
    stored: results of a work-group.
    stages: steps of a work-group that wait for copies or for a barrier, without the first.
    ahead: stages whose copies are under way at the same time.
    nbytes: bytes of the launch's inputs and outputs; 0 where they stay in the L2 cache.
    warps: warps of a work-group.
    cluster: work-groups of a cluster.
    """

    groups: int
    resident: int
    operands: str
    multiply_adds: float
    copied: float
    stored: float
    stages: float
    ahead: int
    nbytes: float
    warps: int = _WARPS
    cluster: int = 1

    def expected_us(self, limits: Limits) -> float:
        """Return the expected microseconds.

        The busiest multiprocessor computes for some time, and its work-groups wait for some time.
        With more stages ahead more of the shorter time is hidden. Where the tensors do not stay in
        the L2 cache, device memory takes some time for them, too.
        """
        units, ahead = max(1, limits.compute_units), max(1, self.ahead)
        rounds = self._rounds(units)
        # few warps leave a multiprocessor idle while they wait for their results
        idle = max(1.0, _WARPS / (self.warps * min(self.resident, rounds)))
        busy = idle * self.stored * _STORED + max(
            idle * self.multiply_adds / MULTIPLY_ADDS[self.operands], self.copied / _COPIED)
        waited = (self.stages + 1) * (_STAGE + _COPY_LATENCY / ahead)
        shorter, longer = sorted((rounds * busy, -(-rounds // self.resident) * waited))
        computed = (longer + shorter / (1 + ahead)) / CYCLES_PER_MICROSECOND
        moved = self.nbytes / (units * H200_UNIT.nbytes) if self.nbytes > _CACHED_BYTES else 0.0
        return _START_US + max(computed, moved) + _NO_OVERLAP * min(computed, moved)

    def _rounds(self, units: int) -> int:
        """Return the work-groups of the busiest multiprocessor, at least one."""
        if self.cluster <= _LARGE_CLUSTER:
            return max(1, -(-self.groups // units))
        of_gpc = -(-self.groups // self.cluster // max(1, units // _LARGEST_GPC))
        return max(1, -(-of_gpc * self.cluster // _LEAST_GPC))
