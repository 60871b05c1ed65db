"""The candidates that were requested on a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.plan.measurement import CandidateKey
from gossamer.plan.tune.layer_times import CandidateGroup, LayerTimes
from gossamer.plan.tune.measures import Request

ListedCandidates = dict[Problem, dict[CandidateKey, tuple[Algorithm, Variant]]]
"""Candidates by the problem of their group, and by their keys."""


@dataclass(eq=False)
class Work:
    """The candidates that were requested on a device: groups of candidates by the problem under
    which their times are stored, and the keys of each; the times of each layer's problem; and the
    candidates that the plan without measurements takes."""

    requests: list[Request] = field(default_factory=list)
    groups: dict[Problem, CandidateGroup] = field(default_factory=dict)
    keys: dict[Problem, set[CandidateKey]] = field(default_factory=dict)
    times: dict[Problem, LayerTimes] = field(default_factory=dict)
    required: set[tuple[Problem, CandidateKey]] = field(default_factory=set)

    def relate_regions(self) -> None:
        """Lets regions and those of their layers that are measured together with them know of each
        other."""
        requests = {request.layer.name: request for request in self.requests}
        times_of = {name: self.times[request.problem] for name, request in requests.items()}
        covering: dict[str, list[LayerTimes]] = {}
        for name, request in requests.items():
            covers = request.layer.covers
            if covers and all(part in times_of for part in covers):
                times_of[name].parts = [times_of[part] for part in covers]
                for part in covers:
                    covering.setdefault(part, []).append(times_of[name])
        for times in self.times.values():
            times.covered_by.clear()
            times.bounds.clear()
        for name, request in requests.items():
            if covering and not request.layer.covers:
                times_of[name].covered_by.append(covering.get(name, ()))
