"""Multiply-adds in registers, which show the peak rate of float32 on a device that compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.measure import Work

WORK_GROUP_SIZE = 256
CHAINS, WIDE_CHAINS, STEPS = 8, 12, 16
"""Macros of the kernels: independent chains of a work-item, of which each multiply-add waits for
the previous one, in multiply_add.cl and in multiply_add_wide.cl, and unrolled steps in both."""
SOURCE, WIDE_SOURCE = (
    KernelSource.of(Path(__file__).with_name(f"{name}.cl"), name,
                    {"CHAINS": chains, "STEPS": STEPS})
    for name, chains in (("multiply_add", CHAINS), ("multiply_add_wide", WIDE_CHAINS)))


def multiply_adds(device: Device, purpose: str) -> tuple[int, Work]:
    """Returns the number of operations, and the work that does them in registers. Processors do
    them on vectors of 16 numbers."""
    source, items, lanes, chains, rounds = (
        (WIDE_SOURCE, 1, 16, WIDE_CHAINS, 1024) if device.on_processors
        else (SOURCE, WORK_GROUP_SIZE, 1, CHAINS, 64))
    groups, kernel = 32 * device.limits.compute_units, device.compile(source)
    result = device.empty(4 * groups * items * lanes, purpose)

    def compute(stream: Any) -> None:
        device.launch(kernel, (groups,), (items,), (result, 0.5, 1.0, rounds), stream=stream)

    return 2 * groups * items * lanes * chains * STEPS * rounds, compute
