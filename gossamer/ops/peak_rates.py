"""Rates by which estimates of kernels' times are scaled to a device.

These are the peak rates of one compute unit, multiply-adds and bytes per microsecond.
"""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.device.limits import PeakRates
from gossamer.ops.gpu import H200_UNIT

_PROCESSOR = PeakRates(55_000.0, 10_000.0)
"""Rates of a processor core with AVX-512 at 3.4 GHz. These rates stand for processors that were not
measured."""


def rates_of_unit(device: Device) -> PeakRates:
    """Return the rates of a compute unit of a device.

    They are its share of the measured rates, or nominal rates where none were measured.
    """
    if device.rates is None:
        return nominal_rates(device)
    units = max(device.limits.compute_units, 1)
    return PeakRates(device.rates.multiply_adds / units, device.rates.nbytes / units)


def nominal_rates(device: Device) -> PeakRates:
    """Return the rates of the hardware to which estimates were fitted.

    They are those of one compute unit.
    """
    return _PROCESSOR if device.on_processors else H200_UNIT
