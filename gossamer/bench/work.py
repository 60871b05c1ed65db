"""Benchmark cases, run settings, and contenders that are timed through Python calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gossamer.bench.call_times import Call
from gossamer.device.base import Device
from gossamer.model.graph import Graph
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner

MOST_ERROR = {"fp64": 1e-12, "fp32": 1e-4, "tf32": 2e-3, "fp16": 2e-3, "int8": 0.0,
              "b1": 0.0}
"""Largest normalised error of each precision.

A contender with a larger error did not compute in that precision. The rounding error of TF32 is
about 1e-3; integers are exact.
"""
TENSORS, ARRAYS, BYTES = "tensors", "arrays", "bytes"
"""The kinds of inputs of calls.

TENSORS are torch tensors of floats on the GPU. ARRAYS are float32 NumPy arrays. BYTES are uint8
NumPy arrays: decoded pictures in NHWC, whose values a call divides by 255. Results are on the GPU
for TENSORS, and on the host for ARRAYS and BYTES.
"""
BYTE_SCALE = 1 / 255
KINDS = (TENSORS, ARRAYS, BYTES)
OWN = "gossamer"
"""The name of gossamer as a contender."""


class AbsentError(Exception):
    """A contender that cannot run on this machine.

    The message contains the reason and a remedy.
    """


@dataclass(frozen=True)
class PeerNetwork:
    """A network as a graph, a PyTorch module and an ONNX file.

    torch: function from the graph's constants to a torch.nn.Module; None if the network has no
    PyTorch code.
    torch_fused: function like `torch`, for a module that computes the whole layer in one torch
    call. Such calls exist only for CUDA. None if there is no such call for the layer.
    onnx: function that returns the content of the network's ONNX file; None if to_onnx writes it
    from the graph.
    is_layer: True for a single layer, which is so fast that the overhead of a Python call matters.
    """

    name: str
    graph: Graph
    torch: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    torch_fused: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    onnx: Callable[[], bytes] | None = None
    is_layer: bool = False


@dataclass(frozen=True)
class CalledContender:
    """A contender that is timed through Python calls, as its users call it.

    new_call: function that creates a call; each thread creates its own.
    output: function that converts the return value of a call to a result array.
    runs: number of executions per call, if a call loops over many batches; otherwise None.
    described: function that takes the microseconds of one execution, and returns the text that
    precedes `config` in the row.
    """

    contender: str
    device: Device
    new_call: Callable[[], Call]
    output: Callable[[Any], np.ndarray]
    layout: str
    config: str
    precision: str = "fp32"
    runs: float | None = None
    described: Callable[[float], str] = lambda us: ""


@dataclass(frozen=True)
class Case:
    """The common work of all contenders.

    flops: minimum number of floating-point operations, without operations on zero weights.
    least_bytes: minimum traffic in bytes: every nonzero weight, input and output is read or written
    once in float32.
    density: share of nonzero weights.
    expected: output for the first images or rows, in float64.
    most_error: largest accepted normalised error of each precision.
    """

    suite: str
    name: str
    batch: int
    flops: int
    least_bytes: int
    density: float
    expected: np.ndarray
    notes: tuple[str, ...] = ()
    most_error: Mapping[str, float] = field(default_factory=lambda: MOST_ERROR)


@dataclass(frozen=True)
class Setting:
    """The common settings of all cases of a run.

    against: names of the peers and vendor algorithms to compare with.
    precisions: measured precisions, most precise first.
    tuner: function that returns, for a precision, the tuner of candidates in this and higher
    precisions.
    effort: gossamer's tuning effort.
    """

    device: Device
    tuner: Callable[[str], Tuner]
    against: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    effort: str = "normal"


def tuners(device: Device, effort: str, note: Callable[[str], None] = lambda line: None, *,
           kept: TuningCache | None = None, choice_only: bool = False,
           budget_s: float | None = None) -> Callable[[str], Tuner]:
    """Return a function that returns the tuner for a precision.

    All tuners share one tuning cache. By default, the tuners measure every configuration of vendor
    libraries at any effort, so that each peer is measured at its best. With `choice_only`, the
    tuners measure only the candidates that `compile` measures.

    choice_only: whether the plan chosen by gossamer is gossamer's only contender.
    budget_s: seconds for the candidates of each plan; None for no limit.
    """
    stored = TuningCache(device) if kept is None else kept

    @cache
    def tuner(precision: str) -> Tuner:
        return Tuner(device, effort, precision=precision, cache=stored, note=note,
                     all_vendor_configs=not choice_only, budget_s=budget_s)

    return tuner


def least_work(layer: Layer) -> tuple[int, int]:
    """Return a layer's minimum FLOPs and traffic in bytes, without zero weights."""
    flops, size = layer.problem.flops, layer.problem.least_bytes
    weight = layer.weights.get("weight")
    if weight is None or layer.op not in ("conv2d", "gemm") or not weight.size:
        return flops, size
    zeros = weight.size - int(np.count_nonzero(weight))
    uses = layer.problem.outputs[0].size // len(weight)
    return flops - 2 * zeros * uses, size - 4 * zeros


def normalised(x: np.ndarray) -> np.ndarray:
    """Convert a uint8 array in NHWC to float32 in NCHW, divided by 255."""
    values = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    return np.ascontiguousarray(values) * np.float32(BYTE_SCALE)
