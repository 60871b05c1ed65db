"""Records of the peers in PyTorch, with the stand-in: what they call, how they are set up, and what
they compute."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.bench.contender import SEMI_STRUCTURED, PeerNetwork
from gossamer.bench.fresh_process import Job
from gossamer.bench.peers.call_inputs import BYTES, KINDS
from gossamer.bench.peers.calls import CALLED_PEERS
from gossamer.bench.peers.inference import PEERS
from gossamer.bench.peers.training_peers import TRAINING_PEERS
from gossamer.bench.pruned_graphs import two_of_four
from gossamer.bench.suites.training import TrainingCase, make_epoch
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.model.builder import GraphBuilder
from tests.bench.networks import tiny
from tests.bench.stand_ins import torch_stand_in
from tests.bench.stand_ins.torch_tensors import CALLS
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome

pytestmark = pytest.mark.skipif(find_spec("torch") is not None,
                                reason="records have the calls of torch's stand-in")
NAMES = ("torch-eager", "torch-graph", "torch-compile", "torch-compile-graph", SEMI_STRUCTURED,
         "torch-compile:max-autotune")


class Gpu(HostDevice):
    """The host as the second CUDA device, whose streams have numbers."""

    runs_cuda_libraries = True

    def __init__(self, index: int = 1) -> None:
        super().__init__()
        self.index = index

    def stream_handle(self, stream: Any) -> int:
        return 100 + (stream or 0)


@pytest.fixture(autouse=True)
def fresh(needs_torch: None) -> Iterator[None]:
    from gossamer.bench.peers import torch_peers

    torch_peers.forget()
    CALLS.clear()
    yield
    torch_peers.forget()


def told() -> str:
    """Returns what was called since the last time."""
    text = f"calls {digest(CALLS)} {' / '.join(CALLS)}"
    CALLS.clear()
    return text


def computed(array: Any) -> str:
    return digest(np.round(np.asarray(array, np.float64), 3) + 0.0)


def layer(channels: int, out: int, size: int, stride: int, groups: int = 1,
          pruned: bool = False) -> PeerNetwork:
    """Returns a convolution with bias and ReLU as a network of the suites, in both forms."""
    from gossamer.bench.peers.torch_networks import convolution_layer

    rng = np.random.default_rng(3)
    weight = rng.integers(-2, 3, (out, channels // groups, size, size)).astype(np.float32)
    build = GraphBuilder("layer")
    name = build.constant("0.weight", weight)
    bias = build.constant("0.bias", rng.integers(-2, 3, out).astype(np.float32))
    y = build.conv2d(build.input("x", (None, channels, 6, 6)), name, bias,
                     strides=(stride, stride), pads=(size // 2,) * 4, groups=groups)
    build.output(build.apply("relu", y), (None, out, None, None))
    graph = build.finish()
    form = partial(convolution_layer, stride=stride, pad=size // 2, groups=groups)
    return PeerNetwork("layer", graph, partial(form, fused=False), partial(form, fused=True),
                       is_layer=True)


def product(relu: bool, bias: bool) -> PeerNetwork:
    from gossamer.bench.peers.torch_networks import linear_layer

    rng = np.random.default_rng(4)
    build = GraphBuilder("product")
    names = [build.constant("0.weight", rng.integers(-2, 3, (5, 4)).astype(np.float32))]
    if bias:
        names.append(build.constant("0.bias", rng.integers(-2, 3, 5).astype(np.float32)))
    build.output(build.gemm(build.input("x", (None, 4)), *names, trans_b=True), (None, 5))
    return PeerNetwork("product", build.finish(),
                       lambda constants: linear_layer(constants, relu), is_layer=True)


def sparse() -> PeerNetwork:
    """Returns a network with weights in the pattern 2:4, of which some layers take part."""
    from gossamer.bench.peers.graph_module import graph_module

    build, rng = GraphBuilder("sparse"), np.random.default_rng(5)

    def weight(*shape: int) -> str:
        return build.constant(f"w{shape}", rng.integers(-2, 3, shape).astype(np.float32))

    y = build.conv2d(build.input("x", (None, 64, 3, 4)), weight(64, 64, 1, 1), strides=(2, 1))
    for shape, pads, groups in (((64, 64, 1, 1), (1, 1, 1, 1), 1), ((64, 64, 1, 1), (0,) * 4, 1),
                                ((64, 32, 1, 1), (0,) * 4, 2), ((32, 64, 3, 1), (0,) * 4, 1)):
        y = build.conv2d(y, weight(*shape), pads=pads, groups=groups)
    y = build.conv2d(y, weight(64, 32, 1, 1))
    y = build.reduce(y, "mean", (2, 3), keepdims=False)
    build.output(build.gemm(y, weight(96, 64), trans_b=True), (None, 96))
    graph = two_of_four(build.finish())
    return PeerNetwork("sparse", graph, lambda constants: graph_module(graph, 2))


NETWORKS: dict[str, tuple[Callable[[], PeerNetwork], tuple[int, ...]]] = {
    "tiny": (tiny, (2, 3, 8, 8)), "layer": (lambda: layer(4, 6, 3, 2), (2, 4, 6, 6)),
    "groups": (lambda: layer(4, 6, 1, 1, 2), (2, 4, 6, 6)),
    "product": (lambda: product(False, True), (3, 4)),
    "product with ReLU": (lambda: product(True, False), (3, 4)),
    "sparse": (sparse, (2, 64, 3, 4))}


def inputs(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(6).integers(-2, 3, shape).astype(np.float32)


def test_networks(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for network, name, (device, precisions) in itertools.product(NETWORKS, NAMES, (
            (Gpu(), ("fp32", "tf32", "fp16")), (find("host"), ("fp32", "fp16")),
            (find("host"), ("tf32",)), (Gpu(), ("fp32",)))):
        made, shape = NETWORKS[network]
        x, case = inputs(shape), f"{name} {network} {device.name} {len(precisions)} {precisions[0]}"

        def texts(ways: Any, case: str = case) -> str:
            for way in ways:
                def used(ready: Any) -> str:
                    for stream in (None, 7, 7):
                        ready.work(stream)
                    return as_text([ready.contender, ready.layout, ready.config, ready.precision,
                                    ready.runs, ready.device.index, computed(ready.output(1))])

                found[f"{case}, {way.label}"] = f"{outcome(way.make, text=used)} {told()}"
            return as_text([way.label for way in ways])

        found[case] = outcome(PEERS[name], made(), x, device, precisions, text=texts)
    found["not in PyTorch"] = outcome(PEERS["torch-eager"], replace(tiny(), torch=None),
                                      inputs((2, 3, 8, 8)), Gpu(), ("fp32",))
    for microseconds in (0.5, 1.0, 8.0, 10.0, 10.2, 300.0, 333.0, 334.0, 2000.0):
        monkeypatch.setattr(torch_stand_in._Event, "microseconds", microseconds)
        ready = PEERS["torch-graph"](layer(4, 6, 1, 1), inputs((2, 4, 6, 6)), Gpu(), ("fp32",))[0]
        found[f"{microseconds} us"] = outcome(
            ready.make, text=lambda each: as_text([each.config, each.runs]))
    monkeypatch.setattr(torch_stand_in, "AVAILABLE", [False])
    for name in NAMES:
        found[f"{name} without CUDA"] = outcome(PEERS[name], tiny(), inputs((2, 3, 8, 8)), Gpu(),
                                                ("fp32",))
    recorded("torch_networks", found)


def test_calls(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.bench.peers import torch_calls

    found = {}
    for network, name, device, precision, kind, threads in itertools.product(
            ("tiny", "product"), torch_calls._MODES | {"torch-eager": None}, (Gpu(), find("host")),
            ("fp32", "tf32", "fp16"), KINDS, (1, 2)):
        made, shape = NETWORKS[network]
        x = inputs(shape)
        if kind == BYTES:
            x = (np.abs(x) * 100).astype(np.uint8)
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x

        def used(called: Any) -> str:
            call = called.new_call()
            results = [called.output(call()) for _ in range(2)]
            return as_text([called.contender, called.layout, called.config, called.precision,
                            called.device.index, *map(computed, results)])

        case = f"{network} {name} {device.name}{device.index} {precision} {kind} {threads}"
        text = outcome(CALLED_PEERS[name], made(), x, device, precision, kind, threads, text=used)
        found[case] = f"{text} {told()}"
    found["not in PyTorch"] = outcome(CALLED_PEERS["torch-eager"], replace(tiny(), torch=None), x,
                                      Gpu(), "fp32", KINDS[0], 1)
    monkeypatch.setattr(torch_stand_in, "AVAILABLE", [False])
    found["without CUDA"] = outcome(torch_calls.called, "torch-eager", tiny(), x, Gpu(), "fp32",
                                    KINDS[0], 1)
    recorded("torch_calls", found)


def test_training(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.bench.peers import training_torch

    found = {}
    for most, samples, networks, device, name in itertools.product(
            (4, 100), (1, 4, 5, 6), (1, 3), (Gpu(), find("host")), ("torch-eager", "torch-graph")):
        monkeypatch.setattr(training_torch, "_MOST_STEPS", most)
        epoch = make_epoch(TrainingCase("", (4, 3, 2), samples, networks))

        def used(ways: Any) -> str:
            (way,) = ways
            ready = way.make()
            ready.work(5)
            return as_text([way.label, ready.config, ready.layout, ready.runs, ready.device.index,
                            computed(100 * ready.output(1))])

        text = outcome(TRAINING_PEERS[name], epoch, device, text=used)
        found[f"{name} {device.name}{device.index} {samples} {networks} {most}"] = (
            f"{text} {told()}")
    monkeypatch.setattr(torch_stand_in, "AVAILABLE", [False])
    found["without CUDA"] = outcome(TRAINING_PEERS["torch-graph"], epoch, Gpu())
    recorded("torch_training", found)


def test_first_calls(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.bench.peers import torch_first_call

    monkeypatch.setattr(time, "perf_counter", iter(range(1000)).__next__)
    found = {}
    for device, precision, network in itertools.product(
            (Gpu(), find("host")), ("fp32", "tf32", "fp16"), ("tiny", "product", "sparse")):
        made, shape = NETWORKS[network]
        monkeypatch.setattr(torch_first_call, "find", lambda name, device=device: device)
        job = Job("torch-compile", made().graph, inputs(shape), 1, "cuda:1", precision, "quick")
        text = outcome(torch_first_call.first_call, job,
                       text=lambda result: f"{computed(result[0])} {as_text(result[1])}")
        found[f"{device.name}{device.index} {precision} {network}"] = f"{text} {told()}"
    monkeypatch.setattr(torch_stand_in, "AVAILABLE", [False])
    monkeypatch.setattr(torch_first_call, "find", lambda name: Gpu())
    found["without CUDA"] = outcome(torch_first_call.first_call, job)
    recorded("torch_first_calls", found)


def test_modules(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.bench.peers import module_calls

    monkeypatch.setattr(time, "monotonic", iter(range(1000)).__next__)
    monkeypatch.setattr(gossamer, "optimize", lambda module, x, effort: module, raising=False)
    names = ("torch-eager", *module_calls._MODES, "gossamer")
    found = {}
    for network, device, precision in itertools.product(
            ("layer", "product"), (Gpu(), find("host")), ("fp32", "fp16", "tf32")):
        made, shape = NETWORKS[network]

        def module(name: str, place: Any, dtype: Any, made: Callable[[], PeerNetwork] = made,
                   shape: tuple[int, ...] = shape) -> Any:
            form = made()
            assert form.torch is not None
            return form.torch(form.graph.constants).to(place, dtype), shape[1:]

        monkeypatch.setattr(module_calls, "made", module)

        def of(work: Any, name: str) -> Any:
            return work.own("quick") if name == "gossamer" else work.peer(name)

        def used(called: Any) -> str:
            result = called.output(called.new_call()())
            return as_text([called.contender, called.layout, called.config, called.precision,
                            called.device.index, list(result.shape)])

        case = f"{network} {device.name}{device.index} {precision}"
        try:
            work = module_calls.ModuleWork("name", 5, device, precision)
        except Exception as error:
            found[case] = f"{type(error).__name__}: {error}"
            continue
        found[case] = (f"{work.parameters} {work.multiplications} {work.expected.shape} "
                       f"{work.x!r} {work.largest_error < 0.1} {told()}")
        for name in names:
            found[f"{case} {name}"] = f"{outcome(of, work, name, text=used)} {told()}"
    monkeypatch.setattr(torch_stand_in, "AVAILABLE", [False])
    found["without CUDA"] = outcome(module_calls.ModuleWork, "name", 5, Gpu(), "fp32")
    recorded("torch_modules", found)


def test_products_of_matrices(recorded: Recorded) -> None:
    from gossamer.bench.peers import torch_peers

    found = {}
    for precision in ("fp32", "tf32", "fp16", "fp16", "fp32"):
        torch_peers.product(Gpu(), precision, 3)(9)
        found[f"{len(found)} {precision}"] = told()
    torch_peers.forget()
    found["forgotten"] = told()
    recorded("torch_products", found)


def test_names_of_weights(recorded: Recorded) -> None:
    from gossamer.bench.peers.torch_networks import MobileNetV2, folded, with_weights

    network = MobileNetV2()
    found = {name: str(list(tensor.shape)) for name, tensor in network.state_dict().items()
             if "num_batches" not in name and "running" not in name}
    strides = [(module.stride, module.padding, module.groups) for module in network.modules()
               if hasattr(module, "stride")]
    found["windows"] = digest([list(map(str, window)) for window in strides])
    found["adds"] = str([module.adds for module in network.modules() if hasattr(module, "adds")])
    weights = {name: tensor.array for name, tensor in network.state_dict().items()
               if not name.endswith("num_batches_tracked")}
    network = with_weights(network, weights)
    found["folded"] = digest([type(module).__name__ for module in folded(network).modules()])
    del weights["classifier.1.bias"]
    found["without a bias"] = outcome(with_weights, network, weights)
    recorded("torch_mobilenet", found)
