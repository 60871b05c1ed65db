"""The options with which the plan assignment computes several layers in one step. Either all layers
of a fusion take their options for the same candidate, or no layer takes such an option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.measure import SLACK
from gossamer.ops.algorithm import Algorithm
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.plan_assignment import NodeOption
from gossamer.plan.eligibility import Refusal, able_on, is_above, is_asked_for
from gossamer.plan.fusion import recognising
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer
from gossamer.plan.tune.bounds import uncheckable
from gossamer.plan.tune.discontinuity import has_jumps
from gossamer.tensor import Format


@dataclass(frozen=True)
class FusionFormat:
    """The format of a value between two layers of a fusion that one algorithm computes in one step.

    No conversion leads to this format. A conversion leads from this format only where the algorithm
    also writes the value for other readers.

    fusion: name of the fusion's layer.
    option: number of the candidate among those that _fastest() keeps of the fusion's candidates.
    written: the format in which the algorithm also writes the value for other readers; None where
    the algorithm does not write the value.
    """

    fusion: str
    option: int
    written: Format | None


def fusion_eligibility(fusion: Layer, layers: Sequence[Layer], device: Device, policy: Policy,
                       refusal_reason: Refusal, taken_alone: bool
                       ) -> tuple[list[Algorithm], dict[str, str]]:
    """Returns the algorithms that may compute a fusion, and for each other algorithm that
    recognises the fusion the reason why it may not.

    layers: the layers that the fusion covers.
    refusal_reason: as in eligibility().
    taken_alone: whether the algorithm that the policy forces can compute one of these layers alone.
    """
    able, reasons = able_on(fusion.problem, device, refusal_reason, recognising(fusion))
    unchecked = uncheckable(fusion.problem) if has_jumps(fusion.problem) else None
    allowed = []
    for algorithm in able:
        reason = unchecked
        if not is_asked_for(algorithm, policy):
            reason = "is taken where it is asked for by its name"
        elif policy.only is not None and taken_alone and algorithm.name != policy.only:
            reason = f"{policy.only} is forced"
        elif other := forced_otherwise(fusion, algorithm, policy):
            reason = other
        elif policy.sparse_threshold is not None:
            above = {is_above(1 - layer.density, policy.sparse_threshold) for layer in layers
                     if layer.density is not None}
            if above - {not algorithm.dense}:
                reason = f"the threshold {policy.sparse_threshold:g} decided otherwise"
        if reason is None:
            allowed.append(algorithm)
        else:
            reasons[algorithm.name] = reason
    return allowed, reasons


def forced_otherwise(fusion: Layer, algorithm: Algorithm, policy: Policy) -> str:
    """Returns why the policy's `force` keeps an algorithm from a fusion: a layer of the fusion has
    to take another algorithm. Returns "" where `force` allows the algorithm."""
    return next((f"{policy.force[name]} is forced for {name}" for name in fusion.covers
                 if policy.force.get(name, algorithm.name) != algorithm.name), "")


def fusion_options(fusion: Layer, layers: Sequence[Layer], candidates: Sequence[Candidate]
                   ) -> Iterator[tuple[str, NodeOption, Candidate]]:
    """Yields the options of each layer of a fusion, each with the layer's name and the candidate
    that computes the whole fusion. A layer has one option for each combination of formats and
    precision, with the candidate that _fastest() returns for the combination."""
    read_inside = {name for layer in layers for name in layer.inputs}
    for number, candidate in enumerate(_fastest(candidates)):
        inputs, outputs = candidate.formats
        entries = dict(zip(fusion.inputs, inputs, strict=True))
        written = dict(zip(fusion.outputs, outputs, strict=True))

        def given(name: str, written: Mapping[str, Format] = written,
                  number: int = number) -> Format | FusionFormat:
            if name in written and name not in read_inside:
                return written[name]
            return FusionFormat(fusion.name, number, written.get(name))

        for index, layer in enumerate(layers):
            needs = tuple(entries[name] if name in entries else given(name)
                          for name in layer.inputs)
            yield layer.name, NodeOption(
                0.0 if index else candidate.cost, needs,
                tuple(given(name) for name in layer.outputs), of_fusion=True), candidate


def _fastest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns for each combination of formats and precision the first candidate whose time is
    within SLACK of the fastest."""
    groups: dict[tuple, list[Candidate]] = {}
    for candidate in candidates:
        key = (candidate.formats, candidate.variant.precision)
        groups.setdefault(key, []).append(candidate)
    return [next(candidate for candidate in group if candidate.cost <= (1 + SLACK) * min(
        other.cost for other in group)) for group in groups.values()]
