"""The measured choice against the best plan of each algorithm: whole programs, timed from end to
end or read from the cache.

The choice adds up layers that were timed alone. What a layer leaves in the cache for the next, and
the gaps between them, it does not know; so the plans that take one algorithm wherever they can are
timed as they run, beside it.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import GossamerError, OutOfMemoryError, first_line
from gossamer.measure import Task, Timing, interleave
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.weights import Weights
from gossamer.plan.program import Layer, Program, Step
from gossamer.plan.report.report import DENSE, why_not
from gossamer.plan.run.context import Context
from gossamer.plan.store.keys import identity, problem_key
from gossamer.plan.store.tuning_cache import candidate_key
from gossamer.plan.store.tuning_file import rounded
from gossamer.plan.tune.tuner import Candidate, Tuner

MEASURED = "measured choice"
_BUDGET_US = 5e5
"""Time for the samples of one program."""
_MOST_SAMPLES = 4
"""Times as many are taken where the fastest program is not clear from the first ones."""
_ALIKE = 1.01
"""The ratio of two medians up to which it does not matter which is the smaller."""


@dataclass(frozen=True)
class EndToEnd:
    """The time of one execution of a program, inputs and outputs on the device, and whether it
    was known from before; or, without a time, why the program does not run."""

    timing: Timing | None = None
    cached: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Comparison:
    """program: the one to keep, `whole` its time. why: for what its layers do not take although it
    is faster there; "" for the measured choice. plans: one dict each, with plan, median_us,
    p25_us, p75_us and outcome, the measured choice first."""

    program: Program
    whole: EndToEnd
    why: str
    plans: list[dict[str, Any]]


def compare(name: str, chosen: Program, make: Callable[[str, Tuner], Program], device: Device,
            tuner: Tuner, note: Callable[[str], None] = lambda line: None) -> Comparison | None:
    """Times a network's measured choice and the program of each algorithm. LruCache is the fastest, or
    the measured choice where its quartiles touch those of the fastest.

    A algorithm is an algorithm that could be used for a layer for which another could be too, taken
    wherever it can be; and all that skip no zeros together (DENSE), where that is a choice.
    make(algorithm, tuner) gives its program, from the tuner it is given. A algorithm without a program
    that runs is named with the reason. None where there is nothing to compare: no baseline plans, or
    all with the measured choice's program.
    """
    programs = {MEASURED: chosen}
    failures = {}
    known = _Known(tuner, chosen)
    for algorithm in _forced_algorithms(chosen, device):
        plan = algorithm if algorithm == DENSE else f"{algorithm} wherever it can"
        try:
            programs[plan] = make(algorithm, known)  # type: ignore[arg-type]
        except (GossamerError, ValueError) as error:
            failures[plan] = EndToEnd(failure=f"cannot be made: {first_line(error)}")
    keys = {plan: program_key(program, device) for plan, program in programs.items()}
    if len(set(keys.values())) == 1 and not failures:
        return None
    times = dict(zip(programs, end_to_end(name, list(programs.values()), device, tuner, note),
                     strict=True))
    taken = _fastest(times)
    first = {key: plan for plan, key in reversed(keys.items())}
    same = {plan: first[key] for plan, key in keys.items() if first[key] != plan}
    plans = [_row(plan, whole, times, taken, same.get(plan))
             for plan, whole in {**times, **failures}.items()]
    if taken == MEASURED:
        return Comparison(chosen, times[taken], "", plans)
    why = (f"the plan that takes {taken} "
           + ("runs, which the measured choice does not" if times[MEASURED].failure
              else "is faster as a whole"))
    return Comparison(_explained(programs[taken], chosen, why), times[taken], why, plans)


def end_to_end(name: str, programs: Sequence[Program], device: Device, tuner: Tuner,
               note: Callable[[str], None] = lambda line: None) -> list[EndToEnd]:
    """What is known of each of a network's programs, equal ones timed once: from the cache where
    all times are there; else all are timed anew together, samples interleaved, and kept, unless
    none of those without a time runs. More samples are taken of those that may be the fastest.

    Those for which there is no memory beside the others are timed after them.
    """
    keys = [program_key(program, device) for program in programs]
    distinct = dict(zip(keys, programs, strict=True))
    stored = {key: timing for key in distinct if (timing := tuner.cache.get_plan(key)) is not None}
    known = {key: EndToEnd(timing, cached=True) for key, timing in stored.items()}
    missing = {key: program for key, program in distinct.items() if key not in stored}
    waiting = {**missing, **distinct}
    while not missing.keys().isdisjoint(waiting):
        note(f"{name} as a whole: {len(waiting)} plans")
        fresh = _together(name, waiting, missing, device, tuner.samples)
        tuner.cache.put_plans({key: (f"{name}, batch {waiting[key].batch}", whole.timing)
                               for key, whole in fresh.items() if whole.timing is not None})
        known.update(fresh)
        waiting = {key: program for key, program in waiting.items() if key not in fresh}
        # contexts hold themselves in cycles, and their memory with them
        gc.collect()
    return [known[key] for key in keys]


def program_key(program: Program, device: Device) -> str:
    """32 hexadecimal digits that change with anything that a program runs: problems, algorithms,
    their sources and libraries, configs, layouts, precisions, order, and what reads what."""
    numbers: dict[str, int] = {}

    def numbered(values: Collection[str]) -> list[int]:
        return [numbers.setdefault(program.root(value), len(numbers)) for value in values]

    text = json.dumps([
        numbered(program.inputs.values()), numbered(program.constants),
        [[problem_key(step.problem), *candidate_key(step.algorithm, step.variant),
          identity(step.algorithm, step.device), step.device is device, numbered(step.inputs),
          numbered(step.outputs)] for step in program.steps],
        numbered(program.outputs.values())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _Known:
    """A tuner to choose by that has the candidates of the layers already, and which of them may
    not be taken there, so that only changes of layout are measured. Where none of an algorithm
    can be used, it has those of all."""

    def __init__(self, tuner: Tuner, chosen: Program) -> None:
        self.precision = tuner.precision
        self.refusal = tuner.refusal
        self._tuner = tuner
        # by name: of two layers with one problem the tolerance may hold back one
        self._trials = {(step.layer.name, step.device.name): step.candidates
                        for step in chosen.steps if not step.layer.inserted}

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> Sequence[Candidate]:
        candidates = self._trials.get((layer.name, device.name))
        if candidates is None:
            return self._tuner.measure(layer, algorithms, device)
        asked = [candidate for candidate in candidates if candidate.algorithm in algorithms]
        return asked if any(map(_usable, asked)) else candidates

    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        return self._tuner.verified(layer, candidate, device)


def _forced_algorithms(chosen: Program, device: Device) -> list[str]:
    """Algorithms that could be used for a layer for which another could be too; DENSE before them
    where a layer could skip zeros or not."""
    names: dict[str, bool] = {}
    for step in chosen.steps:
        usable = {candidate.algorithm.name: candidate.algorithm.dense for candidate in step.candidates
                  if _usable(candidate)}
        if len(usable) > 1 and step.device is device and not step.layer.inserted:
            names.update(usable)
            if len(set(usable.values())) == 2:
                names.setdefault(DENSE, True)
    return sorted(names, key=lambda name: name != DENSE)


def _usable(candidate: Candidate) -> bool:
    return math.isfinite(candidate.cost)


def _together(name: str, programs: Mapping[str, Program], missing: Collection[str],
              device: Device, samples: int) -> dict[str, EndToEnd]:
    """Times of all that are in memory at once, with the reasons of those that do not run. None of
    a program that may find memory without the others; nor of any when none that is missing, which
    come first, runs."""
    results: dict[str, EndToEnd] = {}
    tasks: dict[str, Task] = {}
    weights_of = own_weights()
    for key, program in programs.items():
        if key not in missing and not tasks:
            break
        try:
            tasks[key] = Context(name, program, device, weights_of).ready()
            device.synchronize()
        except Exception as error:  # a program may fail in any way; it is named and left
            tasks.pop(key, None)
            if not (tasks and isinstance(error, (OutOfMemoryError, MemoryError))):
                results[key] = EndToEnd(failure=f"does not run: {first_line(error)}")
    if tasks:
        results.update({key: EndToEnd(rounded(timing))
                        for key, timing in _timed(tasks, samples).items()})
    return results


def own_weights() -> Callable[[Step], Weights]:
    """Gives contexts each step's constants, packed once for all of them and gone with them."""
    weights: dict[tuple[str, str], Weights] = {}

    def weights_of(step: Step) -> Weights:
        key = (step.layer.name, step.device.name)
        return weights.setdefault(key, Weights(step.layer.weights, step.device, step.layer.name))

    return weights_of


