"""Decides which algorithms may compute a layer, and on which device, and says why others may
not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.host_threads import ALL, Threads, of_threads
from gossamer.ops.registry import OPS
from gossamer.ops.zero_weights import ZeroWeights
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer

Refusal = Callable[[Algorithm, Problem, Device], str | None]
"""A function that returns why an algorithm may not compute a problem on a device; None where it may
compute the problem."""


ANY = Policy()
"""The policy that restricts nothing."""

UNMEASURED_SECONDS = 60.0
"""The limit for the expected processor seconds of building a variant where nothing is measured:
variants that are expected to take longer are left out."""


def refusal_reason(algorithm: Algorithm, problem: Problem, layer_device: Device) -> str | None:
    """Return why an algorithm has no variant that computes a problem in strict float32 and is
    built within UNMEASURED_SECONDS; None where the algorithm has such a variant. Where
    is_change_of_precision() holds for the problem, variants of any precision count."""
    if (reason := algorithm.supports(problem, layer_device)) is not None:
        return reason
    is_asked_for = is_change_of_precision(problem)
    return reason_not_allowed((variant for variant in algorithm.variants(problem, layer_device)
                            if variant.is_as_precise_as_float32(problem) or is_asked_for),
                           UNMEASURED_SECONDS,
                           "without an effort")


def is_change_of_precision(problem: Problem) -> bool:
    """Return whether a problem reads or writes float16 because a layer or the caller asked for it.
    Return False for fusions, which compute layers in a precision that the policy allows."""
    return not isinstance(problem, FusionProblem) and any(
        spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))


def reason_not_allowed(variants: Iterable[Variant], seconds: float, why: str) -> str | None:
    """Return why none of the variants may be taken; None where one of them may be taken.

    variants: variants in precisions that are allowed.
    seconds: processor seconds that building may take.
    why: the words that tell the user where the limit comes from.
    """
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
    """Return the reason why a variant that takes long to build is left out."""
    return (f"would take about {variant.build_seconds:.0f} s to build, {why} at most "
            f"{seconds:.0f} s are allowed")


def eligibility(layer: Layer, device: Device, policy: Policy = ANY,
                refusal_reason: Refusal = refusal_reason
                ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """Return the algorithms that may compute a layer, the device on which they compute it, and for
    each other algorithm the reason why it may not. Where no algorithm may compute the layer on
    `device`, the host takes the place of the device.

    policy: decides between the algorithms that can compute the layer; see _wanted().
    refusal_reason: a function of an algorithm, a problem and a device. It returns why the algorithm
    does not support the problem on the device, or why none of the algorithm's variants is allowed,
    and None where the algorithm may compute the problem.

    Raises UnsupportedError where no algorithm can compute the layer, and InputError where the
    policy forces an algorithm that cannot compute the layer.
    """
    reasons: dict[str, str] = {}
    for layer_device in (device, find("host")):
        able, refused = able_on(layer.problem, layer_device, refusal_reason)
        able = _wanted(able, layer, policy, refused)
        reasons = {**refused, **reasons}
        if able:
            return able, layer_device, reasons
    if layer.name in policy.force:
        name = policy.force[layer.name]
        raise InputError(f"layer {layer.name}: {name} is forced and cannot compute it: "
                         f"{reasons.get(name, f'it computes no {layer.op}')}")
    raise UnsupportedError(
        f"{layer.source or layer.name}: nothing computes {layer.problem.describe()}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _wanted(able: list[Algorithm], layer: Layer, policy: Policy,
            reasons: dict[str, str]) -> list[Algorithm]:
    """Return the algorithms that a policy allows for a layer, and add to `reasons` why each other
    algorithm is not allowed.

    A layer that the policy's `force` names takes the algorithm that `force` states, and no other.
    For all other layers these rules apply, one after another:
    - Algorithms with by_name_only are left out, unless `only` names them.
    - Without `vendors`, algorithms of vendors' libraries are left out.
    - The algorithm that `only` names is taken alone.
    - ZeroWeights, which supports a layer whose weights are all zero, is taken alone.
    - With `sparse_threshold`, algorithms that skip zeros are taken where the layer's sparsity is
      above this threshold, else dense algorithms. Direct sparse convolution was published with this
      rule (X. Chen, "Escoin: efficient sparse convolutional neural network inference on GPUs",
      arXiv 1802.10280, 2018).
    A rule other than the first is skipped where it would leave no algorithm.

    able: the algorithms that can compute the layer.
    """
    def kept(keep: Callable[[Algorithm], bool], reason: str, *, always: bool = False) -> None:
        nonlocal able
        left = [algorithm for algorithm in able if keep(algorithm)]
        if left or always:
            reasons.update({algorithm.name: reason.format(algorithm.name) for algorithm in able
                            if algorithm not in left})
            able = left

    if layer.name in policy.force:
        name = policy.force[layer.name]
        kept(lambda algorithm: algorithm.name == name, f"{name} is forced", always=True)
        return able
    kept(lambda algorithm: is_asked_for(algorithm, policy),
         "is computed only where only={!r} asks for it", always=True)
    if not policy.vendors:
        kept(lambda algorithm: not algorithm.vendor, "the libraries of vendors are left out")
    kept(lambda algorithm: algorithm.name == policy.only, f"{policy.only} is forced")
    kept(lambda algorithm: isinstance(algorithm, ZeroWeights),
         "no weight is left to multiply by")
    if policy.sparse_threshold is not None and layer.density is not None:
        above = is_above(1 - layer.density, policy.sparse_threshold)
        kept(lambda algorithm: algorithm.dense != above,
             f"sparsity {1 - layer.density:.4g} is {'above' if above else 'not above'} the "
             f"threshold {policy.sparse_threshold:g}")
    return able


def is_asked_for(algorithm: Algorithm, policy: Policy) -> bool:
    """Return whether a policy allows an algorithm at all. An algorithm with by_name_only is taken
    only where the policy's `only` names it."""
    return not algorithm.by_name_only or algorithm.name == policy.only


