"""Algorithms of the softmax and of its logarithm along one dimension."""

from __future__ import annotations

import math
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.softmax.host_direct import HostDirectSoftmax
from gossamer.ops.softmax.problem import SoftmaxProblem, reference, softmax
from gossamer.ops.strided import HostAlgorithm, KernelAlgorithm, memory_order
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("tree.cl")
_GROUP = 256


class NumpySoftmax(HostAlgorithm):
    """Softmax in NumPy.

    The maximum is subtracted first, so that no exponential overflows.
    """

    op = "softmax"
    compute = staticmethod(softmax)


class TreeSoftmax(KernelAlgorithm):
    """One launch with tree reductions in shared memory.

    Several work-items compute each sum: each work-item reduces some of the elements, and later
    writes the results of the same elements.
    """

    op = "softmax"
    name = "tree"

    def kernel_launches(self, weights: Weights, problem: SoftmaxProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        spec = variant.inputs[0]
        order = memory_order(spec)
        inner = math.prod(spec.shape[dim] for dim in order[order.index(problem.axis) + 1:])
        length = spec.shape[problem.axis]
        # if large dimensions follow the softmax's axis in memory, adjacent work-items process
        # adjacent elements along these dimensions, so that loads are coalesced
        across = inner >= 16
        sums = spec.size // length
        # `lanes` work-items compute each sum. On a CPU, one core runs the work-items of a
        # work-group one after another in each step of the tree, so many work-items only take
        # longer.
        lanes = 8 if across or length <= 64 or device.on_processors else 256
        if across and sums >= 2**16:
            lanes = 1
        defines: dict[str, object] = {"LANES": lanes, "COLUMNS": _GROUP // lanes,
                                      "HALVES": int(variant.precision == "fp16")}
        if across:
            defines["ACROSS"] = 1
        if problem.log:
            defines["LOG"] = 1
        kernel = device.compile(KernelSource.of(_SOURCE, "softmax", defines))
        groups = -(-sums // (_GROUP // lanes))
        return [Launch(kernel, (groups,), (_GROUP,), (
            input_buffer(0), output_buffer(0), sums, length, inner))]


OP = Op("softmax", SoftmaxProblem, reference, (NumpySoftmax(), HostDirectSoftmax(), TreeSoftmax()))
