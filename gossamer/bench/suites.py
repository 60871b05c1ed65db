"""The suites: what is measured. A suite yields its cases at a batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.bench.peers import OWN, PEERS, Alternative, Network, own
from gossamer.bench.reference import reference
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.model import zoo
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program

_CHECKED_IMAGES = 2


@dataclass(frozen=True)
class Case:
    """One piece of work, stated without saying who does it.

    flops, least_bytes: what nobody can do without: the arithmetic, and weights, inputs and
    outputs crossing memory once. density: the share of nonzero weights.
    expected: the output for the first images of the batch, in float64.
    contenders: the alternatives of each, made when called; may raise AbsentError.
    """

    suite: str
    name: str
    batch: int
    flops: int
    least_bytes: int
    density: float
    expected: np.ndarray
    contenders: dict[str, Callable[[], list[Alternative]]]
    notes: tuple[str, ...] = ()


Suite = Callable[[Device, int, Sequence[str]], Iterator[Case]]
"""The cases on a device at a batch size, against the peers of those names."""


def mobilenet(device: Device, batch: int, against: Sequence[str]) -> Iterator[Case]:
    """MobileNetV2 as a whole."""
    def torch_form(constants: dict[str, np.ndarray]) -> object:
        from gossamer.bench.torch_networks import mobilenet_v2

        return mobilenet_v2(constants)

    network = Network("mobilenetv2", zoo.build("mobilenet_v2"), torch_form)
    yield network_case("mobilenet", network, device, batch, against)


def network_case(suite: str, network: Network, device: Device, batch: int,
                 against: Sequence[str]) -> Case:
    """A whole network, its input drawn from a normal distribution."""
    graph = network.graph
    if len(graph.inputs) != 1:
        raise UnsupportedError(f"{network.name}: has {len(graph.inputs)} inputs, a network is "
                               "measured with one")
    shape = (batch, *[size or 1 for size in graph.inputs[0].shape[1:]])
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    plan = Plan(graph, device)
    program = plan.program(batch)
    contenders: dict[str, Callable[[], list[Alternative]]] = {OWN: lambda: [own(plan, x)]}
    for name in against:
        contenders[name] = lambda name=name: PEERS[name](network, x, device)  # type: ignore[misc]
    weights = [weight for step in program.steps for name, weight in step.layer.weights.items()
               if name == "weight"]
    nonzero = sum(int(np.count_nonzero(weight)) for weight in weights)
    size = sum(weight.size for weight in weights)
    notes = plan.report(batch).notes
    fallen = any(step.device is not device for step in program.steps)
    return Case(suite, network.name, batch, sum(step.problem.flops for step in program.steps),
                _least_bytes(program), nonzero / size if size else 1.0,
                reference(graph, x[:_CHECKED_IMAGES]), contenders,
                tuple(notes) if fallen else ())


def _least_bytes(program: Program) -> int:
    ends = {*program.inputs.values(), *program.outputs.values()}
    weights = sum(array.nbytes for step in program.steps for array in step.layer.weights.values())
    return weights + sum(program.specs[value].nbytes for value in ends)


SUITES: dict[str, Suite] = {"mobilenet": mobilenet}

