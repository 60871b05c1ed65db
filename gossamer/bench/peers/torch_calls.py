"""PyTorch as users call it: eager, compiled or captured; needs torch."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from gossamer.bench.call_times import Call
from gossamer.bench.work import (
    BYTE_SCALE,
    BYTES,
    TENSORS,
    AbsentError,
    CalledContender,
    PeerNetwork,
    normalised,
)
from gossamer.device.base import Device
from gossamer.device.registry import find

GRAPH = "torch-compile-graph"
"""The peer that calls torch.compile and then captures the compiled module in one CUDA graph."""
_MODES = {"torch-compile": None, GRAPH: None, "torch-compile:reduce-overhead": "reduce-overhead"}
"""The modes passed to torch.compile; None for its default mode."""
_WARM_UP = 3
"""Number of calls before PyTorch is timed or captured, during which it compiles."""


def called(name: str, network: PeerNetwork, x: np.ndarray, device: Device, precision: str,
           kind: str, threads: int) -> CalledContender:
    """Return a peer ready to be called; see gossamer.bench.peers.calls. Raises AbsentError."""
    on_cuda = device.runs_cuda_libraries
    if on_cuda and not torch.cuda.is_available():
        raise AbsentError("torch finds no CUDA device: install a CUDA build of torch")
    if not on_cuda and name != "torch-eager":
        raise AbsentError("compared only on CUDA, where it generates GPU kernels")
    if not on_cuda and precision == "tf32":
        raise AbsentError("processors do not support TF32")
    if threads > 1 and name in (GRAPH, "torch-compile:reduce-overhead"):
        raise AbsentError("a CUDA graph has a single input buffer, and supports only one thread")
    place = torch.device("cuda", device.index) if on_cuda else torch.device("cpu")
    run, source = _prepared(name, network, x if kind != BYTES else normalised(x), place, precision)
    static = source if name == GRAPH else None

    def queued(given: torch.Tensor) -> Any:
        FLAGS.use(precision)
        if static is not None and given is not static:
            static.copy_(given)
        return run(source if static is not None else given)

    def new_call() -> Call:
        if kind == TENSORS:
            def call() -> Any:
                result = queued(source)
                torch.cuda.current_stream(place).synchronize()
                return result
        else:
            def call() -> Any:
                given = torch.from_numpy(x)
                if kind == BYTES:
                    # the GPU divides the bytes by 255
                    given = given.to(place)
                    given = given.permute(0, 3, 1, 2) if given.ndim == 4 else given
                    given = given.to(source.dtype) * BYTE_SCALE
                if static is None:
                    given = given.to(place).to(source.dtype).contiguous(
                        memory_format=_format(source))
                result = queued(given)
                return _first(result).float().cpu().numpy()
        return call

    mode = _MODES.get(name)
    config = ("batch norm folded" if name == "torch-eager" else f"mode {mode or 'default'}")
    layout = "NHWC" if source.ndim == 4 and _format(source) is torch.channels_last else (
        "NCHW" if source.ndim == 4 else "row")
    return CalledContender(name, device if on_cuda else find("host"), new_call, _output, layout,
                           config + (", one CUDA graph" if name == GRAPH else ""), precision)


def _prepared(name: str, network: PeerNetwork, x: np.ndarray, place: torch.device,
              precision: str) -> tuple[Callable[[torch.Tensor], Any], torch.Tensor]:
    """Return the function that runs the network, and the input on the network's device.

    In fp16, images are in NHWC, as PyTorch recommends.
    """
    assert network.torch is not None
    FLAGS.use(precision)
    dtype = torch.float16 if precision == "fp16" else torch.float32
    order = torch.channels_last if x.ndim == 4 and precision == "fp16" else torch.contiguous_format
    module = network.torch(network.graph.constants)
    # torch.compile generates faster code from unfolded batch norms
    module = (folded(module) if name == "torch-eager" else module).to(place, dtype)
    if order is torch.channels_last:
        module = module.to(memory_format=order)
    source = torch.from_numpy(x).to(place).to(dtype).contiguous(memory_format=order)
    if name == "torch-eager":
        return torch.inference_mode()(module), source
    mode = _MODES[name]
    compiled = torch.compile(module, mode=mode) if mode else torch.compile(module)
    run = torch.no_grad()(compiled)
    for _ in range(_WARM_UP):
        run(source)
    return (captured(run, source) if name == GRAPH else run), source


def captured(run: Callable[[torch.Tensor], Any], source: torch.Tensor) -> CapturedRun:
    """Capture one execution with the input `source` in a CUDA graph."""
    side = torch.cuda.Stream(source.device)
    side.wait_stream(torch.cuda.current_stream(source.device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            run(source)
    torch.cuda.synchronize(source.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = run(source)
    return CapturedRun(graph, result, run)


def _format(source: torch.Tensor) -> torch.memory_format:
    if source.ndim == 4 and source.is_contiguous(memory_format=torch.channels_last) and (
            not source.is_contiguous()):
        return torch.channels_last
    return torch.contiguous_format


def _first(result: Any) -> torch.Tensor:
    first: torch.Tensor = result[0] if isinstance(result, (tuple, list)) else result
    return first


def _output(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    array: np.ndarray = _first(value).float().cpu().numpy()
    return array


class _Flags:
    """torch's process-wide switches for TF32 and cuDNN's algorithm search.

    The switches take effect when cuDNN searches, runs and captures an algorithm, so each call sets
    the switches that it needs. To save time, the switches are written only if their values change.
    """

    def __init__(self) -> None:
        self._tf32: bool | None = None
        self._before: tuple[bool, bool, bool] | None = None

    def use(self, precision: str) -> None:
        """Allow TF32 only in precision "tf32", and enable cuDNN's algorithm search."""
        tf32 = precision == "tf32"
        if tf32 is self._tf32:
            return
        if self._before is None:
            # torch warns that these switches are deprecated, but torch.compile reads them, and
            # fails if only the newer ones are set
            with warnings.catch_warnings(action="ignore"):
                self._before = (torch.backends.cuda.matmul.allow_tf32,
                                torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark)
                self._write(*self._before)
        self._write(tf32, tf32, True)
        self._tf32 = tf32

    def restore(self) -> None:
        """Restore the values from before the first use."""
        if self._before is not None:
            self._write(*self._before)
        self._tf32 = self._before = None

    @staticmethod
    def _write(products: bool, convolutions: bool, search: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.backends.cudnn.benchmark = search


FLAGS = _Flags()
"""The switches of this process."""


@dataclass(frozen=True)
class CapturedRun:
    """A module's execution as a CUDA graph.

    A call accepts the arguments of `run`, but ignores them: the graph reads its input from the
    memory with which it was captured.

    graph: the graph.
    result: the output, overwritten by each execution.
    run: function that executes the module. The reference to `run` keeps the weights alive, because
    the graph does not own them.
    """

    graph: torch.cuda.CUDAGraph
    result: Any
    run: Callable[..., Any]

    def __call__(self, *_: torch.Tensor) -> Any:
        self.graph.replay()
        return self.result


def forget() -> None:
    """Restore the process's settings, and drop compiled modules."""
    FLAGS.restore()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def folded(network: nn.Module) -> nn.Module:
    """Return a copy with batch norms folded into convolutions.

    Only batch norms that follow a convolution in an nn.Sequential are folded.
    """
    network = copy.deepcopy(network)
    for sequence in [m for m in network.modules() if isinstance(m, nn.Sequential)]:
        for index in reversed(range(len(sequence) - 1)):
            conv, norm = sequence[index], sequence[index + 1]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                sequence[index] = fuse_conv_bn_eval(conv, norm)
                del sequence[index + 1]
    return network
