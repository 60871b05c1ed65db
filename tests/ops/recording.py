"""A device without a driver that records compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Problem
from gossamer.ops.weights import Weights
from tests.ops.harness import candidates, random_weights
from tests.simulated.device import H200


class _Buffer(Buffer):
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def view(self, offset: int, nbytes: int) -> Buffer:
        return _Buffer(nbytes)


class _Kernel(Kernel):
    def __init__(self, source: KernelSource) -> None:
        self.name, self.source = source.function, source


class RecordingDevice(Device):
    """A device with the limits of an H200.

    `sources` contains the kernels that were compiled.
    """

    api = "cuda"

    def __init__(self) -> None:
        self.index = 0
        self.description = "kernels are recorded, not run"
        self.driver = ""
        self.limits = H200.limits
        self.sources: set[KernelSource] = set()

    def compile(self, source: KernelSource) -> Kernel:
        self.sources.add(source)
        return _Kernel(source)

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        return _Buffer(nbytes)

    def upload(self, array: np.ndarray, purpose: str) -> Buffer:
        return _Buffer(array.nbytes)

    def _no_driver(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("a recording device runs nothing")

    write = read = copy = launch = synchronize = create_stream = time = _no_driver


def kernel_sources(problem: Problem) -> set[KernelSource]:
    """Return the kernels of all variants for a problem on an NVIDIA GPU."""
    device = RecordingDevice()
    weights = Weights(random_weights(problem), device, "the test")
    for algorithm, variant in candidates(problem, device):
        algorithm.prepare(weights, problem, variant, device)
    return device.sources
