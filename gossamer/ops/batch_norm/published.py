"""Batch norm by the statistics of its own input, as published for convolution in OpenCL: a kernel
for mean and variance, in which a work-group of 512 computes a channel over the whole batch, and one
that normalises every element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.strided import cannot_compile, divisor, layout_variants
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, TensorSpec

_SOURCE = Path(__file__).with_name("published.cl")
_WORK_GROUPS = (512, 256, 128)
"""Work-items of a work-group, as published and for devices that allow fewer."""


class PublishedBatchNorm(Algorithm):
    """Two kernels; the second one reads what the first one writes to the workspace."""

    op = "batch_norm"
    name = "published"

    def supports(self, problem: BatchNormProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if device.limits.work_group_size < _WORK_GROUPS[-1]:
            return f"needs work-groups of {_WORK_GROUPS[-1]}"
        return None

    def variants(self, problem: BatchNormProblem, device: Device) -> Iterator[Variant]:
        for work_group in _WORK_GROUPS:
            if work_group <= device.limits.work_group_size:
                for variant in layout_variants(problem, config=(("work_group", work_group),)):
                    yield Variant(variant.config, variant.inputs, variant.outputs,
                                  workspace=3 * 4 * problem.channels)

    def prepare(self, weights: Weights, problem: BatchNormProblem, variant: Variant,
                device: Device) -> State:
        if problem.input.size == 0:
            return State(problem, variant, device)

        def constant(name: str) -> Buffer:
            return weights.packed(name, lambda arrays: np.asarray(arrays[name], np.float32))

        work_group, inner = variant["work_group"], _inner(variant.inputs[0])
        momentum = problem.momentum
        macros = {"WORK_GROUP_SIZE": work_group, "STORED": int(momentum is not None)}
        stored: tuple[Argument | Callable[..., Argument], ...] = ()
        if momentum is not None:
            stored = (constant("stored_mean"), constant("stored_variance"), output_buffer(1),
                      output_buffer(2), float(momentum), 1.0 - momentum)
        reduction = Launch(
            device.compile(KernelSource.of(_SOURCE, "mean_variance", macros)),
            (problem.channels,), (work_group,),
            (input_buffer(0), constant("gamma"), workspace_buffer, problem.channels,
             problem.count, *divisor(inner), float(problem.epsilon), *stored))
        elements = problem.input.size
        normalisation = Launch(
            device.compile(KernelSource.of(_SOURCE, "normalise", macros)),
            (-(-elements // work_group),), (work_group,),
            (input_buffer(0), output_buffer(0), workspace_buffer, constant("beta"), elements,
             *divisor(problem.channels), *divisor(inner)))
        return State(problem, variant, device, [reduction, normalisation])


def _inner(spec: TensorSpec) -> int:
    """Returns the number of neighbouring elements in memory that share a channel."""
    if len(spec.shape) != 4:
        return math.prod(spec.shape[2:])
    axes = AXES[spec.layout]
    return math.prod(spec.shape[axis] for axis in axes[axes.index(1) + 1:])
