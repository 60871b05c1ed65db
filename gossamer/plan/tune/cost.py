"""Estimated times of candidates and conversions."""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.peak_rates import moved_us, rates_of_unit
from gossamer.tensor import TensorSpec

LEAST_SHARE = 0.4
"""Lower bound of a measured time, as a share of the estimate. It is well below 1, because the
models of algorithms were fitted on few devices, and because a library's last config may take half
the time of its first config."""
_GPU_US, _PROCESSOR_US, _HOST_US = 2.0, 5.0, 0.5
"""Time of an empty launch in microseconds: on a GPU, by OpenCL on a processor, of a function of the
host."""
_FASTER = {"fp32": 1.0, "tf32": 8.0, "fp16": 16.0}
"""Throughput of a GPU in each precision relative to float32."""


def model_us(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
    """Return the time that the algorithm's model predicts, in microseconds.

    The time includes the launches. The result is floor_us() if the algorithm has no model, or if
    all outputs are empty, because models may divide by sizes.
    """
    is_empty = not any(spec.size for spec in problem.outputs)
    own = None if is_empty else algorithm.expected_us(problem, variant, device)
    if own is None:
        return floor_us(algorithm, problem, variant, device)
    return max(own, 0.1) + algorithm.launch_count(variant) * device.queued_us


def floor_us(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
    """Return the time of one launch at peak rates.

    The launch does the operations of the problem and moves its inputs and outputs once, at the peak
    rates of devices of this kind.
    """
    info = getattr(problem, "weights_info", None)
    share = 1.0 if algorithm.dense or info is None else info.density
    faster = 1.0 if device.on_processors else _FASTER[variant.precision]
    units = max(1, device.limits.compute_units)
    rate = 2 * rates_of_unit(device).multiply_adds * faster * units
    return _launch_us(device) + max(problem.flops * share / rate,
                                    _moved_us(device, *variant.inputs, *variant.outputs))


def conversion_us(source: TensorSpec, target: TensorSpec, device: Device) -> float:
    """Return the estimated time of a format conversion, in microseconds."""
    return _launch_us(device) + _moved_us(device, source, target)


def _launch_us(device: Device) -> float:
    least_us = (_GPU_US if not device.on_processors else _PROCESSOR_US if device.compiles
                else _HOST_US)
    return max(least_us, device.queued_us)


def _moved_us(device: Device, *specs: TensorSpec) -> float:
    return moved_us(sum(spec.nbytes for spec in specs), device)
