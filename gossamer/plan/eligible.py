"""Which algorithms may compute a layer, where, and why others may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gossamer.device import find
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.ops import OPS
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.plan.program import Layer

Allows = Callable[[Algorithm, Problem, Device], bool]


def in_float32(algorithm: Algorithm, problem: Problem, place: Device) -> bool:
    """Whether an algorithm can compute a problem in strict float32, or states float16 itself, as
    a change of precision does."""
    stated = any(spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))
    return any(variant.precision == "fp32" or stated
               for variant in algorithm.variants(problem, place))


def eligible(layer: Layer, device: Device, only: str | None = None,
             sparse_threshold: float | None = None, allows: Allows = in_float32
             ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """The algorithms that can compute the layer on the device, else those of the host; and why
    the device's others cannot. `only`, where it is one of them, stands alone; on which side of
    the sparse threshold the layer is leaves those that skip zeros, or the others. allows: whether
    an algorithm has a variant of a precision that is allowed.

    Raises UnsupportedError where none can.
    """
    assert layer.problem is not None
    reasons: dict[str, str] = {}
    for place in (device, find("host")):
        able = []
        for algorithm in OPS[layer.op].algorithms:
            reason = algorithm.supports(layer.problem, place)
            if reason is None and not allows(algorithm, layer.problem, place):
                reason = "has nothing to offer in a precision that is allowed"
            if reason is None:
                able.append(algorithm)
            elif place is device:
                reasons[algorithm.name] = reason
        if able:
            forced = [algorithm for algorithm in able if algorithm.name == only]
            reasons.update({algorithm.name: f"{only} is forced" for algorithm in able
                            if forced and algorithm.name != only})
            able = forced or able
            if sparse_threshold is not None and layer.density is not None:
                able = _on_its_side(able, 1 - layer.density, sparse_threshold, reasons)
            return able, place, reasons
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
                   place: Device) -> tuple[Algorithm, list[Variant]]:
    """The first algorithm that computes the layer in strict float32, and its first config in all
    layouts; for a change of precision, the first algorithm. Raises UnsupportedError for none."""
    assert layer.problem is not None
    for algorithm in algorithms:
        strict = [variant for variant in algorithm.variants(layer.problem, place)
                  if variant.precision == "fp32" or layer.inserted]
        if strict:
            return algorithm, [v for v in strict if v.config == strict[0].config]
    raise UnsupportedError(f"{layer.source or layer.name}: nothing on {place.name} computes "
                           f"{layer.problem.describe()} in float32")
