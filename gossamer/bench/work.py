"""The cases that are measured, their settings, and the contenders that are called."""

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
"""Largest normalised error by precision: a contender whose error is larger did not compute in that
precision. TF32 rounds to about 1e-3; integers are exact."""
TENSORS, ARRAYS, BYTES = "tensors", "arrays", "bytes"
"""The kinds of inputs of calls: float tensors of torch on the GPU, float32 NumPy arrays, or NumPy
arrays of uint8. The arrays of uint8 are decoded pictures in NHWC, which a call divides by 255.
Results are returned on the GPU for tensors, and on the host for arrays."""
BYTE_SCALE = 1 / 255
KINDS = (TENSORS, ARRAYS, BYTES)
OWN = "gossamer"
"""Name of gossamer among the contenders."""


class AbsentError(Exception):
    """Raised for a contender that cannot take part on this machine. The message has the reason and
    a remedy."""


@dataclass(frozen=True)
class PeerNetwork:
    """A network as gossamer's graph, as a PyTorch module and as an ONNX file.

    torch: function from the graph's constants to a torch.nn.Module, None where the network is not
    written in PyTorch.
    torch_fused: function like `torch`, whose module computes the whole layer in one call that only
    CUDA offers; None where CUDA has no such call.
    onnx: function that returns the content of the network's ONNX file; None where to_onnx writes
    this file from the graph.
    is_layer: True for a single layer, which takes so little time that the cost of a call from
    Python matters.
    """

    name: str
    graph: Graph
    torch: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    torch_fused: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    onnx: Callable[[], bytes] | None = None
    is_layer: bool = False


@dataclass(frozen=True)
class CalledContender:
    """A contender that is called as its users call it.

    new_call: function that makes a call. Each thread runs this function and then uses the call that
    the function made.
    output: function from the value that a call returned to an array with the result.
    runs: number of executions in one call, where a call is a loop over many batches; None where a
    call is a single execution.
    described: function from the microseconds of one execution to a text, which comes before
    `config` in the row.
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
    """The work that all contenders do.

    flops: least number of floating-point operations that the work takes, without operations on zero
    weights.
    least_bytes: bytes of nonzero weights, inputs and outputs when each of these float32 numbers is
    read or written once.
    density: share of nonzero weights.
    expected: output for the first images or rows, in float64.
    most_error: for each precision, the normalised error beyond which a result is wrong.
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
    """The settings that all cases of a run share.

    against: names of the peers and vendors' algorithms to compare with.
    precisions: precisions that each contender is measured in, the most precise first.
    tuner: function from a precision to the tuner of candidates in this precision or more precise
    ones.
    effort: how many candidates gossamer measures before it chooses.
    """

    device: Device
    tuner: Callable[[str], Tuner]
    against: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    effort: str = "normal"


def tuners(device: Device, effort: str, note: Callable[[str], None] = lambda line: None, *,
           kept: TuningCache | None = None, choice_only: bool = False,
           budget_s: float | None = None) -> Callable[[str], Tuner]:
    """Return a function from a precision to its tuner; all tuners share one tuning cache.

    The tuners measure every configuration that vendors' libraries offer, whatever the effort, so
    that each peer is measured at its best. With `choice_only` they measure no more candidates than
    `compile` does.

    choice_only: whether the plan that gossamer chooses is gossamer's only contender.
    budget_s: seconds for the candidates of each plan; None for no limit.
    """
    stored = TuningCache(device) if kept is None else kept

    @cache
    def tuner(precision: str) -> Tuner:
        return Tuner(device, effort, precision=precision, cache=stored, note=note,
                     all_vendor_configs=not choice_only, budget_s=budget_s)

    return tuner


def least_work(layer: Layer) -> tuple[int, int]:
    """Return the least FLOPs and the least bytes of a layer, as its problem states them, less the
    operations and the bytes of zero weights."""
    flops, size = layer.problem.flops, layer.problem.least_bytes
    weight = layer.weights.get("weight")
    if weight is None or layer.op not in ("conv2d", "gemm") or not weight.size:
        return flops, size
    zeros = weight.size - int(np.count_nonzero(weight))
    uses = layer.problem.outputs[0].size // len(weight)
    return flops - 2 * zeros * uses, size - 4 * zeros


def normalised(x: np.ndarray) -> np.ndarray:
    """Return an array of uint8 as the network reads it: divided by 255, in float32 and NCHW."""
    values = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    return np.ascontiguousarray(values) * np.float32(BYTE_SCALE)
