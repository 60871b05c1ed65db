"""Makes cases of single layers. The contenders are gossamer's choice, each of gossamer's
algorithms, and the peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from gossamer.bench.networks import reference
from gossamer.bench.work import OWN, AbsentError, PeerNetwork, Setting, least_work
from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.measure import measure
from gossamer.model.builder import GraphBuilder
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.candidate import Candidate
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer, build
from gossamer.tensor import TensorSpec, pack, unpack
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.layer_tables import ConvLayer, LinearLayer
from gossamer_bench.peers.inference import PEERS
from gossamer_bench.work import Case

_CHECKED_IMAGES, _CHECKED_ROWS = 2, 64
"""Numbers of images, and of rows of a product, that are compared with the reference."""
_SAMPLE_US = 1_000.0
"""Microseconds of a sample where executions are replayed as a CUDA graph; other samples have the
default duration of a case."""
_LOOKS = 3
"""Number of samples of each config's time where the fastest config of a form is chosen (see
layer_case)."""


def convolution(layer: ConvLayer, weight: np.ndarray | None = None,
                bias: np.ndarray | None = None) -> PeerNetwork:
    """Returns a network of one layer with this weight (M, C/groups, R, S) and bias (M,), by default
    dense and random."""
    builder = GraphBuilder(layer.name, file=layer.name)
    x = builder.input("x", (None, layer.channels, layer.size, layer.size))
    random_weight, random_bias = _constants(layer.weight_shape)
    pad = layer.pad
    y = builder.conv2d(
        x, builder.constant("0.weight", random_weight if weight is None else weight),
        builder.constant("0.bias", random_bias if bias is None else bias),
        strides=(layer.stride, layer.stride), pads=(pad, pad, pad, pad), groups=layer.groups,
        name="0", output="0.out", source=f"Conv {layer.name!r}")
    builder.output(builder.apply("relu", y, name="1", output="y"),
                 (None, layer.out_channels, layer.out_size, layer.out_size))
    graph = builder.finish()

    def torch_form(fused: bool) -> Callable[[Mapping[str, np.ndarray]], Any]:
        def form(constants: Mapping[str, np.ndarray]) -> Any:
            from gossamer_bench.peers.torch_networks import convolution_layer

            return convolution_layer(constants, layer.stride, layer.pad, layer.groups, fused)

        return form

    return PeerNetwork(layer.name, graph, torch_form(False), torch_form(True), is_layer=True)


def linear(layer: LinearLayer) -> PeerNetwork:
    """Returns a network of one layer with dense random weights."""
    builder = GraphBuilder(layer.name, file=layer.name)
    x = builder.input("x", (None, layer.depth))
    weight, bias = _constants((layer.columns, layer.depth))
    y = builder.gemm(x, builder.constant("0.weight", weight),
                     builder.constant("0.bias", bias) if layer.bias else "", trans_b=True, name="0",
                     output="0.out" if layer.relu else "y", source=f"Gemm {layer.name!r}")
    if layer.relu:
        y = builder.apply("relu", y, name="1", output="y")
    builder.output(y, (None, layer.columns))
    graph = builder.finish()

    def torch_form(constants: Mapping[str, np.ndarray]) -> Any:
        from gossamer_bench.peers.torch_networks import linear_layer

        return linear_layer(constants, layer.relu)

    return PeerNetwork(layer.name, graph, torch_form, is_layer=True)


def layer_case(suite: str, network: PeerNetwork, batch: int, setting: Setting,
               rows: int | None = None, forms: Sequence[tuple[str, str]] = (),
               x: np.ndarray | None = None) -> Case:
    """Makes the case of a network of one layer.

    rows: size of the input's first dimension; None for the batch size.
    forms: pairs of an algorithm and a form, which is a value of `variant` in the algorithm's
    configs. Each pair becomes a contender `gossamer:ALGORITHM/FORM`.
    x: input, by default from a normal distribution.
    Every contender has its input and output in the layout and precision that it works in. Raises
    UnsupportedError where the device has no algorithm for the layer.
    """
    rows = batch if rows is None else rows
    shape = (rows, *[size or 1 for size in network.graph.inputs[0].shape[1:]])
    if x is None:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
    checked = x[: _CHECKED_IMAGES if x.ndim == 4 else _CHECKED_ROWS]
    case = problem_case(suite, network.name, batch, setting, _lowered(network, rows), [x],
                        reference(network.graph, checked), forms)
    for name in setting.against:
        if name in PEERS:
            case.contenders[name] = partial(PEERS[name], network, x, setting.device,
                                            setting.precisions)
    return case


def problem_case(suite: str, name: str, batch: int, setting: Setting, layer: Layer,
                 inputs: Sequence[np.ndarray], expected: np.ndarray,
                 forms: Sequence[tuple[str, str]] = ()) -> Case:
    """Makes the case of a layer's problem, for all algorithms of its op. A vendor's algorithm is a
    contender only where the setting's `against` names it.

    inputs: an array for each input of the problem.
    expected: the output, or its first images or rows, in float64.
    forms: as for layer_case. Raises UnsupportedError where the device has no algorithm for the
    layer.
    """
    device, problem = setting.device, layer.problem
    algorithms = OPS[layer.op].algorithms
    reasons = {algorithm.name: algorithm.supports(problem, device) for algorithm in algorithms}
    supported = [algorithm for algorithm in algorithms if reasons[algorithm.name] is None]
    if not supported:
        raise UnsupportedError(f"{name}: {device.name} has no algorithm: " + "; ".join(
            f"{algorithm}: {reason}" for algorithm, reason in reasons.items()))
    on_device = _LayerOnDevice(layer, inputs, device)

    @cache
    def candidates() -> dict[str, list[Candidate]]:
        """Returns the candidates that each precision allows. The least precise precision is
        measured first: it allows all candidates, so that the tuning cache then has the times of all
        candidates of the other precisions."""
        by_precision = {}
        for precision in reversed(setting.precisions):
            tuner = setting.tuner(precision)
            by_precision[precision] = tuner.measure(layer, supported, device)
            tuner.release()
        return by_precision

    def chosen() -> list[Alternative]:
        """Returns the fastest candidate that each precision allows; a candidate that is the fastest
        in several precisions is listed once."""
        fastest: dict[str, Candidate] = {}
        for precision in setting.precisions:
            best = min((candidate for candidate in candidates()[precision]
                        if not candidate.algorithm.by_name_only),
                       key=lambda candidate: candidate.cost)
            fastest.setdefault(best.variant.precision, best)
        return [_measured(OWN, on_device, candidate) for candidate in fastest.values()]

    def forced(contender: str, name: str) -> list[Alternative]:
        """Returns the algorithm's fastest candidate in each precision."""
        if reasons[name] is not None:
            raise AbsentError(str(reasons[name]))
        alternatives = []
        for precision in setting.precisions:
            measured = [candidate for candidate in candidates()[precision]
                        if candidate.algorithm.name == name
                        and candidate.variant.precision == precision]
            if measured:
                best = min(measured, key=lambda candidate: candidate.cost)
                alternatives.append(_measured(contender, on_device, best))
        if not alternatives:
            raise AbsentError(f"has no candidate in {' or '.join(setting.precisions)}")
        return alternatives

    def formed(contender: str, algorithm: Algorithm, form: str) -> list[Alternative]:
        """Returns the fastest config of a form in each precision. All configs are timed, whatever
        the effort."""
        if reasons[algorithm.name] is not None:
            raise AbsentError(str(reasons[algorithm.name]))
        fastest = []
        for precision in setting.precisions:
            variants = [variant for variant in algorithm.variants(problem, device)
                        if (variant.precision, dict(variant.config).get("variant")) == (precision,
                                                                                        form)]
            times = measure(device, [_ready(contender, on_device, algorithm, variant).work
                                     for variant in variants], repeats=_LOOKS)
            if variants:
                best = min(zip(times, variants, strict=True), key=lambda pair: pair[0].median_us)[1]
                fastest.append(_alternative(contender, on_device, algorithm, best))
        if not fastest:
            raise AbsentError(f"has no such form in {' or '.join(setting.precisions)}")
        return fastest

    contenders: dict[str, Callable[[], list[Alternative]]] = {OWN: chosen}
    for algorithm in algorithms:
        if not algorithm.vendor:
            contender = f"{OWN}:{algorithm.name}"
            contenders[contender] = partial(forced, contender, algorithm.name)
            for form in (form for of_form, form in forms if of_form == algorithm.name):
                contenders[f"{contender}/{form}"] = partial(formed, f"{contender}/{form}",
                                                            algorithm, form)
    for vendor in setting.against:
        if vendor in reasons and vendor not in PEERS:
            contenders[vendor] = partial(forced, vendor, vendor)
    return Case(suite, name, batch, *least_work(layer),
                1.0 if layer.density is None else layer.density, expected, contenders=contenders,
                sample_us=_SAMPLE_US if device.limits.graph and not device.on_processors
                else Case.sample_us)


