"""The suites: what is measured. A suite names its cases at a batch size; each is made in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.bench.layer_tables import PRODUCTS, ConvLayer, LinearLayer, distinct_convolutions
from gossamer.bench.layers import convolution, layer_case, linear
from gossamer.bench.peers import OWN, PEERS, Alternative, Network, own
from gossamer.bench.reference import reference
from gossamer.bench.work import Case
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError
from gossamer.model import zoo
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from gossamer.plan.tuner import Tuner

_CHECKED_IMAGES = 2
_MOST_NAMED = 8


@dataclass(frozen=True)
class Item:
    """A case to be: make(device, peers, tuner) gives it its weights, input and contenders."""

    suite: str
    name: str
    batch: int
    make: Callable[[Device, Sequence[str], Tuner], Case]


Suite = Callable[[int], list[Item]]
"""The cases at a batch size."""


def mobilenet(batch: int) -> list[Item]:
    """MobileNetV2 as a whole."""
    def torch_form(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer.bench.torch_networks import mobilenet_v2

        return mobilenet_v2(constants)

    def make(device: Device, against: Sequence[str], tuner: Tuner) -> Case:
        network = Network("mobilenetv2", zoo.build("mobilenet_v2"), torch_form)
        return network_case("mobilenet", network, device, batch, against, tuner)

    return [Item("mobilenet", "mobilenetv2", batch, make)]


def conv_layers(batch: int) -> list[Item]:
    """The convolutions of three networks, one by one, with dense weights."""
    def item(layer: ConvLayer) -> Item:
        return Item("conv-layers", layer.name, batch, lambda device, against, tuner: layer_case(
            "conv-layers", convolution(layer), device, batch, against, tuner))

    return [item(layer) for layer in distinct_convolutions()]


def gemm(batch: int) -> list[Item]:
    """Matrix products: squares, which know no batch, and classifiers."""
    def item(size: int, layer: LinearLayer) -> Item:
        return Item("gemm", layer.name, size, lambda device, against, tuner: layer_case(
            "gemm", linear(layer), device, size, against, tuner, layer.rows))

    return [item(batch if layer.rows is None else 1, layer) for layer in PRODUCTS]


def select(names: Sequence[str], batches: Sequence[int], part: str | None = None) -> list[Item]:
    """The cases of the suites at the batch sizes, each once; those with `part` in their name.
    Raises InputError for a suite that is none, or where no case has that name."""
    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        raise InputError(f"no suite {', '.join(map(repr, unknown)) or 'given'}; there are: "
                         f"{', '.join(SUITES)}")
    items = {(item.suite, item.name, item.batch): item
             for name in names for batch in batches for item in SUITES[name](batch)}
    chosen = [item for item in items.values() if part is None or part in item.name]
    if not chosen:
        known = list(dict.fromkeys(item.name for item in items.values()))
        more = len(known) - _MOST_NAMED
        raise InputError(f"--case {part}: no case of {', '.join(names)} has that in its name; "
                         f"there are: {', '.join(known[:_MOST_NAMED])}"
                         + (f" and {more} more" if more > 0 else ""))
    return chosen


def network_case(suite: str, network: Network, device: Device, batch: int,
                 against: Sequence[str], tuner: Tuner | None = None) -> Case:
    """A whole network, its input drawn from a normal distribution. tuner: measures for the
    plan's choice; None takes the fixed order."""
    graph = network.graph
    if len(graph.inputs) != 1:
        raise UnsupportedError(f"{network.name}: has {len(graph.inputs)} inputs, a network is "
                               "measured with one")
    shape = (batch, *[size or 1 for size in graph.inputs[0].shape[1:]])
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    plan = Plan(graph, device, tuner=tuner)
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


SUITES: dict[str, Suite] = {"mobilenet": mobilenet, "conv-layers": conv_layers, "gemm": gemm}
