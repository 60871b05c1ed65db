"""Refines a whole plan: times the cheapest assignment and other assignments as whole programs, and
chooses the fastest.

The cheapest assignment is made from the times of layers that ran alone. These times do not show
which data a layer leaves in the cache for the next layer, how early the next layer can begin, and
the gaps between layers. So other assignments are tried: some options are fixed, all other options
are assigned as before, and the program of the assignment is built and timed. First the whole
network is restricted, such as to one algorithm wherever it can be used. Then single candidates of
the fastest plan are exchanged for other candidates that took about as long alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError, GossamerError, first_line
from gossamer.io.text import duration_text
from gossamer.plan.candidate import Candidate, candidate_key, counted
from gossamer.model.graph import Graph
from gossamer.plan.choose.assigner import (
    Assigned,
    Assigner,
    Restriction,
    dense,
    first_configs,
    floats,
    wherever,
)
from gossamer.plan.choose.outcomes import DENSE_ONLY, MEASURED, WHEREVER, EndToEnd, Planned
from gossamer.plan.choose.plan_times import end_to_end, is_clearly_faster, program_key
from gossamer.plan.fusion import is_one_part
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Program, Step
from gossamer.plan.store.keys import problem_key
from gossamer.plan.tune.tuner import Tuner

_FLOATS_ONLY = "floats only"
_FIRST_CONFIGS = "the first configs of each algorithm"
_FIRST_OF = {"quick": EFFORTS["quick"], "normal": EFFORTS["quick"], "max": EFFORTS["normal"]}
"""For each effort of a plan, the effort that says how many of an algorithm's configs count as first
configs."""
_CLEARLY_SLOWER = 1.25
"""A plan is not timed as a whole where the sum of its layers' times is at least this many times the
sum for the measured choice: caches and gaps between layers change the time of a whole plan by
less."""
_SMALL_SHARE = 0.05
"""Share of the cheapest assignment's time. If the layers that an algorithm can compute take less
than this share, the plan that takes the algorithm wherever it can is not made."""
_NEIGHBOURS_US = 1.0
"""Microseconds by which the time of a step may change with the steps beside it. On an H200 the
difference between two candidates' times was up to 1.4 us lower in a network than alone."""

Exchange = Mapping[str, Candidate]
"""Candidates that take the place of others, by the names of their layers."""


def refined(graph: Graph, chosen: Planned, device: Device, tuner: Tuner,
            accurate: Callable[[Program], Program],
            note: Callable[[str], None] = lambda line: None) -> Planned:
    """Return the fastest of a network's plans: the plan of the cheapest assignment, or another
    plan that is clearly faster as a whole.

    These plans are compared with the cheapest assignment:
    - For each algorithm, the plan that takes this algorithm wherever it can, if other algorithms
    can also compute one of its layers.
    - The plan of dense algorithms only, if a layer has both candidates that skip zeros and dense
    candidates.
    - The plan without algorithms on bits, if a layer has candidates on bits and on floats.
    - The plan of the first configs of each algorithm. Among more candidates, more times happen to
    be measured too low, so that the choice among all candidates may be slower as a whole.
    A plan that cannot be made or does not run is reported with the reason.

    accurate: returns the given program, or raises GossamerError where the program is less accurate
    than the user allows. Nothing is timed where all plans are the same program.
    """
    plans = _Plans(graph, chosen, device, tuner, accurate, note)
    for plan, restriction in _restrictions(chosen.program, device, tuner):
        plans.add(plan, partial(plans.assigned, restriction))
    taken = plans.fastest()
    if plans.runs(taken):
        program = plans.programs[taken]
        exchange = _better(graph, program, plans.assigner, device, tuner, note)
        if exchange:
            plan = (f"{taken}, but " if taken != MEASURED else "") + (
                f"other candidates for {counted(len(exchange), 'layer')}")
            plans.add(plan, partial(_exchanged, program, exchange))
            if plan in plans.programs:
                taken = plans.fastest([taken, plan])
    return plans.planned(taken)


class _NotTriedError(Exception):
    """Raised for a plan that is not made, because it would be slower."""


