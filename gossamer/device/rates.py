"""The peak rates of a device, by which algorithms order their configs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of a device, each per microsecond.

    Attributes
    ----------
    multiply_adds : float
        Multiply-adds in float32, on all compute units together.
    nbytes : float
        Bytes of a copy in the device's memory, read plus written.
    """

    multiply_adds: float
    nbytes: float
