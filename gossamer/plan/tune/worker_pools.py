"""The processes that build candidates for a tuner."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Algorithm
from gossamer.plan.tune.workers import BuildWorkers

_MOST_ON_DEVICE, _MEMORY_EACH = 5, 2**33
"""Processes that build on the device itself at most, and bytes of the device's memory for each."""
_MOST = 32
"""Processes that build without the device at most: one device times no faster than so many build,
and each takes a few hundred megabytes of the host's memory."""


class WorkerPools:
    """Processes that build candidates of vendors' libraries, which open the device, and processes
    that build those that skip zeros, which do not.

    pools: the processes, by whether they are for the libraries of vendors.
    """

    def __init__(self) -> None:
        self.pools: dict[bool, BuildWorkers] = {}

    def start(self, device: Device, algorithms: Iterable[Algorithm]) -> None:
        """Starts the processes that are of use for some algorithms, where there are none yet."""
        if device.build_only is None or processors() == 1:
            return
        kinds = {bool(algorithm.vendor) for algorithm in algorithms
                 if not algorithm.dense or algorithm.vendor}
        on_device = min(_MOST_ON_DEVICE, processors() - 1,
                        device.limits.memory_bytes // _MEMORY_EACH)
        for is_vendor in kinds - self.pools.keys():
            count = on_device if is_vendor else min(_MOST, processors() - 1)
            if count:
                self.pools[is_vendor] = BuildWorkers(device, count, on_device=is_vendor)

    def close(self) -> None:
        """Ends the processes, and waits until they have ended."""
        for workers in self.pools.values():
            workers.close()
        self.pools.clear()
