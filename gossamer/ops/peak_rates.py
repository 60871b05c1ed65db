"""Peak rates of one compute unit, from which algorithms estimate their times."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.device.base import Device


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of one compute unit, per microsecond.

    Attributes
    ----------
    multiply_adds : float
        Multiply-adds in float32.
    nbytes : float
        Bytes read plus bytes written by a copy in the device's memory.
    """

    multiply_adds: float
    nbytes: float


H200_UNIT = PeakRates(238_600.0, 32_300.0)
"""Rates of one of the 132 multiprocessors of an H200. All multiprocessors together reach 63 TFLOP/s
and 4.26 TB/s, as measured by `gossamer bench`. Estimates for all GPUs use these rates."""
_PROCESSOR = PeakRates(55_000.0, 10_000.0)
"""Rates of a CPU core with AVX-512 at 3.4 GHz."""


def rates_of_unit(device: Device) -> PeakRates:
    """Return the rates that estimates assume for one compute unit of a device."""
    return _PROCESSOR if device.on_processors else H200_UNIT


def moved_us(nbytes: int, device: Device) -> float:
    """Return the time in which all compute units of a device read or write bytes."""
    return nbytes / (rates_of_unit(device).nbytes * max(1, device.limits.compute_units))
