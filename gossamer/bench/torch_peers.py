"""PyTorch at its best: batch norm folded, both memory formats, CUDA graphs, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from gossamer.bench.peers import AbsentError, Alternative, Network, Ready
from gossamer.bench.torch_networks import folded
from gossamer.device import find
from gossamer.device.base import Device

FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
BY_COLUMN = "row, weights by column"
MODES = {"torch-compile": "reduce-overhead", "torch-compile:max-autotune": "max-autotune"}
"""Of torch.compile; both replay CUDA graphs, and max-autotune first searches for many minutes."""
LAYER_MODES = {"torch-compile": "default",
               "torch-compile:max-autotune": "max-autotune-no-cudagraphs"}
"""For one layer, of which many executions are captured as one graph."""
_WARM_UP = 3
_GRAPH_US, _MOST_RUNS = 500.0, 50


class _Prepared:
    """A network and its input in one layout on the device that `device` times."""

    def __init__(self, network: Network, x: np.ndarray, device: Device, layout: str,
                 fused: bool = False) -> None:
        form = network.torch_fused if fused else network.torch
        assert form is not None
        strict_float32()
        self.settings = "cudnn_convolution_relu" if fused else (
            "one call an op" if network.is_layer else "batch norm folded")
        self.layout = layout
        self.on_cuda = device.api == "cuda"
        self.device = device if self.on_cuda else find("host")
        place = torch.device("cuda", device.index) if self.on_cuda else torch.device("cpu")
        module: Any = folded(form(network.graph.constants)).to(place)
        if layout in FORMATS:
            module = module.to(memory_format=FORMATS[layout])
        elif layout == BY_COLUMN:
            for linear in [m for m in module.modules() if isinstance(m, torch.nn.Linear)]:
                linear.weight.data = linear.weight.data.t().contiguous().t()
        self.module = module
        self.x = torch.from_numpy(x).to(place).contiguous(
            memory_format=FORMATS.get(layout, torch.contiguous_format))
        self._streams: dict[int, Any] = {}
        self._result: torch.Tensor | None = None

    def ready(self, contender: str, call: Callable[[], torch.Tensor], *settings: str,
              runs: int = 1) -> Ready:
        def run() -> None:
            self._result = call()

        def work(stream: Any) -> None:
            if not self.on_cuda:
                run()
                return
            with torch.cuda.stream(self._stream(stream)):
                run()

        self.synchronize()
        return Ready(contender, self.device, work, self._output, self.layout,
                     ", ".join(filter(None, settings)), runs=runs)

    def synchronize(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize(self.device.index)

    def _stream(self, stream: Any) -> Any:
        """torch's view of a stream of ours, on which our events time torch's work."""
        handle = self.device.stream_handle(stream)  # type: ignore[attr-defined]
        if handle not in self._streams:
            self._streams[handle] = torch.cuda.ExternalStream(handle, self.x.device)
        return self._streams[handle]

    def _output(self) -> np.ndarray:
        self.synchronize()
        assert self._result is not None
        return self._result.cpu().numpy()


def strict_float32() -> None:
    """No TF32 anywhere, and cuDNN searches for its fastest algorithms."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def alternatives(name: str, network: Network, x: np.ndarray, device: Device) -> list[Alternative]:
    """The ways to run torch-eager, torch-graph or one of MODES. Raises AbsentError."""
    if device.api == "cuda":
        if not torch.cuda.is_available():
            raise AbsentError("this torch sees no CUDA device: install a build for CUDA")
    elif name != "torch-eager":
        raise AbsentError("compared on CUDA only, where it replays a CUDA graph")
    layouts = FORMATS if x.ndim == 4 else ("row", BY_COLUMN)
    if name in MODES:
        torch._dynamo.reset()
        if network.is_layer:
            # all are compiled before the first is captured; see bench_cli on the order of peers
            return [_compiled_layer(name, layout, network, x, device) for layout in layouts]
        return [Alternative(layout, partial(_made, _compiled, name, network, x, device, layout))
                for layout in layouts]
    make = _graph if name == "torch-graph" else _eager
    found = [Alternative(layout, partial(_made, make, name, network, x, device, layout))
             for layout in layouts]
    if name == "torch-graph" and network.torch_fused is not None:
        found += [Alternative(f"{layout}, fused",
                              partial(_made, make, name, network, x, device, layout, True))
                  for layout in layouts]
    return found


def _made(make: Callable[[_Prepared, str], Ready], name: str, network: Network, x: np.ndarray,
          device: Device, layout: str, fused: bool = False) -> Ready:
    return make(_Prepared(network, x, device, layout, fused), name)


@torch.inference_mode()
def _run(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def _eager(prepared: _Prepared, contender: str) -> Ready:
    return prepared.ready(contender, partial(_run, prepared.module, prepared.x),
                          prepared.settings, "cudnn.benchmark" if prepared.on_cuda else "")


def _graph(prepared: _Prepared, contender: str) -> Ready:
    return _captured(prepared, contender, partial(_run, prepared.module, prepared.x),
                     prepared.settings, "cudnn.benchmark")


def _captured(prepared: _Prepared, contender: str, run: Callable[[], torch.Tensor],
              *settings: str) -> Ready:
    """As many executions in one CUDA graph as make the launch of the graph not count."""
    side = torch.cuda.Stream(prepared.x.device)
    side.wait_stream(torch.cuda.current_stream(prepared.x.device))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            start.record(side)
            run()
            end.record(side)
    prepared.synchronize()
    once = 1000 * start.elapsed_time(end)
    runs = max(1, min(_MOST_RUNS, round(_GRAPH_US / max(once, 1.0))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(runs):
            result = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return prepared.ready(contender, replay, *settings,
                          "CUDA graph" if runs == 1 else f"CUDA graph of {runs}", runs=runs)


def _compiled_layer(contender: str, layout: str, network: Network, x: np.ndarray,
                    device: Device) -> Alternative:
    mode = LAYER_MODES[contender]
    prepared = _Prepared(network, x, device, layout)
    compiled = torch.compile(prepared.module, mode=mode, dynamic=False, fullgraph=True)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return compiled(prepared.x)

    failure: Exception | None = None
    try:
        run()
    except Exception as error:
        failure = error

    def make() -> Ready:
        if failure is not None:
            raise failure
        return _captured(prepared, contender, run, f"mode {mode}")

    return Alternative(layout, make)


def _compiled(prepared: _Prepared, contender: str) -> Ready:
    mode = MODES[contender]
    # the input stays where it is, so that replaying needs no copy of it
    torch._dynamo.mark_static_address(prepared.x)
    # fullgraph: an error, rather than running uncompiled
    compiled = torch.compile(prepared.module, mode=mode, dynamic=False, fullgraph=True)

    def run() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return compiled(prepared.x)

    for _ in range(_WARM_UP):
        run()
    return prepared.ready(contender, run, f"mode {mode}", prepared.settings)
