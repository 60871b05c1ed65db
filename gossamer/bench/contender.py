"""Contenders of benchmarks: the networks that they are given, and their work, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.bench.call_times import Call
from gossamer.device.base import Device
from gossamer.measure import Timing, Work
from gossamer.model.graph import Graph

OWN = "gossamer"
"""Name of gossamer among the contenders."""
UNFUSED = "unfused"
"""Name of the plan without fusions. The name is used like the name of an algorithm."""
DENSE = "dense"
"""Name of the plan of a dense network: the same network with random numbers in place of its zero
weights. The name is used like the name of an algorithm."""
OTHER_PLANS = (UNFUSED, DENSE)
"""Names of plans that force no algorithm."""
SEMI_STRUCTURED = "torch-compile-graph:2:4"
"""The peer torch-compile-graph with torch's semi-structured tensors for weights in the pattern
2:4."""


class AbsentError(Exception):
    """Raised for a contender that cannot take part on this machine. The message has the reason and
    a remedy."""


def processor_precisions(precisions: Sequence[str]) -> list[str]:
    """Returns the given precisions that the processor has: all but tf32. Raises AbsentError where
    no precision is left."""
    if left := [precision for precision in precisions if precision != "tf32"]:
        return left
    raise AbsentError("the processor has no TF32")


def check_cuda_or_processor(device: Device) -> None:
    """Raises AbsentError for a device that is neither a CUDA GPU nor the processor."""
    if device.compiles and not device.runs_cuda_libraries:
        raise AbsentError(f"does not run on {device.name}: it is compared on CUDA GPUs, and on the "
                          "processor with --device host")


@dataclass(frozen=True)
class PeerNetwork:
    """A network as gossamer's graph, as a PyTorch module and as an ONNX file.

    torch: function from the graph's constants to a torch.nn.Module, None where the network is not
    written in PyTorch.
    torch_fused: function like `torch`. The module that it returns computes the whole layer in one
    call, which only CUDA offers. None where CUDA has no call for the whole layer.
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
class ReadyContender:
    """A contender that is ready to run, with its input in the memory of its device.

    work: function that queues `runs` executions on a stream of `device`.
    output: function from a count to the result of an execution for the first `count` images or
    rows.
    captured: True where the work may be recorded in a CUDA graph.
    around: function that makes a context manager; contenders on the processor are timed in this
    context.
    """

    contender: str
    device: Device
    work: Work
    output: Callable[[int], np.ndarray]
    layout: str
    config: str
    precision: str = "fp32"
    runs: int = 1
    captured: bool = False
    around: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class TimedContender:
    """A contender that has done its work in a process of its own, and was timed there.

    timing: times of its work.
    The other fields mean the same as in ReadyContender.
    """

    contender: str
    device: Device
    timing: Timing
    output: Callable[[int], np.ndarray]
    layout: str
    config: str
    precision: str


@dataclass(frozen=True)
class CalledContender:
    """A contender that is called as its users call it.

    new_call: function that makes a call. Each thread runs this function and then uses the call that
    the function made.
    output: function from the value that a call returned to an array with the result.
    runs: number of executions in one call, where a call is a loop over many batches; None where a
    call is a single execution.
    described: function from the microseconds of one execution to a text that the row has before
    `config`.
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
class Alternative:
    """One way to run a contender, for example in one memory layout. In each precision, only the
    fastest alternative of a contender gets a row.

    make: function that prepares the contender, or raises AbsentError.
    """

    label: str
    make: Callable[[], ReadyContender | TimedContender]


Peer = Callable[[PeerNetwork, np.ndarray, Device, Sequence[str]], list[Alternative]]
"""Function from a network, its input, a device and precisions to a peer's alternatives. Raises
AbsentError."""
