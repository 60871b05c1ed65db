"""The times that are expected of candidates and conversions before they are measured."""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.peak_rates import rates_of_unit
from gossamer.tensor import TensorSpec

LEAST_SHARE = 0.4
"""Share of the expected time that a candidate, or a conversion, takes at least: models of
algorithms were fitted on few devices."""
_GPU_US, _PROCESSOR_US = 2.0, 5.0
"""The time of an empty launch in microseconds."""
_FASTER = {"fp32": 1.0, "tf32": 8.0, "fp16": 16.0}
"""How many times as many operations a GPU does in each precision as in float32."""


def model_us(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
    """Return the time by the algorithm's own model, with its launches; floor_us() where the
    algorithm has no model, and where all outputs are empty: models may divide by sizes."""
    is_empty = not any(spec.size for spec in problem.outputs)
    own = None if is_empty else algorithm.expected_us(problem, variant, device)
    if own is None:
        return floor_us(algorithm, problem, variant, device)
    return max(own, 0.1) + algorithm.launch_count(variant) * device.queued_us


def floor_us(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
    """Return the time of a launch that computes and moves what the problem needs at the peak rates
    of the device's kind."""
    info = getattr(problem, "weights_info", None)
    share = 1.0 if algorithm.dense or info is None else info.density
    faster = 1.0 if device.on_processors else _FASTER[variant.precision]
    rate = 2 * rates_of_unit(device).multiply_adds * faster * _units(device)
    return _launch_us(device) + max(problem.flops * share / rate,
                                    _moved_us(device, *variant.inputs, *variant.outputs))


def conversion_us(source: TensorSpec, target: TensorSpec, device: Device) -> float:
    """Return the time that is expected of a conversion from one format to another."""
    return _launch_us(device) + _moved_us(device, source, target)


def _units(device: Device) -> int:
    return max(1, device.limits.compute_units)


def _launch_us(device: Device) -> float:
    return max(_PROCESSOR_US if device.on_processors else _GPU_US, device.queued_us)


def _moved_us(device: Device, *specs: TensorSpec) -> float:
    return sum(spec.nbytes for spec in specs) / (
        rates_of_unit(device).nbytes * _units(device))
