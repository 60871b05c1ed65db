"""Simulated GPUs, and a clock that shows the same time in every run."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from gossamer.device.host import HostDevice
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource

_LIMITS = Limits(compute_units=132, memory_bytes=2**37, shared_bytes=48 * 1024,
                 shared_bytes_opt_in=227 * 1024, work_group_size=1024, subgroup_size=32,
                 sure_work_group_size=1024, graph=True)


_NEIGHBOURS = 0.6
"""Share of its time by which a launch takes longer or less beside others."""


@dataclass(frozen=True)
class Hardware:
    """The facts of a GPU by which candidates are listed."""

    api: str
    description: str
    limits: Limits
    architecture: str = ""


H200 = Hardware("cuda", "a simulated H200 (sm_90)",
                replace(_LIMITS, mma=True, wgmma=True, cluster=16), "sm_90")
SM_75 = Hardware("cuda", "a simulated T4 (sm_75)",
                 replace(_LIMITS, compute_units=40, memory_bytes=2**34,
                         shared_bytes_opt_in=64 * 1024), "sm_75")
OPENCL = Hardware("opencl", "a simulated H200 through OpenCL",
                  replace(_LIMITS, shared_bytes_opt_in=48 * 1024, graph=False))
HARDWARE = {"h200": H200, "sm_75": SM_75, "opencl": OPENCL}


class SimulatedDevice(HostDevice):
    """A GPU whose memory is the host's. Where a time is taken, launches add their simulated time to
    a clock of the calling thread and compute nothing."""

    def __init__(self, hardware: Hardware, *, side_by_side: bool = False) -> None:
        self.api = hardware.api  # type: ignore[misc]
        self.index = 0
        self.description, self.driver = hardware.description, "simulated"
        self.limits, self.architecture = hardware.limits, hardware.architecture
        self._clock = threading.local()
        self._side_by_side = side_by_side

    @property
    def compiles(self) -> bool:
        return True

    @property
    def on_processors(self) -> bool:
        return False

    @property
    def builds_side_by_side(self) -> bool:
        return self._side_by_side

    @property
    def is_simulator(self) -> bool:
        # its rates are not measured
        return True

    @property
    def toolkit(self) -> str:
        return "simulated"

    @property
    def assembles_ptx(self) -> bool:
        return bool(self.architecture)

    @property
    def runs_cuda_libraries(self) -> bool:
        return bool(self.architecture)

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def compile(self, source: KernelSource) -> NoReturn:
        raise AssertionError(f"{source.function} of {source.path.name} is compiled for a simulated "
                             "device: its algorithm is not simulated")

    def create_stream(self) -> Any:
        return object()

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        def replay(stream: Any = None) -> None:
            work(stream)
            if repeats == 1:
                return
            before = getattr(self._clock, "us", None)
            work(stream)
            if before is not None:
                # each further execution follows the same launch, and so takes as long
                self._clock.us += (repeats - 2) * (self._clock.us - before)

        return replay

    def time(self, work: Callable[[Any], None], stream: Any = None) -> float:
        self._clock.us = self._clock.last_us = 0.0
        try:
            work(stream)
            return self._clock.us
        finally:
            del self._clock.us

    def spends(self, us: float) -> bool:
        """Adds a time to the clock; returns whether a time is being taken. The launch before it
        changes the time, as it does on a GPU, so that other plans than the cheapest by the times of
        layers alone are the fastest as a whole."""
        if not hasattr(self._clock, "us"):
            return False
        drawn = zlib.crc32(f"{self._clock.last_us} {us}".encode()) / 2**32
        self._clock.us += us * (1 + (drawn - 0.5) * _NEIGHBOURS)
        self._clock.last_us = us
        return True
