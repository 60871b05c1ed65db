"""The work of processes that build candidates for another process. Some of these processes pack
weights and compile kernels for a device that they never touch; others let a vendor's library use
the device."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from gossamer.device.base import Buffer, Device, NeedsDeviceError
from gossamer.errors import GossamerError, first_line
from gossamer.io.process_pool import NoProcessError
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.lru_cache import LruCache
from gossamer.ops.weights import Pack, Weights
from gossamer.plan import prepare
from gossamer.plan.prepare import BuiltElsewhere

MOST_BYTES = 2**28
"""The most bytes of constants and packed forms that a process keeps. The constants and packed forms
of the layer whose candidates were built longest ago are dropped first."""


class ConstantsMissingError(GossamerError):
    """This process does not keep the constants of a layer: they have to be sent."""


class KeptWeights(Weights):
    """A layer's constants with their packed forms, which stay in this process. A packed form is an
    array that is made of the constants and laid out as one kernel reads it.

    kept: the packed forms by name, each with its array, or with None where the packed form was made
    on the device.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], device: Device, layer: str,
                 digest: str) -> None:
        super().__init__(arrays, device, layer)
        self.digest = digest
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

    @property
    def host_bytes(self) -> int:
        """Bytes of the constants and of their packed forms in this process."""
        forms = [array for _, array in self.kept.values() if array is not None]
        return sum(array.nbytes for array in (*self.arrays.values(), *forms))


_devices: list[Device] = []
"""A list with the device for which this process builds. The list is empty in a process that does
not build for another process."""
_weights: LruCache[KeptWeights] = LruCache(MOST_BYTES, lambda weights: weights.host_bytes)


def start(make_device: Callable[[], Device], nice: int) -> None:
    """Makes the device for which this process builds from now on. nice: the number that is added to
    the niceness of this process."""
    os.nice(nice)
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    _devices[:] = [make_device()]


def build(algorithm: Algorithm, problem: Problem, variant: Variant, layer: str, digest: str,
          constants: Mapping[str, np.ndarray] | None = None) -> BuiltElsewhere:
    """Build a candidate.

    digest: hash of the constants of its layer.
    constants: the constants; None to use those that this process keeps.
    Raises ConstantsMissingError where this process does not keep the constants, and NoProcessError
    where only the process that uses the device can build the candidate.
    """
    (device,) = _devices

    def weights_here() -> KeptWeights:
        if constants is None:
            raise ConstantsMissingError(layer)
        return KeptWeights(constants, device, layer, digest)

    weights = _weights.of(digest, weights_here)
    try:
        _, cost = prepare.build(algorithm, weights, problem, variant, device)
    except NeedsDeviceError as error:
        raise NoProcessError(str(error)) from None
    forms = {key: array for key in cost.forms if (array := weights.kept[key][1]) is not None}
    return BuiltElsewhere(forms, cost.seconds, cost.from_cache)


def work(function: Callable[[Device], object]) -> BuiltElsewhere:
    """Calls a function with the device. Raises NoProcessError where the function fails."""
    start = time.perf_counter()
    try:
        function(*_devices)
    except Exception as error:
        raise NoProcessError(f"a process that builds failed: {first_line(error)}") from None
    return BuiltElsewhere({}, time.perf_counter() - start)
