"""The algorithms that may compute a layer, the device on which they may, and why others may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.host_threads import ALL, Threads, of_threads
from gossamer.ops.region.problem import RegionProblem
from gossamer.ops.registry import OPS
from gossamer.ops.zero_weights import ZeroWeights
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer

Refusal = Callable[[Algorithm, Problem, Device], str | None]


ANY = Policy()
"""The policy that restricts nothing."""

UNMEASURED_SECONDS = 60.0
"""Processor seconds that building a variant may be expected to take where nothing is measured."""


def refusal_reason(algorithm: Algorithm, problem: Problem, layer_device: Device) -> str | None:
    """Returns why an algorithm cannot compute a problem in strict float32 without taking long to
    build; None where it can. A change of precision may compute in the float16 of its own specs."""
    if (reason := algorithm.supports(problem, layer_device)) is not None:
        return reason
    is_asked_for = is_change_of_precision(problem)
    return reason_not_allowed((variant for variant in algorithm.variants(problem, layer_device)
                            if variant.is_as_precise_as_float32(problem) or is_asked_for),
                           UNMEASURED_SECONDS,
                           "without an effort")


def is_change_of_precision(problem: Problem) -> bool:
    """Returns whether a problem reads or writes float16 because a layer or the caller asked for it.
    A region does more than that: it computes layers, in the precision that the policy allows."""
    return not isinstance(problem, RegionProblem) and any(
        spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))


def reason_not_allowed(variants: Iterable[Variant], seconds: float, why: str) -> str | None:
    """Returns why none of the variants, all of precisions that are allowed, may be taken; None
    where one may. seconds: processor seconds that building may take. why: the words that say where
    this limit comes from."""
    shortest: Variant | None = None
    for variant in variants:
        if variant.build_seconds <= seconds:
            return None
        if shortest is None or variant.build_seconds < shortest.build_seconds:
            shortest = variant
    if shortest is None:
        return "has nothing to offer in a precision that is allowed"
    return reason_build_too_long(shortest, seconds, why)


def reason_build_too_long(variant: Variant, seconds: float, why: str) -> str:
    """Returns the reason why a variant that takes long to build is left out."""
    return (f"would take about {variant.build_seconds:.0f} s to build, {why} at most "
            f"{seconds:.0f} s are allowed")


def eligibility(layer: Layer, device: Device, policy: Policy = ANY,
                refusal_reason: Refusal = refusal_reason
                ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """Returns the algorithms that can compute the layer on the device, else those of the host;
    the device of these; and the reason for each of the device's other algorithms.

    Of a layer without any weight left that is the one that multiplies nothing.

    policy: its `only` is the name of an algorithm that alone is returned where it is among them,
    and without which an algorithm that is computed by name only is left out;
    its `sparse_threshold` is a sparsity above which only algorithms that skip zeros are returned,
    and up to which only dense ones; without its `vendors` the algorithms of vendors' libraries are
    left out where there are others; its `force` names the one algorithm that a layer may take.
    refusal_reason: called with an algorithm, a problem and a device, returns why the algorithm does
    not support the problem there or none of its variants is allowed, None where one is.

    Raises UnsupportedError where no algorithm can compute the layer, and InputError where the one
    that is forced cannot.
    """
    assert layer.problem is not None
    if layer.name in policy.force:
        return _forced(layer, device, policy.force[layer.name], refusal_reason)
    reasons: dict[str, str] = {}
    for layer_device in (device, find("host")):
        able, device_reasons = able_on(layer.problem, layer_device, refusal_reason)
        device_reasons |= {
            algorithm.name: f"is computed only where only={algorithm.name!r} asks for it"
            for algorithm in able if not is_asked_for(algorithm, policy)}
        able = [algorithm for algorithm in able if is_asked_for(algorithm, policy)]
        own = [algorithm for algorithm in able if not algorithm.vendor]
        if own and not policy.vendors:
            device_reasons |= {algorithm.name: "the libraries of vendors are left out"
                               for algorithm in able if algorithm.vendor}
            able = own
        if layer_device is device:
            reasons.update(device_reasons)
        if able:
            forced = [algorithm for algorithm in able if algorithm.name == policy.only]
            reasons.update({algorithm.name: f"{policy.only} is forced" for algorithm in able
                            if forced and algorithm.name != policy.only})
            able = forced or _without_weights(able, reasons)
            if policy.sparse_threshold is not None and layer.density is not None:
                able = _sparse_or_dense(able, 1 - layer.density, policy.sparse_threshold, reasons)
            return able, layer_device, reasons
    raise UnsupportedError(
        f"{layer.source or layer.name}: nothing computes {layer.problem.describe()}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _without_weights(able: list[Algorithm], reasons: dict[str, str]) -> list[Algorithm]:
    """Returns the algorithm for layers without any weight left where it is among the able ones,
    and adds the reason for the others; else all."""
    alone: list[Algorithm] = [algorithm for algorithm in able
                              if isinstance(algorithm, ZeroWeights)]
    if alone:
        reasons.update({algorithm.name: "no weight is left to multiply by" for algorithm in able
                        if algorithm not in alone})
    return alone or able


def _forced(layer: Layer, device: Device, name: str, refusal_reason: Refusal
            ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """Returns the algorithm that a layer is forced to take, its device, and the reason for each of
    the device's other algorithms. Raises InputError where it cannot compute the layer."""
    assert layer.problem is not None
    known = {algorithm.name for algorithm in OPS[layer.op].algorithms}
    why = "" if name in known else f"it computes no {layer.op}"
    for layer_device in (device, find("host")):
        able, reasons = able_on(layer.problem, layer_device, refusal_reason)
        chosen = [algorithm for algorithm in able if algorithm.name == name]
        if chosen:
            others = {algorithm.name: f"{name} is forced" for algorithm in able
                      if algorithm.name != name}
            return chosen, layer_device, {**reasons, **others}
        why = why or reasons.get(name, "")
    raise InputError(f"layer {layer.name}: {name} is forced and cannot compute it: {why}")


