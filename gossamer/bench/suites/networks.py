"""Makes cases of whole networks. The contenders are gossamer's best plan, plans that force one
algorithm or have no fusions, and the peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gossamer.bench.contender import (
    DENSE,
    OWN,
    UNFUSED,
    AbsentError,
    Alternative,
    PeerNetwork,
    ReadyContender,
)
from gossamer.bench.peers.inference import PEERS
from gossamer.bench.pruned_graphs import without_zeros
from gossamer.bench.reference import reference
from gossamer.bench.work import MOST_ERROR, Case, Setting, least_work
from gossamer.errors import UnsupportedError
from gossamer.model.batch_axis import along_batch
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import PRECISIONS
from gossamer.ops.registry import OPS
from gossamer.ops.zero_weights import ZeroWeights
from gossamer.plan.eligibility import ANY
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.run.context import Context
from gossamer.tensor import Format, default_spec, pack, unpack

CHECKED_IMAGES = 2
"""Number of images that are compared with the reference, in networks that do not mix images."""
_FORCED_OPS = ("conv2d", "gemm", "matmul")
"""Ops whose algorithms are forced. These ops take most of a network's time."""
_BETWEEN_LAYERS = Format("NHWC", "float16")
"""The format in which most peers and float16 plans keep images between their layers."""
_OVER_LAYERS = 2e-2
"""Largest normalised error of a network in TF32 or float16. A network may have a larger error than
one layer, because the errors of the layers add up. Over the 53 layers of MobileNetV2 the error was
3e-3 in TF32 and 4e-3 in float16."""
_ANY_ERROR = 10.0
"""The error limit of networks whose errors cannot be judged. It is higher than any error that these
networks have."""
_JUMPS = {"sign", "less", "less_equal", "greater", "greater_equal", "equal", "floor"}
"""Functions that are not continuous. Such a function may turn the smallest difference into a large
one, so that the errors of the layers behind the function have no bound."""


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
                for plan in plans_of(graph, batch, setting, policy, between_layers)]

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
    case = whole_network(suite, network.name, graph, x, layers, contenders, _notes(plans, batch))
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
    return whole_network(suite, network.name, graph, x, plans[0].layers(len(x)), {
        contender: lambda: [own(plan, x, contender) for plan in plans]})