class _Plans:
    """The plans of one network that are compared: their programs and times, and the reasons why
    other plans have no program or no time."""

    def __init__(self, graph: Graph, chosen: Planned, device: Device, tuner: Tuner,
                 accurate: Callable[[Program], Program], note: Callable[[str], None]) -> None:
        assert chosen.assigner is not None
        self.assigner = chosen.assigner
        self.programs = {MEASURED: chosen.program}
        self._chosen = chosen
        self._times: dict[str, EndToEnd] = {}
        self._failures: dict[str, EndToEnd] = {}
        self._keys = {MEASURED: program_key(chosen.program, device)}
        self._graph, self._device, self._tuner = graph, device, tuner
        self._accurate, self._note = accurate, note
        chosen_us = chosen.program.cost_us or math.inf
        self._most_us = math.inf if tuner.limits.everything else _CLEARLY_SLOWER * chosen_us

    def add(self, plan: str, assigned: Callable[[], Assigned]) -> None:
        """Make a plan's program from the assignment that a function returns."""
        try:
            program = self._accurate(self.assigner.program(assigned()))
        except DeviceLostError:
            raise
        except _NotTriedError as reason:
            self._failures[plan] = EndToEnd(failure=f"not tried: {reason}")
        except (GossamerError, ValueError) as error:
            self._failures[plan] = EndToEnd(failure=f"cannot be made: {first_line(error)}")
        else:
            self.programs[plan], self._keys[plan] = program, program_key(program, self._device)

    def assigned(self, restriction: Restriction) -> Assigned:
        """Return the cheapest assignment within a restriction. Raises _NotTriedError where the sum
        of its layers' times is clearly larger than the sum for the measured choice."""
        assigned = self.assigner.assigned(restriction)
        # on processors, bits and floats take nearly the same time, so that the sums of layers'
        # times do not tell which plan is faster; and the time of a part that is the whole network
        # may be far from the time of the plan
        always = (restriction is floats and self._device.on_processors) or len(assigned.taken) == 1
        if not always and assigned.cost_us >= self._most_us:
            raise _NotTriedError(
                f"its layers take at least {duration_text(assigned.cost_us)} alone, those of the "
                f"measured choice {duration_text(self.programs[MEASURED].cost_us or 0.0)}")
        return self.assigner.checked(restriction, assigned)

    def fastest(self, among: Collection[str] | None = None) -> str:
        """Time plans together, by default all, and return the plan to use. The plan to beat is
        the network as one part, or the first plan where no plan is one part. The fastest plan is
        used if it is clearly faster than the plan to beat, or if the plan to beat does not run.
        Otherwise the plan to beat is used. Unless the effort tries everything, only plans that skip
        zeros or count bits may beat the network as one part: while another program uses a
        processor, a library's threads take two to three times as long. A plan of dense layers would
        win at such a time, and be slower afterwards."""
        plans = list(self.programs if among is None else among)
        if among is not None or self._failures or len(set(self._keys.values())) > 1:
            timed = end_to_end(self._graph, [self.programs[plan] for plan in plans], self._device,
                               self._tuner, self._note)
            self._times.update(zip(plans, timed, strict=True))
        timings = {plan: time.timing for plan in plans
                   if (time := self._times.get(plan)) is not None and time.timing is not None}
        if not timings:
            return plans[0]
        fastest = min(timings, key=lambda plan: timings[plan].median_us)
        to_beat = next((plan for plan in timings if is_one_part(self.programs[plan])), plans[0])
        if to_beat in timings and not (
                self._may_beat(fastest, to_beat)
                and is_clearly_faster(self._times[fastest], self._times[to_beat])):
            return to_beat
        return fastest

    def _may_beat(self, plan: str, other: str) -> bool:
        """Return whether a plan that is clearly faster than another plan is taken in its place.
        Layers whose weights are all zero (as in untrained networks) do not count as layers that
        skip zeros."""
        return (self._tuner.limits.everything or not is_one_part(self.programs[other])
                or any(step.algorithm.exact or (not step.algorithm.dense and step.layer.density)
                       for step in self.programs[plan].steps))

    def runs(self, plan: str) -> bool:
        """Return whether a plan runs, as far as is known."""
        return plan not in self._times or self._times[plan].timing is not None

    def planned(self, taken: str) -> Planned:
        """Return the outcome with plan `taken` as the choice."""
        if not self._times:
            return self._chosen
        first = {key: plan for plan, key in reversed(self._keys.items())}
        rows = [_row(plan, timed, self._times, taken, first.get(self._keys.get(plan, ""), plan))
                for plan, timed in {**self._times, **self._failures}.items()]
        compared = replace(self._chosen, end_to_end=self._times[taken], plans=rows)
        if taken == MEASURED:
            return compared
        why = (f"the plan that takes {taken} "
               + ("runs, which the measured choice does not" if self._times[MEASURED].failure
                  else "is faster as a whole"
                  if is_clearly_faster(self._times[taken], self._times[MEASURED])
                  else "is one part, and the measured choice is not clearly faster"))
        # the same program again, with the reason in its layers
        program = self.assigner.program(_exchanged(self.programs[taken], {}), why)
        return replace(compared, program=program, why=why)