def _timed(tasks: Mapping[str, Task], samples: int) -> dict[str, Timing]:
    """Those that may be the fastest are timed again, with twice as many samples each time, until
    it is clear which is."""
    timings: dict[str, Timing] = {}
    again, times = list(tasks), 1
    while again and times <= _MOST_SAMPLES:
        taken = interleave([tasks[key] for key in again], repeats=times * samples, sample_us=2e4,
                           budget_us=times * _BUDGET_US * len(again))
        timings.update(zip(again, taken, strict=True))
        again, times = _unclear(timings), 2 * times
    return timings


def _unclear(timings: Mapping[str, Timing]) -> list[str]:
    """The fastest and all whose quartiles touch its own; none where these are alike."""
    best = min(timings.values(), key=lambda timing: timing.median_us)
    near = [key for key, timing in timings.items() if timing.p25_us <= best.p75_us]
    alike = all(timings[key].median_us <= _ALIKE * best.median_us for key in near)
    return [] if alike else near


def _fastest(times: Mapping[str, EndToEnd]) -> str:
    """The plan to take: another than the measured choice where it is faster beyond the spread."""
    timings = {plan: whole.timing for plan, whole in times.items() if whole.timing is not None}
    if not timings:
        return MEASURED
    fastest = min(timings, key=lambda plan: timings[plan].median_us)
    if MEASURED in timings and timings[fastest].p75_us >= timings[MEASURED].p25_us:
        return MEASURED
    return fastest


