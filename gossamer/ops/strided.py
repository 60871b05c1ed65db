"""Shared code of simple ops.

This module has functions for layouts, merged dimensions and index limits, and the base classes of
algorithms with kernels and with NumPy.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.host_threads import threads_of
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, TensorSpec, logical_view, pack, unpack

WORK_GROUP_SIZE = 256
"""Work-group size of kernels with independent work-items."""

Strides = tuple[int, ...]


def in_layout(spec: TensorSpec, layout: str) -> TensorSpec:
    """Return a spec of rank 4 in a given layout; specs of other ranks are returned unchanged."""
    return spec.with_format(layout=layout) if len(spec.shape) == 4 else spec


def elements_per_channel(spec: TensorSpec) -> int:
    """Return the number of consecutive elements per channel (axis 1) in memory."""
    if len(spec.shape) != 4:
        return math.prod(spec.shape[2:])
    axes = AXES[spec.layout]
    return math.prod(spec.shape[axis] for axis in axes[axes.index(1) + 1:])


def layout_variants(problem: Problem, layouts: Iterable[str] = AXES,
                    config: tuple[tuple[str, int | str], ...] = ()) -> list[Variant]:
    """Return one variant for each layout.

    In each variant, all tensors of rank 4 have the same layout. If no tensor has rank 4, a single
    variant is returned.
    """
    if all(len(spec.shape) != 4 for spec in (*problem.inputs, *problem.outputs)):
        return [Variant(config, problem.inputs, problem.outputs)]
    return [Variant(config, tuple(in_layout(spec, layout) for spec in problem.inputs),
                    tuple(in_layout(spec, layout) for spec in problem.outputs))
            for layout in layouts]


def merge(sizes: Sequence[int], walks: Sequence[Sequence[int]],
          marks: Sequence[Any] | None = None
          ) -> tuple[tuple[int, ...], list[Strides], tuple[Any, ...]]:
    """Merge the dimensions of a nest of loops.

    Returns (sizes, walks, marks) of a nest over the same elements with as few loops as possible.
    Dimensions of size 1 are dropped. Two adjacent dimensions are merged if in every tensor a single
    stride covers both. Dimensions with a mark other than None are neither dropped nor merged.

    sizes: size of each dimension, outermost first.
    walks: for each tensor, its strides along the dimensions.
    marks: for each dimension, any value if the dimension must be kept, else None.
    """
    marks = [None] * len(sizes) if marks is None else marks
    loops: list[tuple[int, Any, list[int]]] = []
    for dim, (size, mark) in enumerate(zip(sizes, marks, strict=True)):
        strides = [walk[dim] for walk in walks]
        if size == 1 and mark is None:
            continue
        if loops and mark is None and loops[-1][1] is None:
            outer_size, _, outer = loops[-1]
            if all(o == s * size for o, s in zip(outer, strides, strict=True)):
                loops[-1] = (outer_size * size, None, strides)
                continue
        loops.append((size, mark, strides))
    merged = [tuple(strides[i] for _, _, strides in loops) for i in range(len(walks))]
    return tuple(loop[0] for loop in loops), merged, tuple(loop[1] for loop in loops)


def common_sizes(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the sizes of dimensions of which the axes of all shapes consist.

    All shapes have the same number of elements. No size is 1. Returns None if there are no such
    dimensions, for example for the shapes (2, 3) and (3, 2).
    """
    ends = sorted({math.prod(shape[axis:]) for shape in shapes for axis in range(len(shape) + 1)})
    if ends[0] == 0 or any(end % start for start, end in itertools.pairwise(ends)):
        return None
    return tuple(end // start for start, end in itertools.pairwise(ends))[::-1]


def memory_order(spec: TensorSpec) -> list[int]:
    """Return the dimensions in memory order, outermost first."""
    return sorted(range(len(spec.shape)), key=lambda dim: -spec.strides[dim])


def dense_strides(sizes: Sequence[int]) -> Strides:
    """Return the strides of a row-major array, in elements."""
    return tuple(int(np.prod(sizes[i + 1:], dtype=np.int64)) for i in range(len(sizes)))


def broadcast_strides(spec: TensorSpec, shape: Sequence[int]) -> Strides:
    """Return the strides of a tensor that is broadcast to a shape.

    The stride of a broadcast dimension is 0.
    """
    missing = len(shape) - len(spec.shape)
    return (0,) * missing + tuple(
        0 if size == 1 else stride for size, stride in zip(spec.shape, spec.strides, strict=True))


def divisor(number: int) -> tuple[int, int, int]:
    """Return the arguments for a kernel's DIVISOR parameter.

    The arguments are the number (from 1 to 2^31 - 1), and the multiplier and the shift that replace
    a division by the number.
    """
    shift = (number - 1).bit_length()
    multiplier = -(-(1 << (31 + shift)) // number)
    # the parameter is signed; kernels reinterpret its bits as unsigned
    return number, multiplier - (1 << 32) if multiplier >= 1 << 31 else multiplier, shift


def groups_for(items: int) -> tuple[int, ...]:
    """Return the number of work-groups that cover `items` work-items."""
    return (-(-items // WORK_GROUP_SIZE),)


def cannot_compile(problem: Problem, device: Device) -> str | None:
    """Return why kernels cannot compute a problem on a device; None if they can.

    This check is for kernels that support only unpacked elements and 32-bit indices.
    """
    for spec in (*problem.inputs, *problem.outputs):
        if device.compiles and spec.format.is_packed:
            return f"does not support packed {spec.dtype}"
    return cannot_index((*problem.inputs, *problem.outputs), device)


def cannot_index(specs: Iterable[TensorSpec], device: Device) -> str | None:
    """Return why kernels of a device cannot index tensors; None if they can.

    Kernels use 32-bit indices of elements or, in packed tensors, of 32-bit parts of words.
    """
    if not device.compiles:
        return "needs a device that compiles kernels"
    for spec in specs:
        elements = spec.nbytes // (4 if spec.format.is_packed else spec.stored_dtype.itemsize)
        if elements >= 2**31:
            return f"a tensor of {elements} elements is too large for 32-bit indices"
    return None


def too_large(problem: Problem) -> str | None:
    """Return why 32-bit indices are too small for a problem's tensors; None if they suffice.

    The number of logical elements is checked, whatever the tensors' formats are.
    """
    if max(spec.size for spec in (*problem.inputs, *problem.outputs)) >= 2**31:
        return "a tensor has 2^31 elements or more"
    return None


def cannot_index_variants(variants: Iterable[Variant], device: Device) -> str | None:
    """Return why kernels of a device cannot index all tensors of the variants; None if they can."""
    return cannot_index((spec for variant in variants
                         for spec in (*variant.inputs, *variant.outputs)), device)


def spatial_work(source: TensorSpec, target: TensorSpec) -> tuple[int, int, int]:
    """Return how images are divided among work-items: (inner, lanes, pixels).

    The images are (outer, height, width, inner) in memory, without padding. Each work-item computes
    `lanes` results along `inner` and `pixels` results along the width of the target. (lanes,
    pixels) is (4, 1) if `inner` is a multiple of 4. If not, it is (1, 4) if the target's columns
    are contiguous and their number is a multiple of 4. In all other cases it is (1, 1).
    """
    axes = AXES[source.layout]
    inner = math.prod(source.shape[axis] for axis in axes[axes.index(3) + 1:])
    if inner % 4 == 0:
        return inner, 4, 1
    return (inner, 1, 4) if target.strides[3] == 1 and target.shape[3] % 4 == 0 else (inner, 1, 1)


class KernelAlgorithm(Algorithm):
    """An algorithm that launches kernels, and none if its output is empty.

    Its kernels support every layout unless a subclass overrides `variants`, whose variants of
    precision fp16 store float32 tensors as float16. The problem's tensors are float32 unless a
    subclass overrides `supports`.
    """

    @abc.abstractmethod
    def kernel_launches(self, weights: Weights, problem: Any, variant: Variant,
                        device: Device) -> list[Launch]:
        """Return the launches; called only if the outputs are not empty."""

    def supports(self, problem: Any, device: Device) -> str | None:
        if problem.inputs[0].dtype != "float32":
            return f"needs float32, not {problem.inputs[0].dtype}"
        return cannot_compile(problem, device)

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        variants = layout_variants(problem)
        if problem.inputs[0].dtype == "float32":
            variants += [variant.as_fp16 for variant in variants]
        return variants

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        state = State(problem, variant, device)
        if variant.outputs[0].size:
            state.launches = self.kernel_launches(weights, problem, variant, device)
        return state


class HostAlgorithm(Algorithm):
    """An algorithm in NumPy.

    It reads and writes tensors of any layout through logical views.
    """

    name = "numpy"

    @abc.abstractmethod
    def compute(self, problem: Any, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for logical arrays in the problem's dtypes."""

    def supports(self, problem: Any, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else None

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        return layout_variants(problem)

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        return State(problem, variant, device, data=weights.arrays)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        specs = state.variant.inputs
        arrays = [unpack(host_array(buffer, spec), spec)
                  for buffer, spec in zip(inputs, specs, strict=True)]
        # threads_of() silences warnings of NaN, such as from inf - inf; other devices do not warn
        # either
        with threads_of(state.variant):
            results = self.compute(state.problem, arrays, state.data)
        for buffer, spec, result in zip(outputs, state.variant.outputs, results, strict=True):
            stored = host_array(buffer, spec)
            if spec.format.is_packed:
                # not checked, because values may be NaN even if the value facts exclude NaN
                stored[...] = pack(result, spec, check=False)
                continue
            if stored.size != spec.size:
                stored[...] = 0
            logical_view(stored, spec)[...] = result