def _restrictions(chosen: Program, device: Device, tuner: Tuner
                  ) -> Iterator[tuple[str, Restriction]]:
    """Yield the restrictions of the whole network that may give another program, with their names.
    Algorithms for layers that take little time are left out, unless the effort tries everything."""
    usable: dict[str, dict[str, bool]] = {}
    on_bits: dict[str, set[bool]] = {}
    for known in chosen.measured:
        if known.device is device:
            for candidate in (each for each in known.candidates if each.is_usable):
                for layer in known.layer.computes:
                    usable.setdefault(layer, {})[candidate.algorithm.name] = (
                        candidate.algorithm.dense)
                    on_bits.setdefault(layer, set()).add(candidate.algorithm.exact)
    several = [algorithms for algorithms in usable.values() if len(algorithms) > 1]
    if any(len(set(algorithms.values())) == 2 for algorithms in several):
        yield DENSE_ONLY, dense
    if any(len(kinds) == 2 for kinds in on_bits.values()):
        yield _FLOATS_ONLY, floats
    for name in dict.fromkeys(name for algorithms in several for name in algorithms):
        own = {layer for layer, algorithms in usable.items() if name in algorithms}
        own_us = sum(step.candidate_of(step.candidates).cost for step in chosen.steps
                     if not own.isdisjoint(step.layer.computes))
        if tuner.limits.everything or own_us >= _SMALL_SHARE * (chosen.cost_us or 0.0):
            yield name + WHEREVER, wherever(name)
    first = first_configs(chosen.measured, _FIRST_OF[tuner.effort])
    measured = {known.layer.name: known for known in chosen.measured}
    # where all steps take first configs, the choice among first configs is the same program
    if not all(first(node, step.candidate_of(node.candidates)) for step in chosen.steps
               if (node := measured.get(step.layer.name)) is not None):
        yield _FIRST_CONFIGS, first


def _better(graph: Graph, program: Program, assigner: Assigner, device: Device, tuner: Tuner,
            note: Callable[[str], None]) -> Exchange:
    """Return candidates that make a program faster as a whole. Each candidate is tried alone: all
    steps that compute the same problem take the candidate, and no other step changes.

    The time of a layer alone does not show which data it leaves in the cache, and how early the
    next layer can begin: kernels of a CUDA graph overlap where the first kernel leaves room on the
    multiprocessors. So of two candidates that take about as long alone, the slower one may be
    better in the network. The effort says how many candidates are tried; the candidates that may
    save most, by their times alone, come first. On processors no candidate is tried, because steps
    take too long there for such effects to matter.
    """
    if device.on_processors or program.host_steps(device) or tuner.is_over:
        return {}
    exchanges = _exchanges(program, device, tuner)
    if not exchanges:
        return {}
    # only the candidates that prove better are checked with the constants of their layers, after
    # the timing
    programs = [program, *(assigner.program(_exchanged(program, exchange))
                           for exchange in exchanges)]
    before, *times = end_to_end(graph, programs, device, tuner, note, brief=True)
    better: dict[str, tuple[float, Exchange]] = {}
    for exchange, time in zip(exchanges, times, strict=True):
        first = next(iter(exchange))
        if time.timing is not None and is_clearly_faster(time, before) and (
                first not in better or time.timing.median_us < better[first][0]):
            better[first] = time.timing.median_us, exchange
    layers = {known.layer.name: known.layer for known in program.measured}
    found = {name: candidate for _, exchange in better.values()
             for name, candidate in exchange.items()}
    checked = dict(zip(found, tuner.verified(
        (layers[name], candidate, device) for name, candidate in found.items()), strict=True))
    return {name: candidate for _, exchange in better.values()
            if all(checked[name].is_usable for name in exchange)
            for name, candidate in exchange.items()}


