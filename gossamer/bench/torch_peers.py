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
MODES = {"torch-compile": "reduce-overhead", "torch-compile:max-autotune": "max-autotune"}
"""Of torch.compile; both replay CUDA graphs, and max-autotune first searches for many minutes."""
_WARM_UP = 3


class _Prepared:
    """A network and its input in one memory format on the device that `device` times."""

    def __init__(self, network: Network, x: np.ndarray, device: Device, layout: str) -> None:
        assert network.torch is not None
        strict_float32()
        self.layout = layout
        self.on_cuda = device.api == "cuda"
        self.device = device if self.on_cuda else find("host")
        place = torch.device("cuda", device.index) if self.on_cuda else torch.device("cpu")
        module: Any = folded(network.torch(network.graph.constants))
        self.module = module.to(place).to(memory_format=FORMATS[layout])
        self.x = torch.from_numpy(x).to(place).contiguous(memory_format=FORMATS[layout])
        self._streams: dict[int, Any] = {}
        self._result: torch.Tensor | None = None

    def ready(self, contender: str, call: Callable[[], torch.Tensor], config: str) -> Ready:
        def run() -> None:
            self._result = call()

        def work(stream: Any) -> None:
            if not self.on_cuda:
                run()
                return
            with torch.cuda.stream(self._stream(stream)):
                run()

        self.synchronize()
        return Ready(contender, self.device, work, self._output, self.layout, config)

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

    def prepared(layout: str) -> _Prepared:
        return _Prepared(network, x, device, layout)

    if name in MODES:
        torch._dynamo.reset()
        return [Alternative(layout, lambda layout=layout: _compiled(prepared(layout), name))  # type: ignore[misc]
                for layout in FORMATS]
    make = _graph if name == "torch-graph" else _eager
    return [Alternative(layout, lambda layout=layout: make(prepared(layout)))  # type: ignore[misc]
            for layout in FORMATS]


@torch.inference_mode()
def _run(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def _eager(prepared: _Prepared) -> Ready:
    return prepared.ready("torch-eager", partial(_run, prepared.module, prepared.x),
                          "batch norm folded" + (", cudnn.benchmark" if prepared.on_cuda else ""))


def _graph(prepared: _Prepared) -> Ready:
    run = partial(_run, prepared.module, prepared.x)
    side = torch.cuda.Stream(prepared.x.device)
    side.wait_stream(torch.cuda.current_stream(prepared.x.device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            run()
    prepared.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return prepared.ready("torch-graph", replay, "batch norm folded, cudnn.benchmark, CUDA graph")


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
    return prepared.ready(contender, run, f"mode {mode}, batch norm folded")
