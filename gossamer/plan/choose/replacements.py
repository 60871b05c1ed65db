"""Candidates in place of those of a program, with which the program is faster as a whole.

A layer that runs alone shows neither what it leaves in the cache for the next one, nor how early
the next one can begin: kernels of a CUDA graph overlap where the first leaves room on the
multiprocessors. So of candidates that take about as long alone, the slower one may be better. They
are tried in the program, one after another, and those that help are taken together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.plan_times import end_to_end, is_clearly_faster
from gossamer.plan.program import Program, Step
from gossamer.plan.store.keys import problem_key
from gossamer.plan.store.tuning_cache import CandidateKey, candidate_key
from gossamer.plan.tune.measures import Chosen
from gossamer.plan.tune.tuner import Tuner

_NEIGHBOURS_US = 1.0
"""Microseconds by which the steps beside it may change the time of a step. On an H200 candidates
took up to 1.4 us less in a network than alone, compared with another one."""

Rebuild = Callable[[Program, Mapping[str, Candidate]], Program]
"""A function that returns a program with other candidates, of the same formats, for the steps of
some layers, by the names of these."""


@dataclass(frozen=True)
class _Replacement:
    """Other candidates for the steps that compute the same problem in the same way.

    steps: these steps. candidates: the candidate of each. saving_us: microseconds that they may
    save at most.
    """

    steps: Sequence[Step]
    candidates: Sequence[Candidate]
    saving_us: float

    @property
    def by_layer(self) -> dict[str, Candidate]:
        """The candidates by the names of the layers."""
        return {step.layer.name: candidate
                for step, candidate in zip(self.steps, self.candidates, strict=True)}

    @property
    def chosen(self) -> list[Chosen]:
        """The candidates with the layers and devices that they are for."""
        return [(step.layer, candidate, step.device)
                for step, candidate in zip(self.steps, self.candidates, strict=True)]


def better_candidates(name: str, program: Program, rebuild: Rebuild, device: Device, tuner: Tuner,
                      note: Callable[[str], None] = lambda line: None) -> dict[str, Candidate]:
    """Returns the candidates that make a network's program faster as a whole when the steps that
    compute the same problem take them and nothing else changes, by the names of layers.

    Processors have none: their steps take too long for that to matter. As many are tried as the
    effort says, first those that may save most by what they took alone.
    """
    if device.on_processors or program.host_steps(device) or tuner.is_over:
        return {}
    replacements = _replacements(program, device, tuner)
    if not replacements:
        return {}
    programs = [program, *(rebuild(program, replacement.by_layer) for replacement in replacements)]
    before, *times = end_to_end(name, programs, device, tuner, note, brief=True)
    better: dict[str, tuple[float, _Replacement]] = {}
    for replacement, time in zip(replacements, times, strict=True):
        first = replacement.steps[0].layer.name
        if time.timing is not None and is_clearly_faster(time, before) and (
                first not in better or time.timing.median_us < better[first][0]):
            better[first] = time.timing.median_us, replacement
    tuner.verify(each for _, replacement in better.values() for each in replacement.chosen)
    return {layer: candidate for _, replacement in better.values()
            if all(tuner.verified(*each).is_usable for each in replacement.chosen)
            for layer, candidate in replacement.by_layer.items()}


def _replacements(program: Program, device: Device, tuner: Tuner) -> list[_Replacement]:
    """Returns as many replacements as the effort says, those first that may save most."""
    measured = {known.layer.name: known.candidates for known in program.measured}
    alike: dict[tuple[str, CandidateKey], list[Step]] = {}
    for step in program.steps:
        if step.device is device and step.layer.name in measured and not step.in_place:
            key = problem_key(step.problem), candidate_key(step.algorithm, step.variant)
            alike.setdefault(key, []).append(step)
    taken = {step.layer.name: step.candidate_of(measured[step.layer.name])
             for steps in alike.values() for step in steps}
    least_us = tuner.replacement_gain * sum(candidate.cost for candidate in taken.values())
    found = [replacement for steps in alike.values()
             for replacement in _of_steps(steps, taken, measured)
             if replacement.saving_us > least_us]
    return sorted(found, key=lambda replacement: -replacement.saving_us)[:tuner.replacements]


def _of_steps(steps: Sequence[Step], taken: Mapping[str, Candidate],
              measured: Mapping[str, Iterable[Candidate]]) -> Iterator[_Replacement]:
    """Yields a replacement for each candidate that all these steps could have in the same
    formats."""
    before = [taken[step.layer.name] for step in steps]
    others = [{candidate_key(candidate.algorithm, candidate.variant): candidate
               for candidate in measured[step.layer.name]
               if candidate.is_usable and candidate.formats == old.formats}
              for step, old in zip(steps, before, strict=True)]
    own = candidate_key(steps[0].algorithm, steps[0].variant)
    for key in others[0]:
        if key != own and all(key in of_step for of_step in others):
            candidates = [of_step[key] for of_step in others]
            yield _Replacement(steps, candidates, sum(
                _NEIGHBOURS_US + old.cost - new.cost
                for old, new in zip(before, candidates, strict=True)))
