"""The measured choice compared with baseline plans: whole programs, timed from end to end or read
from the cache.

The measured choice is made from the times of layers that ran alone. These contain neither what a
layer leaves in the cache for the next one nor the gaps between layers. Therefore the programs that
take one algorithm wherever they can, the baseline plans, are timed beside it as they run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError, GossamerError, first_line
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.baseline_bounds import BaselineBounds
from gossamer.plan.choose.known_candidates import KnownCandidates
from gossamer.plan.choose.plan_times import (
    EndToEnd,
    end_to_end,
    is_clearly_faster,
    program_key,
)
from gossamer.plan.choose.reasons import explained
from gossamer.plan.choose.replacements import Rebuild, better_candidates
from gossamer.plan.policy import EFFORTS, Policy
from gossamer.plan.program import Program
from gossamer.plan.store.tuning_file import counted
from gossamer.plan.tune.measures import Measures
from gossamer.plan.tune.tuner import Tuner

MEASURED = "measured choice"
_CLEARLY_SLOWER = 1.25
"""Ratio of the sums of the times of layers alone from which on a plan is not timed as a whole: what
layers leave in the cache for one another, and the gaps between them, change less than that."""
_SMALL_SHARE = 0.05
"""Share of the measured choice's time that layers take which are too few for a plan that differs in
them alone."""


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


@dataclass(frozen=True)
class PlanMakers:
    """Functions that make the programs of one network and batch size.

    baseline: called with a baseline plan and what measures layers, returns the plan's program.
    rebuild: returns a program with other candidates for some layers. accurate: returns a program,
    or raises GossamerError where it is less accurate than the user allows.
    """

    baseline: Callable[[BaselinePlan, Measures], Program]
    rebuild: Rebuild
    accurate: Callable[[Program], Program]


def compare(name: str, chosen: Program, makers: PlanMakers, device: Device, tuner: Tuner,
            note: Callable[[str], None] = lambda line: None) -> Comparison | None:
    """Times a network's measured choice and its baseline plans. The program to use is the fastest,
    or the measured choice where its quartiles touch those of the fastest; or that program with
    other candidates for some layers, where these make it faster as a whole (see replacements.py).

    A baseline plan takes one algorithm wherever that can be used. There is one for each algorithm
    that could be used for a layer for which another could be used too, alone or for a region that
    has the layer, one that takes the dense algorithms only (DENSE), where a layer could skip
    zeros or not, and one that takes no algorithm on bits (FLOATS), where a layer could be computed
    on bits or not. Where the choice has later configs, there is one of the first configs of each
    algorithm (FIRST_CONFIGS): of more candidates the times of more happen to be too low, so that
    the choice among all may be slower as a whole. On the host the plan without bits is always
    timed: there bits and floats take nearly as long, and times of layers alone differ from those in
    a plan by more than that. A plan that cannot be made or does not run is reported with the
    reason.

    Returns None where there is nothing to compare: all plans have the measured choice's program.
    """
    programs, failures = _programs(chosen, makers, device, tuner)
    times: dict[str, EndToEnd] = {}

    def take_times(plans: Collection[str]) -> None:
        of_plans = [programs[plan] for plan in plans]
        times.update(zip(plans, end_to_end(name, of_plans, device, tuner, note), strict=True))

    keys = {plan: program_key(program, device) for plan, program in programs.items()}
    if failures or len(set(keys.values())) > 1:
        take_times(programs)
    taken = _fastest(times)
    others: dict[str, Candidate] = {}
    if taken not in times or times[taken].timing is not None:
        before = replace(programs[taken], measured=chosen.measured)
        others = better_candidates(name, before, makers.rebuild, device, tuner, note)
    if others:
        plan = (f"{taken}, but " if taken != MEASURED else "") + (
            f"other candidates for {counted(len(others), 'layer')}")
        changed = _made(partial(makers.rebuild, before, others), makers)
        if isinstance(changed, EndToEnd):
            failures[plan] = changed
        else:
            programs[plan], keys[plan] = changed, program_key(changed, device)
            take_times([taken, plan])
            if is_clearly_faster(times[plan], times[taken]):
                taken = plan
    if not times:
        return None
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


def _made(make: Callable[[], Program], makers: PlanMakers) -> Program | EndToEnd:
    """Returns a program that is as accurate as the user wants, or why there is none."""
    try:
        return makers.accurate(make())
    except DeviceLostError:
        raise
    except (GossamerError, ValueError) as error:
        return EndToEnd(failure=f"cannot be made: {first_line(error)}")


def _programs(chosen: Program, makers: PlanMakers, device: Device,
              tuner: Tuner) -> tuple[dict[str, Program], dict[str, EndToEnd]]:
    """Returns the programs of the measured choice and of the baseline plans that are to be timed,
    and why others are not, by plan."""
    programs = {MEASURED: chosen}
    failures: dict[str, EndToEnd] = {}
    known, bounds = KnownCandidates(tuner, chosen), BaselineBounds(chosen.measured)
    known_first = KnownCandidates(tuner, chosen, _FIRST_OF[tuner.effort])
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
        if least <= most_us:
            made = _made(partial(makers.baseline, plan,
                                 known_first if plan.first_configs else known), makers)
            if isinstance(made, EndToEnd):
                failures[str(plan)] = made
                continue
            program, least = made, _steps_us(made)
        if least <= most_us or is_timed:
            programs[str(plan)] = program
        else:
            failures[str(plan)] = EndToEnd(
                failure=f"not tried: its layers take at least {least:.1f} us alone, those of the "
                        f"measured choice {taken_us:.1f} us")
    return programs, failures


def _baseline_plans(chosen: Program, device: Device) -> list[BaselinePlan]:
    """Returns the plans of the algorithms that could be used for a layer for which another could
    be used too; before them DENSE, where a layer could skip zeros or not, and FLOATS, where a layer
    could be computed on bits or not."""
    usable: dict[str, dict[str, bool]] = {}
    on_bits: dict[str, set[bool]] = {}
    for known in chosen.measured:
        if known.device is device:
            dense = {candidate.algorithm.name: candidate.algorithm.dense
                     for candidate in known.candidates if candidate.is_usable}
            exact = {candidate.algorithm.exact for candidate in known.candidates
                     if candidate.is_usable}
            for name in known.layer.computes:
                usable.setdefault(name, {}).update(dense)
                on_bits.setdefault(name, set()).update(exact)
    several = [dense for dense in usable.values() if len(dense) > 1]
    skips_zeros = any(len(set(dense.values())) == 2 for dense in several)
    names = dict.fromkeys(name for dense in several for name in dense)
    is_either = any(len(kinds) == 2 for kinds in on_bits.values())
    return ([DENSE] * skips_zeros + [FLOATS] * is_either
            + [BaselinePlan(name) for name in names])


def _steps_us(program: Program, names: set[str] | None = None) -> float:
    """Returns the sum of the times that a program's steps take alone. names: those of layers; only
    steps that compute one of them count."""
    return sum(step.candidate_of(step.candidates).cost for step in program.steps
               if names is None or not names.isdisjoint(step.layer.computes))


def _computed_by(program: Program, algorithm: str) -> set[str]:
    """Returns the names of the layers that an algorithm computes in a program."""
    return {name for step in program.steps if step.algorithm.name == algorithm
            for name in step.layer.computes}


def _fastest(times: Mapping[str, EndToEnd]) -> str:
    """Returns the plan to use: a baseline plan where it is clearly faster than the measured choice,
    or that does not run."""
    timings = {plan: timed.timing for plan, timed in times.items() if timed.timing is not None}
    if not timings:
        return MEASURED
    fastest = min(timings, key=lambda plan: timings[plan].median_us)
    if MEASURED in timings and not is_clearly_faster(times[fastest], times[MEASURED]):
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
