"""The times that are expected of candidates and conversions before they are measured."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.tensor import TensorSpec

LEAST_SHARE = 0.4
"""Share of the expected time that a candidate, or a conversion, takes at least: models of
algorithms were fitted on few devices."""


@dataclass(frozen=True)
class NominalRates:
    """Nominal rates of a kind of devices.

    launch_us: the time of an empty launch in microseconds.
    flops: operations of one compute unit in a microsecond, by precision.
    nbytes: bytes that one compute unit moves in a microsecond.
    """

    launch_us: float
    flops: dict[str, float]
    nbytes: float


_GPU = NominalRates(2.0, {"fp32": 4.3e5, "tf32": 3.5e6, "fp16": 7e6}, 5e4)
_PROCESSOR = NominalRates(5.0, {"fp32": 5e4, "tf32": 5e4, "fp16": 5e4}, 8e3)


def model_us(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
    """Return the time by the algorithm's own model, with its launches; floor_us() where the
    algorithm has no model, and where all outputs are empty: models may divide by sizes."""
    is_empty = not any(spec.size for spec in problem.outputs)
    own = None if is_empty else algorithm.expected_us(problem, variant, device)
    if own is None:
        return floor_us(algorithm, problem, variant, device)
    return max(own, 0.1) + algorithm.launch_count(variant) * device.queued_us


def floor_us(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
    """Return the time of a launch that computes and moves what the problem needs at nominal
    rates."""
    info = getattr(problem, "weights_info", None)
    share = 1.0 if algorithm.dense or info is None else info.density
    rate = _rates_of(device).flops[variant.precision] * _units(device)
    return _launch_us(device) + max(problem.flops * share / rate,
                                    _moved_us(device, *variant.inputs, *variant.outputs))


def conversion_us(source: TensorSpec, target: TensorSpec, device: Device) -> float:
    """Return the time that is expected of a conversion from one format to another."""
    return _launch_us(device) + _moved_us(device, source, target)


def _rates_of(device: Device) -> NominalRates:
    return _PROCESSOR if device.on_processors else _GPU


def _units(device: Device) -> int:
    return max(1, device.limits.compute_units)


def _launch_us(device: Device) -> float:
    return max(_rates_of(device).launch_us, device.queued_us)


def _moved_us(device: Device, *specs: TensorSpec) -> float:
    return sum(spec.nbytes for spec in specs) / (_rates_of(device).nbytes * _units(device))
