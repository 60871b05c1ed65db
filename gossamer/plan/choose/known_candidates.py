"""The candidates that were measured for a program, as those of other programs of the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.plan.candidate import Candidate
from gossamer.plan.policy import Effort
from gossamer.plan.program import Layer, Program, Step
from gossamer.plan.tune.measures import Chosen, Further, Measures, Request
from gossamer.plan.tune.tuner import Tuner


class KnownCandidates(Measures):
    """Returns for a program's layers and regions the candidates that were measured for them, with
    those that are excluded there, so that only changes of format are measured. Where no candidate
    of the algorithms that are asked for can compute a layer, it returns those of all algorithms.

    within: an effort; as many configs of each algorithm as it has at first are returned only.
    """

    def __init__(self, tuner: Tuner, chosen: Program, within: Effort | None = None) -> None:
        self.precision = tuner.precision
        self._tuner = tuner
        # by layer, not by problem: the tolerance may exclude candidates of one layer, and not of
        # another with the same problem
        self._candidates = {(known.layer.name, known.device.name): known.candidates
                            for known in chosen.measured}
        if within is not None:
            self._candidates = {key: _first_configs(candidates, within)
                                for key, candidates in self._candidates.items()}

    def has(self, step: Step) -> bool:
        """Returns whether what computes a step is among the candidates, or none are known."""
        known = self._candidates.get((step.layer.name, step.device.name))
        return known is None or any(
            (candidate.algorithm, candidate.variant) == (step.algorithm, step.variant)
            for candidate in known)

    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        return self._tuner.refusal_reason(algorithm, problem, device)

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> Sequence[Candidate]:
        candidates = self._candidates.get((layer.name, device.name))
        if candidates is None:
            return self._tuner.measure(layer, algorithms, device)
        asked = [candidate for candidate in candidates if candidate.algorithm in algorithms]
        can = layer.covers or any(candidate.is_usable for candidate in asked)
        return asked if can else candidates

    def list_candidates(self, layers: Iterable[Layer], device: Device) -> bool:
        """Returns at once, since the candidates are known."""
        return False

    def measure_all(self, requests: Sequence[Request], further: Sequence[Further] = ()) -> None:
        def unknown(each: Further) -> Further:
            return Further(each.when, lambda best_us: self._unknown(each.requests(best_us)))

        self._tuner.measure_all(self._unknown(requests), list(map(unknown, further)))

    def _unknown(self, requests: Sequence[Request]) -> list[Request]:
        """Returns the requests of layers whose candidates are not known."""
        return [request for request in requests
                if (request.layer.name, request.device.name) not in self._candidates]

    def conversion_us(self, problem: Problem, device: Device) -> float | None:
        return self._tuner.conversion_us(problem, device)

    def verify(self, chosen: Iterable[Chosen]) -> None:
        self._tuner.verify(chosen)

    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        return self._tuner.verified(layer, candidate, device)


def _first_configs(candidates: Sequence[Candidate], effort: Effort) -> list[Candidate]:
    """Returns the candidates of the first configs of each algorithm of which one works, as many as
    an effort has at first."""
    first: dict[Algorithm, set[str]] = {}
    for candidate in (each for each in candidates if each.is_usable):
        most = effort.configs_of(candidate.algorithm)
        configs = first.setdefault(candidate.algorithm, set())
        if most is None or len(configs) < most:
            configs.add(candidate.variant.config_text)
    return [candidate for candidate in candidates
            if candidate.variant.config_text in first.get(candidate.algorithm, ())]
