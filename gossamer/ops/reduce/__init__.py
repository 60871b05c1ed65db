"""Algorithms of reductions over some dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.facts import in_float16
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.reduce.host_direct import HostDirectReduce
from gossamer.ops.reduce.problem import ReduceProblem, reduce, reference
from gossamer.ops.strided import (
    HostAlgorithm,
    KernelAlgorithm,
    cannot_compile,
    divisor,
    layout_variants,
    memory_order,
    merge,
)
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("tree.cl")
_GROUP = 256
_TYPES = {"float32": ("float", "(-INFINITY)"), "int32": ("int", "(-2147483647 - 1)"),
          "int64": ("INT64", "(-9223372036854775807 - 1)")}

Dimensions = list[tuple[int, ...]]
"""For each dimension, its size and its strides in one or two tensors, in elements."""


class NumpyReduce(HostAlgorithm):
    """Reduction with numpy.sum or numpy.max."""

    op = "reduce"
    compute = staticmethod(reduce)


class TreeReduce(KernelAlgorithm):
    """One launch with tree reductions in shared memory.

    Several work-items compute each result: each work-item reduces some of the elements, and a tree
    reduction combines the partial results.
    """

    op = "reduce"
    name = "tree"

    def supports(self, problem: ReduceProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        for variant in layout_variants(problem):
            kept, reduced = _dimensions(problem, variant)
            if max(len(kept), len(reduced)) > 4:
                return "more than four separate dimensions are kept or reduced"
        return None

    def variants(self, problem: ReduceProblem, device: Device) -> Iterable[Variant]:
        variants = list(super().variants(problem, device))
        if problem.kind != "max" and problem.input.dtype == "float32" and any(
                map(in_float16, problem.facts)):
            # float16 represents the integers of the input, but not always their sum or mean, so
            # only the input may be float16
            variants += [replace(variant, inputs=variant.as_fp16.inputs) for variant in variants
                         if variant.precision == "fp32"]
        return variants

    def kernel_launches(self, weights: Weights, problem: ReduceProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        results = variant.outputs[0].size
        kept, reduced = _dimensions(problem, variant)
        across = bool(kept) and kept[-1][1] == 1
        lanes = _lanes(problem.count, results, kept[-1][0] if across else 0)
        value, least = _TYPES[problem.input.dtype]
        defines: dict[str, object] = {"VALUE": value, "LANES": lanes, "COLUMNS": _GROUP // lanes,
                                      "HALF_SOURCE": int(variant.inputs[0].dtype == "float16"),
                                      "HALF_TARGET": int(variant.outputs[0].dtype == "float16")}
        if problem.kind == "max":
            defines |= {"MAX": 1, "LEAST": least}
        if problem.kind == "mean":
            defines["MEAN"] = 1
        if across:
            defines["ACROSS"] = 1
        if len(reduced) <= 1:
            defines["SIMPLE"] = 1
        kernel = device.compile(KernelSource.of(_SOURCE, "reduce", defines))
        numbers = [n for size, *strides in [(1, 0, 0)] * (4 - len(kept)) + kept
                   for n in (*divisor(size), *strides)]
        numbers += [n for size, *strides in [(1, 0)] * (4 - len(reduced)) + reduced
                    for n in (*divisor(max(size, 1)), *strides)]
        groups = -(-results // (_GROUP // lanes))
        return [Launch(kernel, (groups,), (_GROUP,), (
            input_buffer(0), output_buffer(0), results, problem.count, *numbers))]


def _lanes(count: int, results: int, neighbours: int) -> int:
    """Return the number of work-items that compute a result together.

    Eight work-items are enough if neighbouring results read neighbouring elements, because the
    work-items of neighbouring results then read full cache lines together. If neighbouring results
    read distant elements, 16 or 32 work-items are enough to read full cache lines. But if there are
    few results, and each has many elements, a full work-group computes each result.

    count: number of elements that are reduced to one result.
    neighbours: number of neighbouring results that read neighbouring elements; 0 if neighbouring
    results read distant elements.
    """
    if neighbours >= 16:
        return 8
    if count > 256 and results < 1024:
        return 256
    return 16 if count <= 64 else 32


def _dimensions(problem: ReduceProblem, variant: Variant) -> tuple[Dimensions, Dimensions]:
    """Return the kept and the reduced dimensions.

    Kept dimensions are (size, source stride, target stride), reduced ones (size, source stride).
    Both lists are in the memory order of the input. Adjacent dimensions are merged if their strides
    allow it.
    """
    source, target = variant.inputs[0], variant.outputs[0]
    order = memory_order(source)
    kept = [dim for dim in order if dim not in problem.axes]
    target_dim = {dim: dim if problem.keepdims else sum(d < dim for d in kept) for dim in kept}
    sizes, (froms, tos), _ = merge(
        [source.shape[dim] for dim in kept],
        [[source.strides[dim] for dim in kept],
         [target.strides[target_dim[dim]] for dim in kept]])
    summed = [dim for dim in order if dim in problem.axes]
    lengths, (steps,), _ = merge([source.shape[dim] for dim in summed],
                                 [[source.strides[dim] for dim in summed]])
    return (list(zip(sizes, froms, tos, strict=True)), list(zip(lengths, steps, strict=True)))


OP = Op("reduce", ReduceProblem, reference, (NumpyReduce(), HostDirectReduce(), TreeReduce()))
