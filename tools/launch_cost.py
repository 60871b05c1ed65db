"""Measures the host's time per OpenCL kernel launch.

    python tools/launch_cost.py opencl:0

54 kernels are queued in several ways, and by a C program for comparison. For each way, the output
is the microseconds per kernel until all are queued, and until all have run, as the minimum of 2000
rounds. The C program, tools/launch_cost.c, is compiled with gcc.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gossamer.device import base
from gossamer.device.opencl import OpenCLDevice
from gossamer.device.registry import find
from gossamer.device.source import KernelSource

_KERNELS, _ROUNDS = 54, 2000
_KERNEL = KernelSource.of(Path(base.__file__).with_name("self_check.cl"), "self_check")


def measured(device: OpenCLDevice, queue_all: Callable[[], None]) -> tuple[float, float]:
    """Return microseconds per kernel: until queued, and until run."""
    queued = run = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        queue_all()
        middle = time.perf_counter()
        device.synchronize()
        end = time.perf_counter()
        queued, run = min(queued, middle - start), min(run, end - start)
    return 1e6 * queued / _KERNELS, 1e6 * run / _KERNELS


def c_program(platform: str) -> tuple[float, float]:
    """Return the results of the C program on a platform."""
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "launch_cost"
        subprocess.run(["gcc", "-O2", source, "-o", program, "-l:libOpenCL.so.1"], check=True)
        output = subprocess.run([program, platform], check=True, capture_output=True, text=True)
    queued, run = map(float, output.stdout.split())
    return queued, run


def main(name: str) -> None:
    device = find(name)
    assert isinstance(device, OpenCLDevice), f"{name} is not an OpenCL device"
    kernel, buffer = device.compile(_KERNEL), device.upload(np.zeros(64, np.float32), "a test")

    def launches(stream: object = None) -> None:
        for _ in range(_KERNELS):
            device.launch(kernel, (1,), (64,), (buffer, 64), stream=stream)

    for way, times in (("launched one by one", measured(device, launches)),
                       ("replayed as a graph", measured(device, device.capture(launches))),
                       ("C program", c_program(device.handle.platform.name))):
        print(f"{way:20} {times[0]:6.2f} us per kernel until queued, {times[1]:6.2f} us until run")


if __name__ == "__main__":
    main(*sys.argv[1:])
