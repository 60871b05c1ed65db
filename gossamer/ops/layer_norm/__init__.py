"""Algorithms of layer norm and RMS norm over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.layer_norm.problem import LayerNormProblem, layer_norm, reference
from gossamer.ops.op import Op
from gossamer.ops.strided import HostAlgorithm, KernelAlgorithm, memory_order
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("one_pass.cl")
_GROUP = 256
_MOST_VECTORS = 16
"""Maximum number of vectors that a work-item keeps in registers."""
_MOST_ELEMENTS = 32
"""Maximum number of elements that a work-item keeps in registers if it loads no vectors."""
_GROUPS_OF_A_UNIT = 16
"""Maximum number of work-groups per compute unit and launch. This rule of thumb keeps all compute
units busy until the launch ends. If there are more blocks of rows than work-groups, a work-group
normalises several blocks. After its first block, it reads scale and bias from the cache."""


class NumpyLayerNorm(HostAlgorithm):
    """Layer norm in float32, with the variance computed from centred values."""

    op = "layer_norm"
    compute = staticmethod(layer_norm)


class OnePassLayerNorm(KernelAlgorithm):
    """One launch in which `lanes` work-items normalise each row together.

    Each element is read from memory only once if the work-items of a row can keep the row in
    registers.
    """

    op = "layer_norm"
    name = "one_pass"

    def supports(self, problem: LayerNormProblem, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        if device.limits.work_group_size < _GROUP:
            return f"needs work-groups of {_GROUP}"
        if not any(self.variants(problem, device)):
            return "needs normalised dimensions that are adjacent in some layout"
        return None

    def variants(self, problem: LayerNormProblem, device: Device) -> Iterable[Variant]:
        variants = [variant for variant in super().variants(problem, device)
                    if _sizes(problem, variant.inputs[0]) is not None]
        lanes = [_lanes(problem, variant.inputs[0]) for variant in variants]
        return [replace(variant, config=(("lanes", numbers[rank]),))
                for rank in range(max(map(len, lanes), default=0))
                for variant, numbers in zip(variants, lanes, strict=True) if rank < len(numbers)]

    def kernel_launches(self, weights: Weights, problem: LayerNormProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        spec = variant.inputs[0]
        sizes = _sizes(problem, spec)
        assert sizes is not None  # variants() skips layouts for which _sizes returns None
        outer, length, inner = sizes
        lanes, vector = int(variant["lanes"]), _vector(spec, length, inner)
        rows_of_group = _GROUP // lanes
        held = -(-length // (vector * lanes))
        defines: dict[str, object] = {
            "LANES": lanes, "ROWS": rows_of_group, "VECTOR": vector,
            "HELD": held if held <= _most_held(vector) else 0,
            "HALVES": int(spec.dtype == "float16")}
        if inner > 1:
            defines["STRIDED"] = 1
        if problem.centred:
            defines["CENTRED"] = 1
        kernel = device.compile(KernelSource.of(_SOURCE, "layer_norm", defines))
        rows = outer * inner
        groups = min(-(-rows // rows_of_group), _GROUPS_OF_A_UNIT * device.limits.compute_units)
        scale, bias = (_constant(weights, name, problem, spec) for name in ("scale", "bias"))
        return [Launch(kernel, (groups,), (_GROUP,), (
            input_buffer(0), scale, bias, output_buffer(0), rows, length, inner,
            float(problem.epsilon)))]


def _sizes(problem: LayerNormProblem, spec: TensorSpec) -> tuple[int, int, int] | None:
    """Return the tensor's sizes as (outer, length, inner) in memory.

    `length` is the number of elements of the normalised dimensions. Returns None if these
    dimensions are not adjacent in memory.
    """
    order = [dim for dim in memory_order(spec) if spec.shape[dim] != 1]
    positions = [position for position, dim in enumerate(order) if dim in problem.axes]
    if not positions:
        return spec.size, 1, 1
    first, last = positions[0], positions[-1] + 1
    if last - first != len(positions):
        return None
    outer, length, inner = (math.prod(spec.shape[dim] for dim in dims)
                            for dims in (order[:first], order[first:last], order[last:]))
    return outer, length, inner


def _vector(spec: TensorSpec, length: int, inner: int) -> int:
    """Return the number of elements that a work-item loads at once.

    The number is the largest of 8 (only for float16), 4 and 1 that divides the length of a row; it
    is 1 if rows are not contiguous.
    """
    most = 8 if spec.dtype == "float16" else 4
    return next(size for size in (most, 4, 1) if size == 1 or (inner == 1 and length % size == 0))


def _most_held(vector: int) -> int:
    return _MOST_ELEMENTS if vector == 1 else _MOST_VECTORS


def _lanes(problem: LayerNormProblem, spec: TensorSpec) -> list[int]:
    """Return the numbers of work-items per row to try, the most promising first.

    With two vectors per work-item, enough loads are in flight, and few work-items are idle at the
    end of a row. Up to 32 work-items per row belong to one warp, which sums without shared memory.
    If rows are not contiguous (`inner` > 1), a row has at most 16 work-items, so that a work-group
    computes at least 16 neighbouring rows and loads whole memory sectors.
    """
    sizes = _sizes(problem, spec)
    assert sizes is not None  # variants() skips layouts for which _sizes returns None
    outer, length, inner = sizes
    vector = _vector(spec, length, inner)
    vectors = max(-(-length // vector), 1)
    if inner > 1:
        few = min(_power_of_two(-(-vectors // 16)), 16)
        return [few, min(4 * few, 16)] if few < 16 else [few]
    if vectors > 32 * _most_held(vector) or (vectors > 64 and outer < 1024):
        return [_GROUP]
    few = min(_power_of_two(-(-vectors // 2)), 32)
    return [few, few // 2] if few > 1 and vectors <= few // 2 * _most_held(vector) else [few]


def _power_of_two(number: int) -> int:
    """Round a number up to a power of two."""
    return 1 << (number - 1).bit_length()


def _constant(weights: Weights, name: str, problem: LayerNormProblem, spec: TensorSpec) -> Buffer:
    """Return a weight on the device, with its dimensions in the input's memory order."""
    order = [problem.axes.index(dim) for dim in memory_order(spec) if dim in problem.axes]
    key = f"{name} {problem.normalised_shape} in the order {order}"
    return weights.packed(key, lambda arrays: np.ascontiguousarray(
        np.asarray(arrays[name], np.float32).transpose(order)))


OP = Op("layer_norm", LayerNormProblem, reference, (NumpyLayerNorm(), OnePassLayerNorm()))
