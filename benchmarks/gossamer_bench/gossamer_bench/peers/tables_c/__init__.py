"""Pruned networks in C: tables of nonzero weights, and activations in planes that are used again.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.plan.api import compile
from gossamer.plan.program import Program, Step
from gossamer_bench.contender import Alternative, ReadyContender, check_whole_in_fp32
from gossamer_bench.peers import c_code

_SPLIT, _CONVOLUTION, _MAXIMUM, _MEAN, _PRODUCT = range(5)
"""The kinds of steps, as in tables.c."""
_BEHIND = 128
"""Floats behind the last row of planes, 2 * TILE of tables.c."""
_ENTRY = np.dtype([("offset", np.int32), ("weight", np.float32)])


class _Planes(ctypes.Structure):
    """The struct Planes of tables.c."""

    _fields_ = (("data", ctypes.c_void_p), ("channels", ctypes.c_int), ("height", ctypes.c_int),
                ("width", ctypes.c_int), ("border", ctypes.c_int))


class _Step(ctypes.Structure):
    """The struct Step of tables.c."""

    _fields_ = (*((name, ctypes.c_int) for name in ("kind", "size", "stride", "pad", "relu")),
                *((name, _Planes) for name in ("x", "y", "added")),
                *((name, ctypes.c_void_p) for name in ("bias", "starts", "entries")))


class TableNetwork:
    """A network in the memory of the C code, for one image at a time.

    Raises AbsentError where the network has other layers than convolutions without groups, means,
    maxima and products, with sums and ReLU behind them.
    """

    def __init__(self, program: Program) -> None:
        self._steps: list[_Step] = []
        self._arrays: list[np.ndarray] = []
        self._planes: dict[str, _Planes] = {}
        self._free: defaultdict[tuple[int, ...], list[_Planes]] = defaultdict(list)
        last = {name: index for index, step in enumerate(program.steps) for name in step.inputs}
        (name,), (result,) = program.inputs.values(), program.outputs.values()
        self._input = self._new(name, program.specs[name].shape, 0)
        for index, step in enumerate(program.steps):
            (output,) = step.outputs
            border = max((_pad(reader) for reader in program.steps if reader.inputs[0] == output),
                         default=0)
            self._new(output, program.specs[output].shape, border)
            self._add(step)
            for source in dict.fromkeys(step.inputs):
                if last[source] == index and source != name:
                    self._release(self._planes[source])
        self._output = self._planes[result]
        self._list = (_Step * len(self._steps))(*self._steps)

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Computes the outputs y (N, classes) of the images x (N, C, H, W)."""
        code = c_code.library(Path(__file__).parent)
        for image, result in zip(x, y, strict=True):
            ctypes.memmove(self._input.data, image.ctypes.data, image.nbytes)
            code.run(self._list, len(self._list))
            ctypes.memmove(result.ctypes.data, self._output.data, result.nbytes)

    def _new(self, name: str, shape: Sequence[int], border: int) -> _Planes:
        """Returns planes that no later step reads, or new ones."""
        channels, height, width = (*shape[1:], 1, 1)[:3]
        size = (channels, height, width, border)
        if self._free[size]:
            self._planes[name] = self._free[size].pop()
        else:
            data = self._kept(np.zeros(
                channels * (height + 2 * border) * (width + 2 * border) + _BEHIND, np.float32))
            self._planes[name] = _Planes(data, *size)
        return self._planes[name]

    def _release(self, planes: _Planes) -> None:
        size = (planes.channels, planes.height, planes.width, planes.border)
        self._free[size].append(planes)

    def _kept(self, array: np.ndarray) -> int:
        """Keeps an array in memory, and returns its address."""
        self._arrays.append(array)
        return array.ctypes.data

    def _add(self, step: Step) -> None:
        """Adds a step of the plan. Raises AbsentError where the C code has none like it."""
        problem: Any = step.problem
        x, y = self._planes[step.inputs[0]], self._planes[step.outputs[0]]
        if isinstance(problem, Conv2dProblem):
            self._convolution(step, problem, x, y)
        elif isinstance(problem, GemmProblem):
            offsets = np.arange(problem.depth)
            self._steps.append(_Step(kind=_PRODUCT, x=x, y=y, **self._table(step, offsets)))
        elif (isinstance(problem, PoolProblem) and problem.kind == "max"
                and problem.dilation == (1, 1)):
            self._steps.append(_Step(
                kind=_MAXIMUM, size=_one(problem.kernel), stride=_one(problem.stride),
                pad=_one(problem.pads[:2]), x=x, y=y))
        elif (isinstance(problem, ReduceProblem) and problem.kind == "mean"
                and problem.axes == (2, 3)):
            self._steps.append(_Step(kind=_MEAN, x=x, y=y))
        else:
            raise AbsentError(f"has no step for {problem.op} {step.layer.name!r}")

    def _convolution(self, step: Step, problem: Conv2dProblem, x: _Planes, y: _Planes) -> None:
        if problem.groups > 1 or problem.dilation != (1, 1):
            raise AbsentError("computes convolutions without groups and dilation only")
        size, stride, pad = _one(problem.kernel), _one(problem.stride), _pad(step)
        c, r, t = np.ogrid[:problem.channels, :size, :size]
        if stride > 1 or x.border < pad:
            side = min(size, stride)
            height, width = (edge + (size - 1) // stride for edge in (y.height, y.width))
            split = self._new("split", (1, problem.channels * side * side, height, width), 0)
            self._steps.append(_Step(kind=_SPLIT, size=size, stride=stride,
                                     pad=_one(problem.pads), x=x, y=split))
            offsets = (((c * side + r % stride) * side + t % stride) * height + r // stride
                       ) * width + t // stride
            self._release(split)
            x = split
        else:
            rows, columns = (edge + 2 * x.border for edge in (x.height, x.width))
            offsets = (c * rows + r + x.border - pad) * columns + t + x.border - pad
        added = [self._planes[name] for name in step.inputs[1:]]
        self._steps.append(_Step(kind=_CONVOLUTION, x=x, y=y, added=(added or [_Planes()])[0],
                                 **self._table(step, offsets.ravel())))

    def _table(self, step: Step, offsets: np.ndarray) -> dict[str, Any]:
        """Returns the fields with the constants of a layer.

        offsets: the offset of the first input of each weight of an output channel.
        """
        epilogue, weights = step.problem.epilogue, step.layer.weights  # type: ignore[attr-defined]
        functions = [part.function for part in epilogue.expression.steps]
        relu = functions[-1:] == ["relu"]
        if (set(functions[:len(functions) - relu]) - {"add"} or len(step.inputs) > 2
                or set(epilogue.operands) - {"channel", "tensor"}):
            raise AbsentError(f"has no step for what comes behind {step.layer.name!r}")
        weight = weights["weight"].reshape(len(weights["weight"]), -1)
        bias = sum((weights[f"operand{index}"].ravel() for index, kind in enumerate(
            epilogue.operands) if kind == "channel"), np.zeros(len(weight)))
        rows, columns = np.nonzero(weight)
        entries = np.empty(len(rows), _ENTRY)
        entries["offset"], entries["weight"] = offsets[columns], weight[rows, columns]
        starts = np.searchsorted(rows, np.arange(len(weight) + 1)).astype(np.int32)
        return {"relu": relu, "bias": self._kept(bias.astype(np.float32)),
                "starts": self._kept(starts), "entries": self._kept(entries)}


def _one(sizes: Sequence[int]) -> int:
    """Returns the size in both directions. Raises AbsentError where they differ."""
    if len(set(sizes)) > 1:
        raise AbsentError("computes square windows, strides and pads only")
    return sizes[0]


def _pad(step: Step) -> int:
    """Returns the border that a convolution of stride 1 reads of its input; 0 for other steps,
    which read none."""
    problem = step.problem
    return _one(problem.pads) if isinstance(problem, Conv2dProblem) and max(
        problem.stride) == 1 else 0


def tables(network: PeerNetwork, x: np.ndarray, device: Device,
           precisions: Sequence[str]) -> list[Alternative]:
    """Returns a pruned network in C on all cores of the processor. Raises AbsentError."""
    check_whole_in_fp32(network, precisions)
    c_code.library(Path(__file__).parent)
    plan = compile(network.graph, "host", vendors=False)
    tabled = TableNetwork(plan.program(1))
    y = np.empty((len(x), *plan.outputs[0].shape[1:]), np.float32)
    host = find("host")

    def work(stream: Any) -> None:
        tabled.run(x, y)

    return [Alternative("cc", lambda: ReadyContender(
        "c-tables", host, work, lambda count: y[:count].copy(), "NCHW",
        f"{c_code.compiler()} {' '.join(c_code.OPTIONS)} -fopenmp, "
        f"{host.limits.compute_units} threads"))]
