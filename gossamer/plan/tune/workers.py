"""Processes that build candidates while this process times other candidates.

Some of these processes pack weights and compile kernels for a device that they never touch; others
let a vendor's library use the device.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

import numpy as np

from gossamer.device import kernel_cache
from gossamer.device.base import Buffer, Device, NeedsDeviceError
from gossamer.device.host import processors
from gossamer.device.registry import find
from gossamer.errors import first_line
from gossamer.io.process_pool import NoProcessError, ProcessPool
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.weights import Pack, Weights
from gossamer.plan import program
from gossamer.plan.program import BuiltElsewhere

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
"""Limits of libraries for linear algebra: each process computes on one processor."""
_MOST_ON_DEVICE, _MEMORY_EACH = 5, 2**33
"""The most processes that build on the device itself, and the bytes of device memory for each."""
_MOST = 32
"""The most processes that build without the device. This many processes build candidates at least
as fast as one device times them, and each process takes a few hundred megabytes of host memory."""
_FEWEST = 6
"""The fewest processors for which a pool is started that only compiles kernels, a rule of thumb:
few threads of one process seldom wait for one another in NVRTC."""
_NICE = 5
"""The number that is added to the niceness of processes that build without the device, so that they
do not delay this process, which times candidates at the same time."""
_devices: list[Device] = []
"""A list with the device for which this process builds. The list is empty in a process that does
not build for another process."""


class BuildWorkers(ProcessPool):
    """Processes that build candidates for this process: they pack weights and compile kernels, or
    let a vendor's library use the device; see ProcessPool. Kernels come back through the kernel
    cache on disk, and packed forms with the results.

    device: the device for which candidates are built.
    count: number of processes.
    on_device: whether the processes open the device itself, for the libraries of vendors. If
    not, they open the device that the function `device.build_only` makes, and are the `compilers`
    of the device until they are ended.
    """

    def __init__(self, device: Device, count: int, *, on_device: bool = False) -> None:
        make_device = functools.partial(find, device.name) if on_device else device.build_only
        assert make_device is not None
        super().__init__(count, "process that builds candidates",
                         functools.partial(start_building, make_device,
                                           0 if on_device else _NICE), variables=_ONE_THREAD)
        self._device = device
        self._on_device = on_device
        if not on_device:
            device.compilers = self

    def end(self) -> None:
        if self._device.compilers is self:
            self._device.compilers = None
        super().end()

    def build(self, algorithm: Algorithm, problem: Problem, variant: Variant,
              weights: Weights) -> Future[BuiltElsewhere]:
        """Return the future of the packed forms and kernels that a process makes for a candidate.
        With these, `gossamer.plan.program.build` has little left to do.

        Candidates are built in the order in which they are submitted. The future of a candidate
        that waits can be cancelled. The future's exception is NoProcessError where no process
        builds the candidate, so that the caller has to build it; ProcessEndedError where the
        process ended while it built; or the error with which building failed. This function raises
        NoProcessError itself where the algorithm leaves nothing to other processes, or where
        kernels would be lost because the cache cannot be written.
        """
        candidate = f"{algorithm.name} {variant.config_text} for layer {weights.layer}"
        if self._on_device:
            work = algorithm.work_ahead(problem, variant, self._device)
            if work is None:
                raise NoProcessError(f"{algorithm.name} leaves nothing to other processes")
            return self.do(work, candidate)
        if kernel_cache.has_unwritten():
            raise NoProcessError("the kernel cache cannot be written")

        return self.submit(build_candidate, algorithm, problem, variant, weights.layer,
                           weights.arrays, what=f"built {candidate}")

    def do(self, work: Callable[[Device], object], what: str) -> Future[BuiltElsewhere]:
        """Return the future of work that a process with the device open does, such as the work
        that Algorithm.work_ahead returns. what: words for the work.

        The future's exception is ProcessEndedError where the process ended meanwhile, and
        NoProcessError where no process does the work or the work fails.
        """
        assert self._on_device
        return self.submit(do_work, work, what=f"was asked for {what}")


class WorkerPools:
    """Two pools of processes that build candidates. The processes of one pool open the device and
    build candidates of vendors' libraries. The processes of the other pool do not open the device:
    they build candidates that skip zeros, and compile kernels of other candidates.

    pools: the pools that were started, by whether they are for vendors' libraries.
    """

    def __init__(self) -> None:
        self.pools: dict[bool, BuildWorkers] = {}

    def start(self, device: Device, algorithms: Iterable[Algorithm]) -> None:
        """Start the processes that are of use for some algorithms, unless they were started
        before."""
        if device.build_only is None or processors() == 1:
            return
        kinds = {bool(algorithm.vendor) for algorithm in algorithms
                 if algorithm.vendor or not algorithm.dense or processors() >= _FEWEST}
        on_device = min(_MOST_ON_DEVICE, processors() - 1,
                        device.limits.memory_bytes // _MEMORY_EACH)
        for is_vendor in kinds - self.pools.keys():
            count = on_device if is_vendor else min(_MOST, processors() - 1)
            if count:
                self.pools[is_vendor] = BuildWorkers(device, count, on_device=is_vendor)

    def end(self) -> None:
        """End the processes; return before they have ended. From now on this process builds all
        candidates."""
        for workers in self.pools.values():
            workers.end()

    def close(self) -> None:
        """End the processes, and wait until they have ended."""
        # an interrupt that ends the wait must not leave processes of the other pool behind
        self.end()
        for workers in self.pools.values():
            workers.close()
        self.pools.clear()


class KeptWeights(Weights):
    """A layer's constants with their packed forms, which stay in this process. A packed form is an
    array that is made of the constants and laid out as one kernel reads it.

    kept: the packed forms by name, each with its array, or with None where the packed form was made
    on the device.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], device: Device, layer: str) -> None:
        super().__init__(arrays, device, layer)
        self.kept: dict[str, tuple[Buffer, np.ndarray | None]] = {}

    def packed(self, key: str, pack: Pack) -> Buffer:
        if key not in self.kept:
            result = pack(self.arrays)
            if isinstance(result, Buffer):
                self.kept[key] = result, None
            else:
                array = np.ascontiguousarray(result)
                self.kept[key] = self._device.upload(array, f"weights of {self.layer}"), array
        return self.kept[key][0]


def start_building(make_device: Callable[[], Device], nice: int) -> None:
    """Make the device for which this process builds from now on. nice: the number that is added to
    the niceness of this process."""
    os.nice(nice)
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    _devices[:] = [make_device()]


def build_candidate(algorithm: Algorithm, problem: Problem, variant: Variant, layer: str,
                    constants: Mapping[str, np.ndarray]) -> BuiltElsewhere:
    """Build a candidate of a layer with these constants. Raises NoProcessError where only the
    process that uses the device can build the candidate."""
    (device,) = _devices
    weights = KeptWeights(constants, device, layer)
    try:
        _, cost = program.build(algorithm, weights, problem, variant, device)
    except NeedsDeviceError as error:
        raise NoProcessError(str(error)) from None
    forms = {key: array for key in cost.forms if (array := weights.kept[key][1]) is not None}
    return BuiltElsewhere(forms, cost.seconds, cost.from_cache)


def do_work(function: Callable[[Device], object]) -> BuiltElsewhere:
    """Call a function with the device. Raises NoProcessError where the function fails."""
    start = time.perf_counter()
    try:
        function(*_devices)
    except Exception as error:
        raise NoProcessError(f"a process that builds failed: {first_line(error)}") from None
    return BuiltElsewhere({}, time.perf_counter() - start)
