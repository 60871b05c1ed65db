"""Contenders of a benchmark: the network that they are given, and calls ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.bench.call_times import Call
from gossamer.device.base import Device
from gossamer.model.graph import Graph

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