def _exchanged(program: Program, exchange: Exchange) -> Assigned:
    """Return the assignment of a program with some of its candidates exchanged for others of the
    same formats."""
    nodes = {node.layer.name: node for node in program.measured}
    taken = [(node, exchange.get(step.layer.name) or step.candidate_of(node.candidates))
             for step in program.steps if (node := nodes.get(step.layer.name)) is not None]
    conversions_us = sum(step.candidate_of(step.candidates).cost for step in program.steps
                         if step.layer.name not in nodes)
    return Assigned(taken, program.reshapes,
                    conversions_us + sum(candidate.cost for _, candidate in taken), ())


def _exchanges(program: Program, device: Device, tuner: Tuner) -> list[Exchange]:
    """Return as many exchanges of candidates as the effort says, first the exchanges that may save
    most. Steps that compute the same problem in the same way exchange their candidates
    together."""
    measured = {known.layer.name: known.candidates for known in program.measured}
    alike: dict[object, list[Step]] = {}
    for step in program.steps:
        if step.device is device and step.layer.name in measured and not step.in_place:
            key = problem_key(step.problem), candidate_key(step.algorithm, step.variant)
            alike.setdefault(key, []).append(step)
    taken = {step.layer.name: step.candidate_of(measured[step.layer.name])
             for steps in alike.values() for step in steps}
    least_us = tuner.limits.replacement_gain * sum(candidate.cost for candidate in taken.values())
    savings = [(saving_us, exchange) for steps in alike.values()
               for saving_us, exchange in _of_steps(steps, taken, measured)
               if saving_us > least_us]
    return [exchange for _, exchange in
            sorted(savings, key=lambda saving: -saving[0])[:tuner.limits.replacements]]


def _of_steps(steps: Sequence[Step], taken: Mapping[str, Candidate],
              measured: Mapping[str, Iterable[Candidate]]) -> Iterator[tuple[float, Exchange]]:
    """Yield a pair for each candidate that all these steps could take in their present formats:
    the most microseconds that the candidate may save in all these steps together, and the exchange
    by which the steps take the candidate."""
    before = [taken[step.layer.name] for step in steps]
    others = [{candidate_key(candidate.algorithm, candidate.variant): candidate
               for candidate in measured[step.layer.name]
               if candidate.is_usable and candidate.formats == old.formats}
              for step, old in zip(steps, before, strict=True)]
    own = candidate_key(steps[0].algorithm, steps[0].variant)
    for key in others[0]:
        if key != own and all(key in of_step for of_step in others):
            exchange = {step.layer.name: of_step[key]
                        for step, of_step in zip(steps, others, strict=True)}
            yield sum(_NEIGHBOURS_US + old.cost - exchange[step.layer.name].cost
                      for step, old in zip(steps, before, strict=True)), exchange


def _row(plan: str, time: EndToEnd, times: Mapping[str, EndToEnd], taken: str,
         first: str) -> dict[str, Any]:
    """Return the row of a plan in the report. first: the first plan with the same program."""
    timing, best = time.timing, times[taken].timing
    row = {"plan": plan, "median_us": None, "p25_us": None, "p75_us": None,
           "outcome": time.failure, "is_taken": plan == taken}
    if timing is None or best is None:
        return row
    if plan == taken:
        medians = [time.timing.median_us for time in times.values() if time.timing is not None]
        outcome = ("taken: the fastest" if timing.median_us <= min(medians) else
                   "taken: no other is faster by more than the spread")
    elif first != plan:
        outcome = f"the same as {first}"
    else:
        outcome = f"{duration_text(timing.median_us)} against {duration_text(best.median_us)}"
        if timing.median_us < best.median_us:
            outcome += ", within the spread: the measured choice stays"
    return {**row, "median_us": timing.median_us, "p25_us": timing.p25_us,
            "p75_us": timing.p75_us, "outcome": outcome}
