"""Algorithms of batch norm in training mode, with the statistics of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Problem, Variant
from gossamer.ops.batch_norm.problem import BatchNormProblem, reference
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.op import Op
from gossamer.ops.strided import (
    HostAlgorithm,
    KernelAlgorithm,
    cannot_compile,
    divisor,
    elements_per_channel,
    layout_variants,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("published.cl")
_WORK_GROUPS = (512, 256, 128)
"""Possible work-group sizes: the published size, then smaller sizes for devices that do not allow
512 work-items."""


class NumpyBatchNorm(HostAlgorithm):
    """Batch norm in float64.

    In float32 the rounding error of a mean far from 0 would be too large.
    """

    op = "batch_norm"
    compute = staticmethod(reference)


class PublishedBatchNorm(KernelAlgorithm):
    """Batch norm by two published kernels.

    In the first kernel each work-group computes the mean and the variance of one channel over the
    whole batch, and writes them to the workspace. The second kernel normalises every element. The
    kernels were published together with a convolution in OpenCL; see docs/algorithms.md.
    """

    op = "batch_norm"
    name = "published"

    def supports(self, problem: BatchNormProblem, device: Device) -> str | None:
        return cannot_run(problem, device)

    def variants(self, problem: BatchNormProblem, device: Device) -> Iterator[Variant]:
        for work_group in work_groups(device):
            for variant in layout_variants(problem, config=(("work_group", work_group),)):
                yield Variant(variant.config, variant.inputs, variant.outputs,
                              workspace=3 * 4 * problem.channels)

    def kernel_launches(self, weights: Weights, problem: BatchNormProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        x, work_group = variant.inputs[0], variant["work_group"]
        return [statistics_launch(problem, x, work_group, weights, device, workspace_buffer,
                                  problem.momentum),
                normalise_launch(problem, x, work_group, weights, device, workspace_buffer)]


def cannot_run(problem: Problem, device: Device) -> str | None:
    """Return why a device cannot run the kernels of published.cl; None if it can.

    problem: a batch norm, or one of its two steps.
    """
    if (reason := cannot_compile(problem, device)) is not None:
        return reason
    if device.limits.work_group_size < _WORK_GROUPS[-1]:
        return f"needs work-groups of {_WORK_GROUPS[-1]}"
    return None


def work_groups(device: Device) -> tuple[int, ...]:
    """Return the sizes of _WORK_GROUPS that the device allows, largest first."""
    return tuple(size for size in _WORK_GROUPS if size <= device.limits.work_group_size)


def statistics_launch(problem: BatchNormProblem, x: TensorSpec, work_group: int, weights: Weights,
                      device: Device, statistics: Callable[..., Argument],
                      momentum: float | None = None) -> Launch:
    """Return the launch that computes the statistics of each channel.

    The kernel writes an array (3, channels). For each channel of input 0, the array holds the mean
    as computed in float32, the exact mean minus this mean, and gamma / standard deviation.

    x: spec of input 0.
    work_group: number of work-items per work-group.
    statistics: function that a Launch calls to get the buffer of the array.
    momentum: weight of the stored mean and variance in their new values, which are outputs 1 and 2;
    None if output 0 is the only output.
    """
    stored: tuple[Argument | Callable[..., Argument], ...] = ()
    if momentum is not None:
        stored = (_constant(weights, "stored_mean"), _constant(weights, "stored_variance"),
                  output_buffer(1), output_buffer(2), float(momentum), 1.0 - momentum)
    kernel = device.compile(KernelSource.of(_SOURCE, "mean_variance", {
        "WORK_GROUP_SIZE": work_group, "STORED": int(momentum is not None)}))
    return Launch(kernel, (problem.channels,), (work_group,),
                  (input_buffer(0), _constant(weights, "gamma"), statistics, problem.channels,
                   problem.count, *divisor(elements_per_channel(x)), float(problem.epsilon),
                   *stored))


def normalise_launch(problem: BatchNormProblem, x: TensorSpec, work_group: int, weights: Weights,
                     device: Device, statistics: Callable[..., Argument]) -> Launch:
    """Return the launch that normalises input 0 and writes output 0.

    x: spec of input 0.
    work_group: number of work-items per work-group.
    statistics: function that a Launch calls to get the buffer that `statistics_launch` fills.
    """
    kernel = device.compile(KernelSource.of(_SOURCE, "normalise", {
        "WORK_GROUP_SIZE": work_group, "STORED": 0}))
    elements = problem.input.size
    return Launch(kernel, (-(-elements // work_group),), (work_group,),
                  (input_buffer(0), output_buffer(0), statistics, _constant(weights, "beta"),
                   elements, *divisor(problem.channels), *divisor(elements_per_channel(x))))


def _constant(weights: Weights, name: str) -> Buffer:
    return weights.packed(name, lambda arrays: np.asarray(arrays[name], np.float32))


OP = Op("batch_norm", BatchNormProblem, reference, (NumpyBatchNorm(), PublishedBatchNorm()))
