"""The PyTorch peers: networks in several memory formats, with CUDA graphs and with torch.compile.
Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from gossamer.bench.peers.torch_calls import FLAGS, CapturedRun, folded
from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench.contender import (
    SEMI_STRUCTURED,
    Alternative,
    ReadyContender,
    processor_precisions,
)
from gossamer_bench.peers.semi_structured import semi_structured

FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
BY_COLUMN = "row, weights by column"
"""Layout of a fully connected layer whose weights are transposed in memory."""
MODES = {"torch-compile": "reduce-overhead", "torch-compile:max-autotune": "max-autotune"}
"""Modes of torch.compile. Both modes replay CUDA graphs; max-autotune first searches for many
minutes."""
GRAPH = "torch-compile-graph"
"""The peer that captures, in one CUDA graph, the code that torch.compile makes in its default
mode."""
LAYER_MODES = {"torch-compile": "default", GRAPH: "default", SEMI_STRUCTURED: "default",
               "torch-compile:max-autotune": "max-autotune-no-cudagraphs"}
"""Modes of torch.compile for single layers, and for the peers GRAPH and SEMI_STRUCTURED. One CUDA
graph then captures several executions of the compiled module."""
_WARM_UP = 3
_GRAPH_US, _MOST_RUNS = 500.0, 50
"""Microseconds that a captured graph should last, and most executions that one graph captures."""
_MOST_COMPILED = 64
"""The most modules that torch compiles in this process; torch counts the modules of all peers
together."""


class _TorchDevice:
    """The device that a network runs on, and the network's input on this device, copied once for
    each layout and precision."""

    def __init__(self, network: PeerNetwork, x: np.ndarray, device: Device) -> None:
        self.network = network
        self.on_cuda = device.runs_cuda_libraries
        self.device = device if self.on_cuda else find("host")
        self.torch_device = (torch.device("cuda", device.index) if self.on_cuda
                             else torch.device("cpu"))
        original = cache(lambda: torch.from_numpy(x).to(self.torch_device))

        @cache
        def inputs(layout: str, dtype: torch.dtype) -> torch.Tensor:
            return original().to(dtype).contiguous(
                memory_format=FORMATS.get(layout, torch.contiguous_format))

        self.input = inputs

    def synchronize(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize(self.torch_device)


class _PreparedModule:
    """A network and its input in one layout and precision, on the device that they run on."""

    def __init__(self, torch_device: _TorchDevice, precision: str, layout: str,
                 fused: bool = False, folds: bool = True) -> None:
        network = torch_device.network
        form = network.torch_fused if fused else network.torch
        assert form is not None
        FLAGS.use(precision)
        self.settings = "cudnn_convolution_relu" if fused else (
            "one call an op" if network.is_layer else "batch norm folded" if folds else "")
        self.torch_device, self.precision, self.layout = torch_device, precision, layout
        dtype = torch.float16 if precision == "fp16" else torch.float32
        module: Any = form(network.graph.constants)
        module = (folded(module) if folds else module).to(torch_device.torch_device, dtype)
        if layout in FORMATS:
            module = module.to(memory_format=FORMATS[layout])
        elif layout == BY_COLUMN:
            for linear in [m for m in module.modules() if isinstance(m, torch.nn.Linear)]:
                linear.weight.data = linear.weight.data.t().contiguous().t()
        self.module = module
        self.x = torch_device.input(layout, dtype)
        self._streams: dict[int, Any] = {}
        self._result: torch.Tensor | tuple[torch.Tensor, ...] | None = None

    def ready(self, contender: str, call: Callable[[], torch.Tensor], *settings: str,
              runs: int = 1) -> ReadyContender:
        """Returns the contender whose work is `call`, which queues `runs` executions."""
        def run() -> None:
            FLAGS.use(self.precision)
            self._result = call()

        def work(stream: Any) -> None:
            if not self.torch_device.on_cuda:
                run()
                return
            with torch.cuda.stream(self._stream(stream)):
                run()

        self.torch_device.synchronize()
        return ReadyContender(contender, self.torch_device.device, work, self._output, self.layout,
                              ", ".join(filter(None, settings)), self.precision, runs)

    def _stream(self, stream: Any) -> Any:
        """Returns a stream of gossamer as a torch stream, so that gossamer's events time torch's
        work."""
        handle = self.torch_device.device.stream_handle(stream)
        if handle not in self._streams:
            self._streams[handle] = torch.cuda.ExternalStream(handle, self.x.device)
        return self._streams[handle]

    def _output(self, count: int) -> np.ndarray:
        self.torch_device.synchronize()
        assert self._result is not None
        first = self._result[0] if isinstance(self._result, tuple) else self._result
        return first[:count].float().cpu().numpy()


def alternatives(name: str, network: PeerNetwork, x: np.ndarray, device: Device,
                 precisions: Sequence[str]) -> list[Alternative]:
    """Returns the ways to run torch-eager, torch-graph, GRAPH, SEMI_STRUCTURED or one of MODES in
    these precisions. Raises AbsentError."""
    if device.runs_cuda_libraries:
        if not torch.cuda.is_available():
            raise AbsentError("this torch sees no CUDA device: install a build for CUDA")
    elif name != "torch-eager":
        raise AbsentError("compared on CUDA only, where it replays a CUDA graph")
    else:
        precisions = processor_precisions(precisions)
    if name == SEMI_STRUCTURED and "fp16" not in precisions:
        raise AbsentError("compared in fp16 only")
    torch_device = _TorchDevice(network, x, device)
    layouts = tuple(FORMATS) if x.ndim == 4 else ("row", BY_COLUMN)
    ways = [(precision, layout) for precision in precisions for layout in layouts]
    if name == SEMI_STRUCTURED:
        ways = [("fp16", "NHWC" if x.ndim == 4 else "row")]
    if name in MODES or name in (GRAPH, SEMI_STRUCTURED):
        torch._dynamo.config.cache_size_limit = _MOST_COMPILED
        if network.is_layer or name not in MODES:
            # every layout and precision is compiled before the first CUDA graph is captured,
            # because a graph that is older than a compilation may fault (see contest.run)
            return [_compiled_now(name, torch_device, *way) for way in ways]
        return [Alternative(", ".join(way), partial(_prepared, _compiled, name, torch_device, *way))
                for way in ways]
    make = _graph if name == "torch-graph" else _eager
    result = [Alternative(", ".join(way), partial(_prepared, make, name, torch_device, *way))
              for way in ways]
    if name == "torch-graph" and network.torch_fused is not None:
        result += [Alternative(", ".join((*way, "fused")),
                               partial(_prepared, make, name, torch_device, *way, True))
                   for way in ways]
    return result


def product(device: Device, precision: str, size: int) -> Callable[[Any], None]:
    """Returns the product of two square matrices as work on a CUDA device."""
    ones = torch.ones(size, size, device=torch.device("cuda", device.index),
                      dtype=torch.float16 if precision == "fp16" else torch.float32)
    result = torch.empty_like(ones)

    def work(stream: Any) -> None:
        FLAGS.use(precision)
        handle = device.stream_handle(stream)
        with torch.cuda.stream(torch.cuda.ExternalStream(handle, ones.device)):
            torch.mm(ones, ones, out=result)

    return work


def _prepared(make: Callable[[_PreparedModule, str], ReadyContender], name: str,
              torch_device: _TorchDevice, precision: str, layout: str,
              fused: bool = False) -> ReadyContender:
    """Returns the contender that `make` makes of the network in this precision and layout."""
    return make(_PreparedModule(torch_device, precision, layout, fused), name)


@torch.inference_mode()
def _run(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def _eager(prepared: _PreparedModule, contender: str) -> ReadyContender:
    return prepared.ready(contender, partial(_run, prepared.module, prepared.x), prepared.settings,
                          "cudnn.benchmark" if prepared.torch_device.on_cuda else "")


def _graph(prepared: _PreparedModule, contender: str) -> ReadyContender:
    return _captured(prepared, contender, partial(_run, prepared.module, prepared.x),
                     prepared.settings, "cudnn.benchmark")


def _captured(prepared: _PreparedModule, contender: str, run: Callable[[], torch.Tensor],
              *settings: str) -> ReadyContender:
    """Returns the contender with several executions in one CUDA graph, so that the time to launch
    the graph is negligible."""
    FLAGS.use(prepared.precision)
    side_stream = torch.cuda.Stream(prepared.x.device)
    side_stream.wait_stream(torch.cuda.current_stream(prepared.x.device))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side_stream):
        for _ in range(_WARM_UP):
            start.record(side_stream)
            run()
            end.record(side_stream)
    prepared.torch_device.synchronize()
    execution_us = 1000 * start.elapsed_time(end)
    runs = max(1, min(_MOST_RUNS, round(_GRAPH_US / max(execution_us, 1.0))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side_stream):
        for _ in range(runs):
            result = run()

    return prepared.ready(contender, CapturedRun(graph, result, run), *settings,
                          "CUDA graph" if runs == 1 else f"CUDA graph of {runs}", runs=runs)


def _compiled_now(contender: str, torch_device: _TorchDevice, precision: str,
                  layout: str) -> Alternative:
    """Compiles a layer or network now; the alternative captures it later. Batch norms of networks
    are not folded, because torch.compile then makes faster code."""
    mode = LAYER_MODES[contender]
    prepared = _PreparedModule(torch_device, precision, layout,
                               folds=torch_device.network.is_layer)
    settings = [f"mode {mode}"]
    if contender == SEMI_STRUCTURED:
        prepared.module = semi_structured(prepared.module)
        settings.append("2:4 by cuSPARSELt")
    compiled = torch.compile(prepared.module, mode=mode, dynamic=False, fullgraph=True)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return compiled(prepared.x)

    failure: Exception | None = None
    try:
        run()
    except Exception as error:
        failure = error

    def make() -> ReadyContender:
        if failure is not None:
            raise failure
        return _captured(prepared, contender, run, *settings)

    return Alternative(f"{precision}, {layout}", make)


def _compiled(prepared: _PreparedModule, contender: str) -> ReadyContender:
    """Returns the network compiled by torch.compile, which captures CUDA graphs itself."""
    mode = MODES[contender]
    # the input keeps its address, so that replaying a graph needs no copy of it
    torch._dynamo.mark_static_address(prepared.x)
    # with fullgraph an operation that cannot be compiled is an error
    compiled = torch.compile(prepared.module, mode=mode, dynamic=False, fullgraph=True)

    def run() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return compiled(prepared.x)

    for _ in range(_WARM_UP):
        run()
    return prepared.ready(contender, run, f"mode {mode}", prepared.settings)
