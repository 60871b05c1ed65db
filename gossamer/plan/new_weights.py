"""Makes a plan with other weights, and keeps the chosen algorithm of each layer."""

from __future__ import annotations

from pathlib import Path

from gossamer.model.graph import Graph
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.optimised import optimised_for
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy


def with_weights(plan: Plan, graph: Graph) -> Plan:
    """Returns a plan of the same network with other weights, for which nothing is measured.

    plan: the plan whose choices are kept, for all batch sizes that it has planned.
    graph: the network with its new weights, as `gossamer.load` returns it.

    Raises InputError where a layer differs in more than its weights, or where its algorithm was
    chosen for the zeros or values of the old weights, and the new weights have other zeros or
    values.
    """
    made = Plan(optimised_for(graph, plan.device), plan.device, Policy(strict=plan.policy.strict),
                choices=StoredChoices(Path(graph.name), plan.choices()))
    for batch in made.planned_batches:
        made.program(batch)
    return made
