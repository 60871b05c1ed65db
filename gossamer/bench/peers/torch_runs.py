"""How PyTorch runs a module: its switches, graphs of CUDA, and batch norms that are folded; needs
torch."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class _Flags:
    """torch's switches for TF32 and for cuDNN's search, which hold for the whole process.

    The switches take effect when cuDNN searches for an algorithm, runs it and captures it. Each
    call of torch-eager asks for the switches that the call needs; a switch is written only when it
    changes, so that a call loses little time.
    """

    def __init__(self) -> None:
        self._tf32: bool | None = None
        self._before: tuple[bool, bool, bool] | None = None

    def use(self, precision: str) -> None:
        """Allows TF32 where the precision is "tf32", forbids TF32 in other precisions, and lets
        cuDNN search for its fastest algorithms."""
        tf32 = precision == "tf32"
        if tf32 is self._tf32:
            return
        if self._before is None:
            # torch warns once that newer switches replace these, but torch.compile reads these
            # switches, and fails where only the newer switches were set
            with warnings.catch_warnings(action="ignore"):
                self._before = (torch.backends.cuda.matmul.allow_tf32,
                                torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark)
                self._write(*self._before)
        self._write(tf32, tf32, True)
        self._tf32 = tf32

    def restore(self) -> None:
        """Sets the switches to the values that they had before the first use."""
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
    """Executions of a module as a CUDA graph.

    graph: the graph.
    result: the output, which each execution fills.
    run: function that executes the module. The function keeps the weights alive, because the graph
    reads the weights without owning them.

    A call takes the arguments of `run`, but reads only the memory that was captured.
    """

    graph: torch.cuda.CUDAGraph
    result: Any
    run: Callable[..., Any]

    def __call__(self, *_: torch.Tensor) -> Any:
        self.graph.replay()
        return self.result


def forget() -> None:
    """Restores the process's settings, and drops compiled modules."""
    FLAGS.restore()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def folded(network: nn.Module) -> nn.Module:
    """Returns a copy in which every batch norm that follows a convolution in an nn.Sequential is
    folded into the convolution."""
    network = copy.deepcopy(network)
    for sequence in [m for m in network.modules() if isinstance(m, nn.Sequential)]:
        for index in reversed(range(len(sequence) - 1)):
            conv, norm = sequence[index], sequence[index + 1]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                sequence[index] = fuse_conv_bn_eval(conv, norm)
                del sequence[index + 1]
    return network