def in_torch(name: str, graph: Graph, batch: int) -> PeerNetwork:
    """Returns a network whose PyTorch module is made from its graph, for this batch size."""
    def torch_form(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer.bench.peers.graph_module import graph_module

        return graph_module(graph, batch)

    return PeerNetwork(name, graph, torch_form)


def input_of(network: PeerNetwork, batch: int) -> np.ndarray:
    """Returns an input of a network from a normal distribution, the same in every run. Raises
    UnsupportedError where the network has several inputs."""
    infos = network.graph.inputs
    if len(infos) != 1:
        raise UnsupportedError(f"{network.name}: has {len(infos)} inputs, a network is measured "
                               "with one")
    shape = (batch, *[size or 1 for size in infos[0].shape[1:]])
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def whole_network(suite: str, name: str, graph: Graph, x: np.ndarray, layers: Sequence[Layer],
                  contenders: dict[str, Callable[[], list[Alternative]]],
                  notes: tuple[str, ...] = ()) -> Case:
    """Returns the case of a whole network with its reference and the least work of its layers."""
    mixing, _ = along_batch(graph, len(x))
    expected = reference(graph, x[:CHECKED_IMAGES] if mixing is None else x)
    weights = [layer.weights["weight"] for layer in layers if "weight" in layer.weights]
    size = sum(weight.size for weight in weights)
    nonzeros = sum(int(np.count_nonzero(weight)) for weight in weights)
    ends = (default_spec(x.shape), default_spec((len(x), *expected.shape[1:])))
    return Case(suite, name, len(x),
                sum(least_work(layer)[0] for layer in layers if not layer.is_reshape),
                sum(array.nbytes for layer in layers for array in layer.weights.values())
                - 4 * (size - nonzeros) + sum(spec.nbytes for spec in ends),
                nonzeros / size if size else 1.0,
                expected, contenders, notes, most_error=_most_error(graph))


def _forced_algorithms(ops: Collection[str]) -> list[str]:
    """Returns the names of gossamer's own algorithms for the ops that are in `ops` and in
    _FORCED_OPS. Algorithms with by_name_only, and ZeroWeights, are left out."""
    return list(dict.fromkeys(algorithm.name for op in _FORCED_OPS if op in ops
                              for algorithm in OPS[op].algorithms
                              if not (algorithm.vendor or algorithm.by_name_only
                                      or isinstance(algorithm, ZeroWeights))))


def _most_error(graph: Graph) -> dict[str, float]:
    """Returns, for each precision, the normalised error above which a result counts as wrong."""
    functions = {step.function for node in graph.nodes for key in ("expression", "epilogue")
                 if key in node.attributes for step in node.attributes[key].steps}
    most = _ANY_ERROR if functions & _JUMPS else _OVER_LAYERS
    return {"fp32": MOST_ERROR["fp32"], "tf32": most, "fp16": most}


def plans_of(graph: Graph, batch: int, setting: Setting, policy: Policy = ANY,
           between_layers: bool = False) -> list[Plan]:
    """Plans the network once for each allowed precision, and returns the plans, the most precise
    plan first. The precision of a plan is the precision of its least precise layer. If several
    plans have the same precision, only one of them is returned.

    policy: restrictions of gossamer's choice.
    Raises AbsentError where the algorithm that the policy forces computes no layer.
    """
    only = policy.only
    plans: dict[str, Plan] = {}
    reason = ""
    # the least precise precision is measured first: it allows all candidates, so that the tuning
    # cache then has the times of all candidates of the other precisions
    for allowed in reversed(setting.precisions):
        boundary = _BETWEEN_LAYERS if between_layers and allowed == "fp16" else None
        plan = Plan(graph, setting.device, replace(policy, boundary=boundary),
                    tuner=setting.tuner(allowed))
        steps = plan.program(batch).steps
        # an algorithm of another op may have the same name, but does not count
        if only is None or any(step.algorithm.name == only and step.layer.op in _FORCED_OPS
                               for step in steps):
            plans[precision_of(plan.program(batch))] = plan
        else:
            reason = next((step.rejected[only] for step in steps if only in step.rejected
                           and step.layer.op in _FORCED_OPS), "none is of its kind")
    if not plans:
        raise AbsentError(f"computes no layer: {reason}")
    return [plans[precision] for precision in PRECISIONS if precision in plans]


def _notes(plans: Sequence[Plan], batch: int) -> tuple[str, ...]:
    """Returns the notes of the plans in which a step runs on another device than the plan's
    device."""
    return tuple(dict.fromkeys(
        note for plan in plans for note in plan.report(batch).notes
        if plan.program(batch).host_steps(plan.device)))


def precision_of(program: Program) -> str:
    """Returns the precision of the least precise layer."""
    return max((step.variant.precision for step in program.steps), key=PRECISIONS.index,
               default="fp32")


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
        source, stored = context.buffer(name), pack(x, program.specs[name])
        result = program.outputs[plan.outputs[0].name]
        device.write(source, stored)

        def output(count: int) -> np.ndarray:
            # activations may have overwritten the input
            device.write(source, stored)
            context.execute()
            spec = program.specs[result]
            array = np.empty(spec.stored_shape, spec.stored_dtype)
            device.read(context.buffer(result), array)
            return unpack(array, spec)[:count]

        layouts = Counter(step.variant.outputs[0].layout for step in program.steps
                          if len(step.variant.outputs[0].shape) == 4)
        algorithms = Counter(step.algorithm.name for step in program.steps)
        config = ", ".join(f"{name} {count}" for name, count in algorithms.most_common())
        return ReadyContender(
            contender, device, context.execute, output,
            "+".join(name for name, _ in layouts.most_common()) or "row",
            config if described is None else f"{config}; {described(context)}", precision)

    return Alternative(precision, make)
