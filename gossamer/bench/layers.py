"""One layer as a case: the measured choice, every algorithm forced, and the peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from gossamer.bench.layer_tables import ConvLayer, LinearLayer
from gossamer.bench.peers import OWN, PEERS, AbsentError, Alternative, Network, Ready
from gossamer.bench.reference import reference
from gossamer.bench.work import Case
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.expression import Expression, apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.passes import optimise
from gossamer.model.shapes import resolve
from gossamer.ops import OPS
from gossamer.ops.algorithm import Weights
from gossamer.plan.lower import lower
from gossamer.plan.program import Layer
from gossamer.plan.tuner import Trial, Tuner
from gossamer.tensor import TensorSpec, from_memory, to_memory

_CHECKED_IMAGES, _CHECKED_ROWS = 2, 64
_SAMPLE_US = 2_000.0
"""Enough for what is replayed as a graph; elsewhere a case's default."""


def convolution(layer: ConvLayer) -> Network:
    """The layer with dense random weights."""
    shape = (layer.out_channels, layer.channels // layer.groups, layer.kernel, layer.kernel)
    constants = _constants(shape, bias=True)
    conv = Node("conv2d", "0", ["x", *constants], ["0.out"], {
        "strides": (layer.stride,) * 2, "pads": (layer.pad,) * 4, "dilations": (1, 1),
        "groups": layer.groups, "epilogue": apply("add")}, f"Conv {layer.name!r}")
    size = (layer.size + 2 * layer.pad - layer.kernel) // layer.stride + 1
    graph = _graph(layer.name, conv, constants, (layer.channels, layer.size, layer.size),
                   (layer.out_channels, size, size), relu=True)

    def torch_form(fused: bool) -> Callable[[Mapping[str, np.ndarray]], Any]:
        def form(constants: Mapping[str, np.ndarray]) -> Any:
            from gossamer.bench.torch_networks import convolution_layer

            return convolution_layer(constants, layer.stride, layer.pad, layer.groups, fused)

        return form

    return Network(layer.name, graph, torch_form(False), torch_form(True), is_layer=True)


def linear(layer: LinearLayer) -> Network:
    """The layer with dense random weights."""
    constants = _constants((layer.columns, layer.depth), layer.bias)
    epilogue: Expression = apply("add") if layer.bias else identity()
    product = Node("gemm", "0", ["x", *constants], ["0.out"], {
        "trans_a": False, "trans_b": True, "epilogue": epilogue}, f"Gemm {layer.name!r}")
    graph = _graph(layer.name, product, constants, (layer.depth,), (layer.columns,), layer.relu)

    def torch_form(constants: Mapping[str, np.ndarray]) -> Any:
        from gossamer.bench.torch_networks import linear_layer

        return linear_layer(constants, layer.relu)

    return Network(layer.name, graph, torch_form, is_layer=True)


def layer_case(suite: str, network: Network, device: Device, batch: int,
               against: Sequence[str], tuner: Tuner, rows: int | None = None) -> Case:
    """A network of one layer, its input drawn from a normal distribution.

    rows: the input's first size where that is not the batch. Every contender has its input and
    output in the layout it works in.
    Raises UnsupportedError where the device has no algorithm for the layer.
    """
    rows = batch if rows is None else rows
    shape = (rows, *[size or 1 for size in network.graph.inputs[0].shape[1:]])
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    layer = _lowered(network, rows)
    problem = layer.problem
    assert problem is not None
    reasons = {algorithm.name: algorithm.supports(problem, device)
               for algorithm in OPS[layer.op].algorithms}
    able = [each for each in OPS[layer.op].algorithms if reasons[each.name] is None]
    if not able:
        raise UnsupportedError(f"{network.name}: {device.name} has no algorithm: " + "; ".join(
            f"{name}: {reason}" for name, reason in reasons.items()))

    @cache
    def trials() -> list[Trial]:
        return tuner.measure(layer, able, device)

    def forced(name: str) -> list[Alternative]:
        if reasons[name] is not None:
            raise AbsentError(str(reasons[name]))
        best = min((trial for trial in trials() if trial.algorithm.name == name),
                   key=lambda trial: trial.cost)
        if math.isinf(best.cost):
            raise RuntimeError(best.measured.failure)
        return [_alternative(f"{OWN}:{name}", layer, best, x, device)]

    def chosen() -> list[Alternative]:
        best = min(trials(), key=lambda trial: trial.cost)
        return [_alternative(OWN, layer, best, x, device)]

    contenders: dict[str, Callable[[], list[Alternative]]] = {OWN: chosen}
    for name in reasons:
        contenders[f"{OWN}:{name}"] = lambda name=name: forced(name)  # type: ignore[misc]
    for name in against:
        contenders[name] = lambda name=name: PEERS[name](network, x, device)  # type: ignore[misc]
    checked = x[: _CHECKED_IMAGES if x.ndim == 4 else _CHECKED_ROWS]
    return Case(suite, network.name, batch, problem.flops, problem.least_bytes,
                1.0 if layer.density is None else layer.density,
                reference(network.graph, checked), contenders,
                sample_us=_SAMPLE_US if device.limits.graph else Case.sample_us)


def _alternative(contender: str, layer: Layer, trial: Trial, x: np.ndarray,
                 device: Device) -> Alternative:
    algorithm, variant, problem = trial.algorithm, trial.variant, layer.problem
    (source_spec,), (spec,) = variant.inputs, variant.outputs

    def make() -> Ready:
        weights = Weights(layer.weights, device, layer.name)
        state = algorithm.prepare(weights, problem, variant, device)  # type: ignore[arg-type]
        source = device.upload(to_memory(x, source_spec), "a layer's input")
        target = device.empty(spec.nbytes, "a layer's output")
        workspace = device.empty(variant.workspace, "a layer's workspace") if (
            variant.workspace) else None

        def work(stream: Any) -> None:
            algorithm.launch(state, [source], [target], workspace, stream)

        def output() -> np.ndarray:
            stored = np.empty(spec.stored_shape, spec.stored_dtype)
            device.read(target, stored)
            return from_memory(stored, spec)

        return Ready(contender, device, work, output, _layouts(source_spec, spec),
                     " ".join(filter(None, (algorithm.name, variant.label))), variant.precision,
                     captured=True)

    return Alternative(algorithm.name, make)


def _layouts(source: TensorSpec, target: TensorSpec) -> str:
    return source.layout if source.layout == target.layout else (
        f"{source.layout} to {target.layout}")


def _lowered(network: Network, rows: int) -> Layer:
    (layer,), _ = lower(resolve(optimise(network.graph), rows))
    return layer


def _constants(shape: tuple[int, ...], bias: bool) -> dict[str, np.ndarray]:
    """Dense random weights that keep the size of what they are applied to."""
    random = np.random.default_rng(0)
    scale = np.float32(math.sqrt(2 / math.prod(shape[1:])))
    constants = {"0.weight": random.standard_normal(shape, np.float32) * scale}
    if bias:
        constants["0.bias"] = random.standard_normal(shape[0], np.float32)
    return constants


def _graph(name: str, node: Node, constants: dict[str, np.ndarray], source: tuple[int, ...],
           target: tuple[int, ...], relu: bool) -> Graph:
    nodes = [node]
    if relu:
        nodes.append(Node("elementwise", "1", ["0.out"], ["y"], {"expression": apply("relu")}))
    else:
        node.outputs = ["y"]
    return Graph(name, [ValueInfo("x", (None, *source))], [ValueInfo("y", (None, *target))],
                 nodes, constants, name)
