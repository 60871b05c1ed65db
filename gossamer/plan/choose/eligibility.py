"""Which algorithms may compute a layer, where, and why others may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import UnsupportedError
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.registry import OPS
from gossamer.plan.program import Layer

Refusal = Callable[[Algorithm, Problem, Device], str | None]

UNMEASURED_SECONDS = 60.0
"""Of one processor that building a variant may be expected to take where nothing is measured."""


def refusal(algorithm: Algorithm, problem: Problem, layer_device: Device) -> str | None:
    """Why an algorithm cannot compute a problem in strict float32, or in the float16 that a change
    of precision states itself, without being built for long; None where it can."""
    stated = any(spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))
    return nothing_allowed((variant for variant in algorithm.variants(problem, layer_device)
                            if variant.precision == "fp32" or stated), UNMEASURED_SECONDS,
                           "without an effort")


def nothing_allowed(variants: Iterable[Variant], seconds: float, why: str) -> str | None:
    """Why none of the variants, all of precisions that are allowed, may be taken; None where one
    may. why: whence the seconds that building may take."""
    shortest: Variant | None = None
    for variant in variants:
        if variant.build_seconds <= seconds:
            return None
        if shortest is None or variant.build_seconds < shortest.build_seconds:
            shortest = variant
    if shortest is None:
        return "has nothing to offer in a precision that is allowed"
    return too_long(shortest, seconds, why)


def too_long(variant: Variant, seconds: float, why: str) -> str:
    """Why a variant that takes long to build is left out."""
    return (f"would take about {variant.build_seconds:.0f} s to build, {why} at most "
            f"{seconds:.0f} s are allowed")


def eligibility(layer: Layer, device: Device, only: str | None = None,
             sparse_threshold: float | None = None, refusal: Refusal = refusal
             ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """The algorithms that can compute the layer on the device, else those of the host; and why
    the device's others cannot. `only`, where it is one of them, stands alone; on which side of
    the sparse threshold the layer is leaves those that skip zeros, or the others. refusal: why
    none of an algorithm's variants is allowed, None where one is.

    Raises UnsupportedError where none can.
    """
    assert layer.problem is not None
    reasons: dict[str, str] = {}
    for layer_device in (device, find("host")):
        able = []
        for algorithm in OPS[layer.op].algorithms:
            reason = algorithm.supports(layer.problem, layer_device)
            if reason is None:
                reason = refusal(algorithm, layer.problem, layer_device)
            if reason is None:
                able.append(algorithm)
            elif layer_device is device:
                reasons[algorithm.name] = reason
        if able:
            forced = [algorithm for algorithm in able if algorithm.name == only]
            reasons.update({algorithm.name: f"{only} is forced" for algorithm in able
                            if forced and algorithm.name != only})
            able = forced or able
            if sparse_threshold is not None and layer.density is not None:
                able = _on_its_side(able, 1 - layer.density, sparse_threshold, reasons)
            return able, layer_device, reasons
    raise UnsupportedError(
        f"{layer.source or layer.name}: nothing computes {layer.problem.describe()}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _on_its_side(able: list[Algorithm], sparsity: float, threshold: float,
                 reasons: dict[str, str]) -> list[Algorithm]:
    """The algorithms that a fixed threshold of sparsity leaves, as direct sparse convolution was
    published (Escoin, 2018); all where there are only dense ones, or none. Adds to the reasons."""
    dense = [algorithm for algorithm in able if algorithm.dense]
    sparse = [algorithm for algorithm in able if not algorithm.dense]
    if not dense or not sparse:
        return able
    # 1 - 0.7 is a little more than 0.3
    above = round(sparsity, 12) > threshold
    reason = (f"sparsity {sparsity:.4g} is {'above' if above else 'not above'} the threshold "
              f"{threshold:g}")
    reasons.update({algorithm.name: reason for algorithm in (dense if above else sparse)})
    return sparse if above else dense


def first_in_order(layer: Layer, algorithms: Iterable[Algorithm],
                   layer_device: Device) -> tuple[Algorithm, list[Variant]]:
    """The first algorithm that computes the layer in strict float32, and the first of its configs
    that do not take long to build, in all layouts; for a change of precision, the first
    algorithm. Raises UnsupportedError for none."""
    assert layer.problem is not None
    for algorithm in algorithms:
        strict = [variant for variant in algorithm.variants(layer.problem, layer_device)
                  if (variant.precision == "fp32" or layer.inserted)
                  and variant.build_seconds <= UNMEASURED_SECONDS]
        if strict:
            return algorithm, [v for v in strict if v.config == strict[0].config]
    raise UnsupportedError(f"{layer.source or layer.name}: nothing on {layer_device.name} computes "
                           f"{layer.problem.describe()} in float32")
