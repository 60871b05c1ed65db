"""A device without a driver that records compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.weights import Weights
from tests.cubins import check_builds
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

    architecture: that of programs in PTX, which the device takes if it is given. `sources` contains
    the kernels that were compiled, and `launches` the arguments and options of each launch.
    """

    api = "cuda"

    def __init__(self, architecture: str = "") -> None:
        self.index = 0
        self.description = "kernels are recorded, not run"
        self.driver = ""
        self.limits, self.architecture = H200.limits, architecture
        self.sources: set[KernelSource] = set()
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    @property
    def assembles_ptx(self) -> bool:
        return bool(self.architecture)

    def compile(self, source: KernelSource) -> Kernel:
        self.sources.add(source)
        return _Kernel(source)

    def assemble(self, name: str, key: Sequence[str], generate: Callable[[], Any]) -> Kernel:
        return _Kernel(KernelSource(Path(f"{name}.ptx"), name))

    def launch(self, *arguments: Any, **options: Any) -> None:
        self.launches.append((arguments, options))

    def synchronize(self, stream: Any = None) -> None:
        pass

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> Buffer:
        return _Buffer(nbytes)

    def upload(self, array: np.ndarray, purpose: str) -> Buffer:
        return _Buffer(array.nbytes)

    def _no_driver(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("a recording device runs nothing")

    write = read = copy = create_stream = time = _no_driver


def kernel_sources(problem: Problem) -> set[KernelSource]:
    """Return the kernels of all variants for a problem on an NVIDIA GPU."""
    device = RecordingDevice()
    weights = Weights(random_weights(problem), device, "the test")
    for algorithm, variant in candidates(problem, device):
        algorithm.prepare(weights, problem, variant, device)
    return device.sources


def check_kernels_build(algorithm: Algorithm, problems: Iterable[Problem], *, every: int = 1,
                        taken: Callable[[Any, Device], Iterable[Variant]] | None = None,
                        arrays: Callable[[Any], Mapping[str, np.ndarray]] = random_weights,
                        least: int = 1) -> None:
    """Build the kernels of variants for problems on an NVIDIA GPU, without one.

    Fails where registers are spilled. Skips the test where there is no NVRTC.

    every: the step from one variant of a problem to the next that is built. taken: returns the
    variants of a problem, if not all of the algorithm. arrays: makes the constants of a problem.
    least: the number of kernels that there must be.
    """
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    device = RecordingDevice()
    for problem in problems:
        weights = Weights(arrays(problem), device, "the test")
        for variant in list((taken or algorithm.variants)(problem, device))[::every]:
            algorithm.prepare(weights, problem, variant, device)
    assert len(device.sources) >= least
    check_builds(device.sources)
