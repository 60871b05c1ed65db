"""Makes cases of whole networks. The contenders are gossamer's best plan, plans that force one
algorithm or have no fusions, and the peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np

from gossamer.bench.networks import FORCED_OPS, input_of, plans_of, precision_of, whole_network
from gossamer.bench.work import OWN, PeerNetwork, Setting
from gossamer.device.affinity import allowed, bound
from gossamer.model.graph import Graph
from gossamer.ops.registry import OPS
from gossamer.ops.zero_weights import ZeroWeights
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer
from gossamer.plan.run.context import Context
from gossamer.tensor import pack, unpack
from gossamer_bench.contender import DENSE, UNFUSED, Alternative, ReadyContender
from gossamer_bench.peers.inference import PEERS
from gossamer_bench.pruned_graphs import without_zeros
from gossamer_bench.work import Case


def network_case(suite: str, network: PeerNetwork, batch: int, setting: Setting, *,
                 force_each: bool = False, forced_too: Sequence[str] = (),
                 unfused_too: bool = False, dense_too: bool = False,
                 between_layers: bool = False,
                 x: np.ndarray | None = None,
                 described: Callable[[Context], str] | None = None) -> Case:
    """Makes the case of a whole network.

    force_each: whether each of gossamer's own algorithms of convolutions and products also gets a
    plan, which takes the algorithm for every layer that the algorithm can compute. A vendor's
    algorithm gets such a plan where the setting's `against` names it.
    forced_too: further algorithms that get such a plan.
    unfused_too: whether the best plan without fusions is measured too.
    dense_too: whether the network with dense weights gets a plan in the same run.
    between_layers: whether inputs and outputs of float16 plans are float16 NHWC, the format that
    peers have between layers; meant for a network that is a section of a larger network.
    x: input, by default from a normal distribution.
    described: function that takes a plan's context and returns a text, which the plan's row shows
    after the names of the algorithms.
    """
    graph = network.graph
    x = input_of(network, batch) if x is None else x
    plans = plans_of(graph, batch, setting, between_layers=between_layers)
    contenders: dict[str, Callable[[], list[Alternative]]] = {
        OWN: lambda: [own(plan, x, described=described) for plan in plans]}

    def restricted(contender: str, policy: Policy) -> list[Alternative]:
        return [own(plan, x, contender, described)
                for plan in plans_of(graph, batch, setting, policy,
                                     between_layers=between_layers)]

    def forced(contender: str, name: str) -> list[Alternative]:
        return restricted(contender, Policy(only=name))

    layers = plans[0].layers(batch)
    own_names = _forced_algorithms({layer.op for layer in layers}) if force_each else []
    for name in (*own_names, *forced_too):
        contenders[f"{OWN}:{name}"] = partial(forced, f"{OWN}:{name}", name)
    if unfused_too:
        contenders[f"{OWN}:{UNFUSED}"] = partial(restricted, f"{OWN}:{UNFUSED}",
                                                 Policy(unfused=True))
    for name in setting.against:
        contenders[name] = partial(PEERS[name], network, x, setting.device, setting.precisions) if (
            name in PEERS) else partial(forced, name, name)
    case = timed_network(suite, network.name, graph, x, layers, contenders, _notes(plans, batch))
    if not dense_too:
        return case
    return replace(case, beside={
        f"{OWN}:{DENSE}": partial(_dense_case, suite, network, x, setting, between_layers)})


def _dense_case(suite: str, network: PeerNetwork, x: np.ndarray, setting: Setting,
                between_layers: bool) -> Case:
    """Returns the case of gossamer's plan of a network whose zero weights are replaced by random
    numbers."""
    graph = without_zeros(network.graph)
    plans = plans_of(graph, len(x), setting, between_layers=between_layers)
    contender = f"{OWN}:{DENSE}"
    return timed_network(suite, network.name, graph, x, plans[0].layers(len(x)), {
        contender: lambda: [own(plan, x, contender) for plan in plans]})


def timed_network(suite: str, name: str, graph: Graph, x: np.ndarray, layers: Sequence[Layer],
                  contenders: dict[str, Callable[[], list[Alternative]]],
                  notes: tuple[str, ...] = ()) -> Case:
    """Returns the case of a whole network whose contenders are timed."""
    case = whole_network(suite, name, graph, x, layers)
    return Case(**vars(case) | {"contenders": contenders, "notes": notes})


def _forced_algorithms(ops: Collection[str]) -> list[str]:
    """Returns the names of gossamer's own algorithms for the ops that are in `ops` and in
    FORCED_OPS. Algorithms with by_name_only, and ZeroWeights, are left out."""
    return list(dict.fromkeys(algorithm.name for op in FORCED_OPS if op in ops
                              for algorithm in OPS[op].algorithms
                              if not (algorithm.vendor or algorithm.by_name_only
                                      or isinstance(algorithm, ZeroWeights))))


def _notes(plans: Sequence[Plan], batch: int) -> tuple[str, ...]:
    """Returns the notes of the plans in which a step runs on another device than the plan's
    device."""
    return tuple(dict.fromkeys(
        note for plan in plans for note in plan.report(batch).notes
        if plan.program(batch).host_steps(plan.device)))


def own(plan: Plan, x: np.ndarray, contender: str = OWN,
        described: Callable[[Context], str] | None = None) -> Alternative:
    """Returns a plan as an alternative: one context, whose captured graph is replayed where the
    device has graphs. described: function that takes the context and returns a text, which the
    plan's row shows after the names of the algorithms."""
    device, batch = plan.device, len(x)
    program = plan.program(batch)
    precision = precision_of(program)

    def make() -> ReadyContender:
        context = plan.context(batch)
        name = program.inputs[plan.inputs[0].name]
        source, stored = context.buffers.of(name), pack(x, program.specs[name])
        result = program.outputs[plan.outputs[0].name]
        device.write(source, stored)

        def output(count: int) -> np.ndarray:
            # activations may have overwritten the input
            device.write(source, stored)
            context.execute()
            spec = program.specs[result]
            array = np.empty(spec.stored_shape, spec.stored_dtype)
            device.read(context.buffers.of(result), array)
            return unpack(array, spec)[:count]

        layouts = Counter(step.variant.outputs[0].layout for step in program.steps
                          if len(step.variant.outputs[0].shape) == 4)
        algorithms = Counter(step.algorithm.name for step in program.steps)
        config = ", ".join(f"{name} {count}" for name, count in algorithms.most_common())
        if not device.compiles:
            config += f"; {device.limits.compute_units} threads"
        return ReadyContender(
            contender, device, context.execute, output,
            "+".join(name for name, _ in layouts.most_common()) or "row",
            "; ".join(filter(None, (config, described and described(context)))), precision,
            # as the thread that calls ONNX Runtime
            around=nullcontext if device.compiles else partial(bound, allowed()[:1]))

    return Alternative(precision, make)