def able_on(problem: Problem, device: Device, refusal_reason: Refusal,
            algorithms: Iterable[Algorithm] | None = None
            ) -> tuple[list[Algorithm], dict[str, str]]:
    """Return the algorithms that can compute a problem on a device, and for each other algorithm
    the reason why it cannot. algorithms: the algorithms to ask; by default all algorithms of the
    op."""
    able: list[Algorithm] = []
    reasons: dict[str, str] = {}
    for algorithm in OPS[problem.op].algorithms if algorithms is None else algorithms:
        reason = refusal_reason(algorithm, problem, device)
        if reason is None:
            able.append(algorithm)
        else:
            reasons[algorithm.name] = reason
    return able, reasons


def forced_otherwise(fusion: Layer, algorithm: Algorithm, policy: Policy) -> str:
    """Return why the policy's `force` keeps an algorithm from a fusion: a layer of the fusion has
    to take another algorithm. Return "" where `force` allows the algorithm."""
    return next((f"{policy.force[name]} is forced for {name}" for name in fusion.covers
                 if policy.force.get(name, algorithm.name) != algorithm.name), "")


def is_above(sparsity: float, threshold: float) -> bool:
    """Return whether a sparsity is above the threshold."""
    # in floating point, 1 - 0.7 is a little more than 0.3
    return round(sparsity, 12) > threshold


def first_in_order(layer: Layer, algorithms: Iterable[Algorithm], layer_device: Device,
                   threads: Threads = ALL) -> tuple[Algorithm, list[Variant]]:
    """Return the first algorithm that has a suitable variant, and a list of suitable variants of
    this algorithm. All variants of the list have the config of the first suitable variant, and
    differ only in their formats. A suitable variant computes in strict float32 and is built within
    UNMEASURED_SECONDS. For a layer that the plan inserted, such as a change of layout or precision,
    variants of all precisions are suitable.

    threads: BLAS threads of a layer on the host.
    Raises UnsupportedError where no algorithm has a suitable variant.
    """
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