class _LayerOnDevice:
    """A layer with its weights and inputs on the device, which all of its candidates share."""

    def __init__(self, layer: Layer, inputs: Sequence[np.ndarray], device: Device) -> None:
        self.layer, self.device = layer, device
        self.weights = Weights(layer.weights, device, layer.name)
        self.source = cache(lambda index, spec: device.upload(pack(inputs[index], spec),
                                                              "a layer's input"))


def _measured(contender: str, on_device: _LayerOnDevice, candidate: Candidate) -> Alternative:
    """Returns a candidate as an alternative. Where the candidate failed, the alternative's `make`
    raises RuntimeError."""
    if candidate.measured.failure:
        def fail() -> ReadyContender:
            raise RuntimeError(candidate.measured.failure)

        return Alternative(candidate.variant.precision, fail)
    return _alternative(contender, on_device, candidate.algorithm, candidate.variant)


def _alternative(contender: str, on_device: _LayerOnDevice, algorithm: Algorithm,
                 variant: Variant) -> Alternative:
    """Returns the layer, computed by a variant of an algorithm, as an alternative."""
    return Alternative(variant.precision,
                       partial(_ready, contender, on_device, algorithm, variant))


def _ready(contender: str, on_device: _LayerOnDevice, algorithm: Algorithm,
           variant: Variant) -> ReadyContender:
    """Prepares the layer, computed by a variant of an algorithm, for timing."""
    problem, device = on_device.layer.problem, on_device.device
    (spec,) = variant.outputs
    state = build(algorithm, on_device.weights, problem, variant, device)
    sources = [on_device.source(index, source) for index, source in enumerate(variant.inputs)]
    target = device.empty(spec.nbytes, "a layer's output")
    workspace = device.empty(variant.workspace, "a layer's workspace") if (
        variant.workspace) else None

    def work(stream: Any) -> None:
        algorithm.launch(state, sources, [target], workspace, stream)

    def output(count: int) -> np.ndarray:
        # the first `count` images lie at the start of the memory, except where images are the
        # innermost axis
        read_spec = spec if not spec.format.images_are_apart else replace(
            spec, shape=(count, *spec.shape[1:]))
        stored = np.empty(read_spec.stored_shape, read_spec.stored_dtype)
        device.read(target, stored)
        return unpack(stored, read_spec)[:count]

    config = " ".join(filter(None, (algorithm.name, variant.config_text)))
    return ReadyContender(contender, device, work, output, _layouts(variant.inputs[0], spec),
                          config, variant.precision, captured=True)


def _layouts(source: TensorSpec, target: TensorSpec) -> str:
    return source.layout if source.layout == target.layout else (
        f"{source.layout} to {target.layout}")


def _lowered(network: PeerNetwork, rows: int) -> Layer:
    """Returns the one layer of a network, lowered to its problem."""
    (layer,), _ = lower(resolve(optimise(network.graph), rows))
    return layer


def _constants(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns a dense random weight and a random bias. The weight is scaled so that the activations
    of a layer are about as large as its inputs."""
    random = np.random.default_rng(0)
    scale = np.float32(math.sqrt(2 / math.prod(shape[1:])))
    weight = random.standard_normal(shape, np.float32) * scale
    return weight, random.standard_normal(shape[0], np.float32)
