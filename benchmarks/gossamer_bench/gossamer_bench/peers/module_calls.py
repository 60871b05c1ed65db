"""Calls modules of PyTorch as their users do. A module is optimised by gossamer, runs eagerly, is
compiled in one of the modes of torch.compile, or is captured in one CUDA graph."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gossamer
from gossamer.bench.call_times import Call
from gossamer.bench.peers.torch_calls import FLAGS, captured
from gossamer.bench.work import OWN, AbsentError, CalledContender
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench.modules import made, multiplications

EAGER, COMPILED, GRAPH = "torch-eager", "torch-compile", "torch-compile-graph"
REDUCED = "torch-compile:reduce-overhead"
AUTOTUNED = "torch-compile:max-autotune-no-cudagraphs"
_MODES = {COMPILED: "default", GRAPH: "default", REDUCED: "reduce-overhead",
          AUTOTUNED: "max-autotune-no-cudagraphs"}
_ON_CUDA_ALONE = (GRAPH, REDUCED)
_CHECKED = 4
_WARM_UP = 3
_WORSE_THAN_TORCH = 2


class ModuleWork:
    """A module with an input on a device, and its contenders.

    name: name of the network, as gossamer_bench.modules has it.
    precision: "fp32", or "fp16" for a module in float16 and channels_last.
    expected: output for the first pictures, in float64.
    largest_error: twice the normalised error of torch's own output in this precision.
    Raises AbsentError where the module cannot be made.
    """

    def __init__(self, name: str, batch: int, device: Device, precision: str) -> None:
        if precision == "tf32":
            raise AbsentError("modules are compared in float32 and in float16")
        on_cuda = device.runs_cuda_libraries
        if on_cuda and not torch.cuda.is_available():
            raise AbsentError("this torch sees no CUDA device: install a build for CUDA")
        self.device = device if on_cuda else find("host")
        self.precision = precision
        self._place = torch.device("cuda", device.index) if on_cuda else torch.device("cpu")
        dtype = torch.float16 if precision == "fp16" else torch.float32
        torch._dynamo.reset()
        self.module, self.size = made(name, self._place, dtype)
        x = torch.randn(batch, *self.size, generator=torch.Generator().manual_seed(1))
        self.x = x.to(self._place, dtype)
        if precision == "fp16":
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        FLAGS.use(precision)
        with torch.inference_mode():
            exact = copy.deepcopy(self.module).double()(self.x[:_CHECKED].double())
            self.expected = _array(exact)
            theirs = _array(self.module(self.x[:_CHECKED]))
        self.largest_error = _WORSE_THAN_TORCH * gossamer.accuracy.normalised_error(
            theirs, self.expected)
        self._compiled: dict[str, tuple[Callable[[Any], Any], float]] = {}

    @property
    def parameters(self) -> int:
        """The number of the module's parameters."""
        return sum(weight.numel() for weight in self.module.parameters())

    @property
    def multiplications(self) -> int:
        """The number of multiplications in one call."""
        return multiplications(self.module, self.x)

    def own(self, effort: str) -> CalledContender:
        """Returns the module that `gossamer.optimize` makes."""
        start = time.monotonic()
        fast = gossamer.optimize(self.module, self.x, effort=effort)
        return self._contender(OWN, fast, f"optimised in {time.monotonic() - start:.0f} s")

    def peer(self, name: str) -> CalledContender:
        """Returns the peer of this name: the module called eagerly, or compiled. Raises AbsentError
        for peers with CUDA graphs where there is no CUDA device."""
        if name in _ON_CUDA_ALONE and self._place.type != "cuda":
            raise AbsentError("makes CUDA graphs")
        if name == EAGER:
            return self._contender(name, torch.inference_mode()(self.module), "")
        mode = _MODES[name]
        if mode not in self._compiled:
            start = time.monotonic()
            run = torch.no_grad()(torch.compile(self.module, mode=mode))
            for _ in range(_WARM_UP):
                run(self.x)
            self._synchronise()
            self._compiled[mode] = run, time.monotonic() - start
        run, seconds = self._compiled[mode]
        config = f"mode {mode}, compiled in {seconds:.0f} s"
        if name == GRAPH:
            return self._contender(name, captured(run, self.x), f"{config}, one CUDA graph")
        return self._contender(name, run, config)

    def _contender(self, name: str, run: Callable[[Any], Any], config: str) -> CalledContender:
        def new_call() -> Call:
            FLAGS.use(self.precision)

            def call() -> Any:
                result = run(self.x)
                self._synchronise()
                return result
            return call

        layout = "NHWC" if self.precision == "fp16" else "NCHW"
        return CalledContender(name, self.device, new_call, _array, layout, config, self.precision)

    def _synchronise(self) -> None:
        if self._place.type == "cuda":
            torch.cuda.synchronize(self._place)


def _array(value: Any) -> np.ndarray:
    tensor = value[0] if isinstance(value, (tuple, list)) else value
    array: np.ndarray = tensor.detach().double().cpu().numpy()
    return array
