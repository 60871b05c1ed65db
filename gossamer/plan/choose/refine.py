"""Times a few assignments as whole programs.

The cheapest assignment is based on the times of layers that ran alone. Such times do not include
the effects of one layer on the next: cached data, overlap, and gaps between layers. Therefore the
cheapest assignments are also timed as whole programs. Three other plans are timed with them: dense
algorithms only, one thread per layer, and the whole network in one call of a library.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import DeviceLostError, GossamerError, UnsupportedError, first_line
from gossamer.io.text import duration_text
from gossamer.model.graph import Graph
from gossamer.plan.choose.assigner import Assigned, Assigner, Restriction, dense, one_thread, whole
from gossamer.plan.choose.outcomes import DENSE_ONLY, MEASURED, ONE_THREAD, EndToEnd, Planned
from gossamer.plan.choose.plan_times import end_to_end, is_clearly_faster, program_key
from gossamer.plan.fusion import WHOLE, is_one_part
from gossamer.plan.program import Program
from gossamer.plan.tune.tuner import Tuner

_NEXT = ("second choice", "third choice")
"""Names of the next cheapest assignments."""


def refined(graph: Graph, chosen: Planned, device: Device, tuner: Tuner,
            accurate: Callable[[Program], Program],
            note: Callable[[str], None] = lambda line: None) -> Planned:
    """Return the fastest of a network's plans.

    This is the plan of the cheapest assignment, unless another plan is clearly faster as a whole. A
    plan that cannot be made or does not run is reported with the reason. Nothing is timed if all
    plans are the same program.

    accurate: returns the given program, or raises GossamerError if the program is less accurate
    than the user allows.
    """
    assigner, cheapest = chosen.assigner, chosen.assigned
    assert assigner is not None and cheapest is not None
    if not cheapest.cost_us:
        return chosen  # an empty batch
    programs = {MEASURED: chosen.program}
    failures: dict[str, EndToEnd] = {}
    found = [cheapest]
    for plan, restriction in _restrictions(assigner, cheapest).items():
        try:
            assigned = assigner.checked(restriction, excluded=[] if restriction else found)
            found.append(assigned)
            programs[plan] = accurate(assigner.program(assigned))
        except DeviceLostError:
            raise
        except (GossamerError, ValueError) as error:
            if restriction is None and isinstance(error, UnsupportedError):
                continue  # there is no further assignment
            failures[plan] = EndToEnd(failure=f"cannot be made: {first_line(error)}")
    keys = {plan: program_key(program, device) for plan, program in programs.items()}
    if len(set(keys.values())) == 1 and not failures:
        return chosen
    times = dict(zip(programs, end_to_end(
        graph, list(programs.values()), device, tuner, note), strict=True))
    taken = _fastest(programs, times)
    first = {key: plan for plan, key in reversed(keys.items())}
    rows = [_row(plan, time, times, taken, first.get(keys.get(plan, ""), plan))
            for plan, time in {**times, **failures}.items()]
    return replace(chosen, program=programs[taken], end_to_end=times[taken], plans=rows)


def _restrictions(assigner: Assigner, cheapest: Assigned) -> dict[str, Restriction | None]:
    """Return the restrictions of the assignments to compare, by the names of the assignments.

    None stands for an assignment without restriction: the cheapest that was not found before.
    """
    restrictions: dict[str, Restriction | None] = dict.fromkeys(_NEXT)
    if any(not candidate.algorithm.dense for _, candidate in cheapest.taken):
        restrictions[DENSE_ONLY] = dense
    if not all(itertools.starmap(one_thread, cheapest.taken)) and all(
            any(one_thread(node, candidate) for candidate in node.candidates)
            for node, _ in cheapest.taken):
        restrictions[ONE_THREAD] = one_thread
    if any(node.layer.name == WHOLE and math.isfinite(node.least_cost)
           for node in assigner.measured):
        restrictions[WHOLE] = whole
    return restrictions


def _fastest(programs: Mapping[str, Program], times: Mapping[str, EndToEnd]) -> str:
    """Return the plan to use.

    Only plans that are equal to the fastest within noise are considered. The first preference is a
    plan that computes the network as one part. Other programs on the CPU slow such a plan down
    most; without other programs, the plan would be the fastest. The second preference is the plan
    with one thread, which leaves the other cores to other programs. The third preference is the
    first plan in `times`.
    """
    timings = {plan: time.timing for plan, time in times.items() if time.timing is not None}
    if not timings:
        return MEASURED
    fastest = min(timings, key=lambda plan: timings[plan].median_us)
    equal = [plan for plan in timings if not is_clearly_faster(times[fastest], times[plan])]
    return next((plan for plan in equal if is_one_part(programs[plan])),
                ONE_THREAD if ONE_THREAD in equal else equal[0])


def _row(plan: str, time: EndToEnd, times: Mapping[str, EndToEnd], taken: str,
         first: str) -> dict[str, Any]:
    """Return a plan's row in the report.

    first: name of the first plan with the same program.
    """
    timing, best = time.timing, times[taken].timing
    row = {"plan": plan, "median_us": None, "p25_us": None, "p75_us": None,
           "outcome": time.failure, "is_taken": plan == taken, "is_equal": False}
    if timing is None or best is None:
        return row
    is_equal = not is_clearly_faster(times[taken], time)
    if plan == taken:
        fastest = min(each.timing.median_us for each in times.values() if each.timing is not None)
        outcome = ("taken: the fastest" if timing.median_us <= fastest
                   else "taken: equal to the fastest within noise")
    elif first != plan:
        outcome = f"the same as {first}"
    else:
        outcome = f"{duration_text(timing.median_us)} against {duration_text(best.median_us)}"
        if is_equal:
            outcome += ", equal within noise"
    return {**row, "median_us": timing.median_us, "p25_us": timing.p25_us,
            "p75_us": timing.p75_us, "outcome": outcome, "is_equal": is_equal}
