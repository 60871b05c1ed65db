"""The measured choice compared with baseline plans: whole programs, timed from end to end or read
from the cache.

The measured choice is made from the times of layers that ran alone. These contain neither what a
layer leaves in the cache for the next one nor the gaps between layers. Therefore the programs that
take one algorithm wherever they can, the baseline plans, are timed beside it as they run.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError, GossamerError, OutOfMemoryError, first_line
from gossamer.measure import Task, Timing, interleave
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.baseline_bounds import BaselineBounds
from gossamer.plan.choose.reasons import explained
from gossamer.plan.policy import EFFORTS, Effort, Policy
from gossamer.plan.program import Layer, Program, Step
from gossamer.plan.run.context import Context
from gossamer.plan.store.keys import identity, problem_key
from gossamer.plan.store.tuning_cache import candidate_key
from gossamer.plan.store.tuning_file import rounded
from gossamer.plan.tune.measures import Chosen, Further, Measures, Request
from gossamer.plan.tune.profile import COMPARING
from gossamer.plan.tune.tuner import Tuner

MEASURED = "measured choice"
_BUDGET_US = 5e5
"""Time that the samples of one program may take, in microseconds."""
_MOST_SAMPLES = 4
"""Largest multiple of the usual number of samples that is taken while it is not clear which program
is the fastest."""
_CLEARLY_SLOWER = 1.25
"""Ratio of the sums of the times of layers alone from which on a plan is not timed as a whole: what
layers leave in the cache for one another, and the gaps between them, change less than that."""
_SMALL_SHARE = 0.05
"""Share of the measured choice's time that layers take which are too few for a plan that differs in
them alone."""
_ABOUT_EQUAL = 1.01
"""Ratio of two medians up to which it does not matter which one is smaller."""


@dataclass(frozen=True)
class BaselinePlan:
    """A plan that takes one algorithm wherever that can be used, or, where `algorithm` is None, no
    algorithm that skips zeros, or with `floats` none on bits, or with `first_configs` the first
    configs of each algorithm only."""

    algorithm: str | None
    floats: bool = False
    first_configs: bool = False

    def policy(self, policy: Policy) -> Policy:
        """Returns a policy with the restriction that makes this plan."""
        if self.first_configs:
            return policy
        if self.floats:
            return replace(policy, floats_only=True)
        if self.algorithm is None:
            return replace(policy, dense_only=True)
        return replace(policy, only=self.algorithm)

    def __str__(self) -> str:
        if self.first_configs:
            return "the first configs of each algorithm"
        if self.floats:
            return "floats only"
        return ("dense algorithms only" if self.algorithm is None
                else f"{self.algorithm} wherever it can")


DENSE = BaselinePlan(None)
"""The baseline plan without algorithms that skip zeros."""
FLOATS = BaselinePlan(None, floats=True)
"""The baseline plan without algorithms on bits."""
FIRST_CONFIGS = BaselinePlan(None, first_configs=True)
"""The baseline plan of as many configs that work as _FIRST_OF says."""
_FIRST_OF = {"quick": EFFORTS["quick"], "normal": EFFORTS["quick"], "max": EFFORTS["normal"]}
"""The effort that has at first as many configs as are first ones, by the effort of a plan."""


@dataclass(frozen=True)
class EndToEnd:
    """The time of one execution of a program, with inputs and outputs on the device.

    timing: the time; None where the program does not run. cached: whether the time was read from
    the cache. failure: why the program does not run.
    """

    timing: Timing | None = None
    cached: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Comparison:
    """The outcome of comparing the measured choice with the baseline plans.

    program: the program to use. end_to_end: its time. why: the reason that is reported where its
    layers take slower candidates than the measured choice; "" for the measured choice itself.
    plans: one dict for each plan with the keys plan, median_us, p25_us, p75_us, outcome and
    is_taken, the measured choice first.
    """

    program: Program
    end_to_end: EndToEnd
    why: str
    plans: list[dict[str, Any]]


def compare(name: str, chosen: Program, make: Callable[[BaselinePlan, Measures], Program],
            device: Device, tuner: Tuner,
            note: Callable[[str], None] = lambda line: None) -> Comparison | None:
    """Times a network's measured choice and its baseline plans. The program to use is the fastest,
    or the measured choice where its quartiles touch those of the fastest.

    A baseline plan takes one algorithm wherever that can be used. There is one for each algorithm
    that could be used for a layer for which another could be used too, alone or for a region that
    has the layer, one that takes the dense algorithms only (DENSE), where a layer could skip
    zeros or not, and one that takes no algorithm on bits (FLOATS), where a layer could be computed
    on bits or not. Where the choice has later configs, there is one of the first configs of each
    algorithm (FIRST_CONFIGS): of more candidates the times of more happen to be too low, so that
    the choice among all may be slower as a whole. On the host the plan without bits is always
    timed: there bits and floats take nearly as long, and times of layers alone differ from those in
    a plan by more than that. A baseline plan that cannot be made or does not run is reported with
    the reason.

    make: called with a baseline plan and what measures layers, returns the plan's program.

    Returns None where there is nothing to compare: there are no baseline plans, or all have the
    measured choice's program.
    """
    programs = {MEASURED: chosen}
    failures = {}
    known, bounds = _KnownCandidates(tuner, chosen), BaselineBounds(chosen.measured)
    known_first = _KnownCandidates(tuner, chosen, _FIRST_OF[tuner.effort])
    taken_us = _steps_us(chosen)
    most_us = math.inf if tuner.everything else _CLEARLY_SLOWER * taken_us
    # where all steps are among the first, the choice among these is the same
    has_later = not all(known_first.has(step) for step in chosen.steps)
    for plan in [*_baseline_plans(chosen, device), *[FIRST_CONFIGS] * has_later]:
        is_timed = plan.floats and not device.compiles
        has_bound = not (plan.floats or plan.first_configs)
        least = bounds.least_us(plan.algorithm) if has_bound else 0.0
        if plan.algorithm is not None and not tuner.everything:
            names = bounds.layers_of(plan.algorithm)
            if names <= _computed_by(chosen, plan.algorithm):
                programs[str(plan)] = chosen
                continue
            share_us = _steps_us(chosen, names)
            if share_us < _SMALL_SHARE * taken_us:
                failures[str(plan)] = EndToEnd(
                    failure=f"not tried: it can compute layers that take {share_us:.1f} us of the "
                            f"measured choice's {taken_us:.1f} us")
                continue
        try:
            if least <= most_us:
                program = make(plan, known_first if plan.first_configs else known)
                least = _steps_us(program)
        except DeviceLostError:
            raise
        except (GossamerError, ValueError) as error:
            failures[str(plan)] = EndToEnd(failure=f"cannot be made: {first_line(error)}")
            continue
        if least <= most_us or is_timed:
            programs[str(plan)] = program
        else:
            failures[str(plan)] = EndToEnd(
                failure=f"not tried: its layers take at least {least:.1f} us alone, those of the "
                        f"measured choice {taken_us:.1f} us")
    keys = {plan: program_key(program, device) for plan, program in programs.items()}
    if len(set(keys.values())) == 1 and not failures:
        return None
    times = dict(zip(programs, end_to_end(name, list(programs.values()), device, tuner, note),
                     strict=True))
    taken = _fastest(times)
    first = {key: plan for plan, key in reversed(keys.items())}
    same = {plan: first[key] for plan, key in keys.items() if first[key] != plan}
    plans = [_row(plan, timed, times, taken, same.get(plan))
             for plan, timed in {**times, **failures}.items()]
    if taken == MEASURED:
        return Comparison(chosen, times[taken], "", plans)
    why = (f"the plan that takes {taken} "
           + ("runs, which the measured choice does not" if times[MEASURED].failure
              else "is faster as a whole"))
    return Comparison(explained(programs[taken], chosen, why), times[taken], why, plans)


def end_to_end(name: str, programs: Sequence[Program], device: Device, tuner: Tuner,
               note: Callable[[str], None] = lambda line: None) -> list[EndToEnd]:
    """Returns the time of each of a network's programs; equal programs are timed once.

    The times are read from the cache where all are there. Else all are timed anew together, with
    their samples interleaved, and stored, unless no program without a stored time runs. More
    samples are taken of the programs that may be the fastest. Programs for which there is no
    memory beside the others are timed after them.
    """
    keys = [program_key(program, device) for program in programs]
    distinct = dict(zip(keys, programs, strict=True))
    stored = {key: timing for key in distinct if (timing := tuner.cache.get_plan(key)) is not None}
    known = {key: EndToEnd(timing, cached=True) for key, timing in stored.items()}
    missing = {key: program for key, program in distinct.items() if key not in stored}
    waiting = {**missing, **distinct}
    while not missing.keys().isdisjoint(waiting):
        note(f"{name} as a whole: {len(waiting)} plans")
        with tuner.profile.stage(COMPARING):
            fresh, is_spoilt = _timed_together(name, waiting, missing, device, tuner)
        if not is_spoilt:
            tuner.cache.put_plans({key: (f"{name}, batch {waiting[key].batch}", timed.timing)
                                   for key, timed in fresh.items() if timed.timing is not None})
        known.update(fresh)
        waiting = {key: program for key, program in waiting.items() if key not in fresh}
        # contexts are in reference cycles, which keep their device memory
        gc.collect()
    return [known[key] for key in keys]


def program_key(program: Program, device: Device) -> str:
    """Returns 32 hexadecimal digits that identify what a program runs: problems, algorithms, their
    sources and libraries, configs, layouts, precisions, the order of steps, which of them copy
    nothing, and which step reads which value."""
    numbers: dict[str, int] = {}

    def value_numbers(values: Collection[str]) -> list[int]:
        return [numbers.setdefault(program.root(value), len(numbers)) for value in values]

    text = json.dumps([
        value_numbers(program.inputs.values()), value_numbers(program.constants),
        [[problem_key(step.problem), *candidate_key(step.algorithm, step.variant),
          identity(step.algorithm, step.device), step.device is device, step.in_place,
          value_numbers(step.inputs), value_numbers(step.outputs)] for step in program.steps],
        value_numbers(program.outputs.values())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _KnownCandidates(Measures):
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
        return asked if layer.covers or any(map(_usable, asked)) else candidates

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


def _baseline_plans(chosen: Program, device: Device) -> list[BaselinePlan]:
    """Returns the plans of the algorithms that could be used for a layer for which another could
    be used too; before them DENSE, where a layer could skip zeros or not, and FLOATS, where a layer
    could be computed on bits or not."""
    usable: dict[str, dict[str, bool]] = {}
    on_bits: dict[str, set[bool]] = {}
    for known in chosen.measured:
        if known.device is device:
            dense = {candidate.algorithm.name: candidate.algorithm.dense
                     for candidate in known.candidates if _usable(candidate)}
            exact = {candidate.algorithm.exact for candidate in known.candidates
                     if _usable(candidate)}
            for name in known.layer.computes:
                usable.setdefault(name, {}).update(dense)
                on_bits.setdefault(name, set()).update(exact)
    several = [dense for dense in usable.values() if len(dense) > 1]
    skips_zeros = any(len(set(dense.values())) == 2 for dense in several)
    names = dict.fromkeys(name for dense in several for name in dense)
    is_either = any(len(kinds) == 2 for kinds in on_bits.values())
    return ([DENSE] * skips_zeros + [FLOATS] * is_either
            + [BaselinePlan(name) for name in names])


def _first_configs(candidates: Sequence[Candidate], effort: Effort) -> list[Candidate]:
    """Returns the candidates of the first configs of each algorithm of which one works, as many as
    an effort has at first."""
    first: dict[Algorithm, set[str]] = {}
    for candidate in filter(_usable, candidates):
        most = effort.configs_of(candidate.algorithm)
        configs = first.setdefault(candidate.algorithm, set())
        if most is None or len(configs) < most:
            configs.add(candidate.variant.config_text)
    return [candidate for candidate in candidates
            if candidate.variant.config_text in first.get(candidate.algorithm, ())]


def _steps_us(program: Program, names: set[str] | None = None) -> float:
    """Returns the sum of the times that a program's steps take alone. names: those of layers; only
    steps that compute one of them count."""
    return sum(step.candidate_of(step.candidates).cost for step in program.steps
               if names is None or not names.isdisjoint(step.layer.computes))


def _computed_by(program: Program, algorithm: str) -> set[str]:
    """Returns the names of the layers that an algorithm computes in a program."""
    return {name for step in program.steps if step.algorithm.name == algorithm
            for name in step.layer.computes}


def _usable(candidate: Candidate) -> bool:
    return math.isfinite(candidate.cost)


def _timed_together(name: str, programs: Mapping[str, Program], missing: Collection[str],
                    device: Device, tuner: Tuner) -> tuple[dict[str, EndToEnd], bool]:
    """Returns the times of the programs that are in memory at once with the reasons of those that
    do not run, and whether others wanted the processors meanwhile. A program is left out where it
    did not get memory but may get it without the others. Those whose times are missing come first;
    where none of them runs, no other is timed."""
    results: dict[str, EndToEnd] = {}
    tasks: dict[str, Task] = {}
    for key, program in programs.items():
        if key not in missing and not tasks:
            break
        try:
            tasks[key] = Context(name, program, device).ready()
            device.synchronize()
        except DeviceLostError:
            raise
        except Exception as error:  # a program may fail in any way; its failure is reported
            tasks.pop(key, None)
            if not (tasks and isinstance(error, (OutOfMemoryError, MemoryError))):
                results[key] = EndToEnd(failure=f"does not run: {first_line(error)}")
    if not tasks:
        return results, False
    timings, is_spoilt = tuner.contention.undisturbed(device, lambda: _timed(
        tasks, tuner.samples, tuner.plans_s))
    results.update({key: EndToEnd(rounded(timing)) for key, timing in timings.items()})
    return results, is_spoilt or tuner.contention.others > 0


def _timed(tasks: Mapping[str, Task], samples: int, most_s: float) -> dict[str, Timing]:
    """Returns the time of each task. Those that may be the fastest are timed again, with twice as
    many samples each time, until it is clear which is the fastest, or these seconds are over."""
    timings: dict[str, Timing] = {}
    pending, factor, start = list(tasks), 1, time.monotonic()
    while pending and factor <= _MOST_SAMPLES and time.monotonic() - start < most_s:
        fresh = interleave([tasks[key] for key in pending], repeats=factor * samples,
                           sample_us=1e4, budget_us=factor * _BUDGET_US * len(pending))
        timings.update(zip(pending, fresh, strict=True))
        pending, factor = _unclear(timings), 2 * factor
    return timings


def _unclear(timings: Mapping[str, Timing]) -> list[str]:
    """Returns the fastest and all whose quartiles touch its quartiles; none where their medians
    are about equal."""
    best = min(timings.values(), key=lambda timing: timing.median_us)
    near = [key for key, timing in timings.items() if timing.p25_us <= best.p75_us]
    about_equal = all(timings[key].median_us <= _ABOUT_EQUAL * best.median_us for key in near)
    return [] if about_equal else near


def _fastest(times: Mapping[str, EndToEnd]) -> str:
    """Returns the plan to use: a baseline plan where it is faster than the measured choice by more
    than the spread of their samples."""
    timings = {plan: timed.timing for plan, timed in times.items() if timed.timing is not None}
    if not timings:
        return MEASURED
    fastest = min(timings, key=lambda plan: timings[plan].median_us)
    if MEASURED in timings and timings[fastest].p75_us >= timings[MEASURED].p25_us:
        return MEASURED
    return fastest


def _row(plan: str, time: EndToEnd, times: Mapping[str, EndToEnd], taken: str,
         same: str | None) -> dict[str, Any]:
    """Returns the row of a plan in the report. same: an earlier plan with the same program."""
    timing, best = time.timing, times[taken].timing
    row = {"plan": plan, "median_us": None, "p25_us": None, "p75_us": None,
           "outcome": time.failure, "is_taken": plan == taken}
    if timing is None or best is None:
        return row
    if plan == taken:
        medians = [time.timing.median_us for time in times.values() if time.timing is not None]
        outcome = ("taken: the fastest" if timing.median_us <= min(medians) else
                   "taken: no other is faster by more than the spread")
    elif same is not None:
        outcome = f"the same as {same}"
    else:
        outcome = f"{timing.median_us:.1f} us against {best.median_us:.1f} us"
        if timing.median_us < best.median_us:
            outcome += ", within the spread: the measured choice stays"
    return {**row, "median_us": timing.median_us, "p25_us": timing.p25_us,
            "p75_us": timing.p75_us, "outcome": outcome}
