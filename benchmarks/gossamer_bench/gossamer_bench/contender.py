"""Contenders whose work is queued on a device and timed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.base import Device
from gossamer.measure import Timing, Work

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


def check_whole_in_fp32(network: PeerNetwork, precisions: Sequence[str]) -> None:
    """Raises AbsentError for a layer, and where fp32 is not asked for."""
    if network.is_layer:
        raise AbsentError("whole networks are compared only")
    if "fp32" not in precisions:
        raise AbsentError("compared in fp32 only")


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