def _row(plan: str, whole: EndToEnd, times: Mapping[str, EndToEnd], taken: str,
         same: str | None) -> dict[str, Any]:
    """same: an earlier plan with the same program."""
    timing, best = whole.timing, times[taken].timing
    row = {"plan": plan, "median_us": None, "p25_us": None, "p75_us": None,
           "outcome": whole.failure}
    if timing is None or best is None:
        return row
    if plan == taken:
        others = [each.timing.median_us for each in times.values() if each.timing is not None]
        outcome = ("taken: the fastest" if timing.median_us <= min(others) else
                   "taken: no other is faster by more than the spread")
    elif same is not None:
        outcome = f"the same as {same}"
    else:
        outcome = f"{timing.median_us:.1f} us against {best.median_us:.1f} us"
        if timing.median_us < best.median_us:
            outcome += ", within the spread: the measured choice stays"
    return {"plan": plan, "median_us": timing.median_us, "p25_us": timing.p25_us,
            "p75_us": timing.p75_us, "outcome": outcome}


def _explained(program: Program, chosen: Program, why: str) -> Program:
    """A algorithm's program whose layers have all candidates, and why each was not taken."""
    measured = {step.layer.name: step for step in chosen.steps if not step.layer.inserted}
    return replace(program, steps=[
        step if step.layer.inserted else _with_reasons(step, measured[step.layer.name], why)
        for step in program.steps])


def _with_reasons(step: Step, measured: Step, why: str) -> Step:
    (taken,) = [candidate for candidate in measured.candidates
                if (candidate.algorithm, candidate.variant) == (step.algorithm, step.variant)]
    tried: dict[str, list[Candidate]] = {}
    for candidate in measured.candidates:
        tried.setdefault(candidate.algorithm.name, []).append(candidate)
    rejected = {name: reason for name, reason in measured.rejected.items() if name not in tried}
    for name, candidates in tried.items():
        if name != step.algorithm.name:
            rejected[name] = why_not(min(candidates, key=lambda candidate: candidate.cost), taken, why)
    return replace(step, rejected=rejected, candidates=measured.candidates)