def is_asked_for(algorithm: Algorithm, policy: Policy) -> bool:
    """Returns whether a policy lets an algorithm compute a layer that it can compute."""
    return not algorithm.by_name_only or algorithm.name == policy.only


def able_on(problem: Problem, device: Device, refusal_reason: Refusal,
            algorithms: Iterable[Algorithm] | None = None
            ) -> tuple[list[Algorithm], dict[str, str]]:
    """Returns the algorithms that can compute a problem on a device, and the reason for each of the
    others. algorithms: those that are asked; by default all of the op."""
    able: list[Algorithm] = []
    reasons: dict[str, str] = {}
    for algorithm in OPS[problem.op].algorithms if algorithms is None else algorithms:
        reason = refusal_reason(algorithm, problem, device)
        if reason is None:
            able.append(algorithm)
        else:
            reasons[algorithm.name] = reason
    return able, reasons


def _sparse_or_dense(able: list[Algorithm], sparsity: float, threshold: float,
                     reasons: dict[str, str]) -> list[Algorithm]:
    """Returns the algorithms that skip zeros for a sparsity above the threshold, else the dense
    ones; all where there are only sparse or only dense ones. Adds the reasons for the rest. This
    is the rule with which direct sparse convolution was published (X. Chen, "Escoin: efficient
    sparse convolutional neural network inference on GPUs", arXiv 1802.10280, 2018)."""
    dense = [algorithm for algorithm in able if algorithm.dense]
    sparse = [algorithm for algorithm in able if not algorithm.dense]
    if not dense or not sparse:
        return able
    above = is_above(sparsity, threshold)
    reason = (f"sparsity {sparsity:.4g} is {'above' if above else 'not above'} the threshold "
              f"{threshold:g}")
    reasons.update({algorithm.name: reason for algorithm in (dense if above else sparse)})
    return sparse if above else dense


def is_above(sparsity: float, threshold: float) -> bool:
    """Returns whether a sparsity is above the threshold."""
    # in binary 1 - 0.7 is a little more than 0.3
    return round(sparsity, 12) > threshold


def first_in_order(layer: Layer, algorithms: Iterable[Algorithm], layer_device: Device,
                   threads: Threads = ALL) -> tuple[Algorithm, list[Variant]]:
    """Returns the first algorithm that computes the layer in strict float32, and the variants in
    all layouts of its first config that does not take long to build. For a change of precision it
    is the first algorithm. threads: BLAS threads of a layer on the host. Raises UnsupportedError
    where there is none."""
    assert layer.problem is not None
    for algorithm in algorithms:
        strict = [variant for variant in of_threads(
                      algorithm.variants(layer.problem, layer_device), threads, layer_device)
                  if (variant.precision == "fp32" or layer.inserted)
                  and variant.build_seconds <= UNMEASURED_SECONDS]
        if strict:
            return algorithm, [variant for variant in strict
                               if variant.config == strict[0].config]
    raise UnsupportedError(f"{layer.source or layer.name}: nothing on {layer_device.name} computes "
                           f"{layer.problem.describe()} in float32")
