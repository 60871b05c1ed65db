"""Makes a plan with other weights, and keeps the chosen algorithm of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.plan.choose.planner import Planner
from gossamer.plan.choose.saved_options import StoredChoices, stored
from gossamer.plan.fusion import find_fusions
from gossamer.plan.optimised import optimised_for
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Step
from gossamer.plan.store.keys import problem_key
from gossamer.plan.tune.alike import timed_problem


def with_weights(plan: Plan, graph: Graph) -> Plan:
    """Returns a plan of the same network with other weights, for which nothing is measured.

    plan: the plan whose choices are kept, for all batch sizes that it has planned.
    graph: the network with its new weights, as `gossamer.load` returns it.

    Raises InputError where a layer differs in more than its weights, or where its algorithm was
    chosen for the zeros or values of the old weights, and the new weights have other zeros or
    values.
    """
    graph = optimised_for(graph, plan.device)
    batches = plan.planned_batches or [1]
    programs = {batch: plan.program(batch) for batch in batches}
    plain: dict[str, dict[str, Any]] = stored(programs, plan.device)
    planner = Planner(graph, plan.device)
    for batch, program in programs.items():
        layers = {layer.name: layer for layer in planner.network(batch).layers}
        layers |= {fusion.name: fusion for fusion in find_fusions(
            list(layers.values()), {info.name: info for info in graph.outputs})}
        for step, entry in zip(program.steps, plain[str(batch)]["steps"], strict=True):
            if not step.layer.inserted:
                entry["problem"] = _same_choice(step, layers.get(step.layer.name))
    return Plan(graph, plan.device, Policy(strict=plan.policy.strict),
                choices=StoredChoices(Path(graph.name), plain))


def _same_choice(step: Step, layer: Layer | None) -> str:
    """Returns the key of a layer's problem with the new weights. Raises InputError where the step's
    algorithm may be a bad choice for this problem."""
    name = step.layer.source or step.layer.name
    if layer is None or layer.is_reshape:
        raise InputError(f"{name} is no layer of the network with the new weights; compile the "
                         "network again")
    before, now = (timed_problem(problem, step.algorithm)
                   for problem in (step.problem, layer.problem))
    if before != now:
        raise InputError(f"{name} is computed by {step.algorithm.name}, which was chosen for the "
                         f"zeros and values of its old weights ({step.problem.describe()}), and "
                         f"the new ones have others ({layer.problem.describe()}); compile the "
                         "network again")
    return problem_key(layer.problem)
