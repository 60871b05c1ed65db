"""Rates by which estimates of kernels' times are scaled to a device.

These are the peak rates of one compute unit, multiply-adds and bytes per microsecond, and the cost
of a product on tensor cores.
"""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.device.limits import PeakRates

H200_UNIT = PeakRates(238_600.0, 32_300.0)
"""Rates of one of the 132 multiprocessors of an H200. All multiprocessors together reach 63 TFLOP/s
and 4.26 TB/s, as measured by `gossamer bench`. These rates stand for GPUs that were not
measured."""
_PROCESSOR = PeakRates(55_000.0, 10_000.0)
"""Rates of a processor core with AVX-512 at 3.4 GHz. These rates stand for processors that were not
measured."""
CYCLES_OF_PRODUCT = {"fp16": 6.5, "tf32": 6.5, "fp32": 12.0}
"""Cycles that a sub-partition of a multiprocessor takes for a product of 16 pixels by 8 output
channels over one step of K. A step has 16 input channels in fp16, and 8 in tf32 and fp32. The
cycles hold for an H200; on another device they only decide the order in which tiles are tried."""


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
